"""One training step: the same result in one pass or several, in one process or two, and after out of memory."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn

from helpers import draw
from runs import config, draw_folder
from vitreous import train
from vitreous.data.arrays import ArraySource
from vitreous.data.dataset import DataSet
from vitreous.errors import VitreousError
from vitreous.training.budget import estimate_run_time
from vitreous.training.config import Finetuning, TrainConfig
from vitreous.training.defaults import choose_defaults
from vitreous.training.distributed import World
from vitreous.training.engine import Engine, StepResult, find_unknown_code
from vitreous.training.facts import collect_facts
from vitreous.training.loaders import RunLoaders, build_loaders
from vitreous.training.lora import add_adapters_
from vitreous.training.plan import make_plan
from vitreous.training.trainer import build_engine
from vitreous.utils.progress import ProgressReporter

# All augmentation and dropout with random draws.
EVERYTHING: dict[str, Any] = {
    **{"dropout": 0.1, "stochastic_depth": 0.3, "mixup": 0.5, "cutmix": 1.0, "randaugment": 2, "erase": 0.3},
    **{"crop": 0.5, "flip": True, "shift": 0.1, "jitter": 0.3, "three_augment": True, "label_smoothing": 0.1},
}
SGD: dict[str, Any] = {"optimiser": "sgd", "lr": 0.1, "clip": None, "ema": 0.0}


def new_engine(world: World | None = None, several: bool = False, **changes: Any) -> tuple[Engine, RunLoaders]:
    """Return engine and loaders of a run on random images, with random weights, before its first step."""
    world = world or World()
    images = np.random.default_rng(0).integers(0, 256, (200, 18, 18, 3), dtype=np.uint8)
    labels = torch.arange(200) % 5
    source = ArraySource(images, labels[:, None] >= torch.arange(5) if several else labels, "noise")
    data = DataSet("noise", ("a", "b", "c", "d", "e"), 3, source)
    settings = config(Path(), **{**EVERYTHING, **SGD, "batch_size": 128, "evaluate_every": None, "depth": 3, **changes})
    plan = make_plan(data, settings, world)
    loaders = build_loaders(data, plan, world, ProgressReporter(quiet=True))
    engine = build_engine(data, plan, loaders)
    draw(engine.model).train()  # a head of zeros would have no gradients below it
    return engine, loaders


class Watching(World):
    """A world of one process that stores the gradients passed to all_reduce."""

    seen: list[Tensor]

    def all_reduce(self, tensors: list[Tensor]) -> None:
        object.__setattr__(self, "seen", [tensor.clone() for tensor in tensors])


def gradients(engine: Engine, loaders: RunLoaders) -> tuple[list[Tensor], StepResult]:
    world = Watching()
    batch = next(loaders.train.batches(0, 1))
    stepped = engine.step(batch, 0, loaders.train.batch_size, world)
    assert len(world.seen) == len(list(engine.model.parameters()))
    return world.seen, stepped


def close(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    """Equal up to rounding, relative to the largest value of each tensor."""
    return len(ours) == len(theirs) and all(
        (a - b).abs().max() <= 2e-5 * b.abs().max() + 1e-8 for a, b in zip(ours, theirs, strict=True)
    )


@pytest.fixture(scope="module")
def whole() -> tuple[list[Tensor], StepResult]:
    """128 images in one pass."""
    return gradients(*new_engine())


# ---------------------------------------------------------------- gradient accumulation


@pytest.mark.parametrize("micro_batch", [32, 50, 2])
def test_accumulated_gradients_equal_those_of_one_pass(whole: Any, micro_batch: int) -> None:
    found, stepped = gradients(*new_engine(micro_batch=micro_batch))
    assert close(found, whole[0])
    assert all(gradient.abs().max() > 0 for gradient in found)
    assert torch.allclose(stepped.loss, whole[1].loss, rtol=1e-5)
    assert torch.allclose(stepped.grad_norm, whole[1].grad_norm, rtol=1e-4)
    assert torch.equal(stepped.right, whole[1].right)


def test_gradients_depend_on_random_draws(whole: Any) -> None:
    """Otherwise the test above could not fail."""
    assert not close(gradients(*new_engine(seed=1))[0], whole[0])
    for name in ("dropout", "stochastic_depth", "mixup", "cutmix"):
        assert not close(gradients(*new_engine(**{name: 0.0}))[0], whole[0])


def test_gradients_are_reset_between_steps() -> None:
    """The gradients of one step are not added to those of the next."""
    engine, loaders = new_engine(lr=1e-30, weight_decay=0.0, momentum=0.0, micro_batch=32)
    batch = next(loaders.train.batches(0, 1))
    worlds = Watching(), Watching()
    for number, world in enumerate(worlds):
        engine.step(batch, number, 128, world)
    assert close(worlds[1].seen, worlds[0].seen)


def test_gradients_of_the_mean_loss() -> None:
    """Compared with autograd on the whole batch, without augmentation."""
    drawn = ("dropout", "stochastic_depth", "mixup", "cutmix", "erase", "shift", "jitter", "label_smoothing")
    still = dict.fromkeys(drawn, 0.0)
    engine, loaders = new_engine(**still, randaugment=0, three_augment=False, crop=1.0, flip=False, micro_batch=30)
    batch = next(loaders.train.batches(0, 1))
    model, source = engine.model, loaders.train.source
    preprocessing = model.preprocessing
    order = loaders.train.sampler.indices(0, 128)
    pixels = torch.stack([preprocessing(source.image(int(index))) for index in order])
    loss = nn.functional.cross_entropy(model(pixels), source.labels[order])
    wanted = torch.autograd.grad(loss, list(model.parameters()))
    world = Watching()
    stepped = engine.step(batch, 0, 128, world)
    assert close(world.seen, list(wanted))
    assert torch.allclose(stepped.loss / 128, loss, rtol=1e-5)


def test_accumulation_with_several_labels() -> None:
    changes = {"several": True, "mixup": 0.0, "cutmix": 0.0}
    one, stepped = gradients(*new_engine(**changes))
    assert close(gradients(*new_engine(**changes, micro_batch=30))[0], one)
    assert stepped.right == 0


# ---------------------------------------------------------------- out of memory


class Narrow(nn.Module):
    """A model that runs out of memory for more than `most` images, or in call number `fails_at`."""

    def __init__(self, model: nn.Module, most: int = 10**9, fails_at: int = 0):
        super().__init__()
        self.model, self.most, self.fails_at, self.calls = model, most, fails_at, 0

    def forward(self, images: Tensor) -> Tensor:
        self.calls += 1
        if len(images) > self.most or self.calls == self.fails_at:
            raise torch.OutOfMemoryError("not enough of it")
        return self.model(images)


@pytest.mark.parametrize(("most", "reached"), [(100, 64), (63, 32), (5, 4), (2, 2)])
def test_micro_batch_is_halved_until_it_fits(whole: Any, most: int, reached: int) -> None:
    engine, loaders = new_engine()
    engine.forward = Narrow(engine.model, most)
    found, stepped = gradients(engine, loaders)
    assert engine.micro_batch == reached
    assert close(found, whole[0])
    assert torch.allclose(stepped.loss, whole[1].loss, rtol=1e-5)
    assert torch.equal(stepped.right, whole[1].right)
    assert f"passes of {reached} images" in engine.notes[-1]
    assert "out of memory" in engine.notes[0]


def test_step_is_repeated_after_out_of_memory(whole: Any) -> None:
    engine, loaders = new_engine(micro_batch=32)
    engine.forward = Narrow(engine.model, fails_at=3)
    found, stepped = gradients(engine, loaders)
    assert engine.micro_batch == 16
    assert close(found, whole[0])
    assert torch.allclose(stepped.loss, whole[1].loss, rtol=1e-5)


def test_halved_micro_batch_is_even_with_mixup(whole: Any) -> None:
    engine, loaders = new_engine(micro_batch=50)
    engine.forward = Narrow(engine.model, most=30)
    assert close(gradients(engine, loaders)[0], whole[0])
    assert engine.micro_batch % 2 == 0


@pytest.mark.parametrize(("changes", "least"), [({}, 2), ({"mixup": 0.0, "cutmix": 0.0}, 1)])
def test_out_of_memory_with_the_smallest_micro_batch(changes: dict[str, float], least: int) -> None:
    engine, loaders = new_engine(**changes)
    engine.forward = Narrow(engine.model, most=0)
    with pytest.raises(VitreousError, match=f"out of memory on cpu with {least} images at a time"):
        gradients(engine, loaders)


def test_other_errors_are_raised() -> None:
    engine, loaders = new_engine()

    def broken(images: Tensor) -> Tensor:
        raise RuntimeError("something else")

    engine.forward = engine.plain = broken
    with pytest.raises(RuntimeError, match="something else"):
        gradients(engine, loaders)


# ---------------------------------------------------------------- failing kernels


class Breaking(torch.autograd.Function):
    """The identity, with a backward that raises an error, as a kernel may."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, error: Exception) -> Tensor:
        ctx.error = error
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> Any:
        raise ctx.error


