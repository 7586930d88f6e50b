"""Worker processes that die, cannot be started, or are still alive when the main process ends."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset

from limits import limited
from vitreous import VitreousError
from vitreous.data.workers import iterate_loader, start_worker


class LargeItems(Dataset[Any]):
    """Items that are larger than the buffer of a pipe, so that a worker blocks until its message is read."""

    def __getitem__(self, index: int) -> Any:
        return bytes(1 << 22)

    def __len__(self) -> int:
        return 40


def batches() -> tuple[Any, Iterator[Any]]:
    loader: Any = DataLoader(LargeItems(), batch_size=None, num_workers=2, worker_init_fn=start_worker)
    started: list[Any] = []
    original = loader._get_iterator
    loader._get_iterator = lambda: started.append(original()) or started[0]
    items = iterate_loader(loader)
    next(items)
    return started[0], items


def read_after_a_kill(victim: int, delay: float | None) -> str:
    """The error of the iteration after one worker was killed, before or while the main process reads from the pipe."""
    iterator, items = batches()
    time.sleep(0.3)  # both workers have results now, and one of them waits in the middle of a message
    kill = lambda: os.kill(iterator._workers[victim].pid, signal.SIGKILL)  # noqa: E731
    if delay is None:
        kill()
    else:
        threading.Timer(delay, kill).start()
    try:
        for _ in items:
            if delay is not None:
                time.sleep(0.02)
    except VitreousError as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize("delay", [None, 0.0, 0.05])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_worker_that_dies_in_the_middle_of_a_message(victim: int, delay: float | None) -> None:
    assert "a worker process that decodes images has died" in limited(read_after_a_kill, victim, delay, seconds=20)


def test_all_items_arrive_and_no_error_is_raised_at_the_end() -> None:
    _, items = batches()
    assert len(list(items)) == 39
    assert signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL


LEFT_ALIVE = """
import sys
sys.path.insert(0, {tests!r})
from test_workers import batches
kept = batches()  # a reference that outlives the program, as that of an exception in a notebook
print(*(worker.pid for worker in kept[0]._workers))
"""


def test_the_program_ends_although_workers_are_alive(tmp_path: Path) -> None:
    """multiprocessing sends SIGTERM to them at the end, which they ignore, and waits."""
    program = LEFT_ALIVE.format(tests=os.path.dirname(__file__))  # noqa: PTH120
    paths = os.pathsep.join(path for path in sys.path if path)
    printed = tmp_path / "pids"  # a pipe would stay open with the workers
    with printed.open("w") as file:
        environment = {**os.environ, "PYTHONPATH": paths}
        subprocess.run([sys.executable, "-c", program], env=environment, stdout=file, check=True, timeout=60)
    assert len(printed.read_text().split()) == 2
    for pid in printed.read_text().split():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


def start_with_few_files() -> str:
    loader: Any = DataLoader(LargeItems(), batch_size=None, num_workers=2, worker_init_fn=start_worker)
    try:
        next(iterate_loader(loader))
    except VitreousError as error:
        return str(error)
    return "no error"


def test_workers_that_cannot_be_started(capfd: pytest.CaptureFixture[str]) -> None:
    said = limited(start_with_few_files, files=12)
    assert "worker processes that decode images cannot be started" in said
    assert "Exception ignored" not in capfd.readouterr().err
