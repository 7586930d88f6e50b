"""Closed output streams: training continues without output, and no command ends with a traceback."""

import io
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import pytest

import vitreous
from helpers import tiny_vit
from runs import TINY_RUN, draw_folder
from vitreous.cli import main
from vitreous.serving import predict as predict_module
from vitreous.utils.console import STDERR, STDOUT, OutputClosed, print_line, standard_streams
from vitreous.utils.progress import ProgressReporter

RUN = (*TINY_RUN, "--workers", "0", "--duration", "4steps", "--evaluate-every", "2steps")
MODEL = ("--model", "m.safetensors", "--device", "cpu", "--workers", "0")


def shell(command: str, cwd: Path, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run a command in bash, with `vitreous` as a function that runs this package."""
    program = f'vitreous() {{ "{sys.executable}" -m vitreous "$@"; }}; set -o pipefail; {command}'
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        ["bash", "-c", program], cwd=cwd, env=environment, capture_output=True, check=False, timeout=120, **options
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("closed")
    draw_folder(folder / "data", images=8)
    model = tiny_vit(num_classes=3)
    model.labels = ("blau", "grün", "rot")
    vitreous.save(model, folder / "m.safetensors")
    return folder


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("vitreous models Ti/16 >&- 2>&- <&-", 0),
        ("vitreous --help >&-", 0),
        ("vitreous recipes nothing 2>&-", 2),
        ("vitreous recipes --nothing 2>&-", 2),
        ("vitreous recipes 1</dev/null", 1),  # not open for writing
        ("vitreous recipes >/dev/full", 1),
        ("vitreous recipes | :", 141),
        ("vitreous recipes nothing 2>&1 >/dev/null | :", 2),
    ],
)
def test_short_commands(command: str, code: int, tmp_path: Path) -> None:
    found = shell(command, tmp_path)
    assert found.returncode == code, found.stderr
    assert b"Traceback" not in found.stderr
    assert b"Exception ignored" not in found.stderr
    if code == 1:
        assert found.stderr.startswith(b"vitreous: stdout cannot be written (")


@pytest.mark.parametrize("workers", ["", "--workers 2 --cache never"])
@pytest.mark.parametrize("closed", ["| head -1", ">&- 2>&- <&-"])
def test_training_continues_without_output(closed: str, workers: str, place: Path, tmp_path: Path) -> None:
    """It also ends: decoding processes must not outlive the main process, which would wait for them."""
    found = shell(f"vitreous train {place}/data --out run {' '.join(RUN)} {workers} {closed}", tmp_path)
    assert found.returncode == 0, found.stderr
    assert b"Traceback" not in found.stderr
    assert (tmp_path / "run" / "result.json").is_file()
    assert (tmp_path / "run" / "report.html").is_file()


def test_terminal_that_is_closed_during_training(place: Path, tmp_path: Path) -> None:
    """A thread draws a progress bar on it; writing then fails with an input/output error."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "vitreous", "train", str(place / "data"), "--out", "run", *RUN]
    environment = {**os.environ, "TERM": "xterm-256color", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [*command, "--duration", "60steps"],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        cwd=tmp_path,
        env=environment,
    ) as process:
        os.close(theirs)
        shown = b""
        while b"training" not in shown:
            shown += os.read(ours, 65536)
        os.close(ours)
        assert process.wait(120) == 0
    assert (tmp_path / "run" / "result.json").is_file()


# ---------------------------------------------------------------- in this process, with real pipes


@contextmanager
def pipe_without_reader() -> Iterator[Any]:
    reading, writing = os.pipe()
    os.close(reading)
    stream = os.fdopen(writing, "w", encoding="utf-8")
    try:
        yield stream
    finally:
        with suppress(BrokenPipeError):
            stream.close()


def run(*arguments: object) -> int:
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.mark.parametrize(
    ("command", "code", "made"),
    [
        (("train", "data", "--out", "OUT", *RUN), 0, "result.json"),
        (("evaluate", "data", "--out", "OUT", *MODEL), 141, "evaluation.json"),
        (("features", "data", "OUT", *MODEL), 0, "features.json"),
        (
            ("compare", *MODEL[1:], "--data", "data", "--with", "knn", "--out", "OUT", "--cache", "OUT.cache"),
            141,
            "comparison.json",
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_long_commands_write_their_files(
    command: tuple[str, ...], code: int, made: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    out = tmp_path / "out"
    with pipe_without_reader() as lost, pipe_without_reader() as also, redirect_stdout(lost), redirect_stderr(also):
        assert run(*(word.replace("OUT", str(out)) for word in command)) == code
    assert (out / made).is_file()


def test_predict_stops_when_its_pipe_is_closed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`vitreous predict ... | head -1` does not process all images."""
    monkeypatch.chdir(place)
    seen: list[int] = []

    def counted(*arguments: Any, **options: Any) -> Iterator[Any]:
        for number, found in enumerate(looked(*arguments, **options)):
            seen.append(number)
            yield found

    looked = predict_module.predict_images
    monkeypatch.setattr(predict_module, "predict_images", counted)
    with pipe_without_reader() as lost, redirect_stdout(lost):
        assert run("predict", "data", *MODEL[:4]) == 141
    assert seen == [0]


def test_in_python(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training works in a process without standard streams, and in one whose streams are closed."""
    settings = {"workers": 0, "duration": "2 steps", "model": "Ti/16", "image_size": 16, "patch_size": 8, "depth": 1}
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert vitreous.train(place / "data", out=str(tmp_path / "a"), device="cpu", **settings).steps == 2
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stdout", closed)
    monkeypatch.setattr(sys, "stderr", closed)
    assert vitreous.train(place / "data", out=str(tmp_path / "b"), device="cpu", **settings).steps == 2


def test_output_to_a_broken_pipe_is_dropped_until_the_stream_is_replaced() -> None:
    whole = io.StringIO()
    with pipe_without_reader() as broken, redirect_stdout(broken):
        print_line("a")
        print_line("b")
        ProgressReporter().print("c")
        assert isinstance(STDOUT.failure, BrokenPipeError)
        with redirect_stdout(whole):
            print_line("d")
    assert whole.getvalue() == "d\n"


def test_command_stops_if_its_required_output_is_closed() -> None:
    with pipe_without_reader() as broken:
        with redirect_stdout(broken), standard_streams(required=True), pytest.raises(OutputClosed):
            print_line("a")
        with redirect_stderr(broken), standard_streams(required=True):
            print_line("notes may be lost", STDERR)
    assert not STDOUT.required


def test_broken_pipes_do_not_leak_file_descriptors() -> None:
    """Regression: each later command redirected the stream again and left a descriptor open."""
    with pipe_without_reader() as lost, redirect_stdout(lost):
        assert run("models", "Ti/16") == 141
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        assert run("--version") == 0
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_characters_that_the_terminal_cannot_encode() -> None:
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    with redirect_stdout(narrow):
        print_line("grün")
        ProgressReporter().table([("a", "漢")])
    narrow.flush()
    assert narrow.buffer.getvalue() == b"gr?n\na  ?\n"  # type: ignore[attr-defined]
    assert narrow.errors == "strict"  # the stream itself is unchanged


def test_opened_files_do_not_take_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    """With descriptor 1 closed, the next opened file would get that number, and output would go into it."""
    code = "import os; from vitreous.cli import main; main(['recipes']); os.write(1, b'lost')"
    found = subprocess.run(
        ["bash", "-c", f'"{sys.executable}" -c "$0" >&-', code], capture_output=True, check=False, timeout=60
    )
    assert found.returncode == 0, found.stderr
