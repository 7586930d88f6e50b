"""timm's VisionTransformer. Its names are ours.

A folder of timm's holds `config.json`: which of its architectures, with which arguments, and the preprocessing. A bare
file tells what its shapes tell; the rest is then timm's default, and said to be.
"""

import math
import re
from dataclasses import replace
from typing import Any

from vitreous.errors import VitreousError
from vitreous.models.checks import Size, pair
from vitreous.models.vit import ViTConfig
from vitreous.preprocessing import Preprocessing
from vitreous.weights.checkpoint import (
    Checkpoint,
    Form,
    Found,
    Hints,
    Labels,
    View,
    infer,
    places_for,
)
from vitreous.weights.express import Expression, fit_class_slot, unsaid
from vitreous.weights.files import Tensors

NAME = "timm"
# What its architectures do that their tensors do not show.
TANH = r"vit_(so400m_patch16_siglip|giantopt_patch16_siglip|base_patch32_siglip|large_patch16_siglip_(gap_)?512)"
SILU = r"vit_giant_patch14_\w*(dinov2|tipsv2)"
HEADS = {r"vit_base_patch16_gap": 16, r"vit_giantopt": 16, r"test_vit[34]": 3, r"test_vit": 2}
OTHERS = r"vit_\w+_rpn_"
PREFIX = re.compile(r"(?:(?:module|_orig_mod|model|backbone|encoder|net|trunk)\.)*")
POOLS = {"token": "token", "gap": "avg", "map": "map", "none": ""}


def prefix_of(tensors: Tensors) -> str | None:
    """What stands before timm's names: nothing, or what wrappers put there."""
    for name in tensors:
        prefix = name.removesuffix("patch_embed.proj.weight")
        if prefix != name and PREFIX.fullmatch(prefix) and f"{prefix}blocks.0.norm1.weight" in tensors:
            return prefix
    return None


def claims(tensors: Tensors, settings: dict[str, Any]) -> bool:
    return prefix_of(tensors) is not None


def read(tensors: Tensors, hints: Hints) -> Found:
    prefix = prefix_of(tensors) or ""
    gammas = f"{prefix}blocks.0.gamma_1" in tensors  # DeiT III as its authors saved it
    old_pre_logits = f"{prefix}pre_logits.fc.weight" in tensors

    def rename(ours: str) -> tuple[str, ...]:
        if gammas:
            ours = re.sub(r"\.ls([12])\.gamma$", r".gamma_\1", ours)
        if old_pre_logits:
            ours = re.sub(r"^pre_logits\.", "pre_logits.fc.", ours)
        return (prefix + ours,)

    told = Told(hints.settings if "architecture" in hints.settings else {})
    view = View(tensors, rename)
    notes: list[str] = []
    known = told.fields() | {"resample": "timm"}
    known["final_norm"] = "after-pool" if "fc_norm.weight" in view else "before-pool"
    if told.pool in ("", "avg") or (told.pool is None and "fc_norm.weight" in view):
        known["pool"] = "none" if told.pool == "" else "gap"
    config = ViTConfig(
        **infer(view, replace(hints, native_size=told.size), notes, ("patches", "all", "class"), **known)
    )
    if (told.activation == "silu") != (config.mlp == "swiglu") and told.settings:
        raise VitreousError(f"config.json: an MLP with {told.activation}, which no ViT of ours has")
    if not told.settings:
        if config.pool == "token":
            notes.append("pool: the class token, timm's default; a file without its config.json does not tell")
        notes.append("GELU: taken as exact, timm's default; a file without its config.json does not tell")
        notes.append(
            "preprocessing: taken as timm's for its own ViTs; DeiT's, for one, is another (--preprocessing deit)"
        )
    decoder = re.compile(re.escape(prefix) + r"(decoder_\w+|mask_token$)")
    return Found(
        dialect=NAME,
        config=config,
        places=view.places(config),
        preprocessing=told.preprocessing(config, notes),
        labels=told.labels(config),
        ignored={name: "the decoder of a masked autoencoder" for name in tensors if decoder.match(name)},
        notes=notes,
    )


