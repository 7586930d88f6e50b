"""Fenced blocks of Markdown pages, and how to run them. tests/test_docs_commands.py states the convention."""

import ast
import io
import os
import re
import subprocess
import tokenize
from collections.abc import Iterator, Mapping
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from textwrap import dedent
from typing import Any

import torch

import command

RUN = ("sh", "console", "python")
SHOWN = ("text", "toml", "json", "csv", "yaml", "diff")  # not run
REASONS = {
    "needs a GPU": "a CUDA kernel or a precision that only GPUs have",
    "slow": "minutes on one core",
    "template": "to be filled in by the reader",
    "installs software": "changes the environment",
    "runs the tests": "this test is one of them",
}
OUTPUT = re.compile(r"<!-- output(?:: within (\d+)%)? -->")  # before a text block: what the last Python block prints
# docs/refresh.py copies these from the source; tests/test_doctests.py runs the examples among them.
EXCERPT = re.compile(r"<!-- code: .*? -->\n.*?<!-- /code -->|<!-- api -->\n.*?<!-- /api -->", re.DOTALL)
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
BARS = re.compile("[█▉▊▋▌▍▎▏]+")
SHAPE = re.compile(r"\((\d+(?:, \d+)+)\)")


@dataclass(frozen=True)
class Block:
    page: str
    line: int  # of the first line of code
    language: str
    code: str
    reason: str | None  # why it is not run
    tolerance: float | None = None  # of an output block: how far numbers may differ from those printed

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def find_blocks(page: str, text: str) -> list[Block]:
    """The fenced blocks of a page, without excerpts of the source."""
    text = EXCERPT.sub(lambda match: "\n" * match[0].count("\n"), text)
    blocks, code, opened, language, reason, tolerance = [], [], 0, "", None, None
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()  # blocks in lists are indented
        if opened and stripped == "```":
            blocks.append(Block(page, opened, language, dedent("\n".join(code)), reason, tolerance))
            code, opened, reason, tolerance = [], 0, None, None
        elif opened:
            code.append(line)
        elif stripped.startswith("```"):
            opened, language = number + 1, stripped[3:].strip()
        elif marker := re.fullmatch(r"<!-- not run: (.*) -->", stripped):
            reason = marker[1]
        elif marker := OUTPUT.fullmatch(stripped):
            tolerance = int(marker[1] or 2) / 100
        elif stripped:
            reason = tolerance = None
    assert not opened, f"{page}:{opened}: the block has no end"
    return blocks


def check_block(block: Block) -> None:
    """The tag and the reason are known, and Python code that is not run at least parses."""
    assert block.language in (*RUN, *SHOWN), f"{block.place}: the block has no tag of {', '.join((*RUN, *SHOWN))}"
    assert block.reason is None or block.reason in REASONS, f"{block.place}: not run for an unknown reason"
    if block.language == "python":
        ast.parse(block.code)


# ---------------------------------------------------------------- commands


def split_commands(code: str, cwd: Path, names: tuple[str, ...] = ("vitreous", "make", "python")) -> list[list[str]]:
    """The arguments of each command, as bash passes them on: quotes, patterns, comments and continued lines.

    Bash calls functions that write their arguments down. It finds no other programs.
    """
    record = "".join(f"{name}() {{ printf '%s\\0' {name} \"$@\" >&3; printf '\\1' >&3; }}\n" for name in names)
    script = f"set -e\n{record}{code}\n"
    read, write = os.pipe()
    with os.fdopen(read, "rb") as calls:
        bash = ["/bin/bash", "--noprofile", "--norc", "-c", f"exec 3>&{write}\n{script}"]
        done = subprocess.run(
            bash, cwd=cwd, env={"PATH": "/nowhere"}, pass_fds=[write], capture_output=True, text=True, check=False
        )
        os.close(write)
        listed = calls.read().decode()
    assert done.returncode == 0, f"bash: {done.stderr.strip()}"
    return [call.split("\0")[:-1] for call in listed.split("\1")[:-1]]


@dataclass(frozen=True)
class Session:
    """How commands are run: in a folder with stand-ins, training for few steps."""

    folder: Path
    root: Path  # the repository
    stand_ins: tuple[str, ...] = ()  # results that depend on these are not those of the page
    shorten: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # flags to add to a command, by its name

    numbers: Iterator[int] = field(default_factory=count)

    def run(self, arguments: list[str]) -> command.Done:
        program, *rest = arguments
        if program == "make":  # it would run the tests, and this is one of them
            targets = re.findall(r"^([a-z][\w-]*):", (self.root / "Makefile").read_text(), re.MULTILINE)
            unknown = [name for name in rest if not name.startswith("-") and "=" not in name and name not in targets]
            return subprocess.CompletedProcess(arguments, len(unknown), "", f"no target {', '.join(unknown)}")
        if program == "python":
            return command.script(self.root / rest[0], *rest[1:], cwd=self.folder)
        short = () if "--resume" in rest else self.shorten.get(rest[0], ())
        if "--resume" in rest and "--epochs" in rest:  # a run is extended
            rest[rest.index("--epochs") + 1] = "4 steps"
        if "--budget" in rest:  # excludes --duration
            place = rest.index("--budget")
            rest, short = [*rest[:place], *rest[place + 2 :], "--budget", "1s"], short[2:]
        if rest[0] == "sweep":  # few runs, in this process
            for flag, value in (("--draws", "2"), ("--seeds", "1"), ("--jobs", "1")):
                if flag in rest:
                    rest[rest.index(flag) + 1] = value
        if short and rest[0] in ("train", "finetune") and "--out" not in rest:  # the default name changes once a second
            short = (*short, "--out", f"runs/{next(self.numbers)}")
        return command.vitreous(*rest, *short, cwd=self.folder, columns=120)

    def depends(self, arguments: list[str]) -> bool:
        """A command that reads stand-ins prints other numbers than those of the page."""
        return any(argument.split("/")[0] in self.stand_ins for argument in arguments)


