"""Calls into Vitreous leave process-wide state unchanged, and the caller's settings do not change results."""

import json
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rich.progress  # noqa: F401 (draws a number when it is imported)
import sklearn.datasets  # noqa: F401 (sets variables of the environment when it is imported)
import torch
import torch.nn.functional as F
from PIL import Image
from torch.overrides import TorchFunctionMode

import vitreous
from global_state import unchanged
from vitreous import TrainConfig, VitreousError
from vitreous.benchmark.bench import bench
from vitreous.evaluation.cache import FeatureCache
from vitreous.evaluation.evaluate import evaluate_source
from vitreous.evaluation.evaluated_model import open_model
from vitreous.evaluation.evaluation_images import evaluation_split
from vitreous.evaluation.inference_options import InferenceOptions
from vitreous.evaluation.matching import match_classes
from vitreous.experiments.compare import compare_models
from vitreous.experiments.suite import suite_from_sources
from vitreous.inspection import relevance, rollout
from vitreous.training.distributed import World
from vitreous.training.plan import make_plan
from vitreous.training.signals import Stopped
from vitreous.utils.figures import render_figure
from vitreous.utils.images import decode
from vitreous.utils.torch_settings import run_settings

SHORT: dict[str, Any] = {
    "device": "cpu",
    "compile": "no",
    "deterministic": True,
    "workers": 0,
    "duration": "2 steps",
    "batch_size": 16,
    "dropout": 0.1,
    "quiet": True,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("runs") / "plain")


def train(out: Path, **changes: Any) -> Path:
    return vitreous.train("digits", **{**SHORT, "out": str(out), **changes}).run


def unfinished(run: Path, copy: Path, **changes: Any) -> Path:
    """Return a copy of the run without its result, with other facts."""
    copy.mkdir()
    for path in run.rglob("*"):
        target = copy / path.relative_to(run)
        target.mkdir(exist_ok=True) if path.is_dir() else target.write_bytes(path.read_bytes())
    (copy / "result.json").unlink()
    described = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**described, **changes}))
    return copy


def answers(run: Path) -> Any:
    result = json.loads((run / "result.json").read_text())
    return result["result"], (run / "last.safetensors").read_bytes()


# ---------------------------------------------------------------- what is left behind


def test_training_and_resuming(tmp_path: Path) -> None:
    with unchanged():
        run = train(tmp_path / "run")
    again = unfinished(run, tmp_path / "again")
    with unchanged():
        vitreous.resume(again, quiet=True)


@pytest.mark.gpu
def test_training_on_a_gpu(tmp_path: Path) -> None:
    with unchanged():
        train(tmp_path / "run", device="cuda", compile="auto")


def test_fine_tuning(run: Path, tmp_path: Path) -> None:
    """With a learning-rate search, which runs training inside training."""
    with unchanged():
        wishes = {**SHORT, "dropout": None, "lr": None, "lr_candidates": (0.1, 0.2), "out": tmp_path / "run"}
        vitreous.finetune("digits", run, "linear", **wishes)


def test_workers(tmp_path: Path) -> None:
    """Afterwards the program can still set the start method of processes."""
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method(None, force=True)
    try:
        with unchanged():
            train(tmp_path / "run", workers=1, cache="never")
    finally:
        multiprocessing.set_start_method(before, force=True)


def test_planning_changes_nothing() -> None:
    config = TrainConfig().with_(deterministic=True, device="cpu")
    with unchanged():
        make_plan(vitreous.open_data("digits"), config, World())


@pytest.mark.parametrize("mistake", [{"micro_batch": 17}, {"lr": 1e30}, {"device": "nowhere"}])
def test_a_run_that_fails(tmp_path: Path, mistake: dict[str, Any]) -> None:
    """Before the first step, and at the second step."""
    with unchanged(), pytest.raises(VitreousError):
        train(tmp_path / "run", **mistake)


def test_a_run_that_is_stopped(tmp_path: Path) -> None:
    log = tmp_path / "run" / "metrics.jsonl"

    def stop() -> None:
        while not (log.is_file() and log.stat().st_size):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=stop).start()
    with unchanged(), pytest.raises(Stopped):
        train(tmp_path / "run", duration="1000000 steps", evaluate_every="1%")


def test_models_and_files(run: Path, tmp_path: Path) -> None:
    with unchanged():
        model = vitreous.load(run)
        vitreous.save(model, tmp_path / "model.safetensors")
        vitreous.convert(tmp_path / "model.safetensors", tmp_path / "model.npz", "google")
        vitreous.accelerate(model)(torch.zeros(2, 1, 8, 8))
        vitreous.cost(model)
    (tmp_path / "broken.npz").write_bytes(b"no weights")
    with unchanged(), pytest.raises(VitreousError):
        vitreous.load(tmp_path / "broken.npz")


