"""The whole state of a run on disk: written whole or not at all, the last two whole ones kept, a damaged one skipped.

A state is a folder with `tensors.safetensors` (parameters, moments, EMA, random state), `progress.json`, and copies of
the run's weight files as they were then. `sums.json` is written last and holds a digest of every file: a state without
it was cut off while it was written. Nothing in a state is a pickle, so that opening one runs no code.
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
from vitreous.weights.containers import write_tensors
from vitreous.weights.safetensors_file import SafetensorsFile

KEPT = 2
TENSORS, PROGRESS, SUMS = "tensors.safetensors", "progress.json", "sums.json"
PICKLED = ".metadata"  # of torch.distributed.checkpoint, in states of version 0.1.0
Tree = dict[str, Any]  # of tensors, by name, in any number of levels

_known: set[tuple[Path, int]] = set()  # states that this process wrote or checked, by path and inode


def save_state(
    folder: Path, step: int, tensors: Tree, progress: dict[str, Any], weights: Mapping[Path, str] | None = None
) -> Path:
    """Write the state of a step. `weights`: files of the run that belong to it, with the digest each should have.

    An error of the disk leaves the older states as they were: the new one gets its name before any of them goes.
    """
    target = _free_name(folder, step)
    fresh = folder / f".{target.name}.{os.getpid()}.tmp"
    try:
        folder.mkdir(exist_ok=True)
        _sweep(folder)
        fresh.mkdir()
        write_tensors(fresh / TENSORS, dict(_flat(tensors)))
        with atomic_file(fresh / PROGRESS) as temporary:
            dump_json(temporary, progress)
        for file, expected in (weights or {}).items():
            _take(file, expected, folder, fresh / file.name)
        sums = {file.name: file_digest(file) for file in sorted(fresh.iterdir())}
        with atomic_file(fresh / SUMS) as temporary:
            dump_json(temporary, sums)
        for file in fresh.iterdir():
            _flush(file)
        _flush(fresh)
        fresh.rename(target)
        _flush(folder)
    except (OSError, VitreousError) as error:
        shutil.rmtree(fresh, ignore_errors=True)
        raise VitreousError(
            f"the state of step {step} cannot be saved in {folder} ({_reason(error)}); older states are untouched: when"
            f" the disk is ready, go on with `vitreous train --resume {folder.parent}`"
        ) from error
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    _known.add(_identity(target))
    _drop_old(folder, target)
    return target


def list_states(folder: Path) -> list[Path]:
    """All that are there, whole or not, the newest first."""
    found = {path: _order(path) for path in folder.glob("step-*") if path.is_dir()}
    return sorted((path for path, order in found.items() if order), key=lambda path: found[path] or (), reverse=True)


def newest_state(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The newest state that is whole, and its progress."""
    skipped: list[str] = []
    for path in list_states(folder):
        if (path / PICKLED).exists():
            raise VitreousError(
                f"{path} was saved by Vitreous 0.1.0, as a pickle, which this version does not open: finish the run"
                " with 0.1.0, or begin a new one (--from its best.safetensors)"
            )
        if (damage := _damage(path)) is None:
            if skipped:
                warnings.warn(f"skipped {'; '.join(skipped)}; going on from {path.name}", VitreousWarning, 2)
            return path, read_json(path / PROGRESS)
        skipped.append(f"{path.name} ({damage})")
    if skipped:
        raise VitreousError(f"{folder.parent}: no state is whole: {'; '.join(skipped)}")
    raise VitreousError(f"{folder.parent}: nothing was saved yet, so there is nothing to resume; start it again")


def load_state(path: Path, tensors: Tree) -> None:
    """Fill the tree, whose tensors have their shapes already, from a state that `newest` found."""
    try:
        found = SafetensorsFile(path / TENSORS)
        wanted = dict(_flat(tensors))
        if missing := sorted(set(wanted) ^ set(found)):
            raise VitreousError(f"{missing[0]} is not in both")
        for name, tensor in wanted.items():
            stored = found[name]
            if stored.shape != tensor.shape or stored.dtype != tensor.dtype:
                raise VitreousError(f"{name} is {tuple(stored.shape)} {stored.dtype} there")
        for name, tensor in wanted.items():
            tensor.detach().copy_(found[name])
    except (OSError, VitreousError) as error:
        raise VitreousError(f"{path}: does not fit this run ({_reason(error)})") from error


def restore_weight_files(path: Path, run: Path, names: Mapping[str, str]) -> None:
    """Put the weight files of a state back into the run directory. What is there now may be of steps that are lost."""
    for name in names:
        with atomic_file(run / name) as temporary:
            shutil.copyfile(path / name, temporary)


def file_digest(path: Path) -> str:
    found = blake2b(digest_size=16)
    with open_regular(path) as file:
        while block := file.read(1 << 22):
            found.update(block)
    return found.hexdigest()


def _flat(tree: Tree, above: str = "") -> Iterator[tuple[str, Tensor]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{name}/")
        else:
            assert isinstance(value, Tensor), f"{above}{name} is a {type(value).__name__}, not a tensor"
            yield f"{above}{name}", value


def _free_name(folder: Path, step: int) -> Path:
    """A step may be saved again: the older state of it stays until the new one has its name."""
    name, number = f"step-{step:09d}", 1
    while (folder / name).exists():
        name, number = f"step-{step:09d}-{number}", number + 1
    return folder / name


def _order(path: Path) -> tuple[int, int] | None:
    match = re.fullmatch(r"step-(\d+)(?:-(\d+))?", path.name)
    return None if match is None else (int(match[1]), int(match[2] or 0))


def _take(file: Path, expected: str, folder: Path, target: Path) -> None:
    """Copy a weight file into a state, or link the copy of an older state. One that was damaged since it was written is
    not taken."""
    for older in list_states(folder):
        copy = older / file.name
        if copy.is_file() and file_digest(copy) == expected:
            try:
                os.link(copy, target)
            except OSError:  # a file system without links
                shutil.copyfile(copy, target)
            return
    shutil.copyfile(file, target)
    if file_digest(target) != expected:
        raise VitreousError(f"{file} was changed after it was written")


def _drop_old(folder: Path, fresh: Path) -> None:
    """Keep the newest states that are whole; those that are not do not count, and go too."""
    order, kept = _order(fresh), 1
    for old in list_states(folder):
        if old == fresh:
            continue
        same_step = order is not None and (_order(old) or ())[:1] == order[:1]
        if kept < KEPT and not same_step and _is_whole(old):
            kept += 1
        else:
            shutil.rmtree(old, ignore_errors=True)


def _is_whole(path: Path) -> bool:
    """Checked once in a process: reading all of a state takes long."""
    if _identity(path) in _known:
        return True
    if (path / PICKLED).exists() or _damage(path) is not None:
        return False
    _known.add(_identity(path))
    return True


def _identity(path: Path) -> tuple[Path, int]:
    return path.resolve(), path.stat().st_ino


def _damage(path: Path) -> str | None:
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
        return "cut off while it was written"
    except (VitreousError, OSError, ValueError, AttributeError, RecursionError) as error:
        return f"cannot be read: {error}"
    return None


def _sweep(folder: Path) -> None:
    """What a killed process left half-written."""
    for rest in folder.glob(".step-*.tmp"):
        shutil.rmtree(rest, ignore_errors=True)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _reason(error: BaseException) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
