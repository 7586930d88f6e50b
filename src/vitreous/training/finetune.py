"""`vitreous.finetune`: train from pretrained weights, with one of the fine-tuning recipes."""

import os
from typing import Any

from vitreous.errors import VitreousError
from vitreous.training.config_file import read_config_file
from vitreous.training.outcome import Outcome
from vitreous.training.recipes import finetuning_recipe
from vitreous.training.train import train


def finetune(
    data: str | os.PathLike[str] | None = None,
    start: str | os.PathLike[str] | None = None,
    recipe: str | None = None,
    *,
    config: str | os.PathLike[str] | None = None,
    quiet: bool = False,
    overwrite: bool = False,
    **fields: Any,
) -> Outcome:
    """Fine-tune pre-trained weights on images: `finetune("photos", "vitreous-mini", "lora", image_size=224)`.

    `start`: a checkpoint, a run directory, vitreous-mini, a name of `vitreous models --weights`, or hf://owner/name.
    `recipe`: paper, fast (the default), linear or lora. `config`: the path of a config file, whose settings override
    the recipe; it may also give data, start and recipe.
    `fields`, those of TrainConfig, override both. `quiet` and `overwrite` are as in `train`.
    """
    file = None if config is None else read_config_file(config)
    settings = finetuning_recipe(recipe or (file and file.recipe) or "fast")
    if file is not None:
        data, settings = file.data if data is None else data, settings.with_(**file.fields)
    if start is not None:
        settings = settings.with_(start=start)
    if settings.architecture.start is None:
        raise VitreousError("start is missing: give a checkpoint, a run directory, or a name such as vitreous-mini")
    return train(data, settings, quiet=quiet, overwrite=overwrite, **fields)
