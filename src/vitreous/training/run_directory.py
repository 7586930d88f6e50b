"""The run directory: all files of a training run, and the lock that allows one process to write to them."""

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

from vitreous import __version__
from vitreous.errors import VitreousError, brief, one_line, refuse_url
from vitreous.training.config import RENAMED_FIELDS, TrainConfig
from vitreous.utils.atomic import atomic_file, check_output, replace_folder
from vitreous.utils.console import printable
from vitreous.utils.environment import program
from vitreous.utils.file_locks import is_file_locked, lock_file
from vitreous.utils.json_files import dump_json, read_json
from vitreous.utils.regular_files import open_regular, read_regular
from vitreous.utils.temporary_files import remove_leftovers, temporary_name

DESCRIPTION_FIELDS = {"config": dict, "data": str, "choices": list, "command": str, "environment": dict}
CHOICE_FIELDS = {"field", "value", "why"}
# Everything that a run and the commands that write to it leave in the directory; and files of Finder and Explorer.
RUN_FILES = re.compile(
    r"config\.json|metrics(-\d+)?\.jsonl|result\.json|report\.html|state|before_cooldown|candidates|inspection|(best|last)\.safetensors"
    r"|image_digests\.safetensors|bad_(images|batch)\.txt|profile\.json|\.lock|wandb|tensorboard"
    r"|\..*\.tmp|\.DS_Store|Thumbs\.db"
)
_locked_here: set[Path] = set()  # run directories that this process has locked


