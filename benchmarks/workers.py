"""Processes for contestants.py: prepared beside each other, timed alone, and every answer written down at once."""

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from contestants import Cell

Row = dict[str, Any]
# Whatever is compiled is kept in one of these.
CACHES = {
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "TORCH_EXTENSIONS_DIR": "extensions",
    "CUDA_CACHE_PATH": "cuda",
    "XDG_CACHE_HOME": "xdg",
}


class Worker:
    """A process that holds one contestant at a time, and the cells that wait for it."""

    def __init__(self, who: str, queue: list[Cell], device: str, caches: Path, threads: int | None, patience: float):
        self.who, self.queue, self.patience, self.dead = who, queue, patience, False
        self.log = caches / f"{who}-{time.monotonic_ns()}.log"
        settings = {**os.environ, **{name: str(caches / folder) for name, folder in CACHES.items()}}
        if threads is not None:  # or those that compile beside each other fight for cores
            settings |= {"TORCHINDUCTOR_COMPILE_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("contestants.py")), device],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=settings,
            )
        self.ask("hello", who=who)

    def ask(self, order: str, **details: Any) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # the answer will tell
            self.process.stdin.write(json.dumps({"do": order, **details}) + "\n")
            self.process.stdin.flush()

    def answer(self) -> Row:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], self.patience)
        if ready and (line := self.process.stdout.readline()):
            found: Row = json.loads(line)
            return found
        self.close()
        said = self.log.read_text().strip().splitlines()[-1:]
        why = f"it ended with {self.process.returncode}" if ready else f"no answer in {self.patience:.0f} s"
        return {"failed": "; ".join([why, *said])}

    def close(self) -> None:
        self.dead = True
        self.process.kill()
        self.process.wait()


@dataclass(frozen=True)
class Lines:
    """The file of all measurements, appended to as they come."""

    path: Path

    def add(self, kind: str, row: Row) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps({"kind": kind, **row}) + "\n")

    def read(self) -> Iterator[Row]:
        for line in self.path.read_text().splitlines() if self.path.exists() else []:
            yield json.loads(line)


@dataclass
class Benchmark:
    device: str
    lines: Lines
    caches: Path
    jobs: int
    minutes: float  # nothing is begun after so many
    patience: float
    began: float = field(default_factory=time.monotonic)

    @property
    def late(self) -> bool:
        return time.monotonic() > self.began + 60 * self.minutes

    def worker(self, who: str, queue: list[Cell], caches: Path | None = None) -> Worker:
        """With `caches` of its own it is alone, and has all cores."""
        beside = self.device == "cuda" and caches is None
        threads = max(2, (os.cpu_count() or 2) // self.jobs) if beside else None
        return Worker(who, queue, self.device, caches or self.caches, threads, self.patience)

    def greeted(self, worker: Worker) -> bool:
        """Whether it is there. What cannot even be imported fails with all of its cells."""
        said = worker.answer()
        if "failed" not in said:
            self.lines.add("environment", {worker.who: said["version"]})
            return True
        for cell in worker.queue:
            self._failed(cell, said)
        worker.close()
        return False

    def machine(self) -> None:
        worker = self.worker("machine", [])
        if self.greeted(worker):
            worker.ask("machine")
            found = worker.answer()
            self.lines.add("failed" if "failed" in found else "machine", {"who": "machine", **found})
            print(f"machine: {found}", flush=True)
        worker.close()

    def rounds(self, cells: list[Cell], repeats: int | None, warm: bool) -> None:
        """In each round every process prepares its next cell beside the others; then they are timed one by one."""
        groups: dict[tuple[str, ...], list[Cell]] = {}
        for cell in cells:
            groups.setdefault((cell.who, cell.model, cell.task, cell.axis), []).append(cell)
        queues, running = list(groups.values()), list[Worker]()
        while (queues or running) and not self.late:
            room = max(0, self.jobs - len(running))
            fresh = [self.worker(queue[0].who, queue) for queue in queues[:room]]
            queues = queues[room:]
            running += [worker for worker in fresh if self.greeted(worker)]
            ready = self._prepare(running)
            for worker in ready if not warm else ():
                self._time(worker, repeats)
            for worker in running:
                worker.queue.pop(0)
                if not worker.queue:
                    worker.close()
            queues = [worker.queue for worker in running if worker.dead and worker.queue] + queues
            running = [worker for worker in running if not worker.dead]
        for worker in running:
            worker.close()
        if left := sum(len(queue) for queue in queues) + sum(len(worker.queue) for worker in running):
            print(f"out of time: {left} cells were not measured", flush=True)

    def startup(self, cells: list[Cell]) -> None:
        """From the call to the end of the first step, with nothing in any cache and nobody beside it."""
        for cell in cells:
            if self.late:
                return
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as empty:
                worker = self.worker(cell.who, [cell], Path(empty))
                if self.greeted(worker):
                    worker.ask("prepare", **asdict(cell))
                    told = worker.answer()
                    if "failed" in told:
                        self._failed(cell, told)
                    else:
                        self.lines.add("startup", {**asdict(cell), **told})
                        print(f"{cell}: start-up {told['first_seconds']:.1f} s", flush=True)
                    worker.close()

    def _prepare(self, workers: list[Worker]) -> list[Worker]:
        """Those that are ready. Where memory runs out, once more when the others have given back what they can."""
        again, ready = [], []
        for worker in workers:
            worker.ask("prepare", **asdict(worker.queue[0]))
        for worker in workers:
            told = worker.answer()
            if told.get("out_of_memory"):
                again.append(worker)
            elif self._told(worker.queue[0], told):
                ready.append(worker)
        for worker in again:
            worker.ask("prepare", **asdict(worker.queue[0]))
            if self._told(worker.queue[0], worker.answer()):
                ready.append(worker)
        return ready

    def _time(self, worker: Worker, repeats: int | None) -> None:
        cell = worker.queue[0]
        worker.ask("time", repeats=repeats)
        row = worker.answer()
        if "failed" in row:
            self._failed(cell, row)
            return
        self.lines.add("time", {**asdict(cell), **row})
        speed = f"{row['images_per_second']:,.1f} images/s, {row['ms']:.2f} ms, {row['peak_gib']} GiB"
        print(f"{cell}: {speed} ({row.get('path', cell.variant)})", flush=True)

    def _told(self, cell: Cell, told: Row) -> bool:
        if "failed" in told:
            self._failed(cell, told)
            return False
        print(f"  ready: {cell}, after {told['first_seconds']} s", flush=True)
        return True

    def _failed(self, cell: Cell, told: Row) -> None:
        self.lines.add("failed", {**asdict(cell), "failed": told["failed"]})
        print(f"{cell}: failed: {told['failed']}", flush=True)
