"""Infer a ViTConfig from the names and shapes of the tensors in a file."""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from vitreous.errors import VitreousError
from vitreous.models.checks import Grid
from vitreous.utils.sizes import Size, pair
from vitreous.weights.checkpoint import Config, parameter_shapes
from vitreous.weights.dialect import Hints
from vitreous.weights.load_report import Remarks
from vitreous.weights.tensor_map import DialectTensor, TensorMap
from vitreous.weights.tensors import Tensors

Rename = Callable[[str], tuple[str, ...]]  # parameter name -> tensor names of the dialect; several are concatenated


class RenamedTensors:
    """The tensors of a file, addressed by parameter names."""

    def __init__(self, tensors: Tensors, rename: Rename):
        self.tensors, self.rename = tensors, rename

    def __contains__(self, parameter: str) -> bool:
        return all(name in self.tensors for name in self.rename(parameter))

    def shape(self, parameter: str, rank: int) -> tuple[int, ...]:
        """Return the shape of a parameter; raise an error if it is missing, empty or has another rank."""
        rows, rest = 0, None
        for name in self.rename(parameter):
            if name not in self.tensors:
                raise VitreousError(f"{name} is missing")
            shape = self.tensors.shape(name)
            if len(shape) != rank or 0 in shape:
                raise VitreousError(f"{name} has shape {shape}, expected {rank} dimensions, none of them empty")
            rows, rest = rows + shape[0], shape[1:]
        return (rows, *(rest or ()))

    def count_layers(self, pattern: str) -> int:
        """Return the number of consecutive layers, from 0 on, that have this parameter."""
        layers = 0
        while pattern.format(layers) in self:
            layers += 1
        return layers

    def tensor_map(self, config: Config) -> TensorMap:
        return rename_parameters(config, self.rename)


def rename_parameters(config: Config, rename: Rename, known: str = "") -> TensorMap:
    """Return the tensor map of a dialect that only renames tensors, for the parameters that match `known`."""
    return {name: DialectTensor(rename(name)) for name in parameter_shapes(config) if re.match(known, name)}


def infer_config_fields(
    tensors: RenamedTensors, hints: Hints, remarks: Remarks, position_slots: tuple[str, ...], **known: Any
) -> dict[str, Any]:
    """Return the fields of a ViTConfig that follow from tensor shapes. `known`: fields that the dialect determines;
    `position_slots`: values of that field that the dialect allows, the most likely first."""
    width, channels, *patch = tensors.shape("patch_embed.proj.weight", 4)
    depth = tensors.count_layers("blocks.{}.norm1.weight")
    if not depth:
        raise VitreousError("it has a patch embedding but no layers")
    fc1, fc2 = tensors.shape("blocks.0.mlp.fc1.weight", 2), tensors.shape("blocks.0.mlp.fc2.weight", 2)
    class_token = "cls_token" in tensors
    registers = tensors.shape("reg_token", 3)[1] if "reg_token" in tensors else 0
    fields = {
        "patch_size": (patch[0], patch[1]),
        "channels": channels,
        "width": width,
        "depth": depth,
        "mlp_dim": fc2[1],
        "mlp": "swiglu" if fc1[0] == 2 * fc2[1] else "gelu",
        "class_token": class_token,
        "registers": registers,
        "pool": "map" if "attn_pool.latent" in tensors else "token" if class_token else "gap",
        "qkv_bias": "blocks.0.attn.qkv.bias" in tensors,
        "qk_norm": "blocks.0.attn.q_norm.weight" in tensors,
        "layer_scale": 1e-5 if "blocks.0.ls1.gamma" in tensors else None,
        "representation_size": tensors.shape("pre_logits.weight", 2)[0] if "pre_logits.weight" in tensors else None,
        "num_classes": tensors.shape("head.weight", 2)[0] if "head.weight" in tensors else 0,
    }
    if "blocks.0.attn.q_norm.weight" in tensors:
        fields["heads"] = width // tensors.shape("blocks.0.attn.q_norm.weight", 1)[0]
    if known.get("position", "learned-1d") == "learned-1d":
        entries = tensors.shape("pos_embed", 3)[1]
        slot_counts = {"patches": 0} | ({"class": 1} if class_token else {})
        slot_counts |= {"all": int(class_token) + registers} if registers else {}
        candidates = {slots: slot_counts[slots] for slots in position_slots if slots in slot_counts}
        slots, grid = infer_position_grid(entries, candidates, (patch[0], patch[1]), hints, remarks.notes)
        size = (grid[0] * patch[0], grid[1] * patch[1])
        if hints.native_size is not None and _grid_of(hints.native_size, (patch[0], patch[1])) == grid:
            # 384 px with patches of 14: the model sees 384 px, and its convolution drops the last 6.
            fields |= {} if pair(hints.native_size) == size else {"remainder": "crop"}
            size = pair(hints.native_size)
        fields |= {"position_slots": slots, "image_size": size}
    fields |= known
    if known.get("heads") is not None and hints.heads not in (None, known["heads"]):
        raise VitreousError(f"heads = {hints.heads}, but config.json says {known['heads']}")
    if hints.heads is not None:
        fields["heads"] = hints.heads
    elif fields.get("heads") is None:
        fields["heads"] = _guess_heads(width, fields["mlp"] == "swiglu", remarks)
    return fields


