"""DINO and DINOv2 as their authors saved them: timm's tensor names with a few exceptions, and no classifier.

A DINO backbone has the same tensor names as a timm ViT without a head. Such a file is read as DINO, unless timm's
config.json is in its folder.
"""

import re
from typing import Any

import torch

from vitreous.models.embed import Policy
from vitreous.models.vit import ViTConfig
from vitreous.preprocessing import Preprocessing, preset
from vitreous.weights.checkpoint import Checkpoint, native_size
from vitreous.weights.compatibility import CompatibilityCheck, fit_class_position, lost_settings
from vitreous.weights.dialect import PICKLE_OR_SAFETENSORS, Dialect, Hints, ParsedCheckpoint, WritePlan
from vitreous.weights.infer_config import RenamedTensors, infer_config_fields, rename_parameters
from vitreous.weights.load_report import Remarks
from vitreous.weights.tensor_map import DialectTensor, TensorMap
from vitreous.weights.tensors import Tensors
from vitreous.weights.timm import timm_prefix

PROJECTION_HEADS = r"(module\.)?(head|dino_head|ibot_head)\."
DINOV2_NAMES = (
    (r"^reg_token$", "register_tokens"),
    (r"^fc_norm\.", "norm."),
)
SWIGLU_NAMES = ((r"\.mlp\.fc1\.", ".mlp.w12."), (r"\.mlp\.fc2\.", ".mlp.w3."))


# ---------------------------------------------------------------- reading


def _matches_dino(tensors: Tensors, config_json: dict[str, Any]) -> bool:
    """Whether this is a backbone with a class token, plain blocks and a final norm, and at most a projection head."""
    prefix = timm_prefix(tensors)
    if prefix is None or "architecture" in config_json or f"{prefix}cls_token" not in tensors:
        return False
    not_dino = re.compile(
        re.escape(prefix)
        + r"(head\.(weight|bias)$|fc_norm|attn_pool|reg_token|norm_pre|pre_logits|decoder_|mask_token|register_tokens"
        r"|blocks\.0\.(ls1|gamma_1|attn\.q_norm|0\.))"
    )
    return f"{prefix}norm.weight" in tensors and not any(not_dino.match(name) for name in tensors)


def _matches_dinov2(tensors: Tensors, config_json: dict[str, Any]) -> bool:
    prefix = _dinov2_prefix(tensors)
    if prefix is None or "architecture" in config_json:
        return False
    return any(f"{prefix}{name}" in tensors for name in ("mask_token", "register_tokens")) and not any(
        name.startswith(f"{prefix}decoder_") for name in tensors
    )


def _dinov2_prefix(tensors: Tensors) -> str | None:
    """Return the prefix of all names. Training checkpoints group blocks in chunks: blocks.0.11 instead of blocks.11."""
    prefix = timm_prefix(tensors)
    if prefix is None and (chunked := [name for name in tensors if name.endswith("blocks.0.0.norm1.weight")]):
        prefix = chunked[0].removesuffix("blocks.0.0.norm1.weight")
    return prefix


def _read_dino(tensors: Tensors, hints: Hints) -> ParsedCheckpoint:
    prefix = timm_prefix(tensors) or ""
    renamed = RenamedTensors(tensors, lambda parameter: (prefix + parameter,))
    remarks = Remarks()
    if not prefix:
        remarks.guesses["origin"] = "DINO; a ViT of timm without a head has the same tensor names"
    config = ViTConfig(**infer_config_fields(renamed, hints, remarks, ("class",), gelu="erf", resample="dino"))
    return ParsedCheckpoint(
        DINO.name,
        config,
        renamed.tensor_map(config),
        _preprocessing(config),
        ignored=_projection_heads(tensors),
        remarks=remarks,
    )


def _read_dinov2(tensors: Tensors, hints: Hints) -> ParsedCheckpoint:
    prefix = _dinov2_prefix(tensors) or ""
    chunk_of_layer = {
        match[2]: match[1]
        for name in tensors
        if (match := re.match(re.escape(prefix) + r"blocks\.(\d+)\.(\d+)\.", name))
    }
    swiglu = any(name.endswith(".mlp.w12.weight") for name in tensors)

    def rename(parameter: str) -> tuple[str, ...]:
        name = _dinov2_name(parameter, swiglu)
        layer = re.match(r"blocks\.(\d+)\.", name)
        if layer and chunk_of_layer:
            name = f"blocks.{chunk_of_layer.get(layer[1], '0')}.{name.removeprefix('blocks.')}"
        return (prefix + name,)

    remarks = Remarks()
    renamed = RenamedTensors(tensors, rename)
    policy = "dinov2-registers" if f"{prefix}register_tokens" in tensors else "dinov2"
    config = ViTConfig(**infer_config_fields(renamed, hints, remarks, ("class",), gelu="erf", resample=policy))
    parsed = ParsedCheckpoint(
        DINOV2.name,
        config,
        renamed.tensor_map(config),
        _preprocessing(config),
        ignored=_projection_heads(tensors),
        remarks=remarks,
    )
    mask_token = f"{prefix}mask_token"
    if mask_token in tensors:
        parsed.extras["mask_token"] = DialectTensor((mask_token,))
        parsed.ignored[mask_token] = "for pre-training only"
    return parsed


