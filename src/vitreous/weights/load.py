"""`vitreous.load`: load a model from a file, a folder, the hub or a name, with a report on every tensor."""

import gc
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import overload

import torch

from vitreous.errors import VitreousError, VitreousWarning, brief, find_url
from vitreous.models.base import check_num_classes, with_classes
from vitreous.models.custom import CustomModel
from vitreous.models.resnet import BiT
from vitreous.models.vit import VisionTransformer, ViTConfig
from vitreous.preprocessing import Preprocessing, preset
from vitreous.utils.sizes import Size, pair
from vitreous.weights.checkpoint import Checkpoint, Config, meta_model, parameter_shapes
from vitreous.weights.checkpoint_files import open_checkpoint
from vitreous.weights.custom import load_custom
from vitreous.weights.detect import detect_and_read, name_unsupported_model
from vitreous.weights.dialect import Hints, ParsedCheckpoint
from vitreous.weights.known_weights import KnownWeights
from vitreous.weights.load_report import LoadReport
from vitreous.weights.resize import resize
from vitreous.weights.state_dict import read_state_dict
from vitreous.weights.tensors import Tensors

MAX_LISTED = 24  # tensors that an error or warning lists
MAX_MESSAGE = 4000  # characters of an error, which may quote names in the file


@overload
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
    model: None = None,
) -> VisionTransformer | BiT: ...
@overload
def load(source: str | os.PathLike[str], *, model: object, device: torch.device | str = "cpu") -> CustomModel: ...


def load(  # noqa: PLR0913 (keyword arguments)
    source: str | os.PathLike[str],
    *,
    num_classes: int | None = None,
    image_size: Size | None = None,
    heads: int | None = None,
    strict: bool = True,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = torch.float32,
    preprocessing: Preprocessing | str | None = None,
    model: object = None,
) -> VisionTransformer | BiT | CustomModel:
    """Load the model of a checkpoint in any dialect: Google, timm, Hugging Face, torchvision, DINO, our own.

    - `source`: a file, a folder, `hf://owner/name`, a name of `vitreous models --weights` such as "deit-tiny", which is
      downloaded if there is no such file, or "vitreous-mini", which comes with the package (for a file of that name:
      "./vitreous-mini", or a `Path`)
    - `num_classes`: replace the head, and the pre-logits layer before it, by a new head of zeros; 0: no head
    - `image_size`: resample the position embeddings to this size: one number or (height, width)
    - `heads`: number of attention heads, for files that do not contain it
    - `strict`: False: initialise missing tensors at random and ignore unexpected ones, with a warning
    - `device`: of the weights
    - `dtype`: of the weights; None: that of the file
    - `preprocessing`: a `Preprocessing`, or google, augreg, deit, torchvision or dino, for files that do not contain it
    - `model`: for weights of a model of your own, from `vitreous.train(model=...)`: its class, the function that
      builds it, its import path (`file.py:name`), or a module, which is copied; only `device` can be given with it

    Returns the model in eval mode, with `report` (a `LoadReport`), `labels`, `preprocessing` and `calibration`. A file
    that is damaged or not fully understood raises a `VitreousError`.

    >>> from sklearn.datasets import load_sample_image
    >>> model = vitreous.load("vitreous-mini")
    >>> logits = model(model.preprocessing([load_sample_image("china.jpg")]))
    >>> model.labels[int(logits.argmax())]
    'church'
    """
    if model is not None:
        _refuse_changes(num_classes=num_classes, image_size=image_size, heads=heads, preprocessing=preprocessing)
        if not strict or dtype not in (torch.float32, None):
            raise VitreousError("strict and dtype: cannot be given for a model of your own")
        return load_custom(source, model, device)
    with _garbage_collection_disabled():
        checkpoint = read_checkpoint(
            source,
            num_classes=num_classes,
            image_size=image_size,
            heads=heads,
            strict=strict,
            device=device,
            dtype=dtype,
            preprocessing=preprocessing,
        )
        loaded = meta_model(checkpoint.config)
        loaded.load_state_dict(checkpoint.state, assign=True)
    loaded.preprocessing, loaded.labels = checkpoint.preprocessing, checkpoint.labels
    loaded.multi_label, loaded.calibration = checkpoint.multi_label, checkpoint.calibration
    loaded.report, loaded.extras = checkpoint.report, checkpoint.extras
    return loaded.eval()