class Told:
    """What timm's `config.json` says."""

    def __init__(self, settings: dict[str, Any]):
        self.settings = settings
        self.architecture = str(settings.get("architecture", ""))
        self.arguments = _object(settings, "model_args")
        self.defaults = _object(settings, "pretrained_cfg") or settings  # old ones had it all on one level
        self.pool = self.arguments.get("global_pool", settings.get("global_pool"))
        if self.pool not in (None, *POOLS.values()):
            raise VitreousError(
                f"config.json: global_pool = {self.pool!r}: ours are {', '.join(map(repr, POOLS.values()))}"
            )
        usual = "gelu_tanh" if re.match(TANH, self.architecture) else "gelu"
        self.activation = self.arguments.get("act_layer", "silu" if re.match(SILU, self.architecture) else usual)
        self.size: Size | None = None
        if "img_size" in self.arguments:
            self.size = pair(self.arguments["img_size"], "config.json: img_size")
        elif isinstance(shape := self.defaults.get("input_size"), list) and len(shape) == 3:
            self.size = pair((shape[1], shape[2]), "config.json: input_size")
        if re.match(OTHERS, self.architecture):
            raise VitreousError(f"timm's {self.architecture} has the names of a ViT, but another order of its parts")

    def fields(self) -> dict[str, Any]:
        gelu = self.activation
        if gelu not in ("gelu", "gelu_tanh", "silu"):
            raise VitreousError(
                f"config.json: act_layer = {gelu!r}: a ViT of ours has GELU, exact or by tanh, or SwiGLU"
            )
        for name, usual in (("pre_norm", False), ("final_norm", True), ("pool_include_prefix", False)):
            if self.arguments.get(name, usual) != usual:
                raise VitreousError(f"config.json: {name} = {self.arguments[name]!r}: no ViT of ours does that")
        heads = next((n for name, n in HEADS.items() if re.match(name, self.architecture)), None)
        fields = {"gelu": "tanh" if gelu == "gelu_tanh" else "erf", "heads": self.arguments.get("num_heads", heads)}
        if self.arguments.get("pos_embed", "learn") != "learn":
            fields |= {"position": "none", "image_size": self.size or 224}
        return fields

    def preprocessing(self, config: ViTConfig, notes: list[str]) -> Preprocessing:
        """timm's evaluation transform: the short side to floor(size / crop_pct), then the centre."""
        size = pair(config.image_size)
        crop = self.defaults.get("crop_pct", 1.0 if not self.settings and min(size) >= 384 else 0.9)
        if not isinstance(crop, int | float) or not 0.01 <= crop <= 2:
            raise VitreousError(f"config.json: crop_pct = {crop!r}: expected a fraction, such as 0.9")
        resized = [math.floor(side / crop) for side in size]
        squash = self.defaults.get("crop_mode") == "squash"
        if size[0] != size[1] and not squash:
            notes.append("preprocessing: for sizes that are no squares timm resizes a little differently")
        interpolation = self.defaults.get("interpolation", "bicubic")
        plain = [0.5] * config.channels
        return Preprocessing.from_json(
            {
                "size": size,
                "resize": min(resized) if not squash else None if crop == 1 else resized,
                "interpolation": "bicubic" if interpolation == "random" else interpolation,
                "mean": self.defaults.get("mean", plain),
                "std": self.defaults.get("std", plain),
            }
        )

    def labels(self, config: ViTConfig) -> Labels:
        names = self.settings.get("label_names", self.defaults.get("label_names"))
        if not isinstance(names, list) or len(names) != config.num_classes:
            return None
        said = _object(self.settings, "label_descriptions")
        return tuple(str(said.get(str(name), name)) for name in names)


def _object(settings: dict[str, Any], key: str) -> dict[str, Any]:
    value = settings.get(key) or {}
    if not isinstance(value, dict):
        raise VitreousError(f"config.json: {key} = {value!r}: expected an object")
    return value


# ---------------------------------------------------------------- writing


