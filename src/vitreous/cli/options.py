"""Types of flags and groups of flags that several commands share."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

if TYPE_CHECKING:
    from vitreous.data.options import Reading
    from vitreous.evaluation.inference_options import InferenceOptions
    from vitreous.utils.progress import ProgressReporter

# Parameters of commands. Their help texts state the default that None stands for, so that no hint is added.
OptionalInt = Annotated[int | None, tyro.conf.arg(metavar="N", help_behavior_hint="")]
OptionalName = Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="")]
OptionalFile = Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")]
OptionalFolder = Annotated[Path | None, tyro.conf.arg(metavar="DIR", help_behavior_hint="")]
ImageSize = Annotated[int | tuple[int, int] | None, tyro.conf.arg(metavar="PX [PX]", help_behavior_hint="")]
DeviceName = Annotated[str, tyro.conf.arg(metavar="NAME")]
PreprocessingName = Annotated[
    Literal["google", "augreg", "deit", "torchvision", "dino"] | None,
    tyro.conf.arg(metavar="google|augreg|deit|torchvision|dino", help_behavior_hint=""),
]
Switch = Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help_behavior_hint="")]


@dataclass(frozen=True)
class ModelOptions:
    """The model, and settings that its checkpoint may lack."""

    model: Annotated[str, tyro.conf.arg(metavar="MODEL")]
    """Checkpoint of any supported format, run directory, vitreous-mini, a name of `vitreous models --weights`, which is
    downloaded, hf://owner/name, or random:NAME for random weights."""
    heads: OptionalInt = None
    """Number of attention heads, if the checkpoint does not contain it. Default: the usual number for its width."""
    preprocessing: PreprocessingName = None
    """Preprocessing that the model was trained with, if the checkpoint does not contain it. Default: the usual
    one of its format."""
    trust_code: Switch = False
    """If MODEL is a run of a model of your own, import and run its code, from the file that the run names."""


@dataclass(frozen=True)
class DataOptions:
    """Location of images and labels, and splits: the same options as in `vitreous train`."""

    data_dir: Annotated[str | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder with the files of a data set that is given by name (mnist, fashion-mnist, cifar10, cifar100)."""
    image_column: OptionalName = None
    """Image column of a manifest, Parquet file or Hugging Face data set. Default: detected from the column names."""
    label_column: OptionalName = None
    """Label column of a manifest, Parquet file or Hugging Face data set. Default: detected from the column names."""
    only_classes: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...", help_behavior_hint="")] = ()
    """Use only the images of these classes, by name. Default: those of the run if the model is a run directory and the
    data has them, otherwise all classes."""
    class_level: OptionalInt = None
    """Level of the class folders in a folder, zip or tar of images: 1 for CLASS/1.jpg, 2 for YEAR/CLASS/1.jpg. Default:
    1, or the first level below folders that are named like dates."""
    val_fraction: float | None = None
    """Fraction of the training images held out for validation, when the data has no validation split. Default: 5% to
    20%, depending on the number of images."""
    test_fraction: float | None = None
    """Fraction of the training images held out for testing, when the data has no test split. Default: as large as the
    validation split if that is held out too and there are at least 100 images, otherwise 0."""
    split_seed: int | None = None
    """Random seed of the held-out validation and test splits. Default: 0."""
    allow_outside_files: Switch = False
    """Allow a manifest, Parquet file or Hugging Face data set to refer to images outside of its folder."""
    max_pixels: int | None = None
    """Maximum number of pixels of an image; larger images count as unreadable. Default: 70 million."""

    def reading(self, model: str | None = None) -> "Reading":
        """Return the options for opening the data. If `model` is a run directory, its own split and classes are the
        default."""
        from vitreous.evaluation.data_arguments import reading_of

        return reading_of(asdict(self), model)


@dataclass(frozen=True)
class FeatureOptions:
    """Evaluation of the features, the input of the head."""

    methods: Annotated[
        tuple[Literal["fewshot", "knn", "probe"], ...],
        tyro.conf.arg(name="with", metavar="fewshot|knn|probe ..."),
    ] = ()
    """Methods: few-shot classification, k-NN and a linear probe, all fitted to the train split."""
    shots: tuple[int, ...] = (1, 5, 10, 25)
    """Training images per class for few-shot classification."""
    cache: OptionalFolder = None
    """Folder in which computed features are cached. Default: the user's cache folder."""


@dataclass(frozen=True)
class DeviceOptions:
    """Device and precision."""

    device: DeviceName = "auto"
    """cpu, cuda, cuda:1 ..., mps (Macs); auto: a GPU if there is one."""
    precision: Literal["fp32", "bf16", "fp8"] = "fp32"
    """Precision of matmuls. fp8 needs a GPU that supports it, and computes predictions, not features. Logits differ
    from those of fp32 by about 1% in bf16 and by 4 to 7% in fp8."""


@dataclass(frozen=True)
class BatchOptions(DeviceOptions):
    """Device, precision and loading of images."""

    batch_size: int = 64
    """Images per forward pass."""
    workers: int | None = None
    """Number of worker processes that decode images. Default: one per CPU core, up to 16; 0 for few images and for
    images in memory."""

    def inference_options(self, reporter: "ProgressReporter") -> "InferenceOptions":
        from vitreous.evaluation.inference_options import choose_inference_options
        from vitreous.utils.device import pick_device

        device = pick_device(self.device)
        return choose_inference_options(device, self.batch_size, self.workers, self.precision, reporter.note)


@dataclass(frozen=True)
class OutputOptions:
    """Output other than tables on the terminal."""

    json: Switch = False
    """Print one JSON object instead of tables."""
    out: OptionalFolder = None
    """Write all results to this folder, as JSON and as figures."""
    overwrite: Switch = False
    """Replace the output of an earlier command, once the new one is complete."""
