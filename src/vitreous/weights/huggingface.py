"""Hugging Face's ViT and DINOv2, with and without registers.

Their files have kept one set of names since the beginning; since version 5 the models in memory have others. Both are
read, the files' are written. `config.json` and `preprocessor_config.json` are read where they lie beside the weights.
"""

import re
from dataclasses import replace
from typing import Any

from vitreous.errors import VitreousError
from vitreous.models.checks import pair
from vitreous.models.vit import ViTConfig
from vitreous.preprocessing import Preprocessing, plain, preset
from vitreous.weights.checkpoint import Checkpoint, Form, Found, Hints, Labels, Rename, View, infer, places_for
from vitreous.weights.dino import add_mask_token
from vitreous.weights.express import Expression, fit_class_slot, unsaid
from vitreous.weights.files import Tensors
from vitreous.weights.places import Place

NAME = "huggingface"
PATCHES = "embeddings.patch_embeddings.projection.weight"
TYPES = ("vit", "vit_msn", "vit_mae", "deit", "dinov2", "dinov2_with_registers")
GELUS = {
    "gelu": "erf",
    "gelu_python": "erf",
    "gelu_new": "tanh",
    "gelu_pytorch_tanh": "tanh",
    "gelu_fast": "tanh",
}
RESAMPLE = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")  # by Pillow's numbers
COMMON = (
    (r"^patch_embed\.proj\.", "embeddings.patch_embeddings.projection."),
    (r"^cls_token$", "embeddings.cls_token"),
    (r"^reg_token$", "embeddings.register_tokens"),
    (r"^pos_embed$", "embeddings.position_embeddings"),
    (r"^(fc_)?norm\.", "layernorm."),
    (r"^pre_logits\.", "pooler.dense."),
)
VIT = ((r"\.norm1\.", ".layernorm_before."), (r"\.norm2\.", ".layernorm_after."))
DINO = ((r"\.ls([12])\.gamma$", r".layer_scale\1.lambda1"),)


def renamer(prefix: str, dinov2: bool, layers: str, split: str, mlp: str) -> Rename:
    """From our names to theirs. `layers` is where the blocks are, `split` and `mlp` which names attention and MLP have:
    "file" or "memory", of the MLP also "swiglu" and "swiglu-memory"."""
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
    }[split]
    parts = {"attn.qkv": qkv, "attn.proj": (proj,), "mlp.fc1": fc1, "mlp.fc2": (fc2,)}

    def rename(ours: str) -> tuple[str, ...]:
        if ours.startswith("head."):
            return (ours.replace("head.", "classifier."),)
        for pattern, theirs in COMMON + (DINO if dinov2 else VIT):
            ours = re.sub(pattern, theirs, ours)
        if not ours.startswith("blocks."):
            return (prefix + ours,)
        ours = ours.replace("blocks", layers, 1)
        for mine, names in parts.items():
            if f".{mine}." in ours:
                return tuple(ours.replace(mine, name) for name in names)
        return (ours,)

    return rename


def _style(tensors: Tensors) -> tuple[str, bool, str] | None:
    """Prefix, whether it is DINOv2's, and where its layers are; None if this is not ours to read."""
    for name in tensors:
        if name.endswith(PATCHES):
            prefix = name.removesuffix(PATCHES)
            # The last is MSN's with a classifier, whose layers transformers 5 writes without the prefix.
            for layers in (f"{prefix}encoder.layer", f"{prefix}layers", "encoder.layer"):
                if f"{layers}.0.layernorm_before.weight" in tensors:
                    return prefix, False, layers
            if f"{prefix}encoder.layer.0.layer_scale1.lambda1" in tensors:
                return prefix, True, f"{prefix}encoder.layer"
    return None


def claims(tensors: Tensors, settings: dict[str, Any]) -> bool:
    return _style(tensors) is not None


def read(tensors: Tensors, hints: Hints) -> Found:
    style = _style(tensors)
    assert style is not None
    prefix, dinov2, layers = style
    first = f"{layers}.0."
    kinds = {"intermediate.dense": "file", "mlp.weights_in": "swiglu", "mlp.gate_proj": "swiglu-memory"}
    mlp = next((kind for name, kind in kinds.items() if f"{first}{name}.weight" in tensors), "memory")
    split = "file" if f"{first}attention.attention.query.weight" in tensors else "memory"
    view = View(tensors, renamer(prefix, dinov2, layers, split, mlp))
    settings = hints.settings if "model_type" in hints.settings or "hidden_size" in hints.settings else {}
    notes: list[str] = []
    known = _known(settings, dinov2)
    if not settings:
        notes.append(
            f"GELU, eps {known['norm_eps']}: Hugging Face's defaults; a file without its config.json does not tell"
        )
    if f"{prefix}embeddings.register_tokens" in tensors:
        known["resample"] = "dinov2-registers"
    ignored = _ignored(tensors, prefix, dinov2, hints)
    hidden = [name for name in ("head.weight", "pre_logits.weight") if set(view.rename(name)) & ignored.keys()]
    known |= {"num_classes": 0} if "head.weight" in hidden else {}
    known |= {"representation_size": None} if "pre_logits.weight" in hidden else {}
    told = settings.get("image_size")
    fields = infer(view, replace(hints, native_size=told), notes, ("class",), **known)
    if settings.get("num_hidden_layers", fields["depth"]) != fields["depth"]:
        raise VitreousError(f"config.json says {settings['num_hidden_layers']} layers, the file has {fields['depth']}")
    config = ViTConfig(**fields)
    found = Found(NAME, config, view.places(config), _preprocessing(hints.processor, config, dinov2, notes))
    found.labels, found.notes, found.ignored = _labels(settings, config), notes, ignored
    mask = f"{prefix}embeddings.mask_token"
    if mask in tensors:
        found.extras["mask_token"] = Place((mask,))
    return found


