"""Everything that a training run can be told. No torch here, so that the command line can show it at once."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from typing import Any, Literal

from vitreous.data.options import Augmentation, Reading
from vitreous.errors import VitreousError

Duration = str
"""How long: "30 epochs", "500 steps", "64000 examples", or "5%" of the whole run; see durations.py."""


@dataclass(frozen=True)
class Architecture:
    """The model. What is not given is the named model's own; without a name, it is chosen by the data."""

    model: str | None = None
    """A name that `vitreous models` lists: Ti/16, S/16, R50+B/16, BiT-R50x1 ..."""
    image_size: int | tuple[int, int] | None = None
    """Pixels that the model is shown: one number is a square, two are height and width."""
    patch_size: int | None = None
    width: int | None = None
    depth: int | None = None
    heads: int | None = None
    mlp_dim: int | None = None
    pool: Literal["token", "gap", "map"] | None = None
    position: Literal["learned-1d", "learned-2d", "relative", "sincos-1d", "sincos-2d", "none"] | None = None
    registers: int | None = None
    layer_scale: float | None = None
    qk_norm: bool | None = None
    dropout: float | None = None
    stochastic_depth: float | None = None


@dataclass(frozen=True)
class Objective:
    """What is minimised."""

    loss: Literal["softmax", "sigmoid"] | None = None
    """Softmax: one class for each image; sigmoid: each class by itself, for several labels (or one)."""
    label_smoothing: float | None = None
    class_weights: Literal["none", "balanced"] = "none"
    """Balanced: the loss of a rare class weighs more, by its share of the training images."""


@dataclass(frozen=True)
class Optimiser:
    """How the weights are changed."""

    optimiser: Literal["adamw", "sgd", "muon"] | None = None
    """Muon: for the matrices of the encoder's blocks, with AdamW for the rest."""
    lr: float | None = None
    """The highest learning rate, that of AdamW or SGD."""
    muon_lr: float = 0.02
    """The highest learning rate of Muon's matrices."""
    weight_decay: float | None = None
    """Times the learning rate, each step; on matrices only: not on norms, biases, positions and tokens."""
    momentum: float = 0.9
    """Of SGD."""
    muon_momentum: float = 0.95
    betas: tuple[float, float] = (0.9, 0.999)
    """Of AdamW."""
    clip: float | None = 1.0
    """The greatest norm of the whole gradient; None: whatever it is."""
    layer_decay: float = 1.0
    """The learning rate of each layer is that of the next one times this; the head's is the full one."""
    lr_multipliers: tuple[str, ...] = ()
    """PATTERN=FACTOR for parameters by name: "head.*=10"."""
    freeze: tuple[str, ...] = ()
    """Patterns of the names of parameters that stay as they are: "patch_embed.*" "blocks.[0-5].*"."""
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
    batch_size: int | None = None
    """Images of one step, all processes together."""
    micro_batch: int | None = None
    """Images of one pass on one device; gradients are accumulated to the batch. Halved where memory runs out."""


@dataclass(frozen=True)
class Run:
    """The run itself: where, how exactly, what is kept and told."""

    out: str | None = None
    """The run directory; it must not exist yet. By default runs/NAME-DATE."""
    seed: int = 0
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
    run: Run = field(default_factory=Run)

    def with_(self, **changes: Any) -> TrainConfig:
        """The same with some fields changed, by the names that the command line has for them: `with_(lr=1e-3)`."""
        groups: dict[str, dict[str, Any]] = {}
        for name, value in changes.items():
            groups.setdefault(group_of(name), {})[name] = value
        return replace(self, **{group: replace(getattr(self, group), **new) for group, new in groups.items()})

    def flat(self) -> dict[str, Any]:
        """Every field by its own name."""
        return {name: value for group in asdict(self).values() for name, value in group.items()}

    @classmethod
    def from_flat(cls, values: dict[str, Any]) -> TrainConfig:
        """What `flat` gave, also after a way through JSON."""
        return cls().with_(**{name: tuple(v) if isinstance(v, list) else v for name, v in values.items()})


def group_of(name: str) -> str:
    homes = {f.name: group.name for group in fields(TrainConfig) for f in fields(group.default_factory)}  # type: ignore
    if name not in homes:
        near = get_close_matches(name, homes, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there is {', '.join(homes)}"
        raise VitreousError(f"TrainConfig has no field {name!r}; {hint}")
    return homes[name]
