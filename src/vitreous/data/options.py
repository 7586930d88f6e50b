"""Options of data and augmentation. This module does not import torch, so that the command line starts fast."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Augmentation:
    """Augmentation of the training images. Random draws depend on the sample, not on its batch. Options that are not
    given are chosen from the data."""

    crop: float | None = None
    """Random resized crop: minimum fraction of the image area. 1: no crop, the whole image is resized to the model's
    input size."""
    aspect: float | None = None
    """Random resized crop: maximum aspect ratio relative to the model's input. 1: crops have the shape of the input."""
    shift: float | None = None
    """Random translation by up to this fraction of the side, in whole pixels, padded with black."""
    flip: bool | None = None
    """Flip images horizontally with probability 0.5."""
    randaugment: int | None = None
    """RandAugment: number of operations per image. 0: off."""
    magnitude: float | None = None
    """RandAugment: magnitude, 0 to 10."""
    three_augment: bool | None = None
    """3-Augment of DeiT III: convert each image to grey, solarise it or blur it."""
    jitter: float | None = None
    """Colour jitter: maximum relative change of brightness, contrast and saturation. 0: off."""
    erase: float | None = None
    """Random erasing: probability that a rectangle of an image is replaced by noise. 0: off."""
    mixup: float | None = None
    """Mixup: alpha of the Beta distribution. 0: off. If CutMix is on too, each is applied to half of the pairs."""
    cutmix: float | None = None
    """CutMix: alpha of the Beta distribution. 0: off."""
    augment: str | None = None
    """Augmentation of your own, file.py:NAME: a function or class that takes and returns a batch of images, (B, C, H,
    W) with values from 0 to 1, after the options above and before mixup and CutMix. Default: none."""


@dataclass(frozen=True)
class Reading:
    """Location of images and labels, splits, and decoding."""

    data_dir: str | None = None
    """Folder with the files of a data set that is given by name (mnist, fashion-mnist, cifar10, cifar100)."""
    image_column: str | None = None
    """Image column of a manifest, Parquet file or Hugging Face data set. Default: detected from the column names."""
    label_column: str | None = None
    """Label column of a manifest, Parquet file or Hugging Face data set. Default: detected from the column names."""
    val_fraction: float | None = None
    """Fraction of the training images held out for validation, when the data has no validation split. Default: 5% to
    20%, depending on the number of images. 0: train without validation."""
    test_fraction: float | None = None
    """Fraction of the training images held out for testing, when the data has no test split. Default: as large as the
    validation split if that is held out too and there are at least 100 images, otherwise 0. 0: no test split."""
    train_fraction: float | None = None
    """Use only this fraction of the training images, after validation and test images are held out. Every class has
    its share, and smaller fractions are part of larger ones. Default: all."""
    split_seed: int = 0
    """Random seed of the held-out validation and test splits, and of the images of `train_fraction`."""
    max_bad: float = 0.01
    """Maximum fraction of unreadable images; 5 images are always accepted. With more, training stops with an error
    before the first step. 0: stop if any image is unreadable."""
    cache: Literal["auto", "always", "never"] = "auto"
    """Decode all images once and cache them on the device as uint8. auto: if they fit into memory."""
    workers: int | None = None
    """Number of worker processes that decode images. Default: one per CPU core, up to 16; 0 for images in memory.
    Batches do not depend on it."""
    balanced: bool = False
    """Sample all classes equally often, regardless of their number of images."""
    allow_outside_files: bool = False
    """Allow a manifest, Parquet file or Hugging Face data set to refer to images outside of its folder."""
    max_pixels: int = 70_000_000
    """Maximum number of pixels of an image; larger images count as unreadable. Decoding takes about 12 bytes per
    pixel."""
    only_classes: tuple[str, ...] = ()
    """Use only the images of these classes, by name. Default: all classes."""
    class_level: int | None = None
    """Level of the class folders in a folder, zip or tar of images: 1 for CLASS/1.jpg, 2 for YEAR/CLASS/1.jpg. Default:
    1, or the first level below folders that are named like dates."""


@dataclass(frozen=True)
class UnlabelledReading(Reading):
    """How data is read for training without labels: the data set has no classes, and images in folders that give no
    classes are all used. Labels, if there are any, stratify the splits, so that these are those of a labelled run."""


@dataclass(frozen=True)
class RunReading(Reading):
    """How a run reads its data, to evaluate its model. `only_classes` has no effect on data that lacks one of them."""
