"""What a ViT looks at: an image, and the attention of the class token from layer to layer.

    python examples/attention.py deit_tiny_patch16_224.safetensors photo.jpg attention.png

The weights are any ViT's that `vitreous.load` opens (a bare file is taken for a DeiT). Without a photo, a flower that
comes with scikit-learn is used. It is shown in its own shape, cut to whole patches.
"""

import argparse
from pathlib import Path

import vitreous
from vitreous import inspection
from vitreous.data.builtin import photographs
from vitreous.inspection.figures import MapLayout, draw_map_table
from vitreous.utils.figures import render_figure
from vitreous.utils.images import decode

LAYERS = (1, 4, 7, 10)
LONG_SIDE = 480


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path)
    parser.add_argument("photo", type=Path, nargs="?")
    parser.add_argument("out", type=Path, nargs="?", default=Path("attention.png"))
    arguments = parser.parse_args()
    try:
        model = vitreous.load(arguments.weights, preprocessing="deit")
        image = decode(arguments.photo) if arguments.photo else photographs()[0][1]
        image.thumbnail((LONG_SIDE, LONG_SIDE))
        shown = model.preprocessing.at((image.height // 16 * 16, image.width // 16 * 16))
        found = inspection.attention(model, shown(image)[None], LAYERS)
    except vitreous.VitreousError as error:
        parser.error(str(error))
    heads = found.seen_from().mean(2)[:, 0]  # (layers, rows, cols), averaged over heads
    titles = [f"layer {layer + 1}" for layer in LAYERS]
    layout = MapLayout("attention of the class token", single_row=True)
    figure = draw_map_table(heads[None], [""], titles, "attention weight", shown.pixels(image), layout)
    arguments.out.write_bytes(render_figure(figure, "png", 110))
    print(f"{found.grid[0]} x {found.grid[1]} patches; drawn to {arguments.out}")


if __name__ == "__main__":
    main()
