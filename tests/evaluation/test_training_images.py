"""Training images of a model are recognised by content: left out of an evaluation by default, otherwise a warning."""

import json
import shutil
from pathlib import Path

import pytest

from helpers import tiny_vit
from runs import config, draw_folder
from vitreous import convert, save, train
from vitreous.cli import main
from vitreous.evaluation.training_images import FILE


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder `photos` without splits, and `run`, trained on it."""
    root = tmp_path_factory.mktemp("seen")
    photos = draw_folder(root / "photos", images=40)
    train(photos, config(root / "run", duration="3 steps", evaluate_every="1 steps"), quiet=True)
    return root


def evaluated(capsys: pytest.CaptureFixture[str], out: Path, *arguments: object) -> tuple[dict[str, object], str]:
    capsys.readouterr()
    common = ("--device", "cpu", "--workers", "0", "--out", str(out))
    main(["evaluate", *map(str, arguments), *common])
    return json.loads((out / "evaluation.json").read_text()), " ".join(capsys.readouterr().err.split())


def test_images_of_the_run_are_left_out(workspace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found, err = evaluated(capsys, tmp_path, workspace / "photos", "--model", workspace / "run")
    assert (found["split"], found["images"], found["warnings"]) == ("unseen", 18, [])
    assert found["left_out"] == ("84 training images and 18 validation images of the model's run")
    assert "WARNING" not in err
    (scores,) = found["scores"]  # type: ignore[misc]
    result = json.loads((workspace / "run" / "result.json").read_text())["result"]
    assert scores["top1"] == result["top1"]
    assert scores["interval"] == result["interval"]


def test_moved_and_renamed_images_are_recognised(
    workspace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for label in ("rot", "blau"):
        (tmp_path / "elsewhere" / label).mkdir(parents=True)
        for number, path in enumerate(sorted((workspace / "photos" / label).iterdir(), reverse=True)):
            shutil.copy(path, tmp_path / "elsewhere" / label / f"renamed-{number}.jpg")
    found, _ = evaluated(capsys, tmp_path / "out", tmp_path / "elsewhere", "--model", workspace / "run")
    assert found["split"] == "unseen"
    assert found["images"] == 80 - 56 - 12


def test_new_images_are_not_left_out(workspace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = draw_folder(tmp_path / "other", images=3, side=33)
    found, err = evaluated(capsys, tmp_path / "out", other, "--model", workspace / "run")
    assert (found["split"], found["images"], found["left_out"], found["warnings"]) == ("all", 9, None, [])
    assert "WARNING" not in err


@pytest.mark.parametrize(
    ("split", "images", "words"),
    [
        ("train", 84, "84 of the 84 evaluated images are TRAINING IMAGES"),
        ("val", 18, "18 of the 18 evaluated images were used to select these weights"),
        ("test", 18, ""),
        ("all", 120, "84 of the 120 evaluated images are TRAINING IMAGES"),
    ],
)
def test_a_requested_split_is_scored_with_a_warning(
    workspace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], split: str, images: int, words: str
) -> None:
    found, err = evaluated(capsys, tmp_path, workspace / "photos", "--model", workspace / "run", "--split", split)
    assert (found["split"], found["images"]) == (split, images)
    assert (f"WARNING: {words}" in err) if words else ("WARNING" not in err)


def test_a_stored_split_with_training_images_gives_a_warning(
    workspace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for split in ("train", "test"):
        shutil.copytree(workspace / "photos", tmp_path / "data" / split)
    found, err = evaluated(capsys, tmp_path / "out", tmp_path / "data", "--model", workspace / "run")
    assert (found["split"], found["images"]) == ("test", 120)
    assert "WARNING: 84 of the 120 evaluated images are TRAINING IMAGES" in err


def test_validation_images_do_not_select_the_last_weights(
    workspace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, _ = evaluated(capsys, tmp_path, workspace / "photos", "--model", workspace / "run" / "last.safetensors")
    assert (found["images"], found["left_out"]) == (36, "84 training images of the model's run")
    assert found["model"]["selection"] == "last.safetensors, the weights of the last step; not selected otherwise"


@pytest.mark.parametrize("kind", ["copied file", "converted", "run of an older version"])
def test_unknown_training_images_give_a_warning(
    workspace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    """Weights that Vitreous wrote may have been trained on the same images, and away from their run nobody knows."""
    model = tmp_path / "model.safetensors"
    if kind == "copied file":
        shutil.copy(workspace / "run" / "best.safetensors", model)
    elif kind == "converted":
        convert(workspace / "run", model, to="native")
    else:
        model = tmp_path / "old"
        shutil.copytree(workspace / "run", model, ignore=shutil.ignore_patterns(FILE))
    found, err = evaluated(capsys, tmp_path / "out", workspace / "photos", "--model", model)
    assert found["split"] == "all"
    assert "WARNING: it is not known which images these weights were trained on" in err
    assert len(found["warnings"]) == 1  # type: ignore[arg-type]


def test_weights_of_another_library_give_no_such_warning(
    workspace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tiny_vit(num_classes=3, image_size=32, resample="timm", gelu="erf")
    model.labels = ("blau", "grün", "rot")
    for name in ("theirs", "converted.safetensors"):
        if name == "theirs":
            save(model, tmp_path / name, to="timm")
        else:
            convert(tmp_path / "theirs", tmp_path / name, to="native")
        found, _ = evaluated(capsys, tmp_path / f"out-{name}", workspace / "photos", "--model", tmp_path / name)
        assert found["warnings"] == []


def test_all_commands_use_the_same_splits(workspace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`data`, `features` and `compare` use the splits of `train`."""
    photos, run, common = str(workspace / "photos"), str(workspace / "run"), ["--device", "cpu", "--workers", "0"]
    main(["data", photos, "--no-sheet", "--json"])
    assert json.loads(capsys.readouterr().out)["counts"] == {"train": 84, "val": 18, "test": 18}
    main(["features", photos, str(tmp_path / "f"), "--model", run, "--split", "test", *common])
    assert "18 x 32" in capsys.readouterr().out
    measures = ["--with", "knn", "--cache", str(tmp_path / "cache"), *common]
    main(["compare", run, "--data", photos, *measures])
    out, err = capsys.readouterr()
    assert "fitted on 102 images; tested on 18: test split" in out
    assert "WARNING" not in err
    main(["compare", run, "--data", photos, "--split-seed", "3", *measures])
    assert "TRAINING IMAGES of this model" in capsys.readouterr().err


def test_the_split_of_a_run_is_used_for_its_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos = draw_folder(tmp_path / "photos", images=20)
    changes = {
        "duration": "1 steps",
        "evaluate_every": None,
        "val_fraction": 0.1,
        "test_fraction": 0.5,
        "split_seed": 7,
    }
    train(photos, config(tmp_path / "run", **changes), quiet=True)
    found, err = evaluated(capsys, tmp_path / "out", photos, "--model", tmp_path / "run", "--split", "test")
    assert found["images"] == 30
    assert "WARNING" not in err
    found, err = evaluated(
        capsys, tmp_path / "again", photos, "--model", tmp_path / "run", "--split", "test", "--split-seed", 1
    )
    assert "TRAINING IMAGES" in err
