"""Statements about classes: pairs that cannot be told apart, and classes that need more pictures."""

import torch
from torch import Tensor

from vitreous.evaluation.class_separation import separate_classes
from vitreous.evaluation.data_check_labels import find_label_problems
from vitreous.evaluation.learning_curve import LearningCurve, measure_learning_curve
from vitreous.evaluation.out_of_fold import assign_folds, out_of_fold_probabilities
from vitreous.evaluation.probe import ProbeHead


def coin_flips(per_class: int) -> tuple[Tensor, Tensor]:
    """Three classes: 0 and 1 are predicted at random between the two, 2 is always right."""
    labels = torch.arange(3).repeat_interleave(per_class)
    probabilities = torch.zeros(3 * per_class, 3)
    first = torch.rand(2 * per_class, generator=torch.Generator().manual_seed(0))
    probabilities[: 2 * per_class, 0], probabilities[: 2 * per_class, 1] = first, 1 - first
    probabilities[2 * per_class :, 2] = 1
    return probabilities, labels


def test_classes_that_cannot_be_told_apart() -> None:
    found = separate_classes(*coin_flips(100))
    assert [pair.classes for pair in found.indistinct] == [(0, 1)]
    pair = found.indistinct[0]
    assert pair.interval[0] < 0.5 < pair.interval[1] < 0.8
    assert not pair.better_than_chance
    assert (found.pairs, found.undecided) == (3, 0)


def test_few_images_are_not_enough_to_say() -> None:
    labels = torch.arange(2).repeat_interleave(5)
    right = torch.tensor([1, 1, 1, 1, 0, 1, 1, 1, 0, 0]).bool()
    probabilities = torch.nn.functional.one_hot(torch.where(right, labels, 1 - labels)).float()
    found = separate_classes(probabilities, labels)  # 70% of 10 images: neither chance nor more than 80% is excluded
    assert (found.indistinct, found.undecided) == ((), 1)
    assert separate_classes(*coin_flips(3)).pairs == 0


def curve_of(features: Tensor, labels: Tensor) -> LearningCurve:
    classes, head = int(labels.max()) + 1, ProbeHead(0.01, 0.03)
    fold = assign_folds(labels, torch.arange(len(labels)))
    full = out_of_fold_probabilities(features, labels, fold, head, classes)
    return measure_learning_curve(features, labels, fold, head, full)


def test_a_class_that_needs_more_pictures() -> None:
    """Class 2 consists of 24 different clusters; the others are one cluster each."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(3).repeat_interleave(96)
    centres = torch.randn(24, 40, generator=generator) * 1.2
    features = torch.randn(288, 40, generator=generator) * 0.6
    features[:96, 0] += 3
    features[96:192, 1] += 3
    features[192:] += centres[torch.arange(96) % 24]
    curve = curve_of(features, labels)
    assert [point.share for point in curve.points] == [0.125, 0.25, 0.5, 1.0]
    assert curve.points[0].accuracy < curve.points[-1].accuracy
    assert [need.index for need in curve.needy] == [2]
    need = curve.needy[0]
    assert need.images == 96
    assert 0 < need.gain_interval[0] < need.gain < need.gain_interval[1]


def test_the_curve_says_when_it_cannot_say() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(2).repeat_interleave(12)
    features = torch.randn(24, 5, generator=generator) + 0.7 * labels[:, None]
    assert {need.verdict for need in curve_of(features, labels).needs} == {"unknown"}
    few = curve_of(features[[0, 1, 2, 3, 12, 13, 14, 15]], labels[[0, 1, 2, 3, 12, 13, 14, 15]])
    assert (few.gain, few.needs) == (None, ())


def test_small_classes_are_left_out_and_numbers_are_those_of_the_data() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.tensor([0] * 20 + [1] * 2 + [3] * 20)
    features = torch.randn(42, 6, generator=generator) * 0.1
    features[labels == 3] += 1
    features[5] += 1  # looks like class 3
    found = find_label_problems(features, labels, torch.arange(42), ["a", "b", "c", "d"])
    assert [(one.image, one.label, one.suggested) for one in found.suspects] == [(5, 0, 3)]
    assert found.judged == 40
    assert "'b'" in found.notes[0]
    assert found.curve is not None
    assert {need.index for need in found.curve.needs} == {0, 3}


def test_labels_that_cannot_be_checked() -> None:
    features, groups = torch.randn(30, 4), torch.arange(30)
    several = find_label_problems(features, torch.zeros(30, 3, dtype=torch.bool), groups, ["a", "b", "c"])
    assert several.rate is None
    assert "several labels" in several.notes[0]
    one_class = find_label_problems(features, torch.zeros(30, dtype=torch.int64), groups, ["a"])
    assert "two classes" in one_class.notes[0]
    two = torch.arange(30) % 2  # copies of two images
    copies = find_label_problems(features, two, two, ["a", "b"])
    assert "two classes" in copies.notes[-1]
