"""Cells in several processes, and signals: kill -9, Ctrl-C and SIGTERM of a sweep, of a cell and of its process."""

import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import command
import grids
from runs import start, step_of
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


def wait_until(condition: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 120
    while not condition() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    assert process.poll() is None, process.communicate()


def is_training(out: Path, cells: int, step: int) -> bool:
    """Whether so many cells have started, and one of them that is not done has reached a step."""
    runs = [path for path in (out / "cells").glob("long-*") if path.is_dir()]
    unfinished = [path for path in runs if not path.with_name(f"{path.name}.json").exists()]
    return len(runs) >= cells and any(step_of(path) >= step for path in unfinished)


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


@pytest.mark.parametrize(("jobs", "cells"), [(1, 2), (2, 2)])
def test_a_killed_sweep_continues_bit_by_bit(
    uninterrupted: ExperimentResult, tmp_path: Path, jobs: int, cells: int
) -> None:
    step = random.SystemRandom().randrange(1, 60)
    process = launch(tmp_path, "--jobs", jobs)
    wait_until(lambda: is_training(tmp_path, cells, step), process)
    process.kill()
    process.wait()
    # Its own processes may still be alive for a moment.
    assert_same(run(LONG, tmp_path), uninterrupted)
    process.communicate(timeout=30)
    assert_nothing_left(process)


@needs_proc
@pytest.mark.parametrize("moment", ["start", "train"])
def test_ctrl_c_reaches_all_processes(uninterrupted: ExperimentResult, tmp_path: Path, moment: str) -> None:
    """A terminal sends SIGINT to all processes of its group. One cell is left to run, to save time."""
    out = tmp_path / "out"
    assert uninterrupted.folder is not None
    shutil.copytree(uninterrupted.folder.parent, out)
    last = uninterrupted.records.cells[-1].run
    shutil.rmtree(out / "cells" / last)
    (out / "cells" / f"{last}.json").unlink()
    process = launch(out, "--jobs", 2)
    if moment == "start":
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        wait_until(lambda: len(children.read_text().split()) >= 2, process)
        time.sleep(random.SystemRandom().uniform(0, 1))
    else:
        wait_until(lambda: is_training(out, 4, 5), process)
    os.killpg(process.pid, signal.SIGINT)
    assert_stopped(process, signal.SIGINT, done=3)
    assert_same(run(LONG, out), uninterrupted)


def test_sigterm_stops_two_processes(uninterrupted: ExperimentResult, tmp_path: Path) -> None:
    process = launch(tmp_path, "--jobs", 2)
    wait_until(lambda: is_training(tmp_path, 2, 5), process)
    process.send_signal(signal.SIGTERM)
    assert_stopped(process, signal.SIGTERM)
    assert list((tmp_path / "cells").glob("long-*/state/*"))  # the runs have saved their states
    assert_same(run(LONG, tmp_path), uninterrupted)


def assert_stopped(process: "subprocess.Popen[str]", number: int, done: int | None = None) -> None:
    printed, error = process.communicate(timeout=60)
    assert process.returncode == 128 + number, error
    assert printed == ""
    lines = [line for line in error.splitlines() if line != "vitreous: 3 cells of 4 are done already"]
    count = r"\d" if done is None else done
    message = rf"vitreous: stopped: {count} of 4 cells are done, the others are saved; to continue, give the same"
    assert len(lines) == 1, error
    assert re.fullmatch(f"{message} command again", lines[0]), error
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
