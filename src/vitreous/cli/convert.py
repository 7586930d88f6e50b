"""`vitreous convert`: convert a checkpoint to another format."""

from pathlib import Path
from typing import Annotated, get_args

import tyro

from vitreous.cli.options import ImageSize, OptionalInt, PreprocessingName, Switch
from vitreous.utils.console import print_line, print_message
from vitreous.weights.dialect_names import DialectName


def convert_command(  # noqa: PLR0913 (each is a flag)
    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="IN")],
    target: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")],
    /,
    *,
    to: Annotated[DialectName, tyro.conf.arg(metavar="|".join(get_args(DialectName)))],
    force: Switch = False,
    overwrite: Switch = False,
    num_classes: OptionalInt = None,
    image_size: ImageSize = None,
    heads: OptionalInt = None,
    preprocessing: PreprocessingName = None,
) -> None:
    """Convert a checkpoint to the format of another library: the same weights under its tensor names.

    Args:
        source: Checkpoint of any supported format: a file, a folder or hf://owner/name; a name of `vitreous models
            --weights`, which is downloaded; or vitreous-mini, which comes with the package.
        target: Output. A folder for timm and huggingface; an .npz file for google, big-vision and bit; a .safetensors
            file for native; a .pth or .safetensors file for the others.
        to: Format to write. google numbers the layers as the released files do.
        force: Write the checkpoint even if the format cannot represent all settings of the model, with a warning,
            as long as it can be loaded again.
        overwrite: Replace OUT if it exists, once the new one is complete.
        num_classes: Number of classes of a new head, which is initialised with zeros. 0: no head. Default: keep the
            head.
        image_size: Image size in pixels for which positions are resampled: one number, or height and width. Default:
            the size of the checkpoint.
        heads: Number of attention heads, if the checkpoint does not contain it. Default: the usual number
            for its width.
        preprocessing: Preprocessing that the model was trained with, if the checkpoint does not contain it. Default:
            the usual one of its format.
    """
    from vitreous.weights.save import convert

    notes = convert(
        source,
        target,
        to,
        force=force,
        overwrite=overwrite,
        num_classes=num_classes,
        image_size=image_size,
        heads=heads,
        preprocessing=preprocessing,
    )
    for note in notes:
        print_message(note, "note: ")
    files = sorted(target.iterdir()) if target.is_dir() else [target]
    size = sum(file.stat().st_size for file in files)
    parts = f" in {', '.join(file.name for file in files)}" if target.is_dir() else ""
    print_line(f"{target}: {to}, {size / 1e6:,.1f} MB{parts}")
