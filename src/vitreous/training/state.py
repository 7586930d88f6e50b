"""The saved state of a run: written atomically, the last two are kept, and a damaged one is skipped.

A state is a folder with `tensors.safetensors` (parameters, optimiser state, EMA, random state), `progress.json`, and
copies of the run's weight files at that step. `sums.json` is written last and contains a digest of every file: a state
without it is incomplete. No file is a pickle, so that reading a state runs no code.
"""

import json
import os
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

from torch import Tensor

from vitreous.errors import VitreousError, VitreousWarning
from vitreous.utils.atomic import atomic_file
from vitreous.utils.json_files import dump_json, read_json
from vitreous.utils.regular_files import open_regular, read_text
from vitreous.utils.system_calls import sync_to_disk
from vitreous.weights.containers import write_tensors
from vitreous.weights.safetensors_file import SafetensorsFile

KEPT = 2
TENSORS, PROGRESS, SUMS = "tensors.safetensors", "progress.json", "sums.json"
PICKLED = ".metadata"  # of torch.distributed.checkpoint, in states of version 0.1.0
Tree = dict[str, Any]  # tensors by name, nested

_verified: set[tuple[Path, int]] = set()  # states that this process wrote or checked, by path and inode


def save_state(
    folder: Path,
    step: int,
    tensors: Tree,
    progress: dict[str, Any],
    weights: Mapping[Path, str] | None = None,
    keep: int = KEPT,
) -> Path:
    """Write the state of a step. `weights`: weight files of the run that belong to it, with their expected digests.

    An error leaves the older states unchanged: they are removed after the new state has its final name. `keep`: number
    of states in the folder afterwards.
    """
    target = _unused_name(folder, step, progress.get("leg", 0))
    new = folder / f".{target.name}.{os.getpid()}.tmp"
    try:
        folder.mkdir(exist_ok=True)
        _remove_partial_states(folder)
        new.mkdir()
        write_tensors(new / TENSORS, dict(_flatten(tensors)))
        with atomic_file(new / PROGRESS) as temporary:
            dump_json(temporary, progress)
        for file, expected in (weights or {}).items():
            _copy_weight_file(file, expected, folder, new / file.name)
        sums = {file.name: file_digest(file) for file in sorted(new.iterdir())}
        with atomic_file(new / SUMS) as temporary:
            dump_json(temporary, sums)
        for file in new.iterdir():
            sync_to_disk(file)
        sync_to_disk(new)
        new.rename(target)
        sync_to_disk(folder)
    except (OSError, VitreousError) as error:
        shutil.rmtree(new, ignore_errors=True)
        raise VitreousError(
            f"the state of step {step} cannot be saved in {folder} ({_reason(error)}); older states are unchanged: when"
            f" the disk is writable again, continue with `vitreous train --resume {folder.parent}`"
        ) from error
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    _verified.add(_identity(target))
    _remove_old_states(folder, target, keep)
    return target


def list_states(folder: Path) -> list[Path]:
    """Return all states, complete or not, newest first."""
    orders = {path: _order(path) for path in folder.glob("*step-*") if path.is_dir()}
    return sorted((path for path, order in orders.items() if order), key=lambda path: orders[path] or (), reverse=True)


