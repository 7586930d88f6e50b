"""torchvision's VisionTransformer, its old and its new names for the MLP."""

import re
from dataclasses import replace
from typing import Any

from vitreous.models.vit import ViTConfig
from vitreous.preprocessing import Preprocessing, preset
from vitreous.weights.checkpoint import Checkpoint, Form, Found, Hints, View, infer, native_size, places_for
from vitreous.weights.express import Expression, fit_biases, fit_class_slot, unsaid
from vitreous.weights.files import Tensors

NAME = "torchvision"
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


def rename(ours: str) -> tuple[str, ...]:
    for pattern, theirs in NAMES:
        ours = re.sub(pattern, theirs, ours)
    return (ours,)


def claims(tensors: Tensors, settings: dict[str, Any]) -> bool:
    return "conv_proj.weight" in tensors and "encoder.layers.encoder_layer_0.ln_1.weight" in tensors


def read(tensors: Tensors, hints: Hints) -> Found:
    old = "encoder.layers.encoder_layer_0.mlp.linear_1.weight" in tensors

    def theirs(ours: str) -> tuple[str, ...]:
        (name,) = rename(ours)
        return (name.replace(".mlp.0.", ".mlp.linear_1.").replace(".mlp.3.", ".mlp.linear_2.") if old else name,)

    notes: list[str] = []
    view = View(tensors, theirs)
    fields = infer(view, hints, notes, ("class",), gelu="erf", resample="torchvision")
    config = ViTConfig(**fields)
    notes.append("preprocessing: that of torchvision's own weights of this size; a file does not tell")
    return Found(NAME, config, view.places(config), preprocessing_for(config), notes=notes)


def preprocessing_for(config: ViTConfig) -> Preprocessing:
    """Its weights' own: a short side of 256 (242 for L/16), the centre of 224; larger ones are SWAG's, uncropped."""
    size = native_size(config)
    usual = preset("torchvision", size, config.channels)
    if min(size) > 224:
        return replace(usual, resize=min(size), interpolation="bicubic")
    is_l16 = (config.width, config.patch_size, size) == (1024, (16, 16), (224, 224))
    return replace(usual, resize=242) if is_l16 else usual


def write(checkpoint: Checkpoint, config: ViTConfig) -> Form:
    say = Expression(config)
    say.token_vit()
    say.only("registers", 0, why="it has none")
    say.resampling("torchvision")
    say.only("mlp", "gelu", why="it has no SwiGLU")
    say.only("gelu", "erf", why="its GELU is the exact one")
    say.only("norm_eps", 1e-6, why="its norms have 1e-6")
    say.only("layer_scale", None, why="it has none")
    say.only("channels", 3, why="it takes colour images")
    say.squares("image_size", "patch_size")
    if not config.num_classes:
        say.object("num_classes", "it always has a head")
    form = Form(objections=say.objections, notes=unsaid(config), assumes=preprocessing_for(config))
    fit_class_slot(form, checkpoint, config, wanted=True)
    form.places = places_for(fit_biases(form, checkpoint, config), rename, KNOWN)
    return form
