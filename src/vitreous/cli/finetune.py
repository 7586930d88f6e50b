"""`vitreous finetune`: from somebody's weights to a model of one's own."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import tyro

from vitreous.cli.parts import Overwrite
from vitreous.cli.train import DATA, Data, Recipe, Resumed, carry_out, default, flags
from vitreous.training.recipes import FINETUNING, finetuning


def finetune_command(arguments: Sequence[str]) -> Callable[..., None]:
    """The command: that of training, with other settings to begin with, and weights that have to be given."""
    kind: Any = flags(default(arguments, lambda name: finetuning("fast" if name is None else name)))

    def finetune(
        data: Data = None,
        /,
        *,
        recipe: Recipe = None,
        resume: Resumed = None,
        overwrite: Overwrite = False,
        config: Annotated[kind, tyro.conf.arg(name="")] = kind(),  # noqa: B008 (it is frozen)
    ) -> None:
        carry_out("finetune", data, recipe, resume, config, overwrite)

    finetune.__doc__ = f"""Adapt weights to images: a new head, and as much below it as the recipe says.

    Every flag of `vitreous train` is one of this. A run that was stopped goes on with `--resume`.

    Args:
        data: {DATA}
        recipe: how: {", ".join(FINETUNING)}; without it, fast. `vitreous recipes finetune_fast` shows all of it.
        resume: go on with the run in this directory.
        overwrite: --out may be that of an earlier run, which is kept as OUT.replaced until the new one is complete.
    """
    return finetune