def _ignored(tensors: Tensors, prefix: str, dinov2: bool, hints: Hints) -> dict[str, str]:
    ignored = {}
    classifier = "classifier.weight" in tensors
    for name in tensors:
        if name == f"{prefix}embeddings.mask_token":
            ignored[name] = "for pre-training only"
        elif name.startswith("decoder."):
            ignored[name] = "the decoder of a masked autoencoder"
        elif name.startswith(f"{prefix}pooler.") and classifier:
            ignored[name] = "a pooler beside a classifier is not used"
        elif name.startswith("classifier.") and dinov2:
            if not hints.features_only:
                raise VitreousError(
                    "its classifier reads the class token and the mean of the patches side by side, which no model of"
                    " ours does: load its features with num_classes=0, or a new head with num_classes=K"
                )
            ignored[name] = "a head of another kind, dropped by num_classes"
    return ignored


def _known(settings: dict[str, Any], dinov2: bool) -> dict[str, Any]:
    kind = settings.get("model_type")
    if kind is not None and kind not in TYPES:
        raise VitreousError(f"Hugging Face's {kind!r} is another architecture; read here are {', '.join(TYPES)}")
    act = settings.get("hidden_act", "gelu")
    if not isinstance(act, str) or act not in GELUS:
        raise VitreousError(f"config.json: hidden_act = {act!r}; a ViT of ours has GELU: {', '.join(GELUS)}")
    if settings.get("pooler_act", "tanh") != "tanh":
        raise VitreousError(f"config.json: pooler_act = {settings['pooler_act']!r}; ours is tanh")
    return {
        "gelu": GELUS[act],
        "norm_eps": settings.get("layer_norm_eps", 1e-6 if dinov2 else 1e-12),
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


def _preprocessing(processor: dict[str, Any], config: ViTConfig, dinov2: bool, notes: list[str]) -> Preprocessing:
    size = pair(config.image_size)
    if not processor:
        notes.append("preprocessing: its default, for there is no preprocessor_config.json")
        usual = plain(size, config.channels)
        if dinov2:
            usual = replace(preset("dino", 224, config.channels), crop="down")
        return usual
    shown = _box(processor.get("size", list(size)), "size")
    final: Any = _box(processor.get("crop_size", list(size)), "crop_size") if processor.get("do_center_crop") else shown
    if not processor.get("do_resize", True):
        notes.append("its own program does not resize images; here they are resized to the model's size")
        final = shown = list(size)
    if isinstance(final, int):  # a short side without a crop: images of all shapes
        final = [final, final]
    number = processor.get("resample", 2)
    if type(number) is not int or not 0 <= number < len(RESAMPLE):
        raise VitreousError(f"preprocessor_config.json: resample = {number!r}: expected a number from 0 to 5")
    scale = processor.get("rescale_factor", 1 / 255) if processor.get("do_rescale", True) else 1.0
    if not isinstance(scale, int | float) or not 1e-9 <= scale <= 1e9:
        raise VitreousError(f"preprocessor_config.json: rescale_factor = {scale!r}: expected a number such as 1/255")
    normalise = processor.get("do_normalize", True)
    found = Preprocessing.from_json(
        {
            "size": final,
            "resize": None if shown == final else shown,
            "interpolation": RESAMPLE[number],
            "crop": "round" if shown == final else "down",  # without a crop it says nothing
            "mean": processor.get("image_mean", [0.5] * config.channels) if normalise else [0.0] * config.channels,
            "std": processor.get("image_std", [0.5] * config.channels) if normalise else [1.0] * config.channels,
        }
    )
    if abs(255 * scale - 1) > 1e-6:  # theirs is of pixels times the scale, ours of pixels in 0..1
        mean, std = (tuple(x / (255 * scale) for x in values) for values in (found.mean, found.std))
        found = replace(found, mean=mean, std=std)
    return found


def _box(size: Any, name: str) -> int | list[int]:
    """224; {"height": .., "width": ..}; {"shortest_edge": ..}; [.., ..]. One number stands for a square."""
    if isinstance(size, dict) and "shortest_edge" in size:
        return pair(size["shortest_edge"], f"preprocessor_config.json: {name}")[0]
    if isinstance(size, dict):
        size = [size.get("height"), size.get("width")]
    return list(pair(size, f"preprocessor_config.json: {name}"))


# ---------------------------------------------------------------- writing


def write(checkpoint: Checkpoint, config: ViTConfig) -> Form:
    dinov2 = config.layer_scale is not None or config.registers > 0 or config.mlp == "swiglu"
    say = Expression(config)
    say.token_vit()
    say.resampling("dinov2-registers" if config.registers else "hf")
    settings: dict[str, Any] = {
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "hidden_act": "gelu" if config.gelu == "erf" else "gelu_pytorch_tanh",
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "layer_norm_eps": config.norm_eps,
        "image_size": _square(config.image_size),
        "patch_size": _square(config.patch_size),
        "num_channels": config.channels,
        "qkv_bias": config.qkv_bias,
    }
    settings |= _dinov2(say, config) if dinov2 else _vit(say, config)
    notes = unsaid(config, "dropout", "attention_dropout", "stochastic_depth" if dinov2 else "")
    if config.num_classes and checkpoint.labels is not None:
        settings["id2label"] = {str(i): label for i, label in enumerate(checkpoint.labels)}
        settings["label2id"] = {label: i for i, label in enumerate(checkpoint.labels)}
    elif config.num_classes:
        settings["id2label"] = {str(i): f"LABEL_{i}" for i in range(config.num_classes)}
        settings["label2id"] = {f"LABEL_{i}": i for i in range(config.num_classes)}
    mlp = "memory" if dinov2 and config.mlp == "gelu" else "swiglu" if dinov2 else "file"
    prefix = "vit." if config.num_classes and not dinov2 else ""
    known = r"(blocks\.\d+\.(norm|attn\.(qkv|proj)\.|mlp\.|ls)|patch_embed|cls_token|reg_token|pos_embed$|(fc_)?norm"
    known += ")" if dinov2 else "|head)" if config.num_classes else "|pre_logits)"
    places = places_for(config, renamer(prefix, dinov2, f"{prefix}encoder.layer", "file", mlp), known)
    processor, lost = describe_preprocessing(checkpoint.preprocessing)
    form = Form(places, say.objections, notes + lost, carries_labels=True)
    form.documents = {"config.json": settings, "preprocessor_config.json": processor}
    fit_class_slot(form, checkpoint, config, wanted=True)
    if dinov2:
        add_mask_token(form, checkpoint, "embeddings.mask_token")
    return form


def _vit(say: Expression, config: ViTConfig) -> dict[str, Any]:
    if config.num_classes and config.representation_size:
        say.object("representation_size", "it has no hidden layer under its classifier")
    return {
        "model_type": "vit",
        "architectures": ["ViTForImageClassification" if config.num_classes else "ViTModel"],
        "intermediate_size": config.mlp_dim,
        "pooler_output_size": config.representation_size or config.width,
        "pooler_act": "tanh",
        "encoder_stride": pair(config.patch_size)[0],
    }


def _dinov2(say: Expression, config: ViTConfig) -> dict[str, Any]:
    say.only("num_classes", 0, why="its DINOv2 has a classifier of another kind")
    say.only("representation_size", None, why="its DINOv2 has no hidden layer under a head")
    say.squares("image_size", "patch_size")
    if config.layer_scale is None:
        say.object("layer_scale", "its DINOv2, which has registers and SwiGLU, has always one")
    swiglu = config.mlp == "swiglu"
    for ratio in range(1, 17):
        hidden = config.width * ratio
        if config.mlp_dim == ((int(hidden * 2 / 3) + 7) // 8 * 8 if swiglu else hidden):
            break
    else:
        ratio = 4
        say.object("mlp_dim", "its DINOv2 has a whole multiple of the width")
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


def _square(size: Any) -> int | list[int]:
    height, width = pair(size)
    return height if height == width else [height, width]


def describe_preprocessing(p: Preprocessing) -> tuple[dict[str, Any], list[str]]:
    lost = [] if p.antialias else ["resizing without antialiasing"]
    if p.crop == "round" and p.resize is not None:
        lost.append("where the odd pixel of a centre crop goes")
    height, width = pair(p.size)
    shown = pair(p.size) if p.resize is None else p.resize
    described = {
        "image_processor_type": "ViTImageProcessor" if p.resize is None else "BitImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": shown} if isinstance(shown, int) else {"height": shown[0], "width": shown[1]},
        "resample": RESAMPLE.index(p.interpolation),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(p.mean),
        "image_std": list(p.std),
    }
    if p.resize is not None:
        described |= {"do_center_crop": True, "crop_size": {"height": height, "width": width}, "do_convert_rgb": True}
    return described, [f"preprocessing that its config cannot express: {', '.join(lost)}"] if lost else []
