"""`vitreous compare`: several models on several data sets, in one table."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from vitreous.cli.parts import (
    File,
    Folder,
    Learning,
    Running,
    check_writing,
    made,
    paced,
    show_columns,
    stopping,
    tell_unreadable,
    write_json,
)
from vitreous.cli.predict import printable

if TYPE_CHECKING:
    from vitreous.experiments.compare import Comparison


@dataclass(frozen=True)
class Writing:
    """Where the table goes, beside the terminal."""

    json: File = None
    """write everything to this file."""
    markdown: File = None
    """write the table to this file."""
    out: Folder = None
    """write everything to this folder: comparison.json, comparison.md and a picture, comparison.png and .svg."""


def compare(
    models: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="MODEL...", help_behavior_hint="")],
    /,
    *,
    data: Annotated[tuple[str, ...], tyro.conf.arg(metavar="DATA ...", help_behavior_hint="")] = (),
    suite: Annotated[Path | None, tyro.conf.arg(metavar="FILE.toml")] = None,
    learning: Learning = Learning(measures=("fewshot", "knn", "probe")),  # noqa: B008 (they are frozen)
    running: Running = Running(),  # noqa: B008
    writing: Writing = Writing(),  # noqa: B008
) -> None:
    """Compare what the features of models are worth on data sets.

    Features are computed once and kept, by the content of model and data: a second run reads them.

    Args:
        models: checkpoints of Vitreous or of other programs, run directories, vitreous-mini, or random:NAME for a model
            as it is before training.
        data: data sets as in `vitreous data`.
        suite: groups of data sets in a TOML file, in place of --data; means are told of each group.
        learning: what features are worth.
        running: how images come to the models.
        writing: where the table goes.
    """
    from vitreous.errors import VitreousError
    from vitreous.evaluation.cache import Cache, usual_place
    from vitreous.evaluation.measures import Settings
    from vitreous.experiments import compare as comparing
    from vitreous.experiments.suite import of_data, read_suite
    from vitreous.training.telling import Teller

    if (suite is None) == (not data):
        raise VitreousError("name the data with --data, or a suite of data sets with --suite: one of the two")
    check_writing(writing.out, writing.json, writing.markdown)
    teller = Teller()
    chosen = read_suite(suite) if suite is not None else of_data(data)
    cache, settings = Cache(learning.cache or usual_place()), Settings(tuple(learning.shots))
    loading, bar = running.loading(teller), paced(teller)
    with stopping(True):
        found = comparing.compare(models, chosen, learning.measures, cache, loading, settings, bar)
    for note in found.notes:
        teller.notes.print(printable(note), style="dim", soft_wrap=True)
    show(found)
    write(found, writing)
    tell_unreadable(teller, found.unreadable)


def write(found: "Comparison", writing: Writing) -> None:
    from vitreous.experiments.picture import draw_comparison
    from vitreous.weights.files import replacing

    folder = None if writing.out is None else made(writing.out)
    for path in (writing.json, folder and folder / "comparison.json"):
        if path is not None:
            write_json(path, found.to_json())
    for path in (writing.markdown, folder and folder / "comparison.md"):
        if path is not None:
            with replacing(path) as temporary:
                temporary.write_text(found.markdown(), encoding="utf-8")
    if folder is not None:
        print(f"drawn: {', '.join(map(str, draw_comparison(found, folder)))}")


def show(found: "Comparison") -> None:
    rows = found.cells()
    names = [name for name, _, _ in rows]
    shown = [name if name != before else "" for name, before in zip(names, ["", *names], strict=False)]
    columns = [("data", shown), ("measure", [measure for _, measure, _ in rows])]
    columns += [(model, [cells[place] for _, _, cells in rows]) for place, model in enumerate(found.models)]
    show_columns(columns, left=2)
    print()
    for name, told in found.told.items():
        print(f"{name}: {told}")
