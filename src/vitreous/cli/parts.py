"""What several commands share."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import tyro

from vitreous.utils.console import STDERR, STDOUT, console, json_text, printable, say

if TYPE_CHECKING:
    import torch
    from rich.table import Table

    from vitreous.data.options import Reading
    from vitreous.evaluation.subject import Bar, InferenceOptions, Tick
    from vitreous.fast.accelerate import Precision
    from vitreous.utils.atomic import Names
    from vitreous.utils.progress import ProgressReporter

Number = Annotated[int | None, tyro.conf.arg(metavar="N")]
Size = Annotated[int | tuple[int, int] | None, tyro.conf.arg(metavar="PX [PX]")]  # one number is a square
Preset = Annotated[Literal["google", "augreg", "deit", "torchvision", "dino"] | None, tyro.conf.arg(metavar="NAME")]

MOST_NAMED = 10  # unreadable images

Json = Annotated[bool, tyro.conf.FlagCreatePairsOff]
Overwrite = Annotated[bool, tyro.conf.FlagCreatePairsOff]
Folder = Annotated[Path | None, tyro.conf.arg(metavar="DIR")]
File = Annotated[Path | None, tyro.conf.arg(metavar="FILE")]


@dataclass(frozen=True)
class Weights:
    """What is measured."""

    model: Annotated[str, tyro.conf.arg(metavar="FILE")]
    """a checkpoint of Vitreous or of another program, a run directory, vitreous-mini, or random:NAME for a model as it
    is before training."""
    heads: Number = None
    """attention heads, for a checkpoint that does not tell."""
    preprocessing: Preset = None
    """what the model was trained to see, where a checkpoint does not tell: google, augreg, deit, torchvision, dino."""


@dataclass(frozen=True)
class DataOptions:
    """Where images and labels are, and how they are split: the same as in `vitreous train`."""

    data_dir: Annotated[str | None, tyro.conf.arg(metavar="FOLDER")] = None
    """where the files are of a data set that is called by name."""
    image_column: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """the column of images, where there is a doubt."""
    label_column: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """the column of labels, where there is a doubt."""
    val_fraction: Annotated[float | None, tyro.conf.arg(metavar="X")] = None
    """fraction of the training images for validation, if the data has no validation split; 5% to 20% by default."""
    test_fraction: Annotated[float | None, tyro.conf.arg(metavar="X")] = None
    """fraction of the training images for testing, if the data has no test split; by default as for validation, from
    100 images on."""
    split_seed: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """random seed of both splits; 0 by default."""
    allow_outside_files: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """read images outside of the data set's folder, if a manifest, Parquet or Hugging Face data set names them."""
    max_pixels: Number = None
    """maximum number of pixels of an image; a larger one is unreadable. 70 million by default."""

    def reading(self, model: str | None = None) -> "Reading":
        """`model`: a run directory, whose own split is used where none is asked for."""
        from vitreous.data.options import Reading
        from vitreous.evaluation.training_images import run_split_options

        asked = {name: value for name, value in asdict(self).items() if value is not None}
        known = {} if model is None else run_split_options(model)
        return Reading(**(known | asked))


@dataclass(frozen=True)
class Learning:
    """What features are worth."""

    measures: Annotated[
        tuple[Literal["fewshot", "knn", "probe"], ...],
        tyro.conf.arg(name="with", metavar="fewshot knn probe", help_behavior_hint=""),
    ] = ()
    """how the features under the head are measured, learnt from the train split."""
    shots: Annotated[tuple[int, ...], tyro.conf.arg(metavar="N ...")] = (1, 5, 10, 25)
    """images of each class that few-shot learns from."""
    cache: Folder = None
    """where features are kept; if not given, in the user's cache folder."""


@dataclass(frozen=True)
class Machine:
    """What the model runs on."""

    device: Annotated[str, tyro.conf.arg(metavar="NAME")] = "auto"
    """"cpu", "cuda", "cuda:1"...; auto: a GPU if there is one."""
    precision: Literal["fp32", "bf16", "fp8"] = "fp32"
    """of the model's arithmetic. fp8 is for its answers alone, on GPUs that have it: logits 4 to 7% off, in bf16 1%."""

    def settled(self, tell: Callable[[str], object]) -> "tuple[torch.device, Precision]":
        """The device, and the precision that it has; what there is to say about that is told."""
        from vitreous.utils.device import pick_device, pick_precision

        device = pick_device(self.device)
        precision, note = pick_precision(self.precision, device)
        if note:
            tell(note)
        return device, cast("Precision", precision)


@dataclass(frozen=True)
class Running(Machine):
    """How images come to the model."""

    batch_size: Annotated[int, tyro.conf.arg(metavar="N")] = 64
    """how many images the model is shown at once."""
    workers: Number = None
    """processes that decode; chosen by cores and data if not given."""

    def loading(self, teller: "ProgressReporter") -> "Loading":
        from vitreous.evaluation.subject import InferenceOptions

        device, precision = self.settled(teller.note)
        return InferenceOptions(device, self.batch_size, self.workers, precision)


