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
    """Fine-tune pre-trained weights on images: `finetune("photos", "vitreous-mini", "lora", image_size=224)`.

    `start`: a checkpoint, a run directory, vitreous-mini, a name of `vitreous models --weights`, or hf://owner/name.
    `recipe`: paper, fast, linear or lora.
    `fields`, those of TrainConfig, override the recipe. `quiet` and `overwrite` are as in `train`.
    """
    return train(data, finetuning_recipe(recipe), quiet=quiet, overwrite=overwrite, start=start, **fields)
