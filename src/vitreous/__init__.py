"""Vitreous: Vision Transformers you can see through.

`vitreous.create("B/16")` builds a model, `vitreous.names()` lists them, `vitreous.cost(model, 384)` says what one
costs. Nothing heavy is imported until it is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from vitreous.errors import VitreousError
    from vitreous.models.cost import Cost, cost
    from vitreous.models.resnet import BiT, BiTConfig, ResNetConfig
    from vitreous.models.vit import VisionTransformer, ViTConfig
    from vitreous.models.zoo import create, names

_HOMES = {
    "VitreousError": "vitreous.errors",
    "Cost": "vitreous.models.cost",
    "cost": "vitreous.models.cost",
    "BiT": "vitreous.models.resnet",
    "BiTConfig": "vitreous.models.resnet",
    "ResNetConfig": "vitreous.models.resnet",
    "VisionTransformer": "vitreous.models.vit",
    "ViTConfig": "vitreous.models.vit",
    "create": "vitreous.models.zoo",
    "names": "vitreous.models.zoo",
}

__all__ = [
    "BiT",
    "BiTConfig",
    "Cost",
    "ResNetConfig",
    "ViTConfig",
    "VisionTransformer",
    "VitreousError",
    "cost",
    "create",
    "names",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vitreous' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
