"""`vitreous reproduce`: the list, its messages, files, exit codes, and drawing again from result.json."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import command
import grids
from vitreous.experiments.registry import experiment_names

SMALL = f"{grids.FILE}:SMALL"


def reproduce(*arguments: object, cwd: Path | None = None) -> command.Done:
    return command.vitreous("reproduce", *arguments, cwd=cwd)


def refused(*arguments: object, cwd: Path | None = None) -> str:
    """Return the message of a command that is refused: one message, exit code 2, nothing on stdout."""
    result = reproduce(*arguments, cwd=cwd)
    assert result.returncode == 2, result.stdout
    assert result.stdout == ""
    return result.stderr


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished experiment; its data is gone."""
    folder = tmp_path_factory.mktemp("place")
    random = np.random.default_rng(0)
    data = folder / "pictures.npz"
    np.savez(data, x=random.integers(0, 256, (60, 8, 8, 3), dtype=np.uint8), y=np.arange(60) % 5)
    result = reproduce(SMALL, "--data", "pictures.npz", "--seeds", 1, "--device", "cpu", cwd=folder)
    assert result.returncode == 0, result.stderr
    (folder / "stdout.txt").write_text(result.stdout)
    data.unlink()
    return folder


def test_output(place: Path) -> None:
    printed = (place / "stdout.txt").read_text()
    lines = printed.splitlines()
    assert lines[0] == "small: two widths"
    assert any(line.startswith("model ") and "val" in line for line in lines)
    assert any(line.startswith("width 16 ") for line in lines)
    assert "Does this hold here? Undecided. Nothing can be concluded: fewer than two seeds have results" in printed
    assert "Pre-training data: pictures.npz, 3 classes; 2 other classes for few-shot classification." in lines
    assert "Scale tiny, 1 seed; last weights of every run." in lines
    assert "written to reproduce/small-tiny" in lines
    report = (place / "reproduce" / "small-tiny" / "report.md").read_text()
    assert f"reproduce {SMALL} --data pictures.npz --seeds 1 --device cpu`" in report


def test_list() -> None:
    result = reproduce()
    assert result.returncode == 0
    rows = result.stdout.strip().splitlines()
    assert rows[0].split()[:2] == ["experiment", "paper"]
    assert [row.split()[0] for row in rows[1 : len(experiment_names()) + 1]] == experiment_names()
    assert "tiny needs no data" in rows[-1]


def test_list_as_json() -> None:
    found = json.loads(reproduce("--json").stdout)
    assert list(found) == experiment_names()
    assert {"table8", "pooling", "optimizer", "resolution", "shape"} <= set(found)
    for one in found.values():
        assert set(one) == {"title", "paper", "conclusion", "seeds", "time", "needs"}
        assert set(one["seeds"]) == {"tiny", "small", "paper"}
    assert found["resolution"]["needs"] == {"pretraining": True, "transfer": True, "model": False}


def test_help_does_not_import_torch() -> None:
    code = "from vitreous.cli import main\ntry:\n    main(['reproduce', '--help'])\nexcept SystemExit:\n    pass"
    code += "\nimport sys\nassert 'torch' not in sys.modules"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for flag in ("--data", "--transfer", "--scale", "--seeds", "--jobs", "--from", "--json", "--overwrite"):
        assert flag in result.stdout


def test_messages(tmp_path: Path) -> None:
    for arguments, parts in (
        (("tabel8",), ("there is no experiment 'tabel8'; did you mean table8?",)),
        (("table8", "poolin"), ("did you mean pooling?",)),
        (("table8", "table8"), ("given twice",)),
        (("all", "table8"), ("all stands for every experiment: give it alone",)),
        (("table8", "--scale", "small"), ("--data DATA", "mini-ImageNet", "--scale tiny needs no data")),
        (("table8", "--scale", "paper"), ("--data DATA", "ImageNet-21k (image-net.org)")),
        (("table8", "--scale", "paper", "--data", "digits"), ("--transfer DATA", "ILSVRC 2012")),
        (("resolution", "--scale", "small", "--data", "digits"), ("--transfer DATA", "github.com/fastai/imagenette")),
        (("table8", "--scale", "huge"), ("--scale", "tiny", "small", "paper")),
        (("table8", "--seeds", "0"), ("seeds = 0",)),
        (("table8", "--jobs", "-1"), ("jobs = -1",)),
        (("table8", "--seed", "1"), ("--seed", "--seeds")),
        (("table8", "--model", "m.safetensors"), ("table8 trains its own models: it takes no --model",)),
        (("table8", "--data", "nowhere"), ("nowhere",)),
        ((f"{grids.FILE}:SMAL",), ("did you mean SMALL?",)),
    ):
        error = refused(*arguments, cwd=tmp_path)
        flat = " ".join(error.replace("│", " ").split())
        for part in parts:
            assert part in flat, (arguments, error)
    assert not list(tmp_path.iterdir())


