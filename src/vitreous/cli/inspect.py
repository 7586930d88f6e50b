"""`vitreous inspect`: visualise the internals of a model."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import tyro

from vitreous.cli.options import DeviceName, ImageSize, OptionalFolder, OptionalInt, PreprocessingName, Switch
from vitreous.cli.output import check_output_paths
from vitreous.cli.predict import MINI
from vitreous.utils.console import print_line, printable

if TYPE_CHECKING:
    from vitreous.evaluation.evaluated_model import EvaluatedModel
    from vitreous.reports.inspect_model import InputImage, InspectionOutput
    from vitreous.utils.progress import ProgressReporter


def inspect_command(
    arguments: Annotated[
        tuple[str, ...],
        tyro.conf.Positional,
        tyro.conf.arg(name="model", metavar="[MODEL] [IMAGES...]", help_behavior_hint=""),
    ] = (),
    /,
    *,
    out: OptionalFolder = None,
    overwrite: Switch = False,
    size: ImageSize = None,
    device: DeviceName = "auto",
    heads: OptionalInt = None,
    preprocessing: PreprocessingName = None,
) -> None:
    """Visualise a model: attention, rollout, relevance, attention distance, filters, positions, prediction by layer.

    Writes figures (PNG and SVG), numbers.json and index.html, an interactive page that works without a network.

    Args:
        arguments: A checkpoint as in `vitreous predict`, a run directory or random:NAME, followed by images: files,
            folders or quoted patterns. Default model: vitreous-mini. Default images: evaluation images of the run, or
            two photographs that come with scikit-learn.
        out: Output folder. Default: inspection; for a run directory, RUN/inspection, which is replaced if it exists.
        overwrite: Replace an earlier inspection in --out, once the new one is complete.
        size: Image size in pixels: one number, or height and width. Default: the size of the model.
        device: cpu, cuda, cuda:1 ..., mps (Macs); auto: a GPU if there is one.
        heads: Number of attention heads, if the checkpoint does not contain it. Default: the usual number
            for its width.
        preprocessing: Preprocessing that the model was trained with, if the checkpoint does not contain it. Default:
            the usual one of its format.
    """
    given = _parse_arguments(arguments)
    folder = out or (given.run / "inspection" if given.run else Path("inspection"))
    overwrite = overwrite or (out is None and given.run is not None)  # it can be made again from the run
    images = _input_images(given)

    from vitreous.evaluation.evaluated_model import open_model
    from vitreous.reports.inspect_model import inspection_files
    from vitreous.utils.device import pick_device
    from vitreous.utils.progress import ProgressReporter

    check_output_paths(folder, inspection_files, overwrite=overwrite)
    reporter = ProgressReporter()
    if given.files and given.files == arguments:
        reporter.note(f"no model is given: using {MINI}, which comes with the package")
    evaluated = open_model(given.model, pick_device(device), heads, preprocessing)
    written = _inspect(evaluated, images, folder, size, overwrite, reporter)
    for note in (*written.notes, *(f"{reason}; skipped" for reason in written.skipped)):
        reporter.note(printable(note))
    print_line(f"page     {written.page}")
    print_line(f"figures  {len(written.files) - 1} files and numbers.json, in the same folder")
    if written.skipped:
        raise SystemExit(1)


def _inspect(
    evaluated: "EvaluatedModel",
    images: "list[InputImage]",
    folder: Path,
    size: int | tuple[int, int] | None,
    overwrite: bool,
    reporter: "ProgressReporter",
) -> "InspectionOutput":
    from vitreous.evaluation.evaluated_model import RANDOM_PREFIX
    from vitreous.reports.inspect_model import MAX_FIGURES, MAX_IMAGES, ModelDescription, inspect_model
    from vitreous.utils.environment import command

    random = evaluated.name.startswith(RANDOM_PREFIX)
    about = ModelDescription(evaluated.name, tuple(evaluated.notes), random, command())
    steps = (1 + MAX_FIGURES) * min(len(images), MAX_IMAGES) + 4  # 4: figures of the model itself
    with reporter.bar("inspecting", steps) as advance:
        return inspect_model(
            evaluated.model, images, folder, about, size, lambda text: advance(1, printable(text)), overwrite
        )


class _Arguments(NamedTuple):
    model: str
    files: tuple[str, ...]
    run: Path | None  # the model, if it is a run directory


def _parse_arguments(arguments: tuple[str, ...]) -> _Arguments:
    """Split the arguments into model and images. If the first is an image, the model is the default one."""
    from vitreous.data.image_files import is_image

    no_model = not arguments or is_image(arguments[0])
    model, files = (MINI, arguments) if no_model else (arguments[0], arguments[1:])
    is_run = all((Path(model) / name).is_file() for name in ("config.json", "metrics.jsonl"))
    return _Arguments(model, files, Path(model) if is_run else None)


def _input_images(given: _Arguments) -> "list[InputImage]":
    from vitreous.data.builtin import photographs
    from vitreous.data.image_files import find_images
    from vitreous.reports.inspect_model import InputImage

    if given.files:
        return [InputImage(path.name, path) for path in find_images(given.files)]
    if given.run:
        return images_of_run(given.run)
    return [InputImage(name, image) for name, image in photographs()]


def images_of_run(run: Path) -> "list[InputImage]":
    """Return images that a run was evaluated on: the first of each class, at most as many as the page shows."""
    from vitreous.data.open_data import open_data
    from vitreous.errors import VitreousError
    from vitreous.reports.inspect_model import MAX_IMAGES, InputImage
    from vitreous.training.config import TrainConfig
    from vitreous.training.run_directory import RunDirectory

    description = RunDirectory.open(run).description()
    try:
        data = open_data(description["data"], TrainConfig.from_flat(description["config"]).data_reading)
    except (VitreousError, KeyError) as error:
        raise VitreousError(f"the images of {run} cannot be opened ({error}); give others after the model") from error
    source = data.test or data.val or data.train
    labels, chosen = source.labels, list(range(min(MAX_IMAGES, len(source))))
    if labels.ndim == 1 and data.classes:
        first_of_class = [int((labels == label).nonzero()[0, 0]) for label in labels.unique().tolist()]
        chosen = sorted(first_of_class)[:MAX_IMAGES]
    return [InputImage(Path(source.name(i)).name, source.image(i)) for i in chosen]
