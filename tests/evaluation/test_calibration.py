"""Temperature and thresholds, compared with scipy and simulations; calibrated checkpoints."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file
from scipy.optimize import minimize_scalar
from scipy.stats import binom

import vitreous
from helpers import tiny_vit
from vitreous import VitreousError
from vitreous.data.digests import image_digests
from vitreous.data.open_data import open_data
from vitreous.evaluation.calibration_images import calibration_images, encode_digests, select_calibration_images
from vitreous.evaluation.evaluated_model import EvaluatedModel
from vitreous.evaluation.metrics import Scores
from vitreous.evaluation.temperature import calibration_error, fit_temperature
from vitreous.evaluation.thresholds import (
    choose_thresholds,
    class_thresholds,
    group_classes,
    images_needed,
    smallest_threshold,
)
from vitreous.evaluation.training_images import SeenImages, run_directory_of
from vitreous.models.calibration import Calibration
from vitreous.preprocessing import Preprocessing
from vitreous.serving.prediction import predict_images


def noisy_logits(images: int = 400, classes: int = 6, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (images,), generator=generator)
    logits = 3 * torch.randn(images, classes, generator=generator)
    logits[torch.arange(images), labels] += 4
    return logits, labels


@pytest.mark.parametrize("scale", [0.1, 1.0, 8.0])
def test_the_temperature_minimises_the_log_loss(scale: float) -> None:
    logits, labels = noisy_logits()
    logits = logits * scale

    def loss(log_temperature: float) -> float:
        return F.cross_entropy(logits.double() / np.exp(log_temperature), labels).item()

    reference = minimize_scalar(loss, bounds=(-4, 4), method="bounded", options={"xatol": 1e-9})
    assert fit_temperature(logits, labels, sigmoid=False).temperature == pytest.approx(np.exp(reference.x), rel=1e-4)


def test_the_temperature_of_several_labels() -> None:
    logits, labels = noisy_logits()
    targets = F.one_hot(labels, 6).bool() | (torch.rand(400, 6, generator=torch.Generator().manual_seed(1)) < 0.2)

    def loss(log_temperature: float) -> float:
        scaled = logits.double() / np.exp(log_temperature)
        return F.binary_cross_entropy_with_logits(scaled, targets.double()).item()

    reference = minimize_scalar(loss, bounds=(-4, 4), method="bounded", options={"xatol": 1e-9})
    assert fit_temperature(logits, targets, sigmoid=True).temperature == pytest.approx(np.exp(reference.x), rel=1e-4)


def test_no_temperature_without_errors_or_without_information() -> None:
    logits, labels = noisy_logits()
    assert "every prediction is correct" in fit_temperature(logits, logits.argmax(1), sigmoid=False).problem
    assert "uniform" in fit_temperature(-logits, labels, sigmoid=False).problem


def test_calibration_error_agrees_with_that_of_an_evaluation() -> None:
    logits, labels = noisy_logits()
    scores = Scores(6, temperature=1.7)
    scores.add(logits, labels, torch.zeros(400))
    confidence = (logits / 1.7).softmax(1).amax(1)
    expected = scores.result().calibration
    assert calibration_error(confidence.double(), logits.argmax(1) == labels) == pytest.approx(expected, abs=1e-6)


def test_images_needed_is_the_smallest_number_that_passes_an_exact_test() -> None:
    for precision, confidence in ((0.95, 0.95), (0.9, 0.95), (0.99, 0.9), (0.5, 0.5)):
        needed = images_needed(precision, confidence)
        assert binom.cdf(0, needed, 1 - precision) <= 1 - confidence + 1e-12
        assert needed == 1 or binom.cdf(0, needed - 1, 1 - precision) > 1 - confidence


def test_the_smallest_threshold_of_a_measured_precision_by_brute_force() -> None:
    random = np.random.default_rng(3)
    scores = random.beta(3, 1, 200).round(2)  # with ties
    right = random.random(200) < scores
    threshold, accepted = smallest_threshold(torch.tensor(scores), torch.tensor(right), 0.85, confidence=0)
    passing = [t for t in np.unique(scores) if (scores >= t).sum() >= 10 and right[scores >= t].mean() >= 0.85]
    assert accepted == (scores >= min(passing)).sum()
    assert threshold is not None
    assert scores[scores < min(passing)].max() < threshold <= min(passing)


def test_the_guarantee_holds_in_simulations() -> None:
    """With 95% confidence, at most about 5% of the chosen thresholds may miss the precision; without, about half do."""
    missed = {0.95: 0, 0.0: 0}
    for seed in range(150):
        random = np.random.default_rng(seed)
        scores = random.beta(4, 1, 800)
        right = torch.tensor(random.random(800) < scores)  # the probability of being right is the score
        for confidence in missed:
            threshold, _ = smallest_threshold(torch.tensor(scores), right, 0.9, confidence)
            # The mean of a Beta(4, 1) variable above t is 4/5 (1 - t^5) / (1 - t^4).
            exact = 1.0 if threshold is None else 0.8 * (1 - threshold**5) / (1 - threshold**4)
            missed[confidence] += exact < 0.9
    assert missed[0.95] <= 12  # 8% of 150: P(more | 5%) < 0.05
    assert missed[0.0] > 45


def test_one_wrong_label_at_the_top_does_not_end_the_search() -> None:
    scores, right = torch.linspace(1, 0.5, 1000), torch.ones(1000, dtype=torch.bool)
    right[0] = False
    threshold, accepted = smallest_threshold(scores, right, 0.95, 0.95)
    assert (threshold, accepted) == (0.0, 1000)


def test_small_classes_share_a_threshold() -> None:
    assert group_classes([70, 5, 90, 80, 9], [True] * 5, 60) == [[0, 1, 4], [2], [3]]
    assert group_classes([70, 80], [True, False], 60) == [[0]]
    assert group_classes([3, 4], [True, True], 60) == [[0, 1]]
    logits, labels = noisy_logits(600, 3)
    labels[labels == 2] = 1  # class 2 has no images
    groups = choose_thresholds(logits.softmax(1), labels, 0.8, 0.95)
    thresholds = class_thresholds(groups, 3)
    assert thresholds[2] is None
    assert thresholds[0] is not None


# ---------------------------------------------------------------- checkpoints


def record(**changes: Any) -> Calibration:
    values: dict[str, Any] = {
        "temperature": 1.5,
        "images": 2,
        "data": "pets",
        "split": "val",
        "digests": encode_digests(torch.tensor([5, -7])),
        "precision": 0.9,
        "confidence": 0.95,
        "thresholds": (0.5, None, 0.0, 1.0, 0.2, 0.3, 0.4),
    }
    return Calibration(**{**values, **changes})


def test_a_checkpoint_keeps_its_calibration(tmp_path: Path) -> None:
    model = tiny_vit()
    vitreous.save(model, tmp_path / "plain.safetensors")
    model.calibration = record()
    vitreous.save(model, tmp_path / "m.safetensors")
    loaded = vitreous.load(tmp_path / "m.safetensors")
    assert loaded.calibration == record()
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(loaded(x), model(x))  # logits are not scaled
        torch.testing.assert_close(loaded.probabilities(loaded(x)), (model(x) / 1.5).softmax(1))
    with safe_open(tmp_path / "plain.safetensors", "pt") as file:
        assert "calibration" not in json.loads(file.metadata()["vitreous"])
    assert vitreous.load(tmp_path / "m.safetensors", num_classes=3).calibration is None
    resized = vitreous.load(tmp_path / "m.safetensors", image_size=64)
    assert resized.calibration is None
    assert any("calibration is dropped" in note for note in resized.report.notes)
    assert loaded.reset_head(7).calibration is None


def test_other_formats_report_that_they_do_not_store_it(tmp_path: Path) -> None:
    model = tiny_vit(resample="timm")
    model.calibration = record()
    notes = vitreous.save(model, tmp_path / "timm", to="timm")
    assert any("calibration" in note and "not stored" in note for note in notes)


def test_a_replaced_head_loses_the_calibration(tmp_path: Path) -> None:
    model = tiny_vit()
    model.calibration = record()
    model.head = torch.nn.Linear(48, 4)
    with pytest.warns(vitreous.VitreousWarning, match="calibration is not saved"):
        vitreous.save(model, tmp_path / "m.safetensors")
    assert vitreous.load(tmp_path / "m.safetensors").calibration is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": float("nan")}, "temperature = nan"),
        ({"temperature": -1}, "temperature = -1"),
        ({"temperature": 1e9}, "temperature"),
        ({"temperature": True}, "temperature = True"),
        ({"temperature": "1"}, "temperature"),
        ({"images": 0}, "images = 0"),
        ({"images": 3}, "3 digests"),
        ({"digests": "!!"}, "base64"),
        ({"precision": 2}, "precision = 2"),
        ({"confidence": None}, "confidence = None"),
        ({"thresholds": [0.5]}, "1 thresholds for 7 classes"),
        ({"thresholds": [0.5, 2, 0, 0, 0, 0, 0]}, "threshold = 2"),
        ({"thresholds": [float("inf")] * 7}, "threshold = inf"),
        ({"thresholds": {}}, "one threshold per class"),
        ({"thresholds": None}, "no thresholds"),
        ({"data": 5}, "data = 5"),
        ({"bias": 1}, "unknown fields 'bias'"),
    ],
)
def test_a_damaged_record_is_an_error(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    model, path = tiny_vit(), tmp_path / "m.safetensors"
    card = {"model": "vit", "config": asdict(model.config), "calibration": {**record().to_json(), **change}}
    save_file(model.state_dict(), path, {"format": "pt", "vitreous": json.dumps(card)})
    with pytest.raises(VitreousError, match=message):
        vitreous.load(path)


def test_a_missing_field_is_an_error() -> None:
    values = record().to_json()
    del values["confidence"]
    with pytest.raises(VitreousError, match="'confidence' missing"):
        Calibration.from_json(values)
    with pytest.raises(VitreousError, match="expected an object"):
        Calibration.from_json([1])


def test_digests_round_trip() -> None:
    found = calibration_images(record(), torch.tensor([-7, 6, 5, 0]))
    assert found.tolist() == [True, False, True, False]


def test_training_images_are_left_out(tmp_path: Path) -> None:
    data = open_data(shades(tmp_path / "photos", 10, 1))
    digests = image_digests(data.stored_splits["train"])
    trained = EvaluatedModel("m", tiny_vit(), seen=SeenImages.of({"train": digests[:22], "val": digests[22:25]}))
    found = select_calibration_images(data, trained)
    assert torch.equal(found.digests, digests[22:])
    assert torch.equal(image_digests(found.images), digests[22:])
    assert found.left_out == "22 training images of the model's run"
    assert "3 of the 8 images were used to select these weights" in found.warnings[0]
    everything = EvaluatedModel("m", tiny_vit(), seen=SeenImages.of({"train": digests}))
    with pytest.raises(VitreousError, match="all 30 images are training images of this model"):
        select_calibration_images(data, everything)
    unknown = EvaluatedModel("m", tiny_vit(), training_images_unknown=True)
    assert "it is not known which images" in select_calibration_images(data, unknown).warnings[0]


def test_a_file_in_a_run_directory_with_the_same_weights_is_of_that_run(tmp_path: Path) -> None:
    model = tiny_vit()
    (tmp_path / "config.json").write_text("{}")
    vitreous.save(model, tmp_path / "best.safetensors")
    model.calibration = record()
    vitreous.save(model, tmp_path / "calibrated.safetensors")
    vitreous.save(tiny_vit(width=96), tmp_path / "other.safetensors")
    assert run_directory_of(tmp_path / "calibrated.safetensors") == tmp_path
    assert run_directory_of(tmp_path / "other.safetensors") is None


# ---------------------------------------------------------------- vitreous.calibrate


def shades(folder: Path, each: int, seed: int) -> Path:
    """Write images of three classes that differ in brightness, with overlap."""
    random = np.random.default_rng(seed)
    for place, name in enumerate(("dark", "grey", "light")):
        (folder / name).mkdir(parents=True)
        for number in range(each):
            level = random.normal(60 + 60 * place, 20)
            pixels = random.normal(level, 5, (16, 16, 3)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


def shade_model(path: Path, scale: float = 8.0) -> Path:
    """Write a model whose logits measure the brightness, with an overconfident head."""
    model = tiny_vit(image_size=16, num_classes=3)
    model.labels, model.preprocessing = ("dark", "grey", "light"), Preprocessing(size=16, resize=16)
    data = open_data(shades(path.parent / "fit", 150, 7))
    source = data.stored_splits["train"]
    with torch.no_grad():
        features = torch.stack([model.features(model.preprocessing(source.image(i))[None])[0] for i in range(450)])
        inputs = torch.cat([features, torch.ones(450, 1)], 1)
        weights = torch.linalg.lstsq(inputs, F.one_hot(source.labels, 3).float(), driver="gelsd").solution
        model.head.weight.copy_(scale * weights[:-1].T)
        model.head.bias.copy_(scale * weights[-1])
    vitreous.save(model, path)
    return path


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("calibrated")
    path = shade_model(folder / "m.safetensors", 40.0)
    data = shades(folder / "photos", 80, 1)
    return folder, vitreous.calibrate(path, data, folder / "c.safetensors", precision=0.85)


def test_calibrate(calibrated: tuple[Path, Any]) -> None:
    folder, report = calibrated
    assert report.calibration.temperature > 2  # the head is overconfident
    assert report.after.loss < report.before.loss
    assert report.after.error < report.before.error
    model = vitreous.load(folder / "c.safetensors")
    assert model.calibration == report.calibration
    assert model.calibration.images == 240
    original = vitreous.load(folder / "m.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), original.parameters(), strict=True))
    digests = image_digests(open_data(folder / "photos").stored_splits["train"])
    assert calibration_images(model.calibration, digests).all()
    # The thresholds chosen here do what they promise on new images.
    fresh = open_data(shades(folder / "fresh", 150, 2)).stored_splits["train"]
    predictions = list(predict_images(model, [fresh.image(i) for i in range(450)]))
    pairs = zip(predictions, fresh.labels.tolist(), strict=True)
    kept = [(one.predicted[0].index, label) for one, label in pairs if one.predicted]
    assert 100 < len(kept) < 450
    assert np.mean([predicted == label for predicted, label in kept]) >= 0.85
    assert all(one.rejected == (not one.predicted) for one in predictions)


def test_a_class_without_images_is_reported(calibrated: tuple[Path, Any], tmp_path: Path) -> None:
    data = shades(tmp_path / "photos", 60, 3)
    shutil.rmtree(data / "grey")
    report = vitreous.calibrate(calibrated[0] / "m.safetensors", data, tmp_path / "c.safetensors", precision=0.6)
    assert report.calibration.thresholds is not None
    assert [one is None for one in report.calibration.thresholds] == [False, True, False]
    assert "all predictions of 'grey' are rejected: no image of the data has this label" in report.notes


def test_calibrate_refuses(calibrated: tuple[Path, Any], tmp_path: Path) -> None:
    folder, _ = calibrated
    model, photos, out = folder / "m.safetensors", folder / "photos", tmp_path / "c.safetensors"
    with pytest.raises(VitreousError, match="exists already"):
        vitreous.calibrate(model, photos, folder / "c.safetensors")
    with pytest.raises(VitreousError, match=r"precision of 0\.999 is not reached.*at least 2,995"):
        vitreous.calibrate(model, photos, out, precision=0.999)
    with pytest.raises(VitreousError, match="precision = 95"):
        vitreous.calibrate(model, photos, out, precision=95)
    with pytest.raises(VitreousError, match="random weights"):
        vitreous.calibrate("random:Ti/16", photos, out)
    with pytest.raises(VitreousError, match=r"ends in \.safetensors"):
        vitreous.calibrate(model, photos, tmp_path / "c.pth")
    few = shades(tmp_path / "few", 2, 3)
    with pytest.raises(VitreousError, match="6 readable images; a calibration needs at least 10"):
        vitreous.calibrate(model, few, out)
    assert not out.exists()


def test_calibrate_several_labels(calibrated: tuple[Path, Any], tmp_path: Path) -> None:
    folder, _ = calibrated
    model = vitreous.load(folder / "m.safetensors")
    model.multi_label = True
    vitreous.save(model, tmp_path / "several.safetensors")
    paths = sorted((folder / "photos").rglob("*.png"))
    labels = {"dark": "dark", "grey": "grey", "light": "grey|light"}
    rows = "".join(f"{path},{labels[path.parent.name]}\n" for path in paths)
    (folder / "several.csv").write_text(f"image,labels\n{rows}")
    out, arguments = tmp_path / "c.safetensors", (tmp_path / "several.safetensors", folder / "several.csv")
    report = vitreous.calibrate(*arguments, out, split="all", precision=0.7)
    assert report.accuracy is None
    assert report.after.loss < report.before.loss
    found = vitreous.load(out)
    assert found.multi_label
    predictions = list(predict_images(found, paths))
    accepted = sum(len(one.predicted) for one in predictions)
    assert accepted == sum(group.accepted for group in report.groups)
    assert any(len(one.predicted) == 2 for one in predictions)
    with pytest.raises(VitreousError, match="trained for one class per image"):
        vitreous.calibrate(folder / "m.safetensors", folder / "several.csv", tmp_path / "x.safetensors", split="all")
