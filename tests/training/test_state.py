"""Saved states: restored exactly, two are kept, and damaged ones are skipped."""

import json
import os
import pickle
import resource
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers import draw
from runs import config
from vitreous.data.arrays import ArraySource
from vitreous.data.dataset import DataSet
from vitreous.errors import VitreousError, VitreousWarning
from vitreous.training import state
from vitreous.training.distributed import World
from vitreous.training.loaders import build_loaders
from vitreous.training.loop import TrainingLoop
from vitreous.training.plan import make_plan
from vitreous.training.run_directory import RunDirectory
from vitreous.training.run_progress import BestWeights, RunProgress
from vitreous.training.trainer import build_engine
from vitreous.utils.progress import ProgressReporter

PROGRESS = RunProgress(step=3, seconds=1.25, best=BestWeights(0.1 + 0.2, 0.5, 2, "ema"), stale=1, micro_batch=2)


def loop(optimiser: str, seed: int = 0, ema: float = 0.9) -> TrainingLoop:
    """A small run before its first step, with random weights."""
    images = np.random.default_rng(0).integers(0, 256, (16, 16, 16, 3), dtype=np.uint8)
    data = DataSet("noise", ("a", "b", "c"), 3, ArraySource(images, torch.arange(16) % 3, "noise"))
    settings = config(Path(), optimiser=optimiser, ema=ema, dropout=0.1, batch_size=8, evaluate_every=None)
    plan, world, reporter = make_plan(data, settings, World()), World(), ProgressReporter(quiet=True)
    loaders = build_loaders(data, plan, world, reporter)
    engine = build_engine(data, plan, loaders)
    draw(engine.model, seed).train()
    torch.manual_seed(seed)
    return TrainingLoop(plan, loaders, engine, RunDirectory(Path()), reporter, world)


def train(loop: TrainingLoop, first: int, last: int) -> None:
    for step, batch in enumerate(loop.loaders.train.batches(first, last), first):
        loop.engine.optimisers.set_factor(1 / (1 + step))
        loop.engine.step(batch, step, 8, World())
        torch.rand(1)  # other code that draws random numbers


def flat(tree: Any, name: str = "") -> dict[str, Tensor]:
    if not isinstance(tree, dict):
        return {name: torch.as_tensor(tree)}
    return {key: value for part in tree for key, value in flat(tree[part], f"{name}/{part}").items()}


def equal(one: Any, other: Any) -> bool:
    left, right = flat(one), flat(other)
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype and torch.equal(left[name], right[name]) for name in left
    )


@pytest.mark.parametrize("optimiser", ["adamw", "sgd", "muon", "lamb"])
@pytest.mark.parametrize("ema", [0.9, 0.0])
def test_restored_state_is_exact(tmp_path: Path, optimiser: str, ema: float) -> None:
    whole = loop(optimiser, ema=ema)
    train(whole, 0, 3)
    path = state.save_state(tmp_path / "state", 3, whole.tensors(), asdict(PROGRESS))
    saved = {name: tensor.clone() for name, tensor in flat(whole.tensors()).items()}
    moments = [name for name in saved if name.startswith("/optimiser/")]
    assert len(moments) >= len(list(whole.engine.model.parameters()))
    assert all(saved[name].any() for name in moments if "bias" not in name)  # the optimiser state is not zero
    train(whole, 3, 5)

    other = loop(optimiser, seed=1, ema=ema)  # as in another process, with other random numbers
    found, progress = state.newest_state(tmp_path / "state")
    assert found == path
    other.restore(found, RunProgress.from_json(progress))
    assert equal(flat(other.tensors()), saved)
    assert other.progress == PROGRESS
    assert other.engine.micro_batch == 2
    other.engine.micro_batch = whole.engine.micro_batch
    train(other, 3, 5)
    assert equal(other.tensors()["model"], whole.tensors()["model"])
    assert equal(other.tensors(), whole.tensors())


def test_state_saved_before_the_first_step(tmp_path: Path) -> None:
    whole = loop("adamw")
    state.save_state(tmp_path / "state", 0, whole.tensors(), asdict(whole.progress))
    other = loop("adamw", seed=1)
    found, progress = state.newest_state(tmp_path / "state")
    other.restore(found, RunProgress.from_json(progress))
    for each in (whole, other):
        train(each, 0, 2)
    assert equal(other.tensors(), whole.tensors())


# ---------------------------------------------------------------- states of a few tensors


