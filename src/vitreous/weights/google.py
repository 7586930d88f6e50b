"""Google's `.npz` checkpoints: ViT and hybrids (vision_transformer), big_vision, and BiT of TensorFlow and big_vision.

Tensor names and layouts are in google_tensors.py.
"""

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from vitreous.errors import VitreousError
from vitreous.models.resnet import BiTConfig, ResNetConfig
from vitreous.models.vit import ViTConfig
from vitreous.preprocessing import preset
from vitreous.utils.sizes import pair
from vitreous.weights.checkpoint import Checkpoint, Config, native_size
from vitreous.weights.compatibility import (
    CompatibilityCheck,
    add_zero_qkv_biases,
    fit_class_position,
    lost_settings,
)
from vitreous.weights.dialect import Dialect, Hints, ParsedCheckpoint, WritePlan
from vitreous.weights.dialect_names import DialectName
from vitreous.weights.google_tensors import (
    PREFIXES,
    ROOTS,
    big_vision_tensor_map,
    bit_tensor_map,
    released_vit_tensor_map,
    to_big_vision_name,
)
from vitreous.weights.infer_config import infer_position_grid
from vitreous.weights.load_report import Remarks
from vitreous.weights.tensor_map import DialectTensor
from vitreous.weights.tensors import Tensors

# Names of the released ViTs that big_vision does not use.
_RELEASED_NAMES = re.compile(r".*(encoderblock(_\d+)?/LayerNorm_2/|posembed_input/|conv_root/)")
_MAX_SCANNED_LAYERS = 10_000


# ---------------------------------------------------------------- reading


class _BigVisionTensors:
    """The tensors of a file by big_vision's current names. A name may stand for one layer of a scanned tensor."""

    def __init__(self, tensors: Tensors):
        self.tensors = tensors
        self.prefix = _prefix(tensors) or ""
        self.stored: dict[str, tuple[str, int | None]] = {}  # name -> name in the file, layer
        for file_name in tensors:
            if not file_name.startswith(self.prefix):
                continue
            name = to_big_vision_name(file_name.removeprefix(self.prefix))
            shape = tensors.shape(file_name)
            layers: Iterable[tuple[str, int | None]] = [(name, None)]
            if name.startswith("Transformer/encoderblock/") and shape:
                count = min(shape[0], _MAX_SCANNED_LAYERS)
                layers = ((name.replace("block/", f"block_{i}/", 1), i) for i in range(count))
            for layer_name, layer in layers:
                if layer_name in self.stored:
                    raise VitreousError(f"{file_name} and {self.stored[layer_name][0]} are both {layer_name}")
                self.stored[layer_name] = (file_name, layer)

    def __contains__(self, name: str) -> bool:
        return name in self.stored

    def shape(self, name: str, rank: int) -> tuple[int, ...]:
        """Return the shape of a tensor; raise an error if it is missing, empty or has another rank."""
        if name not in self.stored:
            raise VitreousError(f"{name} is missing")
        file_name, layer = self.stored[name]
        shape = self.tensors.shape(file_name)[0 if layer is None else 1 :]
        if name == "head/kernel" and len(shape) == 4 and shape[:2] == (1, 1):
            shape = shape[2:]
        if len(shape) != rank or 0 in shape:
            raise VitreousError(f"{name} has shape {shape}, expected {rank} dimensions, none of them empty")
        return shape

    def count(self, pattern: str, first: int = 0) -> int:
        """Return how many numbers, consecutive from `first`, the first group of a pattern matches."""
        numbers = {int(match[1]) for match in map(re.compile(pattern).match, self.stored) if match}
        if numbers and numbers != set(range(first, first + len(numbers))):
            raise VitreousError(f"numbers {sorted(numbers)} of {pattern} have a gap")
        return len(numbers)

    def locate(self, tensor: DialectTensor) -> DialectTensor:
        """Replace big_vision's names by the names in the file."""
        stored = [self.stored.get(name, (self.prefix + name, None)) for name in tensor.names]
        return replace(tensor, names=tuple(file_name for file_name, _ in stored), layer=stored[0][1])


def _prefix(tensors: Tensors) -> str | None:
    """Return the prefix of the model's tensor names, or None if this is not a file of Google's."""
    return next((p for p in ("", *PREFIXES) for root in ROOTS if f"{p}{root}" in tensors), None)


def _matches_google(tensors: Tensors, config_json: dict[str, Any]) -> bool:
    """Whether any of the three dialects of this module matches: `_read` tells them apart."""
    return _prefix(tensors) is not None


