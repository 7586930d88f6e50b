"""Runs with a model, loss, optimiser and augmentation of the user's own."""

import functools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import vitreous
from vitreous.errors import VitreousError
from vitreous.training.callbacks import Callback, TrainingRun
from vitreous.training.optim.user_optimiser import UserOptimisers
from vitreous.weights.containers import write_tensors
from vitreous.weights.safetensors_file import SafetensorsFile

IMAGES = np.random.default_rng(0).integers(0, 255, (48, 8, 8), dtype=np.uint8)
IMAGES[::2, ::2] //= 4
DATA = {"train": (IMAGES[:32], np.arange(32) % 2), "val": (IMAGES[32:], np.arange(16) % 2)}
RUN: dict[str, Any] = {"batch_size": 8, "duration": "6 steps", "quiet": True, "workers": 0, "ema": 0, "lr": 0.01}


class Net(nn.Module):
    def __init__(self, num_classes: int, channels: int = 1):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3))
        self.last = nn.Linear(4, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.last(self.body(images).mean((2, 3)))

    def features(self, images: Tensor) -> Tensor:
        return self.body(images).mean((2, 3))


class Plain(nn.Module):
    """Without dropout and batch statistics."""

    def __init__(self, num_classes: int):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.GELU(), nn.Linear(8, num_classes))

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)


def small_vit(num_classes: int, image_size: int) -> nn.Module:
    fields = {"patch_size": 4, "width": 16, "depth": 1, "heads": 2, "mlp_dim": 16, "channels": 1}
    config = vitreous.create("Ti/16", num_classes=num_classes, image_size=image_size, device="meta", **fields).config
    return vitreous.VisionTransformer(config)


def noise(images: Tensor) -> Tensor:
    return images + 0.05 * torch.randn_like(images) + 0.01 * float(np.random.rand())


def mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits, targets)


def radam(groups: Any) -> torch.optim.Optimizer:
    return torch.optim.RAdam(groups, lr=3e-3, weight_decay=0.1)


def tensors(run: Path, name: str = "last.safetensors") -> dict[str, Tensor]:
    file = SafetensorsFile(run / name)
    return {key: file[key].clone() for key in file}


def assert_same(one: Path, other: Path) -> None:
    first, second = tensors(one), tensors(other)
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def assert_close(one: Path, other: Path) -> None:
    first, second = tensors(one), tensors(other)
    for name, value in first.items():
        torch.testing.assert_close(value, second[name], rtol=1e-4, atol=1e-6)


def interrupted(out: Path, **settings: Any) -> Path:
    """Start a run that is interrupted after its third step. Resuming it does not call the callback again."""
    with pytest.raises(VitreousError):
        vitreous.train(DATA, out=out, callbacks=[StopOnce()], **settings)
    return out


class StopOnce(Callback):
    stopped = False

    def on_step(self, run: TrainingRun) -> None:
        if run.step == 3 and not StopOnce.stopped:
            StopOnce.stopped = True
            raise VitreousError("stop here")


@pytest.fixture(autouse=True)
def _stop_once() -> None:
    StopOnce.stopped = False


