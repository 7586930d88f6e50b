"""The commands `vitreous evaluate`, `features` and `compare`."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from helpers import tiny_vit
from vitreous import save
from vitreous.cli import main
from vitreous.evaluation.store import read_features
from vitreous.preprocessing import Preprocessing

LABELS = ("ant", "bee", "Cat", "dog", "elk", "fox", "gnu")


def checkpoint(path: str, labels: tuple[str, ...] | None = LABELS, **changes: Any) -> None:
    model = tiny_vit(**changes)
    model.labels, model.preprocessing = labels, Preprocessing(size=32, resize=36)
    save(model, path)


def images(root: Path, classes: tuple[str, ...], each: int) -> None:
    random = np.random.default_rng(len(root.name))
    for place, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        for number in range(each):
            pixels = random.normal(60 + 60 * place, 50, (20, 24, 3)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / name / f"{number}.png")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    images(tmp_path / "pets" / "train", ("cat", "dog", "fox"), 12)
    images(tmp_path / "pets" / "test", ("cat", "dog", "fox"), 5)
    checkpoint("m.safetensors")
    return tmp_path


def run(*arguments: object) -> int:
    try:
        main([*map(str, arguments), "--device", "cpu", "--workers", "0"])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_evaluate(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("evaluate", "pets", "--model", "m.safetensors") == 0
    out = capsys.readouterr().out
    assert "pets: test, 15 images" in out
    assert "matched by names, ignoring case and punctuation" in out
    assert run("evaluate", "pets", "--model", "m.safetensors", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    (scores,) = found["scores"]
    assert scores["images"] == 15
    assert 0 <= scores["calibration"] <= 1
    assert [row["data_class"] for row in scores["per_class"]] == ["cat", "dog", "fox"]
    assert [row["model_class"] for row in scores["per_class"]] == ["Cat", "dog", "fox"]
    wrong = sum(row["images"] for row in scores["confusion"])
    assert scores["top1"] == pytest.approx(1 - wrong / 15)
    assert f"{100 * scores['top1']:.2f}" in out
    assert "cat (Cat)" in out
    assert scores["images_per_second"] > 0


def test_several_sizes_give_a_table_and_a_figure(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("evaluate", "pets", "--model", "m.safetensors", "--size", 16, 24, 32, "--out", "drawn")
    assert run(*arguments) == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines() if line[:2].isdigit()] == ["16", "24", "32"]
    with Image.open("drawn/resolution.png") as picture:
        assert picture.width > 500
    assert Path("drawn/resolution.svg").read_text().lstrip().startswith("<?xml")
    assert [row["size"] for row in json.loads(Path("drawn/evaluation.json").read_text())["scores"]] == [
        [16, 16],
        [24, 24],
        [32, 32],
    ]


def test_features_of_a_model_without_a_head(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint("headless.safetensors", None, num_classes=0)
    more = ("--with", "fewshot", "knn", "--shots", 1, 5)
    assert run("evaluate", "pets", "--model", "headless.safetensors", *more) == 0
    out = capsys.readouterr().out
    assert "not evaluated: headless has no head" in out
    assert run("evaluate", "pets", "--model", "headless.safetensors", *more, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["scores"] == []
    assert [one["name"] for one in found["features"][0]["measures"]] == ["1-shot", "5-shot", "k-NN"]
    assert (folder / "xdg" / "vitreous" / "features").is_dir()


def test_evaluate_lists_unreadable_images(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "pets" / "test" / "cat" / "0.png").write_bytes(b"broken")
    assert run("evaluate", "pets", "--model", "m.safetensors") == 1
    err = capsys.readouterr().err
    assert "cat/0.png: " in err
    assert "left out: 1 image that cannot be read" in err


def test_all_commands_list_unreadable_images(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Training images too, and also when features come from the cache; the counts exclude them."""
    for part in ("train", "test"):
        (folder / "pets" / part / "cat" / "0.png").write_bytes(b"broken")
    measures = ("--with", "fewshot", "knn", "--shots", 2)
    for flags in ((), ("--json",)):
        assert run("compare", "m.safetensors", "--data", "pets", *measures, "--cache", "kept", *flags) == 1
        out, err = capsys.readouterr()
        assert flags or "pets: fitted on 35 images; tested on 14: test split" in out
        assert "train/cat/0.png: " in err
        assert "test/cat/0.png: " in err
        assert "left out: 2 images that cannot be read" in err
    assert len(json.loads(out)["unreadable"]) == 2
    checkpoint("headless.safetensors", None, num_classes=0)
    assert run("evaluate", "pets", "--model", "headless.safetensors", *measures) == 1
    out, err = capsys.readouterr()
    assert "fitted on 35 images; tested on 14" in out
    assert "2 images that cannot be read" in err
    assert run("features", "pets", "out", "--model", "m.safetensors", "--split", "train") == 1
    assert "train/cat/0.png: " in capsys.readouterr().err
    for path in (folder / "pets" / "train" / "cat").iterdir():
        path.write_bytes(b"broken")
    assert run("compare", "m.safetensors", "--data", "pets", *measures) == 2
    assert "'cat' has only 0 training images" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("evaluate", "pets", "--model", "headless.safetensors"), "headless has no head"),
        (("evaluate", "digits", "--model", "m.safetensors"), "classes do not match"),
        (("evaluate", "pets", "--model", "m.safetensors", "--split", "all"), "there is no all split"),
        (("evaluate", "pets", "--model", "m.safetensors", "--size", "30"), "at size 30"),
        (("evaluate", "pets", "--model", "m.safetensors", "--with", "fewshot"), "'cat' has only 12 training images"),
        (("evaluate", "pets", "--model", "m.safetensors", "--classes", "gone.json"), "gone.json: this map"),
        (("evaluate", "pets", "--model", "m.safetensors", "--real", "gone.json"), "gone.json"),
        (
            ("evaluate", "pets", "--model", "headless.safetensors", "--real", "x.json", "--with", "knn"),
            "x.json: labels",
        ),
        (("features", "pets", "out", "--model", "m.safetensors", "--layer", "-2"), "layer = -2: use 0 to"),
        (("evaluate", "pets"), "--model"),
        (("features", "pets", "m.safetensors", "--model", "m.safetensors"), "m.safetensors: features cannot be"),
        (("compare", "m.safetensors", "--data", "pets", "--markdown", "gone/r.md"), "gone is not a folder"),
        (
            ("compare", "m.safetensors", "--data", "pets", "--markdown", "pets"),
            "this is a folder; give the name of a file",
        ),
        (("compare", "m.safetensors", "--data", "pets", "--out", "m.safetensors/x"), "m.safetensors is not a folder"),
        (("compare", "m.safetensors"), "--data"),
        (("compare", "gone", "--data", "pets", "--with", "knn"), "gone: no such file"),
        (
            ("compare", "m.safetensors", "--data", "pets", "--suite", "x.toml"),
            "give either data sets (--data) or",
        ),
    ],
)
def test_mistakes(folder: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str) -> None:
    checkpoint("headless.safetensors", None, num_classes=0)
    assert run(*arguments) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert "Traceback" not in err
    assert not out