def breaking(engine: Engine, error: Exception, fails_at: int = 1) -> Any:
    """Return a forward function whose backward fails after the head has its gradient."""
    calls = iter(range(1, 1000))

    def forward(images: Tensor) -> Tensor:
        model: Any = engine.model
        features = model.features(images)
        return model.head(Breaking.apply(features, error) if next(calls) == fails_at else features)

    return forward


@pytest.mark.parametrize(("micro_batch", "fails_at"), [(128, 1), (32, 3)])
def test_failed_backward_is_repeated_by_the_plain_model(whole: Any, micro_batch: int, fails_at: int) -> None:
    engine, loaders = new_engine(micro_batch=micro_batch)
    engine.forward = breaking(engine, RuntimeError("no kernel image\nis available"), fails_at)
    engine.path = "fused kernels"
    found, stepped = gradients(engine, loaders)
    assert close(found, whole[0])
    assert torch.allclose(stepped.loss, whole[1].loss, rtol=1e-5)
    assert torch.equal(stepped.right, whole[1].right)
    assert engine.notes == ["the fused kernels failed (no kernel image): continuing without, which is slower"]
    assert engine.path == "plain; the fused kernels failed: no kernel image"
    assert engine.forward is engine.plain
    gradients(engine, loaders)
    assert len(engine.notes) == 1


