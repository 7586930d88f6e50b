"""`vitreous finetune`: fine-tune pre-trained weights on images."""

from collections.abc import Callable, Sequence

from vitreous.cli.options import Switch
from vitreous.cli.train import (
    CONFIG_HELP,
    DATA_HELP,
    OVERWRITE_HELP,
    PRINT_CONFIG_HELP,
    Config,
    ConfigPath,
    Data,
    RecipeName,
    RunRequest,
    RunToResume,
    base_settings,
    start_or_resume,
)
from vitreous.training.recipes import FINETUNING_RECIPES, finetuning_recipe


def make_finetune_command(arguments: Sequence[str]) -> Callable[..., None]:
    """Return the command: `vitreous train` with the defaults of a fine-tuning recipe, and with --from required."""
    base = base_settings(arguments, lambda name: finetuning_recipe("fast" if name is None else name))

    def finetune(
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
        arguments = (data or base.data, config, recipe, config_file, print_config, resume, overwrite)
        start_or_resume(RunRequest("finetune", *arguments))

    finetune.__doc__ = f"""Fine-tune pre-trained weights on images, with a new head.

    The recipe selects which layers are trained, and how. All flags of `vitreous train` apply. Stop the run at any time
    with Ctrl-C; `--resume` continues it.

    Args:
        data: {DATA_HELP}
        recipe: Fine-tuning recipe: {", ".join(FINETUNING_RECIPES)}. Default: fast. `vitreous recipes
            finetune_fast` shows its settings.
        config_file: {CONFIG_HELP}
        print_config: {PRINT_CONFIG_HELP}
        resume: Continue the run in this directory. A longer --epochs extends it, also if it has finished.
        overwrite: {OVERWRITE_HELP}
    """
    return finetune