def test_class_map(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("map.csv").write_text("cat,ant\ndog,1\nfox,gnu\n")
    assert run("evaluate", "pets", "--model", "m.safetensors", "--classes", "map.csv", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert "by map.csv" in json.dumps(found["classes"])
    rows = found["scores"][0]["per_class"]
    assert {row["data_class"]: row["model_class"] for row in rows} == {"cat": "ant", "dog": "bee", "fox": "gnu"}


def test_features(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("features", "pets", "out", "--model", "m.safetensors", "--split", "train", "--layer", 0)
    command = (*command, "--val-fraction", 0)  # otherwise training images are held out for validation
    assert run(*command) == 0
    assert "36 x 48 of pets, train" in capsys.readouterr().out
    found = read_features(Path("out"))
    assert found.about == {"model": "m", "data": "pets", "split": "train", "classes": ["cat", "dog", "fox"]}
    assert found.names[0] == "pets/train/cat/0.png"
    before = Path("out/features-00000.safetensors").stat().st_mtime_ns
    assert run(*command) == 0
    assert Path("out/features-00000.safetensors").stat().st_mtime_ns == before
    checkpoint("other.safetensors", norm_eps=1e-3)
    assert run(*command[:4], "other.safetensors", *command[5:]) == 2
    assert "features of another model (content hash" in capsys.readouterr().err


def test_compare(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("compare", "m.safetensors", "--data", "pets", "--with", "fewshot", "knn", "--shots", 2)
    assert run(*command, "--markdown", "c.md", "--cache", "kept") == 0
    first = capsys.readouterr().out
    assert "2-shot" in first
    assert "pets: fitted on 36 images; tested on 15: test split" in first
    assert Path("c.md").read_text().startswith("| data | measure | m |\n")
    assert run(*command, "--json", "--cache", "kept") == 0
    assert json.loads(capsys.readouterr().out)["models"][0]["name"] == "m"
    assert run(*command, "--cache", "kept") == 0
    assert capsys.readouterr().out == first


def test_files_of_a_comparison(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two models on two groups of one data set each."""
    checkpoint("other.safetensors", norm_eps=1e-3)
    Path("s.toml").write_text(
        """[[group]]\nname = "pets"\n[[group.data]]\nsource = "pets"\n"""
        """[[group]]\nname = "drawn"\n[[group.data]]\nsource = "digits"\nimages = 100\n"""
    )
    measures = ("--with", "fewshot", "knn", "--shots", 1, 2)
    assert run("compare", "m.safetensors", "other.safetensors", "--suite", "s.toml", *measures, "--out", "drawn") == 0
    assert "figures: drawn/comparison.png, drawn/comparison.svg" in capsys.readouterr().out
    assert sorted(path.name for path in Path("drawn").iterdir()) == [
        "comparison.json",
        "comparison.md",
        "comparison.png",
        "comparison.svg",
    ]
    picture = Path("drawn/comparison.svg").read_text()
    for text in ("pets: pets", "drawn: digits", "1-shot", "2-shot", "k-NN", "accuracy (%)"):
        assert f"<!-- {text} -->" in picture
    with Image.open("drawn/comparison.png") as drawn:
        assert drawn.width > 900


def test_help_does_not_wait_for_torch() -> None:
    for command in ("evaluate", "features", "compare"):
        code = f"from vitreous.cli import main\ntry:\n    main(['{command}', '--help'])\nexcept SystemExit:\n    pass\n"
        code += "import sys; print('torch' in sys.modules)"
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert result.stdout.endswith("False\n")
        assert "--device" in result.stdout
