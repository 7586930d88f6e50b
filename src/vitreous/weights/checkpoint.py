"""What passes between a dialect and the rest: a checkpoint read, and a checkpoint about to be written."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch

from vitreous.errors import VitreousError
from vitreous.models.checks import Grid, Size, pair
from vitreous.models.resnet import BiT, BiTConfig
from vitreous.models.vit import VisionTransformer, ViTConfig
from vitreous.models.zoo import build
from vitreous.preprocessing import Preprocessing
from vitreous.weights.files import Tensors
from vitreous.weights.places import Place, Places, State
from vitreous.weights.report import LoadReport

Config = ViTConfig | BiTConfig
Labels = tuple[str, ...] | None


@dataclass
class Hints:
    """What else is known of a file: from the folder it lies in, or from who asked for it."""

    settings: dict[str, Any] = field(default_factory=dict)  # config.json
    processor: dict[str, Any] = field(default_factory=dict)  # preprocessor_config.json
    heads: int | None = None
    native_size: Size | None = None  # the file's own, where its folder tells
    image_size: Size | None = None  # the one asked for: a last resort where positions are not a square
    features_only: bool = False  # its head will not be used


@dataclass
class Found:
    """A dialect's account of a file."""

    dialect: str
    config: Config
    places: Places
    preprocessing: Preprocessing
    labels: Labels = None
    multi_label: bool = False
    ignored: dict[str, str] = field(default_factory=dict)  # tensor -> the rule
    extras: Places = field(default_factory=dict)  # kept for the way back, but no part of the model: the mask token
    notes: list[str] = field(default_factory=list)
    origin: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Checkpoint:
    """A model's weights in our own layout, and everything that travels with them."""

    config: Config
    state: State
    preprocessing: Preprocessing
    labels: Labels
    report: LoadReport
    extras: State = field(default_factory=dict)
    multi_label: bool = False


@dataclass
class Form:
    """How a dialect would write a checkpoint."""

    places: Places = field(default_factory=dict)
    objections: list[str] = field(default_factory=list)  # what it cannot express
    notes: list[str] = field(default_factory=list)  # what it has no place for, without harm to the numbers
    documents: dict[str, dict[str, Any]] = field(default_factory=dict)  # JSON files of its folder
    state: State = field(default_factory=dict)  # our tensors that it wants changed
    fill: State = field(default_factory=dict)  # tensors its program insists on, by their names
    assumes: Preprocessing | None = None  # what a reader of it will take, where it cannot carry preprocessing
    carries_labels: bool = False


def native_size(config: ViTConfig) -> tuple[int, int]:
    """The size that a reader will find, where it counts positions: whole patches."""
    (rows, cols), (height, width) = config.grid, pair(config.patch_size)
    stride = 1 if config.backbone is None else config.backbone.stride
    return rows * height * stride, cols * width * stride


def meta_model(config: Config) -> VisionTransformer | BiT:
    """The model of a config without its memory: the one that its shapes were read from, if nobody has taken it."""
    return SPARE.pop(config, None) or _build(config)


def _build(config: Config) -> VisionTransformer | BiT:
    try:
        with torch.device("meta"):
            return build(config)
    except (RuntimeError, TypeError, OverflowError) as error:  # a number that no tensor's size can be
        raise VitreousError(f"no model can be as large as its config says ({error})") from error


SPARE: dict[Config, VisionTransformer | BiT] = {}


@lru_cache(maxsize=8)
def parameter_shapes(config: Config) -> Mapping[str, tuple[int, ...]]:
    model = _build(config)
    SPARE.clear()
    SPARE[config] = model
    return {name: tuple(p.shape) for name, p in model.named_parameters()}


# ---------------------------------------------------------------- reading a ViT from tensors that go by other names

Rename = Callable[[str], tuple[str, ...]]  # our name -> theirs, or its parts' names


class View:
    """A file under our names."""

    def __init__(self, tensors: Tensors, rename: Rename):
        self.tensors, self.rename = tensors, rename

    def __contains__(self, ours: str) -> bool:
        return all(name in self.tensors for name in self.rename(ours))

    def shape(self, ours: str, rank: int) -> tuple[int, ...]:
        """Shape of a tensor that the config is read from."""
        names = self.rename(ours)
        rows, rest = 0, None
        for name in names:
            if name not in self.tensors:
                raise VitreousError(f"{name} is missing")
            shape = self.tensors.shape(name)
            if len(shape) != rank or 0 in shape:
                raise VitreousError(f"{name} has shape {shape}, expected {rank} dimensions, none of them empty")
            rows, rest = rows + shape[0], shape[1:]
        return (rows, *(rest or ()))

    def count(self, pattern: str) -> int:
        """How many layers have this tensor, from 0 on without a gap."""
        layers = 0
        while pattern.format(layers) in self:
            layers += 1
        return layers

    def places(self, config: Config) -> Places:
        return places_for(config, self.rename)


def places_for(config: Config, rename: Rename, known: str = "") -> Places:
    """Where a dialect that only renames keeps everything; or everything that it has a name for."""
    return {ours: Place(rename(ours)) for ours in parameter_shapes(config) if re.match(known, ours)}


