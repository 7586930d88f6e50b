"""`vitreous.load`: from a file, a folder, the hub or a name to a model, with an account of what was found."""

import gc
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitreous.errors import VitreousError, VitreousWarning
from vitreous.models.checks import Size, pair
from vitreous.models.resnet import BiT
from vitreous.models.vit import VisionTransformer, ViTConfig
from vitreous.models.zoo import build
from vitreous.preprocessing import Preprocessing, preset
from vitreous.weights import detect, hub, native, shipped
from vitreous.weights.checkpoint import Checkpoint, Config, Found, Hints, meta_model, parameter_shapes
from vitreous.weights.detect import looks_like
from vitreous.weights.files import SUFFIXES, Sharded, Tensors, open_file, read_json, unwrapped
from vitreous.weights.places import State
from vitreous.weights.report import LoadReport
from vitreous.weights.resize import resize

MAIN = (
    "model.safetensors.index.json",
    "model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
    "best.safetensors",  # of a training run, which keeps its last weights beside them
)


def load(
    source: str | os.PathLike[str],
    *,
    num_classes: int | None = None,
    image_size: Size | None = None,
    heads: int | None = None,
    strict: bool = True,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = torch.float32,
    preprocessing: Preprocessing | str | None = None,
) -> VisionTransformer | BiT:
    """The model in a checkpoint of any dialect, ready to be called: `source` is a file, a folder, `hf://owner/name`
    or "vitreous-mini", which comes with the package (a file of that name is "./vitreous-mini", or a Path).

    `num_classes=K` gives it a new head of zeros in place of its own (and of the pre-training layer under it), 0 none.
    `image_size` lays it out for another size, its positions resampled for good. `heads` where the file cannot tell.
    With `strict=False`, tensors that are missing are drawn at random and unexpected ones are left out, with a warning.
    `dtype=None` keeps the file's. What was found is in `model.report`. Labels and preprocessing come with the model;
    where a file does not tell its preprocessing, name it: google, augreg, deit, torchvision, dino; or give your own.
    """
    with no_collection():
        checkpoint = read(
            source,
            num_classes=num_classes,
            image_size=image_size,
            heads=heads,
            strict=strict,
            device=device,
            dtype=dtype,
            preprocessing=preprocessing,
        )
        model = meta_model(checkpoint.config)
        model.load_state_dict(checkpoint.state, assign=True)
    model.preprocessing, model.labels = checkpoint.preprocessing, checkpoint.labels
    model.multi_label = checkpoint.multi_label
    model.report, model.extras = checkpoint.report, checkpoint.extras
    return model.eval()


def usable(device: torch.device | str) -> None:
    """Nothing is read for a device that is not there."""
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise VitreousError(f"device = {str(device)!r} cannot be used here: {reason}") from error


