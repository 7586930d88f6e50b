"""`vitreous sweep`: the selected settings, failed runs, the length of runs, and continuing after kill -9."""

import csv
import json
import random
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import command
import vitreous
from runs import is_training, start, wait_until
from vitreous import SweepResult, VitreousError

TINY: dict[str, Any] = {
    "width": 16,
    "depth": 1,
    "heads": 2,
    "mlp_dim": 16,
    "image_size": 8,
    "patch_size": 4,
    "batch_size": 64,
    "duration": "8 steps",
    "device": "cpu",
}
GRID = {"lr": [1e-3, 1e-2], "heads": [2, 5]}  # 5 does not divide the width


def flags(**changes: Any) -> list[str]:
    fields = {**TINY, **changes}
    return [part for name, value in fields.items() for part in (f"--{name.replace('_', '-')}", str(value))]


LONG = (
    "sweep",
    "digits",
    "--grid",
    "lr=1e-3,1e-2",
    *flags(duration="40 steps", evaluate_every="20 steps", save_minutes=0.001),
)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Values are compared bit by bit, and other numbers of threads add up in another order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> SweepResult:
    out = tmp_path_factory.mktemp("sweep") / "out"
    return vitreous.sweep("digits", grid=GRID, seeds=2, out=out, quiet=True, **TINY)


def run(cwd: Path, *arguments: object, code: int = 0) -> command.Done:
    done = command.vitreous(*arguments, cwd=cwd)
    assert done.returncode == code, done.stderr
    return done