OPTIMISERS: dict[str, Any] = {
    "radam": radam,
    "rmsprop": functools.partial(torch.optim.RMSprop, lr=1e-3, momentum=0.9, centered=True),
    "adafactor": torch.optim.Adafactor,
    "asgd": functools.partial(torch.optim.ASGD, lr=1e-2),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_an_interrupted_run_with_own_parts_continues_to_the_bit(tmp_path: Path, name: str) -> None:
    settings = {**RUN, "model": Net, "loss": mean_loss, "optimiser": OPTIMISERS[name], "augment": noise, "ema": 0.9}
    settings["lr"] = None
    vitreous.train(DATA, out=tmp_path / "whole", callbacks=[Callback()], **settings)
    run = interrupted(tmp_path / "part", **settings)
    again = {"optimiser": OPTIMISERS[name]} if isinstance(OPTIMISERS[name], functools.partial) else {}
    if again:
        with pytest.raises(VitreousError, match=r"optimiser=\.\.\."):
            vitreous.resume(run, data=DATA, callbacks=[StopOnce()], quiet=True)
    outcome = vitreous.resume(run, data=DATA, callbacks=[StopOnce()], quiet=True, **again)
    assert outcome.steps == 6
    assert_same(tmp_path / "whole", run)
    assert torch.equal(
        tensors(run, "best.safetensors")["last.bias"], tensors(tmp_path / "whole", "best.safetensors")["last.bias"]
    )


def test_a_factory_of_our_model_trains_as_the_model_by_name(tmp_path: Path) -> None:
    """Initial weights, fast paths and the file are those of a run that describes the same model by its fields."""
    fields = {"model": "Ti/16", "patch_size": 4, "width": 16, "depth": 1, "heads": 2, "mlp_dim": 16, "image_size": 8}
    vitreous.train(DATA, out=tmp_path / "name", **RUN, **fields, stochastic_depth=0.0, dropout=0.0)
    vitreous.train(DATA, out=tmp_path / "own", **RUN, model=small_vit, image_size=8)
    assert_same(tmp_path / "name", tmp_path / "own")
    assert isinstance(vitreous.load(tmp_path / "own"), vitreous.VisionTransformer)


def test_a_model_in_memory_is_copied_and_trained_from_its_weights(tmp_path: Path) -> None:
    model = small_vit(2, 8)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    settings = {**RUN, "lr": 1e-12, "duration": "1 steps"}
    vitreous.train(DATA, out=tmp_path / "run", model=model, **settings)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    for name, value in tensors(tmp_path / "run").items():
        torch.testing.assert_close(value, before[name], atol=1e-6, rtol=0)
    with pytest.raises(VitreousError, match=r"3 classes.*reset_head\(2\)"):
        vitreous.train(DATA, out=tmp_path / "other", model=small_vit(3, 8), **settings)


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_own_loss_and_optimiser_compute_what_the_built_in_ones_do(tmp_path: Path, reduction: str) -> None:
    common = {
        **RUN,
        "model": Plain,
        "augment": None,
        "crop": 1.0,
        "flip": False,
        "jitter": 0.0,
        "shift": 0.0,
        "aspect": 1.0,
    }
    common |= {"clip": 0.5, "micro_batch": 4, "mixup": 0.0, "cutmix": 0.0}
    built_in = {"label_smoothing": 0.0, "optimiser": "adamw", "weight_decay": 0.05}
    own_loss = functools.partial(F.cross_entropy, reduction=reduction)
    own_adamw = functools.partial(torch.optim.AdamW, lr=1.0, weight_decay=0.05)
    vitreous.train(DATA, out=tmp_path / "built-in", **common, **built_in)
    vitreous.train(DATA, out=tmp_path / "own", **common, loss=own_loss, optimiser=own_adamw)
    assert_close(tmp_path / "built-in", tmp_path / "own")
    records = [json.loads(line) for line in (tmp_path / "own" / "metrics.jsonl").read_text().splitlines()]
    logged = [json.loads(line) for line in (tmp_path / "built-in" / "metrics.jsonl").read_text().splitlines()]
    losses, expected = ([r["loss"] for r in rows if r["kind"] == "train"] for rows in (records, logged))
    assert losses == pytest.approx(expected, rel=1e-4)


def test_learning_rate_and_decay_are_those_of_the_optimiser_unless_they_are_given(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Look(Callback):
        def on_step(self, run: TrainingRun) -> None:
            groups = run._loop.engine.optimisers.optimisers[0].param_groups
            seen.append(sorted((len(g["params"]), round(g["initial_lr"], 6), g["weight_decay"]) for g in groups))

    settings = {**RUN, "duration": "1 steps", "model": Plain, "optimiser": radam, "callbacks": [Look()]}
    vitreous.train(DATA, out=tmp_path / "a", **{**settings, "lr": None})
    vitreous.train(DATA, out=tmp_path / "b", **{**settings, "lr": 0.5}, weight_decay=0.2)
    vitreous.train(DATA, out=tmp_path / "c", **{**settings, "lr": None}, lr_multipliers=("layers.3.*=10",))
    assert seen[0] == [(2, 0.003, 0.0), (2, 0.003, 0.1)], "biases have no weight decay"
    assert seen[1] == [(2, 0.5, 0.0), (2, 0.5, 0.2)]
    assert seen[2] == [(1, 0.003, 0.0), (1, 0.003, 0.1), (1, 0.03, 0.0), (1, 0.03, 0.1)]


def test_augmentation_gets_batches_from_0_to_1_and_only_training_images(tmp_path: Path) -> None:
    given: list[Tensor] = []

    def keep(images: Tensor) -> Tensor:
        given.append(images.clone())
        return images.mul_(0.5)

    vitreous.train(DATA, out=tmp_path / "run", model=Plain, augment=keep, **RUN)
    assert [tuple(images.shape) for images in given] == [(8, 1, 8, 8)] * 6
    assert all(images.min() >= 0 and 0.5 < images.max() <= 1 for images in given)
    unique = {float(value) for images in given for value in images.flatten()}
    assert all(round(255 * value, 3) == round(255 * value) for value in unique), "no other augmentation is on"
    caller = torch.random.get_rng_state()
    vitreous.train(DATA, out=tmp_path / "again", model=Plain, augment=noise, **RUN)
    assert torch.equal(caller, torch.random.get_rng_state())


def test_a_checkpoint_of_an_own_model_is_loaded_with_its_code(tmp_path: Path) -> None:
    outcome = vitreous.train(DATA, out=tmp_path / "run", model=Net, **RUN)
    model = vitreous.load(tmp_path / "run", model=Net)
    images = torch.randn(3, 1, 8, 8)
    plain = Net(2)
    plain.load_state_dict(tensors(tmp_path / "run", "best.safetensors"))
    torch.testing.assert_close(model(images), plain.eval()(images), atol=0, rtol=0)
    torch.testing.assert_close(model.features(images), plain.features(images), atol=0, rtol=0)
    assert model.labels == ("0", "1")
    assert outcome.result is not None
    vitreous.save(model, tmp_path / "copy.safetensors")
    again = vitreous.load(tmp_path / "copy.safetensors", model=Net)
    torch.testing.assert_close(again(images), model(images), atol=0, rtol=0)
    assert vitreous.accelerate(model).path.startswith("plain")
    assert vitreous.predict(model, IMAGES[0], quiet=True)[0].label in ("0", "1")
    for refuse in (
        lambda: vitreous.save(model, tmp_path / "a.npz", to="google"),
        lambda: vitreous.inspect(model, IMAGES[0]),
        lambda: vitreous.explain(IMAGES[0], model=model),
        lambda: vitreous.cost(model),
        lambda: model.reset_head(3),
    ):
        with pytest.raises(VitreousError, match=r"own"):
            refuse()
    assert str(tmp_path) not in json.dumps(SafetensorsFile(tmp_path / "run" / "best.safetensors").metadata)
    with pytest.raises(VitreousError, match=r"model of your own.*Net.*model=\.\.\."):
        vitreous.load(tmp_path / "run")
    with pytest.raises(VitreousError, match="not in the file: 'layers"):
        vitreous.load(tmp_path / "run", model=Plain)
    with pytest.raises(VitreousError, match="does not hold a model of your own"):
        vitreous.load("vitreous-mini", model=Net)


class Output:
    logits = torch.zeros(2, 2)


def with_forward(forward: Any) -> Any:
    class Other(Plain):
        def forward(self, images: Tensor) -> Any:
            return forward(super().forward(images))

    return Other(2)


class Frozen(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images.new_zeros(len(images), 2)


class NeedsMore(Plain):
    def __init__(self, num_classes: int, hidden: int):
        super().__init__(num_classes)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"model": lambda: with_forward(lambda logits: Output())}, r"expected logits.*\(2, 2\).*got Output"),
        ({"model": with_forward(lambda logits: logits[:, :1])}, r"got \(2, 1\)"),
        ({"model": with_forward(lambda logits: logits / None)}, "TypeError.*test_user_parts.py, line"),
        ({"model": lambda: None}, "expected a torch.nn.Module"),
        ({"model": NeedsMore}, "needs the argument 'hidden'"),
        ({"model": Frozen()}, "no parameters to train"),
        ({"model": Plain(2).half()}, "float32"),
        ({"model": Net(2, channels=3)}, r"expected input.*images \(2, 1, 8, 8\)"),
        ({"model": Plain, "width": 3}, "width = 3: describes another model"),
        ({"model": Plain, "start": "vitreous-mini"}, "model and start"),
        ({"model": Plain, "lora": 4}, "lora = 4"),
        ({"model": Plain, "layer_decay": 0.5}, "layer_decay: the layers of a model of your own"),
        ({"model": Plain, "optimiser": "muon"}, "muon"),
        ({"model": Plain, "freeze": ("nothing",)}, "layers.1.weight|layers"),
        ({"model": 3}, "expected a module, or a class or function"),
        ({"loss": lambda logits, targets: logits}, "expected one value per image"),
        ({"loss": lambda logits, targets: torch.zeros(())}, "has no gradient"),
        ({"loss": nn.PReLU()}, "parameters, which would not be trained"),
        ({"loss": lambda logits, targets: logits.nothing}, "loss <lambda object>: AttributeError"),
        ({"loss": mean_loss, "label_smoothing": 0.1}, "label_smoothing = 0.1: has no effect"),
        ({"loss": "softmaxx"}, "did you mean 'softmax'"),
        ({"optimiser": lambda groups: None}, "expected a torch.optim.Optimizer"),
        ({"optimiser": lambda groups: torch.optim.SGD(groups[:1], lr=0.1)}, "it lacks"),
        ({"optimiser": torch.optim.Rprop, "weight_decay": 0.1}, "has no weight decay"),
        ({"optimiser": torch.optim.LBFGS}, "optimiser torch.optim.lbfgs:LBFGS: ValueError"),
        ({"optimiser": radam, "betas": (0.9, 0.9)}, "betas: is not passed"),
        ({"augment": lambda images: images[:, :, :4]}, "expected images"),
        ({"augment": lambda images: images.byte()}, "expected images"),
        ({"augment": "noise"}, "augment = 'noise': expected code of your own, file.py:NAME"),
        ({"augment": "missing.py:noise"}, "missing.py: there is no such file"),
    ],
)
def test_parts_that_cannot_be_used_are_refused(tmp_path: Path, parts: dict[str, Any], message: str) -> None:
    with pytest.raises(VitreousError, match=message):
        vitreous.train(DATA, out=tmp_path / "run", **{**RUN, "model": Plain, **parts})


