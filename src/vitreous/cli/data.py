"""`vitreous data`: what is in a data set."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from vitreous.cli.parts import DataOptions, Json, Overwrite, print_json, show_facts
from vitreous.cli.predict import progress
from vitreous.utils.console import STDERR, console, printable, say

if TYPE_CHECKING:
    from vitreous.data.statistics import Description, Sizes

MOST = 12  # of classes, files and copies: so many are listed


def data(
    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")],
    /,
    *,
    reading: DataOptions = DataOptions(),  # noqa: B008 (it is frozen)
    sheet: Annotated[Path | None, tyro.conf.arg(metavar="FILE.png")] = None,
    no_sheet: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    overwrite: Overwrite = False,
    json: Json = False,
) -> None:
    """Say what is in a data set: counts, classes, sizes, broken and repeated images; and draw a sheet of samples.

    Args:
        source: a folder with a folder for each class (or with train, val and test folders of those), a manifest
            (.csv, .tsv, .jsonl), arrays (.npz), tar shards or Parquet (a file, a folder, a pattern in quotes),
            hf://owner/name, or one of digits, mnist, fashion-mnist, cifar10, cifar100.
        reading: where images and labels are, and how they are split.
        sheet: where to draw samples of each class; if not given, NAME-samples.png in the current folder.
        no_sheet: draw none.
        overwrite: replace the sheet if there is a file of that name.
        json: one JSON object instead of a table.
    """
    from vitreous.data.contact_sheet import sample_sheet
    from vitreous.data.open_data import open_data
    from vitreous.data.statistics import describe
    from vitreous.errors import VitreousError

    if no_sheet and sheet is not None:
        raise VitreousError("--sheet and --no-sheet are given: leave out one of them")
    opened = open_data(source, reading.reading())
    total = sum(map(len, opened.splits.values()))
    with progress(console(STDERR), total, shown=STDERR.isatty() and total > 100) as advance:
        found = describe(opened, progress=advance)
    if not json:
        show(source, found)
    drawn, failure = None, None
    if not no_sheet:
        try:
            drawn = sample_sheet(opened, sheet or sheet_name(opened.name), overwrite=overwrite)
        except VitreousError as error:
            failure = error
    if json:
        print_json({"source": source, **found.to_json(), "sheet": drawn and str(drawn)})
    elif failure is None:
        say(f"samples: {drawn}" if drawn else "no samples drawn; --sheet FILE.png draws some")
    if failure is not None:
        raise failure


def sheet_name(name: str) -> Path:
    """In the current folder, whatever is in the name of the data."""
    plain = "".join(c if c.isalnum() or c in "._-" else "-" for c in name).strip(".-")
    plain = plain.encode()[:100].decode(errors="ignore")  # file names are counted in bytes
    return Path(f"{plain or 'data'}-samples.png")


def show(source: str, found: "Description") -> None:
    rows = [
        ("data", printable(source)),
        ("images", ", ".join(f"{count:,} {split}" for split, count in found.counts.items())),
        ("splits", printable(found.split)),
        ("classes", classes(found)),
        ("balance", balance(found)),
        ("sizes", sizes(found.sizes)),
        ("colour", colour(found)),
        ("unreadable", "none" if not found.unreadable else f"{len(found.unreadable):,} images"),
    ]
    rows += [("", printable(f"{bad.split}: {bad.name}: {bad.reason}")) for bad in found.unreadable[:MOST]]
    rows += more(len(found.unreadable))
    rows += copies(found)
    rows += [("note", printable(note)) for note in found.notes]
    show_facts(rows)


def classes(found: "Description") -> str:
    counts = found.class_counts["train"]
    named = [f"{printable(name)} {count:,}" for name, count in zip(found.classes, counts, strict=True)]
    kind = ", any number for each image" if found.multi_label else ""
    rest = f" and {len(named) - MOST:,} more" if len(named) > MOST else ""
    return f"{len(named):,}{kind}; in train: {', '.join(named[:MOST])}{rest}"


def balance(found: "Description") -> str:
    """How evenly the training images are spread over the classes."""
    counts = found.class_counts["train"]
    least, most, none = min(filter(None, counts)), max(counts), counts.count(0)
    rest = f"; {none:,} class{'' if none == 1 else 'es'} without any" if none else ""
    if found.balance == 1:
        where = f"each of {len(counts) - none:,} classes" if none else "every class"
        return f"{most:,} training image{'' if most == 1 else 's'} in {where}{rest}"
    return f"the largest class has {found.balance:,.1f} times the images of the smallest ({most:,} and {least:,}){rest}"


def sizes(found: "Sizes | None") -> str:
    if found is None:
        return "no image can be read"
    if found.smallest == found.largest:
        return f"all {pair(found.common)} (height x width)"
    (low, narrow), (high, wide) = found.smallest, found.largest
    heights = f"height {low:,} to {high:,}" if low < high else f"height {low:,}"
    widths = f"width {narrow:,} to {wide:,}" if narrow < wide else f"width {narrow:,}"
    median, common = f"median {pair(found.median)}", f"most common {pair(found.common)} ({found.common_share:.0%})"
    return f"{heights}, {widths}; {median}; {common}"


def pair(size: tuple[int, int]) -> str:
    return f"{size[0]:,} x {size[1]:,}"


def colour(found: "Description") -> str:
    kind = "grey, 1 channel" if found.channels == 1 else "3 channels"
    return f"{kind}; {found.grey:.1%} of the images are grey" if 0 < found.grey < 1 else kind


def copies(found: "Description") -> list[tuple[str, str]]:
    if not found.copies:
        return [("duplicates", "none: no two images have the same bytes")]
    told = [f"{count:,} within {split}" for split, count in found.repeated.items() if count]
    for splits, count in found.leaks.items():
        first, second = splits.split("-")
        told += [f"{count:,} of {second} are also in {first}"] if count else []
    if differing := sum(group.classes_differ for group in found.copies):
        told.append(f"{differing:,} images stand in several classes")
    rows = [("duplicates", "; ".join(told))]
    for group in sorted(found.copies, key=lambda group: len({split for split, _ in group.places}), reverse=True)[:MOST]:
        rows.append(("", printable(" = ".join(f"{split}: {name}" for split, name in group.places[:4]))))
    return rows + more(len(found.copies))


def more(number: int) -> list[tuple[str, str]]:
    return [("", f"and {number - MOST:,} more; --json lists all")] if number > MOST else []
