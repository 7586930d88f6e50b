"""The command line: parse, call, print. Commands import what they need when they run, so that `--help` is instant."""

import errno
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from vitreous import __version__
from vitreous.errors import VitreousError, VitreousWarning


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `vitreous`. A user's mistake is one sentence and exit code 2."""
    # Read when torch is loaded. Threads that wait for each other soon give up their core: where another program wants
    # it too, training of a small model is 30 times faster for it, and no slower where it is alone.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    import tyro

    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if arguments in (["--version"], ["-V"]):
        print(f"vitreous {__version__}")
        return
    warnings.showwarning = _show  # type: ignore[assignment]
    try:
        app = tyro.extras.SubcommandApp()
        for command in _commands(arguments):
            app.command(command)
        app.cli(
            prog="vitreous",
            description="Vision Transformers you can see through.",
            args=arguments or ["--help"],
            config=(tyro.conf.OmitArgPrefixes,),
        )
        sys.stdout.flush()
    except VitreousError as error:
        sys.exit(_fail(str(error), 2))
    except KeyboardInterrupt as stop:  # a run that was stopped says how to go on
        sys.exit(_fail(str(stop) or "stopped", getattr(stop, "code", 130)))
    except BrokenPipeError:  # `vitreous models | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        sys.exit(_fail(f"what was to be written does not fit ({error.strerror})", 1))


def _commands(arguments: list[str]) -> tuple[Callable[..., None], ...]:
    """In the order of `--help`."""
    from vitreous.cli.bench import bench
    from vitreous.cli.compare import compare
    from vitreous.cli.convert import convert
    from vitreous.cli.data import data
    from vitreous.cli.evaluate import evaluate
    from vitreous.cli.features import features
    from vitreous.cli.finetune import finetune_command
    from vitreous.cli.info import info
    from vitreous.cli.inspect import inspect
    from vitreous.cli.models import models
    from vitreous.cli.predict import predict
    from vitreous.cli.recipes import recipes
    from vitreous.cli.train import train_command

    return (
        train_command(arguments if arguments[:1] == ["train"] else ()),
        finetune_command(arguments if arguments[:1] == ["finetune"] else ()),
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


def _show(message: Warning | str, category: type[Warning], *_: Any) -> None:
    """Our own warnings are for the user; a library's are for its developers."""
    if issubclass(category, VitreousWarning):
        print(f"vitreous: warning: {message}", file=sys.stderr)


def _fail(message: str, code: int) -> int:
    print(f"vitreous: {message}", file=sys.stderr)
    return code
