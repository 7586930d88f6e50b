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
    """Fine-tune pre-trained weights on images, with a new head and one of the fine-tuning recipes.

    - `data`: as in `vitreous.train`
    - `start`: a checkpoint, a run directory, vitreous-mini, a name of `vitreous models --weights`, or hf://owner/name
    - `recipe`: fast, paper (the protocol of the ViT paper), linear (only the head), lora (low-rank adapters), or an
      import path as in `vitreous.recipe`. Default: fast
    - `config`: the path of a config file, which may also give data, start and recipe; its settings override the recipe
    - `quiet`, `overwrite`: as in `vitreous.train`
    - `fields`: fields of `vitreous.TrainConfig`, which override both

    Returns an `Outcome`. Errors are those of `vitreous.train`.

    >>> outcome = vitreous.finetune(
    ...     "digits", "vitreous-mini", "linear", image_size=16, duration="5 steps", out="run", quiet=True
    ... )
    >>> model = vitreous.load("run")
    >>> model.config.width, model.labels[:3]
    (192, ('0', '1', '2'))
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
