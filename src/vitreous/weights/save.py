"""`vitreous.save` and `vitreous.convert`: write a model in any dialect."""

import os
import warnings
from pathlib import Path
from typing import Any

import torch

from vitreous.errors import VitreousError, VitreousWarning, refuse_url, summarize_names
from vitreous.models.calibration import Calibration
from vitreous.models.custom import CustomModel
from vitreous.models.resnet import BiT
from vitreous.models.vit import VisionTransformer, ViTConfig
from vitreous.preprocessing import Preprocessing
from vitreous.utils.atomic import atomic_file, atomic_folder, check_output
from vitreous.utils.json_files import dump_json
from vitreous.utils.sizes import Size, pair
from vitreous.weights.checkpoint import Checkpoint
from vitreous.weights.containers import SUFFIXES, write_tensors
from vitreous.weights.custom import save_custom
from vitreous.weights.dialect import Hints, WritePlan
from vitreous.weights.dialect_names import DialectName
from vitreous.weights.dialects import DIALECTS
from vitreous.weights.load import check_loadable, read_checkpoint
from vitreous.weights.native import native_metadata
from vitreous.weights.snapshot import snapshot
from vitreous.weights.tensor_map import State
from vitreous.weights.tensors import InMemoryTensors

FOLDER_FILES = ("model.safetensors", "config.json", "preprocessor_config.json")  # files that a written folder may have


def save(
    model: VisionTransformer | BiT | CustomModel,
    path: str | os.PathLike[str],
    *,
    to: DialectName = "native",
    force: bool = False,
) -> tuple[str, ...]:
    """Write a model with its config, preprocessing and labels, so that `vitreous.load` returns the same model.

    - `model`: a `VisionTransformer` or `BiT`. A new linear head is saved, with its number of classes. A model of your
      own that `vitreous.load` returned is saved as native
    - `path`: of the .safetensors file. An existing file is replaced when the new file is complete
    - `to`: another dialect, as in `vitreous.convert`
    - `force`: write a model whose computation was changed, but not its tensors, as its config describes it, with a
      `VitreousWarning`

    Returns notes on what the file cannot contain. If the file would not compute the same outputs (hooks, adapters,
    replaced modules, NaN in the weights), nothing is written, and a `VitreousError` names the reason.

    >>> model = vitreous.load("vitreous-mini", image_size=128)
    >>> notes = vitreous.save(model, "mini-128.safetensors")
    >>> vitreous.load("mini-128.safetensors").config.image_size
    (128, 128)
    """
    _check_target(Path(path), to)
    if isinstance(model, CustomModel):
        if to != "native":
            raise VitreousError(f"{to} cannot represent {model.config.code}, a model of your own: write it as native")
        save_custom(model, Path(path))
        return ()
    return _write_checkpoint(snapshot(model, force), path, to, force)


def convert(  # noqa: PLR0913 (keyword arguments, the same as the command's flags)
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    to: DialectName,
    *,
    force: bool = False,
    overwrite: bool = False,
    num_classes: int | None = None,
    image_size: Size | None = None,
    heads: int | None = None,
    preprocessing: Preprocessing | str | None = None,
) -> tuple[str, ...]:
    """Write a checkpoint in another dialect, with bit-identical weights, so that the library of the dialect loads it.

    - `source`: as in `vitreous.load`
    - `target`: the file to write; a folder for dialects that consist of several files
    - `to`: the dialect: native, google, big-vision, bit, timm, huggingface, torchvision, dino or dinov2
    - `force`: write a model that the dialect cannot represent completely, if vitreous can load the rest
    - `overwrite`: replace an existing target, when the new one is complete
    - `num_classes`, `image_size`, `heads`, `preprocessing`: as in `vitreous.load`

    Returns notes about the conversion. A model that the dialect cannot represent, and an existing target, raise a
    `VitreousError`.

    >>> notes = vitreous.convert("vitreous-mini", "mini.npz", "big-vision")
    >>> notes[0]
    'the labels are not stored: this format cannot store them'
    >>> print(vitreous.load("mini.npz", preprocessing="google").report)
    mini.npz: big-vision (npz), ... tensors used...
    """
    _check_target(Path(target), to)
    check_output(Path(target), overwrite, None if DIALECTS[to].suffixes else lambda folder: FOLDER_FILES)
    checkpoint = read_checkpoint(
        source, num_classes=num_classes, image_size=image_size, heads=heads, preprocessing=preprocessing
    )
    return _write_checkpoint(checkpoint, target, to, force)


def save_calibrated(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    calibration: Calibration,
    *,
    heads: int | None = None,
    preprocessing: Preprocessing | str | None = None,
    overwrite: bool = False,
) -> tuple[str, ...]:
    """Write the checkpoint at `source` as a native file with this calibration. The weights are bit-identical."""
    check_output(Path(target), overwrite)
    checkpoint = read_checkpoint(source, heads=heads, preprocessing=preprocessing)
    calibration.check_classes(checkpoint.config.num_classes)
    checkpoint.calibration = calibration
    return _write_checkpoint(checkpoint, target, "native", force=False)


