"""Losses compared with torch's, and with sums in plain Python."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from helpers import images, tiny_vit
from vitreous.errors import VitreousError
from vitreous.training.config import Objective
from vitreous.training.optim.losses import Loss, build_loss

LABELS = torch.tensor([0, 0, 0, 0, 1, 1, 3, 3, 3, 3])  # of 5 classes; 2 and 4 never occur
SEVERAL = torch.tensor([[1, 0, 0], [1, 0, 1], [1, 1, 0], [1, 0, 0]], dtype=torch.bool)


def loss(labels: Tensor = LABELS, classes: int = 5, **options: Any) -> Loss:
    return build_loss(Objective(**{"label_smoothing": 0.0, **options}), labels, classes, "cpu")


def by_hand(logits: Tensor, targets: Tensor, positive: Tensor | None = None) -> list[float]:
    """Binary cross-entropies summed over classes, in plain Python."""
    sums = []
    for row, target in zip(logits.tolist(), targets.tolist(), strict=True):
        total = 0.0
        for c, (x, t) in enumerate(zip(row, target, strict=True)):
            p = 1 / (1 + math.exp(-x))
            total -= (1 if positive is None else positive[c].item()) * t * math.log(p) + (1 - t) * math.log(1 - p)
        sums.append(total)
    return sums


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("class_weights", ["none", "balanced"])
def test_softmax_equals_torch(smoothing: float, class_weights: Any) -> None:
    logits, targets = torch.randn(10, 5), LABELS
    ours = loss(loss="softmax", label_smoothing=smoothing, class_weights=class_weights)
    # 10 images in 3 classes that occur: 10/3 for each, divided by its images.
    weight = torch.tensor([10 / 12, 10 / 6, 0, 10 / 12, 0]) if class_weights == "balanced" else None
    expected = F.cross_entropy(logits, targets, weight, reduction="none", label_smoothing=smoothing)
    torch.testing.assert_close(ours(logits, targets), expected)
    torch.testing.assert_close(ours(logits, ours.dense_targets(targets)), expected)


def test_softmax_loss_of_mixed_labels() -> None:
    ours = loss(loss="softmax", label_smoothing=0.1, class_weights="balanced")
    logits, targets = torch.randn(10, 5), LABELS
    mixed = 0.3 * ours.dense_targets(targets) + 0.7 * ours.dense_targets(targets.flip(0))
    torch.testing.assert_close(ours(logits, mixed), 0.3 * ours(logits, targets) + 0.7 * ours(logits, targets.flip(0)))


def test_sigmoid_is_summed_over_classes() -> None:
    logits = torch.randn(10, 5)
    ours = loss(loss="sigmoid")
    one_hot = F.one_hot(LABELS, 5).float()
    assert ours(logits, LABELS).tolist() == pytest.approx(by_hand(logits, one_hot), rel=1e-5)
    assert torch.equal(ours(logits, LABELS), ours(logits, one_hot))
    assert torch.equal(ours(logits, LABELS), ours(logits, one_hot.bool()))


def test_sigmoid_with_label_smoothing() -> None:
    logits = torch.randn(10, 5)
    smooth = torch.full((10, 5), 0.04).scatter(1, LABELS[:, None], 0.84)  # 0.2 spread over 5 classes
    ours = loss(loss="sigmoid", label_smoothing=0.2)
    assert ours(logits, LABELS).tolist() == pytest.approx(by_hand(logits, smooth), rel=1e-5)
    alone = loss(torch.tensor([[True], [False]]), 1, loss="sigmoid", label_smoothing=0.2)
    expected = by_hand(logits[:2, :1], torch.tensor([[0.9], [0.1]]))
    assert alone(logits[:2, :1], torch.tensor([[True], [False]])).tolist() == pytest.approx(expected, rel=1e-5)


def test_sigmoid_with_class_weights() -> None:
    logits = torch.randn(10, 5)
    plain, balanced = loss(loss="sigmoid"), loss(loss="sigmoid", class_weights="balanced")
    weight = torch.tensor([10 / 12] * 4 + [10 / 6] * 2 + [10 / 12] * 4)
    torch.testing.assert_close(balanced(logits, LABELS), plain(logits, LABELS) * weight)


def test_class_weights_have_mean_one() -> None:
    labels = torch.randint(0, 7, (1000,)).clamp(max=5)
    weights = loss(labels, 9, loss="softmax", class_weights="balanced").weights
    assert weights is not None
    assert weights[labels].mean().item() == pytest.approx(1, rel=1e-5)
    totals = torch.stack([weights[labels][labels == c].sum() for c in range(6)])
    torch.testing.assert_close(totals, totals[:1].expand(6))  # every class that occurs has the same total weight


def test_class_weights_for_several_labels() -> None:
    ours = loss(SEVERAL, 3, loss="sigmoid", class_weights="balanced")
    positive = torch.tensor([0.01, 3, 3])  # the first has no negatives: 0, limited to 1/100
    assert ours.positive_weights is not None
    torch.testing.assert_close(ours.positive_weights, positive)
    logits = torch.randn(4, 3)
    assert ours(logits, SEVERAL).tolist() == pytest.approx(by_hand(logits, SEVERAL.float(), positive), rel=1e-4)
    rare = torch.zeros(5000, 2, dtype=torch.bool)
    rare[0, 0] = True
    bounded = loss(rare, 2, loss="sigmoid", class_weights="balanced").positive_weights
    assert bounded is not None
    assert bounded.tolist() == [100, 1]  # one positive of 5,000; no positive


def test_loss_is_float32() -> None:
    logits = torch.randn(10, 5)
    for kind in ("softmax", "sigmoid"):
        assert loss(loss=kind)(logits.bfloat16(), LABELS).dtype == torch.float32
        assert loss(loss=kind)(logits * 1e4, LABELS).isfinite().all()


def test_dense_targets() -> None:
    ours = loss(loss="softmax", label_smoothing=0.3)
    assert torch.equal(ours.dense_targets(LABELS), F.one_hot(LABELS, 5).float())
    assert loss(SEVERAL, 3, loss="sigmoid").dense_targets(SEVERAL).tolist() == SEVERAL.float().tolist()
    with pytest.raises(VitreousError, match=r"\(batch,\) or \(batch, 5\), got \(4, 3\)"):
        ours.dense_targets(SEVERAL)


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
@pytest.mark.parametrize("class_weights", ["none", "balanced"])
def test_four_passes_equal_one_batch(kind: Any, class_weights: Any) -> None:
    x, labels = images(32, 3, 32, 32), torch.randint(0, 7, (32,))
    ours = loss(labels, 7, loss=kind, class_weights=class_weights, label_smoothing=0.1)
    gradients = []
    for passes in (1, 4):
        model = tiny_vit()
        for part in range(passes):
            rows = slice(part * 32 // passes, (part + 1) * 32 // passes)
            (ours(model(x[rows]), labels[rows]).sum() / 32).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    torch.testing.assert_close(gradients[1], gradients[0], atol=1e-6 * gradients[0].abs().max().item(), rtol=1e-4)


@pytest.mark.parametrize(
    ("labels", "classes", "options", "message"),
    [
        (SEVERAL, 3, {"loss": "softmax"}, "images have several; use 'sigmoid'"),
        (LABELS, 5, {"loss": None}, "have to be chosen"),
        (LABELS, 5, {"loss": "softmax", "label_smoothing": None}, "have to be chosen"),
        (LABELS, 5, {"loss": "hinge"}, "loss = 'hinge'"),
        (LABELS, 5, {"loss": "softmax", "label_smoothing": 1.0}, "label_smoothing = 1.0"),
        (LABELS, 5, {"loss": "softmax", "label_smoothing": float("nan")}, "label_smoothing = nan"),
        (LABELS, 5, {"loss": "softmax", "class_weights": "sqrt"}, "class_weights = 'sqrt'"),
        (LABELS, 3, {"loss": "softmax"}, "from 0 to 3, but the 3 classes are 0 to 2"),
        (LABELS - 1, 5, {"loss": "sigmoid"}, "from -1 to 2"),
        (LABELS.float(), 5, {"loss": "softmax"}, "classes as int64"),
        (LABELS[:0], 5, {"loss": "softmax"}, "one or more"),
        (SEVERAL, 4, {"loss": "sigmoid"}, "for 3 classes, but there are 4"),
        (SEVERAL.float() / 2, 3, {"loss": "sigmoid"}, "expected 0 or 1"),
        (LABELS * 0, 1, {"loss": "softmax"}, "needs at least 2 classes"),
    ],
)
def test_error_messages(labels: Tensor, classes: int, options: dict[str, Any], message: str) -> None:
    with pytest.raises(VitreousError, match=message):
        loss(labels, classes, **options)


def test_logits_of_the_wrong_shape() -> None:
    for logits in (torch.zeros(10, 7), torch.zeros(9, 5), torch.zeros(10, 4, 5)):
        with pytest.raises(VitreousError, match=r"expected logits \(10, 5\) for 10 targets"):
            loss(loss="softmax")(logits, LABELS)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_loss_does_not_synchronise_with_the_gpu(kind: Any) -> None:
    ours = build_loss(Objective(loss=kind, label_smoothing=0.1, class_weights="balanced"), LABELS, 5, "cuda")
    logits = torch.randn(10, 5, device="cuda", requires_grad=True)
    targets = LABELS.cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        ours(logits, ours.dense_targets(targets)).mean().backward()
        ours(logits, targets).mean().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
