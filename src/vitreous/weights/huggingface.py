"""Hugging Face's ViT and DINOv2, with and without registers.

Their files have used the same tensor names since the first version. Since transformers 5, the models in memory use
other names. Both are read; the names of the files are written. config.json and preprocessor_config.json of the same
folder are read as well.
"""

import re
from dataclasses import replace
from typing import Any

from vitreous.errors import VitreousError
from vitreous.models.vit import ViTConfig
from vitreous.utils.sizes import pair
from vitreous.weights.checkpoint import Checkpoint, Labels
from vitreous.weights.compatibility import CompatibilityCheck, fit_class_position, lost_settings
from vitreous.weights.dialect import Dialect, Hints, ParsedCheckpoint, WritePlan
from vitreous.weights.dino import add_mask_token
from vitreous.weights.huggingface_keys import FIXED, NO_EFFECT, USED
from vitreous.weights.huggingface_preprocessor import parse_preprocessor_json, shorten_value, write_preprocessor_json
from vitreous.weights.infer_config import Rename, RenamedTensors, infer_config_fields, rename_parameters
from vitreous.weights.load_report import Remarks
from vitreous.weights.tensor_map import DialectTensor
from vitreous.weights.tensors import Tensors

PATCH_EMBEDDING = "embeddings.patch_embeddings.projection.weight"
# Supported values of model_type, with the default epsilon of their norms.
MODEL_TYPES = {
    "vit": 1e-12,
    "vit_msn": 1e-6,
    "vit_mae": 1e-12,
    "deit": 1e-12,
    "dinov2": 1e-6,
    "dinov2_with_registers": 1e-6,
}
CONFIG_JSON_KEYS = ("model_type", "hidden_size")  # its config.json has one of them
GELUS = {
    "gelu": "erf",
    "gelu_python": "erf",
    "gelu_new": "tanh",
    "gelu_pytorch_tanh": "tanh",
    "gelu_fast": "tanh",
}
COMMON_NAMES = (
    (r"^patch_embed\.proj\.", "embeddings.patch_embeddings.projection."),
    (r"^cls_token$", "embeddings.cls_token"),
    (r"^reg_token$", "embeddings.register_tokens"),
    (r"^pos_embed$", "embeddings.position_embeddings"),
    (r"^(fc_)?norm\.", "layernorm."),
    (r"^pre_logits\.", "pooler.dense."),
)
VIT_NAMES = ((r"\.norm1\.", ".layernorm_before."), (r"\.norm2\.", ".layernorm_after."))
DINOV2_NAMES = ((r"\.ls([12])\.gamma$", r".layer_scale\1.lambda1"),)


def _renamer(prefix: str, dinov2: bool, layers: str, attention: str, mlp: str) -> Rename:
    """Return the function from parameter names to Hugging Face's names.

    `layers`: the name of the list of blocks. `attention` and `mlp`: which names they have, "file" or "memory" (of
    transformers 5); for the MLP also "swiglu" and "swiglu-memory".
    """
    fc1, fc2 = {
        "file": (("intermediate.dense",), "output.dense"),
        "memory": (("mlp.fc1",), "mlp.fc2"),
        "swiglu": (("mlp.weights_in",), "mlp.weights_out"),
        "swiglu-memory": (("mlp.gate_proj", "mlp.up_proj"), "mlp.down_proj"),
    }[mlp]
    qkv, proj = {
        "file": (
            ("attention.attention.query", "attention.attention.key", "attention.attention.value"),
            "attention.output.dense",
        ),
        "memory": (("attention.q_proj", "attention.k_proj", "attention.v_proj"), "attention.o_proj"),
    }[attention]
    submodules = {"attn.qkv": qkv, "attn.proj": (proj,), "mlp.fc1": fc1, "mlp.fc2": (fc2,)}

    def rename(parameter: str) -> tuple[str, ...]:
        if parameter.startswith("head."):
            return (parameter.replace("head.", "classifier."),)
        for pattern, replacement in COMMON_NAMES + (DINOV2_NAMES if dinov2 else VIT_NAMES):
            parameter = re.sub(pattern, replacement, parameter)
        if not parameter.startswith("blocks."):
            return (prefix + parameter,)
        parameter = parameter.replace("blocks", layers, 1)
        for submodule, names in submodules.items():
            if f".{submodule}." in parameter:
                return tuple(parameter.replace(submodule, name) for name in names)
        return (parameter,)

    return rename


