"""`vitreous runs`: the table in a narrow terminal, JSON and CSV."""

import csv
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from command import vitreous
from runs import config, draw_folder
from vitreous import train

EVIL = "<script>$(x)\x1b[31m\nrun"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs with different learning rates, one on other images, a damaged one, and one with a hostile name."""
    place = tmp_path_factory.mktemp("place")
    runs = place / "runs"
    for name, images, lr in (("one", 24, 1e-3), ("two", 24, 2e-3), ("few", 20, 1e-3)):
        data = place / f"data-{images}"
        train(data if data.exists() else draw_folder(data, images=images), config(runs / name, lr=lr), quiet=True)
    for name in ("broken", EVIL.replace("\n", "\r")):
        shutil.copytree(runs / "one", runs / name)
    (runs / "broken" / "result.json").write_text("{")
    return place


def rows(text: str) -> dict[str, list[str]]:
    """The first table: cells by the name of the run."""
    lines = text.split("\n\n", maxsplit=1)[0].splitlines()
    return {line.split()[0]: re.split(" {2,}", line)[1:] for line in lines}


def test_table(place: Path) -> None:
    done = vitreous("runs", "--sort", "accuracy", cwd=place)
    assert (done.returncode, done.stderr) == (0, "")
    table = rows(done.stdout)
    assert [*table["run"][:2], *table["run"][-2:]] == ["status", "accuracy", "data", "lr"]
    assert (table["one"][0], table["two"][0], table["broken"][0]) == ("complete", "complete", "damaged")
    assert (table["one"][-1], table["two"][-1], table["few"][-1]) == ("0.001", "0.002", "0.001")
    assert table["one"][1].endswith("% a")
    assert table["few"][1].endswith("% b")
    assert re.search(r"a: 14 val images of .*data-24 \(data [0-9a-f]{8}\)", done.stdout)
    assert re.search(r"b: 12 val images of .*data-20", done.stdout)
    assert "cannot be compared" in done.stdout
    assert "broken is damaged: result.json is not JSON" in done.stdout
    assert "equal in all runs: device cpu\n" in done.stdout
    assert "\x1b" not in done.stdout
    assert "\r" not in done.stdout


def test_80_columns(place: Path) -> None:
    """Columns that do not fit are in further tables, and none is lost."""
    done = vitreous("runs", cwd=place, columns=80)
    assert max(len(line) for line in done.stdout.split("results with")[0].splitlines()) <= 80
    heads = [line for line in done.stdout.splitlines() if line.startswith("run ")]
    assert len(heads) > 1
    wide = vitreous("runs", cwd=place, columns=400).stdout.splitlines()[0]
    assert [head for line in heads for head in re.split(" {2,}", line)[1:]] == re.split(" {2,}", wide)[1:]


def test_equal_columns_are_not_in_the_table(place: Path) -> None:
    done = vitreous("runs", "runs/one", "runs/two", cwd=place)
    assert "data" not in rows(done.stdout)["run"]
    assert re.search(r"equal in all runs: data \S*data-24, device cpu", done.stdout)
    assert "results: measured on 14 val images of" in done.stdout


def test_json_and_csv(place: Path, tmp_path: Path) -> None:
    file = tmp_path / "runs.csv"
    done = vitreous("runs", "--json", "--csv", file, cwd=place)
    assert done.returncode == 0
    printed: dict[str, Any] = json.loads(done.stdout)
    assert printed["different_settings"] == ["lr"]
    found = {run["name"]: run for run in printed["runs"]}
    assert EVIL.replace("\n", "\r") in found
    assert found["two"]["settings"]["batch_size"] == 16
    assert found["two"]["differences"] == {"lr": 0.002}
    assert found["broken"]["status"] == "damaged"
    with file.open(newline="") as stream:
        table = {row["name"]: row for row in csv.DictReader(stream)}
    assert float(table["two"]["lr"]) == 0.002
    assert float(table["one"]["value"]) == found["one"]["value"]
    assert table["broken"]["value"] == ""
    assert Path(table["few"]["path"]) == Path("runs/few")
    before = file.read_bytes()
    again = vitreous("runs", "--csv", file, cwd=place)
    assert again.returncode == 2
    assert "exists already" in again.stderr
    assert file.read_bytes() == before
    assert vitreous("runs", "--csv", file, "--overwrite", cwd=place).returncode == 0


def test_no_runs(tmp_path: Path) -> None:
    done = vitreous("runs", cwd=tmp_path)
    assert done.returncode == 2
    assert "'runs' does not exist" in done.stderr
    (tmp_path / "runs").mkdir()
    done = vitreous("runs", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "no runs in runs\n")
    assert json.loads(vitreous("runs", "--json", cwd=tmp_path).stdout) == {"runs": [], "different_settings": []}
