"""All settings of a training run. This module does not import torch, so that `--help` is fast."""

from __future__ import annotations

import os
import warnings
from dataclasses import asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from vitreous.data.options import Augmentation, Reading, UnlabelledReading
from vitreous.errors import VitreousError, VitreousWarning, brief
from vitreous.training.durations import with_unit
from vitreous.utils.annotations import describe_annotation, matches_annotation
from vitreous.utils.import_path import is_user_code

Duration = str
""""30 epochs", "500 steps", "64000 examples", or "5%" of the whole run; see durations.py."""
DURATION_FIELDS = ("duration", "warmup", "cooldown", "rsqrt_timescale", "evaluate_every", "candidate_duration")
RENAMED_FIELDS = {"hold": "cache", "beside": "compare_with"}
"""Names of fields in version 0.1, still accepted with a warning, and their current names."""


@dataclass(frozen=True)
class Architecture:
    """The model: from a checkpoint (`--from`, in Python `start`), by name, or chosen from the data. Fields that are not
    given keep the value of the model."""

    start: str | None = None
    """Weights to start from: a checkpoint of any supported format, a run, a name of `vitreous models --weights`, or
    hf://owner/name. none: random initial weights. Default: vitreous-mini for fewer than 20,000 images if no option
    describes another model, otherwise none."""
    preprocessing: Literal["google", "augreg", "deit", "torchvision", "dino"] | None = None
    """Pixel normalisation that those weights were trained with, if their file does not say.
    Default: that of the file, or the usual one of its format."""
    model: str | None = None
    """Model name: Ti/16, S/16, R50+B/16, BiT-R50x1 ... (`vitreous models` lists all), or file.py:NAME, a class or
    function of your own that builds a model."""
    image_size: int | tuple[int, int] | None = None
    """Input size in pixels: one number for a square, two for height and width."""
    patch_size: int | None = None
    """Patch size in pixels; it must divide the image size."""
    width: int | None = None
    """Embedding dimension."""
    depth: int | None = None
    """Number of encoder blocks."""
    heads: int | None = None
    """Number of attention heads; it must divide the width."""
    mlp_dim: int | None = None
    """Hidden dimension of the MLP in each block."""
    pool: Literal["token", "gap", "map"] | None = None
    """Input of the head: the class token (token), the mean of the patch tokens (gap) or attention pooling (map)."""
    position: Literal["learned-1d", "learned-2d", "relative", "sincos-1d", "sincos-2d", "none"] | None = None
    """Position embedding. Default: that of the model."""
    position_at: Literal["stem", "every-layer", "every-layer-shared"] | None = None
    """Where positions are added: once at the input (stem), or before every block, with one table per block or one
    shared table. Default: stem, and every-layer for relative positions."""
    attention: Literal["full", "axial"] | None = None
    """axial: blocks attend within rows and within columns in turn. Default: that of the model, usually full."""
    stem: Literal["imagenet", "small"] | None = None
    """Stem of a BiT or of the ResNet of a hybrid. imagenet: 7x7, stride 2, max-pooling. small: 3x3, stride 1, without
    pooling, for images below 96 px. Default: imagenet."""
    width_factor: float | None = None
    """Width of a BiT or of the ResNet of a hybrid, as a multiple of 0.5: 1 for the widths of a ResNet-50. Default: that
    of the model."""
    representation_size: int | None = None
    """Dimension of a hidden layer (tanh) before the head, as in the paper's pre-training. Default: that of the
    model, usually none."""
    head_bias: float | None = None
    """Initial bias of the head; about -10 for a sigmoid loss with many classes. Default: 0."""
    registers: int | None = None
    """Number of register tokens: learned tokens without a position. Default: that of the model, usually 0."""
    layer_scale: float | None = None
    """LayerScale in both branches of every block, with this initial value. Default: that of the model, usually none."""
    qk_norm: bool | None = None
    """LayerNorm on queries and keys. Default: that of the model, usually False."""
    dropout: float | None = None
    """Dropout rate on the embeddings and on the branches of every block."""
    stochastic_depth: float | None = None
    """Stochastic depth rate of the last block; it grows linearly from 0 at the first block."""


