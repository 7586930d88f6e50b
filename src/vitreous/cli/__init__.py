"""The command line: parse, call, print. Commands import what they need when they run, so that `--help` is fast."""

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
from vitreous.utils.console import STDOUT, OutputClosed, escaped_output, print_line, print_message, standard_streams

# Commands with the flag --json.
JSON_COMMANDS = (
    "bench",
    "calibrate",
    "compare",
    "data",
    "evaluate",
    "info",
    "models",
    "predict",
    "recipes",
    "reproduce",
    "runs",
    "sweep",
)
# Commands that write files continue when stdout is closed (`vitreous train ... | head -1`). For the first three a lost
# output is not an error.
FILE_COMMANDS = ("train", "finetune", "features")
CONTINUING_COMMANDS = (*FILE_COMMANDS, "calibrate", "compare", "evaluate", "explain", "inspect", "reproduce", "sweep")
SIGPIPE_EXIT_CODE = 141  # 128 + SIGPIPE, as a shell reports it


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `vitreous`. A mistake of the user gives a one-line message and exit code 2."""
    # Read when torch is loaded: waiting OpenMP threads sleep after a short time. If other programs use the CPU, this
    # makes the training of a small model 30 times faster; otherwise it makes no difference.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    command = arguments[0] if arguments else ""
    previous, warnings.showwarning = warnings.showwarning, _print_warning  # type: ignore[assignment]
    try:
        with standard_streams(required=command not in CONTINUING_COMMANDS):
            code = _exit_code(arguments)
            STDOUT.flush()
            if code == 0 and STDOUT.failure is not None and command not in FILE_COMMANDS:
                code = _output_lost(STDOUT.failure)
    finally:
        warnings.showwarning = previous
    if code:
        sys.exit(code)


def _exit_code(arguments: list[str]) -> int:
    """Run a command, print its error if it fails, and return its exit code."""
    file, code = _file_after_json(arguments), 0
    try:
        _run(arguments, file)
    except SystemExit as end:
        code = int(end.code or 0)
        if code == 2 and file and not os.path.lexists(file):  # tyro rejected the arguments: this may be the reason
            print_message(_json_takes_no_file(file, arguments[0]))
    except VitreousError as error:
        code = _fail(str(error), 2)
    except KeyboardInterrupt as stop:  # a stopped run says how to resume it
        code = _fail(str(stop) or "stopped", getattr(stop, "code", 130))
    except OutputClosed as closed:
        code = _output_lost(closed.__cause__)
    except Exception as error:
        reason = _resource_error(error)
        code = _print_traceback() if reason is None else _fail(reason, 1)
    return code


def _resource_error(error: Exception) -> str | None:
    """Return a message if the disk is full or memory is too small; None if the error is a bug of this program."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"the disk is full ({error})"
    amount = re.search(r"tried to allocate (\d+) bytes", str(error))  # a RuntimeError of torch
    if isinstance(error, MemoryError) or amount or "Storage size calculation overflowed" in str(error):
        requested = f": {int(amount[1]) / 2**30:,.1f} GiB were requested at once" if amount else ""
        return f"not enough memory{requested}; use a smaller image size, batch size or model"
    return None


def _run(arguments: list[str], file: str) -> None:
    import tyro

    from vitreous.cli.config_flags import FLAGS, replace_renamed_flags

    if arguments in (["--version"], ["-V"]):
        print_line(f"vitreous {__version__}")
        return
    if file.endswith(".json") or f"--json={file}" in arguments:
        raise VitreousError(_json_takes_no_file(file, arguments[0]))
    for argument in arguments:
        _refuse_url(argument)
    if arguments[:1] in (["train"], ["finetune"], ["sweep"]):
        arguments = replace_renamed_flags(arguments)
    app = tyro.extras.SubcommandApp()
    for name, command in _commands(arguments).items():
        app.command(name=name)(_defer(command))
    with escaped_output(colours="".join(arguments).isprintable()):  # tyro's messages repeat arguments
        call = app.cli(
            prog="vitreous",
            description="Train, fine-tune, evaluate, inspect and convert Vision Transformers.",
            args=arguments or ["--help"],
            config=(tyro.conf.OmitArgPrefixes,),
            registry=FLAGS,
        )
    call()


