"""Detect the dialect of a checkpoint from its tensor names, or name the kind of unsupported model it contains."""

import re
from collections.abc import Iterable
from itertools import islice

from vitreous.errors import VitreousError, summarize_names
from vitreous.weights.dialect import Hints, ParsedCheckpoint
from vitreous.weights.dialects import DETECTION_ORDER
from vitreous.weights.tensors import Tensors

DISTILLED = r"(.*\.)?(dist_token|head_dist\.weight|distillation_token|distillation_classifier\.weight)$"
UNSUPPORTED_MODELS = (  # (pattern of tensor names, kind of model), for error messages
    (r"(.*\.)?detection_tokens$", "YOLOS detector"),
    (r"(.*\.)?lora_[AB]\.|.*\.lora_(down|up)\.", "LoRA adapter without its base model"),
    (r"(.*\.)?rope_embed\.|storage_tokens|.*\.rope\.", "DINOv3 or another ViT with rotary positions"),
    (r"(module\.)?visual\.(conv1|transformer|class_embedding)|(.*\.)?norm_pre\.", "CLIP vision tower"),
    (r"(.*\.)?vision_model\.(embeddings|encoder)|text_model\.", "CLIP or SigLIP model of Hugging Face"),
    (r"(.*\.)?embeddings\.(patch_embedding|class_embedding)", "CLIP or SigLIP vision tower of Hugging Face"),
    (r"(.*\.)?image_encoder\.(patch_embed|trunk)|mask_decoder\.", "Segment Anything model"),
    (r"(.*\.)?relative_position_bias_table$", "Swin Transformer or BEiT"),
    (r"(.*\.)?(q_bias|v_bias|inner_attn_ln|mlp\.fc1_g)", "BEiT or EVA"),
    (r"(.*\.)?lambda_1$", "BEiT model of Hugging Face"),
    (r"(.*\.)?(conv_dw|dwconv|depthwise)\.", "ConvNeXt or another network with depthwise convolutions"),
    (r"(.*\.)?conv_stem\.|blocks\.0\.0\.(conv|bn|se)", "EfficientNet or MobileNet"),
    (r"(.*\.)?features\.\d+\.", "VGG, DenseNet, MobileNet or Swin of torchvision"),
    (r"(.*\.)?layer[1-4]\.\d+\.(conv|bn)\d|(.*\.)?encoder\.stages\.\d", "ResNet with batch normalisation"),
    (r"(stem|stages\.\d+\.blocks\.\d+)\.(conv|norm|downsample)", "ResNet of timm (or its BiT)"),
    (r"(.*\.)?patch_embed\.backbone\.", "hybrid of timm"),
    (r"(.*\.)?(word_embeddings|wte|embed_tokens|tok_embeddings|shared|token_embd)\.weight$", "language model"),
    (r"(.*\.)?(down_blocks|up_blocks|input_blocks|diffusion_model)\.", "diffusion model"),
)


def detect_and_read(tensors: Tensors, hints: Hints) -> ParsedCheckpoint:
    """Read a checkpoint in the first dialect that matches its tensor names."""
    model_type = hints.config_json.get("model_type")
    if any(re.match(DISTILLED, name) for name in tensors) and model_type in (None, "deit"):
        raise VitreousError(
            "a distilled DeiT is not supported, because it has a second token and a second head."
            " The same DeiT without distillation is supported"
        )
    dialect = next((dialect for dialect in DETECTION_ORDER if dialect.matches(tensors, hints.config_json)), None)
    other_model = name_unsupported_model(tensors)
    if dialect is None:
        names = summarize_names(list(tensors), 4) or "nothing at all"
        if other_model is None and any("patch_embed" in name for name in tensors):
            other_model = "variant of the ViT"
        if other_model is not None:
            raise VitreousError(f"not a ViT or a BiT: by its tensor names, this looks like a {other_model} ({names})")
        raise VitreousError(f"not a checkpoint of any supported format: it contains {names}")
    foreign_json = bool(hints.config_json) and not any(key in hints.config_json for key in dialect.config_json_keys)
    if foreign_json and model_type is not None:
        raise VitreousError(
            f"config.json says model_type = {model_type!r}, but these are not the tensor names of such a model of"
            " Hugging Face: it may compute something else. To ignore config.json, move the weights to a folder without"
            " it"
        )
    try:
        parsed = dialect.read(tensors, hints)
    except VitreousError as error:
        if other_model is None:
            raise
        raise VitreousError(f"{error} (by its tensor names, this looks like a {other_model})") from error
    if foreign_json:
        parsed.remarks.notes.append("config.json, in the same folder, is of an unknown kind: it was not used")
    return parsed


def name_unsupported_model(names: Iterable[str]) -> str | None:
    """Return the kind of unsupported model that has such tensor names, for error messages."""
    names = list(islice(names, 10_000))
    for pattern, kind in UNSUPPORTED_MODELS:
        if any(map(re.compile(pattern).match, names)):
            return kind
    return None
