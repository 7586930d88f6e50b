"""`vitreous predict`: classify images."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import tyro

from vitreous.cli.options import DeviceOptions, OptionalFile, OptionalFolder, OptionalInt, PreprocessingName, Switch
from vitreous.cli.output import check_output_paths, transient_progress_bar
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

    from vitreous.cli.prediction_input import PredictionInput
    from vitreous.models.base import Model
    from vitreous.serving.prediction import ClassProbability, Prediction

(MINI,) = NAMES
CSV_COLUMNS = ("image", "predicted", "probability", "rejected", "threshold", "class_1", "probability_1", "error")


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


def predict_command(
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
    """
    from vitreous.cli.prediction_input import collect_inputs
    from vitreous.utils.limits import check_count

    check_prediction_output(output)
    inputs = collect_inputs(images, paths_from)
    for name, value in (("top", top), ("batch_size", batches.batch_size), ("max_pixels", batches.max_pixels)):
        check_count(name, value)  # before a large checkpoint is read

    from vitreous.serving import prediction
    from vitreous.weights.load import load

    notes: list[str] = []
    device, precision = batches.resolve(notes.append)
    network = load(model, heads=heads, device=device, preprocessing=preprocessing)
    notes += _model_notes(network, model)
    found = prediction.predict(
        network,
        [one.content for one in inputs],
        top=top,
        batch_size=batches.batch_size,
        precision=precision,
        max_pixels=batches.max_pixels,
    )
    named = (replace(one, image=source.name) for one, source in zip(found, inputs, strict=True))
    names = [one.name for one in inputs]
    with ExitStack() as stack:
        written = stack.enter_context(write_predictions(named, inputs, network, top, output))
        skipped = print_predictions(written, names, notes, output.json, long=len(inputs) > batches.batch_size)
    for text in _describe_output(output, len(inputs) - skipped):
        print_message(text)
    if skipped:
        raise SystemExit(1)


def check_prediction_output(output: PredictionOutput) -> None:
    """Raise an error if the files cannot be written, before anything is computed."""
    from vitreous.errors import VitreousError

    check_output_paths(None, lambda folder: (), output.csv, overwrite=output.overwrite)
    check_output_paths(output.sort_into, lambda folder: (), figures=False)
    if output.csv is not None and output.sort_into is not None:
        folder = output.sort_into.absolute()
        if folder in (output.csv.absolute(), *output.csv.absolute().parents):
            raise VitreousError(f"{output.csv}: --csv cannot be in the folder of --sort-into")


@contextmanager
def write_predictions(
    predictions: "Iterable[Prediction]",
    inputs: "list[PredictionInput]",
    model: "Model",
    top: int,
    output: PredictionOutput,
) -> "Iterator[Iterator[Prediction]]":
    """Yield the predictions. Each of them is also written to the CSV file and the folder, which are complete at the end
    of the context."""
    from vitreous.serving.sorting import sorted_images
    from vitreous.utils.csv_files import csv_file
    from vitreous.weights.model_info import labels_of

    classes = model.config.num_classes
    names = labels_of(model) or [f"class {index}" for index in range(classes)]
    with ExitStack() as stack:
        others = range(2, min(top, classes) + 1)
        columns = (*CSV_COLUMNS, *(name for rank in others for name in (f"class_{rank}", f"probability_{rank}")))
        write = None if output.csv is None else stack.enter_context(csv_file(output.csv, columns, output.overwrite))
        sorter = None if output.sort_into is None else stack.enter_context(sorted_images(output.sort_into, names))

        def written() -> "Iterator[Prediction]":
            for found, source in zip(predictions, inputs, strict=True):
                if write is not None:
                    write(prediction_row(found, names, len(others) + 1))
                if sorter is not None:
                    sorter.add(found, source.content)
                yield found

        yield written()


def prediction_row(found: "Prediction", names: Sequence[str], top: int) -> list[object]:
    """Return the row of CSV_COLUMNS of an image, followed by its other probable classes."""
    from vitreous.evaluation.image_results import SEPARATOR, join_names

    if found.error is not None:
        return [found.image, *[None] * (len(CSV_COLUMNS) - 2), found.error, *[None] * (2 * (top - 1))]
    best = found.top[0]
    predicted = join_names([names[one.index] for one in found.predicted])
    values = SEPARATOR.join(f"{one.probability:.6g}" for one in found.predicted)
    probability = None if not values else float(values) if len(found.predicted) == 1 else values
    row = [found.image, predicted or None, probability, found.rejected, found.threshold]
    others = [cell for one in found.top[1:] for cell in (names[one.index], float(f"{one.probability:.6g}"))]
    return [*row, names[best.index], float(f"{best.probability:.6g}"), None, *others]


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
    skipped = 0
    printer = PredictionPrinter(out, [printable(name) for name in names])
    with transient_progress_bar(err, len(names), shown=STDERR.isatty() and long) as advance:
        for found in predictions:
            if json:
                print_line(prediction_json(found))
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


def _model_notes(network: "Model", name: str) -> "Iterator[str]":
    """Yield what was guessed about the model, and where its class names come from."""
    from vitreous.weights.model_info import labels_of

    yield from network.report.notes if network.report else ()
    if name == MINI:
        labels = network.labels or ()
        yield f"the model is {MINI}, which has {len(labels)} classes: {', '.join(labels)}"
    if network.labels is None and labels_of(network):
        yield "the model has no class names; its 1,000 classes are assumed to be ImageNet-1k's"


def prediction_json(found: "Prediction") -> str:
    """Return a prediction as one line of JSON in ASCII, which also keeps file names that are not valid UTF-8."""
    if found.error is not None:
        return json_text({"image": str(found.image), "error": found.error})
    top = [{"class": a.index, "label": a.label, "probability": a.probability} for a in found.top]
    predicted = [a.index if a.label is None else a.label for a in found.predicted]
    decision = {"predicted": predicted, "rejected": found.rejected, "threshold": found.threshold}
    return json_text({"image": str(found.image), "top": top, **decision})


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
