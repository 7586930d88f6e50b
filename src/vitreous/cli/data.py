"""`vitreous data`: what is in a data set."""

import json as json_format
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from vitreous.cli.parts import show_facts
from vitreous.cli.predict import printable, progress

if TYPE_CHECKING:
    from vitreous.data.describing import Description, Sizes

MOST = 12  # of classes, files and copies: so many are listed
Column = Annotated[str | None, tyro.conf.arg(metavar="NAME")]


@dataclass(frozen=True)
class Choices:
    """Those of `Reading` that have a meaning where nothing is trained."""

    data_dir: Annotated[str | None, tyro.conf.arg(metavar="FOLDER")] = None
    """where the files are of a data set that is called by name."""
    image_column: Column = None
    """the column of images, where there is a doubt."""
    label_column: Column = None
    """the column of labels, where there is a doubt."""
    val_fraction: Annotated[float | None, tyro.conf.arg(metavar="SHARE")] = None
    """how much to set aside for validation, if the data has no split for it; chosen by its size."""
    split_seed: Annotated[int, tyro.conf.arg(metavar="N")] = 0
    """draws that split."""


def data(
    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")],
    /,
    *,
    reading: Choices = Choices(),  # noqa: B008 (it is frozen)
    sheet: Annotated[Path | None, tyro.conf.arg(metavar="FILE.png")] = None,
    no_sheet: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> None:
    """Say what is in a data set: counts, classes, sizes, broken and repeated images; and draw a sheet of samples.

    Args:
        source: a folder with a folder for each class (or with train, val and test folders of those), a manifest
            (.csv, .tsv, .jsonl), arrays (.npz), tar shards or Parquet (a file, a folder, a pattern in quotes),
            hf://owner/name, or one of digits, mnist, fashion-mnist, cifar10, cifar100.
        reading: where images and labels are, and how they are split.
        sheet: where to draw samples of each class; if not given, NAME-samples.png in the current folder.
        no_sheet: draw none.
        json: one JSON object instead of a table.
    """
    from rich.console import Console

    from vitreous.data.describing import describe
    from vitreous.data.opening import open_data
    from vitreous.data.options import Reading
    from vitreous.data.sheets import sample_sheet
    from vitreous.errors import VitreousError

    if no_sheet and sheet is not None:
        raise VitreousError("--sheet and --no-sheet are given: leave out one of them")
    opened = open_data(source, Reading(**asdict(reading)))
    total = sum(map(len, opened.splits.values()))
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    with progress(console, total, shown=sys.stderr.isatty() and total > 100) as advance:
        found = describe(opened, progress=advance)
    drawn = None if no_sheet else sample_sheet(opened, sheet or sheet_name(opened.name))
    if json:
        print(json_format.dumps({"source": source, **found.to_json(), "sheet": drawn and str(drawn)}))
        return
    show(source, found)
    print(f"samples: {drawn}" if drawn else "no samples drawn; --sheet FILE.png draws some")


def sheet_name(name: str) -> Path:
    """In the current folder, whatever is in the name of the data."""
    plain = "".join(c if c.isalnum() or c in "._-" else "-" for c in name).strip(".-")
    return Path(f"{plain or 'data'}-samples.png")


def show(source: str, found: "Description") -> None:
    rows = [
        ("data", printable(source)),
        ("images", ", ".join(f"{count:,} {split}" for split, count in found.counts.items())),
        ("validation", printable(found.split)),
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
    counts = found.class_counts["train"]
    return f"the largest class has {found.balance:,.1f} times the images of the smallest ({max(counts):,} at most)"


def sizes(found: "Sizes | None") -> str:
    if found is None:
        return "no image can be read"
    if found.smallest == found.largest:
        return f"all {pair(found.common)} (height x width)"
    common = f"most often {pair(found.common)}, {found.common_share:.0%} of them"
    (low, narrow), (high, wide) = found.smallest, found.largest
    span = f"heights {low:,} to {high:,}, widths {narrow:,} to {wide:,}"
    return f"{span}; in the middle {pair(found.median)}; {common}"


def pair(size: tuple[int, int]) -> str:
    return f"{size[0]:,} x {size[1]:,}"


def colour(found: "Description") -> str:
    kind = "grey, 1 channel" if found.channels == 1 else "3 channels"
    return f"{kind}; {found.grey:.3g} of the images are grey" if 0 < found.grey < 1 else kind


def copies(found: "Description") -> list[tuple[str, str]]:
    if not found.copies:
        return [("copies", "none: no two images have the same bytes")]
    told = [f"{count:,} within {split}" for split, count in found.repeated.items() if count]
    for splits, count in found.leaks.items():
        first, second = splits.split("-")
        told += [f"{count:,} of {second} are also in {first}"] if count else []
    if differing := sum(group.classes_differ for group in found.copies):
        told.append(f"{differing:,} images stand in several classes")
    rows = [("copies", "; ".join(told))]
    for group in sorted(found.copies, key=lambda group: len({split for split, _ in group.places}), reverse=True)[:MOST]:
        rows.append(("", printable(" = ".join(f"{split}: {name}" for split, name in group.places[:4]))))
    return rows + more(len(found.copies))


def more(number: int) -> list[tuple[str, str]]:
    return [("", f"and {number - MOST:,} more; --json lists all")] if number > MOST else []
