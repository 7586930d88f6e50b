"""`vitreous predict`: what a model sees in images."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from vitreous.cli.parts import Json, Machine, Number, Preset
from vitreous.data.options import Reading
from vitreous.utils.console import STDERR, STDOUT, console, json_text, message, printable, say
from vitreous.weights.shipped import NAMES

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console
    from rich.text import Text

    from vitreous.models.base import Model
    from vitreous.serving.prediction import Answer, Prediction

(MINI,) = NAMES


@dataclass(frozen=True)
class Showing(Machine):
    """What the model runs on, and how it is shown images."""

    batch_size: Annotated[int, tyro.conf.arg(metavar="N")] = 32
    """how many images the model is shown at once."""
    max_pixels: Annotated[int, tyro.conf.arg(metavar="N")] = Reading.max_pixels
    """maximum number of pixels of an image; a larger one is skipped. Decoding takes about 12 bytes a pixel."""


def predict(
    images: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGES...", help_behavior_hint="")],
    /,
    *,
    model: Annotated[str, tyro.conf.arg(metavar="FILE")] = MINI,
    top: Annotated[int, tyro.conf.arg(metavar="N")] = 5,
    json: Json = False,
    machine: Showing = Showing(),
    heads: Number = None,
    preprocessing: Preset = None,
) -> None:
    """Say what is in images: the most probable classes of each.

    Args:
        images: files, folders (with everything below them) or patterns in quotes: "photos/**/*.jpg".
        model: a checkpoint of Vitreous or of another program: a file, a folder or hf://owner/name; or the one that
            comes with the package.
        top: how many classes to name for each image.
        json: one JSON object for each image and line, and nothing else on stdout.
        machine: what the model runs on, and how it is shown images.
        heads: attention heads, for a checkpoint that does not tell.
        preprocessing: what the model was trained to see, for a checkpoint that does not tell: google, augreg, deit,
            torchvision or dino.
    """
    from vitreous.data.image_files import find_images
    from vitreous.utils.limits import check_count

    paths = find_images(images)
    for name, value in (("top", top), ("batch_size", machine.batch_size), ("max_pixels", machine.max_pixels)):
        check_count(name, value)  # said before a large file is read

    from vitreous.serving import prediction
    from vitreous.weights.load import load

    told: list[str] = []
    device, precision = machine.settled(told.append)
    network = load(model, heads=heads, device=device, preprocessing=preprocessing)
    predictions = prediction.predict(
        network,
        paths,
        top=top,
        batch_size=machine.batch_size,
        precision=precision,
        max_pixels=machine.max_pixels,
    )

    out = console(STDOUT)
    # On one terminal, one console writes everything, so that the bar stays below what is printed.
    together = STDOUT.isatty() and STDERR.isatty() and not json
    notes = out if together else console(STDERR)
    for note in (*told, *about(network, model)):
        notes.print(printable(note), style="dim", soft_wrap=True)

    skipped = 0
    lines = Lines(out, [printable(path) for path in paths])
    with progress(notes, len(paths), shown=STDERR.isatty() and len(paths) > machine.batch_size) as advance:
        for found in predictions:
            if json:
                say(as_json(found))
            elif found.top:
                lines.add(found)
            if found.error is not None:
                skipped += 1
                notes.print(message(f"{printable(found.image)}: {found.error}; skipped"), soft_wrap=True)
            STDOUT.check()
            advance()
    if skipped:
        if len(paths) > 1:
            notes.print(message(f"{skipped:,} of {len(paths):,} images skipped"))
        raise SystemExit(1)


def about(network: "Model", name: str) -> "Iterator[str]":
    """What there is to say of a model before it answers."""
    from vitreous.weights.model_info import labels_of

    yield from network.report.notes if network.report else ()
    if name == MINI:
        known = network.labels or ()
        yield f"{MINI} answers, which knows {len(known)} classes: {', '.join(known)}"
    if network.labels is None and labels_of(network):
        yield "the model names no classes; there are 1,000, so the names are ImageNet-1k's"


def as_json(found: "Prediction") -> str:
    """ASCII only, so that a name in no known encoding comes through, and any pipe can take it."""
    if found.error is not None:
        return json_text({"image": str(found.image), "error": found.error})
    top = [{"class": a.index, "label": a.label, "probability": a.probability} for a in found.top]
    return json_text({"image": str(found.image), "top": top})


class Lines:
    """Predictions for a person: one image is a small table, of several each has a line."""

    def __init__(self, console: "Console", names: list[str]):
        from rich.cells import cell_len

        self.console, self.alone, self.cut = console, len(names) == 1, STDOUT.isatty()
        most = max(24, console.width // 3) if self.cut else 60  # in a pipe there is no width to keep to
        self.width = min(most, max(map(cell_len, names)))

    def add(self, found: "Prediction") -> None:
        if self.alone:
            self.console.print(printable(found.image), style="bold", soft_wrap=True)
            self.console.print(table(found.top))
        else:
            text = self.line(printable(found.image), found.top)
            self.console.print(text, soft_wrap=not self.cut, no_wrap=True, overflow="ellipsis" if self.cut else None)

    def line(self, name: str, top: "tuple[Answer, ...]") -> "Text":
        from rich.cells import cell_len
        from rich.text import Text

        if self.cut and cell_len(name) > self.width:  # the end of a path tells more than its beginning
            while cell_len(name) >= self.width:
                name = name[1:]
            name = f"…{name}"
        text = Text(name + " " * (self.width - cell_len(name)))
        text.append(f"  {percent(top[0]):>6}  ")
        text.append(title(top[0]), style="bold")
        if top[1:]:
            text.append(" " * (18 - cell_len(title(top[0]))))
            text.append("  " + ", ".join(f"{title(a)} {percent(a)}" for a in top[1:]), style="dim")
        return text


def table(top: "tuple[Answer, ...]") -> Any:
    from rich.bar import Bar
    from rich.table import Table

    rows = Table(box=None, show_header=False, pad_edge=False)
    rows.add_column(justify="right", style="dim")
    rows.add_column(justify="right")
    rows.add_column(width=24)
    rows.add_column(overflow="fold")
    for rank, answer in enumerate(top, 1):
        rows.add_row(str(rank), percent(answer), Bar(1, 0, answer.probability, color="green"), title(answer))
    return rows


def title(answer: "Answer") -> str:
    return f"class {answer.index}" if answer.label is None else printable(answer.label)


def percent(answer: "Answer") -> str:
    return f"{answer.probability:.1%}" if answer.probability >= 0.0005 else "<0.1%"


@contextmanager
def progress(console: "Console", total: int, shown: bool) -> "Iterator[Callable[[], None]]":
    """A bar with rate and time left, that disappears at the end; call what it yields once for each image."""
    from datetime import timedelta

    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task
    from rich.text import Text

    class Pace(ProgressColumn):  # of all so far: images come in bursts of a batch, over which rich's own would jump
        def render(self, task: Task) -> Text:
            if not task.completed or not task.elapsed:
                return Text("")
            rate = task.completed / task.elapsed
            return Text(f"{rate:,.0f} images/s  {timedelta(seconds=round((task.remaining or 0) / rate))} left")

    bar = Progress(
        BarColumn(),
        MofNCompleteColumn(),
        Pace(),
        console=console,
        transient=True,
        disable=not shown,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    with bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)
