"""torchvision's VisionTransformer, with its old and new names for the MLP."""

import re
from dataclasses import replace
from typing import Any

from vitreous.models.vit import ViTConfig
from vitreous.preprocessing import Preprocessing, preset
from vitreous.weights.checkpoint import Checkpoint, native_size
from vitreous.weights.compatibility import (
    CompatibilityCheck,
    add_zero_qkv_biases,
    fit_class_position,
    lost_settings,
)
from vitreous.weights.dialect import PICKLE_OR_SAFETENSORS, Dialect, Hints, ParsedCheckpoint, WritePlan
from vitreous.weights.infer_config import RenamedTensors, infer_config_fields, rename_parameters
from vitreous.weights.load_report import Remarks
from vitreous.weights.tensors import Tensors

NAMES = (
    (r"^patch_embed\.proj\.", "conv_proj."),
    (r"^cls_token$", "class_token"),
    (r"^pos_embed$", "encoder.pos_embedding"),
    (r"^blocks\.(\d+)\.", r"encoder.layers.encoder_layer_\1."),
    (r"\.norm([12])\.", r".ln_\1."),
    (r"\.attn\.qkv\.", ".self_attention.in_proj_"),
    (r"\.attn\.proj\.", ".self_attention.out_proj."),
    (r"\.mlp\.fc1\.", ".mlp.0."),
    (r"\.mlp\.fc2\.", ".mlp.3."),
    (r"^(fc_)?norm\.", "encoder.ln."),
    (r"^pre_logits\.", "heads.pre_logits."),
    (r"^head\.", "heads.head."),
)
KNOWN = r"(blocks\.\d+\.(norm|attn\.(qkv|proj)\.|mlp\.)|patch_embed|cls_token|pos_embed$|(fc_)?norm|pre_logits|head)"


def _rename(parameter: str) -> tuple[str, ...]:
    for pattern, replacement in NAMES:
        parameter = re.sub(pattern, replacement, parameter)
    return (parameter,)


def _matches(tensors: Tensors, config_json: dict[str, Any]) -> bool:
    return "conv_proj.weight" in tensors and "encoder.layers.encoder_layer_0.ln_1.weight" in tensors


def _read(tensors: Tensors, hints: Hints) -> ParsedCheckpoint:
    old_names = "encoder.layers.encoder_layer_0.mlp.linear_1.weight" in tensors

    def rename(parameter: str) -> tuple[str, ...]:
        (name,) = _rename(parameter)
        if old_names:
            name = name.replace(".mlp.0.", ".mlp.linear_1.").replace(".mlp.3.", ".mlp.linear_2.")
        return (name,)

    remarks = Remarks()
    renamed = RenamedTensors(tensors, rename)
    fields = infer_config_fields(renamed, hints, remarks, ("class",), gelu="erf", resample="torchvision")
    config = ViTConfig(**fields)
    remarks.guesses["preprocessing"] = "that of torchvision's pretrained weights of this size"
    return ParsedCheckpoint(
        TORCHVISION.name, config, renamed.tensor_map(config), _preprocessing(config), remarks=remarks
    )


def _preprocessing(config: ViTConfig) -> Preprocessing:
    """Return the preprocessing of torchvision's weights: the short side to 256 (242 for L/16), then a centre crop of
    224. Larger sizes are SWAG weights, which have no crop."""
    size = native_size(config)
    usual = preset("torchvision", size, config.channels)
    if min(size) > 224:
        return replace(usual, resize=min(size), interpolation="bicubic")
    is_l16 = (config.width, config.patch_size, size) == (1024, (16, 16), (224, 224))
    return replace(usual, resize=242) if is_l16 else usual


def _write(checkpoint: Checkpoint, config: ViTConfig) -> WritePlan:
    check = CompatibilityCheck(config)
    check.require_class_token_vit()
    check.require("registers", 0, reason="it has no registers")
    check.require_resampling("torchvision")
    check.require("mlp", "gelu", reason="it has no SwiGLU")
    check.require("gelu", "erf", reason="it has the exact GELU")
    check.require("norm_eps", 1e-6, reason="its norms have epsilon 1e-6")
    check.require("layer_scale", None, reason="it has no LayerScale")
    check.require("channels", 3, reason="it has 3 input channels")
    check.require_square("image_size", "patch_size")
    if not config.num_classes:
        check.reject("num_classes", "it always has a head")
    plan = WritePlan(
        incompatibilities=check.incompatibilities,
        notes=lost_settings(config),
        assumed_preprocessing=_preprocessing(config),
    )
    fit_class_position(plan, checkpoint, config, required=True)
    plan.tensor_map = rename_parameters(add_zero_qkv_biases(plan, checkpoint, config), _rename, KNOWN)
    return plan


TORCHVISION = Dialect("torchvision", _matches, _read, _write, PICKLE_OR_SAFETENSORS)
