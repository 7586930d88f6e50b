"""The run directory: what a run leaves behind, and what it goes on from."""

import fcntl
import json
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from vitreous.errors import VitreousError, refuse_url
from vitreous.training.config import RENAMED_FIELDS
from vitreous.utils.atomic import atomic_file, replace_folder
from vitreous.utils.console import printable
from vitreous.utils.environment import program
from vitreous.utils.json_files import dump_json, read_json
from vitreous.utils.regular_files import read_regular
from vitreous.utils.temporary_files import remove_leftovers, temporary_name

DESCRIBED = {"config": dict, "data": str, "choices": list, "command": str, "environment": dict}  # of config.json
CHOICE = {"field", "value", "why"}


class RunDirectory:
    """`config.json`, `metrics.jsonl`, `state/`, `best.safetensors`, `last.safetensors`, `report.html`, and what else
    there was to say: `bad_images.txt`."""

    def __init__(self, path: Path):
        self.path = path
        self.state, self.metrics = path / "state", path / "metrics.jsonl"
        self.best, self.last, self.report = (
            path / name for name in ("best.safetensors", "last.safetensors", "report.html")
        )
        whole = path.absolute()  # "." has no name of its own
        self.replaced = whole.parent / f"{whole.name}.replaced"  # an earlier run, until this one is complete
        self.overwrite = False

    @classmethod
    def for_new_run(cls, out: str | None, data: str, overwrite: bool = False) -> "RunDirectory":
        """The folder that was asked for, or a new one by the data's name and the time.

        `overwrite`: it may be that of an earlier run. Nothing is changed yet.
        """
        if out is None:
            name = re.sub(r"[^\w.-]+", "-", data).strip("-.") or "run"
            out = f"runs/{name}-{datetime.now():%Y%m%d-%H%M%S}"
        refuse_url(out, "give the name of a folder to write")
        path = Path(out)
        folder = cls(path)
        if _is_taken(path):
            if not (path / "config.json").is_file():
                raise VitreousError(f"{path} exists already, and is not a run directory: give another --out")
            if not overwrite:
                again = f"{program()} train --resume {shlex.quote(out)}"
                raise VitreousError(
                    f"{path} exists already; to go on with it: {again}; to replace it: --overwrite; or give another"
                    " --out"
                )
            folder.description()
            folder.overwrite = True
        for parent in path.absolute().parents:
            if parent.exists():
                if not parent.is_dir():
                    raise VitreousError(f"{path} cannot be made: {parent} is not a folder")
                if not os.access(parent, os.W_OK | os.X_OK):
                    raise VitreousError(f"{path} cannot be made: {parent} may not be written to")
                break
        return folder

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "RunDirectory":
        """One that a run was begun in."""
        folder = cls(Path(path))
        if not folder.path.is_dir():
            raise VitreousError(f"{path}: there is no such run directory")
        if not (folder.path / "config.json").is_file():
            raise VitreousError(f"{path} is not a run directory: it has no config.json")
        return folder

    def create(self, description: dict[str, Any]) -> None:
        """Begin a run in it. With `overwrite`, a run that is there is kept under another name until `complete`."""
        remove_leftovers(self.path)
        fresh = temporary_name(self.path)
        replaces = self.overwrite and _is_taken(self.path)
        try:
            fresh.mkdir(parents=True)
            with atomic_file(fresh / "config.json") as temporary:
                dump_json(temporary, {**description, **({"replaces": True} if replaces else {})})
            if replaces:
                self._set_aside()
            replace_folder(fresh, self.path)  # a run directory has a config, whenever it is looked at
        except OSError as error:
            self._restore()
            raise VitreousError(f"{self.path} cannot be made ({error.strerror})") from error
        finally:
            shutil.rmtree(fresh, ignore_errors=True)

    def _set_aside(self) -> None:
        """Give the run that is there another name. One that replaced another and was never completed is removed."""
        with self.locked():
            if self.description().get("replaces") and RunDirectory(self.replaced).path.is_dir():
                shutil.rmtree(self.path)
            elif os.path.lexists(self.replaced):
                raise VitreousError(
                    f"{self.replaced} exists already: {self.path} would be kept under that name until the new run is"
                    " complete; remove it, or give another --out"
                )
            else:
                self.path.rename(self.replaced)

    def _restore(self) -> None:
        if self.overwrite and self.replaced.is_dir() and not self.path.exists():
            self.replaced.rename(self.path)

    def discard(self) -> None:
        """Undo `create`."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._restore()

    def complete(self) -> None:
        """The run has its result: an earlier one that it replaces is not needed any more."""
        if self.description().get("replaces") and (self.replaced / "config.json").is_file():
            shutil.rmtree(self.replaced, ignore_errors=True)

    def write_description(self, description: dict[str, Any]) -> None:
        """What there is to say about the run is more than when it was begun."""
        with atomic_file(self.path / "config.json") as temporary:
            dump_json(temporary, description)

    def description(self) -> dict[str, Any]:
        found = read_json(self.path / "config.json")
        for name, kind in DESCRIBED.items():
            if not isinstance(found.get(name), kind):
                raise VitreousError(
                    f"{self.path / 'config.json'} does not describe a run: {name} is missing or damaged"
                )
        if not all(isinstance(choice, dict) and choice.keys() >= CHOICE for choice in found["choices"]):
            raise VitreousError(f"{self.path / 'config.json'} does not describe a run: choices are damaged")
        for old, new in RENAMED_FIELDS.items():
            if old in found["config"]:
                found["config"][new] = found["config"].pop(old)
        found["config"].setdefault("test_fraction", 0.0)  # a run of 0.1.0, which set no test split aside
        return found

    @contextmanager
    def locked(self, first: bool = True) -> Iterator[None]:
        """Two processes that write to one run would spoil it; the `first` of those that train together holds it."""
        if not first:
            yield
            return
        try:
            self._check_files()
            lock = (self.path / ".lock").open("w")
        except OSError as error:
            raise VitreousError(
                f"{self.path}: nothing can be written to this run directory ({error.strerror})"
            ) from error
        with lock as file:
            try:
                # Of the process alone: workers that outlive it by a few seconds do not keep it.
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise VitreousError(f"{self.path} is in use: another process is training there") from None
            for rest in self.path.glob(".*.tmp"):  # of files that a killed process was writing
                rest.unlink(missing_ok=True)
            yield

    def _check_files(self) -> None:
        """A run writes to its own files alone: through a link it would write elsewhere, and at a pipe it would wait."""
        with os.scandir(self.path) as entries:
            odd = [entry.name for entry in entries if not entry.is_dir() and not entry.is_file(follow_symlinks=False)]
        if odd:
            raise VitreousError(
                f"{self.path / min(odd)} is a link, a pipe or a device: put a regular file in its place, or remove it"
            )

    def record(self, line: dict[str, Any]) -> None:
        with self._writing(self.metrics) as file:
            file.write(json.dumps(line) + "\n")

    def records(self) -> list[dict[str, Any]]:
        """The lines so far; one that was cut off by a kill, or damaged since, is not counted."""
        if not self.metrics.exists():
            return []
        found = []
        try:
            content = read_regular(self.metrics)
        except VitreousError as error:
            raise error.at(self.metrics) from error
        for line in content.splitlines():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):  # also of bytes that are no UTF-8
                continue
            if _is_record(record):
                found.append(record)
        return found

    def rewind(self, step: int, evaluated: int) -> None:
        """Forget the lines of steps that will be trained again, and of evaluations that will be done again."""

        def holds(line: dict[str, Any]) -> bool:
            return bool(line["step"] <= (evaluated if line["kind"] == "eval" else step))

        kept = [line for line in self.records() if holds(line)]
        with atomic_file(self.metrics) as temporary:
            temporary.write_text("".join(json.dumps(line) + "\n" for line in kept))

    def add_unreadable(self, lines: Sequence[str]) -> None:
        """Add to `bad_images.txt` what is not there yet."""
        path = self.path / "bad_images.txt"
        there = set(path.read_text("utf-8", "replace").splitlines() if path.exists() else ())
        escaped = (printable(line, keep="\t") for line in lines)
        if fresh := [line for line in dict.fromkeys(escaped) if line not in there]:
            with self._writing(path) as file:
                file.writelines(f"{line}\n" for line in fresh)

    @contextmanager
    def _writing(self, path: Path) -> Iterator[Any]:
        try:
            with path.open("a", encoding="utf-8") as file:
                yield file
        except OSError as error:
            raise VitreousError(f"{path} cannot be written ({error.strerror})") from error


def _is_record(line: Any) -> bool:
    """Whether a line of the log can be used: its kind and step, and the text of an event."""
    if not isinstance(line, dict) or not isinstance(line.get("step"), int) or not isinstance(line.get("kind"), str):
        return False
    return line["kind"] != "event" or isinstance(line.get("text"), str)


def _is_taken(path: Path) -> bool:
    """Whether there is something that a run would replace. An empty folder is nothing."""
    return os.path.lexists(path) and not (path.is_dir() and not any(path.iterdir()))
