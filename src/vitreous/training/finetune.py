"""`vitreous.finetune`: training that begins with weights, by one of the recipes for that."""

import os
from typing import Any

from vitreous.training.recipes import finetuning_recipe
from vitreous.training.train import Outcome, train


def finetune(
    data: str | os.PathLike[str],
    start: str | os.PathLike[str],
    recipe: str = "fast",
    *,
    quiet: bool = False,
    overwrite: bool = False,
    **fields: Any,
) -> Outcome:
    """Adapt weights to images: `finetune("photos", "vitreous-mini", "lora", image_size=224)`.

    `recipe` is paper, fast, linear or lora; `fields`, those of TrainConfig, change it. `overwrite`: as of `train`.
    """
    return train(data, finetuning_recipe(recipe), quiet=quiet, overwrite=overwrite, start=start, **fields)
