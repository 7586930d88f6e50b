"""The command line: parse, call, print. Commands import what they need when they run, so that `--help` is instant."""

import errno
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

from vitreous import __version__
from vitreous.errors import VitreousError, VitreousWarning, refuse_url
from vitreous.utils.console import STDOUT, OutputClosed, complain, escaped_output, say, standard_streams

JSON = ("bench", "compare", "data", "evaluate", "info", "predict", "recipes")  # commands with the flag --json
# Commands that leave files behind. They go on when stdout is closed (`vitreous train ... | head -1`), and for the first
# three the files are all that counts.
FILES = ("train", "finetune", "features")
CONTINUING = (*FILES, "compare", "evaluate", "inspect")
PIPE = 141  # 128 + SIGPIPE: what a shell reports of a program whose output nobody reads any more


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `vitreous`. A user's mistake is one sentence and exit code 2."""
    # Read when torch is loaded. Threads that wait for each other soon give up their core: where another program wants
    # it too, training of a small model is 30 times faster for it, and no slower where it is alone.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    command = arguments[0] if arguments else ""
    shown_before, warnings.showwarning = warnings.showwarning, _show  # type: ignore[assignment]
    try:
        with standard_streams(required=command not in CONTINUING):
            code = _carry_out(arguments)
            STDOUT.flush()
            if code == 0 and STDOUT.failure is not None and command not in FILES:
                code = _lost(STDOUT.failure)
    finally:
        warnings.showwarning = shown_before
    if code:
        sys.exit(code)


def _carry_out(arguments: list[str]) -> int:
    """The exit code of a command."""
    file, code = _file_of_json(arguments), 0
    try:
        _run(arguments, file)
    except SystemExit as end:
        code = int(end.code or 0)
        if code == 2 and file and not os.path.lexists(file):  # the flags are not understood: this may be why
            complain(_no_file(file, arguments[0]))
    except VitreousError as error:
        code = _fail(str(error), 2)
    except KeyboardInterrupt as stop:  # a run that was stopped says how to go on
        code = _fail(str(stop) or "stopped", getattr(stop, "code", 130))
    except OutputClosed as closed:
        code = _lost(closed.__cause__)
    except Exception as error:
        explained = _explained(error)
        code = _broken() if explained is None else _fail(explained, 1)
    return code


def _explained(error: Exception) -> str | None:
    """A sentence for what the machine has too little of; None for a mistake in this program."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"what was to be written does not fit ({error})"
    amount = re.search(r"tried to allocate (\d+) bytes", str(error))  # torch says so in a RuntimeError
    if isinstance(error, MemoryError) or amount or "Storage size calculation overflowed" in str(error):
        wanted = f", which wanted {int(amount[1]) / 2**30:,.1f} GiB at once" if amount else ""
        return f"there is not enough memory for this{wanted}: take a smaller size, batch or model"
    return None


def _run(arguments: list[str], file: str) -> None:
    import tyro

    from vitreous.cli.config_flags import FLAGS, replace_renamed_flags

    if arguments in (["--version"], ["-V"]):
        say(f"vitreous {__version__}")
        return
    if file.endswith(".json") or f"--json={file}" in arguments:
        raise VitreousError(_no_file(file, arguments[0]))
    for argument in arguments:
        _refuse_url(argument)
    if arguments[:1] in (["train"], ["finetune"]):
        arguments = replace_renamed_flags(arguments)
    app = tyro.extras.SubcommandApp()
    for command in _commands(arguments):
        app.command(_later(command))
    with escaped_output(colours="".join(arguments).isprintable()):  # tyro's messages repeat arguments
        call = app.cli(
            prog="vitreous",
            description="Vision Transformers you can see through.",
            args=arguments or ["--help"],
            config=(tyro.conf.OmitArgPrefixes,),
            registry=FLAGS,
        )
    call()


def _later(command: Callable[..., None]) -> Callable[..., Callable[[], None]]:
    """A command that tyro can parse arguments for before it is called."""

    @wraps(command)
    def parsed(*positional: Any, **named: Any) -> Callable[[], None]:
        return partial(command, *positional, **named)

    return parsed


def _refuse_url(argument: str) -> None:
    """No command reads or writes at a URL other than hf://, and as a path it would lose a slash."""
    value = argument.partition("=")[2] if argument.startswith("-") else argument
    if not value.startswith("hf://"):
        hub = "weights of Hugging Face's hub are hf://owner/name"
        refuse_url(value, f"no command reads or writes there; download what you need first ({hub})")


def _commands(arguments: list[str]) -> tuple[Callable[..., None], ...]:
    """In the order of `--help`."""
    from vitreous.cli.bench import bench
    from vitreous.cli.compare import compare
    from vitreous.cli.convert import convert
    from vitreous.cli.data import data
    from vitreous.cli.evaluate import evaluate
    from vitreous.cli.features import features
    from vitreous.cli.finetune import make_finetune_command
    from vitreous.cli.info import info
    from vitreous.cli.inspect import inspect
    from vitreous.cli.models import models
    from vitreous.cli.predict import predict
    from vitreous.cli.recipes import recipes
    from vitreous.cli.train import make_train_command

    return (
        make_train_command(arguments if arguments[:1] == ["train"] else ()),
        make_finetune_command(arguments if arguments[:1] == ["finetune"] else ()),
        data,
        predict,
        inspect,
        evaluate,
        features,
        compare,
        bench,
        info,
        convert,
        models,
        recipes,
    )


def _file_of_json(arguments: Sequence[str]) -> str:
    """What stands behind --json, where nothing belongs to it; it may be meant as something else (an image, data)."""
    if arguments[:1] and arguments[0] in JSON:
        for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
            if argument.startswith("--json="):
                return argument.removeprefix("--json=")
            if argument == "--json" and not following.startswith("-"):
                return following
    return ""


def _no_file(file: str, command: str) -> str:
    folder = ", or use --out DIR" if command in ("compare", "evaluate") else ""
    return f"--json takes no file, it prints JSON to stdout: write `--json > {file}`{folder}"


def _show(message: Warning | str, category: type[Warning], *_: Any) -> None:
    """Our own warnings are for the user; a library's are for its developers."""
    if issubclass(category, VitreousWarning):
        complain(message, "warning: ")


def _fail(message: str, code: int) -> int:
    complain(message)
    return code


def _lost(failure: BaseException | None) -> int:
    """stdout cannot be written to."""
    if isinstance(failure, BrokenPipeError):  # `vitreous models | head`
        return PIPE
    return _fail(f"stdout cannot be written ({getattr(failure, 'strerror', None) or failure})", 1)


def _broken() -> int:
    """A mistake in this program: its traceback, escaped like everything else."""
    complain(f"a mistake in this program, please report it\n{traceback.format_exc().rstrip()}")
    return 1