@dataclass(frozen=True)
class Objective:
    """What the model learns, and the loss function."""

    objective: Literal["classification", "masked-patches"] = "classification"
    """classification: predict the labels. masked-patches: predict patches whose embeddings are masked, which needs no
    labels; the result is an encoder without a head, for fine-tuning (--from)."""
    patch_target: Literal["colour", "colours", "pixels"] = "colour"
    """What masked-patches predicts of a patch. colour: its mean colour, 3 bits per channel. colours: those of 4x4
    cells. pixels: all pixels, with the squared error."""
    mask_ratio: float = 0.5
    """Fraction of the patches that masked-patches corrupts."""
    loss: Literal["softmax", "sigmoid"] | str | None = None
    """softmax: cross-entropy, one label per image. sigmoid: binary cross-entropy per class, one or several labels.
    file.py:NAME: a function or class of your own."""
    label_smoothing: float | None = None
    """Label smoothing: fraction of every target that is spread evenly over all classes."""
    class_weights: Literal["none", "balanced"] | None = None
    """balanced: classes with fewer training images get a larger weight in the loss."""


@dataclass(frozen=True)
class Optimiser:
    """The optimiser."""

    optimiser: Literal["adamw", "sgd", "muon", "lamb"] | str | None = None
    """muon: Muon for the weight matrices of the encoder blocks, AdamW for the rest. lamb: for large batches.
    file.py:NAME: a torch.optim.Optimizer of your own, called with the groups of parameters."""
    lr: float | None = None
    """Peak learning rate of AdamW, SGD or LAMB."""
    muon_lr: float = 0.02
    """Peak learning rate of Muon."""
    weight_decay: float | None = None
    """Decoupled weight decay, multiplied by the learning rate; for weight matrices, not for norms, biases, position
    embeddings and tokens."""
    momentum: float = 0.9
    """Momentum of SGD."""
    muon_momentum: float = 0.95
    """Momentum of Muon."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Betas of AdamW and LAMB."""
    clip: float | None = 1.0
    """Maximum norm of the whole gradient; None: no clipping."""
    layer_decay: float = 1.0
    """Layer-wise decay: the learning rate of each layer is that of the next layer times this; the head has the full
    rate."""
    lr_multipliers: tuple[str, ...] = ()
    """PATTERN=FACTOR: factor of the learning rate of parameters whose names match, such as "head.*=10"."""
    freeze: tuple[str, ...] = ()
    """Freeze parameters whose names match: "blocks.[0-5].*"; "!head.*" freezes everything except the head."""
    ema: float | None = None
    """Decay per step of a moving average of the weights (EMA), evaluated in addition to the weights. 0: none."""


@dataclass(frozen=True)
class Schedule:
    """Length of the run, learning rate schedule and batch size."""

    duration: Duration | None = None
    """Length of the run: "30 epochs" (or 30), "5000 steps", "1e6 examples"."""
    budget: str | None = None
    """Time for the run: "10m", "3h" ... The number of epochs is chosen to fit into it on this device, and if necessary
    a smaller image size or model. Default: 10 minutes, if the length of the run is not given."""
    warmup: Duration | None = None
    """Length of the linear warm-up of the learning rate: "500 steps", "5%" ..."""
    schedule: Literal["cosine", "linear", "constant", "rsqrt"] | None = None
    """Learning rate after the warm-up: decay along a cosine or a line, constant, or 1/sqrt(step) (rsqrt)."""
    cooldown: Duration = "0%"
    """For constant and rsqrt: length of a linear decay at the end of the run."""
    final_lr: float = 0.0
    """Learning rate at the end of cosine, linear and cool-down, as a fraction of the peak."""
    rsqrt_timescale: Duration = "10%"
    """For rsqrt: how long the learning rate takes to fall to 1/sqrt(2) of the peak."""
    progressive: tuple[str, ...] = ()
    """PX@DURATION: train on smaller images first. "16@40%" "24@30%": 16 px for 40% of the run, then 24 px for 30%, then
    full size."""
    batch_size: int | None = None
    """Images per optimiser step, over all processes."""
    micro_batch: int | None = None
    """Images per forward and backward pass on one device; gradients are accumulated over the batch. Default: as many as
    fit into memory by estimate; halved if memory runs out."""


