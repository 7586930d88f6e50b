import math
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from vitreous.data.augmentation import augment, crop_box, crop_boxes, crop_draws, flip_mask
from vitreous.data.geometry import affine, gather_boxes
from vitreous.data.mixup import mix
from vitreous.data.options import Augmentation
from vitreous.data.randaugment import OPERATIONS, apply_colour_operations, geometric_matrices
from vitreous.errors import VitreousError
from vitreous.utils import random_keys

OFF: dict[str, Any] = {
    "crop": 1.0, "aspect": 1.0, "shift": 0.0, "flip": False, "randaugment": 0, "magnitude": 9.0,
    "three_augment": False, "jitter": 0.0, "erase": 0.0, "mixup": 0.0, "cutmix": 0.0,
}  # fmt: skip
EVERYTHING: dict[str, Any] = {
    "crop": 0.2, "aspect": 4 / 3, "shift": 0.1, "flip": True, "randaugment": 2, "magnitude": 9.0,
    "three_augment": True, "jitter": 0.3, "erase": 0.5, "mixup": 0.8, "cutmix": 1.0,
}  # fmt: skip


def options(**changes: Any) -> Augmentation:
    return Augmentation(**{**OFF, **changes})


def keys(count: int, seed: int = 0) -> Tensor:
    return random_keys.keys(seed, torch.arange(count))


def bytes_(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8)


def picture(pixels: Tensor) -> Image.Image:
    array = pixels.byte().permute(1, 2, 0).numpy()
    return Image.fromarray(array[..., 0] if array.shape[2] == 1 else array)


def tensor(image: Image.Image) -> Tensor:
    array = np.array(image)
    return torch.from_numpy(array[None] if array.ndim == 2 else array.transpose(2, 0, 1).copy()).float()


# ---------------------------------------------------------------- crops and flips


def test_uncropped_images_are_exact() -> None:
    heights, widths = torch.tensor([1, 30, 999, 20000]), torch.tensor([7, 30, 2, 12345])
    zeros = torch.zeros(4)
    boxes = crop_boxes(keys(4), heights, widths, 1.5, options())
    assert boxes.dtype == torch.float32
    assert torch.equal(boxes, torch.stack((zeros, zeros, heights, widths), 1))


@pytest.mark.parametrize(("crop", "aspect"), [(0.08, 4 / 3), (0.5, 1.0), (0.9, 3.0), (1.0, 2.0), (0.0, 1.5)])
def test_crops_are_inside_and_have_the_drawn_area(crop: float, aspect: float) -> None:
    n = 4000
    heights, widths = torch.randint(8, 700, (n,)), torch.randint(8, 700, (n,))
    top, left, height, width = (
        crop_boxes(keys(n), heights, widths, 1.2, options(crop=crop, aspect=aspect)).double().unbind(1)
    )
    assert (torch.stack((top, left)) >= 0).all()
    assert (top + height <= heights).all()  # exactly inside: Pillow refuses a box that exceeds the image
    assert (left + width <= widths).all()
    assert (torch.stack((height, width)) >= 1).all()
    large = (height > 1.01) & (width > 1.01)  # if the minimum of one pixel did not apply
    area = (height * width / (heights * widths))[large]
    assert area.min() > crop - 1e-5
    assert abs(area.mean() - (1 + crop) / 2) < 0.02
    ratio = width / height / 1.2
    as_drawn = (ratio < aspect * 1.0001) & (ratio > 1 / aspect / 1.0001)
    full = (height > 0.9999 * heights) | (width > 0.9999 * widths)  # a box that does not fit is clamped to the image
    assert (as_drawn | full)[large].all()
    free = ratio[large & ~full].log()
    if crop == 0.08:
        assert abs(free.mean()) < 0.02
        assert free.abs().max() > 0.95 * math.log(aspect)
    if crop < 1:
        assert (top / (heights - height)).nanmean().sub(0.5).abs() < 0.02


@pytest.mark.parametrize(("crop", "aspect"), [(0.08, 4 / 3), (0.5, 1.0), (1.0, 1.0), (0.001, 3.0)])
def test_the_box_of_one_image_equals_that_in_a_batch(crop: float, aspect: float) -> None:
    n, chosen = 2000, options(crop=crop, aspect=aspect)
    heights, widths = torch.randint(1, 5000, (2, n), generator=torch.Generator().manual_seed(0))
    drawn, sides = crop_draws(keys(n), 1.25, chosen).tolist(), zip(heights.tolist(), widths.tolist(), strict=True)
    boxes = [crop_box(each, *size) for each, size in zip(drawn, sides, strict=True)]
    assert torch.equal(torch.tensor(boxes), crop_boxes(keys(n), heights, widths, 1.25, chosen))


