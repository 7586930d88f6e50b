"""What can be chosen about data. No torch here, so that the command line can show it at once."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Augmentation:
    """How training images are varied. Nothing that is drawn depends on the batch an image happens to be in."""

    crop: float | None = None
    """Random resized crop: the least share of the image's area. 1: the whole image, squashed to the model's size."""
    aspect: float | None = None
    """The crop's greatest ratio of sides, relative to the model's size; 1: nothing is squashed unless it has to be."""
    shift: float | None = None
    """Move by up to so much of the side, in whole pixels; what comes in from outside is black."""
    flip: bool | None = None
    """Mirror every second image, left to right."""
    randaugment: int | None = None
    """RandAugment: how many operations for each image. 0: none."""
    magnitude: float | None = None
    """RandAugment: how strong, 0 to 10."""
    three_augment: bool | None = None
    """3-Augment of DeiT III: grey, solarise or blur, one for each image."""
    jitter: float | None = None
    """Brightness, contrast and saturation, each by a factor of up to 1 plus or minus this."""
    erase: float | None = None
    """Random erasing: with this probability a rectangle becomes noise."""
    mixup: float | None = None
    """Blend pairs of images and their labels; alpha of the Beta distribution. With cutmix too, half the pairs each."""
    cutmix: float | None = None
    """Paste a rectangle of one image of a pair into the other; alpha of the Beta distribution."""


@dataclass(frozen=True)
class Reading:
    """Where images and labels are, and how they are read."""

    data_dir: str | None = None
    """The folder with the files of a data set that DATA calls by name (cifar10, cifar100, fashion-mnist)."""
    image_column: str | None = None
    """In a manifest, Parquet or Hugging Face data set: the column of images, where there is a doubt."""
    label_column: str | None = None
    """In a manifest, Parquet or Hugging Face data set: the column of labels, where there is a doubt."""
    val_fraction: float | None = None
    """How much of the training images to set aside where the data has no split for it; chosen by their number."""
    split_seed: int = 0
    """Draws that split."""
    max_bad: float = 0.01
    """The share of images that may be unreadable; more stop the run when the data is checked."""
    hold: Literal["auto", "always", "never"] = "auto"
    """Decode once and keep all images on the device as uint8: if they fit, always, never."""
    workers: int | None = None
    """Processes that decode. Batches do not depend on their number; chosen by cores and data."""
    balanced: bool = False
    """Draw every class equally often, however many images it has."""