def _defer(command: Callable[..., None]) -> Callable[..., Callable[[], None]]:
    """Return a function with the same parameters that returns the call, so that parsing ends before it is made."""
    # tyro keeps some of the line breaks in the descriptions of arguments.
    command.__doc__ = re.sub(r"\n {12}", " ", command.__doc__ or "")

    @wraps(command)
    def deferred(*positional: Any, **named: Any) -> Callable[[], None]:
        return partial(command, *positional, **named)

    return deferred


def _refuse_url(argument: str) -> None:
    """Raise an error for a URL other than hf://. No command supports one, and a path would lose one of its slashes."""
    value = argument.partition("=")[2] if argument.startswith("-") else argument
    if not value.startswith("hf://"):
        hub = "weights of Hugging Face's hub are hf://owner/name"
        refuse_url(value, f"no command reads or writes there; download what you need first ({hub})")


def _commands(arguments: list[str]) -> dict[str, Callable[..., None]]:
    """Return all commands by name, in the order of `--help`."""
    from vitreous.cli.bench import bench_command
    from vitreous.cli.calibrate import calibrate_command
    from vitreous.cli.compare import compare_command
    from vitreous.cli.convert import convert_command
    from vitreous.cli.data import data_command
    from vitreous.cli.evaluate import evaluate_command
    from vitreous.cli.explain import explain_command
    from vitreous.cli.features import features_command
    from vitreous.cli.finetune import make_finetune_command
    from vitreous.cli.info import info_command
    from vitreous.cli.inspect import inspect_command
    from vitreous.cli.models import models_command
    from vitreous.cli.predict import predict_command
    from vitreous.cli.recipes import recipes_command
    from vitreous.cli.reproduce import reproduce_command
    from vitreous.cli.runs import runs_command
    from vitreous.cli.sweep import make_sweep_command
    from vitreous.cli.train import make_train_command

    return {
        "train": make_train_command(arguments if arguments[:1] == ["train"] else ()),
        "finetune": make_finetune_command(arguments if arguments[:1] == ["finetune"] else ()),
        "sweep": make_sweep_command(arguments if arguments[:1] == ["sweep"] else ()),
        "data": data_command,
        "predict": predict_command,
        "inspect": inspect_command,
        "explain": explain_command,
        "evaluate": evaluate_command,
        "calibrate": calibrate_command,
        "features": features_command,
        "compare": compare_command,
        "reproduce": reproduce_command,
        "bench": bench_command,
        "info": info_command,
        "convert": convert_command,
        "models": models_command,
        "recipes": recipes_command,
        "runs": runs_command,
    }


def _file_after_json(arguments: Sequence[str]) -> str:
    """Return the argument after --json, which takes none, or "". It may be a positional argument (an image, data)."""
    if arguments[:1] and arguments[0] in JSON_COMMANDS:
        for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
            if argument.startswith("--json="):
                return argument.removeprefix("--json=")
            if argument == "--json" and not following.startswith("-"):
                return following
    return ""


def _json_takes_no_file(file: str, command: str) -> str:
    folder = " or --out DIR" if command in ("compare", "evaluate") else ""
    return f"--json takes no file: it prints JSON to stdout. Use `--json > {file}`{folder}"


def _print_warning(message: Warning | str, category: type[Warning], *_: Any) -> None:
    """Print warnings of vitreous as messages, and ignore those of libraries, which are for developers."""
    if issubclass(category, VitreousWarning):
        print_message(message, "warning: ")


def _fail(message: str, code: int) -> int:
    print_message(message)
    return code


def _output_lost(failure: BaseException | None) -> int:
    """Return the exit code of a command whose output could not be written; print a message unless a pipe was closed."""
    if isinstance(failure, BrokenPipeError):  # `vitreous models | head`
        return SIGPIPE_EXIT_CODE
    return _fail(f"stdout cannot be written ({getattr(failure, 'strerror', None) or failure})", 1)


def _print_traceback() -> int:
    """Print the traceback of a bug, escaped like all output."""
    print_message(f"internal error, please report it\n{traceback.format_exc().rstrip()}")
    return 1