def paced(teller: "ProgressReporter") -> "Bar":
    """Bars that count images, with how many there are in a second and the time left."""
    import time

    @contextmanager
    def bar(title: str, images: int) -> "Iterator[Tick]":
        started, seen = time.perf_counter(), 0
        with teller.bar(title, images) as tell:

            def tick(more: int) -> None:
                nonlocal seen
                seen += more
                tell(more, f"{seen / max(1e-9, time.perf_counter() - started):,.0f} images/s")

            yield tick

    return bar


@contextmanager
def stopping(kept: bool) -> Iterator[None]:
    """Ctrl-C is one sentence, which says how to go on where that is possible."""
    try:
        yield
    except KeyboardInterrupt:
        text = "stopped; finished features are kept, and the same command goes on from there"
        raise KeyboardInterrupt(text if kept else "stopped") from None


def show_columns(columns: "list[tuple[str, list[str]]]", left: int = 1) -> None:
    """A table of text, its first columns to the left and numbers to the right, below an empty line."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, (name, _) in enumerate(columns):
        table.add_column(Text(printable(name)), justify="left" if place < left else "right", overflow="fold")
    for row in zip(*(cells for _, cells in columns), strict=True):
        table.add_row(*(Text(printable(cell)) for cell in row))
    say()
    show_table(table, numbers=True)


def warn(teller: "ProgressReporter", warnings: "Sequence[str]") -> None:
    """What makes numbers worthless is not to be overlooked."""
    for text in warnings:
        teller.notes.print(f"WARNING: {printable(text)}", style="bold red", soft_wrap=True)


def tell_unreadable(teller: "ProgressReporter", reasons: "Sequence[str]") -> None:
    """Images that were left out are named, and the command ends with 1."""
    for reason in reasons[:MOST_NAMED]:
        teller.note(printable(reason))
    if reasons:
        rest = f" ({len(reasons) - MOST_NAMED:,} more than are named here)" if len(reasons) > MOST_NAMED else ""
        teller.note(f"{len(reasons):,} images cannot be read{rest}; they are left out")
        raise SystemExit(1)


def check_writing(
    folder: Path | None, ours: "Names", *files: Path | None, overwrite: bool = False, draws: bool = True
) -> None:
    """Before hours of work: whether the answer can be written at the end, with pictures in the folder if it `draws`.

    `ours`: the files that an earlier answer may have left in the folder, which `overwrite` allows to be replaced.
    """
    from vitreous.errors import VitreousError
    from vitreous.utils.atomic import check_output
    from vitreous.utils.figures import check_drawing

    places = [(file, file.absolute().parent) for file in files if file is not None]
    if folder is not None:
        places.append((folder, next(one for one in (folder.absolute(), *folder.absolute().parents) if one.exists())))
        if draws:
            check_drawing()
    for path, place in places:
        if not place.is_dir():
            raise VitreousError(f"{path}: cannot be written, since {place} is no folder")
        if not os.access(place, os.W_OK | os.X_OK):
            raise VitreousError(f"{path}: cannot be written, since nothing can be written to {place}")
        if path is not folder and path.is_dir():
            raise VitreousError(f"{path}: this is a folder; name a file")
        check_output(path, overwrite, ours if path is folder else None)


def write_json(path: Path, value: dict[str, object]) -> None:
    """A JSON file, whole or not at all."""
    from vitreous.utils.atomic import atomic_file
    from vitreous.utils.json_files import dump_json

    with atomic_file(path) as temporary:
        dump_json(temporary, value)


def print_json(value: object) -> None:
    """What `--json` means in every command: one JSON document on stdout and nothing else, in ASCII for any pipe."""
    say(json_text(value))


def teller_for(json: bool) -> "ProgressReporter":
    """Notes and bars for a command; with --json they are kept off stdout, on a terminal too."""
    from vitreous.utils.progress import ProgressReporter

    made = ProgressReporter()
    if json:
        made.notes = console(STDERR)
    return made


def show_table(table: "Table", numbers: bool = False) -> None:
    """A table on stdout. In a pipe sentences are folded, `numbers` are not, and lines do not end in spaces."""
    if STDOUT.isatty():
        console(STDOUT).print(table)
        STDOUT.check()
        return
    shown = console(STDOUT, width=10_000, color_system=None)
    wide = shown.measure(table).maximum if numbers else 0
    shown.width = max(120, wide)
    with shown.capture() as captured:
        shown.print(table)
    say("\n".join(line.rstrip() for line in captured.get().splitlines()))


def show_facts(rows: Iterable[tuple[str, str]]) -> None:
    """Names and what there is to say of each. What comes from a file is text, whatever it looks like."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(printable(value, keep="\n")))
    show_table(table)
