"""`vitreous predict`: classify images."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from vitreous.cli.options import DeviceOptions, OptionalFile, OptionalFolder, OptionalInt, PreprocessingName, Switch
from vitreous.cli.output import transient_progress_bar
from vitreous.data.options import Reading
from vitreous.utils.console import (
    STDERR,
    STDOUT,
    console,
    format_message,
    json_text,
    print_line,
    print_message,
    printable,
)
from vitreous.weights.shipped import NAMES

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from vitreous.serving.prediction import ClassProbability, Prediction

(MINI,) = NAMES


@dataclass(frozen=True)
class PredictOptions(DeviceOptions):
    """Device, precision and batches."""

    batch_size: int = 32
    """Images per forward pass."""
    max_pixels: int = Reading.max_pixels
    """Maximum number of pixels of an image; larger images are skipped. Decoding takes about 12 bytes per pixel."""


@dataclass(frozen=True)
class PredictionOutput:
    """Output other than text on the terminal."""

    json: Switch = False
    """Print one JSON object per line and image, and nothing else on stdout."""
    csv: OptionalFile = None
    """Write the predictions to this CSV file, one row per image."""
    sort_into: OptionalFolder = None
    """Copy each image to DIR/CLASS, and rejected images to DIR/rejected. DIR must be new or empty. Images are never
    moved or overwritten; a second image of the same name is called "name (2)". Unreadable images are not copied."""
    overwrite: Switch = False
    """Replace an existing CSV file, once the new one is complete."""


def predict_command(  # noqa: PLR0913 (each is a flag or a group of flags)
    images: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGES...", help_behavior_hint="")],
    /,
    *,
    paths_from: Annotated[str | None, tyro.conf.arg(metavar="FILE|-", help_behavior_hint="")] = None,
    model: Annotated[str, tyro.conf.arg(metavar="MODEL")] = MINI,
    top: Annotated[int, tyro.conf.arg(metavar="N")] = 5,
    output: PredictionOutput = PredictionOutput(),
    batches: Annotated[PredictOptions, tyro.conf.arg(name="device")] = PredictOptions(),
    heads: OptionalInt = None,
    preprocessing: PreprocessingName = None,
    trust_code: Switch = False,
) -> None:
    """Classify images: print the most probable classes of each.

    Args:
        images: Files, folders (searched recursively) or quoted patterns: "photos/**/*.jpg". "-" reads one image from
            standard input.
        paths_from: Also classify the images listed in this file, one path per line, or separated by null characters
            (`find -print0`). "-" reads the list from standard input.
        model: Checkpoint of any supported format: a file, a folder, a run directory or hf://owner/name; a name of
            `vitreous models --weights`, which is downloaded; or vitreous-mini, which comes with the package.
        top: Number of classes to print per image.
        heads: Number of attention heads, if the checkpoint does not contain it. Default: the usual number
            for its width.
        preprocessing: Preprocessing that the model was trained with, if the checkpoint does not contain it. Default:
            the usual one of its format.
        trust_code: If MODEL is a run of a model of your own, import and run its code, from the file that the run names.
    """
    from vitreous.serving.predict import open_predictions
    from vitreous.serving.prediction_files import check_prediction_files, write_predictions
    from vitreous.serving.prediction_input import collect_inputs

    check_prediction_files(output.csv, output.sort_into, output.overwrite)
    inputs = collect_inputs(images, paths_from)
    notes: list[str] = []
    opened = open_predictions(
        model,
        inputs,
        top=top,
        device=batches.device,
        precision=batches.precision,
        batch_size=batches.batch_size,
        max_pixels=batches.max_pixels,
        heads=heads,
        preprocessing=preprocessing,
        trust_code=trust_code,
        note=notes.append,
    )
    names = [one.name for one in inputs]
    with opened as run, write_predictions(run, inputs, output.csv, output.sort_into, output.overwrite) as written:
        skipped = print_predictions(written, names, notes, output.json, long=len(inputs) > batches.batch_size)
    for text in _describe_output(output, len(inputs) - skipped):
        print_message(text)
    if skipped:
        raise SystemExit(1)


def _describe_output(output: PredictionOutput, readable: int) -> "Iterator[str]":
    if output.csv is not None:
        yield f"written: {output.csv}"
    if output.sort_into is not None:
        yield f"images copied to {output.sort_into}" if readable else "no image was copied"


def print_predictions(
    predictions: "Iterable[Prediction]", names: list[str], notes: list[str], json: bool, long: bool
) -> int:
    """Print predictions as they are computed, with a progress bar if there are many. Return the number of skipped
    images."""
    out = console(STDOUT)
    # If both streams are one terminal, one console writes everything, so that the bar stays below the text.
    one_terminal = STDOUT.isatty() and STDERR.isatty() and not json
    err = out if one_terminal else console(STDERR)
    for note in notes:
        err.print(printable(note), style="dim", soft_wrap=True)
    from vitreous.serving.prediction_files import prediction_json

    skipped = 0
    printer = PredictionPrinter(out, [printable(name) for name in names])
    with transient_progress_bar(err, len(names), shown=STDERR.isatty() and long) as advance:
        for found in predictions:
            if json:
                # ASCII keeps file names that are not valid UTF-8.
                print_line(json_text(prediction_json(found)))
            elif found.top:
                printer.print(found)
            if found.error is not None:
                skipped += 1
                err.print(format_message(f"{printable(found.image)}: {found.error}; skipped"), soft_wrap=True)
            STDOUT.check()
            advance()
    if skipped and len(names) > 1:
        err.print(format_message(f"{skipped:,} of {len(names):,} images skipped"))
    return skipped


class PredictionPrinter:
    """Prints the prediction of a single image as a table, and those of several images as one line each."""

    def __init__(self, console: "Console", names: list[str]):
        from rich.cells import cell_len

        self.console, self.single, self.cut = console, len(names) == 1, STDOUT.isatty()
        most = max(24, console.width // 3) if self.cut else 60  # a pipe has no width to fit into
        self.width = min(most, max(map(cell_len, names)))

    def print(self, found: "Prediction") -> None:
        if self.single:
            self.console.print(printable(found.image), style="bold", soft_wrap=True)
            if found.rejected:
                self.console.print(printable(found.rejection), style="yellow", soft_wrap=True)
            self.console.print(prediction_table(found.top))
        else:
            text = self._line(printable(found.image), found)
            self.console.print(text, soft_wrap=not self.cut, no_wrap=True, overflow="ellipsis" if self.cut else None)

    def _line(self, name: str, found: "Prediction") -> "Text":
        from rich.cells import cell_len
        from rich.text import Text

        if self.cut and cell_len(name) > self.width:  # keep the end of the path, which contains the file name
            while cell_len(name) >= self.width:
                name = name[1:]
            name = f"…{name}"
        text, top = Text(name + " " * (self.width - cell_len(name))), found.top
        if found.rejected:
            text.append(f"          {printable(found.rejection)}", style="yellow")
            return text
        text.append(f"  {_probability(top[0]):>6}  ")
        text.append(_class_name(top[0]), style="bold")
        if top[1:]:
            text.append(" " * (18 - cell_len(_class_name(top[0]))))
            text.append("  " + ", ".join(f"{_class_name(a)} {_probability(a)}" for a in top[1:]), style="dim")
        return text


def prediction_table(top: "tuple[ClassProbability, ...]") -> "Table":
    from rich.bar import Bar
    from rich.table import Table

    rows = Table(box=None, show_header=False, pad_edge=False)
    rows.add_column(justify="right", style="dim")
    rows.add_column(justify="right")
    rows.add_column(width=24)
    rows.add_column(overflow="fold")
    for rank, answer in enumerate(top, 1):
        bar = Bar(1, 0, answer.probability, color="green")
        rows.add_row(str(rank), _probability(answer), bar, _class_name(answer))
    return rows


def _class_name(answer: "ClassProbability") -> str:
    return f"class {answer.index}" if answer.label is None else printable(answer.label)


def _probability(answer: "ClassProbability") -> str:
    return f"{answer.probability:.1%}" if answer.probability >= 0.0005 else "<0.1%"
