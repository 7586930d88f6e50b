"""`vitreous.info`: the contents of a checkpoint, or of a model in memory."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from vitreous.errors import VitreousError
from vitreous.models import zoo
from vitreous.models.calibration import Calibration
from vitreous.models.cost import Cost, cost
from vitreous.models.standard import vitreous_model
from vitreous.preprocessing import Preprocessing
from vitreous.utils.arguments import checked_arguments
from vitreous.utils.sizes import Size
from vitreous.weights.checkpoint import Checkpoint, Config
from vitreous.weights.load import read_checkpoint
from vitreous.weights.load_report import LoadReport, guess_lines
from vitreous.weights.model_info import preprocessing_of


@dataclass(frozen=True, repr=False)
class ModelInfo:
    """Format, config, cost, preprocessing, labels and calibration of a checkpoint, and the use of each tensor."""

    report: LoadReport  # format, and the use of each tensor
    config: Config  # config of the model
    model: str | None  # name in `vitreous models` of this architecture
    cost: Cost  # parameters, FLOPs and memory
    dtypes: tuple[str, ...]  # types of the tensors
    preprocessing: Preprocessing  # resize, crop and normalisation
    labels: tuple[str, ...] | None  # class names
    calibration: Calibration | None  # temperature and thresholds

    def to_json(self) -> dict[str, Any]:
        """Return what `vitreous info --json` prints."""
        report = self.report
        return {
            "source": report.source,
            "dialect": report.dialect,
            "container": report.container,
            "model": self.model,
            "config": {"kind": "vit" if hasattr(self.config, "heads") else "bit", **asdict(self.config)},
            "parameters": self.cost.parameters,
            "flops": self.cost.flops.total,
            "tokens": self.cost.tokens,
            "dtypes": list(self.dtypes),
            "preprocessing": self.preprocessing.to_json(),
            "labels": None if self.labels is None else list(self.labels),
            "calibration": None if self.calibration is None else _calibration_facts(self.calibration),
            "origin": dict(report.origin),
            "tensors": {
                "used": list(report.used),
                "ignored": dict(report.ignored),
                "unexpected": list(report.unexpected),
                "missing": list(report.missing),
            },
            "notes": list(report.facts),
            "guesses": guess_lines(report.guesses),
        }

    def __repr__(self) -> str:
        labels = "none" if self.labels is None else f"{', '.join(self.labels[:5])}"
        more = len(self.labels or ()) - 5
        lines = [str(self.report), f"  model: {self.model or 'not in vitreous.names()'}", f"  cost: {self.cost!r}"]
        lines += [f"  preprocessing: {self.preprocessing}"]
        lines += [f"  labels: {labels}" + (f" and {more:,} more" if more > 0 else "")]
        return "\n".join(lines + ([] if self.calibration is None else [f"  calibration: {self.calibration}"]))


@checked_arguments()
def info(
    source: nn.Module | str | os.PathLike[str],
    *,
    image_size: Size | None = None,
    heads: int | None = None,
    strict: bool = True,
    preprocessing: Preprocessing | str | None = None,
) -> ModelInfo:
    """Describe a checkpoint, without building the model, or a model in memory.

    - `source`: a model, or what `vitreous.load` accepts
    - `image_size`, `heads`, `strict`, `preprocessing`: as in `vitreous.load`; for checkpoints only

    >>> import vitreous
    >>> found = vitreous.info("vitreous-mini")
    >>> found.report.dialect, found.cost.parameters, found.labels[:2]
    ('native', 3155348, ('airplane', 'automobile'))
    """
    if isinstance(source, nn.Module):
        given = {"image_size": image_size, "heads": heads, "preprocessing": preprocessing}
        if named := [name for name, value in given.items() if value is not None]:
            raise VitreousError(f"info: {', '.join(named)} has an effect on checkpoints only, and this is a model")
        return _model_info(_checkpoint_of(source))
    return _model_info(
        read_checkpoint(source, image_size=image_size, heads=heads, strict=strict, preprocessing=preprocessing)
    )


def _checkpoint_of(source: nn.Module) -> Checkpoint:
    model: Any = vitreous_model(source, "info")
    state = dict(model.named_parameters())
    report = model.report
    if not isinstance(report, LoadReport):
        report = LoadReport("model in memory", "memory", "native", model.config, tuple(state))
    return Checkpoint(model.config, state, preprocessing_of(model), model.labels, report, calibration=model.calibration)


def _model_info(checkpoint: Checkpoint) -> ModelInfo:
    types = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in checkpoint.state.values()})
    return ModelInfo(
        checkpoint.report,
        checkpoint.config,
        zoo_name(checkpoint.config),
        cost(checkpoint.config),
        tuple(types),
        checkpoint.preprocessing,
        checkpoint.labels,
        checkpoint.calibration,
    )


def _calibration_facts(calibration: Calibration) -> dict[str, Any]:
    """Return the calibration without the digests of its images."""
    facts = {name: value for name, value in calibration.to_json().items() if name != "digests"}
    return {**facts, "description": str(calibration)}


def zoo_name(config: Any) -> str | None:
    """Return the name in `vitreous models` of this architecture."""
    keys = ("width", "depth", "heads", "mlp_dim", "patch_size", "backbone", "registers", "blocks", "width_factor")
    for name in zoo.names():
        other = zoo.config(name)
        if type(other) is type(config) and all(getattr(other, k, None) == getattr(config, k, None) for k in keys):
            return name
    return None