def _refuse_changes(**changes: object) -> None:
    """Raise an error for arguments that a model of the user's own cannot take."""
    if given := [name for name, value in changes.items() if value is not None]:
        raise VitreousError(f"{given[0]}: cannot be changed for a model of your own; change its code")


@contextmanager
def _garbage_collection_disabled() -> Iterator[None]:
    """Building a model creates many objects and no garbage; collecting among all objects of torch is slow."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def read_checkpoint(
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
    """Read a checkpoint without building the model. The arguments are those of `load`."""
    name = find_url(source) or os.fsdecode(source)
    if num_classes is not None:
        check_num_classes(num_classes)
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise VitreousError(f"dtype = {brief(dtype)}: expected a floating-point type of torch, or None for the file's")
    if not isinstance(preprocessing, Preprocessing | str | None):
        raise VitreousError(f"preprocessing = {brief(preprocessing)}: expected a Preprocessing or the name of one")
    _check_device(device)
    try:
        files = open_checkpoint(source)
        hints = Hints(
            files.config_json,
            files.preprocessor_json,
            heads,
            image_size=image_size,
            features_only=num_classes is not None,
        )
        parsed = detect_and_read(files.tensors, hints)
        if files.known is not None:
            _compare_preprocessing(parsed, files.known)
        if heads is not None and not isinstance(parsed.config, ViTConfig):
            raise VitreousError(f"heads = {heads}: this is a BiT, which has none")
        if num_classes is not None:
            _replace_head(parsed, num_classes)
        report = _account_for_tensors(name, files.tensors, parsed, strict)
        report.origin = {**report.origin, **files.provenance}
        state = read_state_dict(files.tensors, parsed, report, torch.device(device), dtype)
        config = parsed.config
        if image_size is not None and pair(image_size, "image_size") != pair(config.image_size):
            config, state = resize(config, state, image_size)
        final_preprocessing = _choose_preprocessing(
            parsed, config, preprocessing, resized=image_size is not None, report=report
        )
        if parsed.calibration is not None and final_preprocessing != parsed.preprocessing:
            parsed.calibration = None
            report.add_note("the file's calibration is dropped: it holds for the preprocessing of the file")
        extras = {parameter: stored.read(files.tensors) for parameter, stored in parsed.extras.items()}
    except VitreousError as error:
        text = str(error)
        text = text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]}..."
        raise VitreousError(f"{name}: {text}") from error
    report = replace(report, config=config)
    labels, multi_label = parsed.labels, parsed.multi_label
    return Checkpoint(config, state, final_preprocessing, labels, report, extras, multi_label, parsed.calibration)


def _check_device(device: torch.device | str) -> None:
    """Raise an error if the device cannot be used, before anything is read."""
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise VitreousError(f"device = {str(device)!r} cannot be used here: {reason}") from error


def _compare_preprocessing(parsed: ParsedCheckpoint, known: KnownWeights) -> None:
    """Use the preprocessing of the table if the files do not state one. A difference is reported: the files win."""
    if "preprocessing" in parsed.remarks.guesses:
        del parsed.remarks.guesses["preprocessing"]
        parsed.preprocessing = known.preprocessing
        parsed.remarks.notes.append(f"preprocessing: not in the files; that of {known.name} is used")
    elif parsed.preprocessing != known.preprocessing:
        parsed.remarks.notes.append(
            f"preprocessing: the files say {parsed.preprocessing}; this is used, although {known.name} is listed with"
            f" {known.preprocessing}"
        )


def _choose_preprocessing(
    parsed: ParsedCheckpoint,
    config: Config,
    requested: Preprocessing | str | None,
    *,
    resized: bool,
    report: LoadReport,
) -> Preprocessing:
    """Return the preprocessing that was requested, or that of the file, for the model's size and channels."""
    chosen = parsed.preprocessing.at(pair(config.image_size)) if resized else parsed.preprocessing
    if requested is not None:
        size, channels = pair(config.image_size), config.channels
        chosen = preset(requested, size, channels) if isinstance(requested, str) else requested
        report.drop("preprocessing")  # notes about the file's preprocessing no longer apply
    if len(chosen.mean) != config.channels:
        chosen = chosen.for_channels(config.channels)
        report.add_note(f"mean and std were not for {config.channels} channels: averaged")
    return chosen


