"""A run that is stopped by a signal or an error saves its state, and prints the command to continue."""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runs import TINY_RUN, complete, config, kill_at, start, step_of, wait_for
from vitreous import VitreousError, resume, train
from vitreous.training import loop as training_loop
from vitreous.training import state
from vitreous.training.signals import Stopped

# Images are decoded by workers at every step; no state is saved before the run is stopped.
DECODING = (*TINY_RUN, "--workers", "2", "--cache", "never", "--save-minutes", "60", "--out", "run")


@pytest.fixture(scope="module")
def whole(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("whole")
    complete("train", folder, *DECODING, cwd=place)
    return place / "run"


def same(one: Path, other: Path) -> bool:
    names = ("best.safetensors", "last.safetensors")
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in names)


def stopped(process: subprocess.Popen[str], run: Path, number: int, words: str) -> None:
    """Check that the run ended with this exit status and message, without a traceback, and saved its last step."""
    _, error = process.communicate(timeout=120)
    assert process.returncode == number, error
    assert "Traceback" not in error
    assert words in error
    assert [path.name for path in state.list_states(run / "state")] == [f"step-{step_of(run):09d}"]


@pytest.mark.parametrize(("number", "step"), [(signal.SIGTERM, 1), (signal.SIGTERM, 13), (signal.SIGHUP, 7)])
def test_signal_to_the_process_group(whole: Path, folder: Path, tmp_path: Path, number: int, step: int) -> None:
    """As systemd, SLURM or a closed terminal stop a job: the workers get the signal too."""
    run = tmp_path / "run"
    for _ in range(5):
        process = start("train", folder, *DECODING, cwd=tmp_path, start_new_session=True)
        wait_for(process, run, step)
        if step_of(run) < 30:  # on a busy machine, the run may be at its end when this process continues
            break
        process.communicate(timeout=120)
        shutil.rmtree(run)
    os.killpg(process.pid, number)
    stopped(process, run, 128 + number, "everything is saved; to continue: vitreous train --resume run")
    resume(run, quiet=True)
    assert same(run, whole)


def test_ignored_sighup(folder: Path, tmp_path: Path) -> None:
    """nohup starts a program with SIGHUP ignored."""
    options: dict[str, Any] = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)}
    process = start("train", folder, *DECODING, cwd=tmp_path, **options)
    _, error = kill_at(process, tmp_path / "run", 3, signal.SIGHUP)
    assert process.returncode == 0, error
    assert step_of(tmp_path / "run") == 40


def test_killed_worker(whole: Path, folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start("train", folder, *DECODING, cwd=tmp_path)
    wait_for(process, run, 5)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[-1]), signal.SIGKILL)
    stopped(process, run, 2, "a worker process that decodes images has died")
    resume(run, quiet=True)
    assert same(run, whole)


