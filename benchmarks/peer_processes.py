"""Run peer_worker.py processes for peers.py: they prepare in parallel and are timed one at a time.

Each result is appended to a file as soon as it is measured.
"""

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

from peer_models import Measurement

Row = dict[str, Any]
# The compilers' cache folders, by the environment variable that sets each of them.
COMPILER_CACHES = {
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "TORCH_EXTENSIONS_DIR": "extensions",
    "CUDA_CACHE_PATH": "cuda",
    "XDG_CACHE_HOME": "xdg",
}


class WorkerProcess:
    """A process that runs peer_worker.py, and the measurements it still has to make (`queue`)."""

    def __init__(
        self, who: str, queue: list[Measurement], device: str, caches: Path, threads: int | None, timeout: float
    ):
        self.who, self.queue, self.timeout, self.dead = who, queue, timeout, False
        self.log = caches / f"{who}-{time.monotonic_ns()}.log"
        settings = {**os.environ, **{name: str(caches / folder) for name, folder in COMPILER_CACHES.items()}}
        if threads is not None:  # share the cores among processes that compile at the same time
            settings |= {"TORCHINDUCTOR_COMPILE_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("peer_worker.py")), device],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=settings,
            )
        self.send("hello", who=who)

    def send(self, request: str, **details: Any) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # `receive` reports that the process has ended
            self.process.stdin.write(json.dumps({"request": request, **details}) + "\n")
            self.process.stdin.flush()

    def receive(self) -> Row:
        """Return the next answer. If none comes, end the process and return {"failed": reason}."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], self.timeout)
        if ready and (line := self.process.stdout.readline()):
            answer: Row = json.loads(line)
            return answer
        self.close()
        last_line = self.log.read_text().strip().splitlines()[-1:]
        reason = f"exit status {self.process.returncode}" if ready else f"no answer in {self.timeout:.0f} s"
        return {"failed": "; ".join([reason, *last_line])}

    def close(self) -> None:
        self.dead = True
        self.process.kill()
        self.process.wait()


@dataclass(frozen=True)
class MeasurementLog:
    """A file with one line of JSON for each measurement, appended to while the benchmark runs."""

    path: Path

    def append(self, kind: str, row: Row) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps({"kind": kind, **row}) + "\n")

    def read(self) -> Iterator[Row]:
        for line in self.path.read_text().splitlines() if self.path.exists() else []:
            yield json.loads(line)


@dataclass
class PeerBenchmark:
    """Distribute measurements over worker processes and write the results to `log`."""

    device: str
    log: MeasurementLog
    caches: Path
    jobs: int
    minutes: float  # no measurement is started later than this
    timeout: float  # seconds to wait for an answer of a process
    began: float = field(default_factory=time.monotonic)

    @property
    def out_of_time(self) -> bool:
        return time.monotonic() > self.began + 60 * self.minutes

    def start_worker(self, who: str, queue: list[Measurement], caches: Path | None = None) -> WorkerProcess:
        """Start a process. With `caches` of its own it runs alone and may use all cores."""
        parallel = self.device == "cuda" and caches is None
        threads = max(2, (os.cpu_count() or 2) // self.jobs) if parallel else None
        return WorkerProcess(who, queue, self.device, caches or self.caches, threads, self.timeout)

    def is_ready(self, worker: WorkerProcess) -> bool:
        """Wait until the process has imported its library. If it cannot, record all its measurements as failed."""
        answer = worker.receive()
        if "failed" not in answer:
            self.log.append("environment", {worker.who: answer["version"]})
            return True
        for measurement in worker.queue:
            self._record_failure(measurement, answer)
        worker.close()
        return False

    def measure_machine(self) -> None:
        """Measure the machine's peak FLOP/s and memory bandwidth."""
        worker = self.start_worker("machine", [])
        if self.is_ready(worker):
            worker.send("machine")
            answer = worker.receive()
            self.log.append("failed" if "failed" in answer else "machine", {"who": "machine", **answer})
            print(f"machine: {answer}", flush=True)
        worker.close()

    def measure_steps(self, measurements: list[Measurement], repeats: int | None, compile_only: bool) -> None:
        """Work in rounds: all processes prepare their next measurement in parallel, then each is timed alone."""
        groups: dict[tuple[str, ...], list[Measurement]] = {}
        for measurement in measurements:
            key = (measurement.who, measurement.model, measurement.task, measurement.axis)
            groups.setdefault(key, []).append(measurement)
        queues, running = list(groups.values()), list[WorkerProcess]()
        while (queues or running) and not self.out_of_time:
            room = max(0, self.jobs - len(running))
            started = [self.start_worker(queue[0].who, queue) for queue in queues[:room]]
            queues = queues[room:]
            running += [worker for worker in started if self.is_ready(worker)]
            prepared = self._prepare(running)
            for worker in prepared if not compile_only else ():
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
            print(f"out of time: {left} measurements were not made", flush=True)

    def measure_startup(self, measurements: list[Measurement]) -> None:
        """Measure the time from the call to the end of the first step, with empty caches and no other process."""
        for measurement in measurements:
            if self.out_of_time:
                return
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as empty:
                worker = self.start_worker(measurement.who, [measurement], Path(empty))
                if self.is_ready(worker):
                    worker.send("prepare", **asdict(measurement))
                    answer = worker.receive()
                    if "failed" in answer:
                        self._record_failure(measurement, answer)
                    else:
                        self.log.append("startup", {**asdict(measurement), **answer})
                        print(f"{measurement}: start-up {answer['first_seconds']:.1f} s", flush=True)
                    worker.close()

    def _prepare(self, workers: list[WorkerProcess]) -> list[WorkerProcess]:
        """Return the prepared processes. One that ran out of memory tries again after the others have finished."""
        retry, prepared = [], []
        for worker in workers:
            worker.send("prepare", **asdict(worker.queue[0]))
        for worker in workers:
            answer = worker.receive()
            if answer.get("out_of_memory"):
                retry.append(worker)
            elif self._succeeded(worker.queue[0], answer):
                prepared.append(worker)
        for worker in retry:
            worker.send("prepare", **asdict(worker.queue[0]))
            if self._succeeded(worker.queue[0], worker.receive()):
                prepared.append(worker)
        return prepared

    def _time(self, worker: WorkerProcess, repeats: int | None) -> None:
        measurement = worker.queue[0]
        worker.send("time", repeats=repeats)
        row = worker.receive()
        if "failed" in row:
            self._record_failure(measurement, row)
            return
        self.log.append("time", {**asdict(measurement), **row})
        speed = f"{row['images_per_second']:,.1f} images/s, {row['ms']:.2f} ms, {row['peak_gib']} GiB"
        print(f"{measurement}: {speed} ({row.get('path', measurement.variant)})", flush=True)

    def _succeeded(self, measurement: Measurement, answer: Row) -> bool:
        if "failed" in answer:
            self._record_failure(measurement, answer)
            return False
        print(f"  prepared in {answer['first_seconds']} s: {measurement}", flush=True)
        return True

    def _record_failure(self, measurement: Measurement, answer: Row) -> None:
        self.log.append("failed", {**asdict(measurement), "failed": answer["failed"]})
        print(f"{measurement}: failed: {answer['failed']}", flush=True)
