"""`vitreous explain`: follow one image through the equations of the ViT paper."""

from pathlib import Path
from typing import Annotated

import tyro

from vitreous.cli.options import DeviceName, ImageSize, OptionalInt, PreprocessingName, Switch
from vitreous.cli.predict import MINI
from vitreous.utils.console import print_line


def explain_command(  # noqa: PLR0913 (each is a flag)
    image: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="IMAGE")],
    /,
    *,
    model: Annotated[str, tyro.conf.arg(metavar="MODEL")] = MINI,
    out: Annotated[Path, tyro.conf.arg(metavar="FILE|DIR")] = Path("explanation.html"),
    overwrite: Switch = False,
    patch: Annotated[tuple[int, int] | None, tyro.conf.arg(metavar="ROW COL", help_behavior_hint="")] = None,
    layer: OptionalInt = None,
    head: OptionalInt = None,
    size: ImageSize = None,
    device: DeviceName = "auto",
    heads: OptionalInt = None,
    preprocessing: PreprocessingName = None,
) -> None:
    """Explain how a ViT computes its prediction for one image: a page with the model's numbers for each equation.

    The page is one HTML file that works without a network: patches, embedding, attention, residual stream, prediction.

    Args:
        image: Image file.
        model: Checkpoint of any supported format, run directory, hf://owner/name, or random:NAME for random weights.
        out: HTML file, or a folder for explanation.html.
        overwrite: Replace an existing page.
        patch: Row and column of the patch that the page follows, counted from 1. Default: the patch with the highest
            contrast.
        layer: Block whose attention is shown, counted from 1. Default: the middle one.
        head: Head whose attention is shown, counted from 1. Default: the one with the largest single weight.
        size: Image size in pixels: one number, or height and width. Default: the size of the model.
        device: cpu, cuda, cuda:1 ..., mps (Macs); auto: a GPU if there is one.
        heads: Number of attention heads, if the checkpoint does not contain it. Default: the usual number
            for its width.
        preprocessing: Preprocessing that the model was trained with, if the checkpoint does not contain it. Default:
            the usual one of its format.
    """
    from vitreous.evaluation.evaluated_model import open_model
    from vitreous.reports.explain import explain_evaluated, page_path
    from vitreous.utils.atomic import check_output
    from vitreous.utils.device import pick_device
    from vitreous.utils.environment import command

    target = page_path(out)
    check_output(target, overwrite)
    evaluated = open_model(model, pick_device(device), heads, preprocessing)
    page = explain_evaluated(
        image, evaluated, target, patch=patch, layer=layer, head=head, size=size, command=command()
    )
    print_line(f"page  {page}")
