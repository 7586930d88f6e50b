"""Names to configs: "B/16", "R50+B/16", "BiT-R50x1", "DINOv2-S/14", "vitreous-mini"."""

from dataclasses import fields
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any

import torch

from vitreous.errors import VitreousError, brief
from vitreous.models.aliases import alias_hint
from vitreous.models.resnet import BLOCKS, BiT, BiTConfig, ResNetConfig
from vitreous.models.vit import VisionTransformer, ViTConfig
from vitreous.utils.memory import require_memory
from vitreous.utils.sizes import Size

VARIANTS: dict[str, dict[str, int]] = {
    "Ti": {"width": 192, "depth": 12, "heads": 3, "mlp_dim": 768},
    "S": {"width": 384, "depth": 12, "heads": 6, "mlp_dim": 1536},
    "B": {"width": 768, "depth": 12, "heads": 12, "mlp_dim": 3072},
    "L": {"width": 1024, "depth": 24, "heads": 16, "mlp_dim": 4096},
    "H": {"width": 1280, "depth": 32, "heads": 16, "mlp_dim": 5120},
    "So400m": {"width": 1152, "depth": 27, "heads": 16, "mlp_dim": 4304},
    "g": {"width": 1408, "depth": 40, "heads": 16, "mlp_dim": 6144},
    "G": {"width": 1664, "depth": 48, "heads": 16, "mlp_dim": 8192},
    # DINOv2's own giant: neither g nor G.
    "giant": {"width": 1536, "depth": 40, "heads": 24, "mlp_dim": 4096},
}
# The checkpoint that is part of the package.
MINI: dict[str, Any] = {
    "width": 192,
    "depth": 7,
    "heads": 3,
    "mlp_dim": 768,
    "patch_size": 8,
    "image_size": 96,
    "pool": "gap",
    "position": "sincos-2d",
    "num_classes": 20,
}
# Name, variant, patch size on the feature map, units per stage. The number in a name is the stride, except for R+Ti/16,
# whose stride is 32.
HYBRIDS: list[tuple[str, str, int, tuple[int, ...]]] = [
    ("R+Ti/16", "Ti", 8, ()),
    ("R26+S/32", "S", 1, BLOCKS[26]),
    ("R26+B/32", "B", 1, BLOCKS[26]),
    ("R50+B/16", "B", 1, (3, 4, 9)),
    ("R50+L/32", "L", 1, BLOCKS[50]),
]


def _build() -> dict[str, tuple[type[ViTConfig] | type[BiTConfig], dict[str, Any]]]:
    zoo: dict[str, tuple[type[ViTConfig] | type[BiTConfig], dict[str, Any]]] = {}
    for variant in ("Ti", "S", "B", "L", "H", "So400m", "g", "G"):
        for patch in (8, 14, 16, 32):
            zoo[f"{variant}/{patch}"] = (ViTConfig, {**VARIANTS[variant], "patch_size": patch})
    for name, variant, patch, blocks in HYBRIDS:
        backbone = ResNetConfig(blocks=blocks, activation="post")
        zoo[name] = (ViTConfig, {**VARIANTS[variant], "patch_size": patch, "backbone": backbone})
    for layers, blocks in BLOCKS.items():
        for factor in (1, 2, 3, 4):
            zoo[f"BiT-R{layers}x{factor}"] = (BiTConfig, {"blocks": blocks, "width_factor": factor})
    for variant in ("S", "B", "L", "giant"):
        fields_ = {
            **VARIANTS[variant],
            "image_size": 518,
            "patch_size": 14,
            "num_classes": 0,
            "layer_scale": 1e-5,
            "gelu": "erf",
            "mlp": "swiglu" if variant == "giant" else "gelu",
            "resample": "dinov2",
        }
        zoo[f"DINOv2-{variant}/14"] = (ViTConfig, fields_)
        zoo[f"DINOv2-{variant}/14-reg"] = (ViTConfig, {**fields_, "registers": 4, "resample": "dinov2-registers"})
    zoo["vitreous-mini"] = (ViTConfig, MINI)
    return zoo


ZOO = _build()


