"""`vitreous reproduce`: the tables and figures of the ViT paper, from experiments on your data."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from vitreous.cli.options import Switch
from vitreous.cli.output import make_reporter, print_columns, print_json
from vitreous.experiments.options import ReproduceOptions
from vitreous.utils.console import print_line, printable

if TYPE_CHECKING:
    from vitreous.experiments.experiment_result import ExperimentResult


def reproduce_command(
    names: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[NAME ...]", help_behavior_hint="")
    ] = (),
    /,
    *,
    experiment: ReproduceOptions = ReproduceOptions(),  # noqa: B008 (it is frozen)
    from_: Annotated[Path | None, tyro.conf.arg(name="from", metavar="RESULT.json", help_behavior_hint="")] = None,
    plan: Switch = False,
    json: Switch = False,
) -> None:
    """Run experiments of the ViT paper: a table, a figure, and whether the paper's conclusion holds on this data.

    Without a name, all experiments are listed. The cells of an experiment are ordinary training runs in OUT/cells; the
    same command continues after Ctrl-C or kill -9. Table, figure and result.json are written to OUT/NAME-SCALE.

    Args:
        names: Names of experiments, all, or file.py:NAME for an experiment of your own.
        from_: Draw table, figure and verdict again from this result.json, without any training. They are written to
            OUT/NAME-SCALE.
        plan: Print the training runs of these experiments, their exaFLOPs and an estimate of their time from the speed
            measured on this device, and train nothing.
        json: Print results as one JSON object instead of tables.
    """
    from vitreous.errors import VitreousError
    from vitreous.experiments import reproduce as experiment_runs
    from vitreous.experiments.registry import experiment_names

    if plan and (from_ is not None or not names):
        raise VitreousError("plan: give the names of experiments to plan, without --from")
    if from_ is not None:
        _show([experiment_runs.redraw(from_, Path(experiment.out), experiment.overwrite, names)], json)
        return
    if not names:
        _list_experiments(json)
        return
    chosen = tuple(experiment_names()) if names == ("all",) else names
    if "all" in chosen:
        raise VitreousError("all stands for every experiment: give it alone")
    if plan:
        _show_plan(chosen, experiment, json)
        return
    results = experiment_runs.reproduce_all(chosen, experiment, make_reporter(json))
    _show(results, json)
    if any(result.records.failed for result in results):
        raise SystemExit(1)


def _list_experiments(json: bool) -> None:
    from vitreous.experiments.registry import all_experiments

    found = all_experiments()
    if json:
        described: dict[str, dict[str, Any]] = {
            name: {
                "title": one.title,
                "paper": one.place,
                "conclusion": one.conclusion,
                "seeds": {**one.seeds},
                "time": {**one.time},
                "needs": vars(one.needs),
            }
            for name, one in found.items()
        }
        print_json(described)
        return
    needs = [
        " and ".join(
            flag for flag, needed in (("--data", one.needs.pretraining), ("--transfer", one.needs.transfer)) if needed
        )
        or "no data"
        for one in found.values()
    ]
    columns = [
        ("experiment", list(found)),
        ("paper", [one.place for one in found.values()]),
        ("data (small)", needs),
        ("seeds (small)", [str(one.seeds["small"]) for one in found.values()]),
        ("time (tiny)", [one.time.get("tiny", "") for one in found.values()]),
        ("time (small)", [one.time.get("small", "") for one in found.values()]),
        ("shows", [one.title for one in found.values()]),
    ]
    print_columns(columns, text_columns=len(columns))
    print_line()
    print_line("tiny needs no data. Run one with: vitreous reproduce NAME [--scale small --data DATA]")


def _show_plan(names: tuple[str, ...], options: ReproduceOptions, json: bool) -> None:
    from vitreous.experiments.plan import plan_grid

    found = plan_grid(names, options, make_reporter(json))
    if json:
        print_json(found.to_json())
        return
    texts = [row.texts() for row in found.rows]
    columns = [(name, [row[place] for row in texts]) for place, name in enumerate(found.COLUMNS)]
    print_columns(columns, text_columns=2)
    print_line()
    for sentence in found.summary():
        print_line(sentence)


def _show(results: "list[ExperimentResult]", json: bool) -> None:
    if json:
        print_json({result.name: result.to_json() for result in results})
        return
    for result in results:
        table = result.table
        print_line(f"{result.name}: {result.experiment.title}")
        print_line()
        texts = table.texts()
        columns = [(name, [row[place] for row in texts]) for place, name in enumerate(table.columns)]
        print_columns(columns, text_columns=table.text_columns)
        print_line()
        for note in table.notes:
            print_line(printable(note))
        for cell in result.records.failed:
            print_line(f"failed: {', '.join(map(str, cell.factors.values()))}, seed {cell.seed}: {cell.error}")
        print_line(result.paragraph())
        for sentence in result.measured_on():
            print_line(sentence)
        print_line(f"written to {result.folder}")
        print_line()
