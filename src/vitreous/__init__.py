"""Vitreous: Vision Transformers you can see through.

`vitreous.load("file")` opens anybody's weights, `vitreous.create("B/16")` builds a model, `vitreous.names()` lists
them, `vitreous.cost(model, 384)` says what one costs. Nothing heavy is imported until it is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from vitreous.errors import VitreousError, VitreousWarning
    from vitreous.models.cost import Cost, cost
    from vitreous.models.resnet import BiT, BiTConfig, ResNetConfig
    from vitreous.models.vit import VisionTransformer, ViTConfig
    from vitreous.models.zoo import create, names
    from vitreous.preprocessing import Preprocessing
    from vitreous.weights.load import load
    from vitreous.weights.report import LoadReport
    from vitreous.weights.save import convert, save

_HOMES = {
    "VitreousError": "vitreous.errors",
    "VitreousWarning": "vitreous.errors",
    "Cost": "vitreous.models.cost",
    "cost": "vitreous.models.cost",
    "BiT": "vitreous.models.resnet",
    "BiTConfig": "vitreous.models.resnet",
    "ResNetConfig": "vitreous.models.resnet",
    "VisionTransformer": "vitreous.models.vit",
    "ViTConfig": "vitreous.models.vit",
    "create": "vitreous.models.zoo",
    "names": "vitreous.models.zoo",
    "Preprocessing": "vitreous.preprocessing",
    "LoadReport": "vitreous.weights.report",
    "load": "vitreous.weights.load",
    "convert": "vitreous.weights.save",
    "save": "vitreous.weights.save",
}

__all__ = [
    "BiT",
    "BiTConfig",
    "Cost",
    "LoadReport",
    "Preprocessing",
    "ResNetConfig",
    "ViTConfig",
    "VisionTransformer",
    "VitreousError",
    "VitreousWarning",
    "convert",
    "cost",
    "create",
    "load",
    "names",
    "save",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vitreous' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
