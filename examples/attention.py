"""Draw the attention of the class token in several layers, for one image.

    python examples/attention.py deit_tiny_patch16_224.safetensors photo.jpg attention.png

The weights are any ViT that `vitreous.load` opens; a file without preprocessing is treated as a DeiT. Without a photo,
a flower that comes with scikit-learn is used. The image keeps its aspect ratio and is cropped to whole patches.
"""

import argparse
from pathlib import Path

import vitreous
from vitreous import inspection
from vitreous.data.builtin import photographs
from vitreous.inspection.figures import MapLayout, draw_map_table
from vitreous.utils.figures import render_figure
from vitreous.utils.images import decode

LAYERS = (1, 4, 7, 10)  # of 12; scaled to the depth of the model
LONG_SIDE = 480


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", help="checkpoint of a ViT")
    parser.add_argument("photo", type=Path, nargs="?", help="image file (default: a flower from scikit-learn)")
    parser.add_argument(
        "out", type=Path, nargs="?", default=Path("attention.png"), help="PNG to write (default: attention.png)"
    )
    arguments = parser.parse_args()
    try:
        model = vitreous.load(arguments.weights, preprocessing="deit")
        image = decode(arguments.photo) if arguments.photo else photographs()[0][1]
        image.thumbnail((LONG_SIDE, LONG_SIDE))
        preprocessing = model.preprocessing.at((image.height // 16 * 16, image.width // 16 * 16))
        layers = [layer * model.config.depth // 12 for layer in LAYERS]
        found = inspection.attention(model, preprocessing(image)[None], layers)
    except vitreous.VitreousError as error:
        parser.error(str(error))
    heads = found.seen_from().mean(2)[:, 0]  # (layers, rows, cols), averaged over heads
    titles = [f"layer {layer + 1}" for layer in layers]
    layout = MapLayout("attention of the class token", single_row=True)
    figure = draw_map_table(heads[None], [""], titles, "attention weight", preprocessing.pixels(image), layout)
    arguments.out.write_bytes(render_figure(figure, "png", 110))
    print(f"{found.grid[0]} x {found.grid[1]} patches; wrote {arguments.out}")


if __name__ == "__main__":
    main()
