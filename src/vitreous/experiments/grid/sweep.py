"""Run the cells of a grid: one after the other in this process, or side by side in several processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.resource_tracker import ensure_running as start_resource_tracker
from types import FrameType

import torch

from vitreous.data.workers import end_with_parent
from vitreous.errors import VitreousError, format_count
from vitreous.experiments.grid.cell_runs import CellTask, run_cell, stored_record
from vitreous.experiments.grid.experiment import CellRecord
from vitreous.training.signals import Stopped, StopSignals
from vitreous.utils.import_path import import_object
from vitreous.utils.progress import ProgressReporter
from vitreous.utils.system_calls import STOP_SIGNALS, blocked_signals, unblock_signals

POLL_SECONDS = 0.5
STOP_SECONDS = 60.0  # that processes get to save their state after a signal


@dataclass
class Sweep:
    """The cells that are still to be run, those that run, and the results so far."""

    tasks: Mapping[str, CellTask]  # by key
    starts: Mapping[str, str]  # key of the cell that a cell starts from
    work: Mapping[str, float]  # expected amount of work of each cell, for the time left
    reporter: ProgressReporter
    imports: Sequence[str] = ()  # import paths of experiments from files, for other processes
    noun: str = "cell"  # in messages
    records: dict[str, CellRecord] = field(default_factory=dict)

    def run(self, jobs: int, devices: Sequence[str]) -> dict[str, CellRecord]:
        """Run all cells that have no stored result. A failed cell does not stop the others."""
        for key, task in self.tasks.items():
            if (stored := stored_record(task)) is not None:
                self.records[key] = stored
        waiting = [key for key in self.tasks if key not in self.records]
        if not waiting:
            return self.records
        if reused := len(self.records):
            self.reporter.note(f"{format_count(reused, self.noun)} of {len(self.tasks)} are done already")
        for task in self.tasks.values():
            task.folder.mkdir(parents=True, exist_ok=True)
        progress = CellProgress(self, waiting)
        with self.reporter.bar(f"{len(waiting)} {self.noun}s", progress.total) as advance:
            progress.advance = advance
            try:
                alone = [key for key in waiting if self.tasks[key].cell.alone]
                others = [key for key in waiting if key not in alone]
                if jobs * len(devices) == 1:
                    self._run_here(others, devices[0], progress)
                else:
                    self._run_in_processes(others, [device for _ in range(jobs) for device in devices], progress)
                self._run_here(alone, devices[0], progress)
            except KeyboardInterrupt as stop:
                number = stop.number if isinstance(stop, Stopped) else signal.SIGINT
                finished = [record for record in self.records.values() if not record.error]
                done = f"{len(finished)} of {len(self.tasks)} {self.noun}s are done"
                message = f"stopped: {done}, the others are saved; to continue, give the same command again"
                raise Stopped(message, number) from None
        return self.records

    def prepared(self, key: str, device: str) -> CellTask | CellRecord:
        """Return the task with its device and initial weights, or the record of a cell that cannot be run."""
        task = self.tasks[key]
        if (start := self.starts.get(key)) is None:
            return replace(task, device=device)
        before = self.records[start]
        if before.error:
            reason = f"the run that it starts from has failed: {before.error}"
            return CellRecord(dict(task.cell.factors), task.cell.seed, {}, reason, key=key)
        return replace(task, device=device, start_weights=task.folder / before.run / "last.safetensors")

    def is_ready(self, key: str) -> bool:
        return self.starts.get(key) is None or self.starts[key] in self.records

    def finish(self, key: str, record: CellRecord) -> None:
        self.records[key] = record
        if record.error:
            self.reporter.note(f"{self.tasks[key].title} failed: {record.error}")

    def _run_here(self, waiting: list[str], device: str, progress: CellProgress) -> None:
        queue = list(waiting)
        with RaisedSignals():
            while queue:
                key = next(key for key in queue if self.is_ready(key))
                queue.remove(key)
                task = self.prepared(key, device)
                progress.start(key)
                self.finish(key, task if isinstance(task, CellRecord) else run_cell(task))
                progress.end(key)
                if device != "cpu" and torch.cuda.is_available():
                    torch.cuda.empty_cache()

    def _run_in_processes(self, waiting: list[str], devices: Sequence[str], progress: CellProgress) -> None:
        queue = sorted(waiting, key=lambda key: -self.work[key])  # long cells first: the processes end together
        threads = max(1, (os.cpu_count() or 1) // len(devices))
        workers = [CellWorker(device, threads, self.imports) for device in devices[: len(waiting)]]
        try:
            with StopSignals() as signals:
                while queue or any(worker.key for worker in workers):
                    for worker in workers:
                        if worker.key is None and (key := next(filter(self.is_ready, queue), None)) is not None:
                            queue.remove(key)
                            self._give(worker, key, progress)
                    finished = self._finished(workers)
                    if signals.received is not None:  # Ctrl-C has ended the other processes, too: nothing has failed
                        raise Stopped("", signals.received)
                    for worker in finished:
                        key, record = worker.collect(self.tasks)
                        self.finish(key, record)
                        progress.end(key)
        finally:
            for worker in workers:
                worker.stop()
            for worker in workers:
                worker.join()

    def _give(self, worker: CellWorker, key: str, progress: CellProgress) -> None:
        task = self.prepared(key, worker.device)
        progress.start(key)
        if isinstance(task, CellRecord):
            self.finish(key, task)
            progress.end(key)
        else:
            worker.give(key, task)

    @staticmethod
    def _finished(workers: Sequence[CellWorker]) -> list[CellWorker]:
        """Return the workers that have a result or have died, after waiting for a short time."""
        busy = [worker for worker in workers if worker.key is not None and worker.connection is not None]
        ready = wait([worker.connection for worker in busy if worker.connection], POLL_SECONDS) if busy else []
        return [worker for worker in busy if worker.connection in ready]


class RaisedSignals(StopSignals):
    """Inside this context a signal stops at once. Training has its own context, and saves its state first."""

    def _store(self, number: int, frame: FrameType | None) -> None:
        raise Stopped("", number)


class CellProgress:
    """Progress of the whole grid in units of expected work, so that the time left takes the size of cells into account.
    The text shows the cells that run."""

    UNITS = 10_000

    def __init__(self, sweep: Sweep, waiting: Sequence[str]):
        self.sweep, self.waiting = sweep, waiting
        self.total = self.UNITS
        self.running: list[str] = []
        self.ended = 0
        self.started = time.monotonic()
        self.advance: Callable[..., None] = lambda *_: None
        self._sum = sum(sweep.work[key] for key in waiting) or 1.0
        self._shown = 0

    def start(self, key: str) -> None:
        self.running.append(key)
        self._show(0)

    def end(self, key: str) -> None:
        self.running.remove(key)
        self.ended += 1
        done = sum(self.sweep.work[one] for one in self.waiting if one in self.sweep.records)
        units = round(self.UNITS * done / self._sum)
        self._show(units - self._shown)
        self._shown = units

    def _show(self, units: int) -> None:
        minutes = (time.monotonic() - self.started) / 60
        rate = f", {self.ended / minutes:.1f} {self.sweep.noun}s/min" if self.ended and minutes > 0 else ""
        names = "; ".join(self.sweep.tasks[key].title for key in self.running[:2])
        more = f" and {len(self.running) - 2} more" if len(self.running) > 2 else ""
        self.advance(units, f"{self.ended} of {len(self.waiting)} {self.sweep.noun}s{rate}", f"{names}{more}")


def cell_devices(device: torch.device) -> list[str]:
    """Return the devices that cells run on: all GPUs if the first one was chosen automatically."""
    if device.type == "cuda" and device.index in (None, 0):
        return [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    return [str(device)]


def refuse_in_new_process(function: str) -> None:
    """Raise an error in a process that imports the script which started it, and would start processes again."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise VitreousError(
            f"{function}(jobs=...) starts processes that import the script which called it: put the call under"
            " if __name__ == '__main__':"
        )


