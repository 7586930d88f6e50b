"""`vitreous.runs`: status, result and differences of runs, also of damaged ones."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runs import TINY_RUN, config, start, step_of
from vitreous import RunRow, VitreousError, resume, runs, train
from vitreous.evaluation.training_images import FILE, SeenImages
from vitreous.training.run_directory import RunDirectory


@pytest.fixture(scope="module")
def finished(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("finished") / "run"
    train(folder, config(run), quiet=True)
    return run


@pytest.fixture
def place(finished: Path, tmp_path: Path) -> Path:
    """A folder `runs` with one finished run, `a`."""
    shutil.copytree(finished, tmp_path / "runs" / "a")
    return tmp_path / "runs"


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def configured(run: Path, **fields: Any) -> None:
    config = json.loads((run / "config.json").read_text())["config"]
    change(run / "config.json", config={**config, **fields})


def changed_accuracy(run: Path, top1: float) -> None:
    result = json.loads((run / "result.json").read_text())["result"]
    change(run / "result.json", result={**result, "top1": top1})


def only(rows: list[RunRow]) -> RunRow:
    assert len(rows) == 1
    return rows[0]


def test_finished_run(place: Path, folder: Path) -> None:
    row = only(runs(place))
    result = json.loads((place / "a" / "result.json").read_text())
    assert (row.name, row.status, row.detail, row.data) == ("a", "complete", "", str(folder))
    assert (row.metric, row.value, row.split, row.images) == ("top1", result["result"]["top1"], "val", 14)
    assert row.interval == pytest.approx(result["result"]["interval"])
    assert (row.best_metric, row.best_value, row.best_step) == ("top1", result["best"]["value"], result["best"]["step"])
    assert (row.steps, row.total_steps, row.device) == (12, 12, "cpu")
    assert row.epochs == pytest.approx(12 * 16 / 58, abs=1e-3)
    assert row.differences == {}
    assert row.settings["lr"] > 0  # chosen from the data
    assert row.settings["initial_weights"] == "random weights"
    json.dumps(row.to_json(), allow_nan=False)


def test_differences(place: Path) -> None:
    """Only settings that affect the weights, and only those that are not equal."""
    for name, fields in {"b": {"seed": 3, "workers": 7, "out": "x", "save_minutes": 1.0}, "c": {"lr": 0.5}}.items():
        shutil.copytree(place / "a", place / name)
        configured(place / name, **fields)
    rows = runs(place)
    assert [row.name for row in rows] == ["a", "b", "c"]
    assert [list(row.differences) for row in rows] == [["lr", "seed"]] * 3
    assert [row.differences["seed"] for row in rows] == [0, 3, 0]
    assert runs(place / "b", place / "b")[0].differences == {}


def test_values_that_json_does_not_have(place: Path) -> None:
    configured(place / "a", lr=float("inf"), betas=[float("nan"), 0.9])
    row = only(runs(place))
    assert (row.settings["lr"], row.settings["betas"]) == ("inf", ["nan", 0.9])
    json.dumps(row.to_json(), allow_nan=False)


def test_unfinished_runs(place: Path, folder: Path, tmp_path: Path) -> None:
    names = ("final", "no-state", "diverged", "search", "extended", "old")
    for name in names:
        shutil.copytree(place / "a", place / name)
        (place / name / "result.json").unlink()
    shutil.rmtree(place / "no-state" / "state")
    (place / "diverged" / "bad_batch.txt").write_text("x.jpg\n")
    configured(place / "search", lr=None, lr_candidates=[1e-3, 1e-4])
    change(place / "search" / "config.json", rates=[{"lr": 1e-3}])
    shutil.copy(place / "a" / "result.json", place / "extended" / "result.json")
    legs = [
        {"duration": "12 steps", "steps": 12, "trained": 12},
        {"duration": "30 steps", "steps": 30, "first_step": 12},
    ]
    change(place / "extended" / "config.json", legs=legs)
    description = json.loads((place / "old" / "config.json").read_text())
    del description["steps"]  # version 0.1 did not store it
    (place / "old" / "config.json").write_text(json.dumps(description))
    found = {row.name: row for row in runs(place)}
    assert {name: found[name].status for name in names} == dict.fromkeys(names, "interrupted") | {
        "diverged": "diverged"
    }
    assert found["final"].detail == found["old"].detail == "step 12 of 12, without the final evaluation"
    assert found["no-state"].detail == "no state was saved yet"
    assert found["diverged"].detail.startswith("the loss was not finite")
    assert found["search"].detail == "learning-rate search, 1 of 2 candidates done"
    assert found["extended"].detail == "step 12 of 30, extended from 12 steps"
    assert found["extended"].value is None  # the result in the folder is that of the first 12 steps
    assert found["final"].best_value == found["a"].best_value
    resume(place / "diverged", quiet=True)
    assert only(runs(place / "diverged")).status == "complete"


def test_running_now(folder: Path, tmp_path: Path) -> None:
    process = start("train", folder, *TINY_RUN, "--duration", "90000steps", "--out", "run", cwd=tmp_path)
    try:
        while step_of(tmp_path / "run") < 1:
            assert process.poll() is None
        row = only(runs(tmp_path / "run"))
        assert row.status == "running"
        assert row.detail.endswith(" of 90,000")
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()
    assert only(runs(tmp_path)).status == "interrupted"


def test_a_run_of_this_process_keeps_its_lock(place: Path) -> None:
    """Closing a file would release all locks of this process on it. Another process checks that."""
    load = "import sys; from vitreous.utils.file_locks import is_file_locked"
    check = f"{load}; print(is_file_locked(open(sys.argv[1], 'rb')))"
    directory = RunDirectory(place / "a")
    with directory.locked():
        assert only(runs(place)).status == "running"
        seen = subprocess.run([sys.executable, "-c", check, place / "a" / ".lock"], capture_output=True, check=True)
        assert seen.stdout == b"True\n"
    assert not directory.is_locked()


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def damage_states(run: Path) -> None:
    (run / "result.json").unlink()
    for sums in run.glob("state/*/sums.json"):
        sums.unlink()


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda run: (run / "config.json").unlink(), "config.json is missing"),
    "cut": (lambda run: os.truncate(run / "config.json", 100), "config.json is not JSON"),
    "deep": (lambda run: (run / "config.json").write_text("[" * 100_000), "config.json is not JSON"),
    "bytes": (lambda run: (run / "config.json").write_bytes(b"\xff\xfe\x00"), "config.json is not JSON"),
    "pipe": (lambda run: replace_by_pipe(run / "config.json"), "config.json is a named pipe"),
    "nested value": (lambda run: configured(run, lr={"a": [1]}), "'lr' has a value"),
    "wrong types": (lambda run: change(run / "config.json", environment=[]), "config.json does not describe a run"),
    "legs": (lambda run: change(run / "config.json", legs=[{"duration": 3, "steps": "x"}]), "legs are damaged"),
    "result": (lambda run: (run / "result.json").write_text("[1]"), "result.json holds a list"),
    "no number": (lambda run: changed_accuracy(run, float("nan")), "result.json has no valid result"),
    "more than 100%": (lambda run: changed_accuracy(run, 1.5), "result.json has no valid result"),
    "no weights": (lambda run: (run / "best.safetensors").unlink(), "best.safetensors is missing"),
    "states": (damage_states, "all saved states are damaged"),
}


def test_damaged_runs_are_rows_with_a_reason(place: Path) -> None:
    for kind, (damage, _) in DAMAGES.items():
        shutil.copytree(place / "a", place / kind)
        damage(place / kind)
    rows = {row.name: row for row in runs(place, sort="accuracy")}
    assert {name: rows[name].status for name in DAMAGES} == dict.fromkeys(DAMAGES, "damaged")
    for kind, (_, reason) in DAMAGES.items():
        assert reason in rows[kind].detail, kind
        assert str(place) not in rows[kind].detail
    assert rows["a"].status == "complete"
    assert rows["a"].differences == {}


def test_results_on_different_images_have_different_letters(place: Path) -> None:
    """They are sorted one group after the other, however high they are."""
    for name, top1 in (("b", 0.5), ("c", 0.9), ("d", 0.99), ("e", 0.2)):
        shutil.copytree(place / "a", place / name)
        changed_accuracy(place / name, top1)
    change(place / "c" / "config.json", fingerprint="another")
    change(place / "d" / "result.json", split="test")
    change(place / "e" / "config.json", fingerprint=None)  # an older version: unknown images
    rows = runs(place, sort="accuracy")
    assert [row.name for row in rows] == ["a", "b", "c", "d", "e"]
    assert [row.measured_on for row in rows] == ["a", "a", "b", "c", "d"]


def test_other_images_of_the_same_names_have_another_letter(place: Path) -> None:
    shutil.copytree(place / "a", place / "b")
    shutil.copytree(place / "a", place / "older")
    seen = SeenImages.read(place / "b")
    assert seen is not None
    replace(seen, val=seen.val + 1).write(place / "b")
    (place / "older" / FILE).unlink()
    assert [row.measured_on for row in runs(place)] == ["a", "b", "c"]
    replace(seen, val=seen.val.flip(0), train=seen.train + 1).write(place / "b")  # the order does not matter
    assert [row.measured_on for row in runs(place)] == ["a", "a", "b"]


def test_folders(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(place / "a", place / "sweep" / "lr" / "run-10")
    shutil.copytree(place / "a", place / "sweep" / "lr" / "run-9")
    shutil.copytree(place / "a", place / "sweep" / "a")
    (place / "checkpoint").mkdir()
    (place / "checkpoint" / "config.json").write_text('{"model_type": "vit"}')  # of Hugging Face: not a run
    (place / "loop").symlink_to(place)
    (place / "link").symlink_to(place / "a")
    monkeypatch.chdir(tmp_path)
    assert [row.name for row in runs()] == ["run-9", "run-10", "runs/a", "runs/sweep/a"]
    assert [row.name for row in runs("runs/sweep/*/run-*", place / "a")] == ["a", "run-9", "run-10"]
    (tmp_path / "empty").mkdir()
    assert runs("empty") == []
    assert runs("runs/checkpoint") == []
    for wrong in ("nowhere", "nowhere-*", "x" * 5000, "runs/a/config.json", "~nobody-knows", "https://host/runs"):
        with pytest.raises(VitreousError):
            runs(wrong)
    with pytest.raises(VitreousError, match="sort = 'size': expected one of name"):
        runs(sort="size")  # type: ignore[arg-type]


def test_sorting(place: Path) -> None:
    for name, seconds in (("b", 100.0), ("c", 5000.0)):
        shutil.copytree(place / "a", place / name)
        change(place / name / "result.json", seconds=seconds)
        for file in ("config.json", "metrics.jsonl", "result.json"):
            os.utime(place / name / file, (seconds, seconds))
    (place / "c" / "result.json").unlink()
    assert [row.name for row in runs(place, sort="time")] == ["b", "a", "c"]
    assert [row.name for row in runs(place, sort="status")] == ["a", "b", "c"]
    assert [row.name for row in runs(place, sort="date")] == ["a", "c", "b"]
