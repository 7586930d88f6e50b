"""The command `vitreous predict`, on a terminal, in a pipe and with --json."""

import json
import os
import pty
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import command
from helpers import tiny_vit
from vitreous.cli import main
from vitreous.preprocessing import Preprocessing
from vitreous.serving.prediction import predict_images

LABELS = ("ant", "bee", "cat", "dog", "elk", "fox", "[bold]gnu")


def checkpoint(path: Path, labels: tuple[str, ...] | None = LABELS, **changes: Any) -> Any:
    """Write a small model in the native format and return it."""
    model = tiny_vit(**changes)
    model.labels, model.preprocessing = labels, Preprocessing(size=32, resize=36)
    card = {
        "model": "vit",
        "config": asdict(model.config),
        "preprocessing": model.preprocessing.to_json(),
        "labels": labels,
    }
    save_file(model.state_dict(), path, {"format": "pt", "vitreous": json.dumps(card)})
    return model


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pictures").mkdir()
    for i in range(4):
        pixels = np.random.default_rng(i).integers(0, 256, (40, 50 + i, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "pictures" / f"{i}.png")
    return tmp_path


def run(*arguments: str) -> int:
    try:
        main(["predict", *arguments, "--device", "cpu"])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = checkpoint(folder / "m.safetensors")
    assert run("pictures", "--model", "m.safetensors", "--json", "--top", "2", "--batch-size", "3") == 0
    out, err = capsys.readouterr()
    assert not err
    expected = list(predict_images(model, sorted(Path("pictures").iterdir()), top=2))
    for line, prediction in zip(out.splitlines(), expected, strict=True):
        found = json.loads(line)
        assert found["image"] == str(prediction.image)
        for answer, reference in zip(found["top"], prediction.top, strict=True):
            assert (answer["class"], answer["label"]) == (reference.index, reference.label)
            assert answer["probability"] == pytest.approx(reference.probability, abs=1e-6)


def test_preprocessing_in_python_gives_the_same_numbers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`model.preprocessing(Image.open(f))` of a JPEG with an EXIF rotation and of a 16-bit grey PNG."""
    model, exif = checkpoint(folder / "m.safetensors"), Image.Exif()
    exif[0x0112] = 8
    Image.effect_noise((50, 40), 90).save("sideways.jpg", exif=exif)
    Image.fromarray(np.linspace(0, 65535, 2400).reshape(60, 40).astype(np.uint16)).save("deep.png")
    assert run("sideways.jpg", "deep.png", "--model", "m.safetensors", "--json", "--top", "7") == 0
    for line, file in zip(capsys.readouterr().out.splitlines(), ("sideways.jpg", "deep.png"), strict=True):
        with torch.no_grad(), Image.open(file) as image:
            probabilities = model(model.preprocessing(image)[None])[0].softmax(-1)
        for answer in json.loads(line)["top"]:
            assert answer["probability"] == pytest.approx(probabilities[answer["class"]].item(), abs=1e-6)


def test_table_for_one_image(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = checkpoint(folder / "m.safetensors")
    assert run("pictures/1.png", "--model", "m.safetensors", "--top", "7") == 0
    lines = capsys.readouterr().out.splitlines()
    (expected,) = predict_images(model, ["pictures/1.png"], top=7)
    assert lines[0] == "pictures/1.png"
    assert len(lines) == 8
    for rank, (line, answer) in enumerate(zip(lines[1:], expected.top, strict=True), 1):
        assert line.split()[0] == str(rank)
        assert line.split()[1] == (f"{answer.probability:.1%}" if answer.probability >= 0.0005 else "<0.1%")
        assert line.split()[-1] == answer.label  # brackets in labels are not markup
        assert line.count("█") == int(answer.probability * 24)


def test_one_line_per_image_for_several_images(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = checkpoint(folder / "m.safetensors", labels=None)
    long = folder / "pictures" / f"{'long ' * 30}[red].png"
    long.write_bytes((folder / "pictures" / "0.png").read_bytes())
    assert run("pictures", "--model", "m.safetensors", "--top", "3") == 0
    lines = capsys.readouterr().out.splitlines()
    for line, expected in zip(lines, predict_images(model, sorted(Path("pictures").iterdir()), top=3), strict=True):
        assert line.startswith(str(expected.image))  # not cut: a pipe has no width
        first, *others = expected.top
        assert f"{first.probability:.1%}  class {first.index} " in line
        assert line.endswith(", ".join(f"class {a.index} {a.probability:.1%}" for a in others))


def test_assumed_imagenet_labels_are_noted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint(folder / "m.safetensors", labels=None, num_classes=1000)
    assert run("pictures/0.png", "--model", "m.safetensors", "--json", "--top", "1000") == 0
    out, err = capsys.readouterr()
    assert {a["class"]: a["label"] for a in json.loads(out)["top"]}[207] == "golden retriever"
    assert "its 1,000 classes are assumed to be ImageNet-1k's" in err


def test_guesses_are_one_line_and_absent_after_a_conversion(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny_vit(width=64, heads=1, gelu="erf", resample="timm")
    save_file(model.state_dict(), folder / "bare.safetensors")
    assert run("pictures/0.png", "--model", "bare.safetensors") == 0
    (line,) = capsys.readouterr().err.splitlines()
    order = [line.index(word) for word in ("preprocessing: ", "heads: 1", "pool: ", "GELU: ", "positions: ")]
    assert order == sorted(order)
    main(["convert", "bare.safetensors", "native.safetensors", "--to", "native"])
    assert capsys.readouterr().err == f"vitreous: note: {line}\n"
    assert run("pictures/0.png", "--model", "native.safetensors") == 0
    assert capsys.readouterr().err == ""
    main(["info", "native.safetensors"])  # `info` still lists them
    out = capsys.readouterr().out
    assert out.count("conversion guess ") == 5
    assert "heads: 1, the usual number at width 64" in out


def test_unreadable_files_are_listed_and_skipped(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint(folder / "m.safetensors")
    (folder / "pictures" / "2.png").write_bytes(b"")
    assert run("pictures", "--model", "m.safetensors", "--json") == 1
    out, err = capsys.readouterr()
    assert err.splitlines() == [
        "vitreous: pictures/2.png: the file is empty; skipped",
        "vitreous: 1 of 4 images skipped",
    ]
    found = [json.loads(line) for line in out.splitlines()]
    assert found[2] == {"image": "pictures/2.png", "error": "the file is empty"}
    assert [len(line.get("top", [])) for line in found] == [5, 5, 0, 5]
    assert run("pictures/2.png", "--model", "m.safetensors") == 1
    out, err = capsys.readouterr()
    assert (out, err) == ("", "vitreous: pictures/2.png: the file is empty; skipped\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gone.png", "--model", "m.safetensors"), "vitreous: gone.png: there is no such file or folder"),
        (("--model", "m.safetensors"), "no images were given"),
        (("pictures", "--model", "m.safetensors", "--top", "0"), "top = 0: must be 1 or more"),
        (("pictures", "--model", "m.safetensors", "--batch-size", "0"), "batch_size = 0: must be 1 or more"),
        (("pictures", "--model", "m.safetensors", "--device", "gpu"), "device = 'gpu' cannot be used here"),
        (("pictures", "--model", "headless.safetensors"), "has no head"),
    ],
)
def test_mistakes(folder: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str) -> None:
    checkpoint(folder / "m.safetensors")
    checkpoint(folder / "headless.safetensors", labels=None, num_classes=0)
    with pytest.raises(SystemExit) as end:
        main(["predict", *arguments])
    out, err = capsys.readouterr()
    assert end.value.code == 2
    assert message in err
    assert not out


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux allows names that are not UTF-8")
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_file_names_that_cannot_be_printed(folder: Path, flags: list[str]) -> None:
    checkpoint(folder / "m.safetensors")
    picture = (folder / "pictures" / "0.png").read_bytes()
    names = [b"caf\xe9.png", "漢字.png".encode(), b"red\x1b[31m\n.png"]
    for name in names:
        Path(os.fsdecode(name)).write_bytes(picture)
    Path(os.fsdecode(b"\xff.png")).write_bytes(b"broken")
    result = command.vitreous("predict", ".", "--model", "m.safetensors", *flags, encoding="ascii")
    assert result.returncode == 1
    assert "not an image" in result.stderr
    assert "\x1b" not in result.stdout + result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == 7 + len(flags)  # the JSON includes the unreadable image
    if flags:
        assert {os.fsencode(json.loads(line)["image"]) for line in lines} > set(names)


def test_on_a_terminal(folder: Path) -> None:
    """On 80 columns all lines fit, and the progress bar disappears at the end."""
    checkpoint(folder / "m.safetensors")
    for i in range(40):
        (folder / "pictures" / f"a rather long name of a picture {i}.png").symlink_to("0.png")
    (folder / "pictures" / "z.png").write_bytes(b"broken")
    ours, theirs = pty.openpty()
    typed = [sys.executable, "-m", "vitreous", "predict", "pictures", "--model", "m.safetensors", "--batch-size", "8"]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
    with subprocess.Popen(typed, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        shown = b""
        try:
            while data := os.read(ours, 65536):
                shown += data
        except OSError:  # the other end is closed
            pass
    os.close(ours)
    assert process.returncode == 1
    text = re.sub(r"\x1b\[[0-9;?]*[mhlA-J]", "", shown.decode())
    assert re.search(r"━ +\d+/45 .*images/s  \d:\d\d:\d\d left", text)
    # The final screen: only what follows the last erasure of each line.
    lines = [line.rpartition("\x1b[2K")[2].rpartition("\r")[2] for line in text.split("\r\n")]
    answers = [line for line in lines if re.search(r"\d%  ", line)]
    assert len(answers) == 44
    assert all(len(line) <= 80 for line in answers)
    assert any(line.startswith("…") for line in answers)
    assert "vitreous: pictures/z.png: not an image, or not a supported format; skipped" in lines
    assert "━" not in lines[-1]
