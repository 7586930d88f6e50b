"""`vitreous features`: what a model makes of images, in files."""

from pathlib import Path
from typing import Annotated

import tyro

from vitreous.cli.parts import Number, Running, Weights, paced, show_facts, stopping, tell_unreadable
from vitreous.cli.predict import printable


def features(
    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")],
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")],
    /,
    *,
    weights: Weights,
    layer: Annotated[int, tyro.conf.arg(metavar="N")] = -1,
    size: Number = None,
    split: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None,
    running: Running = Running(),  # noqa: B008 (it is frozen)
) -> None:
    """Write what a model makes of images: features, labels and file names, in .safetensors shards.

    Stop at any time; the same command goes on, and keeps every shard that is whole.

    Args:
        source: data as in `vitreous data`.
        out: a folder for the shards, made if it is not there.
        weights: whose features.
        layer: a block of a ViT, counted from 0: its tokens, pooled; -1: the representation under the head.
        size: image size; the model's own if not given.
        split: train, val or test; if not given, test, else val, else all images where the data has no splits.
        running: how images come to the model.
    """
    from vitreous.evaluation.store import read_features, write_features
    from vitreous.evaluation.subject import measured_split, open_subject, open_whole
    from vitreous.training.telling import Teller

    teller = Teller()
    loading = running.loading(teller)
    data = open_whole(source)
    part, images = measured_split(data, split)
    subject = open_subject(weights.model, loading.device, weights.heads, weights.preprocessing)
    shown = subject.shown(size)
    for note in (*subject.notes, *data.notes):
        teller.notes.print(printable(note), style="dim", soft_wrap=True)
    about = {"data": data.name, "split": part, "classes": list(data.classes)}
    with stopping(True), paced(teller)(f"{subject.name} on {data.name}", len(images)) as tick:
        write_features(subject, images, out, shown, loading, layer, about, tick)
    held = read_features(out)
    rows = [
        ("features", f"{len(held.features):,} x {held.features.shape[1]:,} of {printable(source)}, {part}"),
        ("model", f"{subject.name}, content hash {held.origin.model}"),
        ("layer", "under the head" if layer == -1 else f"behind block {layer}"),
        ("in", str(out)),
    ]
    show_facts(rows)
    tell_unreadable(teller, list(held.unreadable.values()))