def _write_checkpoint(
    checkpoint: Checkpoint, target: str | os.PathLike[str], to: DialectName, force: bool
) -> tuple[str, ...]:
    path = Path(target)
    _check_target(path, to)
    plan = _plan(checkpoint, to)
    state, unnamed = _dialect_state(checkpoint, plan)
    incompatibilities = plan.incompatibilities + unnamed
    metadata = native_metadata(checkpoint) if to == "native" else {"format": "pt"}
    if incompatibilities and not force:
        raise VitreousError(
            f"{to} cannot represent this model; to write it anyway: force=True, --force\n"
            + "\n".join(f"  {reason}" for reason in incompatibilities)
        )
    _check_result(state, metadata, plan, checkpoint, to, incompatibilities)
    if incompatibilities:
        warnings.warn(
            f"{path}: {to} cannot represent all of this model; the written model computes other outputs:\n"
            + "\n".join(f"  {reason}" for reason in incompatibilities),
            VitreousWarning,
            stacklevel=3,
        )
    if DIALECTS[to].suffixes:
        write_tensors(path, state, metadata)
    else:
        _write_folder(path, state, plan.json_files)
    return (*checkpoint.report.notes, *plan.notes, *_losses(checkpoint, plan, to))


def _check_result(
    state: State,
    metadata: dict[str, str],
    plan: WritePlan,
    checkpoint: Checkpoint,
    to: DialectName,
    incompatibilities: list[str],
) -> None:
    """Raise an error if `load` would refuse the files that are about to be written."""
    tensors = InMemoryTensors({name: torch.empty_like(t, device="meta") for name, t in state.items()}, "memory")
    tensors.metadata = metadata
    config_json, preprocessor_json = (
        plan.json_files.get(name, {}) for name in ("config.json", "preprocessor_config.json")
    )
    config = checkpoint.config
    heads = config.heads if isinstance(config, ViTConfig) else None
    try:
        check_loadable(tensors, Hints(config_json, preprocessor_json, heads, image_size=pair(config.image_size)))
    except VitreousError as error:
        reasons = "\n".join(f"  {reason}" for reason in (*incompatibilities, str(error)))
        text = f"{to} cannot represent this model, and the rest of it could not be loaded:\n{reasons}"
        raise VitreousError(text) from error


def _plan(checkpoint: Checkpoint, to: DialectName) -> WritePlan:
    config, dialect = checkpoint.config, DIALECTS[to]
    if not isinstance(config, dialect.config_classes):
        kind, others = ("a ViT", "google or big-vision") if to == "bit" else ("a BiT", "bit or native")
        raise VitreousError(f"{to} cannot represent {kind}: write it as {others}")
    return dialect.write(checkpoint, config)


def _dialect_state(checkpoint: Checkpoint, plan: WritePlan) -> tuple[State, list[str]]:
    """Return the state dict by the dialect's names, and a note on parameters that have no name in the dialect."""
    tensors = checkpoint.state | checkpoint.extras | plan.state
    state = dict(plan.added_tensors)
    for parameter, stored in plan.tensor_map.items():
        if parameter in tensors:
            state |= stored.write(tensors[parameter])
    unnamed = [parameter for parameter in checkpoint.state if parameter not in plan.tensor_map]
    return state, [f"{len(unnamed)} tensors have no name in it: {summarize_names(unnamed)}"] if unnamed else []


def _losses(checkpoint: Checkpoint, plan: WritePlan, to: str) -> list[str]:
    """Return notes on metadata that the dialect does not store."""
    lost = []
    if checkpoint.labels is not None and not plan.stores_labels:
        lost.append("the labels are not stored: this format cannot store them")
    if checkpoint.multi_label and not plan.stores_multi_label:
        lost.append("multi_label is not stored: readers will expect one class per image")
    if checkpoint.calibration is not None and not plan.stores_calibration:
        lost.append("the calibration (temperature, thresholds) is not stored: readers get uncalibrated probabilities")
    assumed = plan.assumed_preprocessing
    if assumed is not None and assumed != checkpoint.preprocessing:
        lost.append(f"the preprocessing is not stored: readers of {to} will assume {assumed}")
    return lost


def _check_target(path: Path, to: str) -> None:
    """Check the dialect and the name of the target, before anything is read."""
    if to not in DIALECTS:
        raise VitreousError(f"no format is called {to!r}: expected one of {', '.join(DIALECTS)}")
    refuse_url(path, "give the name of a file or folder to write")
    suffixes = DIALECTS[to].suffixes
    if suffixes and path.suffix not in suffixes:
        raise VitreousError(f"{path}: {to} is written as a file that ends in {' or '.join(suffixes)}")
    try:
        is_file_name = path.suffix in SUFFIXES or (path.exists() and not path.is_dir())
        parent = path.absolute().parent
        parent_missing = not parent.is_dir()
    except (OSError, ValueError) as error:
        raise VitreousError(f"{str(path)[:80]!r} cannot be written ({getattr(error, 'strerror', error)})") from error
    if parent_missing:
        raise VitreousError(f"{path}: there is no folder {parent}")
    if not suffixes and is_file_name:
        raise VitreousError(f"{path}: {to} is written as a folder (weights and config.json): give the name of one")


def _write_folder(folder: Path, state: State, json_files: dict[str, dict[str, Any]]) -> None:
    """Write weights and JSON files to a new folder, which then replaces an existing one."""
    with atomic_folder(folder, True, lambda folder: FOLDER_FILES) as temporary_folder:
        for name, content in json_files.items():
            with atomic_file(temporary_folder / name) as temporary:
                dump_json(temporary, content)
        write_tensors(temporary_folder / "model.safetensors", state)
