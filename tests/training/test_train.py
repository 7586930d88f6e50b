"""`vitreous train` on real files: its results, its output and its errors."""

import json
import resource
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import vitreous as package
from runs import STRONG, TINY, TINY_RUN, config, draw_folder, records
from vitreous import TrainConfig, VitreousError, load, train
from vitreous.evaluation.training_images import FILE as DIGESTS
from vitreous.serving.prediction import predict_images


def test_train_on_a_folder(folder: Path, tmp_path: Path, vitreous_process) -> None:
    result = vitreous_process("train", folder, *TINY_RUN, "--out", "run", "--seed", 1)
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    for word in ("3 classes", "chosen from the data", "lr", "accuracy on", "report.html", "vitreous predict"):
        assert word in result.stdout
    run = tmp_path / "run"
    names = {path.name for path in run.iterdir()} - {".lock"}
    weights = ("best.safetensors", "last.safetensors")
    assert names == {
        *("config.json", "metrics.jsonl", "state", *weights, "report.html", "result.json", "inspection"),
        DIGESTS,
    }
    stored = json.loads((run / "config.json").read_text())
    assert stored["config"]["seed"] == 1
    assert all(choice["why"] for choice in stored["choices"])
    assert "19.4% for validation, held out from train, stratified, seed 0" in stored["split"]
    found = json.loads((run / "result.json").read_text())["result"]
    assert found["top1"] > 0.8  # three colours are easy to classify
    # The result equals the predictions of the saved file.
    model = load(run / "best.safetensors")
    answers = [
        p.top[0].label == Path(p.image).parent.name for p in predict_images(model, sorted(folder.rglob("*.jpg")))
    ]
    assert np.mean(answers) > 0.8


def test_runs_with_the_same_seed_are_identical(folder: Path, tmp_path: Path) -> None:
    for name, seed, workers in (("a", 0, 0), ("b", 0, 2), ("c", 1, 0)):
        train(folder, config(tmp_path / name, **STRONG, seed=seed, workers=workers, cache="never"), quiet=True)
    first, second, third = ((tmp_path / name / "last.safetensors").read_bytes() for name in "abc")
    assert first == second
    assert first != third


def test_micro_batches_give_the_same_weights(folder: Path, tmp_path: Path) -> None:
    """Also with mixup and dropout: random draws of an image do not depend on its micro-batch."""
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(folder, config(whole, **STRONG, optimiser="sgd", lr=0.05), quiet=True)
    train(folder, config(parts, **STRONG, optimiser="sgd", lr=0.05, micro_batch=4), quiet=True)
    ours, theirs = load_file(whole / "last.safetensors"), load_file(parts / "last.safetensors")
    moved = load_file(whole / "best.safetensors")
    for name, tensor in ours.items():
        assert torch.allclose(tensor, theirs[name], atol=2e-6, rtol=1e-4), name
    assert moved.keys() == ours.keys()


def test_ema_weights_are_evaluated_too(folder: Path, tmp_path: Path) -> None:
    outcome = train(folder, config(tmp_path / "run", ema=0.9), quiet=True)
    lines = records(tmp_path / "run", "eval")
    assert [(line["step"], line["weights"]) for line in lines] == [(6, "raw"), (6, "ema"), (12, "raw"), (12, "ema")]
    assert {line["images"] for line in lines} == {outcome.result.images} == {14}


def test_several_labels_from_a_manifest(folder: Path, tmp_path: Path) -> None:
    rows = ["path,labels"]
    for number, path in enumerate(sorted(folder.rglob("*.jpg"))):
        rows.append(f"{path},{path.parent.name}|{'gerade' if number % 2 else 'ungerade'}")
    manifest = tmp_path / "manifest.csv"
    manifest.write_text("\n".join(rows), encoding="utf-8")
    outcome = train(manifest, config(tmp_path / "run", duration="30 steps", allow_outside_files=True), quiet=True)
    stored = json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    assert (stored["loss"], stored["best_by"]) == ("sigmoid", "map")
    assert outcome.result.top1 is None
    assert 0.4 < outcome.result.map <= 1
    assert load(tmp_path / "run").config.num_classes == 5


