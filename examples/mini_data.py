"""The images that vitreous-mini was trained on: CIFAR-10's and Imagenette's training images as one set of 20 classes.

    python examples/mini_data.py cifar10.npz imagenette/ mini.npz

CIFAR is an .npz with train_images and train_labels (or anything else that `vitreous data` takes for it); Imagenette a
folder with train/WORDNET_ID/*.JPEG, or a tar of such folders. Every image becomes a square of 112 x 112 pixels, the
middle of a photograph, so that random crops for 96 x 96 have room. Five in a hundred are set aside for validation. The
test parts of both are not looked at.
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
HELD_OUT = 0.05
WORDNET_IDS = (
    *("n01440764", "n02102040", "n02979186", "n03000684", "n03028079"),
    *("n03394916", "n03417042", "n03425413", "n03445777", "n03888257"),
)
CLASSES = (*CIFAR10, *(imagenet1k()[imagenet1k_wordnet_ids().index(name)] for name in WORDNET_IDS))


def training_part(data: str, classes: int | tuple[str, ...]) -> Source:
    """All training images of a data set, which has so many classes, or these."""
    found = open_data(data, Reading(val_fraction=0.0))
    if classes not in (found.classes, len(found.classes)):
        raise VitreousError(f"{data}: its classes are {', '.join(found.classes)}; expected {classes}")
    return found.train


def squares(source: Source, workers: int) -> Iterator[np.ndarray]:
    """Every image as (SIZE, SIZE, 3), some at a time: the short side to SIZE, and the middle of the long one."""
    prepare = EvalTransform(Preprocessing(SIZE, SIZE, "bicubic"))
    for chunk in decode_chunks(
        source, prepare, split_into_chunks(torch.arange(len(source))), workers, replace_bad=False
    ):
        if chunk.bad:
            raise VitreousError(chunk.bad[0][1])
        yield chunk.pixels.numpy().reshape(-1, SIZE, SIZE, 3)


def arranged(parts: Iterable[np.ndarray], order: np.ndarray) -> np.ndarray:
    """All images in one array, in this order."""
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
    parser.add_argument("cifar")
    parser.add_argument("imagenette")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=min(16, os.cpu_count() or 1))
    options = parser.parse_args()
    began = time.perf_counter()
    try:
        small = training_part(options.cifar, len(CIFAR10))
        photographs = training_part(options.imagenette, WORDNET_IDS)
        labels = torch.cat([small.labels, photographs.labels + len(CIFAR10)])
        kept, aside = (numbers.numpy() for numbers in stratified_split(labels, HELD_OUT, options.seed))
        parts = chain.from_iterable(squares(part, options.workers) for part in (small, photographs))
        images = arranged(parts, np.concatenate([kept, aside]))
        with atomic_file(options.out) as temporary, temporary.open("wb") as file:
            np.savez(
                file,
                train_images=images[: len(kept)],
                train_labels=labels.numpy()[kept],
                val_images=images[len(kept) :],
                val_labels=labels.numpy()[aside],
                classes=np.array(CLASSES),
            )
    except VitreousError as error:
        raise SystemExit(str(error)) from error
    seconds = time.perf_counter() - began
    print(f"{options.out}: {len(kept):,} images to train with, {len(aside):,} set aside, in {seconds:.0f} s")


if __name__ == "__main__":
    main()