# ---------------------------------------------------------------- processes


class CellWorker:
    """A process that runs cells, one after the other. If it dies, its cell has failed, and a new one is started."""

    def __init__(self, device: str, threads: int, imports: Sequence[str]):
        self.device, self.threads, self.imports = device, threads, tuple(imports)
        self.key: str | None = None  # of the cell that it runs
        self.connection: Connection | None = None
        self.process: BaseProcess | None = None

    def give(self, key: str, task: CellTask) -> None:
        if self.process is None:
            context = multiprocessing.get_context("spawn")
            self.connection, theirs = context.Pipe()
            arguments = (theirs, self.threads, self.imports)
            self.process = context.Process(target=serve_cells, args=arguments, daemon=False)
            start_resource_tracker()  # it would unblock signals
            with blocked_signals(STOP_SIGNALS):  # until the process has its own handlers: no traceback after Ctrl-C
                self.process.start()
            theirs.close()
        assert self.connection is not None
        self.key = key
        with suppress(BrokenPipeError):  # it was killed while it was idle: `collect` returns that
            self.connection.send(task)

    def collect(self, tasks: Mapping[str, CellTask]) -> tuple[str, CellRecord]:
        """Return the result of the cell. Call it when the connection is ready."""
        assert self.key is not None
        assert self.connection is not None
        assert self.process is not None
        key, self.key = self.key, None
        try:
            record: CellRecord = self.connection.recv()
            return key, record
        except (EOFError, OSError):
            self.process.join()
            code = self.process.exitcode or 0
            self.connection.close()
            self.process = self.connection = None
            cause = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            memory = "; the memory may be full: use fewer --jobs" if code == -signal.SIGKILL else ""
            cell = tasks[key].cell
            return key, CellRecord(dict(cell.factors), cell.seed, {}, f"its process {cause}{memory}", key=key)

    def stop(self) -> None:
        """End the process: at once if it is idle, otherwise after it has saved the state of its run."""
        if self.process is None or self.connection is None:
            return
        if self.key is not None and self.process.is_alive():
            self.process.terminate()
        self.connection.close()

    def join(self) -> None:
        if self.process is not None:
            self.process.join(STOP_SECONDS)
            if self.process.is_alive():
                self.process.kill()
                self.process.join()


def serve_cells(connection: Connection, threads: int, imports: Sequence[str]) -> None:
    """The main function of a process: receive cells, run them and send back their results."""
    end_with_parent()
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    torch.set_num_threads(min(threads, torch.get_num_threads()))  # OMP_NUM_THREADS may be lower
    try:
        unblock_signals(STOP_SIGNALS)
        for path in imports:
            import_object(path)
        while True:
            connection.send(run_cell(connection.recv()))
    except (EOFError, BrokenPipeError):
        return
    except KeyboardInterrupt:
        os._exit(130)
