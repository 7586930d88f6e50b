"""Near-duplicates and outliers, on tiles of real photographs."""

import io
from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance
from torch import Tensor

from vitreous.evaluation import near_duplicates
from vitreous.evaluation.image_signatures import SIDE
from vitreous.evaluation.near_duplicates import find_near_duplicates, nearest_neighbours
from vitreous.evaluation.outliers import find_outliers, tiny_limit


def tiles() -> list[Image.Image]:
    """80 different tiles of two photographs."""
    images = pytest.importorskip("sklearn.datasets").load_sample_images().images
    photos = [Image.fromarray(pixels) for pixels in images]
    corners = [(x, y) for y in range(0, 400, 80) for x in range(0, 640, 80)]
    return [photo.crop((x, y, x + 80, y + 80)) for photo in photos for x, y in corners]


def reencoded(image: Image.Image, quality: int = 30) -> Image.Image:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return Image.open(file).convert("RGB")


def grey(images: list[Image.Image]) -> Tensor:
    arrays = [np.array(image.convert("L").resize((SIDE, SIDE), Image.Resampling.BOX)) for image in images]
    return torch.from_numpy(np.stack(arrays))


def features(images: list[Image.Image]) -> Tensor:
    """Mean colours of a 4 x 4 grid plus those of its mirror image: like the features of a model, a mirrored or slightly
    cropped copy has similar ones."""
    arrays = [np.array(image.resize((4, 4), Image.Resampling.BOX), dtype=np.float32) for image in images]
    return torch.from_numpy(np.stack([(array + array[:, ::-1]).ravel() for array in arrays]))


def groups_of(images: list[Image.Image], digests: Tensor | None = None) -> tuple[Tensor, Tensor]:
    rows = features(images)
    neighbours = nearest_neighbours(rows - rows.mean(0), 6)
    return find_near_duplicates(
        neighbours, grey(images), torch.arange(1, len(images) + 1) if digests is None else digests
    )


CHANGES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "resized": lambda image: image.resize((50, 44)),
    "re-encoded": reencoded,
    "cropped": lambda image: image.crop((4, 6, 76, 75)),
    "cropped on one side": lambda image: image.crop((8, 0, 80, 80)),
    "mirrored": lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    "brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.2),
    "grey": lambda image: image.convert("L").convert("RGB"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_copies_are_found_and_other_images_are_not(change: str) -> None:
    originals = tiles()
    detailed = grey(originals).flatten(1).float().std(1).argsort(descending=True)[:10].tolist()  # not the plain sky
    groups, similarity = groups_of([*originals, *(CHANGES[change](originals[i]) for i in detailed)])
    copies = groups[len(originals) :]
    assert (copies == torch.tensor(detailed)).sum() >= 9
    assert (groups[: len(originals)] == torch.arange(len(originals))).sum() >= len(originals) - 2
    assert similarity[len(originals) :].max() <= 1


def test_identical_files_and_blank_images() -> None:
    images = [*tiles()[:10], Image.new("RGB", (80, 80), "black"), Image.new("RGB", (80, 80), "white")]
    digests = torch.arange(1, len(images) + 1)
    digests[7] = digests[2]
    groups, similarity = groups_of(images, digests)
    assert groups[7] == groups[2] == 2
    assert similarity[2] == similarity[7] == 1
    assert groups[10] == 10
    assert groups[11] == 11


def test_one_image() -> None:
    groups, similarity = groups_of(tiles()[:1])
    assert (groups.tolist(), similarity.tolist()) == ([0], [0.0])


def test_blocks_give_the_same_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn(50, 8)
    unit = rows / rows.norm(dim=1, keepdim=True)
    cosines = unit @ unit.T - 2 * torch.eye(50)
    expected = cosines.topk(4, 1)
    monkeypatch.setattr(near_duplicates, "BLOCK_ELEMENTS", 7 * 50)
    found = nearest_neighbours(rows, 4)
    assert torch.equal(found.indices, expected.indices)
    assert torch.allclose(found.cosines, expected.values, atol=1e-6)


def test_outliers() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(100, 16, generator=generator) * 0.1 + torch.ones(16)
    rows[17] = -rows[17]
    found, distances = find_outliers(nearest_neighbours(rows, 6))
    assert found[0] == 17
    assert distances[17] == distances.max()
    assert len(found) <= 5
    assert len(find_outliers(nearest_neighbours(rows[:10], 6))[0]) == 0  # too few to say


@pytest.mark.parametrize(("sides", "limit"), [([200, 300, 400], 75), ([64, 64, 100], 32), ([28, 28, 28], 7), ([], 0)])
def test_tiny_limit(sides: list[int], limit: int) -> None:
    assert tiny_limit(torch.tensor(sides, dtype=torch.int64)) == limit


def test_many_copies_of_one_image_are_one_group() -> None:
    """60 versions of a tile among 40 others: they do not make copies seem usual."""
    images = tiles()[:41]
    copied = images.pop(20)
    versions = [reencoded(copied, quality) for quality in range(30, 90)]
    groups, _ = groups_of([*versions, *images], torch.arange(100))
    assert groups[:60].unique().tolist() == [0]
    assert (groups[60:] != 0).all()