def _read(tensors: Tensors, hints: Hints) -> ParsedCheckpoint:
    """Read a file of any of the three dialects."""
    renamed = _BigVisionTensors(tensors)
    notes: list[str] = []
    config: Config
    dialect: DialectName
    if "embedding/kernel" in renamed:
        config = _infer_vit_config(renamed, hints, notes)
        dialect = "google" if any(map(_RELEASED_NAMES.match, tensors)) else "big-vision"
    else:
        config = _infer_bit_config(renamed, tensorflow=any("resnet/" in name for name in tensors))
        dialect = "bit"
    outside = f"not under {renamed.prefix}, where the model is"
    return ParsedCheckpoint(
        dialect=dialect,
        config=config,
        tensor_map={parameter: renamed.locate(tensor) for parameter, tensor in big_vision_tensor_map(config).items()},
        # Google's code squashes images to [-1, 1] with TensorFlow's bilinear resize, which does not antialias.
        preprocessing=preset("google", pair(config.image_size), config.channels),
        ignored={name: outside for name in tensors if not name.startswith(renamed.prefix)},
        remarks=Remarks(notes),
    )


def _infer_vit_config(tensors: _BigVisionTensors, hints: Hints, notes: list[str]) -> ViTConfig:
    """Infer the config from shapes. Google's code fixes the rest: epsilon 1e-6, tanh GELU, norm before pooling."""
    *patch, channels, width = tensors.shape("embedding/kernel", 4)
    backbone = _infer_resnet_config(tensors) if "conv_root/kernel" in tensors else None
    block = "Transformer/encoderblock_0"
    stride = 1 if backbone is None else backbone.stride
    patch_pixels = (patch[0] * stride, patch[1] * stride)
    has_class_token = "cls" in tensors
    slots, grid = "patches", (14, 14)  # sine-cosine positions are not stored: any size works, and 14 x 14 is usual
    size = None if "pos_embedding" in tensors else hints.image_size
    if "pos_embedding" in tensors:
        entries = tensors.shape("pos_embedding", 3)[1]
        candidates = {"class": 1, "patches": 0} if has_class_token else {"patches": 0}
        slots, grid = infer_position_grid(entries, candidates, patch_pixels, hints, notes)
    depth = tensors.count(r"Transformer/encoderblock_(\d{1,4})/")
    heads = tensors.shape(f"{block}/MultiHeadDotProductAttention_0/query/kernel", 3)[1]
    if hints.heads not in (None, heads):
        raise VitreousError(f"heads = {hints.heads}, but the file has {heads}")
    return ViTConfig(
        image_size=size or (grid[0] * patch_pixels[0], grid[1] * patch_pixels[1]),
        patch_size=(patch[0], patch[1]),
        channels=channels if backbone is None else tensors.shape("conv_root/kernel", 4)[2],
        width=width,
        depth=depth,
        heads=heads,
        mlp_dim=tensors.shape(f"{block}/MlpBlock_0/Dense_0/kernel", 2)[1],
        pool="map" if "MAPHead_0/probe" in tensors else "token" if has_class_token else "gap",
        class_token=has_class_token,
        representation_size=tensors.shape("pre_logits/kernel", 2)[1] if "pre_logits/kernel" in tensors else None,
        num_classes=tensors.shape("head/kernel", 2)[1] if "head/kernel" in tensors else 0,
        position="learned-1d" if "pos_embedding" in tensors else "sincos-2d",
        position_slots=slots,  # type: ignore[arg-type]
        backbone=backbone,
    )


def _infer_bit_config(tensors: _BigVisionTensors, tensorflow: bool) -> BiTConfig:
    resnet = _infer_resnet_config(tensors)
    root = "conv_root/kernel" if resnet.activation == "post" else "root_block/conv_root/kernel"
    return BiTConfig(
        blocks=resnet.blocks,
        width_factor=resnet.width_factor,
        activation=resnet.activation,
        stem=resnet.stem,
        # The TensorFlow code, which wrote the released files, pads the max-pool with zeros. big_vision does not.
        pool_border="zeros" if tensorflow else "nothing",
        channels=tensors.shape(root, 4)[2],
        num_classes=tensors.shape("head/kernel", 2)[1] if "head/kernel" in tensors else 0,
    )


