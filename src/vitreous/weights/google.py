"""Google's `.npz` checkpoints: ViT and hybrids (vision_transformer), big_vision, and both BiTs.

Names come in several generations. They are first brought to one (`modernise`), that of today's big_vision:

    embedding, cls, pos_embedding, Transformer/encoderblock_0/{LayerNorm_0, MultiHeadDotProductAttention_0, LayerNorm_1,
    MlpBlock_0}, Transformer/encoder_norm, MAPHead_0, pre_logits, head; conv_root, gn_root, block1/unit1/{conv1, gn1}

Kernels are stored inputs first: (in, out), (height, width, in, out), and (in, heads, d) for q, k and v.
"""

import math
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.errors import VitreousError
from vitreous.models.checks import Grid, Size, pair
from vitreous.models.embed import patch_grid
from vitreous.models.resnet import BiT, BiTConfig, ResNetConfig
from vitreous.models.vit import VisionTransformer, ViTConfig
from vitreous.models.zoo import build
from vitreous.weights.resize import State, resize

Array = NDArray[Any]

RENAMES = (  # applied in this order
    (r"^(opt/target/|params/img/|params/)", ""),
    (r"^Transformer/(?:posembed_input/)?pos_embedding$", "pos_embedding"),
    (r"^(Transformer/encoderblock(?:_\d+)?)/LayerNorm_2/", r"\1/LayerNorm_1/"),
    (r"^(Transformer/encoderblock(?:_\d+)?)/MultiHeadDotProductAttention_1/", r"\1/MultiHeadDotProductAttention_0/"),
    (r"^(Transformer/encoderblock(?:_\d+)?)/MlpBlock_3/", r"\1/MlpBlock_0/"),
    (r"^(probe$|MlpBlock_0/|MultiHeadDotProductAttention_0/|LayerNorm_0/)", r"MAPHead_0/\1"),
    # BiT as TensorFlow wrote it: a, b, c are the three convolutions of a unit
    (r"/standardized_conv2d(?:_\d+)?/", "/"),
    (r"^resnet/root_block/kernel$", "root_block/conv_root/kernel"),
    (r"^resnet/group_norm/", "norm-pre-head/"),
    (r"^resnet/head/conv2d/", "head/"),
    (r"^resnet/(block\d+/unit\d+)/a/proj/", r"\1/conv_proj/"),
    *((rf"^resnet/(block\d+/unit\d+)/{letter}/group_norm/", rf"\1/gn{i}/") for i, letter in enumerate("abc", 1)),
    *((rf"^resnet/(block\d+/unit\d+)/{letter}/kernel$", rf"\1/conv{i}/kernel") for i, letter in enumerate("abc", 1)),
    (r"/gamma$", "/scale"),
    (r"/beta$", "/bias"),
    (r"^(block\d+/unit)0+(\d+/)", r"\1\2"),
)


def load(
    path: str | Path, *, image_size: Size | None = None, native_size: Size | None = None
) -> VisionTransformer | BiT:
    """The model in a Google `.npz` file, with its weights.

    `image_size` lays it out for another size than the file's, its positions resampled for good. `native_size` is the
    file's own: it does not tell, and its grid of positions is taken as square by default.
    """
    try:
        config, state = read(open_npz(path), native_size=native_size)
        if len(kinds := {str(tensor.dtype) for tensor in state.values()}) > 1:
            raise VitreousError(f"tensors of several types: {', '.join(sorted(kinds))}")
        if image_size is not None:
            config, state = resize(config, state, image_size)
        with torch.device("meta"):
            model = build(config)
        check_shapes(model, state)
    except VitreousError as error:
        raise VitreousError(f"{path}: {error}") from error
    if "head.weight" in state and not state["head.weight"].any():
        warnings.warn(f"{path}: the head is all zeros; its logits mean nothing until it is trained", stacklevel=2)
    model.load_state_dict(state, assign=True)
    return model


def check_shapes(model: VisionTransformer | BiT, state: State) -> None:
    """Every parameter of the model, and nothing else, in its shape."""
    expected = {name: tuple(p.shape) for name, p in model.named_parameters()}
    found = {name: tuple(t.shape) for name, t in state.items()}
    if expected != found:
        lines = [f"  - {name} {shape}" for name, shape in expected.items() if found.get(name) != shape]
        lines += [f"  + {name} {shape}" for name, shape in found.items() if expected.get(name) != shape]
        raise VitreousError("tensors do not fit the model (- wanted, + found):\n" + "\n".join(lines))


