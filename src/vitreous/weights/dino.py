"""DINO and DINOv2, as their authors saved them: timm's names with a few of their own, and no classifier.

A bare DINO backbone has exactly the names of a timm ViT without a head. Such a file is taken as DINO's, whose backbones
were published so; with timm's `config.json` beside it, it is timm's.
"""

import re
from typing import Any, Literal

import torch

from vitreous.models.checks import pair
from vitreous.models.vit import ViTConfig
from vitreous.preprocessing import Preprocessing, preset
from vitreous.weights.checkpoint import Checkpoint, Form, Found, Hints, View, infer, places_for
from vitreous.weights.express import Expression, training_notes
from vitreous.weights.files import Tensors
from vitreous.weights.places import Place
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
    size = pair(config.image_size)
    size = (224, 224) if size == (518, 518) else size
    return preset("dino", size, config.channels)


# ---------------------------------------------------------------- writing


def write(checkpoint: Checkpoint, config: ViTConfig) -> Form:
    say = _say(config, "dino")
    say.only("registers", 0, why="it has none")
    say.only("mlp", "gelu", why="it has no SwiGLU")
    say.only("layer_scale", None, why="it has none")
    known = r"(blocks\.\d+\.(norm|attn\.(qkv|proj)\.|mlp\.)|patch_embed|cls_token|pos_embed$|(fc_)?norm)"
    places = places_for(config, lambda ours: (ours.replace("fc_norm.", "norm."),), known)
    return Form(places, say.objections, training_notes(config), assumes=preprocessing_for(config))


def write2(checkpoint: Checkpoint, config: ViTConfig) -> Form:
    say = _say(config, "dinov2-registers" if config.registers else "dinov2")
    known = r"(blocks\.\d+\.(norm|attn\.(qkv|proj)\.|ls|mlp\.)|patch_embed|cls_token|reg_token|pos_embed$|(fc_)?norm)"
    swiglu = config.mlp == "swiglu"
    places = places_for(config, lambda ours: (rename2(ours, swiglu),), known)
    form = Form(places, say.objections, training_notes(config), assumes=preprocessing_for(config))
    add_mask_token(form, checkpoint, "mask_token")
    return form


def add_mask_token(form: Form, checkpoint: Checkpoint, name: str) -> None:
    """DINOv2's programs insist on one: the file's own, or zeros, which is how it starts."""
    if "mask_token" in checkpoint.extras:
        form.places["mask_token"] = Place((name,))
    else:
        norm = checkpoint.state["blocks.0.norm1.weight"]
        form.fill[name] = torch.zeros(1, len(norm), dtype=norm.dtype)


def _say(config: ViTConfig, policy: Literal["dino", "dinov2", "dinov2-registers"]) -> Expression:
    say = Expression(config)
    say.only("backbone", None, why="it has no hybrids")
    say.only("pool", "token", why="it reads the class token")
    say.only("num_classes", 0, why="it has no classifier")
    say.only("representation_size", None, why="it has no hidden layer under a head")
    say.only("final_norm", "before-pool", why="its last norm comes before the class token is read")
    say.only("position", "learned-1d", why="its positions are learned")
    say.only("position_at", "stem", why="it adds positions once")
    say.only("position_slots", "class", why="positions are for the class token and the patches")
    say.resampling(policy)
    say.only("gelu", "erf", why="its GELU is the exact one")
    say.only("norm_eps", 1e-6, why="its norms have 1e-6")
    say.only("qk_norm", False, why="it has none")
    for field in ("image_size", "patch_size"):
        height, width = pair(getattr(config, field))
        if height != width:
            say.object(field, "it takes squares alone")
    return say