def newest_state(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return the newest undamaged state and its progress."""
    skipped: list[str] = []
    for path in list_states(folder):
        if (path / PICKLED).exists():
            raise VitreousError(
                f"{path} was saved by Vitreous 0.1.0, as a pickle, which this version does not open: finish the run"
                " with 0.1.0, or start a new one (--from its best.safetensors)"
            )
        if (damage := _find_damage(path)) is None:
            if skipped:
                warnings.warn(f"skipped {'; '.join(skipped)}; continuing from {path.name}", VitreousWarning, 2)
            return path, read_json(path / PROGRESS)
        skipped.append(f"{path.name} ({damage})")
    if skipped:
        raise VitreousError(f"{folder.parent}: all saved states are damaged: {'; '.join(skipped)}")
    raise VitreousError(f"{folder.parent}: no state was saved yet, so it cannot be resumed; start the run again")


def load_state(path: Path, tensors: Tree) -> None:
    """Copy the tensors of a state into the given ones, which must have the same names, shapes and types."""
    try:
        stored = SafetensorsFile(path / TENSORS)
        wanted = dict(_flatten(tensors))
        if unmatched := sorted(set(wanted) ^ set(stored)):
            raise VitreousError(f"{unmatched[0]} is only in the state, or only in the run")
        for name, tensor in wanted.items():
            value = stored[name]
            if value.shape != tensor.shape or value.dtype != tensor.dtype:
                raise VitreousError(
                    f"{name} is {tuple(value.shape)} {value.dtype} in the state, and {tuple(tensor.shape)}"
                    f" {tensor.dtype} in the run"
                )
        for name, tensor in wanted.items():
            tensor.detach().copy_(stored[name])
    except (OSError, VitreousError) as error:
        raise VitreousError(f"{path}: does not fit this run ({_reason(error)})") from error


def restore_weight_file(path: Path, file: Path) -> None:
    """Copy a weight file of a state to the run directory. The file there may be of a later step."""
    with atomic_file(file) as temporary:
        shutil.copyfile(path / file.name, temporary)


def file_digest(path: Path) -> str:
    digest = blake2b(digest_size=16)
    with open_regular(path) as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def _flatten(tree: Tree, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}/")
        else:
            assert isinstance(value, Tensor), f"{prefix}{name} is a {type(value).__name__}, not a tensor"
            yield f"{prefix}{name}", value


def _unused_name(folder: Path, step: int, leg: int = 0) -> Path:
    """The name of a new state. If the step was saved before, a suffix keeps both until the new state is complete.

    The leg of an extended run is part of the name, since a leg may repeat steps of the one before.
    """
    plain = f"leg-{leg + 1}-step-{step:09d}" if leg else f"step-{step:09d}"
    name, number = plain, 1
    while (folder / name).exists():
        name, number = f"{plain}-{number}", number + 1
    return folder / name


def _order(path: Path) -> tuple[int, int, int] | None:
    """Leg, step and suffix of a state, or None for another folder."""
    match = re.fullmatch(r"(?:leg-(\d+)-)?step-(\d+)(?:-(\d+))?", path.name)
    return None if match is None else (int(match[1] or 1), int(match[2]), int(match[3] or 0))


def _copy_weight_file(file: Path, expected: str, folder: Path, target: Path) -> None:
    """Copy a weight file of the run, or that of an older state, into a state. Raise an error if all were changed.

    Hard links would be faster, but then one damaged file would damage all states.
    """
    for source in (file, *(older / file.name for older in list_states(folder))):
        if source.is_file():
            shutil.copyfile(source, target)
            if file_digest(target) == expected:
                return
    raise VitreousError(f"{file} was changed after it was written")


def _remove_old_states(folder: Path, new: Path, keep: int) -> None:
    """Keep the newest undamaged states, `keep` in all, and remove all others."""
    order, kept = _order(new), 1
    for old in list_states(folder):
        if old == new:
            continue
        same_step = order is not None and (_order(old) or ())[:2] == order[:2]
        if kept < keep and not same_step and _is_undamaged(old):
            kept += 1
        else:
            shutil.rmtree(old, ignore_errors=True)


def _is_undamaged(path: Path) -> bool:
    """Checked once per process, since it reads the whole state."""
    if _identity(path) in _verified:
        return True
    if (path / PICKLED).exists() or _find_damage(path) is not None:
        return False
    _verified.add(_identity(path))
    return True


def _identity(path: Path) -> tuple[Path, int]:
    return path.resolve(), path.stat().st_ino


def _find_damage(path: Path) -> str | None:
    """Describe the first damage to a state. None: it is complete and unchanged."""
    try:
        sums = json.loads(read_text(path / SUMS))
        if not {PROGRESS, TENSORS} <= sums.keys():
            return f"{SUMS} does not list its files"
        for name, expected in sums.items():
            if Path(name).name != name or not (path / name).is_file():
                return f"{name} is missing"
            if file_digest(path / name) != expected:
                return f"{name} is damaged"
    except FileNotFoundError:
        return "incomplete"
    except (VitreousError, OSError, ValueError, AttributeError, RecursionError) as error:
        return f"cannot be read: {error}"
    return None


def _remove_partial_states(folder: Path) -> None:
    """Remove what a killed process was writing."""
    for partial in folder.glob(".*step-*.tmp"):
        shutil.rmtree(partial, ignore_errors=True)


def _reason(error: BaseException) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