@dataclass(frozen=True)
class Finetuning:
    """How the weights to start from are adapted, and how the learning rate is selected."""

    rules: Literal["ours", "paper"] = "ours"
    """Choice of the steps and learning rates that are not given. ours: from the data. paper: Table 4 of the ViT paper,
    by the number of images."""
    lr_candidates: tuple[float, ...] | None = None
    """Learning rates to try on a development split; the best one then trains on all training images. Default: no
    search."""
    dev_fraction: float | None = None
    """Fraction of the training images in the development split."""
    candidate_duration: Duration = "100%"
    """Length of the training with each candidate: a percentage of the run, or "200 steps"."""
    lora: int = 0
    """Rank of low-rank adapters (LoRA) in the blocks of a ViT; only they and the head are trained. 0: no adapters."""
    lora_alpha: float | None = None
    """LoRA's alpha: the output of the adapters is multiplied by alpha / rank. Default: twice the rank."""


@dataclass(frozen=True)
class Run:
    """Output, hardware, evaluation and logging."""

    out: str | None = None
    """Run directory; it must not exist yet. Default: runs/NAME-DATE. Of `vitreous sweep`: the folder of all runs, by
    default sweeps/NAME-HASH."""
    seed: int = 0
    """Random seed of the initial weights, the order of the images and the augmentation."""
    device: str = "auto"
    """cpu, cuda, cuda:1 ..., mps (Macs); auto: a GPU if there is one."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Precision of matmuls; auto: bf16 on a GPU, fp32 on a CPU."""
    compile: Literal["auto", "yes", "no"] = "auto"
    """Use fused kernels and torch.compile; auto: on a GPU. If that fails, a message is printed and the run
    continues without them."""
    deterministic: bool = False
    """Bit-identical results on the same GPU, at some cost in speed. On a CPU they are always bit-identical."""
    evaluate_every: Duration | None = None
    """Interval between evaluations on the validation images. Default: 20 per run, at most one per epoch."""
    best_by: Literal["top1", "top5", "loss", "map", "balanced"] | None = None
    """Metric that selects best.safetensors. map: mean average precision, for several labels per image. balanced:
    mean recall over the classes."""
    patience: int | None = None
    """Stop after this many evaluations without an improvement. Default: no early stopping."""
    save_minutes: float = 5.0
    """Minutes between saves of the training state; it is also saved on Ctrl-C, on SIGTERM and at the end."""
    tensorboard: bool = False
    """Also write TensorBoard event files."""
    wandb: str | None = None
    """Also log to this Weights & Biases project. Default: off."""
    compare_with: tuple[str, ...] = ()
    """Other run directories: the report shows their curves, results and different settings together with those of this
    run."""
    profile: bool = False
    """Write a trace of a few steps to profile.json, for Perfetto or chrome://tracing."""


@dataclass(frozen=True, repr=False)
class TrainConfig:
    """All settings of a run. A field that is None is chosen from the data and printed, or keeps the model's value.

    Fields are in groups, and their names are unique: `vitreous.train`, `with_` and the command line take them by name.

    >>> config = vitreous.TrainConfig().with_(model="S/16", lr=1e-3, duration="30 epochs")
    >>> config.optimiser.lr, config.schedule.duration
    (0.001, '30 epochs')
    >>> config.with_(learning_rate=1e-3)
    Traceback (most recent call last):
    ...
    vitreous.errors.VitreousError: TrainConfig has no field 'learning_rate'; ...
    """

    architecture: Architecture = field(default_factory=Architecture)
    reading: Reading = field(default_factory=Reading)
    augmentation: Augmentation = field(default_factory=Augmentation)
    objective: Objective = field(default_factory=Objective)
    optimiser: Optimiser = field(default_factory=Optimiser)
    schedule: Schedule = field(default_factory=Schedule)
    finetuning: Finetuning = field(default_factory=Finetuning)
    run: Run = field(default_factory=Run)

    @property
    def masks_patches(self) -> bool:
        """Whether the objective is masked-patch prediction, which needs no labels."""
        return self.objective.objective == "masked-patches"

    @property
    def data_reading(self) -> Reading:
        """How the data of the run is opened."""
        return UnlabelledReading(**vars(self.reading)) if self.masks_patches else self.reading

    def __repr__(self) -> str:
        """Return the fields that differ from the defaults, as arguments of `with_`."""
        default = TrainConfig().flat()
        given = [f"{name}={value!r}" for name, value in self.flat().items() if value != default[name]]
        return f"TrainConfig().with_({', '.join(given)})" if given else "TrainConfig()"

    def with_(self, **changes: Any) -> TrainConfig:
        """Return a copy with some fields changed, by the names of the command-line flags: `with_(lr=1e-3)`."""
        groups: dict[str, dict[str, Any]] = {}
        for given, value in changes.items():
            name = RENAMED_FIELDS.get(given, given)
            if name != given:
                warnings.warn(f"{given} is now called {name}; the old name will be removed", VitreousWarning, 2)
            group = groups.setdefault(config_group(name), {})
            group[name] = _convert(name, value)
        return replace(self, **{group: replace(getattr(self, group), **new) for group, new in groups.items()})

    def flat(self) -> dict[str, Any]:
        """Return all fields in one dict, by name."""
        return {name: value for group in asdict(self).values() for name, value in group.items()}

    @classmethod
    def from_flat(cls, values: dict[str, Any]) -> TrainConfig:
        """Return the config of the result of `flat`, also after conversion to JSON and back."""
        return cls().with_(**values)

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> TrainConfig:
        """Return the settings of a config file, as `vitreous train --config` reads it."""
        from vitreous.training.config_file import read_config_file

        return read_config_file(path).config()


