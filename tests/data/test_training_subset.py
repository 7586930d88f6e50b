"""Subsets of the training images: nested, stratified, and fixed by the seed."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runs import config, draw_folder
from vitreous import VitreousError, train
from vitreous.data.open_data import open_data
from vitreous.data.options import Reading, UnlabelledReading
from vitreous.data.splits import training_subset

FRACTIONS = st.lists(st.floats(0.05, 1.0), min_size=2, max_size=5)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(20, 60), min_size=2, max_size=6), FRACTIONS, st.integers(0, 5))
def test_nested_and_stratified(sizes: list[int], fractions: list[float], seed: int) -> None:
    labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    labels = labels[torch.from_numpy(np.random.default_rng(seed).permutation(len(labels)))]
    smaller: set[int] = set()
    for fraction in sorted(fractions):
        chosen = training_subset(labels, fraction, seed)
        assert chosen.tolist() == sorted(set(chosen.tolist()))
        assert len(chosen) == int(len(labels) * fraction + 0.5)
        assert smaller <= set(chosen.tolist())
        smaller = set(chosen.tolist())
        for number, size in enumerate(sizes):
            count = int((labels[chosen] == number).sum())
            assert abs(count - size * len(chosen) / len(labels)) < 1.01, (number, fraction)
    assert len(training_subset(labels, 1.0, seed)) == len(labels)


def test_fixed_by_the_seed() -> None:
    labels = torch.arange(10).repeat(50)
    first = training_subset(labels, 0.02, 0)
    assert first.tolist() == training_subset(labels, 0.02, 0).tolist()
    assert first.tolist() != training_subset(labels, 0.02, 1).tolist()
    assert labels[first].bincount().tolist() == [1] * 10
    # These subsets must never change: results name them by fraction and seed alone.
    assert first.tolist() == [5, 20, 57, 164, 173, 288, 332, 349, 381, 396]


def test_what_is_refused() -> None:
    labels = torch.arange(10).repeat(50)
    with pytest.raises(VitreousError, match=r"train_fraction = 0.01: 5 of 500 training images are too few: 5 classes"):
        training_subset(labels, 0.01, 0)
    for fraction in (0.0, -1.0, 1.5, float("nan")):
        with pytest.raises(VitreousError, match="expected a fraction, more than 0 and at most 1"):
            training_subset(labels, fraction, 0)
    with pytest.raises(VitreousError, match="several labels"):
        training_subset(torch.ones(4, 2, dtype=torch.bool), 0.5, 0)


def test_validation_and_test_images_stay_the_same() -> None:
    whole, part = open_data("digits"), open_data("digits", Reading(train_fraction=0.1))
    assert len(part.train) == round(0.1 * len(whole.train))
    for name in ("val", "test"):
        assert [part.splits[name].name(i) for i in range(9)] == [whole.splits[name].name(i) for i in range(9)]
    assert {part.train.name(i) for i in range(len(part.train))} <= {
        whole.train.name(i) for i in range(len(whole.train))
    }
    assert len(part.stored_splits["train"]) == len(whole.stored_splits["train"])
    assert any("training images are used (train_fraction)" in note for note in part.notes)


def test_labels_of_selected_classes(tmp_path: Path) -> None:
    """Files with a stored validation split: the labels are those of the selected classes."""
    draw_folder(tmp_path / "data" / "train")
    draw_folder(tmp_path / "data" / "val", images=4)
    reading = Reading(only_classes=("blau", "rot"), train_fraction=0.5)
    data = open_data(tmp_path / "data", reading)
    assert data.train.labels.bincount().tolist() == [12, 12]
    for i in range(len(data.train)):
        assert Path(data.train.name(i)).parent.name == data.classes[data.train.labels[i]]


def test_images_without_labels() -> None:
    """The same images as with labels."""
    labelled, plain = (open_data("digits", kind(train_fraction=0.1)) for kind in (Reading, UnlabelledReading))
    assert [plain.train.name(i) for i in range(len(plain.train))] == [
        labelled.train.name(i) for i in range(len(labelled.train))
    ]
    assert plain.classes == ()


def test_a_run_states_and_keeps_its_subset(tmp_path: Path) -> None:
    folder = draw_folder(tmp_path / "data")
    settings_ = config(tmp_path / "run", train_fraction=0.5, duration="2 steps", evaluate_every="100%")
    outcome = train(folder, settings_, quiet=True)
    assert '"train_fraction": 0.5' in (outcome.run / "config.json").read_text()
