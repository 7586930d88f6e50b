"""`vitreous inspect`: visualise the internals of a model."""

from typing import Annotated

import tyro

from vitreous.cli.options import DeviceName, ImageSize, OptionalFolder, OptionalInt, PreprocessingName, Switch
from vitreous.cli.predict import MINI
from vitreous.utils.console import print_line, printable


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
    from vitreous.serving.inspect import inspect_and_write, inspected_images
    from vitreous.utils.environment import command
    from vitreous.utils.progress import ProgressReporter

    model, files = _parse_arguments(arguments)
    images = inspected_images(model, files)
    reporter = ProgressReporter()
    if files and files == arguments:
        reporter.note(f"no model is given: using {MINI}, which comes with the package")
    written = inspect_and_write(
        model,
        images,
        out,
        reporter,
        overwrite=overwrite,
        size=size,
        device=device,
        heads=heads,
        preprocessing=preprocessing,
        command=command(),
    )
    for note in (*written.notes, *(f"{reason}; skipped" for reason in written.skipped)):
        reporter.note(printable(note))
    print_line(f"page     {written.page}")
    print_line(f"figures  {len(written.files) - 1} files and numbers.json, in the same folder")
    if written.skipped:
        raise SystemExit(1)


def _parse_arguments(arguments: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Split the arguments into model and images. If the first is an image, the model is the default one."""
    from vitreous.data.image_files import is_image

    no_model = not arguments or is_image(arguments[0])
    return (MINI, arguments) if no_model else (arguments[0], arguments[1:])
