"""Targets and loss of masked-patch prediction, against loops over pixels in float64."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from vitreous import VitreousError
from vitreous.models.masked import draw_corruption
from vitreous.training.optim.patch_targets import PatchLoss, PatchTargets, class_colours
from vitreous.utils import random_keys

KEYS = random_keys.keys(0, torch.arange(3))
PATCH = (8, 4)


def pictures(channels: int) -> Tensor:
    """Images of 27 x 22 px: 3 x 5 patches, and a remainder that belongs to none. Bright and dark areas."""
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (3, channels, 27, 22)) * generator.uniform(0.1, 1, (3, channels, 27, 22))
    pixels[:, :, :8, :4] = 255  # the highest level
    pixels[:, :, :8, 4:8] = 32  # the lowest value of a level
    return torch.from_numpy(pixels).float()


def level(values: list[float]) -> int:
    return min(7, math.floor(math.fsum(values) / len(values) / 32))


def by_loops(images: Tensor, kind: str, image: int, patch: int) -> list[float]:
    """The target of one patch."""
    top, left = patch // 5 * 8, patch % 5 * 4
    channels = images[image].double().tolist()

    def class_of(rows: range, cols: range) -> int:
        number = 0
        for channel in channels:
            number = number * 8 + level([channel[top + y][left + x] for y in rows for x in cols])
        return number

    if kind == "colour":
        return [class_of(range(8), range(4))]
    if kind == "colours":
        return [class_of(range(2 * r, 2 * r + 2), range(c, c + 1)) for r in range(4) for c in range(4)]
    return [channel[top + y][left + x] / 255 for channel in channels for y in range(8) for x in range(4)]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("kind", ["colour", "colours", "pixels"])
def test_targets_equal_those_of_loops(kind: str, channels: int) -> None:
    images, targets = pictures(channels), PatchTargets(kind, channels, PATCH, 0.5)
    found = targets(images, KEYS)
    corrupted = draw_corruption(KEYS, 15, 0.5).patches
    assert len(found) == 3
    assert found.shape[1] == corrupted.shape[1] == 8
    for image in range(3):
        for place, patch in enumerate(corrupted[image].tolist()):
            expected = torch.tensor(by_loops(images, kind, image, patch), dtype=torch.float64)
            assert torch.allclose(found[image, place].double().flatten(), expected, rtol=1e-6)
    every = targets.of_all_patches(images)
    assert every.shape[1] == 15
    if kind == "colour":
        assert every[:, 0].tolist() == [8**channels - 1] * 3
        assert every[:, 1].tolist() == [(8**channels - 1) // 7] * 3  # level 1 in every channel
    assert targets.outputs == {"colour": 8**channels, "colours": 16 * 8**channels, "pixels": 32 * channels}[kind]


def test_colours_of_classes() -> None:
    """The middle of the eighth of 0..255; its class is the class again."""
    assert class_colours(torch.tensor([0, 511, 64]), 3).tolist() == [[16] * 3, [240] * 3, [48, 16, 16]]
    for channels in (1, 3):
        classes = torch.arange(8**channels)
        images = class_colours(classes, channels)[:, :, None, None].expand(-1, -1, *PATCH)
        assert torch.equal(PatchTargets("colour", channels, PATCH, 0.5).of_all_patches(images)[:, 0], classes)


@pytest.mark.parametrize("kind", ["colour", "colours", "pixels"])
def test_loss_equals_that_of_loops(kind: str) -> None:
    """The mean over the corrupted patches of an image, and over the colours or pixels of a patch."""
    targets = PatchTargets(kind, 1, PATCH, 0.5)
    truth = targets(pictures(1), KEYS)
    predictions = torch.randn(3, 8, targets.outputs, generator=torch.Generator().manual_seed(0))
    loss = PatchLoss(False, 0, classifies=kind != "pixels")
    losses, right = loss(predictions, truth), loss.right(predictions, truth)
    for image in range(3):
        terms, hits = [], []
        for patch in range(8):
            outputs = predictions[image, patch].double().tolist()
            if kind == "pixels":
                terms += [(a - b) ** 2 for a, b in zip(outputs, truth[image, patch].tolist(), strict=True)]
                continue
            for cell, number in enumerate(truth[image, patch].flatten().tolist()):
                logits = outputs[8 * cell : 8 * cell + 8]
                terms.append(math.log(sum(map(math.exp, logits))) - logits[number])
                hits.append(logits[number] == max(logits))
        assert losses[image].item() == pytest.approx(sum(terms) / len(terms), rel=1e-5)
        assert right[image].item() == pytest.approx(sum(hits) / len(hits) if hits else 0)


def test_patches_that_cannot_be_downsized() -> None:
    with pytest.raises(VitreousError, match="needs a patch size that is a multiple of 4, not 14"):
        PatchTargets("colours", 3, (14, 14), 0.5)
