"""`vitreous compare`: the features of several models on several data sets, in one table."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from vitreous.cli.options import BatchOptions, DataOptions, FeatureOptions, OptionalFile, OutputOptions
from vitreous.cli.output import (
    exit_if_unreadable,
    interrupt_message,
    make_reporter,
    print_columns,
    print_figure_paths,
    print_json,
    print_notes,
    print_warnings,
)
from vitreous.evaluation.progress_bar import image_progress_bar
from vitreous.utils.console import print_line, printable
from vitreous.utils.output_paths import check_output_paths

if TYPE_CHECKING:
    from vitreous.experiments.compare import Comparison


def compare_command(
    models: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="MODEL...", help_behavior_hint="")],
    /,
    *,
    data: Annotated[tuple[str, ...], tyro.conf.arg(metavar="DATA ...", help_behavior_hint="")] = (),
    suite: Annotated[Path | None, tyro.conf.arg(metavar="FILE.toml", help_behavior_hint="")] = None,
    markdown: OptionalFile = None,
    reading: Annotated[DataOptions, tyro.conf.arg(name="data")] = DataOptions(),  # noqa: B008 (these are frozen)
    features: Annotated[FeatureOptions, tyro.conf.arg(name="feature")] = FeatureOptions(  # noqa: B008
        methods=("fewshot", "knn", "probe")
    ),
    batches: Annotated[BatchOptions, tyro.conf.arg(name="device")] = BatchOptions(),  # noqa: B008
    output: OutputOptions = OutputOptions(),  # noqa: B008
) -> None:
    """Compare the features of models on data sets by few-shot classification, k-NN and linear probes.

    Features are computed once and cached; the cache is keyed by the content of model and data. The output folder
    contains comparison.json, comparison.md and a figure (comparison.png and .svg).

    Args:
        models: Checkpoints of any supported format, run directories, vitreous-mini, names of `vitreous models
            --weights`, hf://owner/name, or random:NAME for random weights.
        data: Data sets as in `vitreous data`.
        suite: TOML file with groups of data sets and their options, instead of --data. Means are printed per group.
        markdown: Write the table to this file.
    """
    from vitreous.evaluation.cache import FeatureCache, default_cache_folder
    from vitreous.evaluation.measures import MeasureSettings
    from vitreous.experiments.compare import compare_models
    from vitreous.experiments.compare_figure import comparison_files, write_comparison
    from vitreous.experiments.comparison import chosen_suite

    check_output_paths(output.out, comparison_files, markdown, overwrite=output.overwrite)
    reporter = make_reporter(output.json)
    chosen = chosen_suite(suite, data, reading.reading())
    cache = FeatureCache(features.cache or default_cache_folder())
    settings = MeasureSettings(tuple(features.shots))
    options = batches.inference_options(reporter)
    with interrupt_message(resumable=True):
        found = compare_models(models, chosen, features.methods, cache, options, settings, image_progress_bar(reporter))
    print_notes(reporter, found.notes)
    print_warnings(reporter, found.warnings)
    if output.json:
        print_json(found.to_json())
    else:
        print_comparison(found)
    if figures := write_comparison(found, markdown, output.out, output.overwrite):
        print_figure_paths(figures, output.json)
    exit_if_unreadable(reporter, found.unreadable)


def print_comparison(found: "Comparison") -> None:
    rows = found.cells()
    names = [name for name, _, _ in rows]
    first_of_data = [name if name != before else "" for name, before in zip(names, ["", *names], strict=False)]
    columns = [("data", first_of_data), ("measure", [measure for _, measure, _ in rows])]
    columns += [(model, [cells[place] for _, _, cells in rows]) for place, model in enumerate(found.models)]
    print_columns(columns, text_columns=2)
    print_line()
    for name, images in found.images.items():
        print_line(f"{printable(name)}: {printable(images)}")
    for name, selection in zip(found.models, found.selections, strict=True):
        print_line(f"weights of {printable(name)}: {printable(selection)}")
