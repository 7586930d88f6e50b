"""`--resume RUN --epochs 150`: a run, finished or not, gets another length."""

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from runs import TINY_RUN, complete, config, kill_at, records, start, step_of
from vitreous import VitreousError, resume, train
from vitreous.evaluation.training_images import describe_selection
from vitreous.training import state
from vitreous.training.loop import TrainingLoop
from vitreous.training.outcome import is_complete
from vitreous.training.run_directory import RunDirectory
from vitreous.training.signals import Stopped

WSD = {"schedule": "constant", "cooldown": "25%", "warmup": "2 steps"}
SAVING = (*TINY_RUN, "--workers", "0", "--save-minutes", "0.0005", "--ema", "0.9")


def description(run: Path) -> dict[str, Any]:
    return json.loads((run / "config.json").read_text())


def result(run: Path) -> dict[str, Any]:
    return json.loads((run / "result.json").read_text())


def same_weights(one: Path, other: Path, *names: str) -> bool:
    names = names or ("best.safetensors", "last.safetensors")
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in names)


def rates(run: Path) -> dict[int, float]:
    return {line["step"]: line["lr"] for line in records(run, "train")}


@pytest.fixture(scope="module")
def finished(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("finished") / "run"
    train(folder, config(run, patience=None), quiet=True)
    return run


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def test_finished_run_is_extended(finished: Path, copy: Path, folder: Path, tmp_path: Path) -> None:
    """From step 12 on it has the learning rates of a run of 20 steps with the same warm-up."""
    before = result(finished)
    outcome = resume(copy, duration="20 steps", quiet=True)
    train(folder, config(tmp_path / "long", duration="20 steps", warmup="1 steps"), quiet=True)
    assert outcome.steps == 20
    assert [line["step"] for line in records(copy, "train")] == list(range(1, 21))
    assert rates(copy)[12] == 0
    assert {s: r for s, r in rates(copy).items() if s > 12} == {
        s: r for s, r in rates(tmp_path / "long").items() if s > 12
    }
    first, second = result(copy)["legs"]
    assert (first["duration"], first["trained"], second["duration"], second["first_step"]) == (
        "12 steps",
        12,
        "20 steps",
        12,
    )
    assert first["result"]["top1"] == before["result"]["top1"]
    assert result(copy)["best"]["value"] >= before["best"]["value"]
    assert description(copy)["legs"] == result(copy)["legs"]
    assert any("changed after 12 steps with top1" in text for text in outcome.selection)
    page = (copy / "report.html").read_text()
    assert "extended from 12 steps" in page
    assert "the learning rate goes from 0 to" in page


def test_lengths(copy: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = (copy / "config.json").read_bytes()
    for shorter in ("6 steps", "11 steps", "1 epoch"):
        with pytest.raises(VitreousError, match=r"and .*run has trained 12 steps \(3.31 epochs\) already"):
            resume(copy, duration=shorter)
    with pytest.raises(VitreousError, match="duration = '5%': a percentage refers to the whole run"):
        resume(copy, duration="5%")
    for same in ("12 steps", "12steps", "192 examples"):
        assert resume(copy, duration=same).steps == 12
        assert "nothing left to do; a longer --epochs extends the run" in capfd.readouterr().err
    with pytest.raises(VitreousError, match="lr: "):
        resume(copy, duration="20 steps", lr=1.0)
    assert (copy / "config.json").read_bytes() == before


def test_command(copy: Path, vitreous) -> None:
    done = vitreous("train", "--resume", copy, "--epochs", "5")
    assert done.returncode == 0
    assert "extended from 12 steps to 5 epochs (18 steps), from step 12; the learning rate goes" in done.stderr
    assert "after 4.97 epochs" in done.stdout
    assert "extended from 12 steps" in " ".join(done.stdout.split())
    assert resume(copy, duration="24 steps", quiet=True).steps == 24  # a third leg
    assert [leg["duration"] for leg in result(copy)["legs"]] == ["12 steps", "5 epochs", "24 steps"]


def test_killed_extension(folder: Path, tmp_path: Path) -> None:
    """It ends with the weights of an extension that was not killed, and keeps the first result until then."""
    whole, run = tmp_path / "whole", tmp_path / "run"
    complete("train", folder, *SAVING, "--duration", "20steps", "--out", "whole", cwd=tmp_path)
    shutil.copytree(whole, run)
    complete("train", "--resume", "whole", "--duration", "60steps", cwd=tmp_path)
    first, report = result(run), (run / "report.html").read_bytes()
    kill_at(start("train", "--resume", "run", "--duration", "60steps", cwd=tmp_path), run, 33)
    assert 20 < step_of(run) < 60
    assert result(run) == first
    assert (run / "report.html").read_bytes() == report
    assert not is_complete(RunDirectory(run))
    assert "being extended" in describe_selection(run)
    kill_at(start("train", "--resume", "run", cwd=tmp_path), run, 45)
    complete("train", "--resume", "run", cwd=tmp_path)
    assert same_weights(run, whole)
    assert result(run)["steps"] == 60
    assert [leg["trained"] for leg in result(run)["legs"]] == [20, None]
    assert sum("extended" in line["text"] for line in records(run, "event")) == 1


def test_stopped_before_the_first_state(
    copy: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leg is in config.json, and all states are of the leg before."""
    from vitreous.training import train as training

    other = shutil.copytree(finished, tmp_path / "other")
    resume(other, duration="20 steps", quiet=True)
    with monkeypatch.context() as patch:
        patch.setattr(training, "train_to_end", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            resume(copy, duration="20 steps", quiet=True)
    assert not is_complete(RunDirectory(copy))
    resume(copy, quiet=True)
    assert same_weights(copy, other)


def interrupt(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Send Ctrl-C to the run at a step."""
    known = TrainingLoop._step

    def stopping(self: TrainingLoop, *arguments: Any) -> None:
        known(self, *arguments)
        if self.progress.step == step:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(TrainingLoop, "_step", stopping)


def test_interrupted_run_gets_another_length(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        interrupt(patch, 5)
        with pytest.raises(Stopped):
            train(folder, config(run, duration="40 steps"), quiet=True)
    outcome = resume(run, duration="10 steps", quiet=True)
    assert outcome.steps == 10
    assert (outcome.legs[0].trained, outcome.legs[0].result) == (5, None)
    assert "shortened from 40 steps to 10 steps, from step 5" in (run / "report.html").read_text()


def test_cooldown_is_left_out(folder: Path, tmp_path: Path) -> None:
    """An extended run continues before its cool-down, and ends with the weights of a run of the new length."""
    long, run = tmp_path / "long", tmp_path / "run"
    train(folder, config(long, **WSD, duration="24 steps"), quiet=True)
    train(folder, config(run, **WSD), quiet=True)
    assert [path.name for path in state.list_states(run / "before_cooldown")] == ["step-000000009"]
    once = Path(shutil.copytree(run, tmp_path / "once"))
    outcome = resume(run, duration="24 steps", quiet=True)
    assert same_weights(run, long, "last.safetensors")
    assert rates(run) == rates(long)
    assert outcome.legs[1].first_step == 9
    assert "state before the cool-down; the 3 steps after it are replaced" in outcome.legs[1].text
    assert {line["step"] for line in records(once, "train")} == set(range(1, 13))
    kept = [json.loads(line)["step"] for line in (run / "metrics-1.jsonl").read_text().splitlines()]
    assert max(kept) == 12
    shutil.rmtree(once / "before_cooldown")
    resumed = resume(once, duration="24 steps", quiet=True)
    assert resumed.legs[1].first_step == 12
    assert "goes from 0 to" in resumed.legs[1].text


def test_cooldown_has_the_best_weights(folder: Path, tmp_path: Path) -> None:
    """Those of the cool-down stay, although its steps are repeated, until there are better ones."""
    run = tmp_path / "run"
    train(folder, config(run, **WSD, best_by="loss"), quiet=True)
    before = result(run)["best"]
    weights = load_file(run / "best.safetensors")
    stored = description(run)
    assert before["step"] == 12
    path, progress = state.newest_state(run / "state")
    progress["best"]["value"] = -1.0  # better than any loss that follows
    (path / "progress.json").write_text(json.dumps(progress))
    sums = json.loads((path / "sums.json").read_text())
    (path / "sums.json").write_text(json.dumps({**sums, "progress.json": state.file_digest(path / "progress.json")}))
    outcome = resume(run, duration="24 steps", quiet=True)
    assert all(tensor.equal(weights[name]) for name, tensor in load_file(run / "best.safetensors").items())
    assert result(run)["best"]["step"] == 12
    assert any(text.startswith("no evaluation after 12 steps was better") for text in outcome.selection)
    assert any("the best of 10 evaluations" in text for text in outcome.selection)
    assert stored["config"]["warmup"] == "2 steps"


def test_early_stopped_run(folder: Path, tmp_path: Path) -> None:
    """The counter of `patience` starts again."""
    run = tmp_path / "run"
    stopped = train(folder, config(run, duration="40 steps", lr=1e-9, patience=1, best_by="loss"), quiet=True)
    assert stopped.steps < 40
    assert resume(run, quiet=True).steps == stopped.steps
    assert stopped.steps < resume(run, duration="60 steps", quiet=True).steps <= 60


def test_without_validation_images(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    train(folder, config(run, val_fraction=0.0, test_fraction=0.0, evaluate_every=None), quiet=True)
    first = (run / "best.safetensors").read_bytes()
    with monkeypatch.context() as patch:
        interrupt(patch, 15)
        with pytest.raises(Stopped):
            resume(run, duration="20 steps", quiet=True)
    assert (run / "best.safetensors").read_bytes() == first  # the model of the first result can still be used
    resume(run, quiet=True)
    assert (run / "best.safetensors").read_bytes() != first


def test_learning_rate_search(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = {"lr_candidates": (1e-3, 1e-4), "dev_fraction": 0.2, "candidate_duration": "50%"}
    train(folder, config(run, **options), quiet=True)
    unfinished = Path(shutil.copytree(run, tmp_path / "unfinished"))
    rate = description(run)["config"]["lr"]
    outcome = resume(run, duration="18 steps", quiet=True)
    assert outcome.steps == 18
    assert description(run)["config"]["lr"] == rate
    values = description(unfinished)
    values["config"]["lr"] = None
    (unfinished / "config.json").write_text(json.dumps(values))
    with pytest.raises(VitreousError, match="still searching its learning rate"):
        resume(unfinished, duration="18 steps", quiet=True)


def test_files_of_another_version_and_damaged_files(copy: Path) -> None:
    """The error names the file, and says what to do."""
    result, description = (copy / "result.json").read_text(), json.loads((copy / "config.json").read_text())
    for content in ("null", '{"result": {"top1": 1}}'):
        (copy / "result.json").write_text(content)
        with pytest.raises(VitreousError, match=rf"^{copy}/result\.json is damaged .*: remove it, and resume the run"):
            resume(copy, duration="24 steps", quiet=True)
    (copy / "result.json").write_text(result)
    newer = {**description, "vitreous": "9.9", "config": {**description["config"], "new_field": 3}}
    (copy / "config.json").write_text(json.dumps(newer))
    with pytest.raises(VitreousError, match=rf"^{copy} was written by version '9\.9' of Vitreous, and this is"):
        resume(copy, duration="24 steps", quiet=True)
    (copy / "config.json").write_text("[]")
    with pytest.raises(VitreousError, match=rf"^{copy}: config\.json holds a list"):
        resume(copy, duration="24 steps", quiet=True)


def test_state_is_missing(copy: Path) -> None:
    shutil.rmtree(copy / "state")
    with pytest.raises(VitreousError, match=r"cannot be extended: it has no saved training state.*--from"):
        resume(copy, duration="20 steps", quiet=True)
    assert is_complete(RunDirectory(copy))


def test_progressive_stages_stay(folder: Path, tmp_path: Path) -> None:
    """Stages in percent of the old length are not stretched: a run at full size does not go back to a smaller one."""
    run = tmp_path / "run"
    train(folder, config(run, progressive=("8@50%",)), quiet=True)
    resume(run, duration="40 steps", quiet=True)
    assert description(run)["config"]["progressive"] == ["8@6 steps"]
