"""The command `vitreous data`."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pictures import classes
from vitreous.cli import main


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    classes(tmp_path / "pets", {"cat": 12, "[bold]dog": 8})
    return tmp_path


def run(*arguments: str) -> int:
    try:
        main(["data", *arguments])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def rows(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    key = ""
    for line in text.splitlines():
        first, rest = line[:12].strip(), line[12:].strip()
        key = first or key
        found[key] = f"{found[key]} {rest}" if key in found else rest
    return found


def test_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("pets") == 0
    out, err = capsys.readouterr()
    assert not err
    table, _, last = out.rpartition("samples: ")
    assert last == "pets-samples.png\n"
    assert rows(table) == {
        "data": "pets",
        "images": "16 train, 4 val",
        "splits": "20% for validation, held out from train, stratified, seed 0; no test split, which needs at least 100"
        " images",
        "classes": "2; training images of [bold]dog: 6, cat: 10",
        "balance": "the largest class has 1.7 times the images of the smallest (10 and 6)",
        "sizes": "all 12 x 10 (height x width)",
        "colour": "3 channels",
        "unreadable": "none",
        "duplicates": "none: no two images have the same bytes",
    }
    with Image.open("pets-samples.png") as sheet:
        assert sheet.format == "PNG"


def test_unreadable_and_duplicate_images_are_listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for i in range(15):
        (folder / "pets" / "cat" / f"bad{i}.jpg").write_bytes(b"text %d" % i)
    (folder / "pets" / "cat" / "copy.png").write_bytes((folder / "pets" / "cat" / "000.png").read_bytes())
    (folder / "pets" / "cat" / "list.txt").touch()
    assert run("pets", "--val-fraction", "0", "--no-sheet") == 0
    table = rows(capsys.readouterr().out)
    assert table["unreadable"].startswith("15 images train: pets/cat/bad0.jpg: not an image, or not a supported")
    assert table["unreadable"].endswith("and 3 more; --json lists all")
    assert table["duplicates"] == "1 within train train: pets/cat/000.png = train: pets/cat/copy.png"
    assert table["note"] == "ignored: 1 file without an image suffix (1 .txt)"
    assert table["splits"] == "no validation split"
    assert list(folder.glob("*.png")) == []


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((4, 4, 4), "4 training images in every class"),
        ((4, 4, 0), "4 training images in each of 2 classes; 1 class without training images"),
        ((8, 2, 2), "the largest class has 4.0 times the images of the smallest (8 and 2)"),
    ],
)
def test_balance(folder: Path, capsys: pytest.CaptureFixture[str], counts: tuple[int, ...], expected: str) -> None:
    labels = np.repeat(np.arange(3), counts)
    pixels = np.arange(len(labels) * 64, dtype=np.uint16).astype(np.uint8).reshape(-1, 8, 8)
    np.savez("set.npz", images=pixels, labels=labels, classes=np.array(["a", "b", "c"]))
    assert run("set.npz", "--no-sheet", "--val-fraction", "0", "--test-fraction", "0") == 0
    assert rows(capsys.readouterr().out)["balance"] == expected


def test_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "pets" / "cat" / "bad.jpg").write_bytes(b"text")
    assert run("pets", "--json", "--sheet", "s.png", "--split-seed", "3", "--val-fraction", "0.5") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["source"], found["sheet"]) == ("pets", "s.png")
    assert found["split"].startswith("52.4% for validation, held out from train, stratified, seed 3")
    assert Path("s.png").is_file()
    assert sum(found["counts"].values()) == 21
    assert found["classes"] == ["[bold]dog", "cat"]
    assert found["class_counts"]["train"][0] == 4
    assert found["unreadable"][0]["name"] == "pets/cat/bad.jpg"
    assert found["sizes"]["common"] == [12, 10]
    assert found["leaks"] == {"train-val": 0}
    assert found["copies"] == []
    assert run("pets", "--json", "--no-sheet") == 0
    assert json.loads(capsys.readouterr().out)["sheet"] is None


@pytest.mark.parametrize("sheet", ["gone/x.png", "x.jpg"])
def test_contact_sheet_that_cannot_be_written(folder: Path, capsys: pytest.CaptureFixture[str], sheet: str) -> None:
    """The description is printed anyway, followed by the error and exit code 2."""
    assert run("pets", "--no-sheet") == 0
    whole = capsys.readouterr().out
    assert run("pets", "--sheet", sheet) == 2
    out, err = capsys.readouterr()
    assert out == whole.replace("no samples drawn; --sheet FILE.png draws some\n", "")
    assert err.startswith(f"vitreous: {sheet}")
    assert run("pets", "--sheet", sheet, "--json") == 2
    out, err = capsys.readouterr()
    assert (json.loads(out)["counts"], json.loads(out)["sheet"]) == ({"train": 16, "val": 4}, None)
    assert err.startswith(f"vitreous: {sheet}")


def test_builtin_data_set(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("digits") == 0
    assert "1,293 train, 144 val, 360 test" in capsys.readouterr().out
    assert Path("digits-samples.png").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gone",), "vitreous: gone: there is no such file or folder"),
        (("digit",), "did you mean digits?"),
        (("pets", "--data-dir", "x"), "data_dir is only for data sets that are given by name"),
        (("cifar10", "--data-dir", "gone"), "there is no folder gone"),
        (("pets", "--val-fraction", "2"), "val_fraction = 2"),
        (("pets", "--sheet", "x.png", "--no-sheet"), "--sheet and --no-sheet"),
        (("pets", "--shet", "x.png"), "--sheet"),
        ((), "DATA"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], message: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert not out


def test_help_does_not_wait_for_torch() -> None:
    code = "from vitreous.cli import main\ntry:\n    main(['data', '--help'])\nexcept SystemExit:\n    pass\n"
    code += "import sys; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.endswith("False\n")
    assert "--sheet" in result.stdout


def test_on_a_terminal(folder: Path) -> None:
    """The progress bar shows rate and time left and disappears; undecodable file names are no error."""
    classes(folder / "pets", {os.fsdecode(b"caf\xe9"): 150})
    (folder / "pets" / "cat" / "red\x1b[31m\n.png").write_bytes(b"broken")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "vitreous", "data", "pets"]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        shown = b""
        try:
            while data := os.read(ours, 65536):
                shown += data
        except OSError:  # the other end is closed
            pass
    os.close(ours)
    assert process.returncode == 0
    text = shown.decode()
    assert re.search(r"\d+/171 .*images/s  \d:\d\d:\d\d left", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text))
    assert "\x1b[31m\n" not in text
    assert text.rstrip().endswith("samples: pets-samples.png")
