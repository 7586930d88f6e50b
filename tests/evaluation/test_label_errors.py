"""Label errors on real digits: which flipped labels are found, how many are expected, and what clean data gives."""

import pytest
import torch
from torch import Tensor

from vitreous.evaluation.data_check_labels import find_label_problems
from vitreous.evaluation.label_errors import LabelErrors, confident_mistakes, estimate_label_errors
from vitreous.evaluation.out_of_fold import assign_folds, out_of_fold_probabilities, select_head


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    datasets = pytest.importorskip("sklearn.datasets")
    data = datasets.load_digits()
    return torch.tensor(data.data[:600], dtype=torch.float32), torch.tensor(data.target[:600])


def find(features: Tensor, labels: Tensor) -> LabelErrors:
    fold = assign_folds(labels, torch.arange(len(labels)))
    head = select_head(features, labels, fold, 10)
    first = out_of_fold_probabilities(features, labels, fold, head, 10)
    keep = ~confident_mistakes(first, labels)
    return estimate_label_errors(out_of_fold_probabilities(features, labels, fold, head, 10, keep=keep), labels)


@pytest.mark.parametrize(("kind", "rate"), [("uniform", 0.05), ("uniform", 0.25), ("systematic", 0.2)])
def test_flipped_labels_are_found(digits: tuple[Tensor, Tensor], kind: str, rate: float) -> None:
    features, truth = digits
    generator = torch.Generator().manual_seed(1)
    chosen = torch.randperm(len(truth), generator=generator)[: round(rate * len(truth))]
    flipped = torch.zeros(len(truth), dtype=torch.bool)
    flipped[chosen] = True
    labels = truth.clone()
    shift = torch.randint(1, 10, (len(chosen),), generator=generator) if kind == "uniform" else 1
    labels[chosen] = (truth[chosen] + shift) % 10
    found = find(features, labels)
    suspects = found.suspects
    right = flipped[suspects]
    assert right.double().mean() > 0.8
    assert right.sum() > 0.85 * flipped.sum()
    assert found.rate == pytest.approx(rate, abs=0.03)
    assert found.wrong[suspects].sum() == pytest.approx(int(right.sum()), rel=0.2)  # the expected number
    assert (found.suggested[suspects[right]] == truth[suspects[right]]).double().mean() > 0.9
    assert (found.wrong[suspects].diff() <= 0).all()
    assert (found.suggested != labels).all()


def test_clean_labels_give_almost_no_suspects(digits: tuple[Tensor, Tensor]) -> None:
    found = find(*digits)
    assert len(found.suspects) <= 3
    assert found.rate < 0.01


def test_confident_mistakes() -> None:
    probabilities = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.2, 0.8], [0.95, 0.05], [0.55, 0.45]])
    labels = torch.tensor([0, 0, 1, 1, 1, 1])  # mean of class 0: 0.85, of class 1: 0.55
    assert confident_mistakes(probabilities, labels).tolist() == [False, False, False, False, True, False]


def test_copies_share_a_fold_and_classes_are_spread() -> None:
    labels = torch.arange(100) % 4
    groups = torch.arange(100)
    groups[50:60] = 50
    groups[[3, 97]] = 3
    fold = assign_folds(labels, groups)
    assert fold[50:60].unique().numel() == 1
    assert fold[3] == fold[97]
    for number in range(4):
        counts = fold[labels == number].bincount(minlength=5)
        assert counts.max() - counts.min() <= 1
    assert torch.equal(fold, assign_folds(labels, groups))


def test_labels_are_not_judged_by_poor_features() -> None:
    """60 overlapping classes of 10 images, all labelled correctly: the classifier is wrong, not the labels."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(60).repeat(10)
    means = torch.randn(60, 40, generator=generator) + 3 * torch.randn(1, 40, generator=generator)
    sizes = torch.randn(600, 40, generator=generator).abs() ** 1.5
    features = means[labels] + 2 * sizes * torch.randn(600, 40, generator=generator).sign()
    checked = find_label_problems(features, labels, torch.arange(600), [f"class {i}" for i in range(60)])
    assert checked.accuracy is not None
    assert 0.2 < checked.accuracy < 0.5
    assert (checked.suspects, checked.rate, checked.judged) == ((), None, 0)  # the mixture would report half of them
    assert checked.separation is not None
    assert "labels were not checked" in checked.notes[-1]
    assert "--model" in checked.notes[-1]