class Odd(torch.optim.SGD):
    """Keeps things in its state that safetensors and JSON cannot hold, or can."""

    value: Any = None

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["own"] = self.value


def test_the_state_of_an_optimiser_is_saved_without_pickle_or_refused(tmp_path: Path) -> None:
    p = nn.Parameter(torch.ones(3))
    value = {"numbers": (1, 2.5, None, True), "bound": -math.inf, 7: [torch.arange(3.0)]}
    optimiser = Odd([{"params": [p], "initial_lr": 0.1}], lr=0.1)
    optimiser.state[p] = {"own": value}
    packed, found = UserOptimisers(optimiser, [p], "odd").packed_state()
    assert "Infinity" not in packed
    other = UserOptimisers(Odd([{"params": [p], "initial_lr": 0.1}], lr=0.2), [p], "odd")
    other.restore_state(packed, found)
    restored = other.optimiser.state[p]["own"]
    assert restored["numbers"] == (1, 2.5, None, True)
    assert restored["bound"] == -math.inf
    assert torch.equal(restored[7][0], torch.arange(3.0))
    assert other.optimiser.param_groups[0]["lr"] == 0.1
    optimiser.state[p] = {"own": ["text"]}  # torch's load_state_dict does not restore texts in lists
    with pytest.raises(VitreousError, match="does not restore its state_dict exactly"):
        other.restore_state(*UserOptimisers(optimiser, [p], "odd").packed_state())
    Odd.value = object()
    with pytest.raises(VitreousError, match=r"its state has state\.0\.own, a object"):
        vitreous.train(DATA, out=tmp_path / "run", model=Plain, optimiser=Odd, **RUN)
    assert not list((tmp_path / "run" / "state").glob("step-*"))


