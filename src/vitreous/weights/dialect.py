"""The interface of a dialect: one family of checkpoints, with its tensor names, config files and preprocessing.

Each dialect module (google.py, timm.py, huggingface.py, torchvision.py, dino.py, native.py) ends with one or more
instances of `Dialect`. To add a dialect: write such a module, and add its instance to `dialects.py` and its name to
`dialect_names.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vitreous.models.calibration import Calibration
from vitreous.models.resnet import BiTConfig
from vitreous.models.vit import ViTConfig
from vitreous.preprocessing import Preprocessing
from vitreous.utils.sizes import Size
from vitreous.weights.checkpoint import Checkpoint, Config, Labels
from vitreous.weights.dialect_names import DialectName
from vitreous.weights.load_report import Remarks
from vitreous.weights.tensor_map import State, TensorMap
from vitreous.weights.tensors import Tensors


@dataclass
class Hints:
    """Information about a file that is not in its tensors: JSON files of its folder, and arguments of the caller."""

    config_json: dict[str, Any] = field(default_factory=dict)
    preprocessor_json: dict[str, Any] = field(default_factory=dict)  # preprocessor_config.json
    heads: int | None = None
    native_size: Size | None = None  # image size of the weights, from config.json
    image_size: Size | None = None  # requested size: decides the grid if it is not square
    features_only: bool = False  # the caller discards the head


@dataclass
class ParsedCheckpoint:
    """Result of reading a file in a dialect. The weights are still in the file, at the places of `tensor_map`."""

    dialect: DialectName
    config: Config
    tensor_map: TensorMap
    preprocessing: Preprocessing
    labels: Labels = None
    multi_label: bool = False
    calibration: Calibration | None = None
    ignored: dict[str, str] = field(default_factory=dict)  # tensor name -> reason
    extras: TensorMap = field(default_factory=dict)  # not used by the model, kept for saving: the mask token
    remarks: Remarks = field(default_factory=Remarks)
    origin: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class WritePlan:
    """How to write a checkpoint in a dialect."""

    tensor_map: TensorMap = field(default_factory=dict)
    incompatibilities: list[str] = field(default_factory=list)  # settings that the dialect cannot represent
    notes: list[str] = field(default_factory=list)  # losses that do not change the model's outputs
    json_files: dict[str, dict[str, Any]] = field(default_factory=dict)  # of a folder, by file name
    state: State = field(default_factory=dict)  # parameters that replace those of the checkpoint
    added_tensors: State = field(default_factory=dict)  # tensors that the dialect requires, by its names
    assumed_preprocessing: Preprocessing | None = None  # what readers assume, if the dialect does not store it
    stores_labels: bool = False
    stores_multi_label: bool = False
    stores_calibration: bool = False


@dataclass(frozen=True)
class Dialect:
    """How checkpoints of one dialect are detected, read and written."""

    name: DialectName
    matches: Callable[[Tensors, dict[str, Any]], bool]  # from the tensor names and config.json
    read: Callable[[Tensors, Hints], ParsedCheckpoint]
    write: Callable[[Checkpoint, Any], WritePlan]  # arguments: a checkpoint and its config
    suffixes: tuple[str, ...] = ()  # of files that are written; empty: a folder with config.json is written
    config_classes: tuple[type, ...] = (ViTConfig,)  # models that can be written
    config_json_keys: tuple[str, ...] = ()  # a config.json with one of these keys belongs to the dialect


PICKLE_OR_SAFETENSORS = (".pth", ".pt", ".safetensors")
ANY_MODEL = (ViTConfig, BiTConfig)
