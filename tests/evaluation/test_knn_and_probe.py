"""k-NN and the linear probe compared with scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier

from vitreous import VitreousError
from vitreous.evaluation import knn, probe
from vitreous.evaluation.measures import (
    METHODS,
    Measure,
    MeasureSettings,
    TrainTestFeatures,
    check_measures,
    development_split,
    measure_features,
)

KS = (1, 5, 10, 20, 50)


@pytest.mark.parametrize("part", [2**26, 700])  # all at once, and a few rows at a time
def test_knn_predictions_equal_scikit_learn(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knn, "MAX_SIMILARITIES", part)
    random = torch.Generator().manual_seed(0)
    train, test = torch.randn(300, 24, generator=random), torch.randn(150, 24, generator=random)
    labels = torch.randint(0, 7, (300,), generator=random)
    found = knn.knn_predictions(train, labels, test, KS)
    for k in KS:
        theirs = KNeighborsClassifier(k, weights=lambda d: np.exp((1 - d) / 0.07), metric="cosine", algorithm="brute")
        expected = theirs.fit(train.double(), labels).predict(test.double())
        assert found[k].tolist() == expected.tolist()


def test_k_is_limited_by_the_number_of_training_images() -> None:
    with pytest.raises(VitreousError, match=r"k = \[1, 21\]: .* the 20 training images"):
        knn.knn_predictions(torch.randn(20, 3), torch.arange(20) % 2, torch.randn(2, 3), (1, 21))
    features = TrainTestFeatures(torch.randn(40, 3), torch.arange(40) % 2, torch.randn(4, 3), torch.arange(4) % 2)
    (found,) = measure_features("knn", features, MeasureSettings())
    assert list(found.details["swept"]) == ["1", "5", "10", "20"]


def load_features() -> TrainTestFeatures:
    x, y = load_digits(return_X_y=True)
    x, y = torch.from_numpy(x).float(), torch.from_numpy(y)
    test = torch.arange(len(y)) % 3 == 0
    return TrainTestFeatures(x[~test], y[~test], x[test], y[test])


@pytest.fixture(scope="module")
def digits() -> TrainTestFeatures:
    return load_features()


def logistic_accuracy(features: TrainTestFeatures, decay: float) -> float:
    mean, std = features.train.mean(0), features.train.std(0, correction=0) + 1e-5
    x, test = ((part - mean) / std for part in (features.train, features.test))
    model = LogisticRegression(C=1 / (decay * len(x)), max_iter=2000, tol=1e-6).fit(x.double(), features.train_labels)
    return float(model.score(test.double(), features.test_labels))


def test_heads_equal_logistic_regression(digits: TrainTestFeatures) -> None:
    heads = [probe.ProbeHead(0.01, 1e-2), probe.ProbeHead(0.03, 1e-1), probe.ProbeHead(0.03, 3e-3)]
    right, _ = probe.fit_heads(digits.train, digits.train_labels, heads, 10).scores(digits.test, digits.test_labels)
    for head, accuracy in zip(heads, right.tolist(), strict=True):
        assert abs(accuracy - logistic_accuracy(digits, head.decay)) <= 0.002


def test_heads_are_independent(digits: TrainTestFeatures) -> None:
    rows, labels = digits.train[:200], digits.train_labels[:200]
    together = probe.fit_heads(rows, labels, probe.HEADS[:3], 10)
    alone = probe.fit_heads(rows, labels, [probe.HEADS[1]], 10)
    assert (together.weights[:, 1] - alone.weights[:, 0]).abs().max() < 1e-3 * alone.weights.abs().max()


def test_probe_is_as_accurate_as_logistic_regression(digits: TrainTestFeatures) -> None:
    """With the weight decays that the probe selected, on all training rows. 0.5 points are three of 599 test images."""
    (found,) = measure_features("probe", digits, MeasureSettings())
    theirs = np.mean([logistic_accuracy(digits, chosen["decay"]) for chosen in found.details["chosen"]])
    assert len(found.each) == 3
    assert abs(found.mean - theirs) <= 0.005


def test_json_round_trip_and_spread(digits: TrainTestFeatures) -> None:
    small = TrainTestFeatures(
        digits.train[:200],
        digits.train_labels[:200],
        digits.test[:100],
        digits.test_labels[:100],
    )
    for method in METHODS:
        if method == "probe":
            continue
        for found in measure_features(method, small, MeasureSettings(shots=(1, 5))):
            assert Measure.from_json(found.to_json()) == found
            assert (found.spread is None) == (method == "knn")


@pytest.mark.parametrize("development", [None, 30])
def test_development_split(development: int | None) -> None:
    labels = torch.arange(100) % 4
    settings = MeasureSettings(development=development)
    fit, dev = development_split(labels, settings, 0)
    assert len(dev) == (development or 20)
    assert sorted(fit.tolist() + dev.tolist()) == list(range(100))
    assert dev.tolist() != development_split(labels, settings, 1)[1].tolist()


def test_impossible_measures_are_an_error_before_any_feature() -> None:
    labels, one_shot = torch.tensor([0] * 30 + [1] * 7), MeasureSettings(shots=(1,))
    with pytest.raises(VitreousError, match=r"pets: 25 shots, but 'dog' has only 7 training images; .*--shots"):
        check_measures(["fewshot"], labels, labels, ("cat", "dog"), MeasureSettings(), "pets")
    with pytest.raises(VitreousError, match="'fox' has only 0 training images"):  # but test images
        check_measures(["fewshot"], labels, torch.tensor([2]), ("cat", "dog", "fox"), one_shot, "pets")
    check_measures(["fewshot"], labels, labels, ("cat", "dog", "fox"), one_shot, "pets")  # no images of foxes at all
    with pytest.raises(VitreousError, match="pets: the development split would be empty"):
        check_measures(["probe"], torch.tensor([0, 1]), labels, ("cat", "dog"), MeasureSettings(), "pets")
    with pytest.raises(VitreousError, match="development = 200: must be less than the 37"):
        check_measures(["knn"], labels, labels, ("cat", "dog"), MeasureSettings(development=200), "pets")
    with pytest.raises(VitreousError, match="must be 1 or more"):
        MeasureSettings(shots=(0,))