def open_npz(path: str | Path) -> dict[str, Array]:
    """All arrays of an `.npz` file. Nothing in it is executed."""
    try:
        with Path(path).open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise VitreousError("a single array, not an .npz archive")
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError as error:
        raise VitreousError("no such file") from error
    except VitreousError:
        raise
    except Exception as error:  # on broken files numpy lets through whatever its parsers raise
        raise VitreousError(f"not a readable .npz file ({error})") from error


def read(arrays: Mapping[str, Array], *, native_size: Size | None = None) -> tuple[ViTConfig | BiTConfig, State]:
    """Google's arrays -> the native config and state dict. Every array must find its place."""
    source = Source(modernise(arrays))
    released_bit = any("resnet/" in name for name in arrays)
    config: ViTConfig | BiTConfig
    if "embedding/kernel" in source:
        config, state = read_vit(source, native_size)
    elif "conv_root/kernel" in source or "root_block/conv_root/kernel" in source:
        config, state = read_bit(source, native_size, released_bit)
    else:
        some = ", ".join(list(arrays)[:4]) or "nothing at all"
        raise VitreousError(f"not a Google checkpoint: it has no patch embedding and no root convolution, but {some}")
    if source.missing:
        raise VitreousError(f"{len(source.missing)} tensors missing: {', '.join(source.missing[:8])}")
    if source:
        raise VitreousError(f"{len(source)} tensors have no place: {', '.join(sorted(source)[:8])}")
    return config, state


def modernise(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The same arrays under today's names, layers that were scanned taken apart."""
    modern: dict[str, Array] = {}
    for old, array in arrays.items():
        name = old
        for pattern, replacement in RENAMES:
            name = re.sub(pattern, replacement, name)
        if name == "head/kernel" and array.ndim == 4 and array.shape[:2] == (1, 1):
            array = array[0, 0]  # noqa: PLW2901 (BiT's head was a 1 x 1 convolution)
        layers = {name: array}
        if name.startswith("Transformer/encoderblock/") and array.ndim:
            layers = {name.replace("block/", f"block_{i}/", 1): layer for i, layer in enumerate(array)}
        if twice := modern.keys() & layers.keys():
            raise VitreousError(f"{old} and another array are both {twice.pop()}")
        modern |= layers
    return modern


class Source(dict[str, Array]):
    """Arrays, each taken once: what is left at the end had no place, what was not there is noted."""

    def __init__(self, arrays: Mapping[str, Array]):
        super().__init__(arrays)
        self.missing: list[str] = []

    def shape(self, name: str, rank: int) -> tuple[int, ...]:
        """Shape of an array that the config is read from."""
        if name not in self:
            raise VitreousError(f"{name} is missing")
        if self[name].ndim != rank or 0 in self[name].shape:
            raise VitreousError(f"{name} has shape {self[name].shape}, expected {rank} dimensions, none of them empty")
        return self[name].shape

    def take(self, name: str, rank: int | None = None) -> Tensor:
        if name not in self:
            self.missing.append(name)
            return torch.empty([0] * (rank or 0))
        if rank is not None:
            self.shape(name, rank)
        array = self.pop(name)
        if array.dtype.kind == "V" and array.dtype.itemsize == 2:  # numpy's idea of a saved bfloat16
            return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
        if array.dtype.kind != "f" or array.dtype.itemsize > 8:
            raise VitreousError(f"{name} holds {array.dtype}, not floating-point numbers of 16 to 64 bits")
        return torch.from_numpy(np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("=")))

    def dense(self, theirs: str, ours: str) -> State:
        kernel = self.take(f"{theirs}/kernel", 2)
        return {f"{ours}.weight": kernel.t().contiguous(), f"{ours}.bias": self.take(f"{theirs}/bias")}

    def conv(self, theirs: str, ours: str) -> State:
        return {f"{ours}.weight": self.take(f"{theirs}/kernel", 4).permute(3, 2, 0, 1).contiguous()}

    def norm(self, theirs: str, ours: str) -> State:
        """Layer norms and group norms; the arrays of old ones are (1, 1, 1, C)."""
        state = {}
        for part, mine in (("scale", "weight"), ("bias", "bias")):
            tensor = self.take(f"{theirs}/{part}")
            state[f"{ours}.{mine}"] = tensor[0, 0, 0] if tensor.shape[:-1] == (1, 1, 1) else tensor
        return state

    def heads(self, theirs: str, ours: str, parts: tuple[str, ...], heads: int) -> State:
        """Projections to heads, (in, heads, d) each, stacked in one matrix."""
        kernels = [self._split(f"{theirs}/{part}/kernel", 3, 1, heads).flatten(1).t() for part in parts]
        biases = [self._split(f"{theirs}/{part}/bias", 2, 0, heads).flatten() for part in parts]
        if len({(k.shape, b.shape) for k, b in zip(kernels, biases, strict=True)}) > 1:
            if self.missing:  # and about to be told
                return {}
            raise VitreousError(f"{', '.join(parts)} of {theirs} differ in shape")
        return {f"{ours}.weight": torch.cat(kernels), f"{ours}.bias": torch.cat(biases)}

    def attention_output(self, theirs: str, ours: str, heads: int) -> State:
        kernel = self._split(f"{theirs}/out/kernel", 3, 0, heads)  # (heads, d, out)
        weight = kernel.flatten(0, 1).t().contiguous()
        return {f"{ours}.weight": weight, f"{ours}.bias": self.take(f"{theirs}/out/bias")}

    def _split(self, name: str, rank: int, axis: int, heads: int) -> Tensor:
        """An array that is split into heads along an axis: as many as in the first layer, or the model is not one."""
        if name in self and self.shape(name, rank)[axis] != heads:
            raise VitreousError(f"{name} has {self[name].shape[axis]} heads, the first layer {heads}")
        return self.take(name, rank)

    def mlp(self, theirs: str, ours: str) -> State:
        return self.dense(f"{theirs}/Dense_0", f"{ours}.fc1") | self.dense(f"{theirs}/Dense_1", f"{ours}.fc2")


