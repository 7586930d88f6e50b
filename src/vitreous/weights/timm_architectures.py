"""Supported architectures of timm, with the properties that cannot be inferred from their tensors.

The tensors do not identify an architecture: `vit_base_patch16_rope_ape_224` has the tensors of a plain ViT, but it has
rotary positions. Therefore only listed names are read. tests/peers/test_timm_architectures.py compares the logits of
every listed architecture with timm's, and checks that every other architecture of timm is refused.
"""

import itertools
import re
from dataclasses import dataclass

from vitreous.errors import VitreousError


@dataclass(frozen=True)
class TimmArchitecture:
    heads: int
    activation: str  # default of `act_layer`; "silu": the MLP is a SwiGLU
    pool: str  # default of `global_pool`


# (heads, activation, names). Braces are alternatives, as in a shell.
FAMILIES = (
    (2, "gelu", "test_vit{,2}"),
    (3, "gelu", "vit_tiny_patch16_{224,384} deit_tiny_patch16_224"),
    (4, "gelu", "vit_wee_patch16_reg1_gap_256"),
    (5, "gelu", "vit_little_patch16_reg{1,4}_gap_256"),
    (6, "gelu", "vit_small_patch{16,32}_{224,384} vit_small_patch8_224 vit_small_patch16_36x1_224 flexivit_small"),
    (6, "gelu", "vit_small_patch14_{,reg4_}dinov2 deit_small_patch16_224 deit3_small_patch16_{224,384}"),
    (8, "gelu", "vit_medium_patch16_gap_{240,256,384} vit_medium_patch16_reg{1,4}_gap_256 deit3_medium_patch16_224"),
    (8, "gelu", "vit_mediumd_patch16_reg4_gap_{256,384}"),
    (10, "gelu", "vit_betwixt_patch16_{,reg1_,reg4_}gap_256 vit_betwixt_patch16_reg4_gap_384"),
    (12, "gelu", "vit_base_patch{16,32}_{224,384} vit_base_patch8_224 vit_base_patch16_224_miil flexivit_base"),
    (12, "gelu", "vit_base_patch14_{,reg4_}dinov2 vit_base_patch14_reg1_tipsv2 vit_base_patch16_reg4_gap_256"),
    (12, "gelu", "vit_base_patch16_siglip_{,gap_}{224,256,384,512} deit{,3}_base_patch16_{224,384}"),
    (12, "gelu_tanh", "vit_base_patch32_siglip_{,gap_}256"),
    (13, "gelu", "vit_so150m2_patch16_reg1_gap_{256,384,448}"),
    (14, "gelu", "vit_so150m_patch16_reg4_{map_256,gap_256,gap_384} vit_base_patch16_plus_240"),
    (14, "gelu", "vit_base_patch32_plus_256"),
    (16, "gelu", "vit_large_patch{16,32}_{224,384} vit_large_patch14_224 vit_{huge,giant,gigantic}_patch14_224"),
    (16, "gelu", "vit_base_patch16_gap_224 vit_huge_patch14_gap_224 vit_huge_patch16_gap_448 flexivit_large"),
    (16, "gelu", "vit_giant_patch16_gap_224 vit_large_patch14_{,reg4_}dinov2 vit_{large,so400m}_patch14_reg1_tipsv2"),
    (16, "gelu", "vit_large_patch16_siglip_{,gap_}{256,384} vit_so400m_patch14_siglip_{,gap_}{224,378,384}"),
    (16, "gelu", "vit_so400m_patch14_siglip_gap_{448,896} eva_large_patch14_{196,336}"),
    (16, "gelu", "deit3_large_patch16_{224,384} deit3_huge_patch14_224"),
    (16, "gelu_tanh", "vit_large_patch16_siglip_{,gap_}512 vit_so400m_patch16_siglip_{,gap_}{256,384,512}"),
    (16, "gelu_tanh", "vit_giantopt_patch16_siglip_{,gap_}{256,384}"),
    (24, "silu", "vit_giant_patch14_{,reg4_}dinov2 vit_giant_patch14_reg1_tipsv2"),
    # Deprecated names, which timm still accepts.
    (3, "gelu", "vit_tiny_patch16_224_in21k"),
    (
        6,
        "gelu",
        "vit_small_patch{16,32}_224_in21k vit_small_patch{8,16}_224_dino deit3_small_patch16_{224,384}_in21ft1k",
    ),
    (8, "gelu", "deit3_medium_patch16_224_in21ft1k"),
    (12, "gelu", "vit_base_patch{8,16,32}_224_in21k vit_base_patch{8,16}_224_dino"),
    (12, "gelu", "vit_base_patch16_224_miil_in21k deit3_base_patch16_{224,384}_in21ft1k"),
    (16, "gelu", "vit_large_patch{16,32}_224_in21k vit_huge_patch14_224_in21k deit3_large_patch16_{224,384}_in21ft1k"),
    (16, "gelu", "deit3_huge_patch14_224_in21ft1k"),
)
# (pattern of names, why they are not supported), for error messages.
REASONS = (
    (r"rope|dinov3|lingbot|sapiens|eva02|_pe_", "it has rotary positions"),
    (r"clip", "it has a norm before its blocks, and norms with another epsilon"),
    (r"rpn", "its norms come after attention and MLP"),
    (r"relpos", "it has relative positions"),
    (r"distilled", "it has a second token and a second head"),
    (r"beit|eva_giant|samvit", "its attention is different"),
    (r"vit_d(wee|little)", "it has differential attention"),
    (r"parallel|_\d+x2_", "its blocks run in parallel"),
    (r"_r\d*_s\d+|resnet", "it is a hybrid with a ResNet of timm"),
    (r"radio|intern300m", "it has no final norm"),
    (r"test_vit3", "it also pools the registers"),
)


def _expand_braces(pattern: str) -> list[str]:
    """Return all names that match a pattern with alternatives in braces."""
    parts = [part[1:-1].split(",") if part[:1] == "{" else [part] for part in re.split(r"(\{[^}]*\})", pattern)]
    return ["".join(choice) for choice in itertools.product(*parts)]


def _default_pool(name: str) -> str:
    """Return the default of `global_pool`, which is part of the name, with a few exceptions."""
    if "gap" in name or name in ("test_vit2", "eva_large_patch14_196", "eva_large_patch14_336"):
        return "avg"
    return "map" if "siglip" in name or "_map_" in name else "token"


ARCHITECTURES = {
    name: TimmArchitecture(heads, activation, _default_pool(name))
    for heads, activation, patterns in FAMILIES
    for pattern in patterns.split()
    for name in _expand_braces(pattern)
}


def timm_architecture(name: object) -> TimmArchitecture:
    """Return a supported architecture; raise an error for other names. The tag of pretrained weights (`.augreg_in1k`)
    is ignored."""
    if isinstance(name, str) and (architecture := ARCHITECTURES.get(name.partition(".")[0])):
        return architecture
    reason = next((why for pattern, why in REASONS if isinstance(name, str) and re.search(pattern, name)), None)
    reason = reason or "it may have properties that its tensors do not show"
    raise VitreousError(
        f"config.json: architecture = {name!r} is not one of the architectures of timm that vitreous supports:"
        f" {reason}. Load it with timm. If it is a plain ViT, set architecture in config.json to the plain architecture"
        " (such as vit_base_patch16_224), with its arguments in model_args"
    )
