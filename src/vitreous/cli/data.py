"""`vitreous data`: statistics of a data set and a contact sheet of samples; with --check, a check for problems."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from vitreous.cli.data_check import CheckOptions, run_check
from vitreous.cli.options import DataOptions, Switch
from vitreous.cli.output import print_facts, print_json, transient_progress_bar
from vitreous.errors import format_count
from vitreous.utils.console import STDERR, console, print_line, printable

if TYPE_CHECKING:
    from vitreous.data.statistics import Description, Sizes

MAX_LISTED = 12  # classes, unreadable images and duplicates that are printed


def data_command(
    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATA")],
    /,
    *,
    reading: Annotated[DataOptions, tyro.conf.arg(name="data")] = DataOptions(),  # noqa: B008 (it is frozen)
    sheet: Annotated[Path | None, tyro.conf.arg(metavar="FILE.png", help_behavior_hint="")] = None,
    no_sheet: Switch = False,
    checking: Annotated[CheckOptions, tyro.conf.arg(name="check")] = CheckOptions(),  # noqa: B008
    overwrite: Switch = False,
    json: Switch = False,
) -> None:
    """Describe a data set: counts, classes, image sizes, unreadable images and duplicates; and draw samples of it.

    With --check, look for problems: probably wrong labels, copies within and across classes and splits, outliers,
    unreadable, tiny and blank images, classes that cannot be told apart, and classes that need more pictures. The
    result is a page with thumbnails. No image is changed, moved or deleted.

    Args:
        source: A folder with one folder per class (or with train, val and test folders of those), a .zip of such a
            folder, a manifest (.csv, .tsv, .jsonl), arrays (.npz), tar shards or Parquet (a file, a folder or a quoted
            pattern), hf://owner/name, or one of digits, mnist, fashion-mnist, cifar10, cifar100.
        sheet: Contact sheet with samples of each class. Default: NAME-samples.png in the current folder.
        no_sheet: Do not write a contact sheet.
        overwrite: Replace the contact sheet or the folder of --check if it exists.
        json: Print one JSON object instead of a table.
    """
    from vitreous.data.contact_sheet import sample_sheet
    from vitreous.data.open_data import open_data
    from vitreous.data.statistics import describe
    from vitreous.errors import VitreousError

    if no_sheet and sheet is not None:
        raise VitreousError("--sheet and --no-sheet exclude each other: remove one of them")
    if checking.check:
        if no_sheet or sheet is not None:
            raise VitreousError("--check draws no contact sheet: remove --sheet and --no-sheet")
        run_check(source, reading, checking, overwrite=overwrite, json=json)
        return
    checking.refuse_without_check()
    opened = open_data(source, reading.reading())
    total = sum(map(len, opened.splits.values()))
    with transient_progress_bar(console(STDERR), total, shown=STDERR.isatty() and total > 100) as advance:
        found = describe(opened, progress=advance)
    if not json:
        print_description(source, found)
    written, failure = None, None
    if not no_sheet:
        try:
            written = sample_sheet(opened, sheet or sheet_name(opened.name), overwrite=overwrite)
        except VitreousError as error:
            failure = error
    if json:
        print_json({"source": source, **found.to_json(), "sheet": written and str(written)})
    elif failure is None:
        print_line(f"samples: {written}" if written else "no samples drawn; --sheet FILE.png draws some")
    if failure is not None:
        raise failure


def sheet_name(name: str) -> Path:
    """Return a file name in the current folder."""
    return Path(f"{plain_name(name)}-samples.png")


def plain_name(name: str) -> str:
    """Return the name of the data without its special characters, short enough for a file name."""
    plain = "".join(c if c.isalnum() or c in "._-" else "-" for c in name).strip(".-")
    plain = plain.encode()[:100].decode(errors="ignore")  # the length of file names is limited in bytes
    return plain or "data"


def print_description(source: str, found: "Description") -> None:
    rows = [
        ("data", printable(source)),
        ("images", ", ".join(f"{count:,} {split}" for split, count in found.counts.items())),
        ("splits", printable(found.split)),
        ("classes", _classes(found)),
        ("balance", _balance(found)),
        ("sizes", _sizes(found.sizes)),
        ("colour", _colour(found)),
        ("unreadable", "none" if not found.unreadable else format_count(len(found.unreadable), "image")),
    ]
    rows += [("", printable(f"{bad.split}: {bad.name}: {bad.reason}")) for bad in found.unreadable[:MAX_LISTED]]
    rows += _and_more(len(found.unreadable))
    rows += _duplicates(found)
    rows += [("note", printable(note)) for note in found.notes]
    print_facts(rows)


def _classes(found: "Description") -> str:
    counts = found.class_counts["train"]
    named = [f"{printable(name)}: {count:,}" for name, count in zip(found.classes, counts, strict=True)]
    kind = ", several labels per image" if found.multi_label else ""
    rest = f" and {len(named) - MAX_LISTED:,} more" if len(named) > MAX_LISTED else ""
    return f"{len(named):,}{kind}; training images of {', '.join(named[:MAX_LISTED])}{rest}"


def _balance(found: "Description") -> str:
    """The numbers of training images of the largest and the smallest class."""
    counts = found.class_counts["train"]
    smallest, largest, empty = min(filter(None, counts)), max(counts), counts.count(0)
    rest = f"; {format_count(empty, 'class')} without training images" if empty else ""
    if found.balance == 1:
        classes = f"each of {len(counts) - empty:,} classes" if empty else "every class"
        return f"{format_count(largest, 'training image')} in {classes}{rest}"
    ratio = f"the largest class has {found.balance:,.1f} times the images of the smallest"
    return f"{ratio} ({largest:,} and {smallest:,}){rest}"


def _sizes(found: "Sizes | None") -> str:
    if found is None:
        return "no image is readable"
    if found.smallest == found.largest:
        return f"all {_height_x_width(found.common)} (height x width)"
    (low, narrow), (high, wide) = found.smallest, found.largest
    heights = f"height {low:,} to {high:,}" if low < high else f"height {low:,}"
    widths = f"width {narrow:,} to {wide:,}" if narrow < wide else f"width {narrow:,}"
    median, common = map(_height_x_width, (found.median, found.common))
    return f"{heights}, {widths}; median {median}; most common {common} ({found.common_share:.0%})"


def _height_x_width(size: tuple[int, int]) -> str:
    return f"{size[0]:,} x {size[1]:,}"


def _colour(found: "Description") -> str:
    kind = "grey, 1 channel" if found.channels == 1 else "3 channels"
    return f"{kind}; {found.grey:.1%} of the images are grey" if 0 < found.grey < 1 else kind


def _duplicates(found: "Description") -> list[tuple[str, str]]:
    if not found.copies:
        return [("duplicates", "none: no two images have the same bytes")]
    texts = [f"{count:,} within {split}" for split, count in found.repeated.items() if count]
    for splits, count in found.leaks.items():
        first, second = splits.split("-")
        texts += [f"{format_count(count, 'image')} of {second} also in {first}"] if count else []
    if differing := sum(group.classes_differ for group in found.copies):
        texts.append(f"{format_count(differing, 'image')} in several classes")
    rows = [("duplicates", "; ".join(texts))]
    in_most_splits = sorted(found.copies, key=lambda group: len({split for split, _ in group.places}), reverse=True)
    for group in in_most_splits[:MAX_LISTED]:
        rows.append(("", printable(" = ".join(f"{split}: {name}" for split, name in group.places[:4]))))
    return rows + _and_more(len(found.copies))


def _and_more(number: int) -> list[tuple[str, str]]:
    return [("", f"and {number - MAX_LISTED:,} more; --json lists all")] if number > MAX_LISTED else []
