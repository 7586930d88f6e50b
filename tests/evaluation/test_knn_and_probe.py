"""k-NN and the probe beside scikit-learn's."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

from vitreous import VitreousError
from vitreous.evaluation import knn, probe
from vitreous.evaluation.measures import METHODS, Bank, Measure, Settings, check, learn_and_judge, measure

KS = (1, 5, 10, 20, 50)


@pytest.mark.parametrize("part", [2**26, 700])  # all at once, and a few rows at a time
def test_nearest_as_scikit_learn(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knn, "AT_ONCE", part)
    random = torch.Generator().manual_seed(0)
    train, test = torch.randn(300, 24, generator=random), torch.randn(150, 24, generator=random)
    labels = torch.randint(0, 7, (300,), generator=random)
    found = knn.nearest_classes(train, labels, test, KS)
    for k in KS:
        theirs = KNeighborsClassifier(k, weights=lambda d: np.exp((1 - d) / 0.07), metric="cosine", algorithm="brute")
        expected = theirs.fit(train.double(), labels).predict(test.double())
        assert found[k].tolist() == expected.tolist()


def test_more_neighbours_than_images() -> None:
    with pytest.raises(VitreousError, match=r"k = \[1, 21\]: .* the 20 training images"):
        knn.nearest_classes(torch.randn(20, 3), torch.arange(20) % 2, torch.randn(2, 3), (1, 21))
    bank = Bank(torch.randn(40, 3), torch.arange(40) % 2, torch.randn(4, 3), torch.arange(4) % 2)
    (found,) = measure("knn", bank, Settings())
    assert list(found.details["swept"]) == ["1", "5", "10", "20"]


def digits() -> Bank:
    x, y = load_digits(return_X_y=True)
    x, y = torch.from_numpy(x).float(), torch.from_numpy(y)
    test = torch.arange(len(y)) % 3 == 0
    return Bank(x[~test], y[~test], x[test], y[test])


@pytest.fixture(scope="module")
def real() -> Bank:
    return digits()


def logistic(bank: Bank, decay: float) -> float:
    mean, std = bank.train.mean(0), bank.train.std(0, correction=0) + 1e-5
    x, test = ((part - mean) / std for part in (bank.train, bank.test))
    model = LogisticRegression(C=1 / (decay * len(x)), max_iter=2000, tol=1e-6).fit(x.double(), bank.train_labels)
    return float(model.score(test.double(), bank.test_labels))


def test_heads_are_logistic_regression(real: Bank) -> None:
    heads = [probe.Head(0.01, 1e-2), probe.Head(0.03, 1e-1), probe.Head(0.03, 3e-3)]
    right, _ = probe.fit(real.train, real.train_labels, heads, 10).scores(real.test, real.test_labels)
    for head, share in zip(heads, right.tolist(), strict=True):
        assert abs(share - logistic(real, head.decay)) <= 0.002


def test_heads_do_not_know_of_each_other(real: Bank) -> None:
    rows, labels = real.train[:200], real.train_labels[:200]
    together = probe.fit(rows, labels, probe.HEADS[:3], 10)
    alone = probe.fit(rows, labels, [probe.HEADS[1]], 10)
    assert (together.weights[:, 1] - alone.weights[:, 0]).abs().max() < 1e-3 * alone.weights.abs().max()


def test_the_probe_is_as_good_as_logistic_regression(real: Bank) -> None:
    """With the decays that it chose, on all training rows. Of 599 test images 0.5 points are three."""
    (found,) = measure("probe", real, Settings())
    theirs = np.mean([logistic(real, chosen["decay"]) for chosen in found.details["chosen"]])
    assert len(found.each) == 3
    assert abs(found.mean - theirs) <= 0.005


def test_mean_spread_and_json(real: Bank) -> None:
    small = Bank(real.train[:200], real.train_labels[:200], real.test[:100], real.test_labels[:100])
    for method in METHODS:
        if method == "probe":
            continue
        for found in measure(method, small, Settings(shots=(1, 5))):
            assert Measure.from_json(found.to_json()) == found
            assert (found.spread is None) == (method == "knn")


@pytest.mark.parametrize("development", [None, 30])
def test_rows_to_choose_by(development: int | None) -> None:
    labels = torch.arange(100) % 4
    settings = Settings(development=development)
    learn, judge = learn_and_judge(labels, settings, 0)
    assert len(judge) == (development or 20)
    assert sorted(learn.tolist() + judge.tolist()) == list(range(100))
    assert judge.tolist() != learn_and_judge(labels, settings, 1)[1].tolist()


def test_what_cannot_be_measured_is_said_beforehand() -> None:
    labels = torch.tensor([0] * 30 + [1] * 7)
    with pytest.raises(VitreousError, match=r"pets: 25 shots, and 'dog' has only 7 training images; .*--shots"):
        check(["fewshot"], labels, labels, ("cat", "dog"), Settings(), "pets")
    with pytest.raises(VitreousError, match="'fox' has only 0 training images"):  # and is asked for
        check(["fewshot"], labels, torch.tensor([2]), ("cat", "dog", "fox"), Settings(shots=(1,)), "pets")
    check(["fewshot"], labels, labels, ("cat", "dog", "fox"), Settings(shots=(1,)), "pets")  # nowhere to be seen
    with pytest.raises(VitreousError, match="pets: the development split would be empty"):
        check(["probe"], torch.tensor([0, 1]), labels, ("cat", "dog"), Settings(), "pets")
    with pytest.raises(VitreousError, match="development = 200: there are 37"):
        check(["knn"], labels, labels, ("cat", "dog"), Settings(development=200), "pets")
    with pytest.raises(VitreousError, match="must be 1 or more"):
        Settings(shots=(0,))
