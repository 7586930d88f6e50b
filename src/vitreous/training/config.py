"""Everything that a training run can be told. No torch here, so that the command line can show it at once."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from functools import cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from vitreous.data.options import Augmentation, Reading
from vitreous.errors import VitreousError

Duration = str
"""How long: "30 epochs", "500 steps", "64000 examples", or "5%" of the whole run; see durations.py."""
DURATIONS = ("duration", "warmup", "cooldown", "rsqrt_timescale", "evaluate_every", "candidate_duration")


@dataclass(frozen=True)
class Architecture:
    """The model: that of `start`, or of a name. What is not given is its own; without either, the data decides."""

    start: str | None = None
    """Weights to begin with: a checkpoint of any dialect, a run directory, vitreous-mini, hf://owner/name."""
    preprocessing: Literal["google", "augreg", "deit", "torchvision", "dino"] | None = None
    """The scale of pixels that those weights know, where their file does not tell."""
    model: str | None = None
    """A name that `vitreous models` lists: Ti/16, S/16, R50+B/16, BiT-R50x1 ..."""
    image_size: int | tuple[int, int] | None = None
    """Pixels that the model is shown: one number is a square, two are height and width."""
    patch_size: int | None = None
    """Pixels along the side of a patch; it divides the image size."""
    width: int | None = None
    """Numbers in a token."""
    depth: int | None = None
    """Blocks of the encoder."""
    heads: int | None = None
    """Of attention; they divide the width."""
    mlp_dim: int | None = None
    """Numbers in the hidden layer of a block's MLP."""
    pool: Literal["token", "gap", "map"] | None = None
    """What the head looks at: a class token, the mean of the patches, or their attention pooling."""
    position: Literal["learned-1d", "learned-2d", "relative", "sincos-1d", "sincos-2d", "none"] | None = None
    """How patches are told their place."""
    representation_size: int | None = None
    """Numbers in a hidden layer (tanh) under the head, as in the paper's pre-training."""
    head_bias: float | None = None
    """What the head's biases start at; with many classes and a sigmoid loss, -10."""
    registers: int | None = None
    """Tokens of no place, beside the patches."""
    layer_scale: float | None = None
    """LayerScale on both branches of a block, with this value at the start."""
    qk_norm: bool | None = None
    """LayerNorm on queries and keys."""
    dropout: float | None = None
    """The share of numbers that is dropped from embeddings and branches in training."""
    stochastic_depth: float | None = None
    """The share of images for which the last block's branches are left out in training; less for the blocks before."""


@dataclass(frozen=True)
class Objective:
    """What is minimised."""

    loss: Literal["softmax", "sigmoid"] | None = None
    """Softmax: one class for each image; sigmoid: each class by itself, for several labels (or one)."""
    label_smoothing: float | None = None
    """The share of every target that is spread over all classes."""
    class_weights: Literal["none", "balanced"] = "none"
    """Balanced: the loss of a rare class weighs more, by its share of the training images."""


@dataclass(frozen=True)
class Optimiser:
    """How the weights are changed."""

    optimiser: Literal["adamw", "sgd", "muon", "lamb"] | None = None
    """Muon: for the matrices of the encoder's blocks, with AdamW for the rest. LAMB: for large batches."""
    lr: float | None = None
    """The highest learning rate, that of AdamW, SGD or LAMB."""
    muon_lr: float = 0.02
    """The highest learning rate of Muon's matrices."""
    weight_decay: float | None = None
    """Times the learning rate, each step; on matrices only: not on norms, biases, positions and tokens."""
    momentum: float = 0.9
    """Of SGD."""
    muon_momentum: float = 0.95
    """Of Muon, for the same matrices."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Of AdamW and LAMB."""
    clip: float | None = 1.0
    """The greatest norm of the whole gradient; None: whatever it is."""
    layer_decay: float = 1.0
    """The learning rate of each layer is that of the next one times this; the head's is the full one."""
    lr_multipliers: tuple[str, ...] = ()
    """PATTERN=FACTOR for parameters by name: "head.*=10"."""
    freeze: tuple[str, ...] = ()
    """Patterns of the names of parameters that stay as they are: "blocks.[0-5].*"; "!head.*": all but the head's."""
    ema: float | None = None
    """The running mean of the weights, evaluated beside the raw ones: its decay for each step (0.999); 0: none."""


@dataclass(frozen=True)
class Schedule:
    """How long, and with which learning rate when."""

    duration: Duration | None = None
    """The whole run: "30 epochs" (or 30), "5000 steps", "1e6 examples"."""
    warmup: Duration | None = None
    """The learning rate rises linearly over "500 steps", "5%" ..."""
    schedule: Literal["cosine", "linear", "constant", "rsqrt"] | None = None
    """How it goes on: to zero along a cosine or a line, constant, or with the inverse square root of the step."""
    cooldown: Duration = "0%"
    """Of constant and rsqrt: the last stretch, linearly to zero."""
    final_lr: float = 0.0
    """What cosine, linear and cool-down end at, as a share of the highest."""
    rsqrt_timescale: Duration = "10%"
    """Of rsqrt: how long the learning rate takes to fall to 1/sqrt(2)."""
    progressive: tuple[str, ...] = ()
    """PX@DURATION: smaller images first. "16@40%" "24@30%": 16 px for 40% of the run, 24 for 30%, then all of it."""
    batch_size: int | None = None
    """Images of one step, all processes together."""
    micro_batch: int | None = None
    """Images of one pass on one device; gradients are accumulated to the batch. Halved where memory runs out."""


