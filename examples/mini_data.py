"""Build the data set of vitreous-mini: the training images of CIFAR-10 and Imagenette as one set of 20 classes.

    python examples/mini_data.py cifar10.npz imagenette/ mini.npz

CIFAR-10 is an .npz with train_images and train_labels, or any other format that `vitreous data` opens. Imagenette is a
folder with train/WORDNET_ID/*.JPEG, or a tar of such folders. Every image is resized and cropped to 112 x 112 pixels,
which leaves room for random crops of 96 x 96. 5% of the images are held out for validation. The test images of both
data sets are not used.
"""

import argparse
import os
import time
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from vitreous.data.builtin import CIFAR10
from vitreous.data.dataset import Source
from vitreous.data.open_data import open_data
from vitreous.data.options import Reading
from vitreous.data.parallel_decoding import decode_chunks, split_into_chunks
from vitreous.data.splits import stratified_split
from vitreous.data.transforms import EvalTransform
from vitreous.errors import VitreousError
from vitreous.preprocessing import Preprocessing
from vitreous.utils.atomic import atomic_file
from vitreous.weights.labels import imagenet1k, imagenet1k_wordnet_ids

SIZE = 112
VAL_FRACTION = 0.05
WORDNET_IDS = (
    *("n01440764", "n02102040", "n02979186", "n03000684", "n03028079"),
    *("n03394916", "n03417042", "n03425413", "n03445777", "n03888257"),
)
CLASSES = (*CIFAR10, *(imagenet1k()[imagenet1k_wordnet_ids().index(name)] for name in WORDNET_IDS))


def training_images(data: str, classes: int | tuple[str, ...]) -> Source:
    """Return all training images of a data set, after checking its classes, or their number."""
    opened = open_data(data, Reading(val_fraction=0.0))
    if classes not in (opened.classes, len(opened.classes)):
        raise VitreousError(f"{data}: its classes are {', '.join(opened.classes)}; expected {classes}")
    return opened.train


def square_images(source: Source, workers: int) -> Iterator[np.ndarray]:
    """Yield the images in batches (n, SIZE, SIZE, 3): the short side resized to SIZE, then a centre crop."""
    transform = EvalTransform(Preprocessing(SIZE, SIZE, "bicubic"))
    for chunk in decode_chunks(
        source, transform, split_into_chunks(torch.arange(len(source))), workers, replace_bad=False
    ):
        if chunk.bad:
            raise VitreousError(chunk.bad[0][1])
        yield chunk.pixels.numpy().reshape(-1, SIZE, SIZE, 3)


def in_order(parts: Iterable[np.ndarray], order: np.ndarray) -> np.ndarray:
    """Return all images in one array, in this order."""
    images = np.empty((len(order), SIZE, SIZE, 3), np.uint8)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    start = 0
    for part in parts:
        images[place[start : start + len(part)]] = part
        start += len(part)
    return images


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cifar", help="CIFAR-10: an .npz, or another format that `vitreous data` opens")
    parser.add_argument("imagenette", help="Imagenette: a folder or a tar file")
    parser.add_argument("out", type=Path, help=".npz file to write")
    parser.add_argument("--seed", type=int, default=0, help="seed of the validation split (default: 0)")
    parser.add_argument(
        "--workers", type=int, default=min(16, os.cpu_count() or 1), help="processes that decode images"
    )
    options = parser.parse_args()
    began = time.perf_counter()
    try:
        small = training_images(options.cifar, len(CIFAR10))
        photographs = training_images(options.imagenette, WORDNET_IDS)
        labels = torch.cat([small.labels, photographs.labels + len(CIFAR10)])
        train, val = (numbers.numpy() for numbers in stratified_split(labels, VAL_FRACTION, options.seed))
        parts = chain.from_iterable(square_images(part, options.workers) for part in (small, photographs))
        images = in_order(parts, np.concatenate([train, val]))
        with atomic_file(options.out) as temporary, temporary.open("wb") as file:
            np.savez(
                file,
                train_images=images[: len(train)],
                train_labels=labels.numpy()[train],
                val_images=images[len(train) :],
                val_labels=labels.numpy()[val],
                classes=np.array(CLASSES),
            )
    except VitreousError as error:
        raise SystemExit(str(error)) from error
    seconds = time.perf_counter() - began
    print(f"{options.out}: {len(train):,} training images and {len(val):,} validation images, in {seconds:.0f} s")


if __name__ == "__main__":
    main()
