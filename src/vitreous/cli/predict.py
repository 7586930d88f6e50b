"""`vitreous predict`: classify images."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from vitreous.cli.options import DeviceOptions, OptionalInt, PreprocessingName, Switch
from vitreous.cli.output import transient_progress_bar
from vitreous.data.options import Reading
from vitreous.utils.console import STDERR, STDOUT, console, format_message, json_text, print_line, printable
from vitreous.weights.shipped import NAMES

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from vitreous.models.base import Model
    from vitreous.serving.prediction import ClassProbability, Prediction

(MINI,) = NAMES


@dataclass(frozen=True)
class PredictOptions(DeviceOptions):
    """Device, precision and batches."""

    batch_size: int = 32
    """Images per forward pass."""
    max_pixels: int = Reading.max_pixels
    """Maximum number of pixels of an image; larger images are skipped. Decoding takes about 12 bytes per pixel."""


def predict_command(
    images: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGES...", help_behavior_hint="")],
    /,
    *,
    model: Annotated[str, tyro.conf.arg(metavar="MODEL")] = MINI,
    top: Annotated[int, tyro.conf.arg(metavar="N")] = 5,
    json: Switch = False,
    batches: Annotated[PredictOptions, tyro.conf.arg(name="device")] = PredictOptions(),
    heads: OptionalInt = None,
    preprocessing: PreprocessingName = None,
) -> None:
    """Classify images: print the most probable classes of each.

    Args:
        images: Files, folders (searched recursively) or quoted patterns: "photos/**/*.jpg".
        model: Checkpoint of any supported format: a file, a folder, a run directory or hf://owner/name; or
            vitreous-mini, which comes with the package.
        top: Number of classes to print per image.
        json: Print one JSON object per line and image, and nothing else on stdout.
        heads: Number of attention heads, if the checkpoint does not contain it. Default: the usual number
            for its width.
        preprocessing: Preprocessing that the model was trained with, if the checkpoint does not contain it. Default:
            the usual one of its format.
    """
    from vitreous.data.image_files import find_images
    from vitreous.utils.limits import check_count

    paths = find_images(images)
    for name, value in (("top", top), ("batch_size", batches.batch_size), ("max_pixels", batches.max_pixels)):
        check_count(name, value)  # before a large checkpoint is read

    from vitreous.serving import prediction
    from vitreous.weights.load import load

    notes: list[str] = []
    device, precision = batches.resolve(notes.append)
    network = load(model, heads=heads, device=device, preprocessing=preprocessing)
    notes += _model_notes(network, model)
    predictions = prediction.predict(
        network,
        paths,
        top=top,
        batch_size=batches.batch_size,
        precision=precision,
        max_pixels=batches.max_pixels,
    )
    skipped = print_predictions(predictions, paths, notes, json, long=len(paths) > batches.batch_size)
    if skipped:
        raise SystemExit(1)


def print_predictions(
    predictions: "Iterable[Prediction]", paths: list[Path], notes: list[str], json: bool, long: bool
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
    printer = PredictionPrinter(out, [printable(path) for path in paths])
    with transient_progress_bar(err, len(paths), shown=STDERR.isatty() and long) as advance:
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
    if skipped and len(paths) > 1:
        err.print(format_message(f"{skipped:,} of {len(paths):,} images skipped"))
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
    return json_text({"image": str(found.image), "top": top})


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
            self.console.print(prediction_table(found.top))
        else:
            text = self._line(printable(found.image), found.top)
            self.console.print(text, soft_wrap=not self.cut, no_wrap=True, overflow="ellipsis" if self.cut else None)

    def _line(self, name: str, top: "tuple[ClassProbability, ...]") -> "Text":
        from rich.cells import cell_len
        from rich.text import Text

        if self.cut and cell_len(name) > self.width:  # keep the end of the path, which contains the file name
            while cell_len(name) >= self.width:
                name = name[1:]
            name = f"…{name}"
        text = Text(name + " " * (self.width - cell_len(name)))
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
