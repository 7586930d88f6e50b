"""`vitreous inspect`: what goes on inside a model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from vitreous.cli.parts import Folder, Number, Overwrite, Preset, Size, check_writing
from vitreous.cli.predict import MINI
from vitreous.utils.console import printable, say

if TYPE_CHECKING:
    from vitreous.reports.inspect_model import InputImage


def inspect(
    named: Annotated[
        tuple[str, ...],
        tyro.conf.Positional,
        tyro.conf.arg(name="model", metavar="[MODEL] [IMAGES...]", help_behavior_hint=""),
    ] = (),
    /,
    *,
    out: Folder = None,
    overwrite: Overwrite = False,
    size: Size = None,
    device: Annotated[str, tyro.conf.arg(metavar="NAME")] = "auto",
    heads: Number = None,
    preprocessing: Preset = None,
) -> None:
    """Look inside a model: attention, rollout, relevance, distances, filters, positions, and what it would say earlier.

    Writes figures (PNG and SVG), numbers.json, and index.html: one page to click through, that needs no network.

    Args:
        named: a checkpoint as in `vitreous predict`, a run directory or random:NAME, then images: files, folders or
            patterns in quotes. Without a model, the one that comes with the package; without images, those that a run
            was measured on, or two photographs that come with scikit-learn.
        out: the folder for all of it. If not given: inspection; of a run directory, inspection within it, where an
            earlier one is replaced.
        overwrite: replace the folder of an earlier inspection, once the new one is complete.
        size: image size; the model's own if not given.
        device: "cpu", "cuda", "cuda:1"...; auto: a GPU if there is one.
        heads: attention heads, for a checkpoint that does not tell.
        preprocessing: what the model was trained to see, for a checkpoint that does not tell: google, augreg, deit,
            torchvision or dino.
    """
    from vitreous.data.image_files import is_image

    alone = not named or is_image(named[0])  # the first is a picture: no model is named
    source, files = (MINI, named) if alone else (named[0], named[1:])
    trained = all((Path(source) / name).is_file() for name in ("config.json", "metrics.jsonl"))
    run = Path(source) if trained else None
    place = out or (run / "inspection" if run else Path("inspection"))
    overwrite = overwrite or (out is None and run is not None)  # what a run holds is remade from it
    pictures = named_images(files) if files else of_run(run) if run else _photographs()

    from vitreous.evaluation.subject import RANDOM_PREFIX, open_model
    from vitreous.reports.inspect_model import (
        MAX_FIGURES,
        MAX_IMAGES,
        ModelDescription,
        inspect_model,
        inspection_files,
    )
    from vitreous.utils.device import pick_device
    from vitreous.utils.environment import command
    from vitreous.utils.progress import ProgressReporter

    check_writing(place, inspection_files, overwrite=overwrite)
    teller = ProgressReporter()
    if alone and named:
        teller.note(f"no model is named: this is {MINI}, which comes with the package")
    subject = open_model(source, pick_device(device), heads, preprocessing)
    about = ModelDescription(subject.name, tuple(subject.notes), source.startswith(RANDOM_PREFIX), command())
    with teller.bar(
        "inspecting", (1 + MAX_FIGURES) * min(len(pictures), MAX_IMAGES) + 4
    ) as tell:  # 4: the model itself
        done = inspect_model(
            subject.model, pictures, place, about, size, lambda text: tell(1, printable(text)), overwrite
        )
    for note in done.notes:
        teller.note(printable(note))
    for why in done.skipped:
        teller.note(f"{printable(why)}; skipped")
    say(f"page     {done.page}")
    say(f"figures  {len(done.files) - 1} files beside it, and numbers.json")
    if done.skipped:
        raise SystemExit(1)


def named_images(files: tuple[str, ...]) -> "list[InputImage]":
    from vitreous.data.image_files import find_images
    from vitreous.reports.inspect_model import InputImage

    return [InputImage(path.name, path) for path in find_images(files)]


def _photographs() -> "list[InputImage]":
    from vitreous.data.builtin import photographs
    from vitreous.reports.inspect_model import InputImage

    return [InputImage(name, image) for name, image in photographs()]


def of_run(run: Path) -> "list[InputImage]":
    """Images that a run was measured on: the first of each class, as many as the page shows."""
    from vitreous.data.open_data import open_data
    from vitreous.errors import VitreousError
    from vitreous.reports.inspect_model import MAX_IMAGES, InputImage
    from vitreous.training.config import TrainConfig
    from vitreous.training.run_directory import RunDirectory

    told = RunDirectory.open(run).description()
    try:
        data = open_data(told["data"], TrainConfig.from_flat(told["config"]).reading)
    except (VitreousError, KeyError) as error:
        raise VitreousError(f"the images of {run} cannot be opened ({error}); name others behind the model") from error
    source = data.test or data.val or data.train
    labels, chosen = source.labels, list(range(min(MAX_IMAGES, len(source))))
    if labels.ndim == 1:
        firsts = [int((labels == k).nonzero()[0, 0]) for k in labels.unique().tolist()]
        chosen = sorted(firsts)[:MAX_IMAGES]
    return [InputImage(Path(source.name(i)).name, source.image(i)) for i in chosen]
