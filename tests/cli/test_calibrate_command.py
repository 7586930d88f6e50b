"""`vitreous calibrate`, and the calibration in `evaluate`, `predict` and `info`; results per image; standard input."""

import csv
import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from helpers import tiny_vit
from vitreous import load, save
from vitreous.cli import main
from vitreous.evaluation.calibration_images import encode_digests
from vitreous.models.calibration import Calibration
from vitreous.preprocessing import Preprocessing

LABELS = ("=dark", "../light, rejected")


def write_images(folder: Path, seed: int, each: int = 30) -> None:
    random = np.random.default_rng(seed)
    for place, name in enumerate(("=dark", "light")):
        (folder / name).mkdir(parents=True)
        for number in range(each):
            level = random.normal(90 + 70 * place, 30)
            pixels = random.normal(level, 5, (16, 16, 3)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}, é.png")


def brightness_model(path: str, scale: float, calibration: Calibration | None = None) -> None:
    """Write a model that measures the brightness: the representation is the mean of the patches."""
    model = tiny_vit(image_size=16, num_classes=2)
    model.labels, model.preprocessing = LABELS, Preprocessing(size=16, resize=16)
    model.calibration = calibration
    grey = [torch.full((1, 3, 16, 16), value) for value in (-0.6, 0.6)]
    with torch.no_grad():
        dark, light = (model.features(image)[0] for image in grey)
        direction = (light - dark) / (light - dark).norm() ** 2
        model.head.weight.copy_(scale * torch.stack([-direction, direction]))
        middle = direction @ (light + dark) / 2
        model.head.bias.copy_(scale * torch.stack([middle, -middle]))
    save(model, path)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    brightness_model("m.safetensors", 20.0)
    write_images(tmp_path / "photos", 0)
    Path("map.json").write_text(json.dumps({"=dark": 0, "light": 1}))
    return tmp_path


def run(*arguments: object) -> int:
    try:
        main([*map(str, arguments), "--device", "cpu"])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def record(threshold: float) -> Calibration:
    return Calibration(2.0, 1, "x", "val", encode_digests(torch.tensor([1])), 0.9, 0.95, (threshold,) * 2)


