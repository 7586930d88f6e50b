"""`vitreous train`: train a model on images."""

import signal
from collections.abc import Callable, Sequence
from typing import Annotated

import tyro

from vitreous.cli.options import Switch
from vitreous.training.config import TrainConfig
from vitreous.training.recipes import RECIPES, recipe
from vitreous.utils.system_calls import STOP_SIGNALS

Data = Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="DATA", help_behavior_hint="")]
RecipeName = Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="")]
RunToResume = Annotated[str | None, tyro.conf.arg(metavar="RUN", help_behavior_hint="")]
Config = Annotated[TrainConfig, tyro.conf.arg(name="")]
DATA_HELP = (
    "A folder or .zip (class/*.jpg, or train|val|test/class/*.jpg), a manifest of paths and labels (.csv, .tsv,"
    " .jsonl), arrays of images and labels (.npz), tar shards, Parquet files, a Hugging Face data set (hf://owner/name),"
    " or the name of a data set: digits, mnist, fashion-mnist, cifar10, cifar100."
)
OVERWRITE_HELP = (
    "Replace the run in --out, if it exists. The earlier run is kept as OUT.replaced until the new run is complete."
)


def make_train_command(arguments: Sequence[str]) -> Callable[..., None]:
    """Return the command. The defaults of its flags are those of the recipe, or of the run that is resumed."""
    default = base_config(arguments, lambda name: TrainConfig() if name is None else recipe(name))

    def train(
        data: Data = None,
        /,
        *,
        recipe: RecipeName = None,
        resume: RunToResume = None,
        overwrite: Switch = False,
        config: Config = default,
    ) -> None:
        start_or_resume("train", data, recipe, resume, config, overwrite)

    train.__doc__ = f"""Train a model on images.

    Settings that are not given are chosen from the data and printed. Stop the run at any time with Ctrl-C; `--resume`
    continues it exactly where it stopped.

    Args:
        data: {DATA_HELP}
        recipe: Start from the settings of a recipe: {", ".join(RECIPES)}; of your own: file.py:function.
        resume: Continue the run in this directory. A longer --epochs extends it, also if it has finished.
        overwrite: {OVERWRITE_HELP}
    """
    return train


def base_config(arguments: Sequence[str], by_recipe: Callable[[str | None], TrainConfig]) -> TrainConfig:
    """Return the config that the flags change: that of the run to resume, or that of the recipe."""
    if (run := _value_of("--resume", arguments)) is not None:
        from vitreous.training.run_directory import RunDirectory

        return RunDirectory.open(run).config()
    return by_recipe(_value_of("--recipe", arguments))


def _value_of(flag: str, arguments: Sequence[str]) -> str | None:
    for number, argument in enumerate(arguments):
        if argument == flag:
            return arguments[number + 1] if number + 1 < len(arguments) else None
        if argument.startswith(f"{flag}="):
            return argument.split("=", 1)[1]
    return None


def start_or_resume(
    command: str, data: str | None, recipe: str | None, resume: str | None, config: TrainConfig, overwrite: bool
) -> None:
    """Start a run with this config, or resume one. SIGTERM and SIGHUP stop it as Ctrl-C does."""
    # Ctrl-C raises KeyboardInterrupt; `nohup` ignores SIGHUP.
    numbers = [number for number in STOP_SIGNALS if number != signal.SIGINT]
    handled = [number for number in numbers if number == signal.SIGTERM or signal.getsignal(number) != signal.SIG_IGN]
    # These apply before and after the training loop, which installs its own handlers.
    previous = {number: signal.signal(number, _stop) for number in handled}
    try:
        _start_or_resume(command, data, recipe, resume, config, overwrite)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _start_or_resume(
    command: str, data: str | None, recipe: str | None, resume: str | None, config: TrainConfig, overwrite: bool
) -> None:
    from vitreous.errors import VitreousError
    from vitreous.training import train as training

    config = TrainConfig.from_flat(config.flat())  # checks the values and normalises durations
    if resume is not None:
        if recipe is not None:
            raise VitreousError("--recipe and --resume exclude each other: a resumed run keeps its settings")
        if overwrite:
            raise VitreousError("--overwrite and --resume exclude each other: a resumed run is not replaced")
        training.resume(resume, config, data=data)
        return
    if data is None:
        raise VitreousError(f"DATA is missing: a folder of images, a file, or a name (vitreous {command} --help)")
    if command == "finetune" and config.architecture.start is None:
        names = "a checkpoint, a run directory, vitreous-mini, a name such as deit-tiny, or hf://owner/name"
        raise VitreousError(f"--from is missing: {names}")
    training.train(data, config, overwrite=overwrite)


def _stop(number: int, frame: object) -> None:
    from vitreous.training.signals import Stopped

    raise Stopped("stopped", number)