def stored(run: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((run / "result.json").read_text())
    return values


def times(out: Path) -> dict[Path, int]:
    """When the weights of every run were written."""
    return {path: path.stat().st_mtime_ns for path in sorted(out.glob("cells/*/last.safetensors"))}


# ---------------------------------------------------------------- the result


def test_validation_images_select(found: SweepResult) -> None:
    assert found.best is not None
    assert [row.settings["heads"] for row in found.rows] == [2, 2, 5, 5]
    assert found.rows[0].value >= found.rows[1].value  # type: ignore[operator]
    for row in found.rows[:2]:
        results = [stored(run) for run in row.runs]
        assert list(row.values.values()) == [one["best"]["value"] for one in results]
        assert row.value == pytest.approx(sum(row.values.values()) / 2)
    assert (found.metric, found.images) == ("top1", 144)


def test_the_table_shows_the_test_result_of_the_selected_runs_only(found: SweepResult) -> None:
    report = (found.folder / "report.md").read_text()
    assert report.count("Test accuracy") == 1
    assert found.best is not None
    tested = [100 * stored(run)["result"]["top1"] for run in found.best.runs]
    assert f"Test accuracy of the selected runs: {sum(tested) / 2:.1f} ± " in report
    assert "on 360 test images, which selected nothing" in report
    assert "The same 144 validation images selected the weights of every run and these settings" in report


def test_failed_runs_have_a_reason(found: SweepResult) -> None:
    rows = list(csv.reader((found.folder / "table.csv").read_text().splitlines()))
    assert rows[0][:3] == ["lr", "heads", "validation accuracy (%)"]
    assert [row[2] == "" for row in rows[1:]] == [False, False, True, True]
    reason = "ViTConfig.heads = 5: must divide the width, 16"
    assert f"- failed: lr=0.001, heads=5, seeds 0, 1: {reason}" in (found.folder / "table.md").read_text()
    values = json.loads((found.folder / "result.json").read_text())
    assert [len(row["errors"]) for row in values["rows"]] == [0, 0, 2, 2]
    assert values["selected"]["settings"] == found.best.settings  # type: ignore[union-attr]
    assert {path.name for path in found.folder.iterdir()} >= {"sweep.png", "sweep.svg"}


def test_the_selected_config_gives_the_same_run(found: SweepResult, tmp_path: Path) -> None:
    assert found.best is not None
    vitreous.train(config=found.folder / "selected.toml", out=tmp_path / "again", quiet=True)
    weights = (tmp_path / "again" / "last.safetensors").read_bytes()
    assert weights == (found.best.runs[0] / "last.safetensors").read_bytes()


def test_runs_are_used_again(found: SweepResult, tmp_path: Path) -> None:
    """More values and seeds extend a sweep; other settings need another folder."""
    out = tmp_path / "out"
    shutil.copytree(found.folder.parent, out)
    before = times(out)
    assert len(before) == 4
    arguments = ("sweep", "digits", "--out", "out", *flags())
    done = run(tmp_path, *arguments, "--grid", "lr=1e-3,1e-2,1e-4", "heads=2,5", "--seeds", 2, code=1)
    assert "4 runs of 12 are done already" in done.stderr
    assert {path: time for path, time in times(out).items() if path in before} == before
    assert len(times(out)) == 6
    fewer = (*arguments, "--grid", "lr=1e-3", "heads=2")
    assert "the result of a sweep over other values" in run(tmp_path, *fewer, code=2).stderr
    done = run(tmp_path, *fewer, "--overwrite", "--json")
    assert len(json.loads(done.stdout)["rows"]) == 1
    assert len(times(out)) == 6
    other = ("sweep", "digits", "--out", "out", "--grid", "lr=1e-3", "heads=2", *flags(batch_size=32))
    assert "holds a sweep of other settings or data" in run(tmp_path, *other, code=2).stderr


def test_ties_and_failures_are_sorted_last() -> None:
    from vitreous.experiments.grid.experiment import CellRecord
    from vitreous.experiments.grid.records import CellRecords

    def cell(lr: float, seed: int, value: float | None, loss: float = 1.0) -> CellRecord:
        values = {} if value is None else {"value": value, "loss": loss, "step": 1, "images": 10}
        return CellRecord({"lr": lr}, seed, values, "" if values else "diverged")

    cells = [cell(1.0, 0, 0.9), cell(1.0, 1, None), cell(2.0, 0, 0.5), cell(2.0, 1, 0.5, 0.4), cell(3.0, 0, 0.5)]
    cells += [cell(3.0, 1, 0.5), cell(4.0, 0, None), cell(4.0, 1, None)]
    for metric, order in {"top1": [2.0, 3.0, 1.0, 4.0], "loss": [2.0, 3.0, 1.0, 4.0]}.items():
        lrs = [{"lr": lr} for lr in (1.0, 4.0, 3.0, 2.0)]
        made = SweepResult.from_records(CellRecords("", tuple(cells)), lrs, metric, Path(), Path(), {})
        assert [row.settings["lr"] for row in made.rows] == order


# ---------------------------------------------------------------- length, random draws, config files


def test_all_runs_have_the_length_that_fits_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {name: value for name, value in TINY.items() if name not in ("duration", "width")}
    arguments: dict[str, Any] = {"random": {"width": "8,16", "lr": "1e-3..1e-2"}, "draws": 2, "budget": "6s", **fields}
    first = vitreous.sweep("digits", out=tmp_path / "out", quiet=True, **arguments)
    configs = [json.loads((run / "config.json").read_text()) for row in first.rows for run in row.runs]
    assert len({config["config"]["duration"] for config in configs}) == 1
    assert first.description["length"].startswith("every run has the same length: ")
    assert "into 6s" in first.description["length"]
    before = times(tmp_path / "out")
    again = vitreous.sweep("digits", out=tmp_path / "out", quiet=True, **{**arguments, "draws": 3})
    assert again.description["length"] == first.description["length"]  # not measured again
    assert len(times(tmp_path / "out")) == len(before) + 1 == 3
    assert {one.settings["lr"] for one in first.rows} < {one.settings["lr"] for one in again.rows}


def test_a_config_file_with_a_grid(tmp_path: Path) -> None:
    lines = [f"{name} = {json.dumps(value)}" for name, value in TINY.items()]
    text = "\n".join(['data = "digits"', *lines, "[grid]", "lr = [1e-3, 1e-2]", "clip = ['none', 1]"])
    (tmp_path / "sweep.toml").write_text(text)
    done = run(tmp_path, "sweep", "--config", "sweep.toml", "--duration", "2 steps", "--json")
    values = json.loads(done.stdout)
    assert sorted(str(row["settings"]["clip"]) for row in values["rows"]) == ["1.0", "1.0", "None", "None"]
    folder = next((tmp_path / "sweeps").iterdir())
    assert folder.name.startswith("digits-")
    config = tomllib.loads((folder / "result" / "selected.toml").read_text())
    assert config["schedule"]["duration"] == "2 steps"
    assert config["optimiser"]["lr"] == values["selected"]["settings"]["lr"]
    again = run(tmp_path, "sweep", "--config", "sweep.toml", "--duration", "2 steps")  # the same folder
    assert "Selected: " in again.stdout
    assert [path.name for path in (tmp_path / "sweeps").iterdir()] == [folder.name]


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("digits", "--grid", "lrr=1,2"), "unknown setting 'lrr'; did you mean 'lr'?"),
        (("digits", "--grid", "lr=1,2", "--seeds", 0), "seeds = 0"),
        (("--grid", "lr=1,2"), "data is missing"),
        (("digits", "--grid", "lr=1,2", "--resume", "x"), "a sweep has no --resume"),
        (("digits", "--grid", "lr=1,2", "--val-fraction", 0), "validation images"),
        (("digits", "--grid", "lr=1,2", "--lr-candidates", 1, 2), "lr is swept, and lr_candidates are given"),
        (("digits", "--grid", "epochs=1,2", "--budget", "1m"), "duration is swept, and a budget is given"),
        (("digits", "--grid", "heads=3,5", *flags()), "none of the 2 combinations is valid: heads=3: ViTConfig.heads"),
        (("digits", "--grid", "lr=1,2", "--from", "gone.npz"), "gone.npz"),
        (("digits", "--grid", "lr=1,2", "--out", "photos"), "photos holds other files ('1.txt'): give an empty"),
    ],
)
def test_mistakes_before_anything_runs(tmp_path: Path, arguments: tuple[Any, ...], message: str) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "1.txt").write_text("")
    assert message in run(tmp_path, "sweep", *arguments, code=2).stderr
    assert [path.name for path in tmp_path.rglob("*")] == ["photos", "1.txt"]


