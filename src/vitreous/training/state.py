"""The whole state of a run on disk: written whole or not at all, the last two kept, a damaged one passed over.

A state is a folder of torch.distributed.checkpoint's, so that many processes can write their parts of it, and
`progress.json` with the rest. `sums.json` comes last: what it does not vouch for was cut off while it was written.
"""

import json
import os
import shutil
import warnings
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load as load_tensors
from torch.distributed.checkpoint.state_dict_saver import save as save_tensors

from vitreous.errors import VitreousError, VitreousWarning
from vitreous.weights.files import dump_json, read_json, replacing

KEPT = 2
Tree = dict[str, Any]  # of tensors and numbers, as torch.distributed.checkpoint takes it


def save(folder: Path, step: int, tensors: Tree, progress: dict[str, Any]) -> Path:
    """Write the state of a step. A full disk is an error that leaves the older states as they were."""
    target = folder / f"step-{step:09d}"
    fresh = folder / f".{target.name}.{os.getpid()}.tmp"
    try:
        folder.mkdir(exist_ok=True)
        _sweep(folder)
        fresh.mkdir()
        _quietly(lambda: save_tensors(tensors, checkpoint_id=fresh, no_dist=True))
        with replacing(fresh / "progress.json") as temporary:
            dump_json(temporary, progress)
        sums = {file.name: _digest(file) for file in sorted(fresh.iterdir())}
        with replacing(fresh / "sums.json") as temporary:
            dump_json(temporary, sums)
        for file in fresh.iterdir():
            _flush(file)
        if target.exists():  # of the same step: out of the way, and gone with the next sweep
            target.rename(folder / f".{target.name}.old.tmp")
        fresh.rename(target)
        _sweep(folder)
        _flush(folder)
    except BaseException as error:  # CheckpointException is not an Exception
        shutil.rmtree(fresh, ignore_errors=True)
        if not isinstance(error, OSError | VitreousError | CheckpointException):
            raise
        reason = _system_reason(error) or "the disk may be full"
        raise VitreousError(
            f"the state of step {step} cannot be saved in {folder} ({reason}); older ones are untouched: make room,"
            f" then go on with `vitreous train --resume {folder.parent}`"
        ) from error
    for old in states(folder)[KEPT:]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def states(folder: Path) -> list[Path]:
    """All that are there, the newest first."""
    return sorted((path for path in folder.glob("step-*") if path.is_dir()), reverse=True)


def newest(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The newest state that is whole, and its progress."""
    if folder.exists() and folder.stat().st_uid != os.getuid():  # its index is a pickle
        raise VitreousError(f"{folder} belongs to another user: a state is opened only by the user who saved it")
    passed: list[str] = []
    for path in states(folder):
        if (damage := _damage(path)) is None:
            if passed:
                warnings.warn(f"passed over {'; '.join(passed)}; going on from {path.name}", VitreousWarning, 2)
            return path, read_json(path / "progress.json")
        passed.append(f"{path.name} ({damage})")
    if passed:
        raise VitreousError(f"{folder.parent}: no state is whole: {'; '.join(passed)}")
    raise VitreousError(f"{folder.parent}: nothing was saved yet, so there is nothing to resume; start it again")


def load(path: Path, tensors: Tree) -> None:
    """Fill the tree, whose tensors have their shapes already, from a state."""
    try:
        _quietly(lambda: load_tensors(tensors, checkpoint_id=path, no_dist=True))
    except (Exception, CheckpointException) as error:  # its sums are right, and it is another model's
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise VitreousError(f"{path}: does not fit this run ({reason[-1][:300]})") from error


def _damage(path: Path) -> str | None:
    try:
        sums = json.loads((path / "sums.json").read_text())
        if not {"progress.json", ".metadata"} <= sums.keys():
            return "sums.json vouches for nothing"
        for name, digest in sums.items():
            if not (path / name).is_file():
                return f"{name} is missing"
            if _digest(path / name) != digest:
                return f"{name} is damaged"
    except FileNotFoundError:
        return "cut off while it was written"
    except (OSError, ValueError, AttributeError) as error:
        return f"cannot be read: {error}"
    return None


def _digest(path: Path) -> str:
    digest = blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


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


def _system_reason(error: BaseException | None) -> str | None:
    """What the system said, also where a library wrapped it."""
    while error is not None:
        if isinstance(error, OSError):
            return error.strerror or str(error)
        inner = getattr(error, "failures", None)  # of torch.distributed.checkpoint: rank -> (exception, trace)
        if isinstance(inner, dict) and inner:
            reasons = [_system_reason(value[0] if isinstance(value, tuple) else value) for value in inner.values()]
            if any(reasons):
                return next(reason for reason in reasons if reason)
            return str(next(iter(inner.values()))[0])
        error = error.__cause__ or error.__context__
    return None


def _quietly(action: Callable[[], Any]) -> None:
    with warnings.catch_warnings():  # that there is only one process
        warnings.simplefilter("ignore")
        action()