def _infer_resnet_config(tensors: _BigVisionTensors) -> ResNetConfig:
    post = "conv_root/kernel" in tensors
    kernel = tensors.shape("conv_root/kernel" if post else "root_block/conv_root/kernel", 4)
    stages = tensors.count(r"block(\d{1,4})/unit", first=1)
    return ResNetConfig(
        blocks=tuple(tensors.count(rf"block{stage}/unit(\d{{1,4}})/", first=1) for stage in range(1, stages + 1)),
        width_factor=kernel[3] / 64,
        activation="post" if post else "pre",
        stem="small" if kernel[0] == 3 else "imagenet",
    )


# ---------------------------------------------------------------- writing


def _write_released_vit(checkpoint: Checkpoint, config: ViTConfig) -> WritePlan:
    """Plan a file with the names of the ViTs that Google released."""
    check = _check_vit(config)
    check.require("pool", "token", "gap", reason="it pools with the class token or the mean of the patches")
    check.require("position", "learned-1d", reason="it has learned 1-D positions")
    if config.backbone is not None and config.backbone.activation != "post":
        check.reject("backbone", "its hybrids have a post-activation ResNet")
    plan = _plan(config, check.incompatibilities)
    fit_class_position(plan, checkpoint, config, required=True)
    plan.tensor_map = released_vit_tensor_map(add_zero_qkv_biases(plan, checkpoint, config))
    return plan


def _write_big_vision(checkpoint: Checkpoint, config: ViTConfig) -> WritePlan:
    check = _check_vit(config)
    check.require("backbone", None, reason="it has no hybrids")
    check.require("pool", "token", "gap", "map", reason="its models always pool")
    check.require("position", "learned-1d", "sincos-2d", reason="it has learned 1-D or 2-D sine-cosine positions")
    plan = _plan(config, check.incompatibilities)
    fit_class_position(plan, checkpoint, config, required=False)
    plan.tensor_map = big_vision_tensor_map(add_zero_qkv_biases(plan, checkpoint, config))
    return plan


def _write_bit(checkpoint: Checkpoint, config: BiTConfig) -> WritePlan:
    """Plan a file of a BiT. Readers infer the padding of the max-pool from the names: zeros in TensorFlow, none in
    big_vision."""
    plan = _plan(config, [])
    plan.tensor_map = bit_tensor_map(
        config, tensorflow=config.pool_border == "zeros", two_digit_units=config.activation == "pre"
    )
    return plan


def _plan(config: Config, incompatibilities: list[str]) -> WritePlan:
    """Return a plan without its tensor map. Readers infer the preprocessing from the size that they find."""
    if isinstance(config, BiTConfig):
        size = (224, 224)
    else:
        size = native_size(config) if config.position == "learned-1d" else native_size(_with_default_grid(config))
    return WritePlan(
        incompatibilities=incompatibilities,
        notes=lost_settings(config),
        assumed_preprocessing=preset("google", size, config.channels),
    )


def _with_default_grid(config: ViTConfig) -> ViTConfig:
    """Return the config with a grid of 14 x 14, which `_infer_vit_config` assumes for files without positions."""
    height, width = pair(config.patch_size)
    stride = 1 if config.backbone is None else config.backbone.stride
    return replace(config, image_size=(14 * height * stride, 14 * width * stride))


def _check_vit(config: ViTConfig) -> CompatibilityCheck:
    check = CompatibilityCheck(config)
    check.require("registers", 0, reason="it has no registers")
    check.require("final_norm", "before-pool", reason="its final norm comes before pooling")
    check.require("position_at", "stem", reason="it adds positions once")
    check.require("attention", "full", reason="every token attends to all tokens")
    check.require_resampling("google")
    check.require("mlp", "gelu", reason="it has no SwiGLU")
    check.require("gelu", "tanh", reason="it has the tanh GELU")
    check.require("norm_eps", 1e-6, reason="its norms have epsilon 1e-6")
    check.require("qk_norm", False, reason="it has no q/k norm")
    check.require("layer_scale", None, reason="it has no LayerScale")
    check.require("position_slots", "class", "patches", reason="it has no registers")
    rows, cols = config.grid
    if config.position == "learned-1d" and rows != cols:
        check.reject("image_size", "its files do not contain the grid: readers assume a square")
    if config.class_token != (config.pool == "token"):
        check.reject("class_token", "it has a class token only if it pools with it")
    return check


GOOGLE = Dialect("google", _matches_google, _read, _write_released_vit, (".npz",))
BIG_VISION = Dialect("big-vision", _matches_google, _read, _write_big_vision, (".npz",))
BIT = Dialect("bit", _matches_google, _read, _write_bit, (".npz",), (BiTConfig,))
