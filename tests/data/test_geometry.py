from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from vitreous.data.geometry import affine, affine_matrices, gather_boxes, rectangles, shift

SIZES = [(8, 8), (9, 31), (37, 20), (96, 130), (1, 1), (2, 5)]
BILINEAR = Image.Resampling.BILINEAR


def noise(height: int, width: int, mode: str = "RGB", seed: int = 0) -> Image.Image:
    shape = (height, width, 3) if mode == "RGB" else (height, width)
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


def tensor(image: Image.Image) -> Tensor:
    array = np.array(image)
    array = array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
    return torch.from_numpy(np.ascontiguousarray(array)).float()


def hold(images: list[Image.Image], gap: int = 0) -> dict[str, Any]:
    """Return the images as one row of bytes, separated by bytes of 255 that must not be read."""
    parts, offsets, position = [torch.full((gap,), 255, dtype=torch.uint8)], [], gap
    for image in images:
        pixels = torch.from_numpy(np.array(image)).flatten()
        parts += [pixels, torch.full((gap,), 255, dtype=torch.uint8)]
        offsets.append(position)
        position += len(pixels) + gap
    return {
        "flat": torch.cat(parts),
        "offsets": torch.tensor(offsets),
        "heights": torch.tensor([image.height for image in images]),
        "widths": torch.tensor([image.width for image in images]),
        "channels": 1 if images[0].mode == "L" else 3,
    }


def resized(image: Image.Image, box: tuple[float, ...], size: tuple[int, int]) -> Tensor:
    top, left, height, width = box
    return tensor(image.resize(size[::-1], BILINEAR, box=(left, top, left + width, top + height)))


# ---------------------------------------------------------------- affine maps


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize(("height", "width"), SIZES)
@pytest.mark.parametrize("degrees", [0.0, 3.0, -27.3, 135.0, 180.0])
def test_rotation_equals_pillow(height: int, width: int, mode: str, degrees: float) -> None:
    image = noise(height, width, mode)
    zeros = torch.zeros(1, 2)
    matrices = affine_matrices(torch.tensor([degrees]), zeros, zeros, (height, width))
    expected = tensor(image.rotate(degrees, BILINEAR, fillcolor=128 if mode == "L" else (128, 128, 128)))
    assert (affine(tensor(image)[None], matrices[:, :2])[0] - expected).abs().max() < 1.01  # Pillow truncates


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize(("height", "width"), SIZES)
@pytest.mark.parametrize(
    ("shears", "moves"), [((0.3, 0), (0, 0)), ((0, -0.21), (0, 0)), ((0, 0), (3.3, 0)), ((0, 0), (0, -0.41))]
)
def test_shear_and_translation_equal_pillow(
    height: int, width: int, mode: str, shears: tuple[float, float], moves: tuple[float, float]
) -> None:
    image = noise(height, width, mode)
    matrices = affine_matrices(torch.zeros(1), torch.tensor([shears]), torch.tensor([moves]), (height, width))
    coefficients = (1, shears[0], moves[0], shears[1], 1, moves[1])
    fill = 128 if mode == "L" else (128, 128, 128)
    expected = tensor(image.transform(image.size, Image.Transform.AFFINE, coefficients, BILINEAR, fillcolor=fill))
    assert (affine(tensor(image)[None], matrices[:, :2])[0] - expected).abs().max() < 1.01


def test_each_sample_has_its_own_matrix() -> None:
    images = torch.stack([tensor(noise(21, 34, seed=i)) for i in range(4)])
    matrices = torch.eye(3)[:2].repeat(4, 1, 1) + torch.rand(4, 2, 3) * 0.3
    together = affine(images, matrices, fill=7.0)
    for i in range(4):
        alone = affine(images[i : i + 1], matrices[i : i + 1], fill=7.0)[0]
        torch.testing.assert_close(together[i], alone, atol=1e-3, rtol=0)
    assert (together == 7).any()


def test_identity_and_integer_translation_are_exact() -> None:
    images = torch.rand(2, 3, 33, 47) * 255
    identity = torch.eye(3)[:2].expand(2, 2, 3)
    assert torch.equal(affine(images, identity), images)
    by_three = identity + torch.tensor([[0, 0, 3.0], [0, 0, -2.0]])
    moved = affine(images, by_three)
    torch.testing.assert_close(moved[:, :, 2:, :-3], images[:, :, :-2, 3:], atol=5e-3, rtol=0)
    assert (moved[:, :, :2] == 128).all()
    assert (moved[:, :, :, -3:] == 128).all()


def test_a_product_of_matrices_is_a_composition() -> None:
    """On a smooth image, for which interpolating once or twice gives almost the same."""
    y, x = np.mgrid[:60, :80]
    image = torch.from_numpy(120 + 50 * np.sin(x / 17) + 40 * np.cos(y / 13)).float()[None, None]
    zeros = torch.zeros(1, 2)
    turn = affine_matrices(torch.tensor([12.0]), zeros, zeros, (60, 80))
    shear = affine_matrices(torch.zeros(1), torch.tensor([[0.1, 0]]), zeros, (60, 80))
    once = affine(image, (turn @ shear)[:, :2])
    twice = affine(affine(image, turn[:, :2]), shear[:, :2])
    assert (once - twice)[..., 20:40, 25:55].abs().max() < 1


