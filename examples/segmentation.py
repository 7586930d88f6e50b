"""Train a linear segmentation head on the frozen tokens of a ViT.

    python examples/segmentation.py vitreous-mini segmentation.png

The images are made here: a handwritten digit and a disc on a crop of one of scikit-learn's two photographs, both in
colours of the photographs, so the mask of every image is known. The head is one linear layer from a token to three
classes: background, digit, disc. Its scores are interpolated to pixels. The baseline is the same layer on the colour of
each pixel. Test images are composed of other digits, and of other parts of the photographs, than training images.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

import vitreous
from vitreous.data.builtin import photographs
from vitreous.data.dataset import Source
from vitreous.utils.figures import new_figure, render_figure

SIZE, OBJECT = 96, 48  # sides of an image and of an object, in pixels
CLASSES = 3  # background, digit, disc
CONTRAST = 100  # distance in RGB between an object and the colour behind it
PHOTOGRAPHS = photographs()
STRIDE = 3  # the baseline is trained on every third pixel of every third row
BATCH = 16
SHOWN = 6  # test images in the figure
WEIGHT_DECAY = 1e-4


def composites(count: int, test: bool, seed: int) -> tuple[np.ndarray, Tensor]:
    """Return images (N, SIZE, SIZE, 3) in uint8 and masks (N, SIZE, SIZE): a digit and a disc side by side."""
    random = np.random.default_rng(seed)
    opened = vitreous.open_data("digits")
    source = opened.test if test else opened.train
    assert source is not None
    pictures, masks = [], []
    for _ in range(count):
        image, mask = background(random, test), np.zeros((SIZE, SIZE), np.int64)
        for kind, left in zip((1, 2), random.permutation([0, OBJECT]), strict=True):
            inside = digit(random, source) if kind == 1 else disc(random)
            top = int(random.integers(SIZE - OBJECT + 1))
            place = (slice(top, top + OBJECT), slice(left, left + OBJECT))
            image[place][inside] = object_colour(random, image[place][inside].mean(0))
            mask[place][inside] = kind
        pictures.append(np.clip(image + random.normal(0, 5, image.shape), 0, 255).astype(np.uint8))
        masks.append(mask)
    return np.stack(pictures), torch.from_numpy(np.stack(masks))


def digit(random: np.random.Generator, source: Source) -> np.ndarray:
    """Return the strokes of a handwritten digit, (OBJECT, OBJECT) bool."""
    image = source.image(int(random.integers(len(source)))).resize((OBJECT, OBJECT), Image.Resampling.BICUBIC)
    return np.asarray(image.convert("L")) > 110


def disc(random: np.random.Generator) -> np.ndarray:
    """Return a disc of random size, (OBJECT, OBJECT) bool."""
    rows, cols = np.mgrid[:OBJECT, :OBJECT] - (OBJECT - 1) / 2
    return rows**2 + cols**2 < random.uniform(OBJECT / 5, OBJECT / 2) ** 2


def object_colour(random: np.random.Generator, behind: np.ndarray) -> np.ndarray:
    """Return the colour of a random pixel of the photographs that differs from the colour behind the object."""
    while True:
        photo = np.asarray(PHOTOGRAPHS[int(random.integers(2))][1])
        colour = photo[random.integers(photo.shape[0]), random.integers(photo.shape[1])].astype(np.float64)
        if np.linalg.norm(colour - behind) > CONTRAST:
            return colour


def background(random: np.random.Generator, test: bool) -> np.ndarray:
    """Return a random crop of the left half of a photograph, or for test images of the right half."""
    photo = np.asarray(PHOTOGRAPHS[int(random.integers(2))][1])
    half = photo.shape[1] // 2
    photo = photo[:, half:] if test else photo[:, :half]
    top, left = (int(random.integers(side - SIZE + 1)) for side in photo.shape[:2])
    return photo[top : top + SIZE, left : left + SIZE].astype(np.float64)


def token_features(model: vitreous.VisionTransformer, images: np.ndarray, size: int, layers: list[int]) -> Tensor:
    """Return the tokens after some layers as feature maps (N, D, rows, cols), at a larger image size: a finer grid."""
    assert model.preprocessing is not None
    preprocessing = model.preprocessing.at(size)
    maps = []
    with torch.inference_mode():
        for start in range(0, len(images), BATCH):
            batch = preprocessing(images[start : start + BATCH])
            maps.append(torch.cat(model.intermediates(batch, layers), 1))
    return torch.cat(maps).clone()


def colour_features(images: np.ndarray) -> Tensor:
    """Return red, green and blue of each pixel, and their products, as feature maps (N, 9, rows, cols)."""
    rgb = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    products = [rgb[:, i] * rgb[:, j] for i in range(3) for j in range(i, 3)]
    return torch.cat([rgb, torch.stack(products, 1)], 1)


def train_head(features: Tensor, masks: Tensor, steps: int) -> Callable[[Tensor], Tensor]:
    """Fit a linear layer by L-BFGS to the share of each class in the pixels of a cell. Return a function from feature
    maps to masks of SIZE x SIZE pixels."""
    mean, std = features.mean((0, 2, 3), keepdim=True), features.std((0, 2, 3), keepdim=True) + 1e-6
    shares = F.adaptive_avg_pool2d(F.one_hot(masks, CLASSES).permute(0, 3, 1, 2).float(), features.shape[2:])
    rows = ((features - mean) / std).permute(0, 2, 3, 1).flatten(0, 2)
    targets = shares.permute(0, 2, 3, 1).flatten(0, 2)
    head = torch.nn.Linear(features.shape[1], CLASSES)
    optimiser = torch.optim.LBFGS(head.parameters(), max_iter=steps, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = F.cross_entropy(head(rows), targets) + WEIGHT_DECAY * head.weight.square().sum()
        loss.backward()
        return loss

    optimiser.step(closure)

    @torch.no_grad()
    def predict(maps: Tensor) -> Tensor:
        scores = head(((maps - mean) / std).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return F.interpolate(scores, (SIZE, SIZE), mode="bilinear", align_corners=False).argmax(1)

    return predict


def mean_iou(predicted: Tensor, masks: Tensor) -> float:
    """Return the intersection over union of each class over all pixels, averaged over the classes."""
    counts = torch.bincount((masks * CLASSES + predicted).flatten(), minlength=CLASSES**2).view(CLASSES, CLASSES)
    union = counts.sum(0) + counts.sum(1) - counts.diag()
    return (counts.diag()[union > 0] / union[union > 0]).mean().item()


def draw(images: np.ndarray, rows: dict[str, Tensor], out: Path) -> None:
    """Write a figure: the first images, and below them the masks of each row."""
    figure = new_figure(1.4 * SHOWN, 1.5 * (1 + len(rows)))
    axes = figure.subplots(1 + len(rows), SHOWN, squeeze=False)
    for place, (name, masks) in enumerate({"image": torch.from_numpy(images), **rows}.items()):
        for column, axis in enumerate(axes[place]):
            axis.set_xticks([])
            axis.set_yticks([])
            if column < len(images):
                axis.imshow(masks[column].numpy(), cmap="viridis", vmin=0, vmax=CLASSES - 1, interpolation="nearest")
        axes[place][0].set_ylabel(name)
    out.write_bytes(render_figure(figure, "png", 110))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", nargs="?", default="vitreous-mini", help="checkpoint of a ViT")
    parser.add_argument("out", type=Path, nargs="?", default=Path("segmentation.png"), help="PNG to write")
    parser.add_argument("--images", type=int, default=150, help="training images; a third as many test images")
    parser.add_argument("--size", type=int, default=144, help="image size for the model")
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 3, 5], help="blocks whose tokens are used, from 0")
    parser.add_argument("--steps", type=int, default=30, help="L-BFGS steps")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    try:
        model = vitreous.load(arguments.weights)
        if not isinstance(model, vitreous.VisionTransformer):
            raise vitreous.VitreousError(f"{arguments.weights}: a ViT is needed, this is a {type(model).__name__}")
        model.config.grid_at((arguments.size, arguments.size))
        images, masks = composites(arguments.images, test=False, seed=0)
        test_images, test_masks = composites(max(1, arguments.images // 3), test=True, seed=1)
        tokens = token_features(model, images, arguments.size, arguments.layers)
        test_tokens = token_features(model, test_images, arguments.size, arguments.layers)
    except vitreous.VitreousError as error:
        parser.error(str(error))
    by_tokens = train_head(tokens, masks, arguments.steps)(test_tokens)
    few = (..., slice(None, None, STRIDE), slice(None, None, STRIDE))
    by_colour = train_head(colour_features(images)[few], masks[few], arguments.steps)(colour_features(test_images))
    print(f"mean IoU of {CLASSES} classes on {len(test_images)} test images, trained on {len(images)}:")
    print(f"  {mean_iou(by_tokens, test_masks):.1%}  linear head on frozen tokens of {arguments.weights}")
    print(f"  {mean_iou(by_colour, test_masks):.1%}  linear head on the colour of each pixel")
    print(f"  {mean_iou(torch.zeros_like(test_masks), test_masks):.1%}  background everywhere")
    draw(test_images, {"mask": test_masks, "tokens": by_tokens, "colour": by_colour}, arguments.out)
    print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
