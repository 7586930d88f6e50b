"""`vitreous compare`: several models on several data sets, in one table."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from vitreous.cli.parts import (
    DataOptions,
    File,
    Folder,
    Json,
    Learning,
    Overwrite,
    Running,
    check_writing,
    paced,
    print_json,
    show_columns,
    stopping,
    tell_unreadable,
    teller_for,
    warn,
    write_json,
)
from vitreous.utils.console import STDERR, STDOUT, printable, say

if TYPE_CHECKING:
    from vitreous.experiments.compare import Comparison


@dataclass(frozen=True)
class Writing:
    """Where the table goes, beside the terminal."""

    json: Json = False
    """one JSON object instead of a table."""
    markdown: File = None
    """write the table to this file."""
    out: Folder = None
    """write everything to this folder: comparison.json, comparison.md and a picture, comparison.png and .svg."""
    overwrite: Overwrite = False
    """replace a file or folder of an earlier comparison, once the new one is complete."""


def compare(
    models: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="MODEL...", help_behavior_hint="")],
    /,
    *,
    data: Annotated[tuple[str, ...], tyro.conf.arg(metavar="DATA ...", help_behavior_hint="")] = (),
    suite: Annotated[Path | None, tyro.conf.arg(metavar="FILE.toml")] = None,
    reading: DataOptions = DataOptions(),  # noqa: B008
    learning: Learning = Learning(measures=("fewshot", "knn", "probe")),  # noqa: B008 (they are frozen)
    running: Running = Running(),  # noqa: B008
    writing: Writing = Writing(),
) -> None:
    """Compare what the features of models are worth on data sets.

    Features are computed once and kept, by the content of model and data: a second run reads them.

    Args:
        models: checkpoints of Vitreous or of other programs, run directories, vitreous-mini, or random:NAME for a model
            as it is before training.
        data: data sets as in `vitreous data`.
        suite: groups of data sets in a TOML file, in place of --data; means are told of each group.
        reading: where images and labels are, and how they are split; a suite says that itself.
        learning: what features are worth.
        running: how images come to the models.
        writing: where the table goes.
    """
    from vitreous.errors import VitreousError
    from vitreous.evaluation.cache import Cache, usual_place
    from vitreous.evaluation.measures import Settings
    from vitreous.experiments import compare as comparing
    from vitreous.experiments.suite import of_data, read_suite

    if (suite is None) == (not data):
        raise VitreousError("name the data with --data, or a suite of data sets with --suite: one of the two")
    check_writing(writing.out, contents, writing.markdown, overwrite=writing.overwrite)
    teller = teller_for(writing.json)
    chosen = read_suite(suite) if suite is not None else of_data(data, reading.reading())
    cache, settings = Cache(learning.cache or usual_place()), Settings(tuple(learning.shots))
    loading, bar = running.loading(teller), paced(teller)
    with stopping(True):
        found = comparing.compare(models, chosen, learning.measures, cache, loading, settings, bar)
    for note in found.notes:
        teller.notes.print(printable(note), style="dim", soft_wrap=True)
    warn(teller, found.warnings)
    if writing.json:
        print_json(found.to_json())
    else:
        show(found)
    write(found, writing)
    tell_unreadable(teller, found.unreadable)


def contents(folder: Path) -> tuple[str, ...]:
    """The files that --out writes."""
    return ("comparison.json", "comparison.md", "comparison.png", "comparison.svg")


def write(found: "Comparison", writing: Writing) -> None:
    from vitreous.experiments.compare_figure import draw_comparison
    from vitreous.utils.atomic import atomic_file, atomic_folder

    if writing.markdown is not None:
        with atomic_file(writing.markdown, writing.overwrite) as temporary:
            temporary.write_text(found.markdown(), encoding="utf-8")
    if writing.out is not None:
        with atomic_folder(writing.out, writing.overwrite, contents) as folder:
            write_json(folder / "comparison.json", found.to_json())
            (folder / "comparison.md").write_text(found.markdown(), encoding="utf-8")
            drawn = draw_comparison(found, folder)
        shown = ", ".join(str(writing.out / path.name) for path in drawn)
        say(f"drawn: {shown}", STDERR if writing.json else STDOUT)


def show(found: "Comparison") -> None:
    rows = found.cells()
    names = [name for name, _, _ in rows]
    shown = [name if name != before else "" for name, before in zip(names, ["", *names], strict=False)]
    columns = [("data", shown), ("measure", [measure for _, measure, _ in rows])]
    columns += [(model, [cells[place] for _, _, cells in rows]) for place, model in enumerate(found.models)]
    show_columns(columns, left=2)
    say()
    for name, told in found.told.items():
        say(f"{printable(name)}: {printable(told)}")
    for name, selection in zip(found.models, found.selections, strict=True):
        say(f"weights of {printable(name)}: {printable(selection)}")