def test_data_in_memory_is_refused() -> None:
    images = torch.zeros(8, 1, 8, 8, dtype=torch.uint8)
    with pytest.raises(VitreousError, match="a sweep needs data that other processes can open"):
        vitreous.sweep((images, torch.zeros(8)), grid={"lr": [1, 2]})


# ---------------------------------------------------------------- interruptions


def test_a_killed_sweep_continues_with_the_same_table(tmp_path: Path) -> None:
    expected = json.loads(run(tmp_path, *LONG, "--out", "whole", "--json").stdout)
    process = start(*LONG, "--out", "killed", cwd=tmp_path)
    step = random.SystemRandom().randrange(1, 35)
    wait_until(lambda: is_training(tmp_path / "killed", 2, step), process)
    process.kill()
    process.communicate()
    found = json.loads(run(tmp_path, *LONG, "--out", "killed", "--json").stdout)
    for row in (*expected["rows"], *found["rows"]):
        del row["seconds"], row["runs"]
    assert found["rows"] == expected["rows"]
    assert found["conclusions"] == expected["conclusions"]


def test_a_damaged_sweep_file(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    arguments = ("sweep", "digits", "--grid", "lr=1,2", "--out", "out", *flags())
    for text, message in (("{", "sweep.json is not JSON"), ('{"format": 1}', "was not written by `vitreous sweep`")):
        (tmp_path / "out" / "sweep.json").write_text(text)
        assert message in run(tmp_path, *arguments, code=2).stderr
