"""Runs on the user's own data, with callbacks: training, interruption, resume."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import command
import vitreous
from runs import complete
from vitreous.errors import VitreousError
from vitreous.training.callbacks import Callback, TrainingRun
from vitreous.weights.safetensors_file import SafetensorsFile

SMALL: dict[str, Any] = {
    "width": 16,
    "depth": 1,
    "heads": 2,
    "mlp_dim": 16,
    "patch_size": 4,
    "image_size": 8,
    "batch_size": 16,
    "quiet": True,
    "workers": 0,
}
SCRIPT = """
import os, sys, time
import numpy as np, torch
import vitreous

class Stripes:
    def __len__(self):
        return 96
    def __getitem__(self, index):
        noise = np.random.default_rng(index).integers(0, 60, (8, 8), dtype=np.uint8)
        noise[::2] += 120
        return (noise.T.copy() if index % 2 else noise), ("vertical" if index % 2 else "horizontal")

class Net(torch.nn.Sequential):
    def __init__(self, num_classes):
        layers = torch.nn.Flatten(), torch.nn.Linear(64, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.2)
        super().__init__(*layers, torch.nn.GELU(), torch.nn.Linear(16, num_classes))

def focal(logits, targets):
    loss = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
    return (1 - torch.exp(-loss)) ** 2 * loss

class Halve(vitreous.Callback):
    count = 0
    def on_step(self, run):
        self.count += 1
        time.sleep(float(os.environ.get("STEP_SECONDS", 0)))
        if self.count % 20 == 0:
            run.lr_scale /= 2
            run.log(count=self.count)
    def state_dict(self):
        return {"count": self.count}
    def load_state_dict(self, state):
        self.count = state["count"]

if __name__ == "__main__":
    vitreous.train(Stripes, model=Net, loss=focal, callbacks=[Halve], out=sys.argv[1], duration="60 steps",
                   save_minutes=0.002, batch_size=16, workers=0)
