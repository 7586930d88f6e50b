"""`vitreous inspect`: what goes on inside a model."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from vitreous.cli.parts import Folder, Number, Preset, Size, check_writing
from vitreous.cli.predict import MINI, printable

if TYPE_CHECKING:
    from vitreous.inspection.inspecting import Picture


def inspect(
    named: Annotated[
        tuple[str, ...],
        tyro.conf.Positional,
        tyro.conf.arg(name="model", metavar="[MODEL] [IMAGES...]", help_behavior_hint=""),
    ] = (),
    /,
    *,
    out: Folder = None,
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
        out: the folder for all of it. If not given: inspection; of a run directory, inspection within it.
        size: image size; the model's own if not given.
        device: "cpu", "cuda", "cuda:1"...; auto: a GPU if there is one.
        heads: attention heads, for a checkpoint that does not tell.
        preprocessing: what the model was trained to see, for a checkpoint that does not tell: google, augreg, deit,
            torchvision or dino.
    """
    from vitreous.data.decoding import is_image

    alone = not named or is_image(named[0])  # the first is a picture: no model is named
    source, files = (MINI, named) if alone else (named[0], named[1:])
    trained = all((Path(source) / name).is_file() for name in ("config.json", "metrics.jsonl"))
    run = Path(source) if trained else None
    place = out or (run / "inspection" if run else Path("inspection"))
    check_writing(place)
    pictures = named_images(files) if files else of_run(run) if run else photographs()

    from vitreous.evaluation.subject import RANDOM, open_subject
    from vitreous.inspection.inspecting import FIGURES, SHOWN, About
    from vitreous.inspection.inspecting import inspect as look
    from vitreous.training.folder import command
    from vitreous.training.hardware import pick_device
    from vitreous.training.telling import Teller

    teller = Teller()
    if alone and named:
        teller.note(f"no model is named: this is {MINI}, which comes with the package")
    subject = open_subject(source, pick_device(device), heads, preprocessing)
    about = About(subject.name, tuple(subject.notes), source.startswith(RANDOM), command())
    with teller.bar("looking", (1 + FIGURES) * min(len(pictures), SHOWN) + 4) as tell:  # and what is of all of them
        done = look(subject.model, pictures, place, about, size, lambda text: tell(1, printable(text)))
    for note in done.notes:
        teller.note(printable(note))
    for why in done.skipped:
        teller.note(f"{printable(why)}; skipped")
    print(f"page     {done.page}")
    print(f"figures  {len(done.files) - 1} files beside it, and numbers.json")
    if done.skipped:
        sys.stdout.flush()
        raise SystemExit(1)


def named_images(files: tuple[str, ...]) -> "list[Picture]":
    from vitreous.data.decoding import find_images
    from vitreous.inspection.inspecting import Picture

    return [Picture(path.name, path) for path in find_images(files)]


def photographs() -> "list[Picture]":
    from vitreous.data.named import photographs as both
    from vitreous.inspection.inspecting import Picture

    return [Picture(name, image) for name, image in both()]


def of_run(run: Path) -> "list[Picture]":
    """Images that a run was measured on: the first of each class, as many as the page shows."""
    from vitreous.data.opening import open_data
    from vitreous.errors import VitreousError
    from vitreous.inspection.inspecting import SHOWN, Picture
    from vitreous.training.config import TrainConfig
    from vitreous.training.folder import RunFolder

    told = RunFolder.opened(run).description()
    try:
        data = open_data(told["data"], TrainConfig.from_flat(told["config"]).reading)
    except (VitreousError, KeyError) as error:
        raise VitreousError(f"the images of {run} cannot be opened ({error}); name others behind the model") from error
    source = data.test or data.val or data.train
    labels, chosen = source.labels, list(range(min(SHOWN, len(source))))
    if labels.ndim == 1:
        firsts = [int((labels == k).nonzero()[0, 0]) for k in labels.unique().tolist()]
        chosen = sorted(firsts)[:SHOWN]
    return [Picture(Path(source.name(i)).name, source.image(i)) for i in chosen]