# ---------------------------------------------------------------- reading


def _detect_naming(tensors: Tensors) -> tuple[str, bool, str] | None:
    """Return the prefix of names, whether it is a DINOv2, and the name of the list of blocks; None if not detected."""
    for name in tensors:
        if name.endswith(PATCH_EMBEDDING):
            prefix = name.removesuffix(PATCH_EMBEDDING)
            # The last one is MSN with a classifier: transformers 5 writes its layers without the prefix.
            for layers in (f"{prefix}encoder.layer", f"{prefix}layers", "encoder.layer"):
                if f"{layers}.0.layernorm_before.weight" in tensors:
                    return prefix, False, layers
            if f"{prefix}encoder.layer.0.layer_scale1.lambda1" in tensors:
                return prefix, True, f"{prefix}encoder.layer"
    return None


def _matches(tensors: Tensors, config_json: dict[str, Any]) -> bool:
    return _detect_naming(tensors) is not None


def _read(tensors: Tensors, hints: Hints) -> ParsedCheckpoint:
    naming = _detect_naming(tensors)
    assert naming is not None
    prefix, dinov2, layers = naming
    first_block = f"{layers}.0."
    mlp_names = {"intermediate.dense": "file", "mlp.weights_in": "swiglu", "mlp.gate_proj": "swiglu-memory"}
    mlp = next((kind for name, kind in mlp_names.items() if f"{first_block}{name}.weight" in tensors), "memory")
    attention = "file" if f"{first_block}attention.attention.query.weight" in tensors else "memory"
    renamed = RenamedTensors(tensors, _renamer(prefix, dinov2, layers, attention, mlp))
    settings = hints.config_json if any(key in hints.config_json for key in CONFIG_JSON_KEYS) else {}
    remarks = Remarks()
    known = _config_fields(settings, dinov2, swiglu=mlp.startswith("swiglu"))
    if not settings:
        remarks.guesses["GELU"] = f"exact, with norms of epsilon {known['norm_eps']}"
    if f"{prefix}embeddings.register_tokens" in tensors:
        known["resample"] = "dinov2-registers"
    ignored = _ignored_tensors(tensors, prefix, dinov2, hints)
    unused = [name for name in ("head.weight", "pre_logits.weight") if set(renamed.rename(name)) & ignored.keys()]
    known |= {"num_classes": 0} if "head.weight" in unused else {}
    known |= {"representation_size": None} if "pre_logits.weight" in unused else {}
    hints = replace(hints, native_size=settings.get("image_size"))
    config = ViTConfig(**infer_config_fields(renamed, hints, remarks, ("class",), **known))
    _check_settings(settings, config, remarks.notes)
    mask_token = f"{prefix}embeddings.mask_token"
    return ParsedCheckpoint(
        dialect=HUGGINGFACE.name,
        config=config,
        tensor_map=renamed.tensor_map(config),
        preprocessing=parse_preprocessor_json(hints.preprocessor_json, config, dinov2, remarks),
        labels=_labels(settings, config),
        multi_label=settings.get("problem_type") == "multi_label_classification" and config.num_classes > 0,
        ignored=ignored,
        extras={"mask_token": DialectTensor((mask_token,))} if mask_token in tensors else {},
        remarks=remarks,
    )


def _check_settings(settings: dict[str, Any], config: ViTConfig, notes: list[str]) -> None:
    """Check that no key of config.json contradicts the tensors or the supported models. Adds a note on unknown keys."""
    inferred = _settings_from_tensors(config)
    for name, value in settings.items():
        if name in inferred and value is not None and _side(value) != inferred[name]:
            raise VitreousError(f"config.json says {name} = {value!r}, the tensors in the file {inferred[name]!r}")
        if name in FIXED and value not in FIXED[name]:
            raise VitreousError(f"config.json: {name} = {value!r} is not supported")
    if settings.get("problem_type") == "regression":
        notes.append("config.json: problem_type = 'regression': its outputs are numbers, not classes")
    known = {*USED, *inferred, *FIXED, *NO_EFFECT}
    if unknown := [f"{name} = {shorten_value(value)}" for name, value in settings.items() if name not in known]:
        notes.append(f"config.json has unknown settings, which were not used: {', '.join(unknown)}")


