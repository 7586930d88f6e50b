"""Cells in several processes, and signals: kill -9, Ctrl-C and SIGTERM of a sweep, of a cell and of its process."""

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import command
import grids
from runs import is_training, start, wait_until
from vitreous.experiments.experiment_result import ExperimentResult
from vitreous.experiments.reproduce import reproduce

SMALL, LONG = f"{grids.FILE}:SMALL", f"{grids.FILE}:LONG"
needs_proc = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs /proc")


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Values are compared bit by bit, and other numbers of threads add up in another order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield
    torch.set_num_threads(threads)


def run(name: str, out: Path, **fields: Any) -> ExperimentResult:
    return reproduce(name, out=out, device="cpu", quiet=True, **fields)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> ExperimentResult:
    return run(SMALL, tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> ExperimentResult:
    return run(LONG, tmp_path_factory.mktemp("long"))


def values(result: ExperimentResult) -> list[Any]:
    return [(dict(cell.factors), cell.seed, dict(cell.values), cell.error) for cell in result.records]


def assert_same(found: ExperimentResult, expected: ExperimentResult) -> None:
    assert values(found) == values(expected)
    for name in ("table.md", "table.csv"):
        assert (found.folder / name).read_bytes() == (expected.folder / name).read_bytes()  # type: ignore[operator]


def launch(out: Path, *options: object) -> "subprocess.Popen[str]":
    arguments = ("reproduce", LONG, "--out", out, "--device", "cpu", *options)
    return start(*arguments, cwd=grids.FILE.parent, start_new_session=True)


def group_is_empty(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def assert_nothing_left(process: "subprocess.Popen[str]", seconds: float = 5.0) -> None:
    """All processes of the group end."""
    deadline = time.monotonic() + seconds
    while not group_is_empty(process.pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    left = not group_is_empty(process.pid)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    assert not left


@pytest.fixture
def one_left(uninterrupted: ExperimentResult, tmp_path: Path) -> Path:
    """An output folder in which one cell is left to run: this saves time."""
    assert uninterrupted.folder is not None
    shutil.copytree(uninterrupted.folder.parent, tmp_path / "out")
    last = tmp_path / "out" / "cells" / uninterrupted.records.cells[-1].run
    shutil.rmtree(last)
    last.with_name(f"{last.name}.json").unlink()
    return tmp_path / "out"


def test_a_killed_sweep_continues_bit_by_bit(uninterrupted: ExperimentResult, one_left: Path) -> None:
    process = launch(one_left)
    step = random.SystemRandom().randrange(1, 50)
    wait_until(lambda: is_training(one_left, 4, step), process)
    process.kill()
    process.communicate()
    assert_same(run(LONG, one_left), uninterrupted)


def test_processes_of_a_killed_sweep_end(uninterrupted: ExperimentResult, tmp_path: Path) -> None:
    """The same command continues at once, although they may be alive for another moment."""
    process = launch(tmp_path, "--jobs", 2)
    step = random.SystemRandom().randrange(1, 50)
    wait_until(lambda: is_training(tmp_path, 2, step), process)
    process.kill()
    process.wait()
    assert_same(run(LONG, tmp_path), uninterrupted)
    process.communicate(timeout=30)
    assert_nothing_left(process)


@needs_proc
@pytest.mark.parametrize(("number", "moment"), [(signal.SIGINT, "start"), (signal.SIGTERM, "train")])
def test_a_signal_stops_all_processes(
    uninterrupted: ExperimentResult, one_left: Path, number: signal.Signals, moment: str
) -> None:
    process = launch(one_left, "--jobs", 2)
    if moment == "start":
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        wait_until(lambda: len(children.read_text().split()) >= 2, process)
        time.sleep(random.SystemRandom().uniform(0, 1))
    else:
        wait_until(lambda: is_training(one_left, 4, 5), process)
    if number == signal.SIGINT:  # a terminal sends it to all processes of its group
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    assert_stopped(process, number)
    if moment == "train":
        assert list((one_left / "cells").glob("long-16-seed1-*/state/*"))  # the run has saved its state
        assert_same(run(LONG, one_left), uninterrupted)


def assert_stopped(process: "subprocess.Popen[str]", number: int) -> None:
    printed, error = process.communicate(timeout=60)
    assert process.returncode == 128 + number, error
    assert printed == ""
    lines = [line for line in error.splitlines() if line != "vitreous: 3 cells of 4 are done already"]
    message = "vitreous: stopped: 3 of 4 cells are done, the others are saved; to continue, give the same command again"
    assert lines == [message]
    assert_nothing_left(process)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_a_cell_is_measured(
    small: ExperimentResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    handler = signal.getsignal(number)
    monkeypatch.setenv(grids.FAULT, f"16-0:{number.name}")
    result = command.vitreous("reproduce", SMALL, "--out", tmp_path, "--device", "cpu")
    assert result.returncode == 128 + number
    assert result.stderr.strip().splitlines()[-1] == (
        "vitreous: stopped: 2 of 4 cells are done, the others are saved; to continue, give the same command again"
    )
    assert result.stdout == ""
    assert signal.getsignal(number) == handler
    monkeypatch.delenv(grids.FAULT)
    assert_same(run(SMALL, tmp_path), small)
    assert not list((tmp_path / "cells").glob(".*.features"))


def test_a_killed_process_is_a_failed_cell(
    small: ExperimentResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes give the same values as one; the cell whose process was killed is tried again by the next call."""
    monkeypatch.setenv(grids.FAULT, "16-0:SIGKILL")
    arguments = ("reproduce", SMALL, "--out", tmp_path, "--device", "cpu")
    result = command.vitreous(*arguments, "--jobs", 2)
    assert result.returncode == 1
    reason = "its process was killed by signal 9; the memory may be full: use fewer --jobs"
    assert f"failed: 16, seed 0: {reason}" in result.stdout
    assert f"small: 16, seed 0 failed: {reason}" in result.stderr
    assert f"- failed: 16, seed 0: {reason}" in (tmp_path / "small-tiny" / "report.md").read_text()
    found = ExperimentResult.read(tmp_path / "small-tiny" / "result.json", grids.SMALL)
    assert [cell.error for cell in found.records] == ["", "", reason, ""]
    assert values(found)[:2] + values(found)[3:] == values(small)[:2] + values(small)[3:]
    monkeypatch.delenv(grids.FAULT)
    again = command.vitreous(*arguments)
    assert again.returncode == 0, again.stderr
    assert "3 cells of 4 are done already" in again.stderr
    assert_same(run(SMALL, tmp_path), small)