def write(checkpoint: Checkpoint, config: ViTConfig) -> Form:
    say = Expression(config)
    swiglu, learned = config.mlp == "swiglu", config.position == "learned-1d"
    say.only("backbone", None, why="its hybrids are other classes")
    say.only("position", "learned-1d", "none", why="it has learned positions or none")
    say.only("position_at", "stem", why="it adds positions once")
    say.resampling("timm")
    say.only("norm_eps", 1e-6, why="its config cannot give another than 1e-6")
    say.only("representation_size", None, why="it has no hidden layer under the head")
    if swiglu and (config.pool == "map" or config.layer_scale is None):
        say.object("mlp", "it has SwiGLU only together with LayerScale, and not under a MAP head")
    arguments = {
        "img_size": list(pair(config.image_size)),
        "patch_size": list(pair(config.patch_size)),
        "in_chans": config.channels,
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.heads,
        "mlp_ratio": ratio_for((2 if swiglu else 1) * (config.mlp_dim or 0), config.width),
        "qkv_bias": config.qkv_bias,
        "qk_norm": config.qk_norm,
        "init_values": config.layer_scale,
        "class_token": config.class_token,
        "reg_tokens": config.registers,
        "pos_embed": "learn" if learned else "none",
        "no_embed_class": learned and config.slots != config.prefix,
        "global_pool": POOLS[config.pool],
        "fc_norm": config.final_norm == "after-pool",
        "act_layer": "silu" if swiglu else "gelu_tanh" if config.gelu == "tanh" else "gelu",
    }
    processing, notes = describe_preprocessing(checkpoint.preprocessing)
    settings: dict[str, Any] = {
        # Any plain entry of its list will do, for the arguments say the rest; only SwiGLU cannot be an argument.
        "architecture": "vit_giant_patch14_dinov2" if swiglu else "vit_base_patch16_224",
        "num_classes": config.num_classes,
        "num_features": config.width,
        "global_pool": POOLS[config.pool],
        "model_args": arguments,
        "pretrained_cfg": {
            "input_size": [config.channels, *pair(config.image_size)],
            "fixed_input_size": True,
            "num_classes": config.num_classes,
            # timm would turn a first convolution of 3 channels into one of others, and draws what it cannot
            "first_conv": "patch_embed.proj" if config.channels == 3 else None,
            "classifier": "head",
            **processing,
        },
    }
    if checkpoint.labels is not None:
        settings["label_names"] = list(checkpoint.labels)
    places = places_for(config, lambda ours: (ours,), known=r"(?!pre_logits)")
    form = Form(places, say.objections, notes + unsaid(config), {"config.json": settings}, carries_labels=True)
    if config.registers:  # with them, either all tokens have positions or the patches alone
        fit_class_slot(form, checkpoint, config, wanted=False)
    return form


def ratio_for(hidden: int, width: int) -> float:
    """The ratio that int(width * ratio) turns into `hidden`."""
    ratio = hidden / width
    return ratio if int(width * ratio) == hidden else math.nextafter(ratio, math.inf)


def describe_preprocessing(p: Preprocessing) -> tuple[dict[str, Any], list[str]]:
    size = pair(p.size)
    lost = [] if p.antialias else ["resizing without antialiasing"]
    if p.crop == "down" and p.resize is not None:
        lost.append("where the odd pixel of a centre crop goes")
    resized = size if p.resize is None else pair(p.resize)
    crop = ratio_for_crop(min(size), min(resized))
    if p.resize is not None and not isinstance(p.resize, int) and resized != tuple(math.floor(n / crop) for n in size):
        lost.append(f"resizing to {resized[0]} x {resized[1]}")
    squash = p.resize is None or not isinstance(p.resize, int)
    if size[0] != size[1] and not squash:
        lost.append("a short side before a crop that is no square: timm fits the longer one too")
    described = {
        "interpolation": p.interpolation,
        "crop_pct": crop,
        "crop_mode": "squash" if squash else "center",
        "mean": list(p.mean),
        "std": list(p.std),
    }
    return described, [f"preprocessing that its config cannot express: {', '.join(lost)}"] if lost else []


def ratio_for_crop(size: int, resized: int) -> float:
    """The fraction that floor(size / fraction) turns into `resized`."""
    crop = size / resized
    return crop if math.floor(size / crop) == resized else math.nextafter(crop, 0)