@pytest.mark.parametrize("place", ["_log", "_evaluate"])
def test_error_between_steps(
    whole: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Also during an evaluation, which is then repeated."""
    run, settings = tmp_path / "run", config(tmp_path / "run", duration="40steps", evaluate_every="10steps", workers=0)
    settings = settings.with_(cache="never", save_minutes=60.0)
    known = getattr(training_loop.TrainingLoop, place)

    def fail(self: training_loop.TrainingLoop, *arguments: Any, **options: Any) -> Any:
        if self.progress.step == 20 and not failed:
            failed.append(place)
            raise OSError(5, "Input/output error")
        return known(self, *arguments, **options)

    failed: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(training_loop.TrainingLoop, place, fail)
        with pytest.raises(OSError, match="Input/output error"):
            train(folder, settings, quiet=True)
    assert [path.name for path in state.list_states(run / "state")] == ["step-000000020"]
    resume(run, quiet=True)
    assert same(run, whole)


def at_step(monkeypatch: pytest.MonkeyPatch, step: int, place: str, act: Callable[[Path], None]) -> None:
    """Call `act` once, before this method of the training loop at this step."""
    known, done = getattr(training_loop.TrainingLoop, place), []

    def replaced(self: training_loop.TrainingLoop, *arguments: Any, **options: Any) -> Any:
        if self.progress.step == step and not done:
            done.append(step)
            act(self.directory.path)
        return known(self, *arguments, **options)

    monkeypatch.setattr(training_loop.TrainingLoop, place, replaced)


@pytest.mark.parametrize("place", ["_log", "save"])
def test_signal_in_the_last_step(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """Also while the last state is being saved: the run stops before the final evaluation."""
    run = tmp_path / "run"
    at_step(monkeypatch, 12, place, lambda _: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(Stopped, match="stopped at step 12 of 12, everything is saved") as stop:
        train(folder, config(run, save_minutes=60.0), quiet=True)
    assert stop.value.code == 128 + signal.SIGINT
    assert [path.name for path in state.list_states(run / "state")] == ["step-000000012"]
    assert resume(run, quiet=True).steps == 12


def test_log_cannot_be_written(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state is saved anyway."""
    run = tmp_path / "run"

    def block(run: Path) -> None:
        (run / "metrics.jsonl").unlink()
        (run / "metrics.jsonl").mkdir()

    at_step(monkeypatch, 5, "_step", block)
    with pytest.raises(VitreousError, match=r"(?s)metrics\.jsonl cannot be written.*the state of step \d+ is saved"):
        train(folder, config(run, save_minutes=60.0), quiet=True)
    assert state.list_states(run / "state")
    (run / "metrics.jsonl").rmdir()
    assert resume(run, quiet=True).steps == 12


def test_best_weights_cannot_be_written(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The evaluation is repeated on resume, and selects the same weights."""
    train(folder, config(tmp_path / "whole", evaluate_every="12 steps"), quiet=True)
    run = tmp_path / "run"
    at_step(monkeypatch, 5, "_step", lambda run: (run / "best.safetensors").mkdir())
    with pytest.raises(VitreousError, match=r"(?s)best\.safetensors is a folder.*the state of step 12 is saved"):
        train(folder, config(run, evaluate_every="12 steps", save_minutes=60.0), quiet=True)
    (run / "best.safetensors").rmdir()
    resume(run, quiet=True)
    assert same(run, tmp_path / "whole")


def test_error_during_an_update_saves_nothing(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights belong to no step then."""
    from vitreous.training.optim.ema import Ema

    def fail(self: Ema, step: int) -> None:
        raise RuntimeError("half-way")

    monkeypatch.setattr(Ema, "update", fail)
    with pytest.raises(RuntimeError, match="half-way"):
        train(folder, config(tmp_path / "run", ema=0.9), quiet=True)
    assert state.list_states(tmp_path / "run" / "state") == []


@pytest.fixture(scope="module")
def stopped_run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped after its second evaluation."""
    place = tmp_path_factory.mktemp("half")
    _, error = kill_at(start("train", folder, *DECODING, cwd=place), place / "run", 23, signal.SIGINT)
    assert state.list_states(place / "run" / "state"), error
    return place / "run"


@pytest.fixture
def half(stopped_run: Path, tmp_path: Path) -> Path:
    """A copy of the stopped run."""
    return Path(shutil.copytree(stopped_run, tmp_path / "run"))


def test_damaged_weight_files_are_restored(whole: Path, half: Path) -> None:
    """The state contains copies: a flipped bit, or weights of later steps, do not affect the result."""
    for name in ("best.safetensors", "last.safetensors"):
        content = bytearray((half / name).read_bytes())
        content[-5] ^= 1
        with (half / name).open("r+b") as file:
            file.write(content)
    resume(half, quiet=True)
    assert same(half, whole)


def test_damaged_log(whole: Path, half: Path) -> None:
    content = (half / "metrics.jsonl").read_bytes()
    (half / "metrics.jsonl").write_bytes(
        b"\xff\xfe[[[\n" + content[:50] + b"\x80" + content[51:] + b'[1]\n{"step": "x"}\n'
    )
    resume(half, quiet=True)
    assert same(half, whole)


def copy_unmeasured(whole: Path, run: Path) -> Path:
    """Copy a run as it is before the final evaluation."""
    shutil.copytree(whole, run)
    (run / "result.json").unlink()
    return run


def test_unexpected_lines_in_the_log(whole: Path, tmp_path: Path) -> None:
    """A damaged line may still be valid JSON."""
    run = copy_unmeasured(whole, tmp_path / "run")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "event", "step": 3, "tezt": "x"}\n{"kind": "event", "text": "x"}\n')
        file.write('{"kind": {}, "step": 1}\n3\n')
    assert resume(run, quiet=True).steps == 40
    assert (run / "result.json").is_file()


def test_damaged_result(whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    content = (run / "result.json").read_text()
    images = re.search(r'"images": \d+', content)
    assert images is not None
    for old, new in (
        ('"confusion"', '"confuzion"'),
        ('"right"', '"rigth"'),
        ('"steps": 40', '"steps": []'),
        (images[0], '"images": "x"'),
        ('"split"', '"zplit"'),
    ):
        assert old in content
        (run / "result.json").write_text(content.replace(old, new))
        with pytest.raises(VitreousError, match=r"result\.json is damaged .*remove it, and resume"):
            resume(run, quiet=True)


def test_damaged_config(whole: Path, tmp_path: Path) -> None:
    """It is an error before anything is computed."""
    run = copy_unmeasured(whole, tmp_path / "run")
    content = (run / "config.json").read_text()
    for name in ("choices", "command", "environment", "why"):
        (run / "config.json").write_text(content.replace(f'"{name}"', f'"{name}x"'))
        with pytest.raises(VitreousError, match=r"config\.json does not describe a run"):
            resume(run, quiet=True)


def test_run_directory_is_not_writable(half: Path, tmp_path: Path) -> None:
    (half / ".lock").unlink()
    (half / ".lock").mkdir()
    with pytest.raises(VitreousError, match="this run directory is not writable"):
        resume(half, quiet=True)


def test_weights_changed_before_the_final_evaluation(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, known = tmp_path / "run", training_loop.TrainingLoop.run

    def run_and_flip(self: training_loop.TrainingLoop) -> None:
        known(self)
        content = bytearray(self.directory.last.read_bytes())
        content[-5] ^= 1
        self.directory.last.write_bytes(content)

    with monkeypatch.context() as patch:
        patch.setattr(training_loop.TrainingLoop, "run", run_and_flip)
        with pytest.raises(VitreousError, match=r"last\.safetensors was changed after it was written"):
            train(folder, config(run), quiet=True)
    assert not (run / "result.json").exists()
    shutil.copytree(run, tmp_path / "copy")
    assert resume(tmp_path / "copy", quiet=True).steps == 12