def tree(seed: int, rows: int = 5) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(rows, 300, generator=generator)
    return {
        "model": {"a.weight": weights, "b": weights[:, 0].clone(), "empty": torch.empty(0), "half": weights.half()},
        "optimiser": {"a.weight": {"step": torch.tensor(float(seed)), "mask": weights > 0}},
        "random": torch.arange(seed, seed + 10, dtype=torch.uint8),
    }


def save(folder: Path, *steps: int) -> list[Path]:
    return [state.save_state(folder, step, tree(step), {"step": step, "note": "größer"}) for step in steps]


def test_special_float_values(tmp_path: Path) -> None:
    odd = {"x": torch.tensor([0.1, -0.0, float("inf"), float("nan"), 1e-45, 2**-149])}
    path = state.save_state(tmp_path / "state", 1, odd, {"loss": 0.1 + 0.2, "best": None})
    into = {"x": torch.zeros(6)}
    state.load_state(path, into)
    assert into["x"].numpy().tobytes() == odd["x"].numpy().tobytes()
    assert state.newest_state(tmp_path / "state")[1] == {"loss": 0.1 + 0.2, "best": None}


def test_last_two_states_are_kept(tmp_path: Path) -> None:
    save(tmp_path / "state", 1, 9, 10, 100)
    assert [path.name for path in state.list_states(tmp_path / "state")] == ["step-000000100", "step-000000010"]
    path, progress = state.newest_state(tmp_path / "state")
    assert path.name == "step-000000100"
    assert progress == {"step": 100, "note": "größer"}
    into = tree(0)
    state.load_state(path, into)
    assert equal(into, tree(100))


def test_saving_the_same_step_again(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    save(folder, 5)
    path = state.save_state(folder, 5, tree(77), {"step": 5})
    into = tree(0)
    state.load_state(path, into)
    assert equal(into, tree(77))
    assert state.list_states(folder) == [path]


def test_partial_states_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    (folder / ".step-000000007.123.tmp").mkdir(parents=True)
    (folder / ".step-000000007.123.tmp" / "tensors.safetensors").write_bytes(b"half")
    with pytest.raises(VitreousError, match="no state was saved yet"):
        state.newest_state(folder)
    save(folder, 8)
    assert [path.name for path in folder.iterdir()] == ["step-000000008"]


def test_no_state_folder(tmp_path: Path) -> None:
    assert state.list_states(tmp_path / "state") == []
    with pytest.raises(VitreousError, match="no state was saved yet"):
        state.newest_state(tmp_path / "state")


# ---------------------------------------------------------------- damage


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-3])


def empty(file: Path) -> None:
    file.write_bytes(b"")


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


FILES = ["progress.json", "sums.json", "tensors.safetensors"]