@contextmanager
def no_collection() -> Iterator[None]:
    """Building a model makes many objects and no garbage; to look for some among all of torch's takes longer."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def read(
    source: str | os.PathLike[str],
    *,
    num_classes: int | None = None,
    image_size: Size | None = None,
    heads: int | None = None,
    strict: bool = True,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    preprocessing: Preprocessing | str | None = None,
) -> Checkpoint:
    """What `load` makes a model of."""
    name = os.fsdecode(source)
    if num_classes is not None and (type(num_classes) is not int or num_classes < 0):
        raise VitreousError(f"num_classes = {num_classes!r}: expected 0 or more")
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise VitreousError(f"dtype = {dtype!r}: expected a floating-point type of torch, or None for the file's")
    if not isinstance(preprocessing, Preprocessing | str | None):
        raise VitreousError(f"preprocessing = {preprocessing!r}: expected a Preprocessing or the name of one")
    usable(device)
    try:
        file = find(source)
        hints = Hints(
            file.settings, file.processor, heads, image_size=image_size, features_only=num_classes is not None
        )
        found = detect.read(file.tensors, hints)
        if heads is not None and not isinstance(found.config, ViTConfig):
            raise VitreousError(f"heads = {heads}: this is a BiT, which has none")
        if num_classes is not None:
            change_head(found, num_classes)
        report = account(name, file.tensors, found, strict)
        state = gather(file.tensors, found, report, torch.device(device), dtype)
        config = found.config
        if image_size is not None and pair(image_size, "image_size") != pair(config.image_size):
            config, state = resize(config, state, image_size)
        shown = settle_preprocessing(found, config, preprocessing, resized=image_size is not None, report=report)
        extras = {ours: place.read(file.tensors) for ours, place in found.extras.items()}
    except VitreousError as error:
        raise VitreousError(f"{name}: {error}") from error
    report = replace(report, config=config)
    return Checkpoint(config, state, shown, found.labels, report, extras, found.multi_label)


def settle_preprocessing(
    found: Found, config: Config, given: Preprocessing | str | None, *, resized: bool, report: LoadReport
) -> Preprocessing:
    """What was given, or what the file tells, for the size and channels of the model."""
    shown = found.preprocessing.at(pair(config.image_size)) if resized else found.preprocessing
    if given is not None:  # then what was made of the file is of no interest
        shown = preset(given, pair(config.image_size), config.channels) if isinstance(given, str) else given
        report.drop_notes("preprocessing:")
    if len(shown.mean) != config.channels:
        shown = shown.for_channels(config.channels)
        report.add_note(f"mean and std were not for {config.channels} channels: averaged")
    return shown


# ---------------------------------------------------------------- finding the files


@dataclass
class Files:
    """The tensors, and the JSON files that lie beside them."""

    tensors: Tensors
    settings: dict[str, Any]
    processor: dict[str, Any]


def find(source: str | os.PathLike[str]) -> Files:
    path = _place(source)
    if not os.path.lexists(path):
        near = get_close_matches(str(path).lower(), shipped.NAMES, n=1, cutoff=0.7)
        hint = f"; did you mean {near[0]}, which comes with the package?" if near else ""
        raise VitreousError(f"no such file or folder{hint}")
    try:
        weights = _main_file(path) if path.is_dir() else path
    except OSError as error:
        raise VitreousError(f"cannot be read ({error.strerror or error})") from error
    opened = Sharded(weights) if weights.name.endswith(".index.json") else open_file(weights)
    tensors = unwrapped(opened)
    if source in shipped.NAMES and os.path.lexists(source):
        tensors.notes.append(f"this is the {source} that comes with the package; what lies here is ./{source}")
    beside = [weights.parent / name for name in ("config.json", "preprocessor_config.json")]
    if "vitreous" in tensors.metadata or (not path.is_dir() and weights.name not in MAIN):
        return Files(tensors, {}, {})  # a file by itself: what lies near it may belong to another
    settings, processor = (read_json(file) if file.is_file() else {} for file in beside)
    return Files(tensors, settings, processor)


def _place(source: str | os.PathLike[str]) -> Path:
    if source in shipped.NAMES:  # a name, whatever lies in the current folder; a Path is never one
        return shipped.path_of(str(source))
    text = os.fsdecode(source)
    return hub.fetch(text) if text.startswith(hub.SCHEME) else Path(text)


def _main_file(folder: Path) -> Path:
    for name in MAIN:
        if (folder / name).is_file():
            return folder / name
    candidates = sorted(file for file in folder.iterdir() if file.suffix in SUFFIXES and file.is_file())
    candidates = [file for file in candidates if not file.name.startswith(".")]
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise VitreousError(f"a folder of several checkpoints; name one: {', '.join(file.name for file in candidates)}")
    raise VitreousError(f"a folder without weights: no file in it ends in {', '.join(SUFFIXES)}")


# ---------------------------------------------------------------- accounting for every tensor


def change_head(found: Found, num_classes: int) -> None:
    """A new head, or none; the layer of pre-training under it goes too, as in the official fine-tuning."""
    config: Any = found.config
    drop = ("head.", "pre_logits.") if num_classes else ("head.",)
    changes: dict[str, Any] = {"num_classes": num_classes}
    if num_classes and isinstance(config, ViTConfig):
        changes["representation_size"] = None
    if config.num_classes:
        found.notes.append(
            f"the file's own head of {config.num_classes} classes is dropped by num_classes={num_classes}"
        )
    for ours in [ours for ours in found.places if ours.startswith(drop)]:
        rule = f"dropped by num_classes={num_classes}"
        found.ignored |= dict.fromkeys(found.places.pop(ours).names, rule)
    found.config, found.labels, found.multi_label = replace(config, **changes), None, False


def account(source: str, tensors: Tensors, found: Found, strict: bool) -> LoadReport:
    """Every tensor of the file is used, ignored by a rule, or unexpected; every one of the model's there or missing."""
    missing = [ours for ours, place in found.places.items() if not all(name in tensors for name in place.names)]
    used = {name for place in found.places.values() for name in place.names if name in tensors}
    ignored = {name: rule for name, rule in found.ignored.items() if name in tensors and name not in used}
    unexpected = [name for name in tensors if name not in used and name not in ignored]
    origin = {"source": Path(source).name, "dialect": found.dialect}
    report = LoadReport(
        source=source,
        container=tensors.container,
        dialect=found.dialect,
        config=found.config,
        used=tuple(name for name in tensors if name in used),
        ignored=ignored | tensors.ignored,
        unexpected=tuple(unexpected),
        missing=tuple(missing),
        notes=(*tensors.notes, *found.notes),
        origin=found.origin if found.dialect == native.NAME else origin,
    )
    if not (missing or unexpected):
        return report
    other = looks_like(unexpected)
    hint = f" (by its names it looks like a {other})" if other else ""
    lines = [f"  - {' + '.join(found.places[ours].names)}" for ours in missing]
    lines += [f"  + {name} {tensors.shape(name)}" for name in unexpected]
    if len(lines) > 24:
        lines = [*lines[:24], f"  and {len(lines) - 24} more"]
    faults = [f"it lacks {len(missing)} tensors (-)"] if missing else []
    faults += [f"{len(unexpected)} of its tensors have no place (+)"] if unexpected else []
    text = f"read as {found.dialect}, {' and '.join(faults)}"
    if strict:
        raise VitreousError(f"{text}{hint}; load(..., strict=False) goes on without them\n" + "\n".join(lines))
    warnings.warn(f"{source}: {text}\n" + "\n".join(lines), VitreousWarning, stacklevel=4)
    return report