def test_learning_rate_search_with_own_parts(tmp_path: Path) -> None:
    settings = {**RUN, "lr": None, "lr_candidates": (1e-3, 1e-2), "duration": "3 steps"}
    outcome = vitreous.train(
        DATA, out=tmp_path / "run", model=Plain(2), loss=mean_loss, optimiser=radam, augment=noise, **settings
    )
    config = json.loads((outcome.run / "config.json").read_text())
    assert config["config"]["lr"] in (1e-3, 1e-2)
    assert config["config"]["model"] == "<Plain object>"
    assert len(config["rates"]) == 2


class Tied(nn.Module):
    """Two names for one parameter, and a buffer of integers."""

    def __init__(self, num_classes: int):
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
        self.second.weight = self.first.weight
        self.last = nn.Linear(64, num_classes)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            self.steps += 1
        return self.last(self.second(self.first(images.flatten(1)).relu()).relu())


def test_tied_weights_and_integer_buffers_are_saved_and_continue(tmp_path: Path) -> None:
    vitreous.train(DATA, out=tmp_path / "whole", callbacks=[Callback()], model=Tied, **RUN)
    run = interrupted(tmp_path / "part", model=Tied, **RUN)
    vitreous.resume(run, data=DATA, callbacks=[StopOnce()], quiet=True)
    assert_same(tmp_path / "whole", run)
    model = vitreous.load(run, model=Tied)
    assert model.module.first.weight is model.module.second.weight
    assert tensors(run)["steps"] == 6


