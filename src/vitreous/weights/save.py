"""`vitreous.save` and `vitreous.convert`: a model to a file of any dialect."""

import os
import re
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, get_args

from vitreous.errors import VitreousError, VitreousWarning
from vitreous.models.checks import Size, pair
from vitreous.models.resnet import BiT, BiTConfig
from vitreous.models.vit import VisionTransformer, ViTConfig
from vitreous.preprocessing import Preprocessing, plain
from vitreous.weights import dino, files, google, huggingface, load, native, timm, torchvision
from vitreous.weights.checkpoint import Checkpoint, Form
from vitreous.weights.places import State
from vitreous.weights.report import LoadReport, listed

Dialect = Literal["google", "big-vision", "bit", "timm", "huggingface", "torchvision", "dino", "dinov2", "native"]
WRITERS: dict[str, Any] = {
    "google": google.write_vit,
    "big-vision": google.write_big_vision,
    "bit": google.write_bit,
    "timm": timm.write,
    "huggingface": huggingface.write,
    "torchvision": torchvision.write,
    "dino": dino.write,
    "dinov2": dino.write2,
    "native": native.write,
}
FOLDERS = ("timm", "huggingface")
ENDINGS = {
    "google": (".npz",),
    "big-vision": (".npz",),
    "bit": (".npz",),
    "torchvision": (".pth", ".pt", ".safetensors"),
    "dino": (".pth", ".pt", ".safetensors"),
    "dinov2": (".pth", ".pt", ".safetensors"),
    "native": (".safetensors",),
}


def save(
    model: VisionTransformer | BiT, path: str | os.PathLike[str], *, to: Dialect = "native", force: bool = False
) -> tuple[str, ...]:
    """Write a model with everything that travels with it. In another dialect, as `convert` does."""
    config = model.config
    preprocessing = model.preprocessing or plain(pair(config.image_size), config.channels)
    report = model.report or LoadReport("a model in memory", "memory", "native", config)
    state: State = {name: p.detach() for name, p in model.named_parameters()}
    return write(Checkpoint(config, state, preprocessing, model.labels, report), path, to, force)


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


def write(checkpoint: Checkpoint, target: str | os.PathLike[str], to: str, force: bool) -> tuple[str, ...]:
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
            f"{path}: {to} cannot express all of this model; what is written computes something else:\n"
            + "\n".join(f"  {objection}" for objection in objections),
            VitreousWarning,
            stacklevel=3,
        )
    metadata = native.metadata(checkpoint) if to == "native" else {"format": "pt"}
    try:
        if to in FOLDERS:
            _write_folder(path, state, form.documents)
        else:
            files.write_tensors(path, state, metadata)
    except FileNotFoundError as error:
        raise VitreousError(f"{path} cannot be written ({error.strerror})") from error
    return tuple(form.notes + _losses(checkpoint, form, to))


def _form(checkpoint: Checkpoint, to: str) -> Form:
    config = checkpoint.config
    if to == "native":
        return native.write(checkpoint, config)
    wanted = BiTConfig if to == "bit" else ViTConfig
    if not isinstance(config, wanted):
        kind, fits = ("a ViT", "google or big-vision") if to == "bit" else ("a BiT", "bit or native")
        raise VitreousError(f"{to} has no place for {kind}: write it as {fits}")
    form: Form = WRITERS[to](checkpoint, config)
    return form


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
    if form.assumes is not None and form.assumes != checkpoint.preprocessing:
        lost.append(f"the preprocessing is not carried: who reads {to} will assume {form.assumes}")
    return lost


def check_target(path: Path, to: str) -> None:
    """What is wrong with a name is said before anything is read."""
    if to not in get_args(Dialect):
        raise VitreousError(f"no dialect is called {to!r}: there is {', '.join(get_args(Dialect))}")
    if to not in FOLDERS and path.suffix not in ENDINGS[to]:
        raise VitreousError(f"{path}: {to} is written as a file that ends in {' or '.join(ENDINGS[to])}")
    try:
        no_folder = path.suffix in files.SUFFIXES or (path.exists() and not path.is_dir())
        parent = path.absolute().parent
        if not parent.is_dir():
            raise VitreousError(f"{path}: there is no folder {parent}")
    except (OSError, ValueError) as error:
        if isinstance(error, VitreousError):
            raise
        raise VitreousError(f"{str(path)[:80]!r} cannot be written ({getattr(error, 'strerror', error)})") from error
    if to in FOLDERS and no_folder:
        raise VitreousError(f"{path}: {to} is written as a folder (weights and config.json): give the name of one")


def _write_folder(folder: Path, state: State, documents: dict[str, dict[str, Any]]) -> None:
    mine = {"model.safetensors", "config.json", "preprocessor_config.json"}
    made = not folder.exists()
    try:
        folder.mkdir(exist_ok=True)
        names_there = {file.name for file in folder.iterdir() if not re.fullmatch(r"\..*\.tmp", file.name)}
        if others := sorted(names_there - mine):
            raise VitreousError(f"{folder} holds other things ({listed(others, 4)}): give an empty or a new folder")
        with ExitStack() as stack:  # all are written before the first takes its place
            names = {name: stack.enter_context(files.replacing(folder / name)) for name in documents}
            weights = stack.enter_context(files.replacing(folder / "model.safetensors"))
            for name, document in documents.items():
                files.dump_json(names[name], document)
            files.write_safetensors(weights, state, {"format": "pt"})
    except BaseException as error:
        if made and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
        if isinstance(error, OSError):
            raise VitreousError(f"{folder} cannot be written ({error.strerror or error})") from error
        raise