def gather(
    tensors: Tensors, found: Found, report: LoadReport, device: torch.device, dtype: torch.dtype | None
) -> State:
    """The model's own tensors, each checked, converted and on its device, and what was copied let go of."""
    expected = parameter_shapes(found.config)
    drawn = _draw(found.config, report.missing) if report.missing else {}
    state: State = {}
    wrong = []
    for ours, shape in expected.items():
        if ours in drawn:
            tensor = drawn[ours]
        elif ours not in found.places:  # a new head starts at zero
            tensor = torch.zeros(shape)
        else:
            place = found.places[ours]
            tensor = place.read(tensors)
            if tuple(tensor.shape) != shape:
                wrong += [f"  - {ours} {shape}", f"  + {' + '.join(place.names)} {tuple(tensor.shape)}"]
                continue
            check_finite(tensor, " + ".join(place.names))
            if ours == "head.weight" and not tensor.any():
                headless = "the head is all zeros: its logits mean nothing until it is trained"
                report.add_note(headless)
                warnings.warn(f"{report.source}: {headless}", VitreousWarning, stacklevel=4)
        state[ours] = tensor.to(device, dtype)
        if ours in found.places and ours not in drawn and found.places[ours].layer is None:
            for name in found.places[ours].names:
                if tensors[name].data_ptr() != state[ours].data_ptr():
                    tensors.release(name)
    if wrong:
        raise VitreousError("tensors do not fit the model (- wanted, + found):\n" + "\n".join(wrong[:24]))
    return state


def _draw(config: Config, names: tuple[str, ...]) -> State:
    model = build(config)
    return {name: model.get_parameter(name).detach() for name in names}


def check_finite(tensor: Tensor, name: str) -> None:
    """Weights are numbers. By numpy, on one thread: as fast as memory is, and other programs do not slow it down."""
    if tensor.numel() == 0 or _looks_finite(tensor):
        return
    bad = int((~torch.isfinite(tensor.double())).sum())
    if bad:
        raise VitreousError(f"{name} holds {bad:,} of {tensor.numel():,} values that are not numbers (NaN or infinite)")


def _looks_finite(tensor: Tensor) -> bool:
    if tensor.dtype in (torch.float16, torch.bfloat16):  # by their bits: the exponent of what is no number is all ones
        exponent = 0x7C00 if tensor.dtype == torch.float16 else 0x7F80
        return bool((tensor.view(torch.int16).numpy() & 0x7FFF).max() < exponent)
    if tensor.dtype.itemsize == 1:
        return False
    with np.errstate(all="ignore"):  # a sum is not finite if one of its terms is not
        return bool(np.isfinite(tensor.numpy().sum()))
