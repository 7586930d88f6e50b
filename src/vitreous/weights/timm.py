"""timm's VisionTransformer. The parameter names of vitreous are those of timm.

A timm folder has a config.json with the architecture, its arguments and the preprocessing. Only known architectures and
arguments are read. For a file without config.json, the config is inferred from shapes; the rest is timm's default, and
is reported as a guess.
"""

import math
import re
from dataclasses import replace
from typing import Any

from vitreous.models.vit import ViTConfig
from vitreous.preprocessing import Preprocessing
from vitreous.utils.sizes import pair
from vitreous.weights.checkpoint import Checkpoint
from vitreous.weights.compatibility import CompatibilityCheck, fit_class_position, lost_settings
from vitreous.weights.dialect import Dialect, Hints, ParsedCheckpoint, WritePlan
from vitreous.weights.infer_config import RenamedTensors, infer_config_fields, rename_parameters
from vitreous.weights.load_report import Remarks
from vitreous.weights.tensors import Tensors
from vitreous.weights.timm_config import POOLS, TimmConfig

WRAPPER_PREFIXES = re.compile(r"(?:(?:module|_orig_mod|model|backbone|encoder|net|trunk)\.)*")


# ---------------------------------------------------------------- reading


def timm_prefix(tensors: Tensors) -> str | None:
    """Return the prefix that wrappers put before timm's names, usually ""; None if this is not a ViT of timm."""
    for name in tensors:
        prefix = name.removesuffix("patch_embed.proj.weight")
        if prefix != name and WRAPPER_PREFIXES.fullmatch(prefix) and f"{prefix}blocks.0.norm1.weight" in tensors:
            return prefix
    return None


def _matches(tensors: Tensors, config_json: dict[str, Any]) -> bool:
    return timm_prefix(tensors) is not None


def _read(tensors: Tensors, hints: Hints) -> ParsedCheckpoint:
    prefix = timm_prefix(tensors) or ""
    old_layer_scale = f"{prefix}blocks.0.gamma_1" in tensors  # DeiT III as its authors saved it
    old_pre_logits = f"{prefix}pre_logits.fc.weight" in tensors

    def rename(parameter: str) -> tuple[str, ...]:
        if old_layer_scale:
            parameter = re.sub(r"\.ls([12])\.gamma$", r".gamma_\1", parameter)
        if old_pre_logits:
            parameter = re.sub(r"^pre_logits\.", "pre_logits.fc.", parameter)
        return (prefix + parameter,)

    timm_config = TimmConfig(hints.config_json if "architecture" in hints.config_json else {})
    renamed = RenamedTensors(tensors, rename)
    remarks = Remarks()
    known = timm_config.fields() | {"resample": "timm"}
    known["final_norm"] = "after-pool" if "fc_norm.weight" in renamed else "before-pool"
    if timm_config.pool in ("", "avg") or (timm_config.pool is None and "fc_norm.weight" in renamed):
        known["pool"] = "none" if timm_config.pool == "" else "gap"
    hints = replace(hints, native_size=timm_config.size)
    config = ViTConfig(**infer_config_fields(renamed, hints, remarks, timm_config.position_slots(), **known))
    if timm_config.architecture is None:
        _add_guesses(config, remarks)
    else:
        timm_config.check(config, remarks.notes)
    decoder = re.compile(re.escape(prefix) + r"(decoder_\w+|mask_token$)")
    return ParsedCheckpoint(
        dialect=TIMM.name,
        config=config,
        tensor_map=renamed.tensor_map(config),
        preprocessing=timm_config.preprocessing(config, remarks.notes),
        labels=timm_config.labels(config),
        ignored={name: "the decoder of a masked autoencoder" for name in tensors if decoder.match(name)},
        remarks=remarks,
    )


def _add_guesses(config: ViTConfig, remarks: Remarks) -> None:
    """Record the defaults of timm that were assumed for a file without config.json."""
    remarks.guesses["preprocessing"] = "that of timm's own ViTs (for DeiT: --preprocessing deit)"
    if config.pool == "token":
        remarks.guesses["pool"] = "the class token"
    if config.mlp == "gelu":
        remarks.guesses["GELU"] = "exact"
    remarks.guesses["positions"] = "not rotary"


# ---------------------------------------------------------------- writing