def _dinov2_name(parameter: str, swiglu: bool) -> str:
    for pattern, replacement in DINOV2_NAMES + (SWIGLU_NAMES if swiglu else ()):
        parameter = re.sub(pattern, replacement, parameter)
    return parameter


def _projection_heads(tensors: Tensors) -> dict[str, str]:
    reason = "the projection head of self-supervised training"
    return {name: reason for name in tensors if re.match(PROJECTION_HEADS, name)}


def _preprocessing(config: ViTConfig) -> Preprocessing:
    """Return the authors' evaluation transform: the short side to 256, a centre crop of 224. DINOv2 is evaluated at
    224 too, although its positions are for 518."""
    size = native_size(config)
    return preset("dino", (224, 224) if size == (518, 518) else size, config.channels)


# ---------------------------------------------------------------- writing


def _write_dino(checkpoint: Checkpoint, config: ViTConfig) -> WritePlan:
    known = r"(blocks\.\d+\.(norm|attn\.(qkv|proj)\.|mlp\.)|patch_embed|cls_token|pos_embed$|(fc_)?norm)"
    tensor_map = rename_parameters(config, lambda parameter: (parameter.replace("fc_norm.", "norm."),), known)
    check, plan = _plan(checkpoint, config, tensor_map, "dino")
    check.require("registers", 0, reason="it has no registers")
    check.require("mlp", "gelu", reason="it has no SwiGLU")
    check.require("layer_scale", None, reason="it has no LayerScale")
    return plan


def _write_dinov2(checkpoint: Checkpoint, config: ViTConfig) -> WritePlan:
    known = r"(blocks\.\d+\.(norm|attn\.(qkv|proj)\.|ls|mlp\.)|patch_embed|cls_token|reg_token|pos_embed$|(fc_)?norm)"
    swiglu = config.mlp == "swiglu"
    tensor_map = rename_parameters(config, lambda parameter: (_dinov2_name(parameter, swiglu),), known)
    _, plan = _plan(checkpoint, config, tensor_map, "dinov2-registers" if config.registers else "dinov2")
    add_mask_token(plan, checkpoint, "mask_token")
    return plan


def _plan(
    checkpoint: Checkpoint, config: ViTConfig, tensor_map: TensorMap, policy: Policy
) -> tuple[CompatibilityCheck, WritePlan]:
    check = CompatibilityCheck(config)
    check.require_class_token_vit()
    check.require("num_classes", 0, reason="it has no classifier")
    check.require("representation_size", None, reason="it has no hidden layer before a head")
    check.require_resampling(policy)
    check.require("gelu", "erf", reason="it has the exact GELU")
    check.require("norm_eps", 1e-6, reason="its norms have epsilon 1e-6")
    check.require_square("image_size", "patch_size")
    plan = WritePlan(
        tensor_map,
        check.incompatibilities,
        lost_settings(config),
        assumed_preprocessing=_preprocessing(config),
    )
    fit_class_position(plan, checkpoint, config, required=True)
    return check, plan


def add_mask_token(plan: WritePlan, checkpoint: Checkpoint, name: str) -> None:
    """Write the mask token, which DINOv2's code requires: that of the checkpoint, or zeros, its initial value."""
    if "mask_token" in checkpoint.extras:
        plan.tensor_map["mask_token"] = DialectTensor((name,))
    else:
        norm = checkpoint.state["blocks.0.norm1.weight"]
        plan.added_tensors[name] = torch.zeros(1, len(norm), dtype=norm.dtype)


DINO = Dialect("dino", _matches_dino, _read_dino, _write_dino, PICKLE_OR_SAFETENSORS)
DINOV2 = Dialect("dinov2", _matches_dinov2, _read_dinov2, _write_dinov2, PICKLE_OR_SAFETENSORS)