@dataclass(frozen=True)
class Finetuning:
    """How weights to begin with are adapted, and how their learning rate is found."""

    rules: Literal["ours", "paper"] = "ours"
    """Paper: steps and learning rates that are left open go by the number of images, as in its Table 4."""
    lr_candidates: tuple[float, ...] | None = None
    """Learning rates to try on a development split; the best one then trains on all training images."""
    dev_fraction: float | None = None
    """The share of the training images in that split; chosen by their number."""
    candidate_duration: Duration = "100%"
    """How long each of them is tried: a share of the run, or "200 steps"."""
    lora: int = 0
    """Low-rank adapters of this rank on the matrices of a ViT's blocks; only they and the head are trained. 0: none."""
    lora_alpha: float | None = None
    """What adapters add is multiplied by this and divided by their rank; twice the rank."""


@dataclass(frozen=True)
class Run:
    """The run itself: where, how exactly, what is kept and told."""

    out: str | None = None
    """The run directory; it must not exist yet. By default runs/NAME-DATE."""
    seed: int = 0
    """Draws the weights, the order of the images and everything that happens to them."""
    device: str = "auto"
    """cpu, cuda, cuda:1 ...; auto: a GPU if there is one."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Of the matrix products: bf16 on a GPU, fp32 on a CPU."""
    compile: Literal["auto", "yes", "no"] = "auto"
    """torch.compile: auto on a GPU, with a word if it does not work there."""
    deterministic: bool = False
    """The same bits on the same GPU, at the price of some speed. A CPU gives them in any case."""
    evaluate_every: Duration | None = None
    """How often the validation images are scored; by default 20 times in a run, at most once an epoch."""
    best_by: Literal["top1", "top5", "loss", "map", "balanced"] | None = None
    """The metric that best.safetensors is chosen by; top1, or map for several labels."""
    patience: int | None = None
    """Stop after so many evaluations without a better one."""
    save_minutes: float = 5.0
    """How often the whole state is saved; also on Ctrl-C, on SIGTERM and at the end."""
    tensorboard: bool = False
    """Write TensorBoard's event files too."""
    wandb: str | None = None
    """Log to this Weights & Biases project too."""
    beside: str | None = None
    """Another run directory, whose curve and result the report shows beside this run's."""
    profile: bool = False
    """Write a trace of a few steps, for Perfetto or chrome://tracing, to profile.json."""


@dataclass(frozen=True)
class TrainConfig:
    """All of it. A field that is None is chosen by the data, and what was chosen is told and stored."""

    architecture: Architecture = field(default_factory=Architecture)
    reading: Reading = field(default_factory=Reading)
    augmentation: Augmentation = field(default_factory=Augmentation)
    objective: Objective = field(default_factory=Objective)
    optimiser: Optimiser = field(default_factory=Optimiser)
    schedule: Schedule = field(default_factory=Schedule)
    finetuning: Finetuning = field(default_factory=Finetuning)
    run: Run = field(default_factory=Run)

    def with_(self, **changes: Any) -> TrainConfig:
        """The same with some fields changed, by the names that the command line has for them: `with_(lr=1e-3)`."""
        groups: dict[str, dict[str, Any]] = {}
        for name, value in changes.items():
            group = groups.setdefault(group_of(name), {})
            group[name] = _fitting(name, value)
        return replace(self, **{group: replace(getattr(self, group), **new) for group, new in groups.items()})

    def flat(self) -> dict[str, Any]:
        """Every field by its own name."""
        return {name: value for group in asdict(self).values() for name, value in group.items()}

    @classmethod
    def from_flat(cls, values: dict[str, Any]) -> TrainConfig:
        """What `flat` gave, also after a way through JSON."""
        return cls().with_(**values)


@cache
def _hints() -> dict[str, Any]:
    groups = get_type_hints(TrainConfig).values()
    return {name: hint for group in groups for name, hint in get_type_hints(group).items()}


def _fitting(name: str, value: Any) -> Any:
    """The value as its field has it: a list may stand for a tuple, a whole number for a float, a path for its name."""
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:  # a number of numpy's
        value = value.item()
    value = os.fspath(value) if isinstance(value, os.PathLike) else tuple(value) if isinstance(value, list) else value
    if name in DURATIONS and type(value) in (int, float):
        value = str(value)
    hint = _hints()[name]
    if not _is(value, hint):
        expected = hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")
        raise VitreousError(f"{name} = {value!r}: expected {expected}")
    return float(value) if type(value) is int and not _is(value, hint, exactly=True) else value


def _is(value: Any, hint: Any, exactly: bool = False) -> bool:
    kind, inner = get_origin(hint), get_args(hint)
    if kind is Literal:
        return isinstance(value, str) and value in inner
    if kind in (Union, UnionType):
        return any(_is(value, one, exactly) for one in inner)
    if kind is tuple:
        each = inner[:1] * len(value) if isinstance(value, tuple) and inner[-1] is Ellipsis else inner
        return isinstance(value, tuple) and len(value) == len(each) and all(map(_is, value, each))
    if hint is float:
        return type(value) is float or (type(value) is int and not exactly)
    return type(value) is hint


def group_of(name: str) -> str:
    homes = {f.name: group.name for group in fields(TrainConfig) for f in fields(group.default_factory)}  # type: ignore
    if name not in homes:
        near = get_close_matches(name, homes, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there is {', '.join(homes)}"
        raise VitreousError(f"TrainConfig has no field {name!r}; {hint}")
    return homes[name]
