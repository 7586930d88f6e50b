"""`vitreous train`: from images to a model."""

from collections.abc import Callable, Sequence
from typing import Annotated

import tyro

from vitreous.training.config import TrainConfig
from vitreous.training.recipes import RECIPES, recipe


def train_command(arguments: Sequence[str]) -> Callable[..., None]:
    """The command. What its flags default to depends on the recipe, or on the run that is resumed."""
    resumed = _value_of("--resume", arguments)
    named = _value_of("--recipe", arguments)

    def train(
        data: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="DATA", help_behavior_hint="")] = None,
        /,
        *,
        recipe: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None,
        resume: Annotated[str | None, tyro.conf.arg(metavar="RUN")] = None,
        config: Annotated[TrainConfig, tyro.conf.arg(name="")] = _default(named, resumed),  # noqa: B008
    ) -> None:
        from vitreous.errors import VitreousError
        from vitreous.training import train as training

        if resume is not None:
            if recipe is not None:
                raise VitreousError("--recipe and --resume: a run that goes on has its config already")
            training.resume(resume, config, data=data)
            return
        if data is None:
            raise VitreousError("DATA is missing: a folder of images, a file, or a name (vitreous train --help)")
        training.train(data, config)

    train.__doc__ = f"""Train a model on images.

    What is not given is chosen by the data, and told. Stop at any time with Ctrl-C; `--resume` goes on exactly there.

    Args:
        data: a folder (class/*.jpg, or train|val|test/class/*.jpg), a manifest (.csv, .tsv, .jsonl) of paths and
            labels, an .npz of images and labels, tar shards, Parquet, a Hugging Face data set, or a name: digits,
            fashion-mnist, cifar10, cifar100.
        recipe: begin with a recipe's settings: {", ".join(RECIPES)}.
        resume: go on with the run in this directory.
    """
    return train


def _value_of(flag: str, arguments: Sequence[str]) -> str | None:
    for number, argument in enumerate(arguments):
        if argument == flag:
            return arguments[number + 1] if number + 1 < len(arguments) else None
        if argument.startswith(f"{flag}="):
            return argument.split("=", 1)[1]
    return None


def _default(named: str | None, resumed: str | None) -> TrainConfig:
    if resumed is not None:
        from vitreous.training.folder import RunFolder

        return TrainConfig.from_flat(RunFolder.opened(resumed).description()["config"])
    return TrainConfig() if named is None else recipe(named)