def score(run: Path) -> float:
    data, subject = vitreous.open_data("digits"), open_model(run)
    _, images = evaluation_split(data)
    matched = match_classes(data.classes, subject.model.labels, subject.model.config.num_classes)
    return evaluate_source(subject, images, matched, subject.preprocessing(), InferenceOptions()).result.loss


def test_evaluation(run: Path, tmp_path: Path) -> None:
    with unchanged():
        score(run)
        compare_models([str(run)], suite_from_sources(["digits"]), ["knn"], FeatureCache(tmp_path), InferenceOptions())


def test_inspection(run: Path) -> None:
    model, images = vitreous.load(run), torch.zeros(1, 1, 8, 8)
    with unchanged():
        render_figure(rollout(model, images).figure(), "svg")
        relevance(model, images)


def test_benchmark() -> None:
    with unchanged():
        bench(mode="data", size=8, batch_size=2, device="cpu", seconds=0.01)


def test_decoding(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((9, 9), np.uint8)).save(tmp_path / "a.png")
    with unchanged():
        decode(tmp_path / "a.png")
    assert not logging.getLogger("PIL").handlers  # also not when the module is imported


# ---------------------------------------------------------------- what holds inside a run


class Watching(TorchFunctionMode):
    """Records the result of `look` whenever a linear layer is computed."""

    def __init__(self, look: Callable[[], Any]):
        super().__init__()
        self.look, self.seen = look, set[Any]()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is F.linear:
            self.seen.add(self.look())
        return function(*args, **(kwargs or {}))


def during(work: Callable[[], object], look: Callable[[], Any]) -> set[Any]:
    with Watching(look) as watching:
        work()
    assert watching.seen
    return watching.seen


def test_a_deterministic_run_uses_deterministic_algorithms(tmp_path: Path) -> None:
    def look() -> Any:
        flags = torch.are_deterministic_algorithms_enabled(), torch.backends.cuda.cudnn_sdp_enabled()
        return (*flags, torch.backends.cudnn.benchmark, os.environ.get("CUBLAS_WORKSPACE_CONFIG"))

    assert during(lambda: train(tmp_path / "a"), look) == {(True, False, False, ":4096:8")}
    usual = look()
    assert during(lambda: train(tmp_path / "b", deterministic=False), look) == {usual}


def test_a_resumed_run_has_its_own_number_of_threads(run: Path, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    again = unfinished(run, tmp_path / "run", threads=threads + 1)
    with unchanged():
        assert during(lambda: vitreous.resume(again, quiet=True), torch.get_num_threads) == {threads + 1}


def test_settings_of_the_caller_are_restored() -> None:
    """The caller's values, not torch's defaults."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with unchanged(), run_settings("cpu", deterministic=True):
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_error_if_the_gpu_was_used_before() -> None:
    said = "Deterministic behavior was enabled ... set CUBLAS_WORKSPACE_CONFIG=:4096:8"
    explained = pytest.raises(VitreousError, match="start Python with CUBLAS_WORKSPACE_CONFIG")
    with unchanged(), explained, run_settings("cpu", deterministic=True):
        raise RuntimeError(said)


# ---------------------------------------------------------------- what the caller has switched on


@contextmanager
def double_precision() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


AROUND: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "float64": double_precision,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "default device": lambda: torch.device("meta"),
    "autocast": lambda: torch.autocast("cpu", torch.float16),
}


@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
def test_a_run_does_not_depend_on_the_callers_settings(
    run: Path, tmp_path: Path, around: Callable[[], AbstractContextManager[Any]]
) -> None:
    with around(), unchanged():
        train(tmp_path / "run")
    assert answers(tmp_path / "run") == answers(run)
    again = unfinished(run, tmp_path / "again")
    with around(), unchanged():
        vitreous.resume(again, quiet=True)
    assert answers(again) == answers(run)


@pytest.mark.parametrize("name", ["float64", "no_grad", "inference_mode", "autocast"])
def test_evaluation_does_not_depend_on_the_callers_settings(run: Path, name: str) -> None:
    usual = score(run)
    with AROUND[name]():
        assert score(run) == usual


def test_a_random_model_is_always_the_same() -> None:
    def weights(around: AbstractContextManager[Any]) -> torch.Tensor:
        with around:
            return open_model("random:Ti/16").model.patch_embed.proj.weight

    for around in (double_precision(), torch.device("meta")):
        assert torch.equal(weights(around), weights(nullcontext()))
