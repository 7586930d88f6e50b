"""`--only-classes` of the commands: training, resuming and evaluation with some of the classes."""

import json
import shutil
from pathlib import Path

import pytest

from command import vitreous
from runs import TINY, TINY_RUN, complete, draw_folder
from vitreous import VitreousError, load, resume, train

CHOSEN = ("--only-classes", "rot", "blau")
QUICK = ("--workers", "0", "--device", "cpu")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the data and a run of two of its three classes."""
    place = tmp_path_factory.mktemp("classes")
    draw_folder(place / "photos", 40)
    result = vitreous("train", "photos", *TINY_RUN, "--workers", 0, *CHOSEN, "--out", "run", cwd=place)
    assert result.returncode == 0, result.stderr
    assert "64 train, 16 val images, 2 classes" in result.stdout
    assert "2 of 3 classes are used (only_classes)" in result.stdout + result.stderr
    return place


def test_the_model_has_the_chosen_classes(trained: Path) -> None:
    assert load(trained / "run").labels == ("blau", "rot")
    assert json.loads((trained / "run" / "config.json").read_text())["config"]["only_classes"] == ["rot", "blau"]


def test_resume_uses_the_same_classes(trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained / "run", run)
    assert resume(run, duration="42 steps", quiet=True).steps == 42
    with pytest.raises(VitreousError, match=r"only_classes: \('rot', 'blau'\) in the run, \(\) now"):
        resume(run, duration="44 steps", only_classes=(), quiet=True)
    typed = ("train", "photos", *TINY_RUN, "--workers", 0, "--resume", str(run), "--only-classes", "rot", "grün")
    assert "only_classes: ('rot', 'blau') in the run, ('rot', 'grün') now" in vitreous(*typed, cwd=trained).stderr


def test_a_run_of_an_older_version_is_resumed(trained: Path, tmp_path: Path) -> None:
    """Its config.json does not have the field."""
    run = tmp_path / "run"
    train(trained / "photos", out=str(run), quiet=True, workers=0, **TINY)
    description = json.loads((run / "config.json").read_text())
    assert description["config"].pop("only_classes") == []
    (run / "config.json").write_text(json.dumps(description))
    assert resume(run, duration="14 steps", quiet=True).steps == 14


def test_evaluation_uses_the_classes_of_the_run(trained: Path) -> None:
    typed = ("evaluate", "photos", "--model", "run", "--json", *QUICK)
    result = vitreous(*typed, cwd=trained)
    assert result.returncode == 0, result.stderr
    assert "2 of 3 classes are used: those of the run" in result.stderr
    scores = json.loads(result.stdout)["scores"][0]
    assert [row["data_class"] for row in scores["per_class"]] == ["blau", "rot"]
    assert scores["images"] < 80  # those that the run was not trained on
    other = vitreous(*typed, "--only-classes", "rot", "grün", cwd=trained)
    assert "classes do not match" in other.stderr


def test_evaluation_on_data_with_other_classes(trained: Path, tmp_path: Path) -> None:
    """The classes of the run are not selected; a mapping may come before the data."""
    for old, new in (("rot", "red"), ("blau", "blue")):
        shutil.copytree(trained / "photos" / old, tmp_path / "colours" / new)
    (tmp_path / "map.json").write_text('{"red": "rot", "blue": "blau"}')
    options = ("--model", "run", *QUICK, "--split", "all", "--json")
    mapped = vitreous("evaluate", "--classes", tmp_path / "map.json", tmp_path / "colours", *options, cwd=trained)
    assert mapped.returncode == 0, mapped.stderr
    scores = json.loads(mapped.stdout)["scores"][0]
    assert [row["model_class"] for row in scores["per_class"]] == ["blau", "rot"]
    one = vitreous("evaluate", tmp_path / "colours", *options, "--only-classes", "red", cwd=trained)
    assert "only one class, 'red'" in one.stderr


def test_calibrate_uses_the_classes_of_the_run(trained: Path, tmp_path: Path) -> None:
    typed = ("calibrate", "run", "photos", "--out", tmp_path / "c.safetensors", *QUICK)
    result = vitreous(*typed, cwd=trained)
    assert result.returncode == 0, result.stderr


def test_data_and_features(trained: Path, tmp_path: Path) -> None:
    printed = complete("data", "photos", "--no-sheet", *CHOSEN, "--json", cwd=trained)
    assert json.loads(printed)["classes"] == ["blau", "rot"]
    result = vitreous("data", "photos", "--no-sheet", "--only-classes", "rot", "blaw", cwd=trained)
    assert "photos: only_classes: the data has no class 'blaw'; did you mean 'blau'?" in result.stderr
    complete("features", "photos", tmp_path / "out", "--model", "run", *QUICK, "--split", "all", cwd=trained)
    features = json.loads((tmp_path / "out" / "features.json").read_text())
    assert features["about"]["classes"] == ["blau", "rot"]
