"""`vitreous sweep`: train with a grid or random draws of settings, and select the best by validation metric."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import tyro

from vitreous.cli.options import Switch
from vitreous.cli.output import make_reporter, print_columns, print_json
from vitreous.cli.train import CONFIG_HELP, DATA_HELP, Config, ConfigPath, Data, RecipeName, base_settings
from vitreous.errors import VitreousError
from vitreous.training.config import TrainConfig
from vitreous.training.config_file import ConfigFile
from vitreous.training.recipes import RECIPES, recipe
from vitreous.utils.console import print_line, printable

if TYPE_CHECKING:
    from vitreous.experiments.sweeps.sweep_result import SweepResult

Values = Annotated[tuple[str, ...], tyro.conf.arg(metavar="SETTING=VALUES ...", help_behavior_hint="")]
Number = Annotated[int, tyro.conf.arg(metavar="N")]


def make_sweep_command(arguments: Sequence[str]) -> Callable[..., None]:
    """Return the command. The defaults of its flags are those of the recipe or of the config file."""
    if any(argument.partition("=")[0] == "--resume" for argument in arguments):
        raise VitreousError("a sweep has no --resume: give the same command again, and it continues")
    base = base_settings(arguments, lambda name: TrainConfig() if name is None else recipe(name), searches=True)

    def sweep(  # noqa: PLR0913 (each is a flag)
        data: Data = None,
        /,
        *,
        grid: Values = (),
        random: Values = (),
        draws: Number = 20,
        draw_seed: Number = 0,
        seeds: Number = 1,
        jobs: Number = 1,
        recipe: RecipeName = None,
        config_file: ConfigPath = None,
        overwrite: Switch = False,
        json: Switch = False,
        config: Config = base.config,
    ) -> None:
        options = (draws, draw_seed, seeds, jobs, overwrite)
        _run(data or base.data, config, base.file, (grid, random), options, json)

    sweep.__doc__ = f"""Train with every combination of some settings, and select the best by its validation metric.

    All other flags are those of `vitreous train`, for the settings that all runs share. The runs are ordinary training
    runs in OUT/cells; the same command continues after Ctrl-C or kill -9. Table, figure and selected.toml, a config
    file with the selected settings, are written to OUT/result.

    Args:
        data: {DATA_HELP}
        grid: Values of settings, all combinations of which are trained: --grid lr=1e-3,3e-3 model=Ti/16,S/16.
        random: Values or ranges of settings, from which combinations are drawn: --random lr=1e-4..1e-2 width=64,128.
            Ranges are log-uniform for learning rates and weight decay, otherwise uniform; log:2..64 and linear:0..0.1
            choose.
        draws: Number of combinations that --random draws. A larger number keeps the first ones.
        draw_seed: Random seed of --random.
        seeds: Runs per combination, with different seeds; the means are compared.
        jobs: Number of runs side by side on each GPU, or on the CPU.
        recipe: Start from the settings of a recipe: {", ".join(RECIPES)}; of your own: file.py:function.
        config_file: {CONFIG_HELP} Its tables [grid] or [random] may list the values.
        overwrite: Replace the result of another sweep in --out. Its finished runs are kept.
        json: Print the result as one JSON object instead of a table.
    """
    return sweep


def _run(
    data: str | None,
    config: TrainConfig,
    file: ConfigFile | None,
    searches: tuple[tuple[str, ...], tuple[str, ...]],
    options: tuple[int, int, int, int, bool],
    json: bool,
) -> None:
    """`searches`: the arguments of --grid and --random; without them, the tables of the config file are used."""
    from vitreous.experiments.sweeps.search_space import split_arguments
    from vitreous.experiments.sweeps.sweep import prepare_sweep, run_sweep
    from vitreous.experiments.sweeps.sweep_request import SweepOptions

    grid, random = split_arguments(searches[0], "--grid"), split_arguments(searches[1], "--random")
    tables = {"grid": grid, "random": random} if grid or random or file is None else file.searches
    config = TrainConfig.from_flat(config.flat())  # checks the values and normalises durations
    request = prepare_sweep(data, config, tables.get("grid"), tables.get("random"), SweepOptions(*options))
    result = run_sweep(request, make_reporter(json))
    _show(result, json)
    if result.records.failed:
        raise SystemExit(1)


def _show(result: "SweepResult", json: bool) -> None:
    if json:
        print_json(result.to_json())
        return
    table = result.make_table(with_runs=False)
    texts = table.texts()
    columns = [(name, [row[place] for row in texts]) for place, name in enumerate(table.columns)]
    print_columns(columns, text_columns=len(result.names))
    print_line()
    for text in (*table.notes, *result.sentences()):
        print_line(printable(text))
    if result.best is not None:
        print_line(f"Train again with these settings: {printable(result.command())}")
    print_line(f"Table, figure and report: {printable(result.folder)}")