def test_flips() -> None:
    assert not flip_mask(keys(100), options()).any()
    mirrored = flip_mask(keys(4000), options(flip=True))
    assert mirrored.dtype == torch.bool
    assert 1850 < mirrored.sum() < 2150


# ---------------------------------------------------------------- RandAugment


def reference(image: Image.Image, name: str, amount: float) -> Image.Image:
    """Apply the operation with Pillow. `amount` is -1 to 1."""
    fill = 128 if image.mode == "L" else (128, 128, 128)

    def transformed(*matrix: float) -> Image.Image:
        return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR, fillcolor=fill)

    operations = {
        "identity": lambda: image,
        "autocontrast": lambda: ImageOps.autocontrast(image),
        "equalise": lambda: ImageOps.equalize(image),
        "rotate": lambda: image.rotate(30 * amount, Image.Resampling.BILINEAR, fillcolor=fill),
        "solarise": lambda: ImageOps.solarize(image, 256 * (1 - abs(amount))),
        "colour": lambda: ImageEnhance.Color(image).enhance(1 + 0.9 * amount),
        "posterise": lambda: ImageOps.posterize(image, 8 - round(4 * abs(amount))),
        "contrast": lambda: ImageEnhance.Contrast(image).enhance(1 + 0.9 * amount),
        "brightness": lambda: ImageEnhance.Brightness(image).enhance(1 + 0.9 * amount),
        "sharpness": lambda: ImageEnhance.Sharpness(image).enhance(1 + 0.9 * amount),
        "shear x": lambda: transformed(1, 0.3 * amount, 0, 0, 1, 0),
        "shear y": lambda: transformed(1, 0, 0, 0.3 * amount, 1, 0),
        "translate x": lambda: transformed(1, 0, 0.45 * amount * image.width, 0, 1, 0),
        "translate y": lambda: transformed(1, 0, 0, 0, 1, 0.45 * amount * image.height),
    }
    return operations[name]()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("height", "width"), [(8, 8), (33, 21), (96, 130)])
@pytest.mark.parametrize("strength", [0.0, 0.37, 0.9])
def test_every_operation_equals_pillow(height: int, width: int, channels: int, strength: float) -> None:
    images = bytes_(2 * len(OPERATIONS), channels, height, width).float()
    operation = torch.arange(len(OPERATIONS)).repeat(2)
    amount = torch.tensor([strength, -strength]).repeat_interleave(len(OPERATIONS))
    out = affine(
        apply_colour_operations(images, operation, amount, strength),
        geometric_matrices(operation, amount, (height, width))[:, :2],
    )
    for image, number, share, pixels in zip(images, operation, amount.tolist(), out, strict=True):
        expected = tensor(reference(picture(image), OPERATIONS[number], share))
        assert (pixels - expected).abs().max() < 2, (OPERATIONS[number], share)