# ---------------------------------------------------------------- whole pixels


@pytest.mark.parametrize(("down", "right"), [(0, 0), (2, -3), (-1, 5), (7, 0), (-9, -9)])
def test_shift(down: int, right: int) -> None:
    image = noise(7, 11)
    expected = np.zeros((7, 11, 3), dtype=np.uint8)
    for y in range(7):
        for x in range(11):
            if 0 <= y - down < 7 and 0 <= x - right < 11:
                expected[y, x] = np.array(image)[y - down, x - right]
    moved = shift(tensor(image)[None], torch.tensor([down]), torch.tensor([right]))
    np.testing.assert_array_equal(moved[0].permute(1, 2, 0), expected)


def test_rectangles() -> None:
    inside = rectangles(*torch.tensor([[1, -2], [2, 3], [2, 4], [1, 99]]), (4, 5))
    assert inside.shape == (2, 1, 4, 5)
    assert inside[0, 0].nonzero().tolist() == [[1, 2], [2, 2]]
    assert inside[1, 0].nonzero().tolist() == [[0, 3], [0, 4], [1, 3], [1, 4]]


# ---------------------------------------------------------------- boxes out of what is held


@pytest.mark.parametrize("taps", [1, 2, 3])
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_a_box_of_the_output_size_is_exact(mode: str, taps: int) -> None:
    images = [noise(31, 45, mode), noise(17, 20, mode, seed=1), noise(400, 23, mode, seed=2)]
    boxes = torch.tensor([[0, 0, 16, 20], [1, 0, 16, 20], [380, 3, 16, 20]]).float()
    out = gather_boxes(
        **hold(images, gap=5), boxes=boxes, flips=torch.tensor([False, True, False]), size=(16, 20), taps=taps
    )
    assert out.shape == (3, 1 if mode == "L" else 3, 16, 20)
    assert out.dtype == torch.float32
    assert out.is_contiguous()
    assert torch.equal(out[0], tensor(images[0])[:, :16, :20])
    assert torch.equal(out[1], tensor(images[1])[:, 1:, :].flip(2))
    assert torch.equal(out[2], tensor(images[2])[:, 380:396, 3:])


@pytest.mark.parametrize("size", [(24, 24), (33, 50), (1, 7)])
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_enlarging_equals_pillow(size: tuple[int, int], mode: str) -> None:
    sizes = [(1, 1), (1, 6), (13, 5), (24, 24), (20, 31)]
    images = [noise(h, w, mode, seed=i) for i, (h, w) in enumerate(sizes)]
    shares = torch.tensor([[0, 0, 1, 1], [0, 0.2, 1, 0.4], [0.5, 0, 0.5, 1], [0.1, 0.1, 0.77, 0.6], [0, 0.3, 0.9, 0.7]])
    sides = torch.tensor(sizes).repeat(1, 2)
    boxes = shares * sides
    boxes[:, 2:] = torch.minimum(boxes[:, 2:], torch.tensor(size))
    out = gather_boxes(**hold(images, gap=4), boxes=boxes, flips=torch.zeros(5).bool(), size=size)
    for image, box, pixels in zip(images, boxes.tolist(), out, strict=True):
        assert (pixels - resized(image, box, size)).abs().max() < 1.1  # Pillow rounds after rows and after columns


def test_a_flipped_box() -> None:
    held = hold([noise(40, 50)])
    boxes = torch.tensor([[3.3, 4.4, 17.7, 31.1]])
    straight, mirrored = (
        gather_boxes(**held, boxes=boxes, flips=torch.tensor([flip]), size=(12, 15), taps=2) for flip in (False, True)
    )
    torch.testing.assert_close(straight.flip(3), mirrored, atol=1e-4, rtol=0)


@pytest.mark.parametrize("scale", [1.5, 2.2, 3.0, 3.9])
@pytest.mark.parametrize("picture", ["stripes", "noise"])
def test_taps_keep_aliasing_small(picture: str, scale: float) -> None:
    """With antialiasing, the finest stripes become an even grey; without taps, they become coarse stripes."""
    stripes = Image.fromarray(np.tile(np.array([0, 255], dtype=np.uint8), (140, 70)))
    image = stripes if picture == "stripes" else noise(140, 140)
    boxes = torch.tensor([[4.0, 6.3, 32 * scale, 32 * scale]])
    expected = resized(image, boxes[0].tolist(), (32, 32))
    rough, fine = (
        (
            gather_boxes(**hold([image]), boxes=boxes, flips=torch.zeros(1).bool(), size=(32, 32), taps=taps)[0]
            - expected
        )
        for taps in (1, 4)
    )
    assert fine.abs().mean() < 0.35 * rough.abs().mean()


def test_boxes_far_into_a_large_buffer() -> None:
    image = noise(5, 6)
    pixels = torch.from_numpy(np.array(image)).flatten()
    flat = torch.zeros(2**24 + 3 + len(pixels), dtype=torch.uint8)  # beyond the integers of float32
    flat[-len(pixels) :] = pixels
    out = gather_boxes(
        flat,
        torch.tensor([len(flat) - len(pixels)]),
        torch.tensor([5]),
        torch.tensor([6]),
        torch.tensor([[0.0, 0.0, 5.0, 6.0]]),
        torch.tensor([False]),
        (5, 6),
        3,
    )
    assert torch.equal(out[0], tensor(image))