SOURCE = "from test_user_parts import Net as Base\nclass Net(Base):\n    scale = 1\n"


def test_a_changed_source_file_is_noted_when_a_run_is_evaluated(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(SOURCE)
    vitreous.train(DATA, out=tmp_path / "run", model=f"{file}:Net", **RUN)
    before = vitreous.predict(tmp_path / "run", IMAGES[0], trust_code=True, quiet=True)
    assert not [note for note in before.notes if "changed" in note]
    file.write_text(SOURCE.replace("1", "2"))
    after = vitreous.predict(tmp_path / "run", IMAGES[0], trust_code=True, quiet=True)
    assert [note for note in after.notes if "net.py has changed since the run was started" in note]


@pytest.mark.parametrize(
    "changes",
    [
        {"config": {}},
        {"config": {"code": "a.py:Net", "num_classes": "two", "channels": 1, "image_size": 8}},
        {"config": {"code": "a.py:Net", "num_classes": 2, "channels": 1, "image_size": [8, "x"]}},
        {"config": {"code": "a.py:Net", "num_classes": 2, "channels": 10**9, "image_size": 8}},
        {"config": {"code": None, "num_classes": -1, "channels": 1, "image_size": 8}},
        {"labels": ["a", "b", "c"]},
        {"labels": [1, 2]},
        {"preprocessing": {"size": "large"}},
    ],
)
def test_damaged_metadata_of_an_own_model_is_an_error(tmp_path: Path, changes: dict[str, Any]) -> None:
    config = {"code": "a.py:Net", "num_classes": 2, "channels": 1, "image_size": 8}
    metadata = {"model": "custom", "config": config, "preprocessing": None, "labels": None, **changes}
    path = tmp_path / "own.safetensors"
    write_tensors(path, Net(2).state_dict(), {"format": "pt", "vitreous": json.dumps(metadata)})
    with pytest.raises(VitreousError):
        vitreous.load(path, model=Net)
    with pytest.raises(VitreousError):
        vitreous.load(path)
