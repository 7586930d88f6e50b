"""Google's `.npz` checkpoints: ViT and hybrids (vision_transformer), big_vision, and both BiTs.

Names come in several generations. On reading they are first brought to one, that of today's big_vision:

    embedding, cls, pos_embedding, Transformer/encoderblock_0/{LayerNorm_0, MultiHeadDotProductAttention_0, LayerNorm_1,
    MlpBlock_0}, Transformer/encoder_norm, MAPHead_0, pre_logits, head; conv_root, gn_root, block1/unit1/{conv1, gn1}

Kernels are stored inputs first: (in, out), (height, width, in, out), and (in, heads, d) for q, k and v.
"""

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from torch import Tensor

from vitreous.errors import VitreousError
from vitreous.models.checks import pair
from vitreous.models.resnet import BiTConfig, ResNetConfig
from vitreous.models.vit import ViTConfig
from vitreous.preprocessing import Preprocessing, preset
from vitreous.weights.checkpoint import (
    Checkpoint,
    Config,
    Form,
    Found,
    Hints,
    native_size,
    parameter_shapes,
    split_positions,
)
from vitreous.weights.express import Expression, fit_biases, fit_class_slot, unsaid
from vitreous.weights.files import Tensors
from vitreous.weights.places import SAME, Layout, Place, Places

