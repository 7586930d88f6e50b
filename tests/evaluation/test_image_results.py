"""Results of single images, intervals and precision-recall curves, compared with scikit-learn and scipy."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import binomtest
from sklearn.metrics import average_precision_score, balanced_accuracy_score, precision_recall_curve

from vitreous.evaluation.image_results import ImageResultCollector, ImageResults, join_names
from vitreous.evaluation.intervals import class_intervals, result_intervals
from vitreous.evaluation.metrics import Result, Scores, wilson_interval
from vitreous.evaluation.precision_recall import MAX_POINTS, precision_recall, precision_recall_points
from vitreous.models.calibration import Calibration
from vitreous.utils.csv_files import csv_file

IMAGES, CLASSES = 300, 7


def collect(
    multi_label: bool = False, calibration: Calibration | None = None, spoil: bool = False
) -> tuple[Result, ImageResults, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(CLASSES, (IMAGES,), generator=generator)
    logits = 2 * torch.randn(IMAGES, CLASSES, generator=generator).round(decimals=1)
    logits[torch.arange(IMAGES), labels] += 2
    if multi_label:
        labels = F.one_hot(labels, CLASSES).bool() | (torch.rand(IMAGES, CLASSES, generator=generator) < 0.1)
        losses = F.binary_cross_entropy_with_logits(logits, labels.float(), reduction="none").sum(1)
    else:
        losses = F.cross_entropy(logits, labels, reduction="none")
    if spoil:
        logits[5, 0] = torch.nan
    scores = Scores(CLASSES, multi_label, sigmoid=multi_label)
    collector = ImageResultCollector(multi_label, multi_label, calibration, keep=True)
    for part in torch.arange(IMAGES).flip(0).split(64):  # batches may come in any order
        scores.add(logits[part], labels[part], losses[part])
        collector.add(logits[part], labels[part], losses[part], part)
    return scores.result(), collector.result(), logits


def test_ranks_and_predictions_agree_with_the_scores() -> None:
    result, images, logits = collect(spoil=True)
    right = images.predicted == images.targets
    assert right.double().mean().item() == pytest.approx(result.top1)
    valid = images.predicted >= 0
    assert valid.logical_not().nonzero().flatten().tolist() == [5]
    assert ((images.ranks <= 5) & valid).double().mean().item() == pytest.approx(result.top5)
    assert torch.equal((images.ranks == 1)[valid], right[valid])
    expected = logits.softmax(1)[torch.arange(IMAGES), images.targets]
    torch.testing.assert_close(images.label_probability[valid], expected[valid])


@pytest.mark.parametrize("multi_label", [False, True])
def test_precision_recall_curves_are_those_of_scikit_learn(multi_label: bool) -> None:
    _, images, logits = collect(multi_label)
    probabilities = (logits.sigmoid() if multi_label else logits.softmax(1)).double()
    targets = images.targets if multi_label else F.one_hot(images.targets, CLASSES).bool()
    for index in (0, 3):
        thresholds, precision, recall = precision_recall_points(probabilities[:, index], targets[:, index])
        reference = precision_recall_curve(targets[:, index].numpy(), probabilities[:, index].numpy())
        np.testing.assert_allclose(precision.numpy(), reference[0][:-1][::-1])
        np.testing.assert_allclose(recall.numpy(), reference[1][:-1][::-1])
        np.testing.assert_allclose(thresholds.numpy(), reference[2][::-1])
    found = precision_recall(images, range(CLASSES), [f"c{index}" for index in range(CLASSES)])
    assert found is not None
    expected = average_precision_score(targets.numpy().ravel(), probabilities.numpy().ravel())
    assert found.micro.average_precision == pytest.approx(expected, abs=1e-5)
    by_name = {curve.name: curve for curve in found.classes}
    for index in range(CLASSES):
        reference_value = average_precision_score(targets[:, index].numpy(), probabilities[:, index].numpy())
        assert by_name[f"c{index}"].average_precision == pytest.approx(reference_value, abs=1e-5)
    assert len(found.micro.recall) <= MAX_POINTS
    assert found.micro.recall[-1] == 1


def test_intervals() -> None:
    result, images, _ = collect()
    found = result_intervals(result, images)
    right = int((images.predicted == images.targets).sum())
    reference = binomtest(right, IMAGES).proportion_ci(0.95, method="wilson")
    assert (found["top1"].low, found["top1"].high) == pytest.approx((reference.low, reference.high), abs=1e-6)
    assert found["top1"].to_json()["method"] == "95% interval, Wilson"
    # The bootstrap of a mean agrees with the normal approximation.
    losses = images.losses.numpy()
    half = 1.96 * losses.std(ddof=1) / IMAGES**0.5
    assert (found["loss"].low, found["loss"].high) == pytest.approx(
        (losses.mean() - half, losses.mean() + half), abs=0.15 * half
    )
    balanced = balanced_accuracy_score(images.targets.numpy(), images.predicted.numpy())
    assert found["balanced"].low < balanced < found["balanced"].high
    assert found["balanced"].high - found["balanced"].low < 0.15
    score = result.per_class[0]
    predicted = int((images.predicted == 0).sum())
    expected = binomtest(score.right, predicted).proportion_ci(0.95, method="wilson")
    assert class_intervals(score)["precision_interval"] == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_interval_of_the_mean_average_precision() -> None:
    result, images, _ = collect(multi_label=True)
    found = result_intervals(result, images)["map"]
    assert "bootstrap, 1,000 resamples" in found.method
    random, drawn = np.random.default_rng(1), []
    for _ in range(200):
        rows = random.integers(IMAGES, size=IMAGES)
        scores, targets = images.probabilities[rows].numpy(), images.targets[rows].numpy()
        drawn.append(np.mean([average_precision_score(targets[:, k], scores[:, k]) for k in range(CLASSES)]))
    width = found.high - found.low
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(drawn, [0.025, 0.975])), abs=0.25 * width)


def calibration(threshold: float | None) -> Calibration:
    return Calibration(2.0, 1, "x", "val", "AAAAAAAAAAA=", 0.9, 0.95, (threshold,) * CLASSES)


def test_coverage_and_precision_with_thresholds() -> None:
    _, images, logits = collect(calibration=calibration(0.6))
    confidence, predicted = (logits / 2).softmax(1).max(1)
    kept = confidence >= 0.6
    found = images.rejection()
    assert found is not None
    assert found.coverage == pytest.approx(kept.double().mean().item())
    assert found.precision == pytest.approx((predicted == images.targets)[kept].double().mean().item())
    assert found.interval == wilson_interval(found.precision, int(kept.sum()))
    _, nothing, _ = collect(calibration=calibration(None))
    rejection = nothing.rejection()
    assert rejection is not None
    assert (rejection.accepted, rejection.precision) == (0, None)
    _, images, logits = collect(multi_label=True, calibration=calibration(0.6))
    found = images.rejection()
    assert found is not None
    above = (logits / 2).sigmoid() >= 0.6
    assert found.predictions == int(above.sum())
    assert found.right == int((above & images.targets).sum())
    assert found.accepted == int(above.any(1).sum())


def test_csv_cells_cannot_be_formulas_and_can_be_restored(tmp_path: Path) -> None:
    names = [
        "=1+1",
        "+x",
        "-x",
        "@x",
        "'x",
        "a,b",
        'say "hi"',
        "two\nlines",
        "\rx",
        "tab\t",
        "é<script>$HOME",
        "日本語",
    ]
    with csv_file(tmp_path / "x.csv", ("name", "flag", "number")) as write:
        for name in names:
            write((name, True, -0.5))
        write(("\udcff.jpg", None, None))
    with (tmp_path / "x.csv").open(newline="", encoding="utf-8") as file:
        header, *rows, last = csv.reader(file)
    assert header == ["name", "flag", "number"]
    assert not any(row[0].startswith(("=", "+", "-", "@", "\t", "\r")) for row in rows)
    assert [row[0].removeprefix("'") for row in rows] == names
    assert all(row[1:] == ["true", "-0.5"] for row in rows)  # numbers stay numbers
    assert last == ["\\udcff.jpg", "", ""]


def test_several_labels_in_a_cell() -> None:
    assert join_names(["cat", "outdoors"]) == "cat|outdoors"
    assert join_names(["a|b", "c"]) == '["a|b", "c"]'
    assert join_names([]) == ""
