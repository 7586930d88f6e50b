"""DINO and DINOv2, as their authors saved them: timm's names with a few of their own, and no classifier.

A bare DINO backbone has exactly the names of a timm ViT without a head. Such a file is taken as DINO's, whose backbones
were published so; with timm's `config.json` beside it, it is timm's.
"""

import re
from typing import Any

import torch

from vitreous.models.embed import Policy
from vitreous.models.vit import ViTConfig
from vitreous.preprocessing import Preprocessing, preset
from vitreous.weights.checkpoint import Checkpoint, Form, Found, Hints, View, infer, native_size, places_for
from vitreous.weights.express import Expression, fit_class_slot, unsaid
from vitreous.weights.files import Tensors
from vitreous.weights.places import Place, Places
from vitreous.weights.timm import prefix_of

NAME, NAME2 = "dino", "dinov2"
HEADS = r"(module\.)?(head|dino_head|ibot_head)\."
NAMES2 = (
    (r"^reg_token$", "register_tokens"),
    (r"^fc_norm\.", "norm."),
)
SWIGLU = ((r"\.mlp\.fc1\.", ".mlp.w12."), (r"\.mlp\.fc2\.", ".mlp.w3."))


def claims(tensors: Tensors, settings: dict[str, Any]) -> bool:
    """A backbone of a class token and plain blocks, with nothing above its norm but perhaps a projection head."""
    prefix = prefix_of(tensors)
    if prefix is None or "architecture" in settings or f"{prefix}cls_token" not in tensors:
        return False
    foreign = re.compile(
        re.escape(prefix)
        + r"(head\.(weight|bias)$|fc_norm|attn_pool|reg_token|norm_pre|pre_logits|decoder_|mask_token|register_tokens"
        r"|blocks\.0\.(ls1|gamma_1|attn\.q_norm|0\.))"
    )
    return f"{prefix}norm.weight" in tensors and not any(foreign.match(name) for name in tensors)


def claims2(tensors: Tensors, settings: dict[str, Any]) -> bool:
    prefix = prefix2(tensors)
    if prefix is None or "architecture" in settings:
        return False
    return any(f"{prefix}{own}" in tensors for own in ("mask_token", "register_tokens")) and not any(
        name.startswith(f"{prefix}decoder_") for name in tensors
    )


def prefix2(tensors: Tensors) -> str | None:
    """DINOv2 trains in chunks of blocks, and then says blocks.0.11 for blocks.11."""
    prefix = prefix_of(tensors)
    if prefix is None and (chunked := [name for name in tensors if name.endswith("blocks.0.0.norm1.weight")]):
        prefix = chunked[0].removesuffix("blocks.0.0.norm1.weight")
    return prefix


def read(tensors: Tensors, hints: Hints) -> Found:
    prefix = prefix_of(tensors) or ""
    view = View(tensors, lambda ours: (prefix + ours,))
    notes: list[str] = []
    if not prefix:
        notes.append("the names of DINO's backbone are those of a timm model without a head: taken as DINO's")
    config = ViTConfig(**infer(view, hints, notes, ("class",), gelu="erf", resample="dino"))
    return Found(NAME, config, view.places(config), preprocessing_for(config), ignored=_heads(tensors), notes=notes)


def read2(tensors: Tensors, hints: Hints) -> Found:
    prefix = prefix2(tensors) or ""
    chunk = {
        match[2]: match[1]
        for name in tensors
        if (match := re.match(re.escape(prefix) + r"blocks\.(\d+)\.(\d+)\.", name))
    }
    swiglu = any(name.endswith(".mlp.w12.weight") for name in tensors)

    def theirs(ours: str) -> tuple[str, ...]:
        name = rename2(ours, swiglu)
        layer = re.match(r"blocks\.(\d+)\.", name)
        if layer and chunk:
            name = f"blocks.{chunk.get(layer[1], '0')}.{name.removeprefix('blocks.')}"
        return (prefix + name,)

    notes: list[str] = []
    view = View(tensors, theirs)
    policy = "dinov2-registers" if f"{prefix}register_tokens" in tensors else "dinov2"
    config = ViTConfig(**infer(view, hints, notes, ("class",), gelu="erf", resample=policy))
    mask = f"{prefix}mask_token"
    found = Found(NAME2, config, view.places(config), preprocessing_for(config), ignored=_heads(tensors), notes=notes)
    if mask in tensors:
        found.extras["mask_token"] = Place((mask,))
        found.ignored[mask] = "for pre-training only"
    return found


def rename2(ours: str, swiglu: bool) -> str:
    for pattern, name in NAMES2 + (SWIGLU if swiglu else ()):
        ours = re.sub(pattern, name, ours)
    return ours


def _heads(tensors: Tensors) -> dict[str, str]:
    return {name: "the projection head of self-supervised training" for name in tensors if re.match(HEADS, name)}


def preprocessing_for(config: ViTConfig) -> Preprocessing:
    """Both are evaluated at 224 px, the centre of a short side of 256; DINOv2 too, though its positions are for 518."""
    size = native_size(config)
    return preset("dino", (224, 224) if size == (518, 518) else size, config.channels)


# ---------------------------------------------------------------- writing


def write(checkpoint: Checkpoint, config: ViTConfig) -> Form:
    known = r"(blocks\.\d+\.(norm|attn\.(qkv|proj)\.|mlp\.)|patch_embed|cls_token|pos_embed$|(fc_)?norm)"
    places = places_for(config, lambda ours: (ours.replace("fc_norm.", "norm."),), known)
    say, form = _form(checkpoint, config, places, "dino")
    say.only("registers", 0, why="it has none")
    say.only("mlp", "gelu", why="it has no SwiGLU")
    say.only("layer_scale", None, why="it has none")
    return form


def write2(checkpoint: Checkpoint, config: ViTConfig) -> Form:
    known = r"(blocks\.\d+\.(norm|attn\.(qkv|proj)\.|ls|mlp\.)|patch_embed|cls_token|reg_token|pos_embed$|(fc_)?norm)"
    swiglu = config.mlp == "swiglu"
    places = places_for(config, lambda ours: (rename2(ours, swiglu),), known)
    _, form = _form(checkpoint, config, places, "dinov2-registers" if config.registers else "dinov2")
    add_mask_token(form, checkpoint, "mask_token")
    return form


def _form(checkpoint: Checkpoint, config: ViTConfig, places: Places, policy: Policy) -> tuple[Expression, Form]:
    say = Expression(config)
    say.token_vit()
    say.only("num_classes", 0, why="it has no classifier")
    say.only("representation_size", None, why="it has no hidden layer under a head")
    say.resampling(policy)
    say.only("gelu", "erf", why="its GELU is the exact one")
    say.only("norm_eps", 1e-6, why="its norms have 1e-6")
    say.squares("image_size", "patch_size")
    form = Form(places, say.objections, unsaid(config), assumes=preprocessing_for(config))
    fit_class_slot(form, checkpoint, config, wanted=True)
    return say, form


def add_mask_token(form: Form, checkpoint: Checkpoint, name: str) -> None:
    """DINOv2's programs insist on one: the file's own, or zeros, which is how it starts."""
    if "mask_token" in checkpoint.extras:
        form.places["mask_token"] = Place((name,))
    else:
        norm = checkpoint.state["blocks.0.norm1.weight"]
        form.fill[name] = torch.zeros(1, len(norm), dtype=norm.dtype)
