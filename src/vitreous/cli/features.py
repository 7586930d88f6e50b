"""`vitreous features`: what a model makes of images, in files."""

from pathlib import Path
from typing import Annotated

import tyro

from vitreous.cli.parts import (
    DataOptions,
    Number,
    Overwrite,
    Running,
    Weights,
    paced,
    show_facts,
    stopping,
    tell_unreadable,
)
from vitreous.utils.console import printable


def features(  # noqa: PLR0913 (each is a flag, or a group of them)
    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")],
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")],
    /,
    *,
    weights: Weights,
    overwrite: Overwrite = False,
    layer: Annotated[int, tyro.conf.arg(metavar="N")] = -1,
    size: Number = None,
    split: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None,
    reading: DataOptions = DataOptions(),  # noqa: B008 (they are frozen)
    running: Running = Running(),  # noqa: B008
) -> None:
    """Write what a model makes of images: features, labels and file names, in .safetensors shards.

    Stop at any time; the same command goes on, and keeps every shard that is whole.

    Args:
        source: data as in `vitreous data`.
        out: a folder for the shards, made if it is not there. Unfinished features of the same model and images are
            continued.
        weights: whose features.
        overwrite: replace other features in that folder, once the new ones are complete.
        layer: a block of a ViT, counted from 0: its tokens, pooled; -1: the representation under the head.
        size: image size; the model's own if not given.
        split: train, val, test or all; if not given, the data's own test split, else its own val split, else all
            images.
        reading: where images and labels are, and how they are split.
        running: how images come to the model.
    """
    from vitreous.data.open_data import open_data
    from vitreous.evaluation.store import read_features, write_features
    from vitreous.evaluation.subject import evaluation_split, open_model
    from vitreous.utils.progress import ProgressReporter

    teller = ProgressReporter()
    loading = running.loading(teller)
    data = open_data(source, reading.reading(weights.model))
    part, images = evaluation_split(data, split)
    subject = open_model(weights.model, loading.device, weights.heads, weights.preprocessing)
    shown = subject.shown(size)
    for note in (*subject.notes, *data.notes):
        teller.notes.print(printable(note), style="dim", soft_wrap=True)
    about = {"data": data.name, "split": part, "classes": list(data.classes)}
    with stopping(True), paced(teller)(f"{subject.name} on {data.name}", len(images)) as tick:
        write_features(subject, images, out, shown, loading, layer, about, tick, overwrite=overwrite)
    held = read_features(out)
    rows = [
        ("features", f"{len(held.features):,} x {held.features.shape[1]:,} of {printable(source)}, {part}"),
        ("model", f"{subject.name}, content hash {held.origin.model}"),
        ("layer", "under the head" if layer == -1 else f"behind block {layer}"),
        ("in", str(out)),
    ]
    show_facts(rows)
    tell_unreadable(teller, list(held.unreadable.values()))