def _settings_from_tensors(config: ViTConfig) -> dict[str, Any]:
    """Return the settings of config.json that were inferred from the tensors."""
    return {
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "head_dim": config.width // config.heads,
        "intermediate_size": config.mlp_dim,
        "patch_size": _side(list(pair(config.patch_size))),
        "num_channels": config.channels,
        "qkv_bias": config.qkv_bias,
        "use_swiglu_ffn": config.mlp == "swiglu",
        "num_register_tokens": config.registers,
    }


def _side(size: Any) -> Any:
    """Return the side length of a square [n, n], and any other value unchanged."""
    return size[0] if isinstance(size, list) and len(size) == 2 and size[0] == size[1] else size


def _ignored_tensors(tensors: Tensors, prefix: str, dinov2: bool, hints: Hints) -> dict[str, str]:
    ignored = {}
    classifier = "classifier.weight" in tensors
    for name in tensors:
        if name == f"{prefix}embeddings.mask_token":
            ignored[name] = "for pre-training only"
        elif name.startswith("decoder."):
            ignored[name] = "the decoder of a masked autoencoder"
        elif name.startswith(f"{prefix}pooler.") and classifier:
            ignored[name] = "a pooler that the classifier does not use"
        elif name.startswith("classifier.") and dinov2:
            if not hints.features_only:
                raise VitreousError(
                    "its classifier reads the class token concatenated with the mean of the patches, which is not"
                    " supported: load its features with num_classes=0, or a new head with num_classes=K"
                )
            ignored[name] = "an unsupported kind of head, dropped by num_classes"
    return ignored


def _config_fields(settings: dict[str, Any], dinov2: bool, swiglu: bool) -> dict[str, Any]:
    """Return the fields of ViTConfig that config.json determines."""
    kind = settings.get("model_type", "dinov2" if dinov2 else "vit")
    if not isinstance(kind, str) or kind not in MODEL_TYPES:
        raise VitreousError(
            f"config.json: model_type = {kind!r} is not supported; the supported types are {', '.join(MODEL_TYPES)}"
        )
    act = "gelu" if swiglu else settings.get("hidden_act", "gelu")  # SwiGLU ignores hidden_act
    if not isinstance(act, str) or act not in GELUS:
        raise VitreousError(f"config.json: hidden_act = {act!r} is not supported; expected one of {', '.join(GELUS)}")
    return {
        "gelu": GELUS[act],
        "norm_eps": settings.get("layer_norm_eps", MODEL_TYPES[kind]),
        "heads": settings.get("num_attention_heads"),
        "resample": "hf",
        "dropout": settings.get("hidden_dropout_prob", 0.0),
        "attention_dropout": settings.get("attention_probs_dropout_prob", 0.0),
        "stochastic_depth": settings.get("drop_path_rate", 0.0),
    }


def _labels(settings: dict[str, Any], config: ViTConfig) -> Labels:
    names = settings.get("id2label")
    if not isinstance(names, dict) or set(names) != {str(i) for i in range(config.num_classes)}:
        return None
    labels = tuple(str(names[str(i)]) for i in range(config.num_classes))
    return None if labels == tuple(f"LABEL_{i}" for i in range(len(labels))) else labels


# ---------------------------------------------------------------- writing