def test_two_processes_in_one_folder(tmp_path: Path) -> None:
    (tmp_path / "reproduce" / "cells").mkdir(parents=True)
    lock = tmp_path / "reproduce" / "cells" / ".lock"
    code = (
        "import sys, time\nfrom vitreous.utils.file_locks import lock_file\n"
        f"file = open({str(lock)!r}, 'a')\nlock_file(file)\nprint('locked', flush=True)\nsys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], text=True, **pipes) as other:  # type: ignore[call-overload]
        assert other.stdout.readline() == "locked\n"
        error = refused(SMALL, "--device", "cpu", cwd=tmp_path)
    assert "reproduce: another process is running experiments there; give another --out" in error
    assert [path.name for path in (tmp_path / "reproduce" / "cells").iterdir()] == [".lock"]


def test_plan(tmp_path: Path) -> None:
    result = reproduce(SMALL, "--plan", "--device", "cpu", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.strip().splitlines()
    assert lines[0].split()[:3] == ["experiment", "runs", "number"]
    assert "4 training runs to do: " in result.stdout
    assert "Estimated time: " in result.stdout
    assert not list(tmp_path.iterdir())
    found = json.loads(reproduce(SMALL, "--plan", "--device", "cpu", "--json", cwd=tmp_path).stdout)
    assert (found["waiting"], [row["count"] for row in found["rows"]]) == (4, [4])
    assert "give the names of experiments to plan" in refused("--plan", cwd=tmp_path)


# ---------------------------------------------------------------- --from


def test_from_draws_the_same_files_without_data(place: Path, tmp_path: Path) -> None:
    source = place / "reproduce" / "small-tiny"
    result = reproduce(SMALL, "--from", source / "result.json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    new = tmp_path / "reproduce" / "small-tiny"
    names = {path.name for path in source.iterdir()}
    assert {path.name for path in new.iterdir()} == names
    for name in names:
        assert (new / name).read_bytes() == (source / name).read_bytes(), name
    before = (place / "stdout.txt").read_text().replace(str(place), "")
    assert result.stdout == before
    assert not (tmp_path / "reproduce" / "cells").exists()
    assert "exists already" in refused(SMALL, "--from", source / "result.json", cwd=tmp_path)
    found = reproduce(SMALL, "--from", source / "result.json", "--overwrite", "--json", cwd=tmp_path)
    stored = json.loads((source / "result.json").read_text())
    assert json.loads(found.stdout) == {"small": stored}


def test_from_a_wrong_file(place: Path, tmp_path: Path) -> None:
    good = json.loads((place / "reproduce" / "small-tiny" / "result.json").read_text())
    cells = {key: value for key, value in good.items() if key != "cells"}
    files = {
        "cut.json": json.dumps(good)[:-20],
        "list.json": "[]",
        "foreign.json": '{"format": "other"}',
        "nocells.json": json.dumps(cells),
        "oddcells.json": json.dumps({**good, "cells": [{"nonsense": 1}]}),
        "numbers.json": json.dumps({**good, "cells": [1, 2]}),
        "unknown.json": json.dumps({**good, "experiment": "table88"}),
        "empty.json": "",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "folder").mkdir()
    for name, part in (
        ("cut.json", "cut.json is not JSON"),
        ("list.json", "holds a list, not an object"),
        ("foreign.json", "is not the result of an experiment (`vitreous reproduce` writes result.json)"),
        ("nocells.json", "nocells.json is damaged"),
        ("oddcells.json", "oddcells.json is damaged"),
        ("numbers.json", "numbers.json is damaged"),
        ("unknown.json", "there is no experiment 'table88'; did you mean table8?"),
        ("empty.json", "empty.json is not JSON"),
        ("missing.json", "missing.json cannot be read (No such file or directory)"),
        ("folder", "folder"),
    ):
        error = refused("--from", name, cwd=tmp_path)
        assert part in error, error
        assert "./" not in error
    assert not (tmp_path / "reproduce").exists()


def damaged(good: dict[str, object], **cell: object) -> str:
    cells = [{**one, **cell} for one in good["cells"]]  # type: ignore[attr-defined]
    return json.dumps({**good, "cells": cells})


@pytest.mark.parametrize(
    "cell",
    [
        {"factors": 5},
        {"factors": {}},
        {"factors": {"width": [1]}},
        {"values": [1]},
        {"values": {"val": "high"}},
        {"values": {"val": None}},
        {"seed": [0]},
        {"error": 7},
    ],
)
def test_from_a_file_with_wrong_cells(place: Path, tmp_path: Path, cell: dict[str, object]) -> None:
    """Such a file gives a message, or a table; never a traceback."""
    good = json.loads((place / "reproduce" / "small-tiny" / "result.json").read_text())
    (tmp_path / "result.json").write_text(damaged(good, **cell))
    result = reproduce(SMALL, "--from", "result.json", cwd=tmp_path)
    assert result.returncode in (0, 2), result.stderr
    if result.returncode == 2:
        assert "result.json is damaged" in result.stderr
        assert not (tmp_path / "reproduce" / "small-tiny").exists()


def test_json_with_a_failed_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(grids.FAULT, "16-0:refused")
    result = reproduce(SMALL, "--seeds", 1, "--device", "cpu", "--json", cwd=tmp_path)
    assert result.returncode == 1
    found = json.loads(result.stdout)["small"]
    assert [cell.get("error", "") for cell in found["cells"]] == ["", "no | luck\nat all"]
    assert found["table"]["rows"][1] == ["width 16", None, None]
    assert "small: 16, seed 0 failed: no | luck" in result.stderr
