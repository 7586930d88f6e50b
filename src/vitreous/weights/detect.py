"""Which dialect a file speaks, by the names of its tensors; and what it is where it is none of ours."""

import re
from types import SimpleNamespace
from typing import Any

from vitreous.errors import VitreousError
from vitreous.weights import dino, google, huggingface, native, timm, torchvision
from vitreous.weights.files import Tensors
from vitreous.weights.report import listed

Reader = Any  # claims(tensors, settings) -> bool; read(tensors, hints) -> Found

# In this order: who comes later would also take what an earlier one knows better.
READERS: tuple[Reader, ...] = (
    native,
    google,
    huggingface,
    torchvision,
    SimpleNamespace(claims=dino.claims2, read=dino.read2),
    SimpleNamespace(claims=dino.claims, read=dino.read),
    timm,
)
DISTILLED = r"(.*\.)?(dist_token|head_dist\.weight|distillation_token|distillation_classifier\.weight)$"
OTHERS = (
    (r"(.*\.)?lora_[AB]\.|.*\.lora_(down|up)\.", "LoRA adapter, without the model it belongs to"),
    (r"(.*\.)?rope_embed\.|storage_tokens|.*\.rope\.", "DINOv3 or another ViT with rotary positions"),
    (r"(module\.)?visual\.(conv1|transformer|class_embedding)|(.*\.)?norm_pre\.", "CLIP vision tower"),
    (r"(.*\.)?vision_model\.(embeddings|encoder)|text_model\.", "CLIP or SigLIP model of Hugging Face"),
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
    (r"(.*\.)?patch_embed", "relative of the ViT"),
)


def detect(tensors: Tensors, settings: dict[str, Any]) -> Reader:
    if any(re.match(DISTILLED, name) for name in tensors):
        raise VitreousError(
            "a distilled DeiT: its second token and second head are no part of a ViT, so it is not read."
            " The same DeiT without distillation is"
        )
    for reader in READERS:
        if reader.claims(tensors, settings):
            return reader
    some = listed(list(tensors), 4) or "nothing at all"
    if other := looks_like(tensors):
        raise VitreousError(f"not a ViT or a BiT: by its names this looks like a {other} ({some})")
    raise VitreousError(f"not a checkpoint of any dialect known here: it holds {some}")


def looks_like(tensors: Any) -> str | None:
    """What else a file may be, for whom it cannot be read."""
    for pattern, what in OTHERS:
        expression = re.compile(pattern)
        if any(expression.match(name) for name in tensors):
            return what
    return None
