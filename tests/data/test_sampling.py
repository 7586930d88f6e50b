"""The order of training images: each once per epoch, and every part depends only on its position."""

import pickle

import pytest
import torch

from vitreous.data.sampling import TrainingSampler
from vitreous.errors import VitreousError


@pytest.mark.parametrize("images", [1, 2, 7, 1000])
def test_every_epoch_has_every_image_once(images: int) -> None:
    stream = TrainingSampler(images, seed=0)
    for epoch in (0, 1, 2, 10**9):
        part = stream.indices(epoch * images, (epoch + 1) * images)
        assert part.dtype == torch.int64
        assert sorted(part.tolist()) == list(range(images))


def test_the_order_differs_between_epochs_and_seeds() -> None:
    orders = [
        tuple(TrainingSampler(50, seed).indices(50 * e, 50 * e + 50).tolist()) for seed in range(5) for e in range(5)
    ]
    assert len(set(orders)) == 25
    assert TrainingSampler(50, 3).indices(0, 200).equal(TrainingSampler(50, 3).indices(0, 200))


def test_the_order_is_random() -> None:
    """The position of an image in one epoch does not predict its position in the next."""
    stream = TrainingSampler(5000, 0)
    places = [stream.indices(e * 5000, (e + 1) * 5000).argsort().double() for e in range(3)]
    for one, two in ((places[0], places[1]), (places[1], places[2]), (places[0], torch.arange(5000.0).double())):
        assert abs(torch.corrcoef(torch.stack([one, two]))[0, 1]) < 5 / 5000**0.5


@pytest.mark.parametrize("balanced", [False, True])
def test_any_part_equals_that_of_the_whole_sequence(balanced: bool) -> None:
    classes = torch.arange(13) % 3 if balanced else None
    whole = TrainingSampler(13, 1, classes).indices(0, 78)
    stream = TrainingSampler(13, 1, classes)
    for start in range(0, 60, 7):
        for stop in (start, start + 1, start + 5, start + 13, 78):
            assert torch.equal(stream.indices(start, stop), whole[start:stop]), (start, stop)


def test_batches_may_span_epochs() -> None:
    """No image is omitted at the end of an epoch, and no batch is smaller."""
    stream = TrainingSampler(10, 0)
    batches = [stream.indices(step * 4, step * 4 + 4) for step in range(5)]
    assert all(len(batch) == 4 for batch in batches)
    assert torch.cat(batches).bincount().tolist() == [2] * 10


def test_a_batch_of_several_epochs() -> None:
    assert TrainingSampler(1, 0).indices(3, 11).tolist() == [0] * 8
    many = TrainingSampler(3, 0).indices(3, 3 + 3 * 7)
    assert many.bincount().tolist() == [7, 7, 7]


def test_a_pickled_copy_continues_identically() -> None:
    for classes in (None, torch.arange(20) % 4):
        stream = TrainingSampler(20, 5, classes)
        stream.indices(0, 30)  # with a cached permutation
        copy = pickle.loads(pickle.dumps(stream))
        assert torch.equal(copy.indices(10, 90), stream.indices(10, 90))


# ---------------------------------------------------------------- balanced

UNEQUAL = [
    pytest.param([90, 9, 1], id="a rare class"),
    pytest.param([50, 50], id="equal ones"),
    pytest.param([1, 1, 1, 8], id="one large class"),
    pytest.param([2] + [1] * 9, id="hardly more images than classes"),
    pytest.param([997, 1, 1], id="two single images"),
    pytest.param([33, 34, 33, 1], id="a number that does not divide"),
]


def labels(counts: list[int]) -> torch.Tensor:
    every = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    return every[torch.randperm(len(every))]


@pytest.mark.parametrize("counts", UNEQUAL)
def test_classes_have_equal_shares_of_every_epoch(counts: list[int]) -> None:
    classes = labels(counts)
    images = len(classes)
    stream = TrainingSampler(images, 0, classes)
    for epoch in range(5):
        part = stream.indices(epoch * images, (epoch + 1) * images)
        drawn = classes[part].bincount(minlength=len(counts))
        assert drawn.sum() == images
        assert drawn.max() - drawn.min() <= 1, drawn.tolist()


@pytest.mark.parametrize("counts", UNEQUAL)
def test_all_images_of_small_classes_are_in_every_epoch(counts: list[int]) -> None:
    classes = labels(counts)
    images, share = len(classes), len(classes) // len(counts)
    stream = TrainingSampler(images, 0, classes)
    for epoch in range(5):
        part = stream.indices(epoch * images, (epoch + 1) * images)
        for number, count in enumerate(counts):
            of_class = part[classes[part] == number]
            if count <= share:
                assert len(of_class.unique()) == count
            else:
                assert len(of_class.unique()) == len(of_class)  # no image of a large class twice


def test_all_images_of_large_classes_are_used_eventually() -> None:
    classes = labels([90, 10])
    seen = TrainingSampler(100, 0, classes).indices(0, 2000)
    assert len(seen.unique()) == 100


def test_class_numbers_may_have_gaps() -> None:
    classes = torch.tensor([7, 7, 7, 7, 2, 2])
    assert classes[TrainingSampler(6, 0, classes).indices(0, 6)].bincount(minlength=8).tolist() == [
        0,
        0,
        3,
        0,
        0,
        0,
        0,
        3,
    ]


def test_multi_label_data_cannot_be_balanced() -> None:
    with pytest.raises(VitreousError, match="balanced"):
        TrainingSampler(4, 0, torch.ones(4, 3, dtype=torch.bool))
