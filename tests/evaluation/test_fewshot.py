"""Few-shot evaluation compared with the reference implementation, and feature extraction with `model.features`."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import RidgeClassifier
from torch import Tensor

from helpers import draw, oracle, tiny_vit
from vitreous import VitreousError
from vitreous.data.arrays import ArraySource
from vitreous.data.loading import EvalLoader
from vitreous.data.scan import ScanResult
from vitreous.data.transforms import EvalTransform
from vitreous.evaluation.features import extract_features
from vitreous.evaluation.fewshot import Ridge, draw_shots, fewshot
from vitreous.models import BiT, BiTConfig
from vitreous.preprocessing import Preprocessing, default_preprocessing

Tensors = dict[str, Tensor]


def reference(kind: str) -> tuple[Tensors, dict[str, np.ndarray]]:
    _, arrays = oracle("fewshot_lsr")
    values = {name.removeprefix(f"{kind}_"): array for name, array in arrays.items() if name.startswith(kind)}
    return {name: torch.from_numpy(array) for name, array in values.items() if name[0] in "xy"}, values


@pytest.mark.parametrize("kind", ["few", "many"])  # fewer images than features, and more
@pytest.mark.parametrize("strength", ["0.25", "1", "1024"])
def test_predictions_equal_the_reference(kind: str, strength: str) -> None:
    """In float32 as in the reference. With a bias feature of 100 and a weak regularisation, rounding can decide between
    two classes: predictions may differ only where the exact scores are nearly equal."""
    data, expected = reference(kind)
    found = Ridge.fit(data["x_train"], data["y_train"], float(strength)).predict(data["x_test"])
    theirs = torch.from_numpy(expected[f"pred_l2_{strength}"])
    different = (found != theirs).nonzero().flatten()
    assert len(different) <= (strength != "1024")
    exact = Ridge.fit(data["x_train"].double(), data["y_train"], float(strength))
    scores = exact.scores(data["x_test"].double()[different])
    gaps = (scores.gather(1, found[different, None]) - scores.gather(1, theirs[different, None])).abs()
    assert (gaps < 0.01).all(), gaps
    accuracy = (found == data["y_test"]).double().mean().item()
    tolerance = len(different) / len(found) + 1e-6
    assert accuracy == pytest.approx(float(expected[f"acc_l2_{strength}"]), abs=tolerance)


@pytest.mark.parametrize("kind", ["few", "many"])
def test_default_strength_gives_the_same_predictions_in_float64(kind: str) -> None:
    data, expected = reference(kind)
    found = Ridge.fit(data["x_train"].double(), data["y_train"]).predict(data["x_test"].double())
    assert found.tolist() == expected["pred_l2_1024"].tolist()


def test_weights_equal_scikit_learn_ridge() -> None:
    """The bias feature is regularised like all others."""
    data, _ = reference("many")
    ours = Ridge.fit(data["x_train"].double(), data["y_train"], 3.0)
    x = ((data["x_train"].double() - ours.mean) / ours.std).numpy()
    x = np.concatenate([x, np.full((len(x), 1), 100.0)], 1)
    theirs = RidgeClassifier(alpha=3.0, fit_intercept=False).fit(x, data["y_train"].numpy())
    assert np.abs(ours.weights.T.numpy() - theirs.coef_).max() < 1e-9


def test_shots_depend_on_class_and_seed() -> None:
    labels = torch.arange(60) % 3
    chosen = draw_shots(labels, 5, seed=0)
    assert torch.bincount(labels[chosen]).tolist() == [5, 5, 5]
    assert len(set(chosen.tolist())) == 15
    assert torch.equal(chosen, draw_shots(labels, 5, seed=0))
    assert not torch.equal(chosen, draw_shots(labels, 5, seed=1))
    more = draw_shots(labels, 8, seed=0)
    assert set(chosen.tolist()) <= set(more.tolist())  # more shots extend fewer


def test_mean_and_standard_deviation_over_seeds() -> None:
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(200) % 4
    centres = torch.randn(4, 16, generator=random)
    points = centres[labels] + 2.0 * torch.randn(200, 16, generator=random)
    result = fewshot(points[:100], labels[:100], points[100:], labels[100:], shots=3, seeds=[7, 8, 9, 10])
    alone = [fewshot(points[:100], labels[:100], points[100:], labels[100:], 3, [s]).mean for s in (7, 8, 9, 10)]
    assert list(result.each) == alone
    assert len(set(alone)) > 1
    assert result.mean == pytest.approx(np.mean(alone))
    assert result.spread == pytest.approx(np.std(alone, ddof=1))
    assert result.mean > 0.5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shots": 11}, "11 shots: class 0 has only 10 training images; use fewer shots"),
        ({"shots": 0}, "shots = 0: must be 1 or more"),
        ({"seeds": []}, "seeds: none were given"),
        ({"train_labels": torch.zeros(3).long()}, "train: .* expected one row of features and one class"),
        ({"test_labels": torch.zeros(20, 2).bool()}, "test: .* expected one row of features and one class"),
        ({"test_features": torch.full((20, 4), torch.nan)}, "test: some features are NaN"),
    ],
)
def test_wrong_arguments(changes: dict[str, object], message: str) -> None:
    points, labels = torch.randn(20, 4), torch.arange(20) % 2
    given = {"train_features": points, "train_labels": labels, "test_features": points, "test_labels": labels}
    with pytest.raises(VitreousError, match=message):
        fewshot(**{**given, **changes})  # type: ignore[arg-type]


# ---------------------------------------------------------------- features


def grey_digits(count: int = 11) -> ArraySource:
    random = np.random.default_rng(0)
    return ArraySource(random.integers(0, 256, (count, 20, 26, 1), dtype=np.uint8), torch.arange(count) % 3, "x")


def loader(source: ArraySource, preprocessing: Preprocessing, bad: dict[int, str] | None = None) -> EvalLoader:
    return EvalLoader(source, ScanResult(bad or {}), EvalTransform(preprocessing), 4, 0, torch.device("cpu"))


@pytest.mark.parametrize("kind", ["vit", "bit"])
def test_features_equal_model_features(kind: str) -> None:
    bit = BiTConfig(blocks=(1, 1), width_factor=0.5, image_size=32, num_classes=7)
    model = tiny_vit(dropout=0.5).train() if kind == "vit" else draw(BiT(bit))
    preprocessing, source, ticks = Preprocessing(32, 36), grey_digits(), []
    found, labels = extract_features(model, loader(source, preprocessing), tick=ticks.append)
    assert ticks == [4, 4, 3]
    assert labels.tolist() == source.labels.tolist()
    assert found.dtype == torch.float32
    assert not model.training
    with torch.no_grad():
        alone = torch.cat([model.features(preprocessing(source.image(i))[None]) for i in range(len(source))])
    assert (found - alone).abs().max() < 1e-5 * alone.abs().max()


def test_unreadable_images_have_no_features_and_no_labels() -> None:
    found, labels = extract_features(
        tiny_vit(), loader(grey_digits(), default_preprocessing(32, 3), bad={0: "broken", 5: "broken"})
    )
    whole, _ = extract_features(tiny_vit(), loader(grey_digits(), default_preprocessing(32, 3)))
    kept = [1, 2, 3, 4, 6, 7, 8, 9, 10]
    assert labels.tolist() == [i % 3 for i in kept]
    assert (found - whole[kept]).abs().max() < 1e-5


def test_features_of_a_bf16_model_are_float32() -> None:
    found, _ = extract_features(tiny_vit().to(torch.bfloat16), loader(grey_digits(), default_preprocessing(32, 3)))
    exact, _ = extract_features(tiny_vit(), loader(grey_digits(), default_preprocessing(32, 3)))
    assert found.dtype == torch.float32
    assert 0 < (found - exact).abs().max() < 0.1 * exact.abs().max()


@pytest.mark.parametrize("pool", ["token", "gap"])
def test_features_of_a_layer_are_its_pooled_tokens(pool: str) -> None:
    model, source, preprocessing = tiny_vit(pool=pool, depth=3), grey_digits(5), default_preprocessing(32, 3)
    found, _ = extract_features(model, loader(source, preprocessing), layer=1)
    images = torch.stack([preprocessing(source.image(i)) for i in range(5)])
    with torch.no_grad():
        x, _ = model.embed(images)
        for block in model.blocks[:2]:
            x = block(x)
    expected = x[:, 0] if pool == "token" else x[:, model.config.prefix :].mean(1)
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()
    for wrong in (3, -2):
        with pytest.raises(VitreousError, match="use 0 to 2, or -1 for the representation before the head"):
            extract_features(model, loader(source, preprocessing), layer=wrong)


def test_layers_of_a_bit_are_an_error() -> None:
    bit = BiT(BiTConfig(blocks=(1, 1), width_factor=0.5, image_size=32, num_classes=7))
    with pytest.raises(VitreousError, match="this is a BiT"):
        extract_features(bit, loader(grey_digits(), default_preprocessing(32, 3)), layer=0)


def test_features_without_pooling_are_an_error() -> None:
    with pytest.raises(VitreousError, match="every token"):
        extract_features(tiny_vit(pool="none"), loader(grey_digits(), default_preprocessing(32, 3)))
