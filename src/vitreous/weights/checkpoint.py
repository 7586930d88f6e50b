"""A checkpoint in memory: weights under the model's parameter names, with config, preprocessing and labels."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from vitreous.errors import VitreousError
from vitreous.models.calibration import Calibration
from vitreous.models.resnet import BiT, BiTConfig
from vitreous.models.vit import VisionTransformer, ViTConfig
from vitreous.models.zoo import build_on_meta
from vitreous.preprocessing import Preprocessing
from vitreous.utils.sizes import pair
from vitreous.weights.load_report import LoadReport
from vitreous.weights.tensor_map import State

Config = ViTConfig | BiTConfig
Labels = tuple[str, ...] | None
MAX_LAYERS = 1000  # building a layer on the meta device takes about 1 ms, and a file may declare a million


@dataclass
class Checkpoint:
    """The state dict of a model and its metadata."""

    config: Config
    state: State
    preprocessing: Preprocessing
    labels: Labels
    report: LoadReport
    extras: State = field(default_factory=dict)  # tensors that the model does not use: the mask token
    multi_label: bool = False
    calibration: Calibration | None = None


def native_size(config: ViTConfig) -> tuple[int, int]:
    """Return the image size in whole patches: the size that a reader infers from the number of positions."""
    (rows, cols), (height, width) = config.grid, pair(config.patch_size)
    stride = 1 if config.backbone is None else config.backbone.stride
    return rows * height * stride, cols * width * stride


@lru_cache(maxsize=8)
def parameter_shapes(config: Config) -> Mapping[str, tuple[int, ...]]:
    """Return the shape of each parameter of a model."""
    model = _build_on_meta(config)
    _unused_meta_model.clear()
    _unused_meta_model[config] = model
    return {name: tuple(p.shape) for name, p in model.named_parameters()}


def meta_model(config: Config) -> VisionTransformer | BiT:
    """Return a new model on the meta device. The model that `parameter_shapes` built is reused once."""
    return _unused_meta_model.pop(config, None) or _build_on_meta(config)


_unused_meta_model: dict[Config, VisionTransformer | BiT] = {}


def _build_on_meta(config: Config) -> VisionTransformer | BiT:
    layers = config.depth if isinstance(config, ViTConfig) else sum(config.blocks)
    if layers > MAX_LAYERS:
        raise VitreousError(f"the model has {layers:,} layers, and the limit is {MAX_LAYERS:,}")
    return build_on_meta(config)