class RunDirectory:
    """`config.json` (the description), `metrics.jsonl`, `state/`, `best.safetensors`, `last.safetensors`,
    `report.html`, `result.json`, and `bad_images.txt` if some images cannot be read."""

    def __init__(self, path: Path):
        self.path = path
        self.state, self.metrics = path / "state", path / "metrics.jsonl"
        self.before_cooldown = path / "before_cooldown"  # the state from which a longer run would continue
        self.best, self.last, self.report = (
            path / name for name in ("best.safetensors", "last.safetensors", "report.html")
        )
        absolute = path.absolute()  # "." has no name
        self.replaced = absolute.parent / f"{absolute.name}.replaced"  # an earlier run, until this one is complete
        self.overwrite = False

    @classmethod
    def for_new_run(cls, out: str | None, data: str, overwrite: bool = False) -> "RunDirectory":
        """The directory `out` of a new run; by default named after the data and the time.

        `overwrite`: it may contain an earlier run. Nothing is written yet.
        """
        if out is None:
            name = re.sub(r"[^\w.-]+", "-", data).strip("-.") or "run"
            out = f"runs/{name}-{datetime.now():%Y%m%d-%H%M%S}"
        refuse_url(out, "give the name of a folder to write")
        path = Path(out)
        directory = cls(path)
        if _is_taken(path):
            if not (path / "config.json").is_file():
                raise VitreousError(f"{path} exists already, and is not a run directory: give another --out")
            if not overwrite:
                command = f"{program()} train --resume {shlex.quote(out)}"
                raise VitreousError(
                    f"{path} exists already; to continue it: {command}; to replace it: --overwrite; or give another"
                    " --out"
                )
            directory.description()
            check_output(path, overwrite, _run_files)
            directory.overwrite = True
        for parent in path.absolute().parents:
            if parent.exists():
                if not parent.is_dir():
                    raise VitreousError(f"{path} cannot be created: {parent} is not a folder")
                if not os.access(parent, os.W_OK | os.X_OK):
                    raise VitreousError(f"{path} cannot be created: {parent} is not writable")
                break
        return directory

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "RunDirectory":
        """The directory of an existing run."""
        directory = cls(Path(path))
        if not directory.path.is_dir():
            raise VitreousError(f"{path}: there is no such run directory")
        if not (directory.path / "config.json").is_file():
            raise VitreousError(f"{path} is not a run directory: it has no config.json")
        return directory

    def create(self, description: dict[str, Any]) -> None:
        """Create the directory with its config.json. With `overwrite`, an earlier run is renamed to `replaced`."""
        remove_leftovers(self.path)
        new = temporary_name(self.path)
        replaces = self.overwrite and _is_taken(self.path)
        try:
            new.mkdir(parents=True)
            with atomic_file(new / "config.json") as temporary:
                dump_json(temporary, {**description, **({"replaces": True} if replaces else {})})
            if replaces:
                self._set_aside()
            replace_folder(new, self.path)  # atomic: a run directory has a config.json at any time
        except OSError as error:
            self._restore_replaced()
            raise VitreousError(f"{self.path} cannot be created ({error.strerror})") from error
        finally:
            shutil.rmtree(new, ignore_errors=True)

    def _set_aside(self) -> None:
        """Rename the earlier run to `replaced`. If it was itself an incomplete replacement, remove it instead."""
        try:
            with self.locked():
                self._move_away()
        except PermissionError:  # Windows does not rename a folder that contains an open file: here the lock
            self._move_away()

    def _move_away(self) -> None:
        if self.description().get("replaces") and RunDirectory(self.replaced).path.is_dir():
            shutil.rmtree(self.path)
        elif os.path.lexists(self.replaced):
            raise VitreousError(
                f"{self.replaced} exists already: {self.path} would be kept under that name until the new run is"
                " complete; remove it, or give another --out"
            )
        else:
            self.path.rename(self.replaced)

    def _restore_replaced(self) -> None:
        if self.overwrite and self.replaced.is_dir() and not self.path.exists():
            self.replaced.rename(self.path)

    def discard(self) -> None:
        """Undo `create`."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._restore_replaced()

    def complete(self) -> None:
        """Call when the run has its result: remove the earlier run that it replaces."""
        if self.description().get("replaces") and (self.replaced / "config.json").is_file():
            shutil.rmtree(self.replaced, ignore_errors=True)

    def write_description(self, description: dict[str, Any]) -> None:
        """Write config.json."""
        with atomic_file(self.path / "config.json") as temporary:
            dump_json(temporary, description)

    def description(self) -> dict[str, Any]:
        """Read config.json and check it."""
        try:
            values = read_json(self.path / "config.json")
        except VitreousError as error:
            raise VitreousError(f"{self.path}: {error}") from error
        for name, kind in DESCRIPTION_FIELDS.items():
            if not isinstance(values.get(name), kind):
                raise VitreousError(
                    f"{self.path / 'config.json'} does not describe a run: {name} is missing or damaged"
                )
        if not all(isinstance(choice, dict) and choice.keys() >= CHOICE_FIELDS for choice in values["choices"]):
            raise VitreousError(f"{self.path / 'config.json'} does not describe a run: choices are damaged")
        values["config"].setdefault("test_fraction", 0.0)  # version 0.1.0 had no test split
        for old, new in RENAMED_FIELDS.items():
            if old in values["config"]:
                values["config"][new] = values["config"].pop(old)
        return values

    def config(self) -> TrainConfig:
        """The settings in config.json."""
        description = self.description()
        try:
            return TrainConfig.from_flat(description["config"])
        except VitreousError as error:
            version = description.get("vitreous", __version__)
            if version == __version__:
                raise VitreousError(f"{self.path / 'config.json'}: {one_line(error)}") from error
            raise VitreousError(
                f"{self.path} was written by version {brief(version)} of Vitreous, and this is version {__version__}:"
                f" continue the run with its own version ({one_line(error)})"
            ) from error

    def result(self) -> dict[str, Any]:
        """Read result.json."""
        try:
            return read_json(self.path / "result.json")
        except VitreousError as error:
            raise self.damaged_result(error) from error

    def damaged_result(self, reason: object) -> VitreousError:
        return VitreousError(
            f"{self.path / 'result.json'} is damaged ({reason}): remove it, and resume the run to evaluate the weights"
            " again"
        )

    @contextmanager
    def locked(self, is_main: bool = True) -> Iterator[None]:
        """Prevent other processes from writing to the run. Of a distributed run, only the main process takes it."""
        if not is_main:
            yield
            return
        try:
            self._check_files()
            lock = (self.path / ".lock").open("wb")
        except OSError as error:
            raise VitreousError(f"{self.path}: this run directory is not writable ({error.strerror})") from error
        with lock as file:
            try:
                lock_file(file)
            except OSError:
                raise VitreousError(f"{self.path} is in use: another process is training there") from None
            for partial in self.path.glob(".*.tmp"):  # files that a killed process was writing
                partial.unlink(missing_ok=True)
            place = self.path.resolve()
            _locked_here.add(place)
            try:
                yield
            finally:
                _locked_here.discard(place)

    def is_locked(self) -> bool:
        """Whether a process is training in the directory. The lock itself is not touched."""
        if self.path.resolve() in _locked_here:  # closing the file would release the lock of this process
            return True
        try:
            with open_regular(self.path / ".lock") as file:
                return is_file_locked(file)
        except (OSError, VitreousError):
            return False

    def _check_files(self) -> None:
        """Accept regular files and folders only: a link would write elsewhere, and opening a pipe would block."""
        with os.scandir(self.path) as entries:
            odd = [entry.name for entry in entries if not entry.is_dir() and not entry.is_file(follow_symlinks=False)]
        if odd:
            raise VitreousError(
                f"{self.path / min(odd)} is a link, a pipe or a device: put a regular file in its place, or remove it"
            )

    def record(self, line: dict[str, Any]) -> None:
        """Append a line to metrics.jsonl."""
        with self._append_to(self.metrics) as file:
            file.write(json.dumps(line) + "\n")

    def records(self) -> list[dict[str, Any]]:
        """Read metrics.jsonl. Lines that are incomplete or damaged are skipped."""
        if not self.metrics.exists():
            return []
        records = []
        try:
            content = read_regular(self.metrics)
        except VitreousError as error:
            raise error.at(self.metrics) from error
        for line in content.splitlines():
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):  # ValueError also for bytes that are not UTF-8
                continue
            if _is_record(record):
                records.append(record)
        return records

    def rewind(self, step: int, evaluated: int) -> None:
        """Remove lines of steps after `step`, and of evaluations after step `evaluated`: they will be repeated."""

        def is_valid(line: dict[str, Any]) -> bool:
            return bool(line["step"] <= (evaluated if line["kind"] == "eval" else step))

        kept = [line for line in self.records() if is_valid(line)]
        with atomic_file(self.metrics) as temporary:
            temporary.write_text("".join(json.dumps(line) + "\n" for line in kept), "utf-8")

    def add_unreadable(self, lines: Sequence[str]) -> None:
        """Append the lines to `bad_images.txt` that it does not contain yet."""
        path = self.path / "bad_images.txt"
        present = set(path.read_text("utf-8", "replace").splitlines() if path.exists() else ())
        escaped = (printable(line, keep="\t") for line in lines)
        if new := [line for line in dict.fromkeys(escaped) if line not in present]:
            with self._append_to(path) as file:
                file.writelines(f"{line}\n" for line in new)

    @contextmanager
    def _append_to(self, path: Path) -> Iterator[Any]:
        try:
            with path.open("a", encoding="utf-8") as file:
                yield file
        except OSError as error:
            raise VitreousError(f"{path} cannot be written ({error.strerror})") from error


def _is_record(line: Any) -> bool:
    """Whether a line of the log has a kind and a step, and an event has a text."""
    if not isinstance(line, dict) or not isinstance(line.get("step"), int) or not isinstance(line.get("kind"), str):
        return False
    return line["kind"] != "event" or isinstance(line.get("text"), str)


def _run_files(folder: Path) -> set[str]:
    """Return the names of the files in a folder that belong to a run."""
    return {path.name for path in folder.iterdir() if RUN_FILES.fullmatch(path.name)}


def _is_taken(path: Path) -> bool:
    """Whether a run would replace something. An empty folder does not count."""
    return os.path.lexists(path) and not (path.is_dir() and not any(path.iterdir()))