def run_shell(block: Block, session: Session) -> None:
    """Run the commands of a block; each has to succeed."""
    calls = split_commands(block.code, session.folder)
    assert calls, f"{block.place}: no command"
    for arguments in calls:
        done = session.run(arguments)
        assert done.returncode == 0, f"{block.place}: {' '.join(arguments)}\n{done.stderr or done.stdout}"


def run_console(block: Block, session: Session) -> None:
    """Run each `$ command` of a block, and compare what it prints with the lines that follow."""
    parts = re.split(r"^\$ ", block.code, flags=re.MULTILINE)
    assert not parts[0].strip(), f"{block.place}: output without a command"
    assert len(parts) > 1, f"{block.place}: no command"
    for part in parts[1:]:
        typed, _, shown = part.partition("\n")
        (arguments,) = split_commands(typed, session.folder)
        done = session.run(arguments)
        refused = shown.lstrip().startswith("vitreous: ")  # an error message is shown
        assert (done.returncode != 0) == refused, f"{block.place}: {typed}\n{done.stderr or done.stdout}"
        missing = missing_lines(shown, done.stdout + done.stderr, any_numbers=session.depends(arguments))
        assert not missing, f"{block.place}: {typed}\nnot printed: {missing[0]}\nprinted:\n{done.stdout}{done.stderr}"


def missing_lines(
    shown: str, printed: str, any_numbers: bool, tolerance: float = 0.02, slack: float = 0.2
) -> list[str]:
    """The lines shown that are not printed, in this order. Numbers may differ by the tolerance, or by anything.

    `slack`: numbers that are not whole may always differ by this much.
    """
    lines = iter(printed.splitlines())
    return [
        line
        for line in shown.splitlines()
        if line.strip() not in ("", "...")
        and not any(_alike(line, other, any_numbers, tolerance, slack) for other in lines)
    ]


def _alike(shown: str, printed: str, any_numbers: bool, tolerance: float, slack: float) -> bool:
    texts, numbers = zip(*map(_parts, (shown, printed)), strict=True)
    if texts[0] != texts[1]:
        return False
    pairs = zip(*numbers, strict=True)
    return any_numbers or all(abs(a - b) <= max(tolerance * abs(b), slack * (a != int(a))) for a, b in pairs)


def _parts(line: str) -> tuple[str, list[float]]:
    line = " ".join(BARS.sub(" ", line).split())
    return NUMBER.sub("#", line), [float(number.replace(",", "")) for number in NUMBER.findall(line)]


# ---------------------------------------------------------------- Python


def run_python(block: Block, names: dict[str, Any], folder: Path) -> str:
    """Run a block in a namespace, and compare the values of expressions with the comments behind them.

    Returns what the block prints.
    """
    comments = dict(_comments(block.code))
    with chdir(folder), redirect_stdout(io.StringIO()) as printed:
        for node in ast.parse(block.code).body:
            if isinstance(node, ast.Expr):
                value = eval(compile(ast.Expression(node.value), block.place, "eval"), names)
                comment = comments.get(node.end_lineno or 0, "")
                wrong = contradiction(value, comment)
                assert not wrong, f"{block.place}: {ast.unparse(node)}  # {comment}\n{wrong}"
            else:
                exec(compile(ast.Module([node], []), block.place, "exec"), names)
    return printed.getvalue()


def check_output(block: Block, printed: str) -> None:
    """Compare an output block with what the Python block before it printed."""
    missing = missing_lines(block.code, printed, any_numbers=False, tolerance=block.tolerance or 0.02, slack=0.011)
    assert not missing, f"{block.place}: not printed: {missing[0]}\nprinted:\n{printed}"


def _comments(code: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")


def contradiction(value: Any, comment: str) -> str:
    """How a value differs from a comment that is a literal, or that has shapes in it. Empty: it does not."""
    try:
        literal = ast.literal_eval(comment)
    except (ValueError, SyntaxError):
        literal = None
    found = list(_tensors(value))
    if not any(isinstance(one, torch.Tensor) for one in found):
        return "" if literal is None or value == literal else f"it is {value!r}"
    have = {tuple(one.shape) if isinstance(one, torch.Tensor) else one for one in found}
    shapes = {tuple(map(int, shape.split(", "))) for shape in SHAPE.findall(comment)}
    return "" if shapes <= have else f"the shapes are {sorted(have)}"


def _tensors(value: Any) -> Iterator[Any]:
    """Tensors, and tuples of integers such as a grid, in nested lists and tuples."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)
        if isinstance(value, tuple) and value and all(type(one) is int for one in value):
            yield value
