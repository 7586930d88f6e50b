"""Worker processes that die, cannot be started, or are still alive when the main process ends."""

import os
import signal
import subprocess
import sys
import tempfile
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


class SlowItems(LargeItems):
    def __getitem__(self, index: int) -> Any:
        time.sleep(1)
        return index


def signals_while_waiting() -> tuple[int, bool]:
    """How often the caller's handler is called for a process of its own that ends while the main process waits for an
    item; and whether it is restored."""
    calls: list[int] = []

    def own(number: int, frame: object) -> None:
        calls.append(number)

    signal.signal(signal.SIGCHLD, own)
    items = iterate_loader(DataLoader(SlowItems(), batch_size=None, num_workers=1, worker_init_fn=start_worker))
    threading.Timer(0.2, lambda: subprocess.Popen([sys.executable, "-c", ""])).start()
    next(items)
    return len(calls), signal.getsignal(signal.SIGCHLD) is own


def test_a_handler_of_the_calling_program_is_still_called() -> None:
    count, restored = limited(signals_while_waiting, seconds=60)
    assert count >= 1
    assert restored


def test_a_handler_that_python_cannot_restore(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a handler that was not installed from Python, both functions return None, which cannot be installed."""
    _, items = batches()
    install = signal.signal
    monkeypatch.setattr(signal, "getsignal", lambda number: None)
    monkeypatch.setattr(signal, "signal", lambda number, handler: (install(number, handler), None)[1])
    try:
        assert len(list(items)) == 39
    finally:
        install(signal.SIGCHLD, signal.SIG_DFL)


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


SHARED_TENSORS = """
import os, signal, sys, torch
from torch.utils.data import DataLoader, TensorDataset
from vitreous.data.workers import iterate_loader, start_worker
items = iterate_loader(DataLoader(TensorDataset(torch.zeros(64, 9)), num_workers=2, worker_init_fn=start_worker))
next(items)
if sys.argv[1:]:
    os.killpg(0, signal.SIGKILL)
"""


def run_with_temporary_folder(folder: Path, *arguments: str) -> list[str]:
    """Run the program above, and return the names of what it leaves in the folder for temporary files."""
    command, environment = [sys.executable, "-c", SHARED_TENSORS, *arguments], {**os.environ, "TMPDIR": str(folder)}
    subprocess.run(command, env=environment, check=not arguments, timeout=60, start_new_session=True)
    return [path.name for path in folder.iterdir()]


def test_sockets_of_killed_processes_are_removed() -> None:
    """By the next process that starts workers; a process that ends normally leaves nothing."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        assert run_with_temporary_folder(folder) == []
        (left,) = run_with_temporary_folder(folder, "killed")
        assert left.startswith(".vitreous-workers.")
        assert run_with_temporary_folder(folder) == []


def test_a_long_path_for_temporary_files(tmp_path: Path) -> None:
    """The path of a socket is limited to 107 characters. Without a socket the main process would wait forever."""
    folder = tmp_path / ("long" * 25)
    folder.mkdir()
    assert run_with_temporary_folder(folder) == []