"""


def weights(run: Path) -> dict[str, bytes]:
    file = SafetensorsFile(run / "last.safetensors")
    return {name: file[name].numpy().tobytes() for name in file}


class Stripes:
    """Horizontal or vertical stripes, in memory."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Any, int]:
        noise = np.random.default_rng(index).integers(0, 60, (8, 8), dtype=np.uint8)
        noise[::2] += 120
        return (noise.T.copy() if index % 2 else noise), index % 2


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_a_script_with_own_parts_is_killed_resumes_to_the_bit_and_is_evaluated(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(SCRIPT)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run([sys.executable, script, whole], check=True, capture_output=True)
    slow = {**os.environ, "STEP_SECONDS": "0.05"}
    process = subprocess.Popen([sys.executable, script, killed], env=slow, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list((killed / "state").glob("step-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.7)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (killed / "result.json").exists()
    resume = [sys.executable, "-m", "vitreous", "train", "--resume", str(killed)]
    done = subprocess.run(resume, cwd=os.sep, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "continuing from step" in done.stderr
    assert weights(killed) == weights(whole)
    records = [json.loads(line) for line in (killed / "metrics.jsonl").read_text().splitlines()]
    assert [r["count"] for r in records if r["kind"] == "callback"] == [20, 40, 60]
    result = json.loads((killed / "result.json").read_text())
    assert result["result"] == json.loads((whole / "result.json").read_text())["result"]
    typed = ["evaluate", f"{script}:Stripes", "--model", str(killed), "--json"]
    refused = command.vitreous(*typed, cwd=tmp_path)
    assert refused.returncode == 2
    assert "--trust-code" in refused.stderr
    evaluated = json.loads(complete(*typed, "--trust-code", cwd=tmp_path))
    assert evaluated["data"] == f"{script}:Stripes"
    assert evaluated["images"] == result["result"]["images"], "the images of the run's test split"
    assert evaluated["scores"][0]["top1"] == result["result"]["top1"] > 0.9


class Stop(Callback):
    def on_step(self, run: TrainingRun) -> None:
        if run.step == 7:
            run.stop("enough")


class Recorder(Callback):
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def on_start(self, run: TrainingRun) -> None:
        self.calls.append(("start", run.step, run.steps))

    def on_evaluation(self, run: TrainingRun, metrics: Any) -> None:
        self.calls.append(("evaluation", run.step, sorted(metrics)))
        assert 0 <= metrics["raw"]["top1"] <= 1

    def on_checkpoint(self, run: TrainingRun, path: Path) -> None:
        self.calls.append(("checkpoint", run.step, path.parent == run.directory / "state"))

    def on_end(self, run: TrainingRun) -> None:
        self.calls.append(("end", run.step, round(run.epoch, 2)))


def test_callbacks_see_the_run_and_can_stop_it(tmp_path: Path) -> None:
    recorder = Recorder()
    settings = {**SMALL, "duration": "30 steps", "evaluate_every": "5 steps", "ema": 0.9}
    outcome = vitreous.train(Stripes(), callbacks=[recorder, Stop], out=tmp_path / "run", **settings)
    assert outcome.steps == 7
    kinds = [call[0] for call in recorder.calls]
    assert kinds == ["start", "evaluation", "evaluation", "end", "checkpoint"]
    assert recorder.calls[0] == ("start", 0, 30)
    assert recorder.calls[2] == ("evaluation", 7, ["ema", "raw"]), "the last weights are evaluated, too"
    text = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert "stopped by a callback: enough" in text
    assert "Python object: Stripes" in (tmp_path / "run" / "report.html").read_text()
    with pytest.raises(VitreousError, match=r"data=\.\.\."):
        vitreous.resume(tmp_path / "run", duration="40 steps", quiet=True)
    with pytest.raises(VitreousError, match=r"callbacks=\[\.\.\.\]"):
        vitreous.resume(tmp_path / "run", data=Stripes(), duration="40 steps", quiet=True)
    extended = vitreous.resume(
        tmp_path / "run", data=Stripes(), callbacks=[Recorder(), Stop()], duration="9 steps", quiet=True
    )
    assert extended.steps == 9


def test_the_learning_rate_follows_lr_scale(tmp_path: Path) -> None:
    rates = []

    class Change(Callback):
        def on_step(self, run: TrainingRun) -> None:
            rates.append(run.learning_rate)
            run.lr_scale = 0.5 if run.step < 3 else 0.0

    settings = {**SMALL, "duration": "5 steps", "schedule": "constant", "warmup": "0 steps", "lr": 0.01}
    vitreous.train(Stripes(), callbacks=[Change()], out=tmp_path / "run", **settings)
    assert rates == pytest.approx([0.01, 0.005, 0.005, 0.0, 0.0])


class Broken(Callback):
    def on_step(self, run: TrainingRun) -> None:
        raise ZeroDivisionError("in my code")


class NotJson(Callback):
    def state_dict(self) -> dict[str, Any]:
        return {"value": object()}


@pytest.mark.parametrize(
    ("callbacks", "message"),
    [
        ([Broken], "callback Broken.on_step: ZeroDivisionError: in my code"),
        ([NotJson()], "callback NotJson.state_dict: not JSON"),
        ([print], "is not a vitreous.Callback"),
        (Broken, "expected a list"),
    ],
)
def test_errors_of_callbacks_are_named(tmp_path: Path, callbacks: Any, message: str) -> None:
    with pytest.raises(VitreousError, match=message):
        vitreous.train(Stripes(), callbacks=callbacks, out=tmp_path / "run", duration="2 steps", **SMALL)


def test_a_script_that_trains_while_it_is_imported_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text("import vitreous\ndef data(): ...\nvitreous.train('digits')\n")
    with pytest.raises(VitreousError, match="__main__"):
        vitreous.train(f"{script}:data", quiet=True)


def test_other_data_are_refused_when_a_run_is_resumed(tmp_path: Path) -> None:
    class Fewer(Stripes):
        def __len__(self) -> int:
            return 62

    vitreous.train(Stripes(), out=tmp_path / "run", duration="3 steps", **SMALL)
    with pytest.raises(VitreousError, match="the data has changed"):
        vitreous.resume(tmp_path / "run", data=Fewer(), duration="5 steps", quiet=True)
