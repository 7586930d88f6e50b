"""`vitreous data --check`: options and printed results."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from vitreous.cli.options import DataOptions, OptionalFolder, OptionalInt, Switch
from vitreous.cli.output import (
    interrupt_message,
    make_reporter,
    print_facts,
    print_json,
    print_notes,
    print_warnings,
)
from vitreous.errors import VitreousError, format_count
from vitreous.evaluation.progress_bar import image_progress_bar
from vitreous.utils.console import printable

if TYPE_CHECKING:
    from vitreous.evaluation.data_check import DataCheck

MAX_LISTED = 8  # findings of a kind that are printed


@dataclass(frozen=True)
class CheckOptions:
    """Options of --check."""

    check: Switch = False
    """Look for problems in the data, and write a page with thumbnails on which images can be marked."""
    model: Annotated[str, tyro.conf.arg(metavar="MODEL")] = "vitreous-mini"
    """Model that computes the features: a checkpoint of any supported format or a run directory. It should not have
    been trained on these images."""
    out: OptionalFolder = None
    """Folder for the page (index.html), suspects.csv and check.json. Default: NAME-check in the current folder."""
    device: Annotated[str, tyro.conf.arg(metavar="NAME")] = "auto"
    """cpu, cuda, cuda:1 ...; auto: a GPU if there is one."""
    workers: OptionalInt = None
    """Number of worker processes that decode images. Default: one per CPU core, up to 16; 0 for few images."""
    cache: OptionalFolder = None
    """Folder in which computed features are cached. Default: the user's cache folder."""

    def refuse_without_check(self) -> None:
        """Raise an error if an option is given that only --check uses."""
        for field in fields(self):
            if getattr(self, field.name) != field.default:
                raise VitreousError(f"--{field.name} has an effect only with --check: add --check, or remove it")


def run_check(source: str, reading: DataOptions, options: CheckOptions, *, overwrite: bool, json: bool) -> None:
    """Check the data, write the page and the tables, and print a summary."""
    from vitreous.data.open_data import open_data
    from vitreous.evaluation.inference_options import InferenceOptions
    from vitreous.reports.check_data import PAGE, write_data_check
    from vitreous.reports.data_check_text import check_to_json
    from vitreous.utils.device import pick_device

    reporter = make_reporter(json)
    inference = InferenceOptions(pick_device(options.device), workers=options.workers)
    fields_of_reading = reading.reading(options.model)
    out = options.out or check_folder(open_data(source, fields_of_reading).name)
    with interrupt_message(resumable=True):
        check = write_data_check(
            source,
            options.model,
            out,
            overwrite,
            fields_of_reading,
            inference,
            cache=options.cache,
            bar=image_progress_bar(reporter),
            note=lambda notes: print_notes(reporter, notes),
        )
    print_warnings(reporter, check.warnings)
    if json:
        print_json({"source": source, "page": str(out / PAGE), **check_to_json(check)})
    else:
        print_check(source, check, out)


def check_folder(name: str) -> Path:
    """Return the default output folder, without the special characters of the name of the data."""
    from vitreous.cli.data import plain_name

    return Path(f"{plain_name(name)}-check")


def print_check(source: str, check: "DataCheck", out: Path) -> None:
    from vitreous.evaluation.data_check import describe_copies
    from vitreous.reports.check_data import PAGE, SUMMARY, TABLE
    from vitreous.reports.data_check_text import (
        describe_curve,
        describe_need,
        describe_pair,
        describe_separation,
        describe_suspects,
    )

    images, classes = check.images, check.images.data.classes
    rows = [
        ("data", printable(source)),
        ("images", ", ".join(f"{len(part):,} {split}" for split, part in images.splits.items())),
        ("wrong labels", describe_suspects(check)),
    ]
    rows += _listed(
        [
            f"{images.name(s.image)}: {classes[s.label]} -> {classes[s.suggested]}"
            f" (the label is wrong with a probability of {s.wrong:.0%})"
            for s in check.suspects[:MAX_LISTED]
        ],
        len(check.suspects),
    )
    rows.append(("copies", describe_copies(check)))
    rows += _listed(
        [
            " = ".join(f"{images.split_of(n)}: {images.name(n)}" for n in g.images[:3])
            for g in check.copies[:MAX_LISTED]
        ],
        len(check.copies),
    )
    rows += _odd_rows(check)
    rows.append(("classes", describe_separation(check.separation)))
    if check.separation is not None:
        pairs = check.separation.indistinct
        rows += _listed([describe_pair(pair, classes) for pair in pairs[:MAX_LISTED]], len(pairs))
    rows.append(("more pictures", describe_curve(check.curve, classes)))
    if check.curve is not None:
        needy = check.curve.needy
        rows += _listed([describe_need(need, classes) for need in needy[:MAX_LISTED]], len(needy))
    rows += [("method" if not number else "", line) for number, line in enumerate(check.method)]
    rows += [("note", note) for note in check.notes]
    rows += [("page", str(out / PAGE)), ("tables", f"{out / TABLE}, {out / SUMMARY}")]
    print_facts((name, printable(value)) for name, value in rows)


def _odd_rows(check: "DataCheck") -> list[tuple[str, str]]:
    from vitreous.reports.data_check_text import ODD_TITLES

    rows = []
    for kind, title in ODD_TITLES.items():
        found = check.odd_of(kind)
        rows.append((title.lower().removesuffix(" images"), format_count(len(found), "image") if found else "none"))
        rows += _listed([f"{check.images.name(odd.image)}: {odd.detail}" for odd in found[:MAX_LISTED]], len(found))
    return rows


def _listed(lines: list[str], number: int) -> list[tuple[str, str]]:
    more = [f"and {number - len(lines):,} more; the page and suspects.csv show them"] if number > len(lines) else []
    return [("", line) for line in (*lines, *more)]