def test_operations_are_drawn_uniformly_and_applied_in_order() -> None:
    """On an image for which all operations of Pillow give different results."""
    image = picture(torch.randint(20, 200, (3, 18, 16)))
    candidates = torch.stack([tensor(reference(image, name, sign * 0.6)) for name in OPERATIONS for sign in (1, -1)])
    n = 1400
    images = tensor(image).expand(n, -1, -1, -1)
    distance = (augment(images, keys(n), options(randaugment=1, magnitude=6.0))[:, None] - candidates).abs()
    distance = distance.amax((2, 3, 4))
    assert (distance.amin(1) < 2).all()
    counts = torch.bincount(distance.argmin(1) // 2, minlength=len(OPERATIONS))
    assert counts.min() > 60  # of 100
    assert counts.max() < 140
    twice = augment(images, keys(n), options(randaugment=2, magnitude=6.0))
    untouched = (twice == images).flatten(1).all(1).sum()
    assert 1 <= untouched < 25  # twice the identity: 7 expected, and a few pairs that cancel


# ---------------------------------------------------------------- the rest


def test_all_options_off() -> None:
    images = bytes_(3, 3, 9, 7)
    out = augment(images, keys(3), options())
    assert out.dtype == torch.float32
    assert torch.equal(out, images.float())


@pytest.mark.parametrize("channels", [1, 3])
def test_shifts_are_integers_up_to_the_fraction(channels: int) -> None:
    height, width, n = 20, 31, 600
    image = bytes_(1, channels, height, width).float() + 1  # no black pixel
    out = augment(image.expand(n, -1, -1, -1), keys(n), options(shift=0.1))
    seen = set()
    padded = torch.nn.functional.pad(image[0], (3, 3, 2, 2))
    windows = {(d, r): padded[:, 2 - d : 22 - d, 3 - r : 34 - r] for d in range(-2, 3) for r in range(-3, 4)}
    for moved in out:
        found = [place for place, window in windows.items() if torch.equal(window, moved)]
        assert len(found) == 1
        seen.add(found[0])
    assert seen == set(windows)


@pytest.mark.parametrize("size", [(24, 24), (224, 224)])
def test_three_augment(size: tuple[int, int]) -> None:
    n = 30
    image = bytes_(1, 3, *size).float()
    out = augment(image.expand(n, -1, -1, -1), keys(n), options(three_augment=True))
    grey = tensor(picture(image[0]).convert("L"))
    solarised = tensor(ImageOps.solarize(picture(image[0])))
    kinds = []
    for pixels in out:
        if (pixels - grey).abs().max() < 0.51:
            kinds.append("grey")
        elif torch.equal(pixels, solarised):
            kinds.append("solarised")
        else:
            kinds.append("blurred")
            assert pixels.mean((1, 2)).sub(image[0].mean((1, 2))).abs().max() < 1.5
            assert pixels.std() <= image.std()
            if size == (24, 24):  # sigma is a tenth of that at 224 px: almost no blur
                assert pixels.std() > 0.9 * image.std()
    assert min(kinds.count(kind) for kind in ("grey", "solarised", "blurred")) > 3


def test_colour_jitter_equals_pillow() -> None:
    image, n = bytes_(1, 3, 15, 22), 400
    out = augment(image.expand(n, -1, -1, -1), keys(n), options(jitter=0.4))
    factors = 1 + 0.4 * (2 * random_keys.uniform(keys(n), "jitter", 3) - 1)
    assert 0.6 <= factors.min() < 0.61
    assert 1.39 < factors.max() <= 1.4
    for pixels, (bright, contrasting, colourful) in zip(out[:40], factors.tolist(), strict=False):
        step = ImageEnhance.Contrast(ImageEnhance.Brightness(picture(image[0])).enhance(bright)).enhance(contrasting)
        expected = tensor(ImageEnhance.Color(step).enhance(colourful))
        assert (pixels - expected).abs().max() < 4  # Pillow truncates three times
    black = augment(torch.zeros(2, 1, 4, 4), keys(2), options(jitter=3.0))  # factors are never negative
    assert torch.equal(black, torch.zeros(2, 1, 4, 4))


@pytest.mark.parametrize(("height", "width"), [(32, 32), (40, 11), (1, 50), (3, 3)])
def test_erased_rectangles_are_noise(height: int, width: int) -> None:
    n = 1000
    images = torch.full((n, 3, height, width), 300.0)  # brighter than any noise
    out = augment(images, keys(n), options(erase=0.25))
    erased = (out[:, 0] != 300).flatten(1).any(1)
    assert 200 < erased.sum() < 300
    areas = []
    for picture_ in out[erased]:
        where = (picture_[0] != 300).nonzero()
        sides = where.amax(0) - where.amin(0) + 1
        assert sides.prod() == len(where)
        assert ((picture_ != 300).any(0) == (picture_ != 300).all(0)).all()
        areas.append(len(where) / (height * width))
    if (height, width) == (32, 32):
        assert 0.012 < min(areas) < 0.04
        assert 0.3 < max(areas) < 0.36
    noise = out[out != 300]
    assert 0 <= noise.min() <= noise.max() <= 255
    assert abs(noise.mean() - 127.5) < 8
    assert abs(noise.std() - 61) < 8  # 64 before clipping
    if (height, width) == (32, 32):
        assert len(noise.unique()) > 200
        pairs = torch.stack((out[:, 0, 10, 10], out[:, 0, 10, 11], out[:, 1, 10, 10], out[:, 0, 11, 10]))
        both = pairs[:, (pairs != 300).all(0)]
        assert (torch.corrcoef(both) - torch.eye(4)).abs().max() < 0.35  # neighbours and channels are independent


# ---------------------------------------------------------------- what holds for all of it


@pytest.mark.parametrize("channels", [1, 3])
def test_results_do_not_depend_on_the_batch(channels: int) -> None:
    n = 24
    images, sizes = bytes_(n, channels, 17, 26), torch.randint(5, 300, (2, n))
    chosen, numbers = Augmentation(**EVERYTHING), keys(n)
    together = augment(images, numbers, chosen)
    boxes, mirrored = crop_boxes(numbers, *sizes, 1.0, chosen), flip_mask(numbers, chosen)
    assert 0 <= together.min() <= together.max() <= 255
    for i in range(n):
        one = slice(i, i + 1)
        alone = augment(images[one], numbers[one], chosen)
        differs = (alone - together[one]).abs() > 1e-3
        assert differs.float().mean() < 0.005  # where rounding changes a grey level, and a lookup table amplifies that
        torch.testing.assert_close(crop_boxes(numbers[one], *sizes[:, one], 1.0, chosen), boxes[one])
        assert torch.equal(flip_mask(numbers[one], chosen), mirrored[one])
    assert (augment(images, keys(n, seed=1), chosen) - together).abs().mean() > 5


@pytest.mark.parametrize("shape", [(2, 3, 1, 1), (2, 1, 1, 40), (3, 3, 2, 3), (0, 3, 8, 8), (1, 1, 300, 2)])
def test_images_of_unusual_shapes(shape: tuple[int, ...]) -> None:
    out = augment(bytes_(*shape), keys(shape[0]), Augmentation(**EVERYTHING))
    assert out.shape == shape
    assert out.isfinite().all()


def test_the_input_is_not_modified() -> None:
    images = torch.rand(4, 3, 16, 16) * 255
    before = images.clone()
    augment(images, keys(4), Augmentation(**EVERYTHING))
    assert torch.equal(images, before)


def test_invalid_images_are_refused() -> None:
    with pytest.raises(VitreousError, match=r"1 or 3 channels.*got \(2, 4, 8, 8\)"):
        augment(torch.zeros(2, 4, 8, 8), keys(2), options())
    with pytest.raises(VitreousError, match="an option is None"):
        augment(torch.zeros(2, 3, 8, 8), keys(2), Augmentation())


# ---------------------------------------------------------------- compiled, and on a GPU


def everything(flat: Tensor, targets: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """Run all steps from cached bytes to a batch for the model."""
    chosen = Augmentation(**EVERYTHING)
    sides = torch.full_like(keys, 40)
    boxes = crop_boxes(keys, sides, sides, 1.0, chosen)
    offsets = torch.arange(len(keys), device=keys.device) * (40 * 40 * 3)
    images = gather_boxes(flat, offsets, sides, sides, boxes, flip_mask(keys, chosen), (32, 32), 3, taps=2)
    return mix(augment(images, keys, chosen), targets, keys, chosen)


def colours(images: Tensor, keys: Tensor) -> Tensor:
    return augment(images, keys, options(jitter=0.3))


def test_compiles_to_one_graph() -> None:
    flat, targets = bytes_(6 * 40 * 40 * 3), torch.eye(6)
    torch.compiler.reset()
    traced = torch.compile(everything, fullgraph=True, backend="eager")
    for ours, eager in zip(traced(flat, targets, keys(6)), everything(flat, targets, keys(6)), strict=True):
        assert torch.equal(ours, eager)
    images = bytes_(6, 3, 12, 12)
    compiled = torch.compile(colours, fullgraph=True)(images, keys(6))
    torch.testing.assert_close(compiled, colours(images, keys(6)), atol=1e-3, rtol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_gpu_equals_cpu(compiled: bool) -> None:
    """To 1e-3, except for a few pixels where rounding changes a grey level and a lookup table amplifies that."""
    n = 64
    flat, targets, numbers = bytes_(n * 40 * 40 * 3), torch.eye(n), keys(n)
    torch.compiler.reset()
    run = torch.compile(everything, fullgraph=True) if compiled else everything
    on_gpu = [out.cpu() for out in run(flat.cuda(), targets.cuda(), numbers.cuda())]
    images, labels = everything(flat, targets, numbers)
    assert ((on_gpu[0] - images).abs() > 1e-3).float().mean() < 0.002
    torch.testing.assert_close(on_gpu[1], labels, atol=1e-5, rtol=0)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_no_synchronisation_with_the_gpu() -> None:
    flat, targets, numbers = bytes_(8 * 40 * 40 * 3).cuda(), torch.eye(8).cuda(), keys(8).cuda()
    everything(flat, targets, numbers)
    torch.cuda.set_sync_debug_mode("error")
    try:
        everything(flat, targets, numbers)
    finally:
        torch.cuda.set_sync_debug_mode("default")
