"""Vitreous: Vision Transformers you can see through.

`vitreous.load("file")` opens anybody's weights, `vitreous.create("B/16")` builds a model, `vitreous.names()` lists
them, `vitreous.cost(model, 384)` says what one costs, `vitreous.train("folder")` trains one. Nothing heavy is imported
until it is used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from vitreous.benchmark.bench import bench
    from vitreous.data.dataset import DataSet
    from vitreous.data.open_data import open_data
    from vitreous.errors import VitreousError, VitreousWarning
    from vitreous.evaluation.calibration import calibrate
    from vitreous.evaluation.evaluate_model import evaluate
    from vitreous.evaluation.extract_features import features
    from vitreous.experiments.comparison import compare
    from vitreous.experiments.reproduce import reproduce
    from vitreous.experiments.sweeps.sweep import sweep
    from vitreous.experiments.sweeps.sweep_result import SweepResult
    from vitreous.fast.accelerate import accelerate
    from vitreous.models.cost import Cost, cost
    from vitreous.models.resnet import BiT, BiTConfig, ResNetConfig
    from vitreous.models.vit import VisionTransformer, ViTConfig
    from vitreous.models.zoo import create, names
    from vitreous.preprocessing import Preprocessing
    from vitreous.reports.check_data import check_data
    from vitreous.reports.explain import explain
    from vitreous.serving.inspect import inspect
    from vitreous.serving.predict import predict
    from vitreous.training.callbacks import Callback, TrainingRun
    from vitreous.training.choose_config import ChosenConfig, choose_config
    from vitreous.training.config import TrainConfig
    from vitreous.training.finetune import finetune
    from vitreous.training.outcome import Outcome
    from vitreous.training.recipes import recipe
    from vitreous.training.run_table import RunRow, runs
    from vitreous.training.train import resume, train
    from vitreous.weights.info import info
    from vitreous.weights.load import load
    from vitreous.weights.load_report import LoadReport
    from vitreous.weights.save import convert, save

_HOMES = {
    "VitreousError": "vitreous.errors",
    "VitreousWarning": "vitreous.errors",
    "bench": "vitreous.benchmark.bench",
    "calibrate": "vitreous.evaluation.calibration",
    "evaluate": "vitreous.evaluation.evaluate_model",
    "features": "vitreous.evaluation.extract_features",
    "compare": "vitreous.experiments.comparison",
    "reproduce": "vitreous.experiments.reproduce",
    "sweep": "vitreous.experiments.sweeps.sweep",
    "SweepResult": "vitreous.experiments.sweeps.sweep_result",
    "accelerate": "vitreous.fast.accelerate",
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
    "DataSet": "vitreous.data.dataset",
    "open_data": "vitreous.data.open_data",
    "check_data": "vitreous.reports.check_data",
    "Callback": "vitreous.training.callbacks",
    "TrainingRun": "vitreous.training.callbacks",
    "explain": "vitreous.reports.explain",
    "inspect": "vitreous.serving.inspect",
    "predict": "vitreous.serving.predict",
    "ChosenConfig": "vitreous.training.choose_config",
    "choose_config": "vitreous.training.choose_config",
    "TrainConfig": "vitreous.training.config",
    "finetune": "vitreous.training.finetune",
    "recipe": "vitreous.training.recipes",
    "train": "vitreous.training.train",
    "resume": "vitreous.training.train",
    "Outcome": "vitreous.training.outcome",
    "RunRow": "vitreous.training.run_table",
    "runs": "vitreous.training.run_table",
    "info": "vitreous.weights.info",
    "LoadReport": "vitreous.weights.load_report",
    "load": "vitreous.weights.load",
    "convert": "vitreous.weights.save",
    "save": "vitreous.weights.save",
}

__all__ = [
    "BiT",
    "BiTConfig",
    "Callback",
    "ChosenConfig",
    "Cost",
    "DataSet",
    "LoadReport",
    "Outcome",
    "Preprocessing",
    "ResNetConfig",
    "RunRow",
    "SweepResult",
    "TrainConfig",
    "TrainingRun",
    "ViTConfig",
    "VisionTransformer",
    "VitreousError",
    "VitreousWarning",
    "accelerate",
    "bench",
    "calibrate",
    "check_data",
    "choose_config",
    "compare",
    "convert",
    "cost",
    "create",
    "evaluate",
    "explain",
    "features",
    "finetune",
    "info",
    "inspect",
    "load",
    "names",
    "open_data",
    "predict",
    "recipe",
    "reproduce",
    "resume",
    "runs",
    "save",
    "sweep",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vitreous' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
