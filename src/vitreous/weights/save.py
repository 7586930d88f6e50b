"""`vitreous.save` and `vitreous.convert`: a model to a file of any dialect."""

import os
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitreous.errors import VitreousError, VitreousWarning
from vitreous.models.checks import Size, pair
from vitreous.models.resnet import BiT, BiTConfig
from vitreous.models.vit import VisionTransformer, ViTConfig
from vitreous.preprocessing import Preprocessing, plain
from vitreous.weights import dino, files, google, huggingface, load, native, timm, torchvision
from vitreous.weights.checkpoint import Checkpoint, Form
from vitreous.weights.names import Dialect
from vitreous.weights.places import State
from vitreous.weights.report import LoadReport, listed


@dataclass(frozen=True)
class Writer:
    write: Callable[..., Form]  # from a checkpoint and its config
    endings: tuple[str, ...] = ()  # of its files; none: it is a folder
    holds: type[ViTConfig] | type[BiTConfig] = ViTConfig


PICKLED = (".pth", ".pt", ".safetensors")
WRITERS: dict[Dialect, Writer] = {
    "google": Writer(google.write_vit, (".npz",)),
    "big-vision": Writer(google.write_big_vision, (".npz",)),
    "bit": Writer(google.write_bit, (".npz",), BiTConfig),
    "timm": Writer(timm.write),
    "huggingface": Writer(huggingface.write),
    "torchvision": Writer(torchvision.write, PICKLED),
    "dino": Writer(dino.write, PICKLED),
    "dinov2": Writer(dino.write2, PICKLED),
    "native": Writer(native.write, (".safetensors",)),
}


def save(
    model: VisionTransformer | BiT, path: str | os.PathLike[str], *, to: Dialect = "native", force: bool = False
) -> tuple[str, ...]:
    """Write a model with everything that travels with it. In another dialect, as `convert` does."""
    config = model.config
    preprocessing = model.preprocessing or plain(pair(config.image_size), config.channels)
    native.check_labels(model.labels, config)
    report = model.report or LoadReport("a model in memory", "memory", "native", config)
    state: State = {name: p.detach() for name, p in model.named_parameters()}
    extras = model.extras or {}
    checkpoint = Checkpoint(config, state, preprocessing, model.labels, report, extras, model.multi_label)
    return write(checkpoint, path, to, force)


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    to: Dialect,
    *,
    force: bool = False,
    num_classes: int | None = None,
    image_size: Size | None = None,
    heads: int | None = None,
    preprocessing: Preprocessing | str | None = None,
) -> tuple[str, ...]:
    """Write a checkpoint in another dialect, bit for bit, as its own program loads it.

    What that dialect cannot express is an error that names it; with `force` it is written all the same. Returns what
    one should know of it.
    """
    check_target(Path(target), to)
    checkpoint = load.read(
        source, num_classes=num_classes, image_size=image_size, heads=heads, preprocessing=preprocessing
    )
    return write(checkpoint, target, to, force)


def write(checkpoint: Checkpoint, target: str | os.PathLike[str], to: Dialect, force: bool) -> tuple[str, ...]:
    path = Path(target)
    check_target(path, to)
    form = _form(checkpoint, to)
    state, gaps = _arrange(checkpoint, form)
    objections = form.objections + gaps
    if objections and not force:
        raise VitreousError(
            f"{to} cannot express this model; force writes it all the same (--force)\n"
            + "\n".join(f"  {objection}" for objection in objections)
        )
    if objections:
        warnings.warn(
            f"{path}: {to} cannot express all of this model; what is written computes something else, or is not read:\n"
            + "\n".join(f"  {objection}" for objection in objections),
            VitreousWarning,
            stacklevel=3,
        )
    metadata = native.metadata(checkpoint) if to == "native" else {"format": "pt"}
    if WRITERS[to].endings:
        files.write_tensors(path, state, metadata)
    else:
        _write_folder(path, state, form.documents)
    return (*checkpoint.report.notes, *form.notes, *_losses(checkpoint, form, to))


def _form(checkpoint: Checkpoint, to: Dialect) -> Form:
    config, writer = checkpoint.config, WRITERS[to]
    if to != "native" and not isinstance(config, writer.holds):
        kind, fits = ("a ViT", "google or big-vision") if to == "bit" else ("a BiT", "bit or native")
        raise VitreousError(f"{to} has no place for {kind}: write it as {fits}")
    return writer.write(checkpoint, config)


def _arrange(checkpoint: Checkpoint, form: Form) -> tuple[State, list[str]]:
    """The tensors by the dialect's names, and those it has no name for."""
    tensors = checkpoint.state | checkpoint.extras | form.state
    state = dict(form.fill)
    for ours, place in form.places.items():
        if ours in tensors:
            state |= place.write(tensors[ours])
    left = [ours for ours in checkpoint.state if ours not in form.places]
    return state, [f"{len(left)} tensors have no name in it: {listed(left)}"] if left else []


def _losses(checkpoint: Checkpoint, form: Form, to: str) -> list[str]:
    lost = []
    if checkpoint.labels is not None and not form.carries_labels:
        lost.append("the labels are not carried: the dialect has no place for them")
    if checkpoint.multi_label and to != native.NAME:
        lost.append("that an image may be of several classes is not carried: who reads it will expect one")
    if form.assumes is not None and form.assumes != checkpoint.preprocessing:
        lost.append(f"the preprocessing is not carried: who reads {to} will assume {form.assumes}")
    return lost


def check_target(path: Path, to: str) -> None:
    """What is wrong with a name is said before anything is read."""
    if to not in WRITERS:
        raise VitreousError(f"no dialect is called {to!r}: there is {', '.join(WRITERS)}")
    endings = WRITERS[to].endings
    if endings and path.suffix not in endings:
        raise VitreousError(f"{path}: {to} is written as a file that ends in {' or '.join(endings)}")
    try:
        no_folder = path.suffix in files.SUFFIXES or (path.exists() and not path.is_dir())
        parent = path.absolute().parent
        lost = not parent.is_dir()
    except (OSError, ValueError) as error:
        raise VitreousError(f"{str(path)[:80]!r} cannot be written ({getattr(error, 'strerror', error)})") from error
    if lost:
        raise VitreousError(f"{path}: there is no folder {parent}")
    if not endings and no_folder:
        raise VitreousError(f"{path}: {to} is written as a folder (weights and config.json): give the name of one")


def _write_folder(folder: Path, state: State, documents: dict[str, dict[str, Any]]) -> None:
    """All files in a folder that then takes its place, whole."""
    folder = Path(os.path.realpath(folder))
    mine = {"model.safetensors", "config.json", "preprocessor_config.json"}
    fresh, old = (folder.with_name(f".{folder.name}.{os.getpid()}.{end}") for end in ("tmp", "old"))
    try:
        there = {file.name for file in folder.iterdir()} if folder.exists() else set()
        if others := sorted(there - mine):
            raise VitreousError(f"{folder} holds other things ({listed(others, 4)}): give an empty or a new folder")
        fresh.mkdir()
        for name, document in documents.items():
            with files.replacing(fresh / name) as temporary:
                files.dump_json(temporary, document)
        files.write_tensors(fresh / "model.safetensors", state)
        if folder.exists():
            folder.rename(old)
        fresh.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        if old.exists() and not folder.exists():
            old.rename(folder)
        raise VitreousError(f"{folder} cannot be written ({error.strerror or error})") from error
    except VitreousError as error:
        kept = "; the folder that was there is untouched" if folder.exists() else ""
        raise VitreousError(str(error).replace(str(fresh), str(folder)) + kept) from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