def read_vit(source: Source, native_size: Size | None) -> tuple[ViTConfig, State]:
    config = _vit_config(source, native_size)
    state = {} if config.backbone is None else _resnet_state(source, config.backbone)
    state |= source.conv("embedding", "patch_embed.proj") | {"patch_embed.proj.bias": source.take("embedding/bias")}
    if config.class_token:
        state["cls_token"] = source.take("cls", 3)
    if config.position == "learned-1d":
        state["pos_embed"] = source.take("pos_embedding", 3)
    for layer in range(config.depth):
        theirs, ours = f"Transformer/encoderblock_{layer}", f"blocks.{layer}"
        attention = f"{theirs}/MultiHeadDotProductAttention_0"
        state |= source.norm(f"{theirs}/LayerNorm_0", f"{ours}.norm1")
        state |= source.heads(attention, f"{ours}.attn.qkv", ("query", "key", "value"), config.heads)
        state |= source.attention_output(attention, f"{ours}.attn.proj", config.heads)
        state |= source.norm(f"{theirs}/LayerNorm_1", f"{ours}.norm2")
        state |= source.mlp(f"{theirs}/MlpBlock_0", f"{ours}.mlp")
    state |= source.norm("Transformer/encoder_norm", "norm")
    if config.pool == "map":
        attention = "MAPHead_0/MultiHeadDotProductAttention_0"
        state["attn_pool.latent"] = source.take("MAPHead_0/probe", 3)
        state |= source.heads(attention, "attn_pool.q", ("query",), config.heads)
        state |= source.heads(attention, "attn_pool.kv", ("key", "value"), config.heads)
        state |= source.attention_output(attention, "attn_pool.proj", config.heads)
        state |= source.norm("MAPHead_0/LayerNorm_0", "attn_pool.norm")
        state |= source.mlp("MAPHead_0/MlpBlock_0", "attn_pool.mlp")
    if config.representation_size:
        state |= source.dense("pre_logits", "pre_logits")
    if config.num_classes:
        state |= source.dense("head", "head")
    return config, state