VIT, BIG_VISION, BIT = "google", "big-vision", "bit"
PREFIXES = ("opt/target/", "params/img/", "img/", "params/")  # a file has one: what stands outside is not the model
ROOTS = (  # what a model starts with
    "embedding/kernel",
    "conv_root/kernel",
    "root_block/conv_root/kernel",
    "resnet/root_block/standardized_conv2d/kernel",
)
RENAMES = (  # applied in this order
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
RELEASED = (  # of a ViT, from big_vision's names back to those of the files that Google released
    (r"^pos_embedding$", "Transformer/posembed_input/pos_embedding"),
    (r"^(Transformer/encoderblock_\d+)/LayerNorm_1/", r"\1/LayerNorm_2/"),
    (r"^(Transformer/encoderblock_\d+)/MultiHeadDotProductAttention_0/", r"\1/MultiHeadDotProductAttention_1/"),
    (r"^(Transformer/encoderblock_\d+)/MlpBlock_0/", r"\1/MlpBlock_3/"),
)
TENSORFLOW = (  # of a BiT
    (r"^root_block/conv_root/", "resnet/root_block/standardized_conv2d/"),
    (r"^norm-pre-head/", "resnet/group_norm/"),
    (r"^head/", "resnet/head/conv2d/"),
    (r"^(block\d+/unit\d+)/conv_proj/", r"resnet/\1/a/proj/standardized_conv2d/"),
    *((rf"^(block\d+/unit\d+)/gn{i}/", rf"resnet/\1/{letter}/group_norm/") for i, letter in enumerate("abc", 1)),
    *(
        (rf"^(block\d+/unit\d+)/conv{i}/", rf"resnet/\1/{letter}/standardized_conv2d/")
        for i, letter in enumerate("abc", 1)
    ),
    (r"^(.*group_norm)/scale$", r"\1/gamma"),
    (r"^(.*group_norm)/bias$", r"\1/beta"),
)


# ---------------------------------------------------------------- layouts


def _flat(t: Tensor) -> Tensor:
    """The arrays of old group norms are (1, 1, 1, C)."""
    return t[0, 0, 0] if t.shape[:-1] == (1, 1, 1) else t


def _matrix(t: Tensor) -> Tensor:
    """BiT's head was a 1 x 1 convolution."""
    return t[0, 0].t() if t.ndim == 4 and t.shape[:2] == (1, 1) else t.t()


DENSE = Layout(_matrix, lambda t: t.t())
POINTWISE = Layout(_matrix, lambda t: t.t()[None, None])
CONV = Layout(lambda t: t.permute(3, 2, 0, 1), lambda t: t.permute(2, 3, 1, 0), rank=4)
VECTOR = Layout(_flat, lambda t: t)
MAP_VECTOR = Layout(_flat, lambda t: t[None, None, None])
TABLE = Layout(lambda t: t, lambda t: t, rank=3)


def to_heads(n: int) -> Layout:
    """(in, heads, d)"""
    return Layout(lambda t: t.flatten(1).t(), lambda t: t.t().unflatten(1, (n, -1)), rank=3, axis=1, size=n)


def heads_bias(n: int) -> Layout:
    return Layout(lambda t: t.flatten(), lambda t: t.unflatten(0, (n, -1)), rank=2, axis=0, size=n)


def from_heads(n: int) -> Layout:
    """(heads, d, out)"""
    return Layout(lambda t: t.flatten(0, 1).t(), lambda t: t.t().unflatten(0, (n, -1)), rank=3, axis=0, size=n)


# ---------------------------------------------------------------- the table


def places_of(config: Config) -> Places:
    """Where big_vision keeps what a model has. What Google has no name for is left out."""
    places: Places = {}
    for ours in parameter_shapes(config):
        if place := _place(config, ours):
            places[ours] = place
    return places


SINGLE = {
    "cls_token": Place(("cls",), TABLE),
    "pos_embed": Place(("pos_embedding",), TABLE),
    "attn_pool.latent": Place(("MAPHead_0/probe",), TABLE),
    "patch_embed.proj.weight": Place(("embedding/kernel",), CONV),
    "patch_embed.proj.bias": Place(("embedding/bias",)),
    "pre_logits.weight": Place(("pre_logits/kernel",), DENSE),
    "pre_logits.bias": Place(("pre_logits/bias",)),
    "head.weight": Place(("head/kernel",), DENSE),
    "head.bias": Place(("head/bias",)),
} | {
    f"{norm}.{part}": Place((f"Transformer/encoder_norm/{theirs}",))
    for norm in ("norm", "fc_norm")
    for part, theirs in (("weight", "scale"), ("bias", "bias"))
}


def _place(config: Config, ours: str) -> Place | None:
    if ours in SINGLE:
        return SINGLE[ours]
    room, _, rest = ours.partition(".")
    if room == "backbone":
        return _resnet_place(config, *rest.rsplit(".", 1))
    if room == "blocks":
        layer, _, rest = rest.partition(".")
        return _block_place(config, f"Transformer/encoderblock_{layer}", *rest.rsplit(".", 1))
    if room == "attn_pool":
        return _block_place(config, "MAPHead_0", *rest.rsplit(".", 1))
    return None


def _block_place(config: Config, block: str, name: str, part: str) -> Place | None:
    heads = getattr(config, "heads", 1)
    kernel = part == "weight"
    theirs = "kernel" if kernel else "bias"
    attention = f"{block}/MultiHeadDotProductAttention_0"
    if norm := {"norm1": "LayerNorm_0", "norm2": "LayerNorm_1", "norm": "LayerNorm_0"}.get(name):
        return Place((f"{block}/{norm}/{'scale' if kernel else 'bias'}",))
    if dense := {"mlp.fc1": "Dense_0", "mlp.fc2": "Dense_1"}.get(name):
        return Place((f"{block}/MlpBlock_0/{dense}/{theirs}",), DENSE if kernel else SAME)
    if joined := {"attn.qkv": ("query", "key", "value"), "q": ("query",), "kv": ("key", "value")}.get(name):
        layout = to_heads(heads) if kernel else heads_bias(heads)
        return Place(tuple(f"{attention}/{one}/{theirs}" for one in joined), layout)
    if name in ("attn.proj", "proj"):
        return Place((f"{attention}/out/{theirs}",), from_heads(heads) if kernel else SAME)
    return None


def _resnet_place(config: Config, name: str, part: str) -> Place:
    if name == "stem.conv":
        post = (config.backbone if isinstance(config, ViTConfig) else config).activation == "post"  # type: ignore[union-attr]
        return Place(("conv_root/kernel" if post else "root_block/conv_root/kernel",), CONV)
    if name in ("stem.norm", "norm"):
        theirs = {"stem.norm": "gn_root", "norm": "norm-pre-head"}[name]
    else:
        _, stage, unit, inner = name.split(".")
        theirs = f"block{int(stage) + 1}/unit{int(unit) + 1}/{inner.replace('norm', 'gn')}"
        if inner.startswith("conv"):
            return Place((f"{theirs}/kernel",), CONV)
    return Place((f"{theirs}/{'scale' if part == 'weight' else 'bias'}",), MAP_VECTOR)


# ---------------------------------------------------------------- reading


class Modern:
    """A file under today's names; each is a tensor of the file, or a layer of one that was scanned."""

    def __init__(self, tensors: Tensors):
        self.tensors = tensors
        self.prefix = prefix_of(tensors) or ""
        self.home: dict[str, tuple[str, int | None]] = {}
        for old in tensors:
            if not old.startswith(self.prefix):
                continue
            name = old.removeprefix(self.prefix)
            for pattern, replacement in RENAMES:
                name = re.sub(pattern, replacement, name)
            shape = tensors.shape(old)
            layers: Iterable[tuple[str, int | None]] = [(name, None)]
            if name.startswith("Transformer/encoderblock/") and shape:
                layers = ((name.replace("block/", f"block_{i}/", 1), i) for i in range(min(shape[0], 10_000)))
            for modern, layer in layers:
                if modern in self.home:
                    raise VitreousError(f"{old} and {self.home[modern][0]} are both {modern}")
                self.home[modern] = (old, layer)

    def __contains__(self, name: str) -> bool:
        return name in self.home

    def shape(self, name: str, rank: int) -> tuple[int, ...]:
        """Shape of an array that the config is read from."""
        if name not in self.home:
            raise VitreousError(f"{name} is missing")
        old, layer = self.home[name]
        shape = self.tensors.shape(old)[0 if layer is None else 1 :]
        if name == "head/kernel" and len(shape) == 4 and shape[:2] == (1, 1):
            shape = shape[2:]
        if len(shape) != rank or 0 in shape:
            raise VitreousError(f"{name} has shape {shape}, expected {rank} dimensions, none of them empty")
        return shape

    def count(self, pattern: str, first: int = 0) -> int:
        """How many things are numbered by a pattern, from `first` on without a gap."""
        found = {int(match[1]) for match in map(re.compile(pattern).match, self.home) if match}
        if found and found != set(range(first, first + len(found))):
            raise VitreousError(f"numbers {sorted(found)} of {pattern} have a gap")
        return len(found)

    def place(self, modern: Place) -> Place:
        """The same place by the file's own names."""
        homes = [self.home.get(name, (self.prefix + name, None)) for name in modern.names]
        return replace(modern, names=tuple(old for old, _ in homes), layer=homes[0][1])


def prefix_of(tensors: Tensors) -> str | None:
    return next((p for p in ("", *PREFIXES) for root in ROOTS if f"{p}{root}" in tensors), None)


def claims(tensors: Tensors, settings: dict[str, Any]) -> bool:
    return prefix_of(tensors) is not None


def read(tensors: Tensors, hints: Hints) -> Found:
    source = Modern(tensors)
    notes: list[str] = []
    config: Config
    if "embedding/kernel" in source:
        config = _vit_config(source, hints, notes)
        old = re.compile(r".*(encoderblock(_\d+)?/LayerNorm_2/|posembed_input/|conv_root/)")
        dialect = VIT if any(map(old.match, tensors)) else BIG_VISION
    else:
        config = _bit_config(source, any("resnet/" in name for name in tensors))
        dialect = BIT
    beside = f"stands beside {source.prefix}, where the model is"
    return Found(
        dialect=dialect,
        config=config,
        places={ours: source.place(place) for ours, place in places_of(config).items()},
        preprocessing=preprocessing_for(config),
        ignored={name: beside for name in tensors if not name.startswith(source.prefix)},
        notes=notes,
    )


def preprocessing_for(config: Config) -> Preprocessing:
    """Google's code squashes images with TensorFlow's bilinear resize, which does not antialias, to -1..1."""
    return preset("google", pair(config.image_size), config.channels)


def _vit_config(source: Modern, hints: Hints, notes: list[str]) -> ViTConfig:
    """What the shapes tell. Google's code fixes the rest: eps 1e-6, GELU by tanh, norm before pooling."""
    *patch, channels, width = source.shape("embedding/kernel", 4)
    backbone = _resnet_config(source) if "conv_root/kernel" in source else None
    block = "Transformer/encoderblock_0"
    stride = 1 if backbone is None else backbone.stride
    step = (patch[0] * stride, patch[1] * stride)
    has_class = "cls" in source
    slots, grid = "patches", (14, 14)  # sine-cosine positions are not stored, and work at every size
    size = None if "pos_embedding" in source else hints.image_size
    if "pos_embedding" in source:
        entries = source.shape("pos_embedding", 3)[1]
        choices = {"class": 1, "patches": 0} if has_class else {"patches": 0}
        slots, grid = split_positions(entries, choices, step, hints, notes)
    depth = source.count(r"Transformer/encoderblock_(\d{1,4})/")
    heads = source.shape(f"{block}/MultiHeadDotProductAttention_0/query/kernel", 3)[1]
    if hints.heads not in (None, heads):
        raise VitreousError(f"heads = {hints.heads}, but the file has {heads}")
    return ViTConfig(
        image_size=size or (grid[0] * step[0], grid[1] * step[1]),
        patch_size=(patch[0], patch[1]),
        channels=channels if backbone is None else source.shape("conv_root/kernel", 4)[2],
        width=width,
        depth=depth,
        heads=heads,
        mlp_dim=source.shape(f"{block}/MlpBlock_0/Dense_0/kernel", 2)[1],
        pool="map" if "MAPHead_0/probe" in source else "token" if has_class else "gap",
        class_token=has_class,
        representation_size=source.shape("pre_logits/kernel", 2)[1] if "pre_logits/kernel" in source else None,
        num_classes=source.shape("head/kernel", 2)[1] if "head/kernel" in source else 0,
        position="learned-1d" if "pos_embedding" in source else "sincos-2d",
        position_slots=slots,  # type: ignore[arg-type]
        backbone=backbone,
    )


def _bit_config(source: Modern, released: bool) -> BiTConfig:
    body = _resnet_config(source)
    root = "conv_root/kernel" if body.activation == "post" else "root_block/conv_root/kernel"
    return BiTConfig(
        blocks=body.blocks,
        width_factor=body.width_factor,
        activation=body.activation,
        stem=body.stem,
        # The code that the released files come from pads its max-pool with zeros, big_vision's does not.
        pool_border="zeros" if released else "nothing",
        channels=source.shape(root, 4)[2],
        num_classes=source.shape("head/kernel", 2)[1] if "head/kernel" in source else 0,
    )


def _resnet_config(source: Modern) -> ResNetConfig:
    post = "conv_root/kernel" in source
    kernel = source.shape("conv_root/kernel" if post else "root_block/conv_root/kernel", 4)
    stages = source.count(r"block(\d{1,4})/unit", first=1)
    return ResNetConfig(
        blocks=tuple(source.count(rf"block{stage}/unit(\d{{1,4}})/", first=1) for stage in range(1, stages + 1)),
        width_factor=kernel[3] / 64,
        activation="post" if post else "pre",
        stem="small" if kernel[0] == 3 else "imagenet",
    )


# ---------------------------------------------------------------- writing


def write_vit(checkpoint: Checkpoint, config: ViTConfig) -> Form:
    """The names and the model of the files that Google released."""
    say = _say(config)
    say.only("pool", "token", "gap", why="it has the class token or the mean of the patches")
    say.only("position", "learned-1d", why="its positions are learned")
    if config.class_token != (config.pool == "token"):
        say.object("class_token", "it has one where it reads it, and nowhere else")
    if config.backbone is not None and config.backbone.activation != "post":
        say.object("backbone", "its hybrids have the post-activation ResNet")
    form = _form(checkpoint, config, say.objections)
    fit_class_slot(form, checkpoint, config, wanted=True)
    form.places = renamed(places_of(fit_biases(form, checkpoint, config)), RELEASED)
    return form


def write_big_vision(checkpoint: Checkpoint, config: ViTConfig) -> Form:
    say = _say(config)
    say.only("backbone", None, why="it has no hybrids")
    say.only("pool", "token", "gap", "map", why="its files are read with a pool")
    say.only("position", "learned-1d", "sincos-2d", why="its positions are learned or of sines and cosines in 2-D")
    if config.class_token != (config.pool == "token"):
        say.object("class_token", "it has one where it reads it, and nowhere else")
    form = _form(checkpoint, config, say.objections)
    fit_class_slot(form, checkpoint, config, wanted=False)
    form.places = places_of(fit_biases(form, checkpoint, config))
    return form


def write_bit(checkpoint: Checkpoint, config: BiTConfig) -> Form:
    """The names tell how the max-pool treats its border: TensorFlow's pads zeros, big_vision's does not."""
    two_digits = ((r"^(block\d+/unit)(\d/)", r"\g<1>0\2"),) if config.activation == "pre" else ()
    tensorflow = config.pool_border == "zeros"
    places = places_of(config)
    if tensorflow:
        flat = {MAP_VECTOR: VECTOR, DENSE: POINTWISE}
        places = {ours: replace(place, layout=flat.get(place.layout, place.layout)) for ours, place in places.items()}
    form = _form(checkpoint, config, [])
    form.places = renamed(places, (*two_digits, *(TENSORFLOW if tensorflow else ())))
    return form


def _form(checkpoint: Checkpoint, config: Config, objections: list[str]) -> Form:
    """Without its places. What a reader will assume follows from the size that it will find."""
    if isinstance(config, BiTConfig):
        size = (224, 224)
    else:
        size = native_size(config) if config.position == "learned-1d" else native_size(_at_14(config))
    return Form(objections=objections, notes=unsaid(config), assumes=preset("google", size, config.channels))


def _at_14(config: ViTConfig) -> ViTConfig:
    """Without positions in the file, its grid is taken as 14 x 14."""
    height, width = pair(config.patch_size)
    stride = 1 if config.backbone is None else config.backbone.stride
    return replace(config, image_size=(14 * height * stride, 14 * width * stride))


def renamed(places: Places, names: tuple[tuple[str, str], ...]) -> Places:
    def rename(name: str) -> str:
        for pattern, replacement in names:
            name = re.sub(pattern, replacement, name)
        return name

    return {ours: replace(place, names=tuple(map(rename, place.names))) for ours, place in places.items()}


def _say(config: ViTConfig) -> Expression:
    say = Expression(config)
    say.only("registers", 0, why="it has none")
    say.only("final_norm", "before-pool", why="its last norm comes before the pool")
    say.only("position_at", "stem", why="it adds positions once")
    say.resampling("google")
    say.only("mlp", "gelu", why="it has no SwiGLU")
    say.only("gelu", "tanh", why="its GELU is the tanh form")
    say.only("norm_eps", 1e-6, why="its norms have 1e-6")
    say.only("qk_norm", False, why="it has none")
    say.only("layer_scale", None, why="it has none")
    say.only("position_slots", "class", "patches", why="it has no registers")
    rows, cols = config.grid
    if config.position == "learned-1d" and rows != cols:
        say.object("image_size", "its files do not tell the grid, which is taken as a square")
    return say