def _write(checkpoint: Checkpoint, config: ViTConfig) -> WritePlan:
    check = CompatibilityCheck(config)
    check.require("backbone", None, reason="its hybrids are other classes")
    check.require("position", "learned-1d", "none", reason="it has learned 1-D positions or none")
    check.require("position_at", "stem", reason="it adds positions once")
    check.require("attention", "full", reason="every token attends to all tokens")
    check.require_resampling("timm")
    check.require("norm_eps", 1e-6, reason="its config cannot set another epsilon than 1e-6")
    check.require("representation_size", None, reason="it has no hidden layer before the head")
    if config.mlp == "swiglu" and (config.pool == "map" or config.layer_scale is None):
        check.reject("mlp", "it supports SwiGLU only with LayerScale, and not with a MAP head")
    preprocessing, notes = _preprocessing_settings(checkpoint.preprocessing)
    settings: dict[str, Any] = {
        # Any plain architecture works, because model_args overrides the rest; only SwiGLU cannot be an argument.
        "architecture": "vit_giant_patch14_dinov2" if config.mlp == "swiglu" else "vit_base_patch16_224",
        "num_classes": config.num_classes,
        "num_features": config.width,
        "global_pool": POOLS[config.pool],
        "model_args": _model_args(config),
        "pretrained_cfg": {
            "input_size": [config.channels, *pair(config.image_size)],
            "fixed_input_size": True,
            "num_classes": config.num_classes,
            # timm adapts the first convolution of 3-channel models to other channel counts; others must not name it
            "first_conv": "patch_embed.proj" if config.channels == 3 else None,
            "classifier": "head",
            **preprocessing,
        },
    }
    if checkpoint.labels is not None:
        settings["label_names"] = list(checkpoint.labels)
    tensor_map = rename_parameters(config, lambda parameter: (parameter,), known=r"(?!pre_logits)")
    plan = WritePlan(
        tensor_map,
        check.incompatibilities,
        notes + lost_settings(config),
        {"config.json": settings},
        stores_labels=True,
    )
    if config.registers:  # with registers, timm has positions for all tokens or for the patches only
        fit_class_position(plan, checkpoint, config, required=False)
    return plan


def _model_args(config: ViTConfig) -> dict[str, Any]:
    """Return the arguments of timm's VisionTransformer."""
    swiglu, learned = config.mlp == "swiglu", config.position == "learned-1d"
    return {
        "img_size": list(pair(config.image_size)),
        "patch_size": list(pair(config.patch_size)),
        "in_chans": config.channels,
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.heads,
        "mlp_ratio": _mlp_ratio((2 if swiglu else 1) * (config.mlp_dim or 0), config.width),
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


def _mlp_ratio(hidden: int, width: int) -> float:
    """Return the ratio for which int(width * ratio) is exactly `hidden`."""
    ratio = hidden / width
    return ratio if int(width * ratio) == hidden else math.nextafter(ratio, math.inf)


def _preprocessing_settings(preprocessing: Preprocessing) -> tuple[dict[str, Any], list[str]]:
    """Return timm's settings, and notes on what they cannot represent."""
    size, resize = pair(preprocessing.size), preprocessing.resize
    lost = [] if preprocessing.antialias else ["resizing without antialiasing"]
    if preprocessing.crop == "down" and resize is not None:
        lost.append("rounding of an odd margin of the centre crop")
    resized = size if resize is None else pair(resize)
    crop = _crop_pct(min(size), min(resized))
    if resize is not None and not isinstance(resize, int) and resized != tuple(math.floor(n / crop) for n in size):
        lost.append(f"resizing to {resized[0]} x {resized[1]}")
    squash = resize is None or not isinstance(resize, int)
    if size[0] != size[1] and not squash:
        lost.append("resizing the short side before a crop that is not square: timm also fits the long side")
    settings = {
        "interpolation": preprocessing.interpolation,
        "crop_pct": crop,
        "crop_mode": "squash" if squash else "center",
        "mean": list(preprocessing.mean),
        "std": list(preprocessing.std),
    }
    return settings, [f"preprocessing that its config cannot represent: {', '.join(lost)}"] if lost else []


def _crop_pct(size: int, resized: int) -> float:
    """Return the fraction for which floor(size / fraction) is exactly `resized`."""
    crop = size / resized
    return crop if math.floor(size / crop) == resized else math.nextafter(crop, 0)


TIMM = Dialect("timm", _matches, _read, _write, config_json_keys=("architecture",))
