"""A run that is killed at any time and resumed ends with identical weights."""

import json
import random
import shutil
import signal
from pathlib import Path

import pytest
from safetensors.torch import load_file

from runs import TINY_RUN, complete, kill_at, start, step_of
from vitreous import TrainConfig, VitreousError, load
from vitreous.training import state
from vitreous.training.train import resume

# Images are decoded by workers at every step, and the state is saved every tenth of a second.
WORKING = (*TINY_RUN, "--workers", "2", "--cache", "never", "--save-minutes", "0.002", "--crop", "0.5")
STRONG_FLAGS = (
    *("--dropout", "0.1", "--stochastic-depth", "0.2", "--mixup", "0.5", "--cutmix", "1", "--erase", "0.5"),
    *("--progressive", "8@30%", "12@30%"),
)


@pytest.fixture(scope="module")
def uninterrupted(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("whole")
    assert "accuracy on" in complete("train", folder, *WORKING, *STRONG_FLAGS, "--out", "run", cwd=place)
    return place / "run"


def same_weights(one: Path, other: Path) -> bool:
    """Whether last weights, best weights and evaluations are identical."""
    files = all(
        (one / name).read_bytes() == (other / name).read_bytes() for name in ("last.safetensors", "best.safetensors")
    )
    curves = [
        [(r["step"], r["split"], r["weights"], r["loss"]) for r in records(run) if r["kind"] == "eval"]
        for run in (one, other)
    ]
    return files and curves[0] == curves[1]


def records(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("seed", [0, 1])
def test_killed_at_random_steps(uninterrupted: Path, folder: Path, tmp_path: Path, seed: int) -> None:
    steps = sorted(random.Random(seed).sample(range(1, 39), 3))
    run = tmp_path / "run"
    kill_at(start("train", folder, *WORKING, *STRONG_FLAGS, "--out", "run", cwd=tmp_path), run, steps[0])
    for step in steps[1:]:
        kill_at(start("train", "--resume", "run", cwd=tmp_path), run, step)
    complete("train", "--resume", "run", cwd=tmp_path)
    assert same_weights(uninterrupted, run)
    assert [r["step"] for r in records(run) if r["kind"] == "train"] == sorted(
        {r["step"] for r in records(run) if r["kind"] == "train"}
    )
    assert len(state.list_states(run / "state")) <= 2
    assert not list(run.rglob("*.tmp"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_saves_and_prints_the_resume_command(
    uninterrupted: Path, folder: Path, tmp_path: Path, number: int
) -> None:
    run = tmp_path / "run"
    options = (*WORKING, *STRONG_FLAGS, "--save-minutes", "60", "--out", "run")
    process = start("train", folder, *options, cwd=tmp_path)
    _, error = kill_at(process, run, 12, number)
    assert process.returncode == 128 + number
    assert "vitreous train --resume run" in error
    assert "Traceback" not in error
    reached = step_of(run)
    assert [path.name for path in state.list_states(run / "state")] == [f"step-{reached:09d}"]
    outcome = resume(run, quiet=True)
    assert outcome.steps == 40
    for name, tensor in load_file(uninterrupted / "last.safetensors").items():
        assert tensor.equal(load_file(run / "last.safetensors")[name])


def test_damaged_state_is_skipped(uninterrupted: Path, folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    kill_at(start("train", folder, *WORKING, *STRONG_FLAGS, "--out", "run", cwd=tmp_path), run, 25)
    newest, older = state.list_states(run / "state")
    for damage in ("cut", "flipped", "missing"):
        again = tmp_path / damage
        shutil.copytree(run, again)
        file = again / "state" / newest.name / "tensors.safetensors"
        content = file.read_bytes()
        match damage:
            case "cut":
                file.write_bytes(content[: len(content) // 2])
            case "flipped":
                file.write_bytes(content[:5000] + bytes([content[5000] ^ 1]) + content[5001:])
            case "missing":
                file.unlink()
        with pytest.warns(UserWarning, match=f"{newest.name}.*continuing from {older.name}"):
            resume(again, quiet=True)
        assert same_weights(uninterrupted, again)


def test_killed_before_the_first_state(uninterrupted: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(uninterrupted, run)
    shutil.rmtree(run / "state")
    for name in ("result.json", "report.html", "best.safetensors", "last.safetensors"):
        (run / name).unlink()
    resume(run, quiet=True)
    assert same_weights(uninterrupted, run)


def test_resume_of_a_complete_run(uninterrupted: Path, vitreous) -> None:
    before = (uninterrupted / "last.safetensors").stat().st_mtime_ns
    result = vitreous("train", "--resume", uninterrupted)
    assert result.returncode == 0
    assert "complete" in result.stderr
    assert (uninterrupted / "last.safetensors").stat().st_mtime_ns == before


def test_other_settings_are_an_error_that_lists_them(uninterrupted: Path, vitreous, folder: Path) -> None:
    result = vitreous("train", "--resume", uninterrupted, "--lr", "0.5", "--seed", "3", "--workers", "0")
    assert result.returncode == 2
    assert "lr: " in result.stderr
    assert "0.5 now" in result.stderr
    assert "seed: 0 in the run, 3 now" in result.stderr
    assert "workers" not in result.stderr  # may differ on resume


def test_other_data_is_an_error(uninterrupted: Path, tmp_path: Path, folder: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "data"
    shutil.copytree(uninterrupted, run)
    (run / "result.json").unlink()
    shutil.copytree(folder, other)
    next((other / "rot").iterdir()).unlink()
    with pytest.raises(VitreousError, match="the data has changed since"):
        resume(run, data=other, quiet=True)
    shutil.rmtree(other)
    shutil.copytree(folder, other)  # moved, with the same content
    resume(run, data=other, quiet=True)
    assert same_weights(uninterrupted, run)


def test_renamed_images_are_an_error(uninterrupted: Path, tmp_path: Path, folder: Path) -> None:
    run, other = tmp_path / "run", tmp_path / "data"
    shutil.copytree(uninterrupted, run)
    (run / "result.json").unlink()
    shutil.copytree(folder, other)
    first = sorted((other / "rot").iterdir())[0]
    first.rename(first.with_name("000b.jpg"))  # the same number, in the same order
    with pytest.raises(VitreousError, match="the data has changed since"):
        resume(run, data=other, quiet=True)


def test_cache_setting_is_kept(uninterrupted: Path, vitreous) -> None:
    """Cached images are cropped on the device and others by Pillow, with different rounding."""
    assert json.loads((uninterrupted / "config.json").read_text())["config"]["cache"] == "never"
    result = vitreous("train", "--resume", uninterrupted, "--cache", "always")
    assert result.returncode == 2
    assert "cache: 'never' in the run, 'always' now" in result.stderr


def test_other_device_type_is_an_error(uninterrupted: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(uninterrupted, run)
    (run / "result.json").unlink()
    stored = json.loads((run / "config.json").read_text())
    stored["environment"]["gpu"] = "some GPU"
    (run / "config.json").write_text(json.dumps(stored))
    with pytest.raises(VitreousError, match="the run was started on cuda"):
        resume(run, quiet=True)


def test_digits_with_a_folder_of_that_name(tmp_path: Path) -> None:
    (tmp_path / "digits").mkdir()
    process = start(
        "train", "digits", *TINY_RUN, "--image-size", "8", "--duration", "5000steps", "--out", "run", cwd=tmp_path
    )
    _, error = kill_at(process, tmp_path / "run", 3, signal.SIGINT)
    assert process.returncode == 130, error
    process = start("train", "--resume", "run", cwd=tmp_path)
    _, error = kill_at(process, tmp_path / "run", step_of(tmp_path / "run") + 30, signal.SIGINT)
    assert process.returncode == 130, error


def test_image_that_became_unreadable(
    uninterrupted: Path, folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run, data = tmp_path / "run", tmp_path / "data"
    shutil.copytree(uninterrupted, run)
    (run / "result.json").unlink()
    shutil.copytree(folder, data)
    sorted((data / "rot").iterdir())[3].write_bytes(b"")
    config = TrainConfig.from_flat(json.loads((run / "config.json").read_text())["config"]).with_(max_bad=0.05)
    resume(run, config, data=data)
    assert "1 image cannot be read" in capfd.readouterr().err
    assert "003.jpg" in (run / "bad_images.txt").read_text()


def test_run_in_use_is_an_error(folder: Path, tmp_path: Path, vitreous) -> None:
    run = tmp_path / "run"
    process = start(
        "train", folder, *TINY_RUN[:-6], "--duration", "100000steps", "--device", "cpu", "--out", "run", cwd=tmp_path
    )
    try:
        while step_of(run) < 1:
            assert process.poll() is None
        result = vitreous("train", "--resume", "run")
        assert result.returncode == 2
        assert "in use" in result.stderr
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(("path", "message"), [("nowhere", "no such run directory"), (".", "not a run directory")])
def test_path_without_a_run(vitreous, path: str, message: str) -> None:
    result = vitreous("train", "--resume", path)
    assert result.returncode == 2
    assert message in result.stderr


def test_load_of_a_run_gives_the_best_weights(uninterrupted: Path) -> None:
    model = load(uninterrupted)
    assert model.labels == ("blau", "grün", "rot")
    assert model.preprocessing.size == (16, 16)


def test_resume_while_old_workers_are_alive(folder: Path, tmp_path: Path) -> None:
    """Its partial files are removed."""
    run = tmp_path / "run"
    kill_at(start("train", folder, *WORKING, "--duration", "4000steps", "--out", "run", cwd=tmp_path), run, 10)
    (run / ".best.safetensors.123.tmp").write_bytes(b"half of it")
    process = start("train", "--resume", "run", cwd=tmp_path)
    _, error = kill_at(process, run, step_of(run) + 60, signal.SIGTERM)
    assert process.returncode == 128 + signal.SIGTERM, error
    assert not list(run.rglob("*.tmp"))
