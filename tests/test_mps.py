"""Rules for Apple GPUs (MPS), which these tests cannot use: no float64 reaches the model, loss and optimiser."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from runs import STRONG, config, draw_folder
from vitreous import VitreousError, create, train
from vitreous.evaluation.metrics import Scores
from vitreous.fast.accelerate import accelerate
from vitreous.models import drop
from vitreous.training import engine
from vitreous.utils.device import float64_device, pick_device, pick_precision


class NoFloat64(TorchDispatchMode):
    """Raises an error if an operation returns float64. `paused`: while the CPU prepares a batch."""

    paused = False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        leaves = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        assert self.paused or all(leaf.dtype != torch.float64 for leaf in leaves), function
        return result


@pytest.mark.parametrize(
    "changes",
    [
        STRONG,
        {"optimiser": "muon", "class_weights": "balanced"},
        {"optimiser": "lamb", "loss": "sigmoid"},
        {"optimiser": "sgd"},
    ],
    ids=["adamw", "muon", "lamb", "sgd"],
)
def test_no_float64_in_a_training_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    mode = NoFloat64()

    def pausing(function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            mode.paused, before = True, mode.paused
            try:
                return function(*arguments, **options)
            finally:
                mode.paused = before

        return call

    plain_step = engine.Engine.step

    def step(self: Any, *arguments: Any, **options: Any) -> Any:
        with mode:
            return plain_step(self, *arguments, **options)

    monkeypatch.setattr(engine.Engine, "step", step)
    monkeypatch.setattr(engine.BatchPreparation, "__call__", pausing(engine.BatchPreparation.__call__))
    monkeypatch.setattr(drop, "_set_keys", pausing(drop._set_keys))  # keys stay on the CPU
    settings = config(tmp_path / "run", duration="2 steps", evaluate_every="2 steps", workers=0, ema=0.9, **changes)
    train(draw_folder(tmp_path / "data", images=12), settings, quiet=True)


def test_batches_are_prepared_and_results_counted_on_the_cpu() -> None:
    cpu = torch.device("cpu")
    assert float64_device(torch.device("mps")) == cpu
    assert float64_device(torch.device("cuda", 1)) == torch.device("cuda", 1)
    assert Scores(3, device=torch.device("mps")).loss.device == cpu  # would fail on a Mac otherwise
    assert pick_precision("auto", torch.device("mps")) == ("fp32", None)
    assert pick_precision("bf16", torch.device("mps"))[0] == "fp32"


def test_the_device_is_chosen_automatically(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.backends.mps.is_available() or torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert pick_device("auto").type == "cpu"
    with pytest.raises(VitreousError, match="'mps' cannot be used here; available: cpu"):
        pick_device("mps")
    with pytest.raises(VitreousError, match="expected cpu, cuda or mps"):
        pick_device("meta")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch, "empty", lambda *arguments, **options: None)
    assert pick_device("auto").type == "mps"


def test_models_on_other_devices_use_no_fast_path() -> None:
    """The meta device stands for MPS: it is neither a CPU nor a CUDA GPU."""
    model = create("Ti/16", device="meta")
    assert accelerate(model).path == "plain; no fast path for meta"