def test_every_setting_can_be_given(folder: Path, tmp_path: Path) -> None:
    """One run with all settings given."""
    outcome = train(
        folder,
        config(
            tmp_path / "run",
            optimiser="muon",
            schedule="rsqrt",
            warmup="2 steps",
            cooldown="25%",
            rsqrt_timescale="64 examples",
            layer_decay=0.8,
            lr_multipliers=("head.*=2",),
            freeze=("patch_embed.*",),
            clip=None,
            balanced=True,
            three_augment=True,
            jitter=0.3,
            position="sincos-2d",
            registers=2,
            pool="map",
            qk_norm=True,
            layer_scale=0.1,
            image_size=(16, 24),
            best_by="loss",
            profile=True,
            compile="no",
            deterministic=False,
        ),
        quiet=True,
    )
    assert outcome.steps == 12
    trace = json.loads((tmp_path / "run" / "profile.json").read_text())
    assert len(trace["traceEvents"]) > 100
    model = load(outcome.run)
    assert model.config.registers == 2
    assert model.config.image_size == (16, 24)


@pytest.mark.parametrize(
    "changes",
    [
        {"attention": "axial", "position_at": "every-layer", "image_size": (16, 24), "registers": 1},
        {"attention": "axial", "position": "sincos-2d", "position_at": "every-layer-shared"},
        {"position": "relative", "position_at": "every-layer-shared"},
    ],
    ids=str,
)
def test_attention_and_positions_of_a_run(folder: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    """The trained model is saved, loaded and evaluated with these settings."""
    outcome = train(folder, config(tmp_path / "run", duration="2 steps", **changes), quiet=True)
    found = load(outcome.run).config
    for name, value in changes.items():
        assert getattr(found, name) == value
    assert outcome.result is not None


def test_patience(folder: Path, tmp_path: Path) -> None:
    outcome = train(
        folder,
        config(tmp_path / "run", duration="500 steps", evaluate_every="5 steps", patience=2, lr=1e-30, ema=0.0),
        quiet=True,
    )
    assert outcome.steps == 15
    assert "no improvement" in records(tmp_path / "run", "event")[0]["text"]


def test_without_validation_images(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    outcome = train(folder, config(run, val_fraction=0.0, evaluate_every=None), quiet=True)
    assert outcome.result is None
    assert load(run).config.num_classes == 3
    assert (run / "report.html").is_file()


def test_tensorboard_and_wandb(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensorboard = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = tmp_path / "run"
    train(folder, config(run, tensorboard=True, wandb="tests", ema=0.9), quiet=True)
    events = tensorboard.EventAccumulator(str(run / "tensorboard")).Reload()
    assert {"train/loss", "train/lr", "val/raw/top1", "val/ema/loss"} <= set(events.Tags()["scalars"])
    assert [event.step for event in events.Scalars("val/raw/top1")] == [6, 12]
    assert list((run / "wandb").glob("offline-run-*/*.wandb"))


# ---------------------------------------------------------------- unreadable images


def broken(folder: Path, target: Path, count: int) -> Path:
    shutil.copytree(folder, target)
    for number, path in enumerate(sorted(target.rglob("*.jpg"))[5 : 5 + count]):
        path.write_bytes(path.read_bytes()[:300] if number % 2 else b"not an image")
    return target


@pytest.mark.parametrize("cache", ["always", "never"])
def test_unreadable_images_are_listed_and_replaced(folder: Path, tmp_path: Path, cache: str) -> None:
    data = broken(folder, tmp_path / "data", 2)
    run = tmp_path / "run"
    outcome = train(data, config(run, cache=cache, workers=0), quiet=True)  # 1% of 72 images is less than 2
    lines = (run / "bad_images.txt").read_text().splitlines()
    assert len(lines) == 2
    assert "005.jpg" in lines[0] + lines[1]
    val_bad = sum(line.startswith("val\t") for line in lines)
    assert outcome.result.images == 14 - val_bad
    assert "2 images could not be read" in (run / "report.html").read_text()


def test_too_many_unreadable_images_are_an_error(folder: Path, tmp_path: Path, vitreous) -> None:
    data = broken(folder, tmp_path / "data", 6)
    result = vitreous("train", data, *TINY_RUN, "--out", "run")
    assert result.returncode == 2
    assert "6 of 72 images cannot be read, and 5 are accepted (max_bad = 0.01 of the images" in result.stderr
    assert "005.jpg" in result.stderr
    assert not (tmp_path / "run").exists()


def test_no_unreadable_image_is_accepted_with_max_bad_0(folder: Path, tmp_path: Path) -> None:
    data = broken(folder, tmp_path / "data", 1)
    with pytest.raises(VitreousError, match="1 of 72 images cannot be read, and 0 are accepted"):
        train(data, config(tmp_path / "run", max_bad=0, workers=0), quiet=True)


def test_class_without_a_readable_image_is_an_error(folder: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(folder, data)
    (data / "zebra").mkdir()
    for number in range(4):
        (data / "zebra" / f"{number}.jpg").write_bytes(b"not an image")
    message = "none of the 3 training images of class 'zebra' can be read: .*zebra/.*not an image"
    with pytest.raises(VitreousError, match=message):
        train(data, config(tmp_path / "run", workers=0), quiet=True)


def test_image_deleted_during_the_run(folder: Path, tmp_path: Path) -> None:
    from vitreous.data.loading import TrainLoader
    from vitreous.data.open_data import open_data
    from vitreous.data.options import Augmentation
    from vitreous.data.sampling import TrainingSampler
    from vitreous.data.scan import ScanResult
    from vitreous.data.transforms import RandomResizedCrop

    data = tmp_path / "data"
    shutil.copytree(folder, data)
    source = open_data(data).train
    crop = RandomResizedCrop((16, 16), 3, Augmentation(crop=0.5, aspect=1.0, flip=True))

    def batch() -> Any:
        loader = TrainLoader(
            source, TrainingSampler(len(source), 0), ScanResult({}), crop, 16, 0, 0, torch.device("cpu")
        )
        return next(loader.batches(0, 1))

    whole = batch()
    index = int(TrainingSampler(len(source), 0).indices(3, 4))
    Path(source.name(index)).unlink()
    after = batch()
    assert [number for number, _ in after.bad] == [index]
    assert source.name(index) in after.bad[0][1]
    kept = [number for number in range(16) if number != 3]
    assert torch.equal(whole.rows[kept], after.rows[kept])
    assert not torch.equal(whole.rows[3], after.rows[3])
    assert after.labels[3] == source.labels[(index + 1) % len(source)]


# ---------------------------------------------------------------- errors


def test_loss_is_nan(folder: Path, tmp_path: Path, vitreous) -> None:
    options = ("--lr", "1e30", "--clip", "None", "--warmup", "0%", "--ema", "0", "--optimiser", "sgd")
    result = vitreous("train", folder, *TINY_RUN, *options, "--out", "run")
    assert result.returncode == 2
    assert "NaN or infinite at step" in result.stderr
    assert "Traceback" not in result.stderr
    named = (tmp_path / "run" / "bad_batch.txt").read_text().splitlines()
    assert len(named) == 16
    assert all(Path(name).is_file() for name in named)


def npz(path: Path, labels: list[int], classes: int = 2) -> Path:
    images = np.random.default_rng(0).integers(0, 256, (len(labels), 8, 8), dtype=np.uint8)
    np.savez(path, images=images, labels=np.array(labels), classes=np.array([f"c{i}" for i in range(classes)]))
    return path


@pytest.mark.parametrize(
    ("prepare", "arguments", "message"),
    [
        (lambda p: p / "nowhere", (), "no such file or folder"),
        (lambda p: npz(p / "range.npz", [0, 1, 7, 0, 1] * 4), (), "7"),
        (lambda p: npz(p / "single.npz", [0] * 20, 1), (), "one class"),
        (lambda p: npz(p / "image.npz", [0], 1), (), "image"),
        (lambda p: npz(p / "fine.npz", [0, 1] * 20), ("--lrr", "1"), "--lr"),
        (lambda p: npz(p / "fine.npz", [0, 1] * 20), ("--batch-size", "0"), "batch_size = 0"),
        (lambda p: npz(p / "fine.npz", [0, 1] * 20), ("--duration", "5 parsecs"), "parsecs"),
        (lambda p: npz(p / "fine.npz", [0, 1] * 20), ("--model", "Q/16"), "Q/16"),
        (lambda p: npz(p / "fine.npz", [0, 1] * 20), ("--recipe", "digitz"), "did you mean digits"),
        (lambda p: npz(p / "fine.npz", [0, 1] * 20), ("--image-size", "9", "--patch-size", "4"), "9"),
        (lambda p: npz(p / "fine.npz", [0, 1] * 20), ("--device", "cuda:99"), "cuda:99"),
        (lambda p: npz(p / "fine.npz", [0, 1] * 20), ("--optimiser", "muon", "--model", "BiT-R50x1"), "muon"),
        (lambda p: npz(p / "fine.npz", [0, 1] * 20), ("--best-by", "map"), "best_by"),
        (lambda p: npz(p / "fine.npz", [0, 1] * 20), ("--freeze", "nothing.*"), "nothing.*"),
        (lambda p: npz(p / "fine.npz", [0, 1] * 20), ("--warmup", "200%"), "warm"),
        (lambda p: npz(p / "fine.npz", [0, 1] * 20), ("--out", "."), "exists already"),
    ],
)
def test_command_errors(tmp_path: Path, vitreous, prepare: Any, arguments: Any, message: str) -> None:
    before = {path for path in tmp_path.rglob("*") if path.suffix != ".npz"}
    result = vitreous("train", prepare(tmp_path), *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert {path for path in tmp_path.rglob("*") if path.suffix != ".npz"} == before  # no files are left


def test_empty_class_is_an_error(folder: Path, tmp_path: Path, vitreous) -> None:
    shutil.copytree(folder, tmp_path / "data")
    (tmp_path / "data" / "leer").mkdir()
    result = vitreous("train", "data", *TINY_RUN)
    assert result.returncode == 2
    assert "leer" in result.stderr


def test_existing_run_directory_is_an_error(folder: Path, tmp_path: Path) -> None:
    train(folder, config(tmp_path / "run"), quiet=True)
    with pytest.raises(VitreousError, match="exists already; to continue it: vitreous train --resume"):
        train(folder, config(tmp_path / "run"), quiet=True)


def test_full_disk(folder: Path, tmp_path: Path, vitreous, vitreous_process) -> None:
    """A limit on the file size makes writes fail, as a full disk does."""

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))

    result = vitreous_process("train", folder, *TINY_RUN, "--workers", "0", "--out", "run", preexec_fn=limited)
    assert result.returncode == 2
    assert "File too large" in result.stderr
    assert "Traceback" not in result.stderr
    assert not list((tmp_path / "run").rglob("*.tmp"))
    result = vitreous("train", "--resume", "run")  # without the limit
    assert result.returncode == 0, result.stderr


def test_directory_without_write_permission(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(VitreousError, match="not a folder"):
        train(folder, config(tmp_path / "file" / "run"), quiet=True)


def test_misspelt_field_names() -> None:
    with pytest.raises(VitreousError, match="no field 'batchsize'; did you mean 'batch_size'"):
        TrainConfig().with_(batchsize=3)
    assert TrainConfig.from_flat(json.loads(json.dumps(package.recipe("digits").flat()))) == package.recipe("digits")


def test_bf16_on_a_cpu_is_tried_in_a_child_process(folder: Path, tmp_path: Path) -> None:
    from vitreous.utils.device import pick_precision

    precision, note = pick_precision("bf16", torch.device("cpu"))
    assert (precision, note is None) in {("bf16", True), ("fp32", False)}


def test_fp8_states_its_error() -> None:
    from vitreous.utils.device import pick_precision

    precision, note = pick_precision("fp8", torch.device("cuda"))
    assert precision == "fp8"
    assert "4 to 7%" in str(note)


def test_grey_tiny_and_tall_images(tmp_path: Path) -> None:
    """Chosen settings work for unusual data."""
    random = np.random.default_rng(1)
    for shape, channels in (((5, 7), 1), ((40, 12), 3), ((300, 200), 3)):
        pixels = random.integers(0, 256, (12, *shape, channels), dtype=np.uint8)
        path = tmp_path / f"{shape[0]}.npz"
        np.savez(path, images=pixels, labels=np.arange(12) % 2)
        out = str(tmp_path / f"run-{shape[0]}")
        train(path, TrainConfig().with_(duration="2 steps", out=out, device="cpu"), quiet=True)
        model = load(out)
        assert model.config.channels == channels


def test_images_of_all_modes(tmp_path: Path) -> None:
    """Palette, alpha, 16 bits, CMYK."""
    draw_folder(tmp_path / "data", images=6)
    red = tmp_path / "data" / "rot"
    Image.new("P", (30, 20)).save(red / "p.PNG")
    Image.new("RGBA", (30, 20), (1, 2, 3, 4)).save(red / "a.png")
    Image.new("CMYK", (30, 20)).save(red / "c.jpeg")
    Image.new("I;16", (30, 20)).save(red / "i.tiff")
    Image.new("RGB", (1, 1)).save(red / "one.bmp")
    (red / "link.png").symlink_to(red / "p.PNG")
    outcome = train(tmp_path / "data", config(tmp_path / "run", val_fraction=0.2), quiet=True)
    assert not (tmp_path / "run" / "bad_images.txt").exists()
    assert outcome.steps == 12


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"precision": "fp16"}, "precision = 'fp16'"),
        ({"batch_size": "16"}, "batch_size = '16'"),
        ({"flip": 0}, "flip = 0"),
        ({"freeze": "head.*"}, "freeze = 'head.*'"),
        ({"best_by": "foo"}, "best_by = 'foo'"),
        ({"magnitude": 9.0, "randaugment": 0}, "magnitude = 9.0"),
        ({"aspect": 2.0, "crop": 1.0}, "aspect = 2.0"),
        ({"micro_batch": 64}, "micro_batch = 64"),
        ({"balanced": True, "class_weights": "balanced"}, "use one of them"),
        ({"profile": True, "duration": "3 steps"}, "profile"),
        ({"image_column": "x"}, "no columns"),
    ],
)
def test_invalid_fields(folder: Path, tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(VitreousError, match=message.replace("*", r"\*")):
        train(folder, **{**TINY, "out": tmp_path / "run", **fields}, quiet=True)
    assert not (tmp_path / "run" / "state").exists()


def test_numpy_numbers_and_paths_are_accepted(folder: Path, tmp_path: Path) -> None:
    fields = {**TINY, "lr": np.float32(1e-3), "image_size": [16, 16], "duration": 1, "evaluate_every": None}
    outcome = train(folder, out=tmp_path / "run", quiet=True, **fields)
    assert outcome.steps == round(58 / 16)


def test_loss_decides_between_equal_evaluations(folder: Path, tmp_path: Path) -> None:
    train(folder, config(tmp_path / "run", duration="60 steps", ema=0.0, lr=3e-3), quiet=True)
    lines = records(tmp_path / "run", "eval")
    best = json.loads((tmp_path / "run" / "result.json").read_text())["best"]
    top = max(line["top1"] for line in lines)
    assert best["loss"] == min(line["loss"] for line in lines if line["top1"] == top)


def test_open_file_limit(tmp_path: Path, vitreous_process) -> None:
    draw_folder(tmp_path / "data", images=1000, side=9)

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    options = ("--duration", "2steps", "--workers", "2", "--evaluate-every", "2steps")
    result = vitreous_process("train", "data", *TINY_RUN, *options, preexec_fn=limited)
    assert result.returncode == 0, result.stderr


def test_no_positive_labels_in_validation(folder: Path, tmp_path: Path) -> None:
    """Mean average precision is undefined there: the last weights are kept as the best."""
    paths = sorted(folder.rglob("*.jpg"))
    rows = [{"path": str(p), "labels": [p.parent.name], "split": "train"} for p in paths[:40]]
    rows += [{"path": str(p), "labels": [], "split": "val"} for p in paths[40:]]
    manifest = tmp_path / "manifest.jsonl"
    manifest.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    outcome = train(manifest, config(tmp_path / "run", allow_outside_files=True), quiet=True)
    assert outcome.result.map is None
    assert (tmp_path / "run" / "report.html").is_file()


def test_predictions_of_a_multi_label_model(folder: Path, tmp_path: Path) -> None:
    paths = sorted(folder.rglob("*.jpg"))
    rows = [{"path": str(p), "labels": [p.parent.name, "farbe"]} for p in paths]
    manifest = tmp_path / "manifest.jsonl"
    manifest.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    train(manifest, config(tmp_path / "run", duration="60 steps", lr=3e-3, allow_outside_files=True), quiet=True)
    model = load(tmp_path / "run")
    assert model.multi_label
    (found,) = predict_images(model, paths[:1], top=4)
    answers = {answer.label: answer.probability for answer in found.top}
    assert answers["farbe"] > 0.7
    assert sum(answers.values()) > 1.2  # no softmax
    package.save(model, tmp_path / "again.safetensors")
    assert load(tmp_path / "again.safetensors").multi_label


def test_printed_next_commands_work(folder: Path, tmp_path: Path, vitreous) -> None:
    result = vitreous("train", folder, *TINY_RUN, "--duration", "3steps", "--evaluate-every", "3steps", "--out", "run")
    lines = result.stdout.split("what to try next:")[1].split("\n")
    commands = [line.strip().removeprefix("vitreous ").split() for line in lines if line.strip()]
    assert len(commands) >= 2
    photo = str(next(folder.rglob("*.jpg")))
    for command in commands:
        result = vitreous(*[photo if word == "PHOTO.jpg" else word for word in command])
        assert result.returncode == 0, (command, result.stderr)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "G/14", "image_size": 2800, "width": None, "depth": None}, "use a smaller model or image_size$"),
        ({"micro_batch": 4_000_000, "batch_size": 4_000_000}, r"fewer images at a time \(micro_batch\)"),
    ],
)
def test_run_that_does_not_fit_into_memory_is_an_error(
    folder: Path, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    """The system would kill the process when memory runs out."""
    none = dict.fromkeys(("patch_size", "heads", "mlp_dim")) if "model" in changes else {}
    with pytest.raises(VitreousError, match=f"would take about .* GiB of memory .*{words}"):
        train(folder, config(tmp_path / "run", **none, **changes), quiet=True)
    assert not (tmp_path / "run").exists()
