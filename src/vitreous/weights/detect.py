"""Which dialect a file speaks, by the names of its tensors; and what it is where it is none of ours."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from vitreous.errors import VitreousError
from vitreous.weights import dino, google, huggingface, native, timm, torchvision
from vitreous.weights.checkpoint import Found, Hints
from vitreous.weights.files import Tensors
from vitreous.weights.report import listed


@dataclass(frozen=True)
class Reader:
    claims: Callable[[Tensors, dict[str, Any]], bool]  # by its names, and by config.json
    read: Callable[[Tensors, Hints], Found]


# In this order: who comes later would also take what an earlier one knows better.
READERS = (
    Reader(native.claims, native.read),
    Reader(google.claims, google.read),
    Reader(huggingface.claims, huggingface.read),
    Reader(torchvision.claims, torchvision.read),
    Reader(dino.claims2, dino.read2),
    Reader(dino.claims, dino.read),
    Reader(timm.claims, timm.read),
)
DISTILLED = r"(.*\.)?(dist_token|head_dist\.weight|distillation_token|distillation_classifier\.weight)$"
OTHERS = (
    (r"(.*\.)?detection_tokens$", "YOLOS detector"),
    (r"(.*\.)?lora_[AB]\.|.*\.lora_(down|up)\.", "LoRA adapter, without the model it belongs to"),
    (r"(.*\.)?rope_embed\.|storage_tokens|.*\.rope\.", "DINOv3 or another ViT with rotary positions"),
    (r"(module\.)?visual\.(conv1|transformer|class_embedding)|(.*\.)?norm_pre\.", "CLIP vision tower"),
    (r"(.*\.)?vision_model\.(embeddings|encoder)|text_model\.", "CLIP or SigLIP model of Hugging Face"),
    (r"(.*\.)?embeddings\.(patch_embedding|class_embedding)", "CLIP or SigLIP vision tower of Hugging Face"),
    (r"(.*\.)?image_encoder\.(patch_embed|trunk)|mask_decoder\.", "Segment Anything model"),
    (r"(.*\.)?relative_position_bias_table$", "Swin Transformer or BEiT"),
    (r"(.*\.)?(q_bias|v_bias|inner_attn_ln|mlp\.fc1_g)", "BEiT or EVA"),
    (r"(.*\.)?lambda_1$", "BEiT model of Hugging Face"),
    (r"(.*\.)?(conv_dw|dwconv|depthwise)\.", "ConvNeXt or another network of depthwise convolutions"),
    (r"(.*\.)?conv_stem\.|blocks\.0\.0\.(conv|bn|se)", "EfficientNet or MobileNet"),
    (r"(.*\.)?features\.\d+\.", "VGG, DenseNet, MobileNet or Swin of torchvision"),
    (r"(.*\.)?layer[1-4]\.\d+\.(conv|bn)\d|(.*\.)?encoder\.stages\.\d", "ResNet with batch normalisation"),
    (r"(stem|stages\.\d+\.blocks\.\d+)\.(conv|norm|downsample)", "ResNet of timm (its BiT among them)"),
    (r"(.*\.)?patch_embed\.backbone\.", "hybrid of timm"),
    (r"(.*\.)?(word_embeddings|wte|embed_tokens|tok_embeddings|shared|token_embd)\.weight$", "language model"),
    (r"(.*\.)?(down_blocks|up_blocks|input_blocks|diffusion_model)\.", "diffusion model"),
)


def read(tensors: Tensors, hints: Hints) -> Found:
    """What the dialect that knows these names makes of the file."""
    kind = hints.settings.get("model_type")
    if any(re.match(DISTILLED, name) for name in tensors) and kind in (None, "deit"):
        raise VitreousError(
            "a distilled DeiT: its second token and second head are no part of a ViT, so it is not read."
            " The same DeiT without distillation is"
        )
    reader = next((reader for reader in READERS if reader.claims(tensors, hints.settings)), None)
    other = looks_like(tensors)
    if reader is None:
        some = listed(list(tensors), 4) or "nothing at all"
        if other is None and any("patch_embed" in name for name in tensors):
            other = "relative of the ViT"
        if other is not None:
            raise VitreousError(f"not a ViT or a BiT: by its names this looks like a {other} ({some})")
        raise VitreousError(f"not a checkpoint of any dialect known here: it holds {some}")
    try:
        return reader.read(tensors, hints)
    except VitreousError as error:
        if other is None:
            raise
        raise VitreousError(f"{error} (by its names this looks like a {other})") from error


def looks_like(names: Iterable[str]) -> str | None:
    """What else a file may be, for whom it cannot be read."""
    names = list(names)
    for pattern, what in OTHERS:
        if any(map(re.compile(pattern).match, names)):
            return what
    return None