def infer(view: View, hints: Hints, notes: list[str], slots: tuple[str, ...], **known: Any) -> dict[str, Any]:
    """Fields of a ViTConfig that the shapes tell. `known` are the dialect's own; `slots` are the layouts of positions
    it may have, the likeliest first."""
    width, channels, *patch = view.shape("patch_embed.proj.weight", 4)
    depth = view.count("blocks.{}.norm1.weight")
    if not depth:
        raise VitreousError("it has a patch embedding but no layers")
    first, second = view.shape("blocks.0.mlp.fc1.weight", 2), view.shape("blocks.0.mlp.fc2.weight", 2)
    class_token = "cls_token" in view
    registers = view.shape("reg_token", 3)[1] if "reg_token" in view else 0
    pool = "map" if "attn_pool.latent" in view else "token" if class_token else "gap"
    fields = {
        "patch_size": (patch[0], patch[1]),
        "channels": channels,
        "width": width,
        "depth": depth,
        "mlp_dim": second[1],
        "mlp": "swiglu" if first[0] == 2 * second[1] else "gelu",
        "class_token": class_token,
        "registers": registers,
        "pool": pool,
        "qkv_bias": "blocks.0.attn.qkv.bias" in view,
        "qk_norm": "blocks.0.attn.q_norm.weight" in view,
        "layer_scale": 1e-5 if "blocks.0.ls1.gamma" in view else None,
        "representation_size": view.shape("pre_logits.weight", 2)[0] if "pre_logits.weight" in view else None,
        "num_classes": view.shape("head.weight", 2)[0] if "head.weight" in view else 0,
    }
    if "blocks.0.attn.q_norm.weight" in view:
        fields["heads"] = width // view.shape("blocks.0.attn.q_norm.weight", 1)[0]
    if known.get("position", "learned-1d") == "learned-1d":
        entries = view.shape("pos_embed", 3)[1]
        layouts = {"patches": 0} | ({"class": 1} if class_token else {})
        layouts |= {"all": int(class_token) + registers} if registers else {}
        choices = {kind: layouts[kind] for kind in slots if kind in layouts}
        kind, grid = split_positions(entries, choices, (patch[0], patch[1]), hints, notes)
        fields |= {"position_slots": kind, "image_size": (grid[0] * patch[0], grid[1] * patch[1])}
    fields |= known
    if fields.get("heads") is None or hints.heads is not None:
        fields["heads"] = (
            hints.heads if hints.heads is not None else guess_heads(width, fields["mlp"] == "swiglu", notes)
        )
    return fields


def split_positions(
    entries: int, choices: Mapping[str, int], patch: tuple[int, int], hints: Hints, notes: list[str]
) -> tuple[str, Grid]:
    """Which tokens besides the patches have a position, and the grid of the patches.

    The file holds a length and nothing else: a known size decides, then a square, then the size that was asked for.
    """
    told, asked = _grid(hints.native_size, patch), _grid(hints.image_size, patch)
    for kind, slots in choices.items():
        if told is not None and entries - slots == math.prod(told):
            return kind, told
    for kind, slots in choices.items():
        side = math.isqrt(max(entries - slots, 0))
        if side and side * side == entries - slots:
            if told is not None:
                notes.append(f"positions are {side} x {side}, not the {told[0]} x {told[1]} that config.json tells of")
            elif asked not in (None, (side, side)) and math.prod(asked or ()) == side * side:
                notes.append(
                    f"{side * side} positions are taken as {side} x {side}, and resampled to the size asked for"
                )
            return kind, (side, side)
    for kind, slots in choices.items():
        if asked is not None and entries - slots == math.prod(asked):
            notes.append(
                f"{entries - slots} positions are not a square: taken as the {asked[0]} x {asked[1]} asked for"
            )
            return kind, asked
    if not choices:
        raise VitreousError(f"{entries} positions, and no class token: not one of its models")
    raise VitreousError(
        f"{entries} positions are not a square grid; the file does not tell its own size:"
        " give it as image_size=(height, width), --image-size"
    )


def _grid(size: Size | None, patch: tuple[int, int]) -> Grid | None:
    if size is None:
        return None
    height, width = pair(size, "image_size")
    rows, cols = height // patch[0], width // patch[1]
    return (rows, cols) if rows and cols else None


def guess_heads(width: int, swiglu: bool, notes: list[str]) -> int:
    """Tensors do not tell the number of heads. Nearly everywhere they are 64 wide; the big ones of Google have 16."""
    sixteen = width in (1152, 1280, 1408, 1664) or (width == 1536 and not swiglu)
    heads = 16 if sixteen else 0 if width % 64 else width // 64
    if not heads:
        raise VitreousError(
            f"the file does not tell how many heads it has, and {width} is no usual width: give heads= (--heads)"
        )
    notes.append(
        f"heads: {heads} is a guess, the usual number at width {width}; give heads= (--heads) if it is another"
    )
    return heads
