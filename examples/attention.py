"""What a ViT looks at: an image, its patches, and the attention of the class token from layer to layer.

    python examples/attention.py deit_tiny_patch16_224.safetensors photo.jpg attention.png

The weights are any ViT's that come as timm names them, in a `.safetensors` file (here DeiT-Ti/16, ImageNet mean and
deviation). Without a photo, a flower that comes with scikit-learn is used. The image may have any size: it is cut to
whole patches.
"""

import argparse
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file
from sklearn.datasets import load_sample_image

import vitreous

MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
LAYERS = (1, 4, 7, 10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path)
    parser.add_argument("photo", type=Path, nargs="?")
    parser.add_argument("out", type=Path, nargs="?", default=Path("attention.png"))
    arguments = parser.parse_args()

    model = vitreous.create("Ti/16", gelu="erf", resample="timm").eval()
    assert isinstance(model, vitreous.VisionTransformer)
    try:
        model.load_state_dict({name: tensor.float() for name, tensor in load_file(arguments.weights).items()})
        image = Image.open(arguments.photo) if arguments.photo else Image.fromarray(load_sample_image("flower.jpg"))
        image = image.convert("RGB")
    except (OSError, RuntimeError, SafetensorError) as error:  # no such file, not a DeiT-Ti, not a picture
        parser.error(str(error))
    image.thumbnail((480, 480))
    width, height = (side // 16 * 16 for side in image.size)
    pixels = torch.from_numpy(np.array(image.crop((0, 0, width, height)))) / 255
    x = ((pixels - MEAN) / STD).permute(2, 0, 1)[None]
    with torch.no_grad():
        maps = model.attention(x, LAYERS)
    rows, cols = model.config.grid_at((height, width))
    # The class token's row, over the patches, averaged over heads.
    seen = [m[0, :, 0, model.config.prefix :].mean(0).unflatten(0, (rows, cols)) for m in maps]
    draw(pixels, seen, (rows, cols)).savefig(arguments.out, dpi=110)
    print(f"{rows} x {cols} patches of a {height} x {width} image; drawn to {arguments.out}")


def draw(pixels: torch.Tensor, seen: list[torch.Tensor], grid: tuple[int, int]) -> mpl.figure.Figure:
    figure, axes = plt.subplots(1, 1 + len(seen), figsize=(13, 2.25), layout="constrained")
    axes[0].imshow(pixels)
    axes[0].set_xticks(np.arange(grid[1]) * 16 - 0.5)
    axes[0].set_yticks(np.arange(grid[0]) * 16 - 0.5)
    axes[0].grid(color="white", linewidth=0.4)
    axes[0].tick_params(length=0, labelsize=0, labelcolor="none")
    axes[0].set_title(f"{grid[0] * grid[1]} patches", fontsize=10)
    for axis, layer, weights in zip(axes[1:], LAYERS, seen, strict=True):
        smooth = torch.nn.functional.interpolate(weights[None, None], size=pixels.shape[:2], mode="bicubic")[0, 0]
        strength = (smooth / torch.quantile(smooth, 0.99)).clamp(0, 1)
        axis.imshow(pixels.mean(-1), cmap="gray")
        axis.imshow(strength, cmap="inferno", alpha=0.65)
        axis.set_title(f"layer {layer + 1}", fontsize=10)
        axis.set_axis_off()
    return figure


if __name__ == "__main__":
    main()
