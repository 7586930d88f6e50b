"""`vitreous features`: compute the features of images and write them to files."""

from pathlib import Path
from typing import Annotated

import tyro

from vitreous.cli.options import BatchOptions, DataOptions, ModelOptions, OptionalInt, OptionalName, Switch
from vitreous.cli.output import exit_if_unreadable, interrupt_message, print_facts, print_notes
from vitreous.evaluation.progress_bar import image_progress_bar
from vitreous.utils.console import printable


def features_command(  # noqa: PLR0913 (each is a flag, or a group of them)
    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")],
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")],
    /,
    *,
    model: ModelOptions,
    overwrite: Switch = False,
    layer: Annotated[int, tyro.conf.arg(metavar="N")] = -1,
    size: OptionalInt = None,
    split: OptionalName = None,
    data: DataOptions = DataOptions(),  # noqa: B008 (these are frozen)
    batches: Annotated[BatchOptions, tyro.conf.arg(name="device")] = BatchOptions(),  # noqa: B008
) -> None:
    """Write the features, labels and file names of images to .safetensors shards.

    The command can be interrupted at any time. The same command continues and keeps all complete shards.

    Args:
        source: Data as in `vitreous data`.
        out: Folder for the shards. Incomplete features of the same model and images are continued.
        overwrite: Replace other features in OUT, once the new ones are complete.
        layer: Number of an encoder block, counted from 0: its tokens are pooled as before the head. -1: the input of
            the head.
        size: Image size in pixels. Default: the size of the model.
        split: train, val, test or all. Default: the test split of the data, otherwise its val split, otherwise all
            images.
    """
    from vitreous.evaluation.extract_features import extract_and_write
    from vitreous.utils.progress import ProgressReporter

    reporter = ProgressReporter()
    options = batches.inference_options(reporter)
    with interrupt_message(resumable=True):
        written = extract_and_write(
            model.model,
            source,
            out,
            options,
            layer=layer,
            size=size,
            split=split,
            overwrite=overwrite,
            heads=model.heads,
            preprocessing=model.preprocessing,
            trust_code=model.trust_code,
            reading=data.reading(model.model),
            bar=image_progress_bar(reporter),
            note=lambda notes: print_notes(reporter, notes),
        )
    images = f"{printable(source)}, {written.about['split']}"
    rows = [
        ("features", f"{len(written.features):,} x {written.features.shape[1]:,} of {images}"),
        ("model", f"{written.about['model']}, content hash {written.origin.model}"),
        ("layer", "input of the head" if layer == -1 else f"output of block {layer}"),
        ("folder", str(out)),
    ]
    print_facts(rows)
    exit_if_unreadable(reporter, list(written.unreadable.values()))
