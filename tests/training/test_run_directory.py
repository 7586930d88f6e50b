"""Links, pipes and devices in an untrusted run directory: nothing blocks, and nothing is written elsewhere."""

import os
from pathlib import Path

import pytest

from limits import limited
from vitreous import VitreousError
from vitreous.evaluation.cache import _read_results
from vitreous.reports.inspect_model import inspection_files
from vitreous.training.run_directory import RunDirectory
from vitreous.training.state import newest_state


def use(run: Path) -> str:
    """Lock a run directory and write to it; return the error message."""
    try:
        with RunDirectory(run).locked():
            RunDirectory(run).record({"step": 1})
    except VitreousError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", [".lock", "metrics.jsonl", "best.safetensors", "bad_images.txt"])
def test_links_pipes_and_devices_are_errors(tmp_path: Path, name: str) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    run.mkdir()
    elsewhere.write_text("precious")
    (run / name).symlink_to(elsewhere)
    expected = f"{run / name} is a link, a pipe or a device: put a regular file in its place, or remove it"
    assert limited(use, run) == expected
    assert elsewhere.read_text() == "precious"
    (run / name).unlink()
    os.mkfifo(run / name)
    assert limited(use, run, seconds=10) == expected
    (run / name).unlink()
    (tmp_path / "disk").mkdir()
    (run / "state").symlink_to(tmp_path / "disk")  # which may be on another disk
    assert limited(use, run) == ""


def reason(run: Path) -> str:
    try:
        newest_state(run / "state")
    except VitreousError as error:
        return str(error)
    return ""


def logged(run: Path) -> str:
    try:
        return str(RunDirectory(run).records())
    except VitreousError as error:
        return str(error)


def test_pipes_do_not_block(tmp_path: Path) -> None:
    state = tmp_path / "state" / "step-000000001"
    state.mkdir(parents=True)
    for name in ("sums.json", "progress.json", "tensors.safetensors"):
        os.mkfifo(state / name)
    assert "named pipe" in limited(reason, tmp_path, seconds=10)
    for name in ("metrics.jsonl", "numbers.json"):
        os.mkfifo(tmp_path / name)
    assert "metrics.jsonl: is a named pipe" in limited(logged, tmp_path, seconds=10)
    assert limited(inspection_files, tmp_path, seconds=10) == {"index.html", "numbers.json"}
    assert limited(_read_results, tmp_path / "numbers.json", seconds=10) is None