def _vit_config(source: Source, native_size: Size | None) -> ViTConfig:
    """What the shapes tell. Google's code fixes the rest: eps 1e-6, GELU by tanh, norm before pooling."""
    *patch, channels, width = source.shape("embedding/kernel", 4)
    backbone = _resnet_config(source) if "conv_root/kernel" in source else None
    block = "Transformer/encoderblock_0"
    stride = 1 if backbone is None else backbone.stride
    step = (patch[0] * stride, patch[1] * stride)
    slots, grid = 0, (14, 14)  # sine-cosine positions are not stored, and work at every size
    given = None
    if native_size is not None:
        native_size = pair(native_size, "native_size")
        given = patch_grid(native_size, stride, (patch[0], patch[1]), crop=False)
    if "pos_embedding" in source:
        slots, grid = _split_positions(source.shape("pos_embedding", 3)[1], "cls" in source, given)
    return ViTConfig(
        image_size=native_size or (grid[0] * step[0], grid[1] * step[1]),
        patch_size=(patch[0], patch[1]),
        channels=channels if backbone is None else source.shape("conv_root/kernel", 4)[2],
        width=width,
        depth=_count(source, r"Transformer/encoderblock_(\d{1,4})/"),
        heads=source.shape(f"{block}/MultiHeadDotProductAttention_0/query/kernel", 3)[1],
        mlp_dim=source.shape(f"{block}/MlpBlock_0/Dense_0/kernel", 2)[1],
        pool="map" if "MAPHead_0/probe" in source else "token" if "cls" in source else "gap",
        representation_size=source.shape("pre_logits/kernel", 2)[1] if "pre_logits/kernel" in source else None,
        num_classes=source.shape("head/kernel", 2)[1] if "head/kernel" in source else 0,
        position="learned-1d" if "pos_embedding" in source else "sincos-2d",
        position_slots="class" if slots else "patches",
        backbone=backbone,
    )


def _split_positions(entries: int, has_class: bool, given: Grid | None) -> tuple[int, Grid]:
    """How many of the entries are the class token's, and the grid of the rest."""
    for slots in (1, 0) if has_class else (0,):
        places = entries - slots
        side = math.isqrt(places)  # the file holds a length and nothing else
        if given is not None and math.prod(given) == places:
            return slots, given
        if given is None and side and side * side == places:
            return slots, (side, side)
    if given is None:
        raise VitreousError(f"{entries} positions are not a square grid; give its native_size")
    raise VitreousError(f"{entries} positions are not the {given[0]} x {given[1]} grid of native_size")


def read_bit(source: Source, native_size: Size | None, released: bool) -> tuple[BiTConfig, State]:
    body = _resnet_config(source)
    root = "conv_root/kernel" if body.activation == "post" else "root_block/conv_root/kernel"
    config = BiTConfig(
        blocks=body.blocks,
        width_factor=body.width_factor,
        activation=body.activation,
        stem=body.stem,
        # The code that the released files come from pads its max-pool with zeros, big_vision's does not.
        pool_border="zeros" if released else "nothing",
        image_size=224 if native_size is None else native_size,
        channels=source.shape(root, 4)[2],
        num_classes=source.shape("head/kernel", 2)[1] if "head/kernel" in source else 0,
    )
    state = _resnet_state(source, config)
    if config.num_classes:
        state |= source.dense("head", "head")
    return config, state


def _resnet_config(source: Source) -> ResNetConfig:
    post = "conv_root/kernel" in source
    kernel = source.shape("conv_root/kernel" if post else "root_block/conv_root/kernel", 4)
    stages = _count(source, r"block(\d{1,4})/unit", first=1)
    return ResNetConfig(
        blocks=tuple(_count(source, rf"block{stage}/unit(\d{{1,4}})/", first=1) for stage in range(1, stages + 1)),
        width_factor=kernel[3] / 64,
        activation="post" if post else "pre",
        stem="small" if kernel[0] == 3 else "imagenet",
    )


def _resnet_state(source: Source, config: ResNetConfig) -> State:
    if config.activation == "post":
        state = source.conv("conv_root", "backbone.stem.conv") | source.norm("gn_root", "backbone.stem.norm")
    else:
        state = source.conv("root_block/conv_root", "backbone.stem.conv")
        state |= source.norm("norm-pre-head", "backbone.norm")
    for stage, units in enumerate(config.blocks):
        for unit in range(units):
            theirs, ours = f"block{stage + 1}/unit{unit + 1}", f"backbone.stages.{stage}.{unit}"
            for i in (1, 2, 3):
                state |= source.conv(f"{theirs}/conv{i}", f"{ours}.conv{i}")
                state |= source.norm(f"{theirs}/gn{i}", f"{ours}.norm{i}")
            if f"{theirs}/conv_proj/kernel" in source:
                state |= source.conv(f"{theirs}/conv_proj", f"{ours}.conv_proj")
            if f"{theirs}/gn_proj/scale" in source:
                state |= source.norm(f"{theirs}/gn_proj", f"{ours}.norm_proj")
    return state


def _count(source: Source, pattern: str, first: int = 0) -> int:
    """How many things are numbered by a pattern, from `first` on without a gap."""
    found = {int(match[1]) for match in map(re.compile(pattern).match, source) if match}
    if found and found != set(range(first, first + len(found))):
        raise VitreousError(f"numbers {sorted(found)} of {pattern} have a gap")
    return len(found)