def _replace_head(parsed: ParsedCheckpoint, num_classes: int) -> None:
    """Drop the head of the file. A new head also drops the pre-logits layer, as the official fine-tuning does."""
    dropped = ("head.", "pre_logits.") if num_classes else ("head.",)
    if parsed.config.num_classes:
        parsed.remarks.notes.append(
            f"the file's head of {parsed.config.num_classes} classes is dropped by num_classes={num_classes}"
        )
    for parameter in [parameter for parameter in parsed.tensor_map if parameter.startswith(dropped)]:
        reason = f"dropped by num_classes={num_classes}"
        parsed.ignored |= dict.fromkeys(parsed.tensor_map.pop(parameter).names, reason)
    parsed.config, parsed.labels, parsed.multi_label = with_classes(parsed.config, num_classes), None, False
    parsed.calibration = None


# ---------------------------------------------------------------- reporting every tensor


def _account_for_tensors(source: str, tensors: Tensors, parsed: ParsedCheckpoint, strict: bool) -> LoadReport:
    """Classify each tensor of the file as used, ignored or unexpected, and each parameter as present or missing.
    Unexpected and missing tensors are an error, or a warning if not `strict`."""
    mapped = parsed.tensor_map
    missing = [parameter for parameter, stored in mapped.items() if not all(name in tensors for name in stored.names)]
    used = {name for stored in mapped.values() for name in stored.names if name in tensors}
    ignored = {name: reason for name, reason in parsed.ignored.items() if name in tensors and name not in used}
    unexpected = [name for name in tensors if name not in used and name not in ignored]
    origin = {"source": Path(source).name, "dialect": parsed.dialect}
    report = LoadReport(
        source=source,
        container=tensors.container,
        dialect=parsed.dialect,
        config=parsed.config,
        used=tuple(name for name in tensors if name in used),
        ignored=ignored | tensors.ignored,
        unexpected=tuple(unexpected),
        missing=tuple(missing),
        facts=(*tensors.notes, *parsed.remarks.notes),
        guesses=parsed.remarks.guesses,
        origin=parsed.origin if parsed.dialect == "native" else origin,
    )
    if missing or unexpected:
        _complain_about_tensors(report, tensors, parsed, strict)
    return report


def _complain_about_tensors(report: LoadReport, tensors: Tensors, parsed: ParsedCheckpoint, strict: bool) -> None:
    """Raise an error, or warn if not `strict`, with a list of missing and unexpected tensors."""
    other_model = name_unsupported_model(report.unexpected)
    hint = f" (by its tensor names, it looks like a {other_model})" if other_model else ""
    lines = [f"  - {' + '.join(parsed.tensor_map[parameter].names)}" for parameter in report.missing]
    lines += [f"  + {name} {tensors.shape(name)}" for name in report.unexpected]
    if len(lines) > MAX_LISTED:
        lines = [*lines[:MAX_LISTED], f"  and {len(lines) - MAX_LISTED} more"]
    faults = [f"it lacks {len(report.missing)} tensors (-)"] if report.missing else []
    faults += [f"{len(report.unexpected)} of its tensors are unexpected (+)"] if report.unexpected else []
    text = f"read as {report.dialect}, {' and '.join(faults)}"
    if strict:
        raise VitreousError(f"{text}{hint}; load(..., strict=False) continues without them\n" + "\n".join(lines))
    warnings.warn(f"{report.source}: {text}\n" + "\n".join(lines), VitreousWarning, stacklevel=5)


def check_loadable(tensors: Tensors, hints: Hints) -> None:
    """Raise an error unless `load` would accept a file with these tensors. Their values do not matter."""
    parsed = detect_and_read(tensors, hints)
    _account_for_tensors("", tensors, parsed, strict=True)
    for parameter, shape in parameter_shapes(parsed.config).items():
        stored = parsed.tensor_map[parameter]
        if (stored_shape := tuple(stored.read(tensors).shape)) != shape:
            raise VitreousError(f"{' + '.join(stored.names)} is {stored_shape}, not {shape}")
