"""Masked-patch pre-training as a run: without classes, accumulated, killed and resumed, and fine-tuned."""

import json
import shutil
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import torch

import command
from helpers import draw
from runs import TINY_RUN, complete, config, kill_at, records, start
from vitreous import TrainConfig, VitreousError, finetune, load, open_data, resume, runs, save, train
from vitreous.data.options import UnlabelledReading
from vitreous.fast.eligibility import TRAINING, ineligibility_reason
from vitreous.models import VisionTransformer, ViTConfig
from vitreous.models.masked import draw_corruption
from vitreous.training.distributed import World
from vitreous.training.engine import Engine, find_unknown_code
from vitreous.training.loaders import build_loaders
from vitreous.training.plan import make_plan
from vitreous.training.trainer import build_engine
from vitreous.utils import random_keys
from vitreous.utils.progress import ProgressReporter

MASKED = {"objective": "masked-patches"}
MASKED_FLAGS = (
    *TINY_RUN,
    "--objective",
    "masked-patches",
    "--save-minutes",
    "0.002",
    "--dropout",
    "0.1",
    "--ema",
    "0.9",
)


@pytest.fixture(scope="module")
def flat(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images without class folders, with a file that is not an image."""
    place = tmp_path_factory.mktemp("flat") / "photos"
    place.mkdir()
    for number, path in enumerate(sorted(folder.rglob("*.jpg"))):
        shutil.copy(path, place / f"{number:03d}.jpg")
    (place / "notes.pdf").write_text("not an image")
    return place


@pytest.fixture(scope="module")
def uninterrupted(flat: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    place = tmp_path_factory.mktemp("whole")
    printed = complete("train", flat, *MASKED_FLAGS, "--out", "run", cwd=place)
    return place / "run", printed


def masked_config(out: Path = Path(), **changes: Any) -> TrainConfig:
    return config(out, **{**MASKED, **changes})


# ---------------------------------------------------------------- a run


def test_folder_without_classes(uninterrupted: tuple[Path, str]) -> None:
    run, printed = uninterrupted
    assert "58 train, 14 val images, used without labels" in printed
    assert "ignored: 1 document (&#x27;notes.pdf&#x27;)" in (run / "report.html").read_text()
    assert "the mean colour (3 bits per channel) of masked patches; 50% of the patches are corrupted" in printed
    assert "expect a higher value on new images" in " ".join(printed.split())
    assert "classes" not in printed
    assert "top1" not in printed
    assert "of the colours are right) on 14 val images" in printed
    result = json.loads((run / "result.json").read_text())["result"]
    assert result["top1"] is result["confusion"] is result["interval"] is None
    assert 0 < result["patch_accuracy"] < 1
    losses = [line["loss"] for line in records(run, "eval") if line["weights"] == "raw"]
    assert losses[-1] < losses[0] < 6.2382  # log 512: below that of guessing
    (row,) = runs(run)
    assert (row.status, row.metric, row.value) == ("complete", "loss", result["loss"])


def test_report(uninterrupted: tuple[Path, str], browser: Any) -> None:
    """Four pictures per image, and nothing about classes."""
    page = browser.new_page()
    page.goto((uninterrupted[0] / "report.html").as_uri())
    text = page.inner_text("body")
    assert "Masked patches" in text
    assert "accuracy of the colours of masked patches" in text
    for absent in ("Confusions", "Worst predictions", "recall", "Data check"):
        assert absent not in text
    assert page.locator("table.masked tbody tr").count() == 8
    shown = page.locator("table.masked img")
    assert shown.count() == 32
    assert page.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
    sources = [shown.nth(i).get_attribute("src") for i in range(4)]
    assert len(set(sources)) == 4
    page.close()


def test_killed_and_resumed(uninterrupted: tuple[Path, str], flat: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    kill_at(start("train", flat, *MASKED_FLAGS, "--save-minutes", "0.002", "--out", "run", cwd=tmp_path), run, 17)
    assert not (run / "result.json").exists()
    resume(run, quiet=True)
    for name in ("last.safetensors", "best.safetensors"):
        assert (run / name).read_bytes() == (uninterrupted[0] / name).read_bytes()
    curves = [[(r["step"], r["weights"], r["loss"]) for r in records(one, "eval")] for one in (run, uninterrupted[0])]
    assert curves[0] == curves[1]


def test_the_checkpoint(uninterrupted: tuple[Path, str], folder: Path, tmp_path: Path) -> None:
    """An encoder without a head, for `load`, `features` and fine-tuning; training can also be continued."""
    run = uninterrupted[0]
    model = load(run)
    assert type(model) is VisionTransformer
    assert model.config.num_classes == 0
    assert set(model.extras or {}) == {"mask_token", "patch_head.weight", "patch_head.bias"}
    tuned = finetune(folder, run, duration="12 steps", out=tmp_path / "tuned", device="cpu", quiet=True)
    assert tuned.result is not None
    assert tuned.result.top1 == 1
    complete("features", folder, tmp_path / "features", "--model", run, cwd=tmp_path)
    common: dict[str, Any] = {**MASKED, "start": run, "batch_size": 16, "device": "cpu", "quiet": True}
    further = train(folder, duration="1 step", lr=1e-9, out=tmp_path / "further", **common)
    before = json.loads((run / "result.json").read_text())["result"]
    assert further.result is not None
    assert further.result.loss == pytest.approx(before["loss"], abs=0.05)  # other validation images
    config_file = json.loads((tmp_path / "further" / "config.json").read_text())
    assert config_file["start"]["guesses"] == []
    other = train(folder, duration="1 step", patch_target="pixels", out=tmp_path / "other", **common)
    assert "a new layer that predicts masked patches is trained" in (tmp_path / "other" / "report.html").read_text()
    assert other.result is not None
    assert other.result.patch_accuracy is None


# ---------------------------------------------------------------- one step


def new_engine(folder: Path, **changes: Any) -> tuple[Engine, Any]:
    settings = masked_config(
        **{"optimiser": "sgd", "lr": 0.1, "clip": None, "ema": 0.0, "batch_size": 48, "dropout": 0.2, **changes}
    )
    data = open_data(folder, settings.data_reading)
    plan = make_plan(data, settings, World())
    loaders = build_loaders(data, plan, World(), ProgressReporter(quiet=True))
    engine = build_engine(data, plan, loaders)
    draw(engine.model).train()  # a layer of zeros would have no gradients below it
    return engine, next(loaders.train.batches(0, 1))


@pytest.mark.parametrize("target", ["colour", "colours", "pixels"])
def test_accumulated_gradients_equal_those_of_one_pass(folder: Path, target: str) -> None:
    found = []
    for micro_batch in (48, 20):
        engine, batch = new_engine(folder, micro_batch=micro_batch, patch_target=target)
        result = engine.step(batch, 0, 48, World())
        found.append(([p.grad for p in engine.optimisers.parameters], result))
    for ours, theirs in zip(found[0][0], found[1][0], strict=True):
        assert theirs.abs().max() > 0  # every parameter is trained
        assert (ours - theirs).abs().max() <= 2e-5 * theirs.abs().max() + 1e-8
    assert torch.allclose(found[0][1].loss, found[1][1].loss, rtol=1e-5)
    assert torch.allclose(found[0][1].right.float(), found[1][1].right.float())


def test_targets_are_those_of_the_augmented_pixels(folder: Path) -> None:
    """The targets are computed before normalisation, of the patches that the model masks."""
    engine, batch = new_engine(folder, patch_target="pixels")
    images, targets = engine.prepare(batch.rows, batch.labels, batch.keys)
    preprocessing = engine.model.preprocessing
    mean, std = (torch.tensor(v).view(-1, 1, 1) for v in (preprocessing.mean, preprocessing.std))
    pixels = images * std + mean
    corrupted = draw_corruption(batch.keys, 16, 0.5).patches
    for image in range(3):
        for place, patch in enumerate(corrupted[image].tolist()):
            top, left = patch // 4 * 4, patch % 4 * 4
            expected = pixels[image, :, top : top + 4, left : left + 4].flatten()
            assert torch.allclose(targets[image, place], expected, atol=1e-5)
    assert not torch.equal(corrupted, draw_corruption(random_keys.keys(1, torch.arange(48)), 16, 0.5).patches)


# ---------------------------------------------------------------- data


def test_splits_are_those_of_a_labelled_run(folder: Path) -> None:
    """So that the images a fine-tuned model is tested on are not pre-trained on."""
    labelled, unlabelled = open_data(folder), open_data(folder, UnlabelledReading())
    assert unlabelled.classes == ()
    assert not unlabelled.train.labels.any()
    for name, source in labelled.splits.items():
        theirs = unlabelled.splits[name]
        assert [source.name(i) for i in range(len(source))] == [theirs.name(i) for i in range(len(theirs))]


def test_folders_that_give_no_classes(flat: Path, tmp_path: Path) -> None:
    (tmp_path / "years" / "2021" / "05").mkdir(parents=True)
    (tmp_path / "years" / "2022" / "06").mkdir(parents=True)
    for number, path in enumerate(sorted(flat.glob("*.jpg"))[:20]):
        shutil.copy(path, tmp_path / "years" / ("2021/05" if number < 12 else "2022/06") / path.name)
    with ZipFile(tmp_path / "photos.zip", "w") as archive:
        for path in sorted(flat.glob("*.jpg"))[:20]:
            archive.write(path, path.name)
    shutil.copytree(flat, tmp_path / "split" / "train")
    shutil.copytree(tmp_path / "years" / "2021" / "05", tmp_path / "split" / "val")
    for name, counts in (("years", (16, 4)), ("photos.zip", (16, 4)), ("split", (72, 12))):
        with pytest.raises(VitreousError):
            open_data(tmp_path / name)
        data = open_data(tmp_path / name, UnlabelledReading())
        assert (len(data.train), len(data.val or [])) == counts
        assert data.classes == ()
    (tmp_path / "empty").mkdir()
    with pytest.raises(VitreousError, match="no images in this folder"):
        open_data(tmp_path / "empty", UnlabelledReading())


def test_labels_are_needed_otherwise(flat: Path, tmp_path: Path) -> None:
    done = command.vitreous("train", flat, cwd=tmp_path)
    assert done.returncode == 2
    assert "72 images, but no class folders" in done.stderr
    assert "pre-training without labels, --objective masked-patches, needs none" in done.stderr


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": "sigmoid"}, "loss = sigmoid: has no effect with objective = 'masked-patches'"),
        ({"label_smoothing": 0.1}, "label_smoothing = 0.1: has no effect"),
        ({"class_weights": "balanced"}, "class_weights = balanced: has no effect"),
        ({"mixup": 0.2}, "mixup = 0.2: has no effect"),
        ({"cutmix": 1.0}, "cutmix = 1.0: has no effect"),
        ({"balanced": True}, "balanced = True: has no effect"),
        ({"head_bias": -10.0}, "head_bias = -10.0: has no effect"),
        ({"representation_size": 64}, "representation_size = 64: has no effect"),
        ({"lora": 2}, "lora = 2: has no effect"),
        ({"rules": "paper"}, "rules = paper: has no effect"),
        ({"lr_candidates": (1e-3, 1e-2)}, r"lr_candidates = .*: has no effect"),
        ({"best_by": "top1"}, "best_by = 'top1': masked-patches is selected by loss"),
        ({"mask_ratio": 1.0}, "mask_ratio = 1.0: expected a fraction of the patches, above 0 and below 1"),
        ({"pool": "map"}, "pool = 'map': it would not be trained"),
        ({"patch_size": 2, "patch_target": "colours"}, "needs a patch size that is a multiple of 4, not 2"),
        ({"patch_size": 16}, "the image has 1 patch"),
        ({"objective": "classification", "mask_ratio": 0.4}, "mask_ratio = 0.4: has no effect without objective"),
        ({"objective": "classification", "patch_target": "pixels"}, "patch_target = pixels: has no effect without"),
    ],
)
def test_refused_options(folder: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    settings = masked_config(tmp_path / "run", **changes)
    with pytest.raises(VitreousError, match=message):
        train(folder, settings, quiet=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("model", "message"), [("BiT-R50x1", "no patches; use a ViT"), ("R26+S/32", "a hybrid")])
def test_refused_models(folder: Path, tmp_path: Path, model: str, message: str) -> None:
    with pytest.raises(VitreousError, match=message):
        train(folder, model=model, out=tmp_path / "run", duration="1 step", quiet=True, **MASKED)
    with pytest.raises(VitreousError, match="masked-patches trains a ViT, not a model of your own"):
        train(folder, model=torch.nn.Flatten, out=tmp_path / "run", duration="1 step", quiet=True, **MASKED)
    assert not (tmp_path / "run").exists()


def test_start_from_a_labelled_model(folder: Path, tmp_path: Path) -> None:
    """Its head is left out, and a mask token and a new layer are trained."""
    fields = {"image_size": 16, "patch_size": 4, "width": 32, "depth": 1, "heads": 2, "num_classes": 3}
    save(draw(VisionTransformer(ViTConfig(**fields))), tmp_path / "labelled.safetensors")  # type: ignore[arg-type]
    start = tmp_path / "labelled.safetensors"
    train(folder, start=start, duration="2 steps", batch_size=16, out=tmp_path / "run", quiet=True, **MASKED)
    assert load(tmp_path / "run").config.num_classes == 0
    wrong = VisionTransformer(ViTConfig(**{**fields, "pool": "map"}))  # type: ignore[arg-type]
    save(wrong, tmp_path / "map.safetensors")
    with pytest.raises(VitreousError, match=r"the weights to start from cannot be used: .*pool = 'map'"):
        train(folder, start=tmp_path / "map.safetensors", duration="2 steps", out=tmp_path / "no", quiet=True, **MASKED)


def test_training_path(folder: Path) -> None:
    """The fused kernels are for a ViT with a head; the model is compiled instead."""
    engine, _ = new_engine(folder)
    assert ineligibility_reason(engine.model, TRAINING) == "the model is a MaskedPatchModel, not a VisionTransformer"
    assert find_unknown_code(engine.model) is None


def test_without_validation_images_and_with_several_labels(folder: Path, tmp_path: Path) -> None:
    paths = sorted(folder.rglob("*.jpg"))[:24]
    rows = [f"{path},{'warm|red' if number % 2 else 'cold'}" for number, path in enumerate(paths)]
    (tmp_path / "labels.csv").write_text("\n".join(["path,labels", *rows]))
    common: dict[str, Any] = {"val_fraction": 0.0, "evaluate_every": None, "allow_outside_files": True}
    outcome = train(tmp_path / "labels.csv", masked_config(tmp_path / "run", **common, duration="2 steps"), quiet=True)
    assert outcome.result is None
    assert load(tmp_path / "run").multi_label is False


def test_comparison_of_runs(uninterrupted: tuple[Path, str], flat: Path, folder: Path, tmp_path: Path) -> None:
    """The report shows losses, and says that those of other targets cannot be compared."""
    changes = {"duration": "2 steps", "evaluate_every": "1 step", "compare_with": (str(uninterrupted[0]),)}
    for target, compared in (("colour", False), ("pixels", True)):
        out = tmp_path / target
        train(flat, masked_config(out, patch_target=target, **changes), quiet=True)
        report = (out / "report.html").read_text()
        assert "Loss on validation images" in report
        assert ("the losses cannot be compared" in report) == compared
    with pytest.raises(VitreousError, match=r"has other classes \(none\) than this data \('blau', 'grün', 'rot'\)"):
        train(folder, config(tmp_path / "no", **changes), quiet=True)
