"""The command `vitreous train`: help, mistakes, progress bar and Ctrl-C."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from command import vitreous
from runs import TINY_RUN, draw_folder
from vitreous import TrainConfig

FIELDS = list(TrainConfig().flat())
OTHER_FLAGS = ("--recipe", "--config", "--print-config", "--resume", "--overwrite")


@pytest.fixture(scope="module")
def help_text() -> str:
    """The output of `--help`, and whether it imported torch."""
    code = (
        "import sys\nfrom vitreous.cli import main\n"
        "code = 0\ntry:\n    main(['train', '--help'])\nexcept SystemExit as end:\n    code = end.code\n"
        "heavy = [name for name in ('torch', 'numpy', 'PIL') if name in sys.modules]\n"
        "print('HEAVY', heavy, 'CODE', code or 0)"
    )
    environment = {**os.environ, "COLUMNS": "100"}  # wider terminals show boxes side by side
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    text = result.stdout
    for other, name in (("--epochs TEXT", "--duration TEXT"), ("--size N [N]", "--image-size N [N]")):
        text = text.replace(f"{other}, {name}", name)  # these flags have two names
    return text


def flag(field: str) -> str:
    return "--from" if field == "start" else "--" + field.replace("_", "-")


def described(text: str) -> dict[str, str]:
    """Return each flag with its help text, which ends at the next flag."""
    found: dict[str, str] = {}
    current = ""
    for line in (line.strip("│ ") for line in text.splitlines()):
        if match := re.match(r"(?:-h, )?(--[\w-]+)(?:, --no-[\w-]+)?(?: (?:\{\S.*?\}|[A-Z|]+))*(?=\s|$)", line):
            current = match[1]
            assert current not in found, f"{current} is listed twice"
            found[current] = line[match.end() :].strip()
        elif line.startswith(("╭", "╰")):
            current = ""
        elif current:
            found[current] = f"{found[current]} {line}".strip()
    return found


def test_help_does_not_import_torch(help_text: str) -> None:
    assert "HEAVY [] CODE 0" in help_text
    assert "Train a model on images." in help_text


def test_help_lists_every_field_once(help_text: str) -> None:
    found = described(help_text)
    assert set(found) == {"--help", *OTHER_FLAGS, *map(flag, FIELDS)}
    for field in FIELDS:
        assert len(re.findall(rf"^[│ ]*{flag(field)}(?=[ ,]|$)", help_text, re.MULTILINE)) == 1


@pytest.mark.parametrize("field", FIELDS)
def test_help_describes_each_field(help_text: str, field: str) -> None:
    words = described(help_text)[flag(field)].partition("(default:")[0]
    words = re.sub(r"\{.*?\}|\||\b(INT|FLOAT|STR)\b", "", words)  # metavars
    assert len(words.split()) >= 2, f"{field} has no docstring"


# ---------------------------------------------------------------- mistakes


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return vitreous("train", *arguments, cwd=cwd)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("--batchsize", "--batch-size"), ("--patch-szie", "--patch-size"), ("--stocastic-depth", "--stochastic-depth")],
)
def test_misspelt_flag(typed: str, meant: str) -> None:
    result = run("digits", typed, "8")
    assert result.returncode == 2
    assert typed in result.stderr
    assert meant in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("arguments", [("--lr", "fast"), ("--schedule", "cosin"), ("--batch-size",)])
def test_invalid_value(arguments: tuple[str, ...]) -> None:
    result = run("digits", *arguments)
    assert result.returncode == 2
    assert arguments[0] in result.stderr
    assert "Traceback" not in result.stderr


def test_missing_data() -> None:
    result = run()
    assert result.returncode == 2
    assert "DATA is missing" in result.stderr


# ---------------------------------------------------------------- a terminal


class Terminal:
    """A process with a terminal as its standard streams."""

    def __init__(self, *arguments: object, cwd: Path, columns: int):
        self.master, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm-256color"}
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            environment.pop(name, None)
        command = [sys.executable, "-m", "vitreous", *map(str, arguments)]
        self.process = subprocess.Popen(command, cwd=cwd, env=environment, stdin=inside, stdout=inside, stderr=inside)
        os.close(inside)
        self.seen = ""

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)

    @property
    def text(self) -> str:
        """The output without colours and cursor movements."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.seen)

    def read_until(self, done: Callable[[str], object], seconds: float = 90) -> None:
        deadline = time.monotonic() + seconds
        while not done(self.text):
            assert time.monotonic() < deadline, self.text[-3000:]
            if not select.select([self.master], [], [], 0.2)[0]:
                continue
            try:
                data = os.read(self.master, 65536)
            except OSError:  # the process has ended
                return
            self.seen += data.decode(errors="replace")


LONG = [*TINY_RUN, "--duration", "100000steps", "--evaluate-every", "90000steps", "--workers", "0", "--out", "run"]
BAR = {
    "title": r"training",
    "share": r"\d+%",
    "epoch": r"epoch \d+\.\d",
    "loss": r"loss \d+\.\d+",
    "accuracy": r"acc \d+\.\d%",
    "learning rate": r"lr \d\.\de[+-]\d+",
    "speed": r"[\d,]+ images/s",
    "waiting": r"wait \d+%",
    "memory": r"\d+(\.\d)? [MG]iB",
    "time left": r"\d+:\d\d:\d\d left",
}


def bars(text: str) -> list[str]:
    """Return each bar with the line of numbers below it, if they contain all of BAR."""
    lines = re.split(r"[\r\n]+", text)
    pairs = [f"{bar}\n{numbers}" for bar, numbers in pairwise(lines) if bar.startswith("training")]
    return [pair for pair in pairs if all(re.search(pattern, pair) for pattern in BAR.values())]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_folder(tmp_path_factory.mktemp("data") / "farben")


def test_progress_bar_and_ctrl_c(folder: Path, tmp_path: Path) -> None:
    with Terminal("train", folder, *LONG, cwd=tmp_path, columns=160) as terminal:
        terminal.read_until(bars)
        terminal.process.send_signal(signal.SIGINT)
        terminal.read_until(lambda text: False, seconds=60)
        assert terminal.process.wait(60) == 130
        text = terminal.text
    assert "stopped at step" in text
    assert "vitreous train --resume run" in text
    assert "Traceback" not in text
    assert "KeyboardInterrupt" not in text
    assert "\x1b[?25h" in terminal.seen  # the cursor is shown again
    assert list((tmp_path / "run" / "state").glob("step-*"))
    last = text.rstrip().splitlines()[-1]
    assert last.startswith("vitreous: stopped at step")


def test_progress_bar_on_80_columns(folder: Path, tmp_path: Path) -> None:
    """The bar fits, and no word is cut."""
    with Terminal("train", folder, *LONG, cwd=tmp_path, columns=80) as terminal:
        terminal.read_until(lambda text: len(bars(text)) > 3)
        found = bars(terminal.text)
    for line in "\n".join(found[:3]).splitlines():
        assert len(line) <= 80
        assert "…" not in line
