"""The run directory: what a run leaves behind, and what it goes on from."""

import fcntl
import json
import os
import platform
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from vitreous import __version__
from vitreous.errors import VitreousError
from vitreous.weights.files import dump_json, read_json, replacing


class RunFolder:
    """`config.json`, `metrics.jsonl`, `state/`, `best.safetensors`, `last.safetensors`, `report.html`, and what else
    there was to say: `bad_images.txt`."""

    def __init__(self, path: Path):
        self.path = path
        self.state, self.metrics = path / "state", path / "metrics.jsonl"
        self.best, self.last, self.report = (
            path / name for name in ("best.safetensors", "last.safetensors", "report.html")
        )

    @classmethod
    def named(cls, out: str | None, data: str) -> "RunFolder":
        """The folder that was asked for, or a new one by the data's name and the time."""
        if out is None:
            name = re.sub(r"[^\w.-]+", "-", data).strip("-.") or "run"
            out = f"runs/{name}-{datetime.now():%Y%m%d-%H%M%S}"
        path = Path(out)
        if os.path.lexists(path):
            hint = f"to go on with it: {program()} train --resume {shlex.quote(out)}"
            if not (path / "config.json").is_file():
                hint = "it holds something else"
            raise VitreousError(f"{path} exists already; {hint}; or give another --out")
        for parent in path.absolute().parents:
            if parent.exists():
                if not parent.is_dir():
                    raise VitreousError(f"{path} cannot be made: {parent} is not a folder")
                if not os.access(parent, os.W_OK | os.X_OK):
                    raise VitreousError(f"{path} cannot be made: {parent} may not be written to")
                break
        return cls(path)

    @classmethod
    def opened(cls, path: str | os.PathLike[str]) -> "RunFolder":
        """One that a run was begun in."""
        folder = cls(Path(path))
        if not folder.path.is_dir():
            raise VitreousError(f"{path}: there is no such run directory")
        if not (folder.path / "config.json").is_file():
            raise VitreousError(f"{path} is not a run directory: it has no config.json")
        return folder

    def create(self, description: dict[str, Any]) -> None:
        fresh = self.path.with_name(f".{self.path.name}.{os.getpid()}.tmp")
        try:
            fresh.mkdir(parents=True)
            with replacing(fresh / "config.json") as temporary:
                dump_json(temporary, description)
            fresh.rename(self.path)  # a run directory has a config, whenever it is looked at
        except OSError as error:
            raise VitreousError(f"{self.path} cannot be made ({error.strerror})") from error
        finally:
            shutil.rmtree(fresh, ignore_errors=True)

    def describe(self, description: dict[str, Any]) -> None:
        """What there is to say about the run is more than when it was begun."""
        with replacing(self.path / "config.json") as temporary:
            dump_json(temporary, description)

    def description(self) -> dict[str, Any]:
        found = read_json(self.path / "config.json")
        if not isinstance(found.get("config"), dict) or not isinstance(found.get("data"), str):
            raise VitreousError(f"{self.path / 'config.json'} does not describe a run")
        return found

    @contextmanager
    def locked(self, first: bool = True) -> Iterator[None]:
        """Two processes that write to one run would spoil it; the `first` of those that train together holds it."""
        if not first:
            yield
            return
        with (self.path / ".lock").open("w") as file:
            try:
                # Of the process alone: workers that outlive it by a few seconds do not keep it.
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise VitreousError(f"{self.path} is in use: another process is training there") from None
            for rest in self.path.glob(".*.tmp"):  # of files that a killed process was writing
                rest.unlink(missing_ok=True)
            yield

    def record(self, line: dict[str, Any]) -> None:
        with self._writing(self.metrics) as file:
            file.write(json.dumps(line) + "\n")

    def records(self) -> list[dict[str, Any]]:
        """The lines so far; one that was cut off by a kill is not counted."""
        if not self.metrics.exists():
            return []
        found = []
        for line in self.metrics.read_text().splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return found

    def rewind(self, step: int) -> None:
        """Forget the lines of steps that will be trained again."""
        kept = [line for line in self.records() if line.get("step", 0) <= step]
        with replacing(self.metrics) as temporary:
            temporary.write_text("".join(json.dumps(line) + "\n" for line in kept))

    def name_bad(self, lines: Sequence[str]) -> None:
        """Add to `bad_images.txt` what is not there yet."""
        path = self.path / "bad_images.txt"
        there = path.read_text(errors="surrogateescape").splitlines() if path.exists() else []
        if fresh := [line for line in dict.fromkeys(lines) if line not in there]:
            with self._writing(path) as file:
                file.writelines(f"{line}\n" for line in fresh)

    @contextmanager
    def _writing(self, path: Path) -> Iterator[Any]:
        try:
            with path.open("a", encoding="utf-8", errors="surrogateescape") as file:
                yield file
        except OSError as error:
            raise VitreousError(f"{path} cannot be written ({error.strerror})") from error


def environment(device: torch.device) -> dict[str, str]:
    """Versions and hardware, for whoever wants the same numbers."""
    found = {
        "vitreous": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpu": f"{_cpu()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads",
    }
    if device.type == "cuda":
        found |= {"gpu": torch.cuda.get_device_name(device), "cuda": str(torch.version.cuda)}
    return found


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def program() -> str:
    """What to type for `vitreous`: from an environment that is not on the path, where it lies."""
    called = Path(sys.argv[0])
    if called.name != "vitreous" or shutil.which("vitreous"):
        return "vitreous"
    return os.path.relpath(called) if called.is_relative_to(Path.cwd()) else str(called)


def command() -> str:
    """What was typed."""
    called, *arguments = sys.argv
    name = Path(called).name
    return shlex.join(["vitreous" if name == "__main__.py" else name, *arguments])
