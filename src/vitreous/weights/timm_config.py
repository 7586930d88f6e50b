"""Read timm's config.json: architecture, arguments of the constructor, preprocessing and labels."""

import math
import re
from collections.abc import Callable
from typing import Any

from vitreous.errors import VitreousError
from vitreous.models.vit import ViTConfig
from vitreous.preprocessing import Preprocessing
from vitreous.utils.sizes import Size, pair
from vitreous.weights.checkpoint import Labels
from vitreous.weights.timm_architectures import TimmArchitecture, timm_architecture

# Arguments of timm's constructor (`model_args`). The reader uses these. It compares others with the tensors
# (`_argument_checks`).
USED = ("img_size", "num_heads", "act_layer", "global_pool", "pos_embed", "no_embed_class")
# If present, these must have one of the listed values: models with other values are not supported.
FIXED: dict[str, tuple[Any, ...]] = {
    "scale_attn_norm": (False,),
    "scale_mlp_norm": (False,),
    "proj_bias": (True,),
    "pre_norm": (False,),
    "final_norm": (True,),
    "pool_include_prefix": (False,),
    "norm_layer": (None, "", "layernorm"),
    "embed_norm_layer": (None, ""),
    "attn_layer": ("", "attn"),
}
TRAINING_ONLY = (
    *("drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate"),
    *("weight_init", "fix_init"),
)
# These have no effect. The number of classes is read from the head in the file.
NO_EFFECT = ("num_classes", "dynamic_img_size", "dynamic_img_pad", "strict_img_size")
POOLS = {"token": "token", "gap": "avg", "map": "map", "none": ""}