@pytest.mark.parametrize("damage", [cut, empty, flip, Path.unlink], ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("name", FILES)
def test_damaged_state_is_skipped(tmp_path: Path, damage: Any, name: str) -> None:
    folder = tmp_path / "state"
    older, newer = save(folder, 1, 2)
    assert sorted(file.name for file in newer.iterdir()) == FILES
    damage(newer / name)
    with pytest.warns(VitreousWarning, match=r"step-000000002 \(.+\); continuing from step-000000001"):
        assert state.newest_state(folder) == (older, {"step": 1, "note": "größer"})


def test_all_states_are_damaged(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    older, newer = save(folder, 1, 2)
    cut(older / "tensors.safetensors")
    (newer / "sums.json").unlink()
    with pytest.raises(VitreousError, match="all saved states are damaged") as error:
        state.newest_state(folder)
    for word in (
        str(tmp_path),
        "step-000000001 (tensors.safetensors is damaged)",
        "step-000000002 (incomplete)",
    ):
        assert word in str(error.value)


def test_damaged_sums_file(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    older, newer = save(folder, 1, 2)
    for content in ("[]", "null", "{}", '{"tensors.safetensors": 3}', "\0"):
        (newer / "sums.json").write_text(content)
        with pytest.warns(VitreousWarning, match="continuing from step-000000001"):
            assert state.newest_state(folder)[0] == older


def test_state_of_another_model_is_an_error(tmp_path: Path) -> None:
    (path,) = save(tmp_path / "state", 1)
    with pytest.raises(VitreousError, match="does not fit this run"):
        state.load_state(path, tree(1, rows=6))
    more = tree(1)
    more["model"]["new"] = torch.zeros(2)
    with pytest.raises(VitreousError, match="does not fit this run"):
        state.load_state(path, more)


class Payload:
    """A pickle that creates a file when it is loaded."""

    def __init__(self, mark: Path):
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


def test_loading_a_state_runs_no_code(tmp_path: Path) -> None:
    """For pickles under any name in the folder."""
    folder, mark = tmp_path / "state", tmp_path / "mark"
    older, newer = save(folder, 1, 2)
    for name in ("tensors.safetensors", ".metadata", "__0_0.distcp"):
        for path in (older, newer):
            (path / name).write_bytes(pickle.dumps(Payload(mark)))
        with pytest.raises(VitreousError):
            state.newest_state(folder)
        with pytest.raises(VitreousError):
            state.load_state(newer, tree(0))
    assert not mark.exists()


def test_state_of_version_0_1_0_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    (path,) = save(folder, 1)
    (path / ".metadata").write_bytes(b"")
    with pytest.raises(VitreousError, match=r"saved by Vitreous 0\.1\.0.*finish the run with 0\.1\.0"):
        state.newest_state(folder)


def test_failed_rename_leaves_the_older_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the same step is saved again: the old state is removed after the new one is complete."""
    folder = tmp_path / "state"
    (older,) = save(folder, 5)

    def fail(self: Path, target: Path) -> Path:
        raise OSError(5, "Input/output error")

    for step in (5, 6):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", fail)
            with pytest.raises(VitreousError, match="Input/output error"):
                state.save_state(folder, step, tree(step), {"step": step})
        assert state.newest_state(folder)[0] == older
        assert list(folder.iterdir()) == [older]


def test_damaged_states_do_not_count_as_kept(tmp_path: Path) -> None:
    """Two undamaged states are kept, with a damaged one between them."""
    folder = tmp_path / "state"
    first, second, third = (*save(folder, 1, 2), folder / "step-000000003")
    state._verified.clear()  # as in another process
    shutil.copytree(second, third)
    flip(third / "tensors.safetensors")
    (fourth,) = save(folder, 4)
    assert state.list_states(folder) == [fourth, second]
    assert not first.exists()


def test_weight_files_are_restored_with_the_state(tmp_path: Path) -> None:
    """They are restored as they were at that step, even if later steps have replaced them."""
    run, folder = tmp_path, tmp_path / "state"
    best, last = run / "best.safetensors", run / "last.safetensors"
    best.write_bytes(b"best of step 1")
    last.write_bytes(b"step 1")

    def weights() -> dict[Path, str]:
        return {path: state.file_digest(path) for path in (best, last)}

    first = state.save_state(folder, 1, tree(1), {"step": 1}, weights())
    last.write_bytes(b"step 2")
    second = state.save_state(folder, 2, tree(2), {"step": 2}, weights())
    assert (first / best.name).stat().st_ino != (second / best.name).stat().st_ino
    best.write_bytes(b"of steps that are lost")
    for file in (best, last):
        state.restore_weight_file(second, file)
    assert (best.read_bytes(), last.read_bytes()) == (b"best of step 1", b"step 2")
    for damaged in (best, last):  # also a file that both states have with the same content
        content = (second / damaged.name).read_bytes()
        flip(second / damaged.name)
        state._verified.clear()
        with pytest.warns(VitreousWarning, match=f"{damaged.name} is damaged"):
            assert state.newest_state(folder)[0] == first
        (second / damaged.name).write_bytes(content)
    expected = weights()
    flip(last)  # damaged after it was written: an older state has the same content
    third = state.save_state(folder, 3, tree(3), {"step": 3}, expected)
    assert (third / last.name).read_bytes() == b"step 2"
    with pytest.raises(VitreousError, match=r"last\.safetensors was changed after it was written"):
        state.save_state(folder, 4, tree(4), {"step": 4}, {last: "0" * 32})


def test_disk_error_leaves_the_older_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "state"
    (older,) = save(folder, 1)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(VitreousError, match=r"step 2 cannot be saved.*No space left on device"):
            save(folder, 2)
    assert list(folder.iterdir()) == [older]
    assert state.newest_state(folder)[1]["step"] == 1


def test_full_disk_during_a_write(tmp_path: Path) -> None:
    """A limit on the file size makes a write fail half-way, as a full disk does."""
    folder = tmp_path / "state"
    (older,) = save(folder, 1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, before[1]))
    try:
        with pytest.raises(VitreousError, match="step 2 cannot be saved"):
            state.save_state(folder, 2, tree(2, rows=200), {"step": 2})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(folder.iterdir()) == [older]


def test_sums_cover_every_file(tmp_path: Path) -> None:
    (path,) = save(tmp_path / "state", 1)
    vouched = json.loads((path / "sums.json").read_text())
    assert {*vouched, "sums.json"} == {file.name for file in path.iterdir()}
    copy = tmp_path / "copied"
    shutil.copytree(tmp_path / "state", copy)  # moved to another disk
    assert state.newest_state(copy)[1]["step"] == 1