def test_error_if_the_plain_model_fails_too() -> None:
    engine, loaders = new_engine()
    engine.forward, engine.plain = (breaking(engine, RuntimeError(text)) for text in ("first", "second"))
    with pytest.raises(RuntimeError, match="second"):
        gradients(engine, loaders)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # of torch, while it compiles
def test_plain_model_is_not_compiled_in_backward(monkeypatch: pytest.MonkeyPatch, whole: Any) -> None:
    """Activation checkpointing calls the blocks again in backward."""

    def no_backend(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("no compiler")

    def compile_(module: Any, dynamic: bool) -> None:
        module._compiled_call_impl = torch.compile(module._call_impl, backend=no_backend, dynamic=dynamic)

    torch._dynamo.reset()  # torch limits the number of compiled versions
    monkeypatch.setattr(nn.Module, "compile", compile_)
    engine, loaders = new_engine()
    engine.only_normalises = engine.model.checkpoint_activations = True
    engine.compile()
    assert close(gradients(engine, loaders)[0], whole[0])
    assert len(engine.notes) == 1
    assert engine.notes[0].startswith("the model could not be compiled (")
    assert engine.path.startswith("plain; the model could not be compiled: ")


def test_out_of_memory_in_backward(whole: Any) -> None:
    engine, loaders = new_engine()
    engine.forward = breaking(engine, torch.OutOfMemoryError("not enough of it"))
    found, _ = gradients(engine, loaders)
    assert engine.micro_batch == 64
    assert engine.forward is not engine.plain
    assert close(found, whole[0])
    assert all("out of memory" in note for note in engine.notes)


# ---------------------------------------------------------------- after a step


def test_dropout_keys_are_removed_after_a_step() -> None:
    engine, loaders = new_engine()
    gradients(engine, loaders)
    assert engine.model(torch.randn(1, 3, 16, 16)).shape == (1, 5)
    engine.forward = engine.plain = breaking(engine, RuntimeError("something else"))
    with pytest.raises(RuntimeError, match="something else"):
        gradients(engine, loaders)
    assert engine.model(torch.randn(1, 3, 16, 16)).shape == (1, 5)


def test_gradients_of_an_empty_batch_are_zero() -> None:
    engine, loaders = new_engine()
    gradients(engine, loaders)
    batch = next(loaders.train.batches(0, 1))
    world = Watching()
    engine.step(type(batch)(batch.rows[:0], batch.keys[:0], batch.labels[:0]), 1, 128, world)
    assert len(world.seen) == len(list(engine.model.parameters()))
    assert not any(gradient.any() for gradient in world.seen)


# ---------------------------------------------------------------- modified models


def test_model_with_hooks_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, loaders = new_engine()
    engine.model.blocks[0].register_forward_hook(lambda module, inputs, output: 2 * output)
    expected = gradients(engine, loaders)[0]
    engine, loaders = new_engine()
    engine.model.blocks[0].register_forward_hook(lambda module, inputs, output: 2 * output)
    engine.only_normalises = True  # so that augmentation is not compiled either
    engine.compile()
    assert engine.path == "plain; not compiled: blocks.0 has hooks"
    assert close(gradients(engine, loaders)[0], expected)


def swapped(model: Any) -> None:
    model.blocks[1].mlp = nn.Identity()


def own_forward(model: Any) -> None:
    model.norm.forward = lambda x: x


@pytest.mark.parametrize(
    "change", [lambda model: model.blocks[0].register_forward_hook(lambda *a: None), swapped, own_forward]
)
def test_changing_a_compiled_model_is_an_error(change: Any) -> None:
    """Compiled blocks, fused kernels and captured passes would ignore the change."""
    engine, loaders = new_engine()
    engine.only_normalises = True
    engine.compile()
    assert engine.path.startswith("compiled")
    change(engine.model)
    with pytest.raises(VitreousError, match="changed after it was compiled"):
        gradients(engine, loaders)


def test_find_unknown_code() -> None:
    model: Any = new_engine()[0].model
    assert find_unknown_code(model) is None
    add_adapters_(model, Finetuning(lora=2))
    assert find_unknown_code(model) is None
    handle = model.head.weight.register_hook(lambda gradient: gradient)
    assert find_unknown_code(model) == "head.weight has hooks"
    handle.remove()
    vars(model.blocks[0])["mlp"] = torch.zeros_like  # torch's compiler would use the registered module instead
    assert find_unknown_code(model) == "blocks.0.mlp is replaced on the instance"
    model.blocks[0] = Narrow(model.blocks[0])
    assert find_unknown_code(model) == "blocks.0 is of type Narrow"


# ---------------------------------------------------------------- two processes

STEPS = 3


def updated(world: World, **changes: Any) -> dict[str, Tensor]:
    """Return the weights after some steps with clipping and EMA."""
    engine, loaders = new_engine(world, **{"batch_size": 64, "clip": 1.0, "ema": 0.9, **changes})
    losses = torch.zeros(())
    for number, batch in enumerate(loaders.train.batches(0, STEPS)):
        stepped = engine.step(batch, number, 64, world)
        world.all_reduce([stepped.loss])
        losses = losses + stepped.loss
    means = {f"ema.{name}": tensor for name, tensor in engine.ema.state_dict().items()}
    return {**engine.model.state_dict(), **means, "losses": losses}


def one_of_two(rank: int, place: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{place}/meeting", rank=rank, world_size=2)
    world = World.current()
    assert world == World(rank, 2)
    found: dict[str, Any] = {"weights": updated(world), "odd": updated(world, micro_batch=10)}
    rows = 3 + 4 * rank  # 3 and 7
    found["joined"] = world.all_gather(
        [
            torch.arange(rows) + 100 * rank,
            torch.full((rows, 2), float(rank)),
            torch.ones(rank, 3, dtype=torch.bool),  # no row, and one row
            torch.empty(0, 2),
        ]
    )
    found["time"] = run_time(world, slow=rank == 1)
    folder, run = Path(place) / "photos", Path(place) / "run"
    small: dict[str, Any] = {"width": 32, "depth": 1, "heads": 1, "batch_size": 8, "workers": 0, "device": "cpu"}
    found["selection"] = train(folder, budget="1s", **small, out=run, quiet=True).selection
    found["agreed"] = [world.any(False), world.any(rank == 0), world.any(rank == 1), world.any(True)]
    torch.save(found, f"{place}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The results of two processes that train together."""
    place = tmp_path_factory.mktemp("pair")
    draw_folder(place / "photos", images=20)
    spawn(one_of_two, (str(place),), nprocs=2)
    return [torch.load(place / f"{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("name", ["weights", "odd"])
def test_two_processes_train_like_one(pair: list[dict[str, Any]], name: str) -> None:
    alone = updated(World())
    before = new_engine()[0].model.state_dict()
    first, second = (found[name] for found in pair)
    assert first.keys() == second.keys() == alone.keys()
    for key, tensor in alone.items():
        assert torch.equal(first[key], second[key]), key  # identical, otherwise the processes would diverge
        assert torch.allclose(first[key], tensor, rtol=1e-4, atol=1e-6), key
        if key in before:
            assert not torch.equal(tensor, before[key]), key


def run_time(world: World, slow: bool) -> str:
    """The estimated time of a run, if this process reads images fast or slowly."""
    source = ArraySource(np.zeros((96, 16, 16, 3), np.uint8), torch.arange(96) % 2, "x")
    data = DataSet("set", ("a", "b"), 3, source)
    facts = replace(collect_facts(data), decode_seconds=2.0 * slow)
    settings, _ = choose_defaults(TrainConfig().with_(device="cpu"), facts)
    return repr(estimate_run_time(settings, data, facts, world, 32))


def test_two_processes_agree_on_the_time_of_the_run(pair: list[dict[str, Any]]) -> None:
    """Otherwise they could choose different numbers of epochs, and one would wait for the other forever."""
    assert pair[0]["time"] == pair[1]["time"]


def test_number_of_validation_images_of_two_processes(pair: list[dict[str, Any]]) -> None:
    for found in pair:
        assert any("on 12 validation images" in text for text in found["selection"])


def test_mixup_needs_an_even_batch_per_process() -> None:
    """With 33 images per process, a pair of mixup would be split between the processes."""
    with pytest.raises(VitreousError, match="batch_size = 66"):
        new_engine(World(0, 2), batch_size=66)
    new_engine(World(0, 2), batch_size=66, mixup=0.0, cutmix=0.0)


def test_all_gather_of_different_numbers_of_rows(pair: list[dict[str, Any]]) -> None:
    for found in pair:
        numbers, ranks, flags, nothing = found["joined"]
        assert numbers.tolist() == [0, 1, 2, 100, 101, 102, 103, 104, 105, 106]
        assert ranks.tolist() == [[0.0, 0.0]] * 3 + [[1.0, 1.0]] * 7
        assert flags.tolist() == [[True, True, True]]
        assert nothing.shape == (0, 2)


def test_any_over_two_processes(pair: list[dict[str, Any]]) -> None:
    assert [found["agreed"] for found in pair] == [[False, True, True, True]] * 2


def test_world_of_one_process() -> None:
    tensors = [torch.arange(3.0)]
    world = World.current()
    assert world == World(0, 1)
    assert world.is_main
    assert world.all_gather(tensors) == tensors
    world.all_reduce(tensors)
    assert tensors[0].tolist() == [0, 1, 2]
    assert [world.any(flag) for flag in (True, False)] == [True, False]


# ---------------------------------------------------------------- no compiler

COMPILED = """
import sys
from pathlib import Path
from runs import config
from vitreous import train
for name in ("yes", "no"):
    changes = {"depth": 1, "duration": "2 steps", "evaluate_every": "2 steps", "mixup": 0.5, "cutmix": 1.0, "crop": 1.0}
    train(sys.argv[1], config(Path(name), **changes, workers=0, compile=name))
"""


def test_training_continues_without_a_compiler(folder: Path, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        **{"CXX": "/bin/false", "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1", "OMP_NUM_THREADS": "1"},
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }
    command = [sys.executable, "-c", COMPILED, str(folder)]
    result = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in (tmp_path / "yes" / "metrics.jsonl").read_text().splitlines()]
    events = [line["text"] for line in lines if line["kind"] == "event"]
    assert len(events) == 2
    for what, event in zip(("augmentation", "the model"), sorted(events), strict=True):
        assert event.startswith(f"{what} could not be compiled (")
        assert f"vitreous: {event[:60]}" in result.stderr
    compiled, plain = (load_file(tmp_path / name / "last.safetensors") for name in ("yes", "no"))
    for name, tensor in plain.items():
        assert torch.equal(tensor, compiled[name]), name
