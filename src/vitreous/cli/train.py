"""`vitreous train`: train a model on images."""

import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from vitreous.cli.options import Switch
from vitreous.errors import VitreousError
from vitreous.training.config import TrainConfig
from vitreous.training.config_file import ConfigFile, config_toml, read_config_file
from vitreous.training.recipes import RECIPES, recipe
from vitreous.utils.console import STDOUT, print_line
from vitreous.utils.system_calls import STOP_SIGNALS

Data = Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="DATA", help_behavior_hint="")]
RecipeName = Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="")]
RunToResume = Annotated[str | None, tyro.conf.arg(metavar="RUN", help_behavior_hint="")]
ConfigPath = Annotated[str | None, tyro.conf.arg(name="config", metavar="FILE", help_behavior_hint="")]
Config = Annotated[TrainConfig, tyro.conf.arg(name="")]
DATA_HELP = (
    "A folder or .zip (class/*.jpg, or train|val|test/class/*.jpg), a manifest of paths and labels (.csv, .tsv,"
    " .jsonl), arrays of images and labels (.npz), tar shards, Parquet files, a Hugging Face data set (hf://owner/name),"
    " or the name of a data set: digits, mnist, fashion-mnist, cifar10, cifar100."
)
OVERWRITE_HELP = (
    "Replace the run in --out, if it exists. The earlier run is kept as OUT.replaced until the new run is complete."
)
CONFIG_HELP = (
    "Start from the settings of this TOML file, which may also name the data and a recipe. Flags override the file, and"
    " the file overrides the recipe."
)
PRINT_CONFIG_HELP = (
    "Print all settings as a config file, with the reason for each that was chosen from the data, and do not train:"
    " `vitreous train DATA --print-config > run.toml`."
)


def make_train_command(arguments: Sequence[str]) -> Callable[..., None]:
    """Return the command. The defaults of its flags are those of the recipe, or of the run that is resumed."""
    base = base_settings(arguments, lambda name: TrainConfig() if name is None else recipe(name))

    def train(
        data: Data = None,
        /,
        *,
        recipe: RecipeName = None,
        config_file: ConfigPath = None,
        print_config: Switch = False,
        resume: RunToResume = None,
        overwrite: Switch = False,
        config: Config = base.config,
    ) -> None:
        request = RunRequest("train", data or base.data, config, recipe, config_file, print_config, resume, overwrite)
        start_or_resume(request)

    train.__doc__ = f"""Train a model on images.

    Settings that are not given are chosen from the data and printed. Stop the run at any time with Ctrl-C; `--resume`
    continues it exactly where it stopped.

    Args:
        data: {DATA_HELP}
        recipe: Start from the settings of a recipe: {", ".join(RECIPES)}; of your own: file.py:function.
        config_file: {CONFIG_HELP}
        print_config: {PRINT_CONFIG_HELP}
        resume: Continue the run in this directory. A longer --epochs extends it, also if it has finished.
        overwrite: {OVERWRITE_HELP}
    """
    return train


@dataclass(frozen=True)
class BaseSettings:
    """What the flags change: the settings of the recipe, the config file or the run to resume."""

    config: TrainConfig
    file: ConfigFile | None = None

    @property
    def data(self) -> str | None:
        return None if self.file is None else self.file.data


def base_settings(
    arguments: Sequence[str], by_recipe: Callable[[str | None], TrainConfig], searches: bool = False
) -> BaseSettings:
    """Return the settings that the flags change. `searches`: the config file may have tables of `vitreous sweep`."""
    if (run := _value_of("--resume", arguments)) is not None:
        from vitreous.training.run_directory import RunDirectory

        return BaseSettings(RunDirectory.open(run).config())
    recipe, path = _value_of("--recipe", arguments), _value_of("--config", arguments)
    if path is None:
        return BaseSettings(by_recipe(recipe))
    if sum(argument.partition("=")[0] == "--config" for argument in arguments) > 1:
        raise VitreousError("--config is given twice: a run has one config file")
    file = read_config_file(path, searches)
    return BaseSettings(by_recipe(recipe or file.recipe).with_(**file.fields), file)


def _value_of(flag: str, arguments: Sequence[str]) -> str | None:
    for number, argument in enumerate(arguments):
        if argument == flag:
            return arguments[number + 1] if number + 1 < len(arguments) else None
        if argument.startswith(f"{flag}="):
            return argument.split("=", 1)[1]
    return None


@dataclass(frozen=True)
class RunRequest:
    """The arguments of `vitreous train` and `vitreous finetune`."""

    command: str
    data: str | None
    config: TrainConfig
    recipe: str | None = None
    config_file: str | None = None
    print_config: bool = False
    resume: str | None = None
    overwrite: bool = False

    def check(self) -> None:
        """Raise an error for arguments that exclude each other, or that are missing."""
        if self.resume is not None:
            excluded = {
                "--recipe": (self.recipe is not None, "a resumed run keeps its settings"),
                "--config": (self.config_file is not None, "a resumed run keeps its settings"),
                "--print-config": (self.print_config, "config.json in the run directory has the settings of a run"),
                "--overwrite": (self.overwrite, "a resumed run is not replaced"),
            }
            for flag, (given, why) in excluded.items():
                if given:
                    raise VitreousError(f"{flag} and --resume exclude each other: {why}")
            return
        if self.data is None and not self.print_config:
            raise VitreousError(
                f"DATA is missing: a folder of images, a file, or a name (vitreous {self.command} --help)"
            )
        if self.command == "finetune" and self.config.architecture.start is None:
            names = "a checkpoint, a run directory, vitreous-mini, a name such as deit-tiny, or hf://owner/name"
            raise VitreousError(f"--from is missing: {names}")


def start_or_resume(request: RunRequest) -> None:
    """Start a run, resume one, or print its settings. SIGTERM and SIGHUP stop it as Ctrl-C does."""
    # Ctrl-C raises KeyboardInterrupt; `nohup` ignores SIGHUP.
    numbers = [number for number in STOP_SIGNALS if number != signal.SIGINT]
    handled = [number for number in numbers if number == signal.SIGTERM or signal.getsignal(number) != signal.SIG_IGN]
    # These apply before and after the training loop, which installs its own handlers.
    previous = {number: signal.signal(number, _stop) for number in handled}
    try:
        _start_or_resume(request)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _start_or_resume(request: RunRequest) -> None:
    from vitreous.training import train as training

    config = TrainConfig.from_flat(request.config.flat())  # checks the values and normalises durations
    request.check()
    if request.resume is not None:
        training.resume(request.resume, config, data=request.data)
    elif request.print_config:
        print_config(request.data, config)
    else:
        training.train(request.data, config, overwrite=request.overwrite)


def print_config(data: str | None, config: TrainConfig) -> None:
    """Print a config file on stdout. Without data it has no settings that are chosen from them."""
    STDOUT.required = True  # this command has no other purpose
    ascii_only = STDOUT.encoding.replace("-", "").casefold() != "utf8"
    if data is None:
        text = config_toml(config, ascii_only=ascii_only)
    else:
        from vitreous.training.choose_config import choose_config

        text = choose_config(data, config).to_toml(ascii_only)
    print_line(text.removesuffix("\n"))


def _stop(number: int, frame: object) -> None:
    from vitreous.training.signals import Stopped

    raise Stopped("stopped", number)