def test_calibrate_and_evaluate(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ("calibrate", "m.safetensors", "photos", "--classes", "map.json", "--out", "c.safetensors", "--workers", 0)
    assert run(*common, "--precision", 0.6, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["temperature"] > 1.5
    assert found["images"] == 60
    assert found["after"]["loss"] < found["before"]["loss"]
    assert found["after"]["method"] == "5-fold cross-validation"
    assert 0 < found["rejection"]["coverage"] < 1
    assert "digests" not in found
    assert run(*common) == 2
    assert "c.safetensors exists already" in capsys.readouterr().err
    assert run(*common, "--precision", 0.6, "--overwrite") == 0
    out = capsys.readouterr().out
    assert "after, 5-fold cross-validated" in out
    assert "with 95% confidence" in out
    assert run(*common, "--precision", 0.9999, "--overwrite") == 2
    assert "a precision of 0.9999 is not reached" in capsys.readouterr().err
    capsys.readouterr()
    main(["info", "c.safetensors"])
    assert "chosen on 60 images of photos" in " ".join(capsys.readouterr().out.split())
    evaluate = ("evaluate", "photos", "--model", "c.safetensors", "--classes", "map.json", "--workers", 0)
    assert run(*evaluate, "--json") == 0
    scores = json.loads(capsys.readouterr().out)
    assert any("60 of the 60 evaluated images were used to calibrate" in text for text in scores["warnings"])
    (one,) = scores["scores"]
    assert one["temperature"] == pytest.approx(found["temperature"])
    assert one["rejection"]["accepted"] <= 60
    assert one["intervals"]["top1"]["method"] == "95% interval, Wilson"
    assert one["precision_recall"]["micro"]["recall"][-1] == 1
    assert run(*evaluate, "--size", 16, 24) == 0
    assert "at 24: not applied" in capsys.readouterr().out


def test_statements_about_thresholds(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ("calibrate", "m.safetensors", "photos", "--classes", "map.json", "--out", "c.safetensors", "--workers", 0)
    assert run(*common, "--confidence", 0.5) == 2
    assert "confidence = 0.5 has no effect without a precision" in capsys.readouterr().err
    assert run(*common, "--precision", 0.3, "--confidence", 0.996) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "requested precision: 0.3 for each row of the table, with 99.6% confidence" in out  # not 100%
    assert "(with 99.6% confidence)" in str(load("c.safetensors").calibration)


def test_results_per_image(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    brightness_model("t.safetensors", 20.0, record(0.9))
    evaluate = ("evaluate", "photos", "--model", "t.safetensors", "--classes", "map.json", "--workers", 0)
    assert run(*evaluate, "--csv", "r.csv", "--json") == 0
    (scores,) = json.loads(capsys.readouterr().out)["scores"]
    with Path("r.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 60
    assert np.mean([row["correct"] == "true" for row in rows]) == pytest.approx(scores["top1"])
    assert sum(row["rejected"] == "false" for row in rows) == scores["rejection"]["accepted"]
    for row in rows:
        assert Path(row["image"]).is_file()
        assert row["label"] in ("'=dark", "../light, rejected")
        probability = float(row["probability"])
        assert (probability >= 0.9) == (row["rejected"] == "false")
        assert (row["rank"] == "1") == (row["correct"] == "true") == (row["label"] == row["predicted"])
        own = probability if row["correct"] == "true" else 1 - probability
        assert float(row["label_probability"]) == pytest.approx(own, abs=1e-5)
    assert run(*evaluate, "--csv", "r.csv") == 2
    assert "r.csv exists already" in capsys.readouterr().err
    assert run(*evaluate, "--csv", "other.csv", "--size", 16, 24) == 2
    assert "--size has 2" in capsys.readouterr().err
    assert run(*evaluate, "--csv", "r.csv", "--overwrite", "--out", "found") == 0
    assert {path.name for path in Path("found").iterdir()} == {
        "evaluation.json",
        "precision_recall.png",
        "precision_recall.svg",
    }


def test_results_per_image_of_several_labels(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny_vit(image_size=16, num_classes=3)
    model.labels, model.multi_label, model.preprocessing = ("a", "b", "c"), True, Preprocessing(size=16, resize=16)
    save(model, "several.safetensors")
    names = sorted(path for path in Path("photos").rglob("*.png"))
    with Path("several.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([("image", "labels"), *((name, ("a", "a|b", "b|c")[n % 3]) for n, name in enumerate(names))])
    assert run("evaluate", "several.csv", "--model", "several.safetensors", "--split", "all", "--csv", "r.csv") == 0
    assert "mAP" in capsys.readouterr().out
    with Path("r.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["label"] for row in rows} == {"a", "a|b", "b|c"}
    for row in rows:
        assert len(row["rank"].split("|")) == len(row["label"].split("|")) == len(row["label_probability"].split("|"))
        assert all(float(value) >= 0.5 for value in row["probability"].split("|") if value)
        assert row["rejected"] == ""
        assert (row["correct"] == "true") == (row["label"] == row["predicted"])


def test_predict_to_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    brightness_model("t.safetensors", 20.0, record(0.9))
    Path("photos/broken.png").write_bytes(b"\xff\xd8 broken")
    arguments = ("predict", "photos", "--model", "t.safetensors", "--csv", "p.csv", "--sort-into", "sorted")
    assert run(*arguments) == 1
    out, err = capsys.readouterr()
    assert "rejected: not sure enough (best guess " in out
    assert ", threshold 90%)" in out
    assert "written: p.csv" in err
    with Path("p.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 61
    folders = {"'=dark": "=dark", "../light, rejected": "_.._light, rejected", "": "rejected"}
    for label, name in folders.items():
        expected = [row for row in rows if row["predicted"] == label and not row["error"]]
        assert len(list(Path("sorted", name).iterdir())) == len(expected) > 0
        assert all((float(row["probability_1"]) >= 0.9) == bool(label) for row in expected)
    assert {path.name for path in Path("sorted").iterdir()} == set(folders.values())
    assert len(list(Path("photos").rglob("*.png"))) == 61
    (broken,) = (row for row in rows if row["error"])
    assert broken["image"].endswith("broken.png")
    assert run(*arguments, "--overwrite") == 2
    assert "sorted holds other files" in capsys.readouterr().err
    assert run("predict", "photos", "--csv", "new/p.csv", "--sort-into", "new") == 2
    assert not Path("new").exists()


def stdin(content: bytes) -> SimpleNamespace:
    return SimpleNamespace(buffer=io.BytesIO(content), closed=False, isatty=lambda: False)


def test_standard_input(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = sorted(Path("photos/light").iterdir())[:2]
    predict = ("predict", "--model", "m.safetensors", "--json")
    assert run(*predict, first, second) == 0
    expected = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    monkeypatch.setattr(sys, "stdin", stdin(first.read_bytes()))
    assert run(*predict, "-", "--sort-into", "one") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["image"] == "-"
    assert [one["class"] for one in found["top"]] == [one["class"] for one in expected[0]["top"]]
    probabilities = [[one["probability"] for one in result["top"]] for result in (found, expected[0])]
    assert probabilities[0] == pytest.approx(probabilities[1], abs=1e-5)  # the other was in a batch of two
    assert [path.read_bytes() for path in Path("one").rglob("stdin.png")] == [first.read_bytes()]
    for separator in ("\n", "\0"):
        monkeypatch.setattr(sys, "stdin", stdin(separator.join([str(first), str(second), ""]).encode()))
        assert run(*predict, "--paths-from", "-") == 0
        assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == expected
    for content, message in ((b"", "standard input is empty"), (bytes(first), "--paths-from -")):
        monkeypatch.setattr(sys, "stdin", stdin(content))
        assert run(*predict, "-") == 2
        assert message in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdin", None)
    assert run(*predict, "-") == 2
    assert "not connected" in capsys.readouterr().err
