"""`vitreous train`: from images to a model."""

import ast
import signal
from collections.abc import Callable, Sequence
from dataclasses import Field, field, fields, make_dataclass
from inspect import getsource
from itertools import pairwise
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import tyro

from vitreous.cli.parts import Overwrite
from vitreous.training.config import TrainConfig
from vitreous.training.recipes import RECIPES, recipe
from vitreous.utils.console import printable

Data = Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="DATA", help_behavior_hint="")]
Recipe = Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="")]
Resumed = Annotated[str | None, tyro.conf.arg(metavar="RUN", help_behavior_hint="")]
DATA = (
    "a folder (class/*.jpg, or train|val|test/class/*.jpg), a manifest (.csv, .tsv, .jsonl) of paths and labels, an"
    " .npz of images and labels, tar shards, Parquet, a Hugging Face data set, or a name: digits, fashion-mnist,"
    " cifar10, cifar100."
)
# What the data decides if it is not given. Other fields that are None keep a default that their help names.
CHOSEN = (
    *("model", "image_size", "patch_size", "width", "depth", "heads", "mlp_dim", "pool", "dropout", "stochastic_depth"),
    *("crop", "aspect", "shift", "flip", "randaugment", "magnitude", "three_augment", "jitter", "erase", "mixup"),
    *("cutmix", "loss", "label_smoothing", "best_by", "optimiser", "lr", "weight_decay", "ema", "duration", "warmup"),
    *("schedule", "batch_size", "dev_fraction"),
)
# Other names: what a number alone means, and what nobody can mistake where a size is asked for.
ALIASES = {"duration": ["--epochs"], "image_size": ["--size"]}


def train_command(arguments: Sequence[str]) -> Callable[..., None]:
    """The command. What its flags default to depends on the recipe, or on the run that is resumed."""
    kind: Any = flags(default(arguments, lambda name: TrainConfig() if name is None else recipe(name)))

    def train(
        data: Data = None,
        /,
        *,
        recipe: Recipe = None,
        resume: Resumed = None,
        overwrite: Overwrite = False,
        config: Annotated[kind, tyro.conf.arg(name="")] = kind(),  # noqa: B008 (it is frozen)
    ) -> None:
        carry_out("train", data, recipe, resume, config, overwrite)

    train.__doc__ = f"""Train a model on images.

    Settings that are not given are chosen by the data and printed. Stop at any time with Ctrl-C; `--resume` continues
    the run exactly where it stopped.

    Args:
        data: {DATA}
        recipe: start from the settings of a recipe: {", ".join(RECIPES)}.
        resume: continue the run in this directory.
        overwrite: --out may be that of an earlier run, which is kept as OUT.replaced until the new one is complete.
    """
    return train


def flags(config: TrainConfig) -> Any:
    """A dataclass of all fields as flags, which default to those of a config."""
    groups = {group.name: _flags(getattr(config, group.name)) for group in fields(config)}
    parts = [(name, type(group), field(default=group)) for name, group in groups.items()]
    return make_dataclass("Config", parts, frozen=True)


def carry_out(
    command: str, data: str | None, recipe: str | None, resume: str | None, config: Any, overwrite: bool
) -> None:
    """Begin a run with what the flags say, or go on with one."""
    ending = [signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup asks for it
        ending.append(signal.SIGHUP)
    # For before and after the loop, which has handlers of its own.
    before = {number: signal.signal(number, _end) for number in ending}
    try:
        _carry_out(command, data, recipe, resume, config, overwrite)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _carry_out(
    command: str, data: str | None, recipe: str | None, resume: str | None, config: Any, overwrite: bool
) -> None:
    from vitreous.errors import VitreousError
    from vitreous.training import train as training

    values = {name: value for group in vars(config).values() for name, value in vars(group).items()}
    settled = TrainConfig.from_flat(values)
    if resume is not None:
        if recipe is not None:
            raise VitreousError("--recipe and --resume: a run that goes on has its config already")
        if overwrite:
            raise VitreousError("--overwrite and --resume: a run that goes on is not replaced")
        training.resume(resume, settled, data=data)
        return
    if data is None:
        raise VitreousError(f"DATA is missing: a folder of images, a file, or a name (vitreous {command} --help)")
    if command == "finetune" and settled.architecture.start is None:
        raise VitreousError("--from is missing: a checkpoint, a run directory, vitreous-mini or hf://owner/name")
    training.train(data, settled, overwrite=overwrite)


def _end(number: int, frame: object) -> None:
    from vitreous.training.signals import Stopped

    raise Stopped("stopped", number)


def _flags(group: Any) -> Any:
    """The same fields with what a flag needs beside its type: a short word for its value, and its description."""
    kind, hints, texts = type(group), get_type_hints(type(group)), _texts(type(group))
    annotated = []
    for one in fields(group):
        value = getattr(group, one.name)
        argument = tyro.conf.arg(
            name="from" if one.name == "start" else None,  # which no field of Python's can be called
            metavar=_word(hints[one.name]),
            help=texts[one.name],
            help_behavior_hint=_hint(one, value),
            aliases=ALIASES.get(one.name),
        )
        annotated.append((one.name, Annotated[hints[one.name], argument], field(default=value)))
    made = make_dataclass(kind.__name__, annotated, frozen=True)
    made.__doc__ = " ".join((kind.__doc__ or "").split())
    return made()


def _texts(kind: type) -> dict[str, str]:
    """What stands below each field."""
    body = next(node for node in ast.parse(getsource(kind)).body if isinstance(node, ast.ClassDef)).body
    found = {}
    for above, below in pairwise(body):
        if isinstance(above, ast.AnnAssign) and isinstance(above.target, ast.Name) and isinstance(below, ast.Expr):
            found[above.target.id] = " ".join(ast.literal_eval(below.value).split())
    return found


def _word(hint: Any) -> str | None:
    if hint is bool:
        return None  # a flag without a value
    kinds = [kind for kind in (get_args(hint) or (hint,)) if kind is not type(None)]
    if get_origin(hint) is Literal or get_origin(kinds[0]) is Literal:
        return "|".join(get_args(hint if get_origin(hint) is Literal else kinds[0]))
    if get_origin(hint) is tuple:
        return "X X" if kinds[0] is float else "TEXT ..."
    if len(kinds) == 1 and get_origin(kinds[0]) is tuple:
        return "X ..."
    words = {int: "N", float: "X", str: "TEXT", bool: "True|False"}
    return words[kinds[0]] if len(kinds) == 1 else "N [N]"


def _hint(one: Field[Any], value: Any) -> str:
    if value is None:
        return "(chosen by the data)" if one.name in CHOSEN else ""
    shown = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return f"(default: {printable(shown)})" if value != () else ""


def _value_of(flag: str, arguments: Sequence[str]) -> str | None:
    for number, argument in enumerate(arguments):
        if argument == flag:
            return arguments[number + 1] if number + 1 < len(arguments) else None
        if argument.startswith(f"{flag}="):
            return argument.split("=", 1)[1]
    return None


def default(arguments: Sequence[str], named: Callable[[str | None], TrainConfig]) -> TrainConfig:
    """The config that flags change: that of a run which is resumed, or of a recipe."""
    if (resumed := _value_of("--resume", arguments)) is not None:
        from vitreous.training.run_directory import RunFolder

        return TrainConfig.from_flat(RunFolder.opened(resumed).description()["config"])
    return named(_value_of("--recipe", arguments))