class TimmConfig:
    """The contents of timm's config.json; without one, everything is at timm's defaults or unknown (None)."""

    def __init__(self, settings: dict[str, Any]):
        self.settings = settings
        self.architecture: TimmArchitecture | None = timm_architecture(settings["architecture"]) if settings else None
        self.arguments = _object(settings, "model_args")
        self.pretrained = _object(settings, "pretrained_cfg") or settings  # old files have these keys at the top level
        self._check_arguments()
        pool = self.architecture.pool if self.architecture else None
        self.pool = self.arguments.get("global_pool", settings.get("global_pool", pool))
        if self.pool not in (None, *POOLS.values()):
            supported = ", ".join(map(repr, POOLS.values()))
            raise VitreousError(f"config.json: global_pool = {self.pool!r}: expected one of {supported}")
        default = self.architecture.activation if self.architecture else "gelu"
        self.activation = self.arguments.get("act_layer") or default
        self.size: Size | None = None
        if self.arguments.get("img_size") is not None:
            self.size = pair(self.arguments["img_size"], "config.json: img_size")
        elif isinstance(shape := self.pretrained.get("input_size"), list) and len(shape) == 3:
            self.size = pair((shape[1], shape[2]), "config.json: input_size")
        elif settings and (default_size := re.search(r"_(\d{3})(?=[_.]|$)", str(settings["architecture"]))):
            self.size = pair(int(default_size[1]))

    def _check_arguments(self) -> None:
        """Refuse unknown arguments, and values that no supported model has."""
        known = {*USED, *_argument_checks(ViTConfig()), *FIXED, *TRAINING_ONLY, *NO_EFFECT}
        if unknown := sorted(set(self.arguments) - known):
            values = ", ".join(f"{name} = {self.arguments[name]!r}" for name in unknown)
            raise VitreousError(
                f"config.json: model_args has unknown arguments, which may change what is computed: {values}."
                " Load the model with timm, or remove arguments that have no effect"
            )
        for name, allowed in FIXED.items():
            if name in self.arguments and self.arguments[name] not in allowed:
                raise VitreousError(f"config.json: {name} = {self.arguments[name]!r} is not supported")

    def fields(self) -> dict[str, Any]:
        """Return the fields of ViTConfig that config.json determines."""
        if self.activation not in ("gelu", "gelu_tanh", "silu"):
            raise VitreousError(
                f"config.json: act_layer = {self.activation!r} is not supported; expected gelu, gelu_tanh or silu"
                " (SwiGLU)"
            )
        heads = self.arguments.get("num_heads", self.architecture.heads if self.architecture else None)
        fields = {"gelu": "tanh" if self.activation == "gelu_tanh" else "erf", "heads": heads}
        positions = self.arguments.get("pos_embed", "learn")
        if positions in ("", "none"):
            fields |= {"position": "none", "image_size": self.size or 224}
        elif positions != "learn":
            raise VitreousError(f"config.json: pos_embed = {positions!r}: expected learn or none")
        return fields

    def position_slots(self) -> tuple[str, ...]:
        """Return the possible values of ViTConfig.position_slots, the most likely first."""
        if "no_embed_class" not in self.arguments:
            return ("patches", "all", "class")
        return ("patches",) if self.arguments["no_embed_class"] else ("all", "class", "patches")

    def check(self, config: ViTConfig, notes: list[str]) -> None:
        """Check that the arguments agree with the config that was inferred from the tensors."""
        if (self.activation == "silu") != (config.mlp == "swiglu"):
            raise VitreousError(f"config.json: an MLP with {self.activation} is not supported for these tensors")
        for name, agrees in _argument_checks(config).items():
            value = self.arguments.get(name)
            if name in self.arguments and not agrees(value):
                raise VitreousError(f"config.json says {name} = {value!r}, which contradicts the tensors in the file")
        unused = [f"{name} = {self.arguments[name]!r}" for name in TRAINING_ONLY if self.arguments.get(name)]
        if unused:
            notes.append(f"not read from config.json, for training only: {', '.join(unused)}")

    def preprocessing(self, config: ViTConfig, notes: list[str]) -> Preprocessing:
        """Return timm's evaluation transform: the short side to floor(size / crop_pct), then a centre crop."""
        size = pair(config.image_size)
        crop = self.pretrained.get("crop_pct", 1.0 if not self.settings and min(size) >= 384 else 0.9)
        if not isinstance(crop, int | float) or not 0.01 <= crop <= 2:
            raise VitreousError(f"config.json: crop_pct = {crop!r}: expected a fraction, such as 0.9")
        resized = [math.floor(side / crop) for side in size]
        mode = self.pretrained.get("crop_mode", "center")
        squash = mode == "squash"
        if mode not in ("center", "squash"):
            notes.append(f"preprocessing: crop_mode = {mode!r} is unknown; center is used")
        if size[0] != size[1] and not squash:
            notes.append("preprocessing: for sizes that are not square, timm resizes slightly differently")
        interpolation = self.pretrained.get("interpolation", "bicubic")
        half = [0.5] * config.channels
        return Preprocessing.from_json(
            {
                "size": size,
                "resize": min(resized) if not squash else None if crop == 1 else resized,
                "interpolation": "bicubic" if interpolation == "random" else interpolation,
                "mean": self.pretrained.get("mean", half),
                "std": self.pretrained.get("std", half),
            }
        )

    def labels(self, config: ViTConfig) -> Labels:
        names = self.settings.get("label_names", self.pretrained.get("label_names"))
        if not isinstance(names, list) or len(names) != config.num_classes:
            return None
        descriptions = _object(self.settings, "label_descriptions")
        return tuple(str(descriptions.get(str(name), name)) for name in names)


def _argument_checks(config: ViTConfig) -> dict[str, Callable[[Any], bool]]:
    """Return, by argument, a function that tells whether a value agrees with the config inferred from the tensors."""
    hidden = (2 if config.mlp == "swiglu" else 1) * (config.mlp_dim or 0)

    def is_mlp_ratio(value: Any) -> bool:
        return isinstance(value, int | float) and 0 < value < 1e6 and int(config.width * value) == hidden

    return {
        "patch_size": lambda value: pair(value, "config.json: patch_size") == pair(config.patch_size),
        "in_chans": lambda value: value == config.channels,
        "embed_dim": lambda value: value == config.width,
        "depth": lambda value: value == config.depth,
        "mlp_ratio": is_mlp_ratio,
        "qkv_bias": lambda value: bool(value) == config.qkv_bias,
        "qk_norm": lambda value: bool(value) == config.qk_norm,
        "init_values": lambda value: bool(value) == (config.layer_scale is not None),
        "class_token": lambda value: bool(value) == config.class_token,
        "reg_tokens": lambda value: (value or 0) == config.registers,
        "fc_norm": lambda value: value is None or bool(value) == (config.final_norm == "after-pool"),
    }


def _object(settings: dict[str, Any], key: str) -> dict[str, Any]:
    value = settings.get(key) or {}
    if not isinstance(value, dict):
        raise VitreousError(f"config.json: {key} = {value!r}: expected an object")
    return value
