"""Classification metrics compared with scikit-learn."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    balanced_accuracy_score,
    confusion_matrix,
    precision_recall_fscore_support,
    top_k_accuracy_score,
)
from torch import Tensor

from vitreous.errors import VitreousError
from vitreous.evaluation.metrics import Example, Extremes, Result, Scores

NAN = math.nan


def scored(logits: Tensor, targets: Tensor, sizes: list[int] | None = None) -> Result:
    """Return the result of these images, in batches of these sizes."""
    multi_label = targets.ndim == 2
    scores = Scores(logits.shape[1], multi_label)
    losses = torch.arange(len(logits)).float() / 7
    for batch in zip(*(x.split(sizes or [len(logits)]) for x in (logits, targets, losses)), strict=True):
        scores.add(*batch)
    return scores.result()


@pytest.mark.parametrize("classes", [2, 5, 6, 17])
def test_single_label_metrics_equal_scikit_learn(classes: int) -> None:
    targets = torch.randint(0, classes, (201,))
    logits = torch.randn(201, classes) + F.one_hot(targets, classes)
    result = scored(logits, targets, [1, 64, 0, 100, 36])
    answers = logits.argmax(1)
    assert result.images == 201
    assert result.loss == pytest.approx(100 / 7)
    assert result.top1 == pytest.approx(accuracy_score(targets, answers))
    assert result.balanced == pytest.approx(balanced_accuracy_score(targets, answers))
    assert result.confusion is not None
    np.testing.assert_array_equal(result.confusion, confusion_matrix(targets, answers, labels=range(classes)))
    if classes > 5:
        assert result.top5 == pytest.approx(top_k_accuracy_score(targets, logits, k=5, labels=range(classes)))
    else:
        assert result.top5 is None
    expected = precision_recall_fscore_support(targets, answers, labels=range(classes), zero_division=0.0)
    for score, (precision, recall, f1, images) in zip(result.per_class, zip(*expected, strict=True), strict=True):
        assert (score.precision or 0, score.recall, score.f1) == pytest.approx((precision, recall, f1))
        assert score.images == images
    assert result.map is None
    assert list(result.summary()) == ["loss", "top1", *(["top5"] if classes > 5 else []), "balanced"]


def test_classes_that_never_occur_have_no_recall() -> None:
    targets = torch.randint(0, 4, (60,)) * 2  # 0, 2, 4, 6 of 8
    logits = torch.randn(60, 8)
    logits[:, 7] = -9  # never predicted either
    result = scored(logits, targets)
    recalls = [score.recall for score in result.per_class]
    assert [recall is None for recall in recalls] == [False, True] * 4
    assert result.balanced == pytest.approx(np.mean([r for r in recalls if r is not None]))
    assert (result.per_class[7].precision, result.per_class[7].f1) == (None, None)
    assert result.per_class[1].precision == 0


@given(st.integers(1, 12), st.integers(1, 30), st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_ties_are_resolved_by_index(classes: int, images: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(0, 3, (images, classes), generator=generator).bfloat16()  # few values: many ties
    targets = torch.randint(0, classes, (images,), generator=generator)
    result = scored(logits, targets)
    ranks = [sorted(range(classes), key=lambda c: -row[c]).index(t) for row, t in zip(logits, targets, strict=True)]
    assert result.top1 == sum(rank < 1 for rank in ranks) / images
    if classes > 5:
        assert result.top5 == sum(rank < 5 for rank in ranks) / images
    assert result.confusion is not None
    assert sum(result.confusion[c][c] for c in range(classes)) == round(result.top1 * images)


@pytest.mark.parametrize("sigmoid", [False, True])
def test_calibration_error_equals_its_definition(sigmoid: bool) -> None:
    targets = torch.randint(0, 7, (500,))
    logits = 2 * torch.randn(500, 7) + 2 * F.one_hot(targets, 7)
    scores = Scores(7, sigmoid=sigmoid)
    for batch in zip(logits.split(130), targets.split(130), torch.zeros(500).split(130), strict=True):
        scores.add(*batch)
    confidence, answers = (logits.sigmoid() if sigmoid else logits.softmax(1)).double().max(1)
    expected = 0.0
    for low in range(15):
        inside = (confidence > low / 15) & (confidence <= (low + 1) / 15)
        if inside.any():
            right = (answers == targets)[inside].double().mean()
            expected += float((right - confidence[inside].mean()).abs() * inside.double().mean())
    found = scores.result().calibration
    assert found == pytest.approx(expected, abs=1e-6)
    assert 0.01 < expected < 0.9


def test_calibration_error_of_certain_predictions() -> None:
    assert scored(torch.tensor([[99.0, 0.0], [0.0, 99.0]]), torch.tensor([0, 1])).calibration == 0
    assert scored(torch.tensor([[99.0, 0.0], [0.0, 99.0]]), torch.tensor([1, 0])).calibration == 1
    assert scored(torch.tensor([[NAN, 0.0], [0.0, 99.0]]), torch.tensor([1, 1])).calibration == 0
    assert scored(torch.full((1, 2), NAN), torch.tensor([1])).calibration is None
    assert scored(torch.randn(4, 2), torch.ones(4, 2).bool()).calibration is None


def test_nan_logits_count_as_wrong() -> None:
    logits = torch.tensor([[NAN, NAN, NAN], [1.0, NAN, 0.0], [2.0, 1.0, 0.0], [torch.inf, 0.0, 0.0]])
    result = scored(logits, torch.tensor([0, 0, 0, 0]))
    assert result.invalid == 2
    assert result.top1 == 0.5
    assert result.confusion == ((2, 0, 0), (0, 0, 0), (0, 0, 0))
    assert (result.per_class[0].images, result.per_class[0].recall, result.per_class[0].precision) == (4, 0.5, 1.0)


def test_a_nan_loss_is_reported_and_is_null_in_json() -> None:
    scores = Scores(2)
    scores.add(torch.zeros(2, 2), torch.zeros(2).long(), torch.tensor([NAN, 1.0]))
    result = scores.result()
    assert math.isnan(result.loss)
    assert math.isnan(result.summary()["loss"])
    stored = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert stored["loss"] is None
    assert stored["confusion"] == [[2, 0], [0, 0]]
    assert stored["per_class"][0]["recall"] == 1.0


@pytest.mark.parametrize("ties", [False, True])
def test_multi_label_metrics_equal_scikit_learn(ties: bool) -> None:
    targets = torch.rand(150, 9) < 0.2
    targets[:, 4] = False
    logits = torch.randn(150, 9) + targets
    logits = logits.round() if ties else logits
    result = scored(logits, targets, [7, 93, 50])
    for score in result.per_class:
        if score.index == 4:
            assert (score.average_precision, score.recall, score.positives) == (None, None, 0)
            continue
        truth, scores = targets[:, score.index], logits[:, score.index]
        assert score.average_precision == pytest.approx(average_precision_score(truth, scores))
        expected = precision_recall_fscore_support(truth, scores > 0, average="binary")
        assert (score.precision, score.recall, score.f1) == pytest.approx(expected[:3])
        assert score.positives == truth.sum()
    occurring = [c for c in range(9) if c != 4]
    expected_map = average_precision_score(targets[:, occurring], logits[:, occurring], average="macro")
    assert result.map == pytest.approx(expected_map)
    assert (result.top1, result.top5, result.balanced, result.confusion) == (None, None, None, None)
    assert list(result.summary()) == ["loss", "map"]
    assert scored(logits, targets.float() * 0.9 + 0.05) == result


def test_nan_ranks_last_in_average_precision() -> None:
    targets = torch.tensor([[True], [True], [False]])
    result = scored(torch.tensor([[NAN], [3.0], [-1.0]]), targets)
    assert result.invalid == 1
    assert result.map == pytest.approx((1 / 1 + 2 / 3) / 2)
    assert result.per_class[0].recall == 0.5


def test_average_precision_does_not_depend_on_the_chunk_size(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, targets = torch.randn(20, 7), torch.rand(20, 7) < 0.5
    whole = scored(logits, targets)
    monkeypatch.setattr("vitreous.evaluation.metrics.MAX_SORTED", 50)
    assert scored(logits, targets) == whole


@pytest.mark.parametrize("multi_label", [False, True])
def test_sums_over_processes_equal_one_process(multi_label: bool) -> None:
    logits = torch.randn(50, 7)
    targets = torch.rand(50, 7) < 0.3 if multi_label else torch.randint(0, 7, (50,))
    losses = torch.rand(50).double()
    parts = [Scores(7, multi_label) for _ in range(4)]  # the last process has no images
    batches = zip(*(x.split([20, 11, 19]) for x in (logits, targets, losses)), strict=True)
    for part, batch in zip(parts[:3], batches, strict=True):
        part.add(*batch)
    whole, first = Scores(7, multi_label), parts[0]
    whole.add(logits, targets, losses)
    gathered = [torch.cat(tensors) for tensors in zip(*(part.gathered() for part in parts), strict=True)]
    for tensors in zip(*(part.sums() for part in parts), strict=True):
        tensors[0].copy_(torch.stack(tensors).sum(0))
    first.take(gathered)
    assert replace(first.result(), loss=0) == replace(whole.result(), loss=0)
    assert first.result().loss == pytest.approx(whole.result().loss)


def test_missing_concatenation_over_processes_is_an_error() -> None:
    scores = Scores(3, multi_label=True)
    scores.add(torch.randn(4, 3), torch.ones(4, 3).bool(), torch.zeros(4))
    scores.sums()[1].mul_(2)
    with pytest.raises(VitreousError, match="4 scores for 8 images"):
        scores.result()


def test_no_confusion_matrix_for_very_many_classes() -> None:
    targets = torch.randint(0, 3000, (40,))
    logits = torch.randn(40, 3000).scatter(1, targets[:, None], 9.0)
    logits[0] = -logits[0]
    result = scored(logits, targets)
    assert result.confusion is None
    assert result.top1 == pytest.approx(39 / 40)
    assert sum(score.right for score in result.per_class) == 39


def test_memory_does_not_grow_with_the_number_of_images() -> None:
    scores = Scores(4)
    before = sum(x.numel() for x in [*scores.sums(), *scores.logits, *scores.targets])
    for _ in range(10):
        scores.add(torch.randn(8, 4), torch.randint(0, 4, (8,)), torch.zeros(8))
    assert sum(x.numel() for x in [*scores.sums(), *scores.logits, *scores.targets]) == before
    assert scores.gathered() == []


def test_scores_from_inference_mode_can_be_summed_outside() -> None:
    with torch.inference_mode():
        scores = Scores(3)
        scores.add(torch.eye(3), torch.arange(3), torch.ones(3))
    for tensor in scores.sums():
        tensor.mul_(2)
    assert (scores.result().images, scores.result().top1, scores.result().loss) == (6, 1.0, 1.0)


def test_wrong_shapes_and_labels_are_an_error() -> None:
    scores = Scores(3)
    with pytest.raises(VitreousError, match=r"targets have shape \(2, 3\): expected \(2,\)"):
        scores.add(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2))
    with pytest.raises(VitreousError, match=r"logits have shape \(2, 4\)"):
        scores.add(torch.zeros(2, 4), torch.zeros(2).long(), torch.zeros(2))
    with pytest.raises(VitreousError, match=r"torch\.float32: expected an integer class"):
        scores.add(torch.zeros(2, 3), torch.zeros(2), torch.zeros(2))
    with pytest.raises(VitreousError, match="no images were scored"):
        scores.result()
    scores.add(torch.zeros(4, 3), torch.tensor([0, -100, 3, 1]), torch.zeros(4))
    with pytest.raises(VitreousError, match="2 of 4 labels are not among the 3 classes"):
        scores.result()
    with pytest.raises(VitreousError, match="at least one"):
        Scores(0)


@given(st.integers(0, 6), st.lists(st.integers(0, 9), min_size=1, max_size=5), st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_extremes_do_not_depend_on_the_batches(keep: int, sizes: list[int], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    count = sum(sizes)
    logits = torch.randn(count, 4, generator=generator)
    targets = torch.randint(0, 4, (count,), generator=generator)
    losses, indices = F.cross_entropy(logits, targets, reduction="none"), torch.arange(count) + 100
    extremes = Extremes(keep)
    for batch in zip(*(x.split(sizes) for x in (logits, targets, losses, indices)), strict=True):
        extremes.add(*batch)
    best, worst = extremes.result()
    by_loss = sorted(range(count), key=lambda i: -float(losses[i]))
    assert [e.index - 100 for e in worst] == by_loss[:keep]
    right = [i for i in reversed(by_loss) if logits[i].argmax() == targets[i]]
    assert [e.index - 100 for e in best] == right[:keep]
    for example in [*best, *worst]:
        i = example.index - 100
        expected = logits[i].softmax(0).topk(3)
        assert [c for c, _ in example.answers] == expected.indices.tolist()
        assert [p for _, p in example.answers] == pytest.approx(expected.values.tolist())
        assert example.truth == (int(targets[i]),)
        assert example.loss == pytest.approx(float(losses[i]))


def test_multi_label_extremes() -> None:
    logits = torch.tensor([[5.0, -5.0], [9.0, 9.0], [1.0, -1.0], [NAN, 1.0]])
    targets = torch.tensor([[True, False], [True, True], [False, True], [False, True]])
    losses = torch.tensor([0.2, 0.1, 3.0, NAN])
    extremes = Extremes(2, multi_label=True)
    extremes.add(logits, targets, losses, torch.tensor([10, 11, 12, 13]))
    best, worst = extremes.result()
    assert [(e.index, e.truth) for e in best] == [(11, (0, 1)), (10, (0,))]
    assert [(e.index, e.truth) for e in worst] == [(13, (1,)), (12, (1,))]
    assert math.isnan(worst[0].loss)
    assert worst[1].answers == ((0, pytest.approx(0.7311, abs=1e-4)), (1, pytest.approx(0.2689, abs=1e-4)))


def test_extremes_order_very_confident_predictions() -> None:
    logits = torch.tensor([[30.0, 0.0], [31.0, 0.0], [29.0, 0.0]])
    extremes = Extremes(5)
    extremes.add(logits, torch.zeros(3).long(), torch.zeros(3), torch.arange(3))
    best, _ = extremes.result()
    assert [e.index for e in best] == [1, 0, 2]
    assert replace(best[0], name="a.png") == Example(1, "a.png", (0,), best[0].answers, 0.0)


def test_extremes_without_images() -> None:
    assert Extremes(3).result() == ([], [])
    with pytest.raises(VitreousError, match="negative"):
        Extremes(-1)


def test_nan_logits_have_no_answers_in_extremes() -> None:
    extremes = Extremes(3)
    extremes.add(torch.tensor([[NAN, 0.0, 0.0]]), torch.tensor([0]), torch.tensor([NAN]), torch.tensor([4]))
    best, worst = extremes.result()
    assert best == []
    assert (worst[0].index, worst[0].answers) == (4, ())


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_adding_batches_does_not_synchronise() -> None:
    scores, extremes = Scores(10, device="cuda"), Extremes(4)
    logits, targets = torch.randn(64, 10, device="cuda"), torch.randint(0, 10, (64,), device="cuda")
    losses, indices = torch.rand(64, device="cuda"), torch.arange(64, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        scores.add(logits, targets, losses)
        extremes.add(logits, targets, losses, indices)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    expected = Scores(10)
    expected.add(logits.cpu(), targets.cpu(), losses.cpu())
    found, wanted = scores.result(), expected.result()
    assert found.calibration == pytest.approx(wanted.calibration, abs=1e-6)  # softmax rounds differently on the GPU
    assert replace(found, loss=0, calibration=None) == replace(wanted, loss=0, calibration=None)


def test_calibration_error_of_infinite_logits() -> None:
    """An infinite logit is a probability of 1, and the calibration error stays within 0..1."""
    logits = torch.tensor([[torch.inf, 0.0], [-torch.inf, 0.0]])
    assert scored(logits, torch.tensor([0, 1])).calibration == 0
    assert scored(logits, torch.tensor([1, 0])).calibration == 1
