"""The files of `predict`: a CSV table, and copies of the images by predicted class."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitreous.errors import VitreousError
from vitreous.evaluation.image_results import SEPARATOR, join_names
from vitreous.serving.prediction import Prediction
from vitreous.serving.prediction_input import PredictionInput
from vitreous.serving.sorting import sorted_images
from vitreous.utils.csv_files import csv_file
from vitreous.utils.output_paths import check_output_paths

if TYPE_CHECKING:
    from vitreous.serving.predict import PredictionRun

CSV_COLUMNS = ("image", "predicted", "probability", "rejected", "threshold", "class_1", "probability_1", "error")


def check_prediction_files(csv: Path | None, sort_into: Path | None, overwrite: bool) -> None:
    """Raise an error if the files cannot be written, before anything is computed."""
    check_output_paths(None, lambda folder: (), csv, overwrite=overwrite)
    check_output_paths(sort_into, lambda folder: (), figures=False)
    if csv is not None and sort_into is not None:
        folder = sort_into.absolute()
        if folder in (csv.absolute(), *csv.absolute().parents):
            raise VitreousError(f"{csv}: --csv cannot be in the folder of --sort-into")


@contextmanager
def write_predictions(
    run: PredictionRun,
    inputs: Sequence[PredictionInput],
    csv: Path | None,
    sort_into: Path | None,
    overwrite: bool,
) -> Iterator[Iterator[Prediction]]:
    """Yield the predictions. Each of them is also written to the CSV file and the folder, which are complete at the end
    of the context."""
    if sort_into is not None:
        for one in inputs:
            if not isinstance(one.content, Path | bytes):
                raise VitreousError(f"sort_into copies files, and {one.name} is not a file")
    columns, row = csv_layout(run.classes, run.top)
    with ExitStack() as stack:
        write = None if csv is None else stack.enter_context(csv_file(csv, columns, overwrite))
        sorter = None if sort_into is None else stack.enter_context(sorted_images(sort_into, run.classes))

        def written() -> Iterator[Prediction]:
            for found, source in zip(run.predictions, inputs, strict=True):
                if write is not None:
                    write(row(found))
                if sorter is not None:
                    assert isinstance(source.content, Path | bytes)
                    sorter.add(found, source.content)
                yield found

        yield written()


def csv_layout(classes: Sequence[str], top: int) -> tuple[Sequence[str], Callable[[Prediction], list[object]]]:
    """Return the columns of the CSV file, and a function that returns the row of an image."""
    others = range(2, min(top, len(classes)) + 1)
    columns = (*CSV_COLUMNS, *(name for rank in others for name in (f"class_{rank}", f"probability_{rank}")))
    return columns, lambda found: _prediction_row(found, classes, len(others) + 1)


def _prediction_row(found: Prediction, names: Sequence[str], top: int) -> list[object]:
    """Return the row of CSV_COLUMNS of an image, followed by its other probable classes."""
    if found.error is not None:
        return [found.image, *[None] * (len(CSV_COLUMNS) - 2), found.error, *[None] * (2 * (top - 1))]
    best = found.top[0]
    predicted = join_names([names[one.index] for one in found.predicted])
    values = SEPARATOR.join(f"{one.probability:.6g}" for one in found.predicted)
    probability = None if not values else float(values) if len(found.predicted) == 1 else values
    row = [found.image, predicted or None, probability, found.rejected, found.threshold]
    others = [cell for one in found.top[1:] for cell in (names[one.index], float(f"{one.probability:.6g}"))]
    return [*row, names[best.index], float(f"{best.probability:.6g}"), None, *others]


def prediction_json(found: Prediction) -> dict[str, Any]:
    """Return a prediction as a JSON object."""
    if found.error is not None:
        return {"image": str(found.image), "error": found.error}
    top = [{"class": a.index, "label": a.label, "probability": a.probability} for a in found.top]
    predicted = [a.index if a.label is None else a.label for a in found.predicted]
    decision = {"predicted": predicted, "rejected": found.rejected, "threshold": found.threshold}
    return {"image": str(found.image), "top": top, **decision}