def _write(checkpoint: Checkpoint, config: ViTConfig) -> WritePlan:
    dinov2 = config.layer_scale is not None or config.registers > 0 or config.mlp == "swiglu"
    check = CompatibilityCheck(config)
    check.require_class_token_vit()
    check.require_resampling("dinov2-registers" if config.registers else "hf")
    settings = _common_settings(config) | (_dinov2_settings(check, config) if dinov2 else _vit_settings(check, config))
    notes = lost_settings(config, "dropout", "attention_dropout", "stochastic_depth" if dinov2 else "")
    if config.num_classes:
        settings |= _label_settings(checkpoint)
    mlp = "memory" if dinov2 and config.mlp == "gelu" else "swiglu" if dinov2 else "file"
    prefix = "vit." if config.num_classes and not dinov2 else ""
    known = r"(blocks\.\d+\.(norm|attn\.(qkv|proj)\.|mlp\.|ls)|patch_embed|cls_token|reg_token|pos_embed$|(fc_)?norm"
    known += ")" if dinov2 else "|head)" if config.num_classes else "|pre_logits)"
    tensor_map = rename_parameters(config, _renamer(prefix, dinov2, f"{prefix}encoder.layer", "file", mlp), known)
    preprocessor, lost = write_preprocessor_json(checkpoint.preprocessing)
    plan = WritePlan(tensor_map, check.incompatibilities, notes + lost, stores_labels=True, stores_multi_label=True)
    plan.json_files = {"config.json": settings, "preprocessor_config.json": preprocessor}
    fit_class_position(plan, checkpoint, config, required=True)
    if dinov2:
        add_mask_token(plan, checkpoint, "embeddings.mask_token")
    return plan


def _common_settings(config: ViTConfig) -> dict[str, Any]:
    return {
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "hidden_act": "gelu" if config.gelu == "erf" else "gelu_pytorch_tanh",
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "layer_norm_eps": config.norm_eps,
        "image_size": _side(list(pair(config.image_size))),
        "patch_size": _side(list(pair(config.patch_size))),
        "num_channels": config.channels,
        "qkv_bias": config.qkv_bias,
    }


def _label_settings(checkpoint: Checkpoint) -> dict[str, Any]:
    labels = checkpoint.labels
    if labels is None:
        labels = tuple(f"LABEL_{i}" for i in range(checkpoint.config.num_classes))
    settings: dict[str, Any] = {
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {label: i for i, label in enumerate(labels)},
    }
    return settings | ({"problem_type": "multi_label_classification"} if checkpoint.multi_label else {})


def _vit_settings(check: CompatibilityCheck, config: ViTConfig) -> dict[str, Any]:
    if config.num_classes and config.representation_size:
        check.reject("representation_size", "it has no hidden layer before its classifier")
    return {
        "model_type": "vit",
        "architectures": ["ViTForImageClassification" if config.num_classes else "ViTModel"],
        "intermediate_size": config.mlp_dim,
        "pooler_output_size": config.representation_size or config.width,
        "pooler_act": "tanh",
        "encoder_stride": pair(config.patch_size)[0],
    }


def _dinov2_settings(check: CompatibilityCheck, config: ViTConfig) -> dict[str, Any]:
    check.require("num_classes", 0, reason="its DINOv2 has a classifier of another kind")
    check.require("representation_size", None, reason="its DINOv2 has no hidden layer before a head")
    check.require_square("image_size", "patch_size")
    if config.layer_scale is None:
        check.reject("layer_scale", "its DINOv2, the model with registers and SwiGLU, always has LayerScale")
    swiglu = config.mlp == "swiglu"
    for ratio in range(1, 17):
        hidden = config.width * ratio
        if config.mlp_dim == ((int(hidden * 2 / 3) + 7) // 8 * 8 if swiglu else hidden):
            break
    else:
        ratio = 4
        check.reject("mlp_dim", "in its DINOv2, the MLP's width is an integer multiple of the width")
    name = "Dinov2WithRegisters" if config.registers else "Dinov2"
    settings = {
        "model_type": "dinov2_with_registers" if config.registers else "dinov2",
        "architectures": [f"{name}Model"],
        "mlp_ratio": ratio,
        "use_swiglu_ffn": swiglu,
        "layerscale_value": config.layer_scale,
        "drop_path_rate": config.stochastic_depth,
    }
    return settings | ({"num_register_tokens": config.registers} if config.registers else {"use_mask_token": True})


HUGGINGFACE = Dialect("huggingface", _matches, _read, _write, config_json_keys=CONFIG_JSON_KEYS)
