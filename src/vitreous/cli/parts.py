"""What several commands share."""

import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import tyro

if TYPE_CHECKING:
    import torch
    from rich.table import Table

    from vitreous.evaluation.subject import Bar, Loading, Tick
    from vitreous.fast.running import Precision
    from vitreous.training.telling import Teller

Number = Annotated[int | None, tyro.conf.arg(metavar="N")]
Size = Annotated[int | tuple[int, int] | None, tyro.conf.arg(metavar="PX [PX]")]  # one number is a square
Preset = Annotated[Literal["google", "augreg", "deit", "torchvision", "dino"] | None, tyro.conf.arg(metavar="NAME")]

MOST_NAMED = 10  # unreadable images

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
        from vitreous.training.hardware import pick_device, pick_precision

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

    def loading(self, teller: "Teller") -> "Loading":
        from vitreous.evaluation.subject import Loading

        device, precision = self.settled(teller.note)
        return Loading(device, self.batch_size, self.workers, precision)


def paced(teller: "Teller") -> "Bar":
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
        table.add_column(Text(name), justify="left" if place < left else "right", overflow="fold")
    for row in zip(*(cells for _, cells in columns), strict=True):
        table.add_row(*(Text(cell.encode("utf-8", "replace").decode()) for cell in row))
    print()
    show_table(table, numbers=True)


def tell_unreadable(teller: "Teller", reasons: "Sequence[str]") -> None:
    """Images that were left out are named, and the command ends with 1."""
    from vitreous.cli.predict import printable

    for reason in reasons[:MOST_NAMED]:
        teller.note(printable(reason))
    if reasons:
        rest = f" ({len(reasons) - MOST_NAMED:,} more than are named here)" if len(reasons) > MOST_NAMED else ""
        teller.note(f"{len(reasons):,} images cannot be read{rest}; they are left out")
        sys.stdout.flush()
        raise SystemExit(1)


def check_writing(folder: Path | None, *files: Path | None, draws: bool = True) -> None:
    """Before hours of work: whether the answer can be written at the end, with pictures in the folder if it `draws`."""
    from vitreous.drawing import check_drawing
    from vitreous.errors import VitreousError

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


def made(folder: Path) -> Path:
    """The same folder, which is there now."""
    from vitreous.errors import VitreousError

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise VitreousError(f"{folder}: this folder cannot be made ({error.strerror})") from error
    return folder


def write_json(path: Path, value: dict[str, object]) -> None:
    """A JSON file, whole or not at all."""
    from vitreous.weights.files import dump_json, replacing

    with replacing(path) as temporary:
        dump_json(temporary, value)


def show_table(table: "Table", numbers: bool = False) -> None:
    """A table on stdout. In a pipe sentences are folded, `numbers` are not, and lines do not end in spaces."""
    from rich.console import Console

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a name that this terminal cannot show must not end the program
    if sys.stdout.isatty():
        Console(highlight=False).print(table)
        return
    console = Console(highlight=False, width=10_000, file=io.StringIO(), color_system=None)
    wide = console.measure(table).maximum if numbers else 0
    console.width = max(120, wide)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    for line in console.file.getvalue().splitlines():
        print(line.rstrip())


def show_facts(rows: Iterable[tuple[str, str]]) -> None:
    """Names and what there is to say of each. What comes from a file is text, whatever it looks like."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(value.encode("utf-8", "replace").decode()))
    show_table(table)