def names(pattern: str = "*") -> list[str]:
    """Return the names of all models that `vitreous.create` builds and that match a pattern.

    - `pattern`: a shell pattern: `*` stands for any characters, `?` for one; upper and lower case differ

    Returns a list, which is empty if no name matches.

    >>> vitreous.names("R50*")
    ['R50+B/16', 'R50+L/32']
    """
    return [name for name in ZOO if fnmatchcase(name, pattern)]


def config(name: str, **changes: Any) -> ViTConfig | BiTConfig:
    """Return the config of a model name, with some fields changed."""
    if not isinstance(name, str):
        raise VitreousError(f"expected a model name such as 'S/16', got {brief(name)}")
    if name not in ZOO:
        raise VitreousError(f"unknown model {name!r}: {_hint(name)}`vitreous models` lists all {len(ZOO)} names")
    kind, settings = ZOO[name]
    known = [field.name for field in fields(kind)]
    for change in changes:
        if change not in known:
            near = get_close_matches(change, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known)}"
            raise VitreousError(f"{name}: {kind.__name__} has no field {change!r}; {hint}")
    return kind(**{**settings, **changes})


def _hint(name: str) -> str:
    """Suggest what the caller may have meant: another spelling, or the name in another library."""
    folded = {known.casefold(): known for known in reversed(ZOO)}  # "b/16" means B/16
    if name.casefold() not in folded and (explained := alias_hint(name, ZOO)):
        return f"{explained}; "
    near = [folded[match] for match in get_close_matches(name.casefold(), folded, n=3, cutoff=0.7)]
    return f"did you mean {' or '.join(near)}? " if near else ""


def create(
    name: str,
    *,
    num_classes: int | None = None,
    image_size: Size | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    **changes: Any,
) -> VisionTransformer | BiT:
    """Create a model with random initial weights, by its name.

    - `name`: a name of `vitreous.names`, such as "B/16", "R50+B/16" or "BiT-R50x1"
    - `num_classes`: number of outputs; 0: no head, the model returns features; default: that of the name
    - `image_size`: in pixels, one number or (height, width); default: that of the name. The model accepts other sizes
    - `device`, `dtype`: of the weights; with `device="meta"` no memory is allocated
    - `changes`: other fields of its config (`vitreous.ViTConfig` or `vitreous.BiTConfig`)

    Returns a `VisionTransformer`, or for names that start with "BiT" a `BiT`, in training mode. An unknown name or
    field raises a `VitreousError` that suggests similar ones.

    >>> import torch
    >>> model = vitreous.create("Ti/16", num_classes=10, image_size=96, pool="gap")
    >>> model(torch.randn(2, 3, 96, 96)).shape
    torch.Size([2, 10])
    """
    given = {"num_classes": num_classes, "image_size": image_size}
    settings = config(name, **{key: value for key, value in given.items() if value is not None}, **changes)
    device = torch.get_default_device() if device is None else torch.device(device)
    if isinstance(settings, ViTConfig):  # checked before the layers are built, since there may be very many
        require_memory(4 * settings.depth * (4 * settings.width**2 + 2 * settings.width), name, device)
    model = build_on_meta(settings)
    if device.type != "meta":  # torch's default initialisation is skipped
        require_memory(4 * sum(p.numel() for p in model.parameters()), name, device)
        model.to_empty(device=device)
        model.reset_parameters()
    return model.to(dtype) if dtype is not None else model


def build_on_meta(settings: ViTConfig | BiTConfig) -> VisionTransformer | BiT:
    """Build the model of a config on the meta device, without allocating memory."""
    try:
        with torch.device("meta"):
            return build_model(settings)
    except (RuntimeError, TypeError, OverflowError) as error:  # a dimension is too large for a tensor
        reason = str(error).splitlines()[0][:200]
        raise VitreousError(f"the model is too large to be built ({reason})") from error


def build_model(settings: ViTConfig | BiTConfig) -> VisionTransformer | BiT:
    """Build the model of a config."""
    return VisionTransformer(settings) if isinstance(settings, ViTConfig) else BiT(settings)