def infer_position_grid(
    entries: int, candidates: Mapping[str, int], patch: tuple[int, int], hints: Hints, notes: list[str]
) -> tuple[str, Grid]:
    """Return which tokens besides the patches have a positional embedding, and the grid of the patches.

    `entries` is the length of the table, `candidates` the number of other tokens for each value of `position_slots`.
    The length alone is ambiguous. In this order: the size in config.json, a square grid, the requested size.
    """
    native, requested = _grid_of(hints.native_size, patch), _grid_of(hints.image_size, patch)
    for kind, slots in candidates.items():
        if native is not None and entries - slots == math.prod(native):
            return kind, native
    for kind, slots in candidates.items():
        side = math.isqrt(max(entries - slots, 0))
        if side and side * side == entries - slots:
            if native is not None:
                notes.append(f"positions are {side} x {side}, not {native[0]} x {native[1]} as in config.json")
            elif requested not in (None, (side, side)) and math.prod(requested or ()) == side * side:
                notes.append(
                    f"{side * side} positions are read as {side} x {side}, and resampled to the requested size"
                )
            return kind, (side, side)
    for kind, slots in candidates.items():
        if requested is not None and entries - slots == math.prod(requested):
            notes.append(
                f"{entries - slots} positions are not a square grid: read as {requested[0]} x {requested[1]}, the"
                " requested size"
            )
            return kind, requested
    if not candidates:
        raise VitreousError(f"{entries} positions and no class token: no model of this format has that")
    raise VitreousError(
        f"{entries} positions are not a square grid, and the file does not contain the image size:"
        " set image_size=(height, width), --image-size"
    )


def _grid_of(size: Size | None, patch: tuple[int, int]) -> Grid | None:
    if size is None:
        return None
    height, width = pair(size, "image_size")
    rows, cols = height // patch[0], width // patch[1]
    return (rows, cols) if rows and cols else None


def _guess_heads(width: int, swiglu: bool, remarks: Remarks) -> int:
    """Return the usual number of heads for a width. Most models have heads of width 64; Google's largest have 16
    heads."""
    has_16_heads = width in (1152, 1280, 1408, 1664) or (width == 1536 and not swiglu)
    heads = 16 if has_16_heads else 0 if width % 64 else width // 64
    if not heads:
        raise VitreousError(
            f"the file does not contain the number of heads, and {width} is not a usual width: set heads= (--heads)"
        )
    remarks.guesses["heads"] = f"{heads}, the usual number at width {width} (to change it: heads=, --heads)"
    return heads
