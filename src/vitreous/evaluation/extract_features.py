"""`vitreous.features`: compute the features of images, in memory or in files that can be continued."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack

import torch

from vitreous.data.options import Reading
from vitreous.evaluation.data_arguments import DataArguments, open_data_argument, reading_for
from vitreous.evaluation.evaluation_images import evaluation_split
from vitreous.evaluation.features import HEAD
from vitreous.evaluation.inference_options import InferenceOptions, choose_inference_options
from vitreous.evaluation.model_argument import ModelSource, file_of, model_argument, model_device
from vitreous.evaluation.progress_bar import ProgressBar, image_progress_bar, no_progress_bar
from vitreous.evaluation.store import Features, read_features, write_features
from vitreous.fast.accelerate import Precision
from vitreous.models.base import restored_modes
from vitreous.preprocessing import Preprocessing
from vitreous.utils.arguments import checked_arguments
from vitreous.utils.output_paths import optional_path
from vitreous.utils.progress import NoteCollector, ProgressReporter
from vitreous.utils.warn import warn_caller


@checked_arguments(DataArguments)
def features(  # noqa: PLR0913 (keyword arguments, the same as the flags of the command)
    model: ModelSource,
    data: object,
    out: str | os.PathLike[str] | None = None,
    *,
    layer: int = HEAD,
    size: int | None = None,
    split: str | None = None,
    overwrite: bool = False,
    device: str | torch.device = "auto",
    precision: Precision = "fp32",
    batch_size: int = 64,
    workers: int | None = None,
    heads: int | None = None,
    preprocessing: Preprocessing | str | None = None,
    trust_code: bool = False,
    quiet: bool = False,
    **reading: Unpack[DataArguments],
) -> Features:
    """Compute the features of the images of a data set: one row per readable image, with labels and names.

    - `model`: a model in memory, which runs as it is and on its own device, or what `vitreous.load` accepts
    - `data`: what `vitreous.open_data` accepts, or a `DataSet`
    - `out`: write .safetensors shards to this folder, where the same call continues; None: keep them in memory
    - `layer`: number of a block, from 0; -1: the input of the head; `size`: image size; `overwrite`: replace `out`
    - `split`: train, val, test or all; default: the test split that the data has, else its val split, else all
    - `device`, `precision`, `batch_size`, `workers`: as the flags of the command
    - `heads`, `preprocessing`: as in `vitreous.load`; `trust_code`: run the code of a run of a model of your own
    - `quiet`: print no notes and no progress; `reading`: options of the data, such as `val_fraction`

    Returns a `Features`. Unreadable images are left out, with a warning.

    >>> import vitreous
    >>> small = {"image_size": 8, "patch_size": 4, "channels": 1, "width": 32, "heads": 2}
    >>> model = vitreous.create("Ti/16", depth=2, num_classes=0, **small)
    >>> found = vitreous.features(model, "digits", split="test", quiet=True)
    >>> found.features.shape, found.labels.shape
    (torch.Size([360, 32]), torch.Size([360]))
    """
    notes = NoteCollector(ProgressReporter(quiet))
    options = choose_inference_options(model_device(model, device), batch_size, workers, precision, notes.add)
    found = extract_and_write(
        model,
        data,
        optional_path(out),
        options,
        layer=layer,
        size=size,
        split=split,
        overwrite=overwrite,
        heads=heads,
        preprocessing=preprocessing,
        trust_code=trust_code,
        reading=reading_for(data, reading, file_of(model)),
        bar=image_progress_bar(notes.reporter),
        note=notes.extend,
    )
    warn_caller((), list(found.unreadable.values()))
    return replace(found, notes=tuple(notes.texts))


def extract_and_write(  # noqa: PLR0913 (the arguments of `features`, and how progress is shown)
    model: ModelSource,
    data: object,
    out: Path | None,
    options: InferenceOptions,
    *,
    layer: int = HEAD,
    size: int | None = None,
    split: str | None = None,
    overwrite: bool = False,
    heads: int | None = None,
    preprocessing: Preprocessing | str | None = None,
    trust_code: bool = False,
    reading: Reading | None = None,
    bar: ProgressBar = no_progress_bar,
    note: Callable[[Sequence[str]], object] = lambda texts: None,
) -> Features:
    """Compute features as `features` does. `note` is called with notes about model and data before the work starts."""
    opened = open_data_argument(data, reading or Reading())
    split, images = evaluation_split(opened, split)
    evaluated = model_argument(
        model, "features", device=options.device, heads=heads, preprocessing=preprocessing, trust_code=trust_code
    )
    chosen = evaluated.preprocessing(size)
    note((*evaluated.notes, *opened.notes))
    about = {"data": opened.name, "split": split, "classes": list(opened.classes)}
    with tempfile.TemporaryDirectory() as temporary, restored_modes(evaluated.model):
        folder = Path(temporary) / "features" if out is None else out
        with bar(f"{evaluated.name} on {opened.name}", len(images)) as tick:
            write_features(evaluated, images, folder, chosen, options, layer, about, tick, overwrite=overwrite)
        return read_features(folder)
