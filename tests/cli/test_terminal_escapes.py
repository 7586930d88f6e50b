"""Control characters in labels, file names, tensor names and settings never reach the terminal, in any command."""

import io
import json
import os
import re
import subprocess
import sys
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from helpers import tiny_vit
from runs import TINY_RUN
from vitreous.benchmark import machine
from vitreous.cli import main
from vitreous.utils.console import format_message, printable

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux allows any bytes in file names"),
    pytest.mark.filterwarnings("always::vitreous.VitreousWarning"),
]

TITLE, COLOUR, C1 = "\x1b]0;pwned\x07", "\x1b[31m", "\x9b31m"
NAME = f"x{TITLE}{COLOUR}{C1}\r\u202e\u2066\u2028\x7f\x08\n\udcff[b]$^{{$y"  # [b]: markup of rich; $^{: of matplotlib
RUN = (*TINY_RUN, "--workers", "0", "--max-bad", "0.5", "--duration", "2steps")


def controls(text: str) -> set[str]:
    """Return the control characters in a text that must not reach a terminal."""
    allowed = {"\n", "\t"}
    return {c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c not in allowed}


def run(*arguments: object) -> tuple[int, str, str]:
    """Run a command with its output in pipes. Return exit code, stdout and stderr."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    code = 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = int(end.code or 0)
    texts = [stream.buffer.getvalue().decode("utf-8") for stream in (out, err)]  # type: ignore[attr-defined]
    return code, *texts


def safe_output(*arguments: object, codes: tuple[int, ...] = (0,)) -> str:
    """Return all output of a command, and check that it contains no control characters."""
    found, out, err = run(*arguments)
    assert not controls(out + err), (out, err)
    assert "Traceback" not in err, err
    assert found in codes, err
    return out + err


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The current folder, with data, a run and a checkpoint whose names contain control characters."""
    folder = tmp_path_factory.mktemp("hostile")
    random = np.random.default_rng(0)
    for split, label in ((s, c) for s in ("train", "test") for c in "ab"):
        home = folder / f"data{NAME}" / split / f"{label}{NAME}"
        home.mkdir(parents=True)
        for number in range(12):
            pixels = random.integers(0, 256, (20, 20, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(home / f"{number}{NAME}.png")
        (home / f"bad{NAME}.png").write_bytes(b"broken")
    before, cache = Path.cwd(), os.environ.get("XDG_CACHE_HOME")
    os.chdir(folder)
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    printed = safe_output("train", f"data{NAME}", "--out", f"run{NAME}", *RUN)
    assert "pwned" in printed
    model = tiny_vit(num_classes=2)
    card = {
        "model": "vit",
        "config": asdict(model.config),
        "labels": [f"{c}{NAME}".replace("\udcff", "\ufffd") for c in "ab"],
    }
    save_file(model.state_dict(), "m.safetensors", {"format": "pt", "vitreous": json.dumps(card)})
    Path("m.safetensors").rename(f"m{NAME}.safetensors")
    yield folder
    os.chdir(before)
    os.environ.pop("XDG_CACHE_HOME")
    if cache is not None:
        os.environ["XDG_CACHE_HOME"] = cache


DATA, OURS, RUNS = f"data{NAME}", f"m{NAME}.safetensors", f"run{NAME}"
CPU = ("--device", "cpu")
MODEL = ("--model", OURS, *CPU)
COMMANDS: dict[str, tuple[tuple[object, ...], int]] = {
    "resume": (("train", "--resume", RUNS), 0),
    "help of a run": (("train", "--resume", RUNS, "--help"), 0),
    "finetune": (("finetune", DATA, "--from", RUNS, "--out", f"tuned{NAME}", *RUN[-8:]), 0),
    "data": (("data", DATA), 0),
    "data, twice": (("data", DATA), 2),
    "data --json": (("data", DATA, "--no-sheet", "--json"), 0),
    "predict": (("predict", DATA, *MODEL), 1),
    "predict one": (("predict", f"{DATA}/train/a{NAME}/0{NAME}.png", "--model", RUNS, *CPU), 0),
    "predict --json": (("predict", DATA, *MODEL, "--json"), 1),
    "inspect": (("inspect", RUNS, *(f"{DATA}/test/a{NAME}/{i}{NAME}.png" for i in ("0", "bad")), *CPU), 1),
    "explain": (("explain", f"{DATA}/test/a{NAME}/0{NAME}.png", "--model", RUNS, *CPU, "--out", f"e{NAME}.html"), 0),
    "evaluate": (("evaluate", DATA, *MODEL, "--size", 32, 40, "--workers", 0, "--out", f"eval{NAME}"), 1),
    "evaluate a run": (("evaluate", DATA, "--model", RUNS, *CPU, "--workers", 0, "--with", "knn"), 1),
    "evaluate --json": (("evaluate", DATA, *MODEL, "--workers", 0, "--json"), 1),
    "predict to files": (("predict", DATA, *MODEL, "--csv", f"p{NAME}.csv", "--sort-into", f"sorted{NAME}"), 1),
    "evaluate --csv": (("evaluate", DATA, *MODEL, "--workers", 0, "--csv", f"e{NAME}.csv"), 1),
    "calibrate": (("calibrate", OURS, DATA, "--out", f"c{NAME}.safetensors", *CPU, "--precision", 0.1), 1),
    "features": (("features", DATA, f"features{NAME}", *MODEL, "--workers", 0), 1),
    "compare": (
        ("compare", OURS, RUNS, "--data", DATA, "--with", "knn", *CPU, "--workers", 0, "--out", f"compared{NAME}"),
        1,
    ),
    "bench": (("bench", *MODEL, "--batch-size", 2, "--seconds", 0.02), 0),
    "info": (("info", OURS), 0),
    "info of a run": (("info", RUNS), 0),
    "convert": (("convert", OURS, f"out{NAME}", "--to", "timm", "--force"), 0),
    "runs": (("runs", RUNS), 0),
    "data --check": (("data", DATA, "--check", "--out", f"check{NAME}", "--workers", 0), 0),
    "models": (("models", NAME), 2),
    "recipes": (("recipes", NAME), 2),
    "reproduce": (("reproduce", NAME), 2),
    "config file": (("train", "--config", f"config{NAME}.toml", "--print-config"), 2),
    "sweep": (("sweep", DATA, "--grid", f"model={NAME},Ti/16", "--epochs", 1, "--out", f"sweep{NAME}", *CPU), 2),
    "reproduce a result": (("reproduce", "--from", f"result{NAME}.json", "--out", f"out{NAME}"), 2),
}
NAMED = ("train", "finetune", "data", "predict", "inspect", "evaluate", "features", "compare", "bench", "info")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command(name: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(machine.MATMUL_SIDES, "cpu", 96)
    arguments, code = COMMANDS[name]
    if name == "data, twice":
        run("data", DATA)
    assert safe_output(*arguments, codes=(code,))


def test_all_commands_are_tested() -> None:
    listed = re.search(r"\{([a-z,]+)\}", run("--help")[1])
    assert listed
    assert set(listed[1].split(",")) == {arguments[0] for arguments, _ in COMMANDS.values()} | {"train"}


@pytest.mark.parametrize("command", [*NAMED, "convert", "models", "recipes"])
def test_unknown_arguments(command: str, place: Path) -> None:
    safe_output(command, NAME, f"--{NAME}=1", NAME, codes=(2,))


@pytest.mark.parametrize("command", NAMED)
def test_missing_files(command: str, place: Path) -> None:
    named = {"bench": ("--model",), "finetune": (DATA, "--from"), "compare": ("m", "--data")}.get(command, ())
    more = {"features": ("f", "--model", OURS), "evaluate": ("--model", OURS)}.get(command, ())
    assert printable(NAME)[:8] in safe_output(command, *named, f"gone{NAME}", *more, codes=(2,))


def test_list_of_unreadable_images_is_escaped(place: Path) -> None:
    lines = Path(RUNS, "bad_images.txt").read_text(encoding="utf-8")
    assert not controls(lines)
    assert len(lines.splitlines()) == 4


# ---------------------------------------------------------------- contents of files


def with_tensor(path: Path) -> None:
    model = tiny_vit()
    card = {"model": "vit", "config": asdict(model.config)}
    names = {**model.state_dict(), NAME.replace("\udcff", ""): torch.zeros(1)}
    save_file(names, path, {"format": "pt", "vitreous": json.dumps(card)})


def with_setting(path: Path) -> None:
    model = tiny_vit()
    card = {"model": "vit", "config": {**asdict(model.config), "gelu": NAME, NAME: 1}}
    save_file(model.state_dict(), path, {"format": "pt", "vitreous": json.dumps(card)})


def with_origin(path: Path) -> None:
    model = tiny_vit()
    card = {"model": "vit", "config": asdict(model.config), "origin": {NAME: NAME, "dialect": NAME}}
    card["labels"] = [f"{number}{NAME}[/b]" for number in range(7)]
    save_file(model.state_dict(), path, {"format": "pt", "vitreous": json.dumps(card)})


def pickled(path: Path) -> None:
    torch.save({"model": {NAME: torch.zeros(2, 2)}, NAME: 3}, path)


def arrays(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, **{NAME.replace("\udcff", ""): np.zeros((2, 2))})


def header(path: Path) -> None:
    text = json.dumps({NAME: {"dtype": NAME, "shape": [1], "data_offsets": [0, 4]}}).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))


def folder_of_timm(path: Path) -> None:
    path.mkdir()
    save_file({"cls_token": torch.zeros(1)}, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps({"architecture": NAME, "model_args": {NAME: NAME}}))


@pytest.mark.parametrize("write", [with_tensor, with_setting, with_origin, pickled, arrays, header, folder_of_timm])
def test_checkpoints(write: Callable[[Path], None], place: Path, tmp_path: Path) -> None:
    write(tmp_path / f"a{NAME}")
    for arguments in (("info",), ("info", "--no-strict"), ("convert", "--to", "native"), ("predict", *CPU)):
        given: list[Any] = [arguments[0], tmp_path / f"a{NAME}", *arguments[1:]]
        if arguments[0] == "predict":
            given[1:2] = [f"{DATA}/test/a{NAME}/0{NAME}.png", "--model", given[1]]
        if arguments[0] == "convert":
            given.insert(2, tmp_path / f"out{NAME}.safetensors")
        safe_output(*given, codes=(0, 2))


def test_data_files(place: Path, tmp_path: Path) -> None:
    picture = f"{DATA}/test/a{NAME}/0{NAME}.png"
    rows = [{"path": str(place / picture), "label": f"{label}{NAME}"} for label in ("a", "b") for _ in range(4)]
    texts = {
        "rows.jsonl": "\n".join(json.dumps({**row, NAME: 1}) for row in rows),
        "lost.jsonl": json.dumps({"path": NAME, "label": NAME}),
        "odd.csv": f"{TITLE},{C1}\n{COLOUR},\u202e\n",
        "suite.toml": '[[group]]\nname = "\\u001b]0;pwned\\u0007"\n[[group.task]]\nsource = "\\u001b[31m"\n',
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        arguments = ("compare", OURS, "--suite") if name.endswith("toml") else ("data", "--no-sheet")
        safe_output(*arguments, tmp_path / name, codes=(0, 2))


# ---------------------------------------------------------------- functions


def test_printable() -> None:
    assert printable("plain, ü, 漢字, 🙂, a b") == "plain, ü, 漢字, 🙂, a b"
    family, persian, spaces = "👩\u200d👧", "می\u200cخواهم", "1\u00a0000\u3000"
    assert [printable(text) for text in (family, persian, spaces)] == [family, persian, spaces]
    assert controls(printable("".join(map(chr, range(0x110000))))) == {"\u200c", "\u200d"}
    assert printable(NAME).encode("utf-8")
    assert "\n" not in printable("a\nb")
    assert printable("a\nb\x1b", keep="\n") == "a\nb\ufffd"


def test_a_newline_in_a_name_cannot_forge_a_message() -> None:
    text = format_message("a\nvitreous: everything is fine\n  detail")
    assert text == "vitreous: a\n  vitreous: everything is fine\n  detail"


def test_json_keeps_file_names(place: Path) -> None:
    """JSON has its own escapes, so that parsing returns the original names."""
    code, out, _ = run("predict", DATA, *MODEL, "--json")
    assert code == 1
    assert out.isascii()
    assert not controls(out)
    assert {json.loads(line)["image"] for line in out.splitlines()} == {str(p) for p in Path(DATA).rglob("*.png")}


def test_on_a_terminal(place: Path, tmp_path: Path) -> None:
    """Bars, tables and messages have colours, but names cannot set any."""
    pty = pytest.importorskip("pty")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "vitreous", "features", DATA, str(tmp_path / "f"), *MODEL, "--workers", "0"]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "24", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        shown = b""
        try:
            while data := os.read(ours, 65536):
                shown += data
        except OSError:  # the other end is closed
            pass
    os.close(ours)
    text = shown.decode()
    assert process.returncode == 1, text
    assert "pwned" in text
    assert "\x1b]" not in text
    rest = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    assert not controls(rest) - {"\r"}
    assert COLOUR not in text
