"""Parameters by name: their layer, weight decay, name patterns, and the matrices for Muon."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase

from torch import Tensor, nn

from vitreous.errors import VitreousError
from vitreous.models import BiT, VisionTransformer
from vitreous.models.custom import CustomModel

BLOCK = re.compile(r"blocks\.(\d+)\.")
UNIT = re.compile(r"backbone\.stages\.(\d+)\.(\d+)\.")
MATRIX = re.compile(r"blocks\.\d+\.(?:attn\.(qkv|proj)|mlp\.(fc1|fc2))\.weight")
VIT_START: tuple[str, ...] = (
    "patch_embed",
    "cls_token",
    "reg_token",
    "backbone",
    "pos_embed",
    "rel_pos_embed",
    "mask_token",
)
VIT_END: tuple[str, ...] = ("norm", "fc_norm", "attn_pool", "pre_logits", "head", "patch_head")
BIT_START, BIT_END = ("backbone.stem",), ("backbone.norm", "head")


def takes_weight_decay(name: str, parameter: Tensor) -> bool:
    """Whether weight decay applies: to weights of linear layers and convolutions, not to norms, biases, LayerScale,
    position embeddings, tokens and the query of attention pooling."""
    return parameter.ndim > 1 and name.rpartition(".")[2] == "weight"


def last_layer(model: VisionTransformer | BiT) -> int:
    """The layer of the head."""
    return 1 + (sum(model.config.blocks) if isinstance(model, BiT) else model.config.depth)


def layer_of(name: str, model: VisionTransformer | BiT) -> int:
    """The layer of a parameter, for layer-wise learning-rate decay.

    0: everything before the first block (of a hybrid, the whole ResNet) and all position embeddings; then one layer for
    each block of a ViT or unit of a BiT; the last: final norm, pooling and head.
    """
    start, end = VIT_START, VIT_END
    if isinstance(model, BiT):
        if unit := UNIT.match(name):
            return 1 + sum(model.config.blocks[: int(unit[1])]) + int(unit[2])
        start, end = BIT_START, BIT_END
    elif block := BLOCK.match(name):
        return 1 + int(block[1])
    if name.startswith(tuple(f"{part}." for part in end)):
        return last_layer(model)
    if name.startswith(start):
        return 0
    raise VitreousError(f"{type(model).__name__} has no parameter {name!r}")


def layer_decay_factors(
    model: VisionTransformer | BiT | CustomModel, names: Iterable[str], decay: float
) -> dict[str, float]:
    """The factor of layer-wise learning-rate decay of each parameter."""
    if decay == 1:
        return dict.fromkeys(names, 1.0)
    if isinstance(model, CustomModel):
        raise VitreousError("layer_decay: the layers of a model of your own are not known; use lr_multipliers")
    last = last_layer(model)
    return {name: decay ** (last - layer_of(name, model)) for name in names}


def muon_matrices(model: VisionTransformer | BiT | CustomModel) -> dict[str, int]:
    """The weight matrices of the encoder blocks by name, each with the number of matrices that it consists of: 3 for
    queries, keys and values, 2 for gate and value of SwiGLU."""
    if not isinstance(model, VisionTransformer):
        return {}
    counts = {"qkv": 3, "fc1": 2 if model.config.mlp == "swiglu" else 1}
    matches = {name: MATRIX.fullmatch(name) for name, _ in model.named_parameters()}
    return {name: counts.get(match[1] or match[2], 1) for name, match in matches.items() if match}


@dataclass(frozen=True)
class TrainablePart:
    """The part of a model that is trained."""

    parameters: int
    layer_fraction: float  # of the layers, from the lowest trained one up: lower ones keep no activations for backward
    all_parameters: int  # with frozen ones and adapters


def trainable_part(model: VisionTransformer | BiT | CustomModel) -> TrainablePart:
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    count, total = (sum(p.numel() for p in some) for some in (trained.values(), model.parameters()))
    if isinstance(model, CustomModel):
        return TrainablePart(count, 1.0, total)
    last = last_layer(model)
    lowest = min((layer_of(name, model) for name in trained), default=last)
    return TrainablePart(count, (last - lowest + 1) / (last + 1), total)


def freeze_(model: nn.Module, patterns: Iterable[str]) -> None:
    """Freeze parameters whose names match one of the patterns. "!PATTERN" matches all names that PATTERN does not."""
    parameters = dict(model.named_parameters())
    frozen: set[str] = set()
    for pattern in patterns:
        frozen |= matching_names(pattern, parameters.keys())
    if parameters and all(name in frozen or not p.requires_grad for name, p in parameters.items()):
        raise VitreousError("freeze: every parameter is frozen, so there is nothing to train")
    for name in frozen:
        parameters[name].requires_grad_(False)


def matching_names(pattern: str, names: Iterable[str]) -> set[str]:
    """The names that a pattern of `freeze` matches. It is an error if PATTERN itself matches none."""
    names = list(names)
    matches = set(_match(pattern.removeprefix("!"), names, "freeze", "parameter"))
    return set(names) - matches if pattern.startswith("!") else matches


def lr_factors(names: Iterable[str], rules: Iterable[str]) -> dict[str, float]:
    """For each name, the product of the factors of the rules "PATTERN=FACTOR" that match it."""
    product = dict.fromkeys(names, 1.0)
    for rule in rules:
        pattern, _, text = rule.rpartition("=")
        try:
            factor = float(text)
        except ValueError:
            factor = math.nan
        if not pattern.strip() or not 0 <= factor < math.inf:
            raise VitreousError(
                f"lr_multipliers: {rule!r} is not PATTERN=FACTOR with a factor of 0 or more, such as 'head.*=10'"
            )
        for name in _match(pattern.strip(), product, "lr_multipliers", "parameter that is trained"):
            product[name] *= factor
    return product


def _match(pattern: str, names: Iterable[str], option: str, what: str) -> list[str]:
    if matches := [name for name in names if fnmatchcase(name, pattern)]:
        return matches
    near = get_close_matches(pattern.strip("*"), names, n=3, cutoff=0.4)
    first = list(dict.fromkeys(name.partition(".")[0] for name in names))
    hint = f"similar names: {', '.join(near)}" if near else f"names start with {', '.join(first)}"
    raise VitreousError(f"{option}: {pattern!r} matches no {what}; {hint}")
