"""Run commands and scripts in this process: a new process would mostly import torch."""

import io
import os
import runpy
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

from vitreous import VitreousWarning
from vitreous.cli import main

Done = subprocess.CompletedProcess[str]


def vitreous(*arguments: object, cwd: Path | None = None, columns: int = 200, encoding: str = "utf-8") -> Done:
    """Return output and exit code of `python -m vitreous ARGUMENTS`. A traceback fails the test."""
    typed = [str(argument) for argument in arguments]
    with patch.dict(os.environ, COLUMNS=str(columns)):
        # Runs record how they were started.
        result = _carry_out(lambda: main(typed), ["vitreous/__main__.py", *typed], cwd, encoding)
    assert "Traceback" not in result.stderr, result.stderr
    return result


def script(path: Path, *arguments: object, cwd: Path | None = None) -> Done:
    """Return output and exit code of `python PATH ARGUMENTS`. Exceptions fail the test."""
    typed = [str(path), *map(str, arguments)]
    with patch.object(sys, "path", [str(path.parent), *sys.path]):
        return _carry_out(lambda: runpy.run_path(str(path), run_name="__main__"), typed, cwd)


def _carry_out(call: Callable[[], object], argv: list[str], cwd: Path | None, encoding: str = "utf-8") -> Done:
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True) for _ in range(2))
    code = 0
    with (
        chdir(cwd or Path()),
        patch.object(sys, "argv", argv),
        warnings.catch_warnings(),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        warnings.simplefilter("default", VitreousWarning)  # printed, although the other tests treat warnings as errors
        warnings.showwarning = lambda message, *_: print(message, file=err)
        try:
            call()
        except SystemExit as end:
            if isinstance(end.code, str):  # Python prints it and exits with 1
                print(end.code, file=err)
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    printed, complained = (stream.buffer.getvalue().decode(encoding) for stream in (out, err))  # type: ignore[attr-defined]
    return subprocess.CompletedProcess(argv, code, printed, complained)
