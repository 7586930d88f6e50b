"""`vitreous.finetune`: train from pretrained weights, with one of the fine-tuning recipes."""

import os
from typing import Any

from vitreous.training.outcome import Outcome
from vitreous.training.recipes import finetuning_recipe
from vitreous.training.train import train


def finetune(
    data: str | os.PathLike[str],
    start: str | os.PathLike[str],
    recipe: str = "fast",
    *,
    quiet: bool = False,
    overwrite: bool = False,
    **fields: Any,
) -> Outcome:
    """Fine-tune pre-trained weights on images, with a new head and one of the fine-tuning recipes.

    - `data`: as in `vitreous.train`
    - `start`: a checkpoint, a run directory, vitreous-mini, a name of `vitreous models --weights`, or hf://owner/name
    - `recipe`: fast, paper (the protocol of the ViT paper), linear (only the head), lora (low-rank adapters), or an
      import path as in `vitreous.recipe`
    - `quiet`, `overwrite`: as in `vitreous.train`
    - `fields`: fields of `vitreous.TrainConfig`, which override the recipe

    Returns an `Outcome`. Errors are those of `vitreous.train`.

    >>> outcome = vitreous.finetune(
    ...     "digits", "vitreous-mini", "linear", image_size=16, duration="5 steps", out="run", quiet=True
    ... )
    >>> model = vitreous.load("run")
    >>> model.config.width, model.labels[:3]
    (192, ('0', '1', '2'))
    """
    return train(data, finetuning_recipe(recipe), quiet=quiet, overwrite=overwrite, start=start, **fields)
