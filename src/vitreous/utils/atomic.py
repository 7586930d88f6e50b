"""Write output files and folders atomically: complete or not at all, and never over an existing path by accident.

All commands follow the same rule: an existing path is an error unless `--overwrite` is given, and the old file or
folder stays until the new one is complete.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vitreous.errors import VitreousError, summarize_names
from vitreous.utils.system_calls import exchange_paths, sync_to_disk
from vitreous.utils.temporary_files import remove_leftovers, temporary_name

Names = Callable[[Path], Collection[str]]  # returns the names of files that a folder may hold if it is to be replaced


def check_output(path: Path, overwrite: bool, replaceable: Names | None = None) -> None:
    """Raise an error if nothing may be written to this path. Commands call it before they do any work.

    `replaceable`: set if the output is a folder; returns the names of files that an earlier output may have left there.
    A folder that holds other files is never replaced. An empty folder counts as not existing.
    """
    try:
        if replaceable is not None and path.is_dir():
            names = {file.name for file in path.iterdir()}
            if others := sorted(names - set(replaceable(path))):
                names_text = summarize_names(others, 4)
                raise VitreousError(f"{path} holds other files ({names_text}): give an empty or a new folder")
            exists = bool(names)
        else:
            exists = os.path.lexists(path)
            if exists and overwrite and replaceable is not None:
                raise VitreousError(f"{path} is not a folder: give the name of a folder")
    except OSError as error:
        raise VitreousError(f"{path} cannot be written ({error.strerror})") from error
    if exists and not overwrite:
        raise VitreousError(f"{path} exists already: give another name, or replace it with --overwrite")


def _new_temporary(path: Path) -> Path:
    """Return a temporary name in the same folder, after removing leftovers of killed processes."""
    remove_leftovers(path)
    return temporary_name(path)


# ---------------------------------------------------------------- files


@contextmanager
def atomic_file(path: Path, overwrite: bool = True) -> Iterator[Path]:
    """Yield a temporary path to write to, and rename it to `path` at the end. On failure nothing changes.

    Without `overwrite`, a file that has appeared at `path` in the meantime is an error.
    """
    requested = path
    try:
        path = Path(os.path.realpath(path))
        mode = path.stat().st_mode if path.exists() else None
    except (OSError, ValueError) as error:  # ValueError: the name contains a null character
        raise VitreousError(f"{requested} cannot be written ({getattr(error, 'strerror', None) or error})") from error
    if mode is not None and not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
        raise VitreousError(f"{requested} is {kind}: give the name of a file")
    temporary = _new_temporary(path)
    try:
        yield temporary
        sync_to_disk(temporary)
        if mode is not None:  # keep the permissions of the old file
            temporary.chmod(stat.S_IMODE(mode))
        if not overwrite:
            check_output(requested, overwrite)
        temporary.replace(path)
        sync_to_disk(path.parent)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink()
        if failure := _system_message(error):
            kept = "; the existing file is unchanged" if path.exists() else ""
            raise VitreousError(f"{requested} cannot be written ({failure}){kept}") from error
        raise


def _system_message(error: BaseException) -> str | None:
    """Return the message of the OSError that caused an error. torch.save raises a RuntimeError after an OSError."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError):
            return cause.strerror or str(cause)
        cause = cause.__cause__ or cause.__context__ if isinstance(error, RuntimeError) else None
    return None


# ---------------------------------------------------------------- folders


@contextmanager
def atomic_folder(folder: Path, overwrite: bool, replaceable: Names) -> Iterator[Path]:
    """Yield a new temporary folder, and rename it to `folder` at the end. On failure nothing changes."""
    check_output(folder, overwrite, replaceable)
    requested, folder = folder, Path(os.path.realpath(folder))
    temporary = _new_temporary(folder)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        check_output(requested, overwrite, replaceable)  # it may have changed in the meantime
        replace_folder(temporary, folder)
    except OSError as error:
        raise VitreousError(
            f"{requested} cannot be written ({error.strerror or error}){_unchanged_note(folder)}"
        ) from error
    except VitreousError as error:
        raise VitreousError(str(error).replace(str(temporary), str(requested)) + _unchanged_note(folder)) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _unchanged_note(folder: Path) -> str:
    return "; the existing folder is unchanged" if folder.is_dir() and any(folder.iterdir()) else ""


def replace_folder(new: Path, folder: Path) -> None:
    """Rename a complete folder to its final name, and remove the folder that had that name before.

    If the system supports it, this is a single step: there is a folder of that name at all times.
    """
    if not folder.exists():
        new.rename(folder)
    elif not any(folder.iterdir()):  # keep an empty folder: it may be a working directory or a mount point
        for file in new.iterdir():
            file.rename(folder / file.name)
    else:
        shutil.copymode(folder, new)
        swap_paths(new, folder)
        shutil.rmtree(new, ignore_errors=True)
    sync_to_disk(folder.parent)


def swap_paths(one: Path, other: Path) -> None:
    """Exchange the names of two files or folders."""
    try:
        exchange_paths(one, other)
        return
    except OSError:  # not supported by the file system or the system
        pass
    backup = temporary_name(other, "old")
    other.rename(backup)
    try:
        one.rename(other)
    except OSError:
        backup.rename(other)
        raise
    backup.rename(one)
