"""`vitreous convert`: a checkpoint in another dialect."""

from pathlib import Path
from typing import Annotated

import tyro

from vitreous.cli.parts import Number, Overwrite, Preset, Size
from vitreous.utils.console import complain, say
from vitreous.weights.dialect_names import DialectName


def convert(  # noqa: PLR0913 (each is a flag)
    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="IN")],
    target: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")],
    /,
    *,
    to: DialectName,
    force: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    overwrite: Overwrite = False,
    num_classes: Number = None,
    image_size: Size = None,
    heads: Number = None,
    preprocessing: Preset = None,
) -> None:
    """Write a checkpoint as another program loads it: the same numbers, under its names.

    Args:
        source: a file, a folder or hf://owner/name, in any dialect; or vitreous-mini, which comes with the package.
        target: where to. A folder for timm and huggingface, else a file: .npz for google, big-vision and bit,
            .safetensors for native, either of .pth and .safetensors for the others.
        to: the dialect to write; google has the numbering of the released files.
        force: write what the dialect can express of the model, with a warning, if that can be loaded again.
        overwrite: replace OUT if it exists, once the new one is complete.
        num_classes: a new head of zeros with so many classes; 0 for none.
        image_size: lay it out for another size, in pixels: one number, or height and width.
        heads: the number of heads, where the file cannot tell.
        preprocessing: what it was trained to see, where the file does not tell: google, augreg, deit, torchvision
            or dino.
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
        complain(note, "note: ")
    files = sorted(target.iterdir()) if target.is_dir() else [target]
    size = sum(file.stat().st_size for file in files)
    parts = f" in {', '.join(file.name for file in files)}" if target.is_dir() else ""
    say(f"{target}: {to}, {size / 1e6:,.1f} MB{parts}")