@cache
def field_types() -> dict[str, Any]:
    """Return the type annotations of all fields, by name."""
    groups = get_type_hints(TrainConfig).values()
    return {name: hint for group in groups for name, hint in get_type_hints(group).items()}


def _convert(name: str, value: Any) -> Any:
    """Convert a value to the type of its field: a list to a tuple, an integer to a float, a path to its name."""
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:  # a scalar of numpy or torch
        value = value.item()
    if name == "compare_with" and not isinstance(value, list | tuple):  # one run, as in version 0.1, or none
        value = () if value is None else (value,)
    if name == "compare_with":
        value = tuple(os.fspath(one) if isinstance(one, os.PathLike) else one for one in value)
    value = os.fspath(value) if isinstance(value, os.PathLike) else tuple(value) if isinstance(value, list) else value
    if name in DURATION_FIELDS and type(value) in (int, float, str):
        value = with_unit(value)
    hint = field_types()[name]
    if not matches_annotation(value, hint):
        raise VitreousError(f"{name} = {brief(value)}: expected {EXPECTED.get(name) or describe_annotation(hint)}")
    if name in CHOICES and value is not None:
        check_choice(name, value)
    if name == "progressive":
        value = tuple(f"{px}{at}{with_unit(length)}" for px, at, length in (one.partition("@") for one in value))
    return float(value) if type(value) is int and not matches_annotation(value, hint, exact=True) else value


def check_choice(name: str, value: str) -> None:
    """Raise an error unless a value is one of the names, or names code of the user."""
    if value in CHOICES[name] or is_user_code(value):
        return
    near = get_close_matches(value, CHOICES[name], n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    names = f"one of {', '.join(map(repr, CHOICES[name]))}, or " if CHOICES[name] else ""
    expected = f"{names}code of your own, file.py:NAME{hint}"
    raise VitreousError(f"{name} = {brief(value)}: expected {expected}")


def _names_in(hint: Any) -> tuple[str, ...]:
    """The names of a field that is a Literal, a text or None."""
    return next(get_args(option) for option in get_args(hint) if get_origin(option) is Literal)


CHOICES: dict[str, tuple[str, ...]] = {  # names; code of the user may be given instead
    "loss": _names_in(get_type_hints(Objective)["loss"]),
    "optimiser": _names_in(get_type_hints(Optimiser)["optimiser"]),
    "augment": (),
}
EXPECTED = {  # for error messages, if the type is not enough
    "model": "a name such as 'S/16', or file.py:NAME; a module of your own is an argument of vitreous.train",
    "start": "the name or path of a checkpoint. Save a model in memory first (vitreous.save)",
}


def config_group(name: str) -> str:
    """Return the group of TrainConfig that has a field."""
    groups = {f.name: group.name for group in fields(TrainConfig) for f in fields(group.default_factory)}  # type: ignore
    if name not in groups:
        near = get_close_matches(name, groups, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"the fields are {', '.join(groups)}"
        raise VitreousError(f"TrainConfig has no field {name!r}; {hint}")
    return groups[name]
