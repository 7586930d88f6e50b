"""`predict` on image files with small models, compared with direct calls of the model."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from helpers import SMALL_RESNET, draw, tiny_vit
from vitreous.errors import VitreousError
from vitreous.models import BiT, BiTConfig
from vitreous.preprocessing import Preprocessing
from vitreous.serving.prediction import Prediction, predict_images
from vitreous.weights.model_info import labels_of


@pytest.fixture(scope="module")
def image_paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("images")
    paths = []
    for i in range(7):
        pixels = np.random.default_rng(i).integers(0, 256, (30 + i, 50 - i, 3), dtype=np.uint8)
        paths.append(folder / f"{i}.png")
        Image.fromarray(pixels).save(paths[-1])
    return paths


def direct_probabilities(model: Any, path: Path, preprocessing: Preprocessing) -> torch.Tensor:
    with torch.no_grad(), Image.open(path) as image:
        return model(preprocessing(image)[None])[0].softmax(-1)


def test_top_classes_equal_direct_calls(image_paths: list[Path]) -> None:
    model = tiny_vit()
    model.preprocessing = Preprocessing(size=32, resize=40, interpolation="bicubic", std=(0.2, 0.2, 0.2))
    model.labels = tuple("abcdefg")
    predictions = list(predict_images(model, image_paths, top=3, batch_size=3))
    assert [p.image for p in predictions] == image_paths
    for p in predictions:
        assert p.error is None
        probabilities = direct_probabilities(model, Path(p.image), model.preprocessing)
        order = probabilities.argsort(descending=True)[:3].tolist()
        assert [a.index for a in p.top] == order
        assert [a.label for a in p.top] == ["abcdefg"[i] for i in order]
        assert [a.probability for a in p.top] == pytest.approx(probabilities[order].tolist(), abs=1e-6)
    assert len({p.top for p in predictions}) == 7


def test_defaults_of_a_model_without_labels_and_preprocessing(image_paths: list[Path]) -> None:
    model = tiny_vit()
    (p,) = predict_images(model, image_paths[:1], top=100)
    probabilities = direct_probabilities(model, image_paths[0], Preprocessing(size=32))
    assert len(p.top) == 7  # all classes
    assert p.top[0].probability == pytest.approx(probabilities.max().item(), abs=1e-6)
    assert sum(a.probability for a in p.top) == pytest.approx(1)
    assert {a.label for a in p.top} == {None}
    (p,) = predict_images(tiny_vit(channels=1), image_paths[:1])
    assert len(p.top) == 5


def test_bit_and_paths_as_strings(image_paths: list[Path]) -> None:
    config = BiTConfig(**{**vars(SMALL_RESNET), "image_size": 32, "num_classes": 4})
    (p,) = predict_images(draw(BiT(config)), [str(image_paths[0])])
    assert p.image == str(image_paths[0])
    assert len(p.top) == 4


def test_batch_size_does_not_change_predictions(image_paths: list[Path]) -> None:
    model = tiny_vit()
    one, all_at_once = (list(predict_images(model, image_paths, batch_size=size)) for size in (1, 32))
    for a, b in zip(one, all_at_once, strict=True):
        assert [x.index for x in a.top] == [x.index for x in b.top]
        assert [x.probability for x in a.top] == pytest.approx([x.probability for x in b.top], abs=1e-6)


def test_paths_bytes_and_images_give_the_same_prediction(tmp_path: Path) -> None:
    """An image with EXIF rotation and a 16-bit grey image, as a path, opened by Pillow, and as bytes."""
    model, exif = tiny_vit(), Image.Exif()
    model.preprocessing = Preprocessing(size=32, resize=40, interpolation="bicubic")
    exif[0x0112] = 6
    pixels = np.random.default_rng(0).integers(0, 256, (60, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "sideways.jpg", exif=exif)
    Image.fromarray(np.linspace(0, 65535, 2400).reshape(60, 40).astype(np.uint16)).save(tmp_path / "deep.png")
    for path in (tmp_path / "sideways.jpg", tmp_path / "deep.png"):
        with Image.open(path) as image:
            tops = [p.top for p in predict_images(model, [path, image, path.read_bytes()], top=7, batch_size=1)]
        assert tops[0] == tops[1] == tops[2]
        probabilities = direct_probabilities(model, path, model.preprocessing)
        assert [a.probability for a in tops[0]] == pytest.approx(sorted(probabilities.tolist(), reverse=True))
    batch = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    assert [p.top for p in predict_images(model, batch)] == [p.top for p in predict_images(model, [pixels])]


def test_a_single_image_is_an_error(image_paths: list[Path]) -> None:
    with Image.open(image_paths[0]) as image:
        for one in (str(image_paths[0]), image_paths[0], image_paths[0].read_bytes(), image, np.asarray(image), None):
            with pytest.raises(VitreousError, match="images: expected several, such as a list of paths, got one"):
                predict_images(tiny_vit(), one)  # type: ignore[arg-type]
    (p,) = predict_images(tiny_vit(), [image_paths])  # type: ignore[list-item]
    assert p.error == "expected one image, got several"


def test_unreadable_files_keep_their_position(image_paths: list[Path], tmp_path: Path) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no image")
    paths = [broken, image_paths[0], tmp_path / "gone.png", image_paths[1], broken, broken]
    predictions = list(predict_images(tiny_vit(), paths, batch_size=2))
    assert [p.image for p in predictions] == paths
    reasons = [p.error for p in predictions]
    unreadable = "not an image, or not a supported format"
    assert reasons == [unreadable, None, "there is no such file", None, unreadable, unreadable]
    assert [bool(p.top) for p in predictions] == [error is None for error in reasons]


def test_1000_classes_without_names_get_imagenet_names(image_paths: list[Path]) -> None:
    model = tiny_vit(num_classes=1000)
    (p,) = predict_images(model, image_paths[:1], top=1000)
    assert {a.index: a.label for a in p.top}[207] == "golden retriever"
    model.labels = tuple(f"mine {i}" for i in range(1000))
    (p,) = predict_images(model, image_paths[:1], top=1)
    assert p.top[0].label == f"mine {p.top[0].index}"
    assert labels_of(tiny_vit()) is None


def test_eval_mode_and_inference_mode(image_paths: list[Path]) -> None:
    model = tiny_vit(dropout=0.5, stochastic_depth=0.5).train()
    first, second = (list(predict_images(model, image_paths[:2])) for _ in range(2))
    assert first == second
    seen = []
    model.register_forward_hook(lambda _m, _i, out: seen.append(out.is_inference()))
    for _ in predict_images(model, image_paths[:2], batch_size=1):
        assert not torch.is_inference_mode_enabled()  # inference mode does not leak to the caller
    assert seen == [True, True]


def test_precision_of_the_model_is_used(image_paths: list[Path]) -> None:
    model = tiny_vit()
    (expected,) = predict_images(model, image_paths[:1])
    (p,) = predict_images(model.double(), image_paths[:1])
    assert [a.index for a in p.top] == [a.index for a in expected.top]
    assert [a.probability for a in p.top] == pytest.approx([a.probability for a in expected.top], abs=1e-5)


@pytest.mark.gpu
def test_device_of_the_model_is_used(image_paths: list[Path]) -> None:
    model = tiny_vit()
    expected = list(predict_images(model, image_paths))
    for p, q in zip(predict_images(model.cuda(), image_paths), expected, strict=True):
        assert [a.probability for a in p.top] == pytest.approx([a.probability for a in q.top], abs=1e-3)


def test_images_are_read_at_most_two_batches_ahead(image_paths: list[Path]) -> None:
    taken = 0

    def endless() -> Iterator[Path]:
        nonlocal taken
        while True:
            taken += 1
            yield image_paths[0]

    predictions = predict_images(tiny_vit(), endless(), batch_size=2)
    for n in range(1, 20):
        assert next(predictions).top
        assert taken <= n + 6  # the current batch and two more
    before = threading.active_count()
    predictions.close()  # type: ignore[attr-defined]
    assert threading.active_count() < before


def test_wrong_arguments_are_an_error_before_iteration(image_paths: list[Path]) -> None:
    model = tiny_vit()
    with pytest.raises(VitreousError, match="top = 0: must be 1 or more"):
        predict_images(model, image_paths, top=0)
    with pytest.raises(VitreousError, match="batch_size = -1: must be 1 or more"):
        predict_images(model, image_paths, batch_size=-1)
    with pytest.raises(VitreousError, match="has no head: it returns features"):
        predict_images(tiny_vit(num_classes=0), image_paths)
    with pytest.raises(VitreousError, match="logits for every token"):
        list(predict_images(tiny_vit(pool="none"), image_paths))
    model.labels = ("cat", "dog")
    with pytest.raises(VitreousError, match="7 classes and 2 names"):
        predict_images(model, image_paths)
    model = tiny_vit(channels=1)
    model.preprocessing = Preprocessing(size=32)
    with pytest.raises(VitreousError, match="takes 1 channels, and its preprocessing is for 3"):
        predict_images(model, image_paths)


def test_nan_probabilities_are_an_error(image_paths: list[Path]) -> None:
    model = tiny_vit()
    with torch.no_grad():
        model.head.bias[3] = torch.nan
    (p,) = predict_images(model, image_paths[:1])
    assert p == Prediction(image_paths[0], (), p.error)
    assert "NaN" in str(p.error)
