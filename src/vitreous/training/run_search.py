"""Find run directories in folders."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from vitreous.errors import VitreousError, brief, refuse_url
from vitreous.training.run_directory import RunDirectory

DEPTH = 3  # levels of folders below the given one
RUN_MARKS = frozenset(("metrics.jsonl", "result.json", "state", "image_digests.safetensors", ".lock"))


def find_runs(folders: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """All runs in these folders, each once. A folder may itself be a run, or a pattern such as "runs/photos-*"."""
    found: dict[str, Path] = {}
    for folder in map(os.fsdecode, folders):
        for path in _expand(folder):
            for run in _runs_in(path, DEPTH):
                found.setdefault(os.path.realpath(run), run)
    return list(found.values())


def _expand(folder: str) -> list[Path]:
    """The folder itself, or the folders that match the pattern."""
    refuse_url(folder, "give a folder of runs")
    pattern = glob.has_magic(folder)
    with suppress(OSError, RuntimeError):  # a name that is too long, or that of an unknown user
        path = Path(folder).expanduser()
        if path.is_dir():
            return [path]
        matches = sorted(glob.glob(str(path))) if pattern else []  # noqa: PTH207 (the pattern may be absolute)
        if found := [Path(match) for match in matches if Path(match).is_dir()]:
            return found
    where = "matches no folder" if pattern else "is not a folder" if os.path.lexists(folder) else "does not exist"
    raise VitreousError(f"{brief(folder)} {where}: give the folder of your runs, by default `runs`, or a run directory")


def _runs_in(folder: Path, depth: int) -> Iterator[Path]:
    if _is_run(folder):
        yield folder
        return
    if depth == 0:
        return
    try:
        entries = sorted((entry for entry in os.scandir(folder)), key=lambda entry: entry.name)
    except OSError as error:
        if depth == DEPTH:
            raise VitreousError(f"{folder} cannot be read ({error.strerror})") from error
        return
    for entry in entries:
        with suppress(OSError):
            if entry.is_symlink():  # links to folders could lead anywhere; links to runs are followed
                if entry.is_dir() and _is_run(Path(entry.path)):
                    yield Path(entry.path)
            elif entry.is_dir() and not entry.name.startswith("."):
                yield from _runs_in(Path(entry.path), depth - 1)


def _is_run(folder: Path) -> bool:
    """Whether a folder is a run, perhaps a damaged one. Folders of other checkpoints have a config.json too."""
    try:
        names = {path.name for path in folder.iterdir()}
    except OSError:
        return False
    marks = names & RUN_MARKS
    if "config.json" not in names:
        return len(marks) > 1
    if marks:
        return True
    with suppress(VitreousError, OSError):  # a run that was stopped before its first step
        RunDirectory(folder).description()
        return True
    return False
