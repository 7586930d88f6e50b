"""Prediction on real files with small models, against the same done by hand."""

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
from vitreous.serving.prediction import Prediction, predict
from vitreous.weights.model_info import labels_of


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("pictures")
    paths = []
    for i in range(7):
        pixels = np.random.default_rng(i).integers(0, 256, (30 + i, 50 - i, 3), dtype=np.uint8)
        paths.append(folder / f"{i}.png")
        Image.fromarray(pixels).save(paths[-1])
    return paths


def by_hand(model: Any, path: Path, preprocessing: Preprocessing) -> torch.Tensor:
    with torch.no_grad(), Image.open(path) as image:
        return model(preprocessing(image)[None])[0].softmax(-1)


def test_the_answers(pictures: list[Path]) -> None:
    model = tiny_vit()
    model.preprocessing = Preprocessing(size=32, resize=40, interpolation="bicubic", std=(0.2, 0.2, 0.2))
    model.labels = tuple("abcdefg")
    predictions = list(predict(model, pictures, top=3, batch_size=3))
    assert [p.image for p in predictions] == pictures
    for p in predictions:
        assert p.error is None
        probabilities = by_hand(model, Path(p.image), model.preprocessing)
        order = probabilities.argsort(descending=True)[:3].tolist()
        assert [a.index for a in p.top] == order
        assert [a.label for a in p.top] == ["abcdefg"[i] for i in order]
        assert [a.probability for a in p.top] == pytest.approx(probabilities[order].tolist(), abs=1e-6)
    assert len({p.top for p in predictions}) == 7


def test_a_model_that_says_nothing_of_its_images(pictures: list[Path]) -> None:
    model = tiny_vit()
    (p,) = predict(model, pictures[:1], top=100)
    probabilities = by_hand(model, pictures[0], Preprocessing(size=32))
    assert len(p.top) == 7  # all there are
    assert p.top[0].probability == pytest.approx(probabilities.max().item(), abs=1e-6)
    assert sum(a.probability for a in p.top) == pytest.approx(1)
    assert {a.label for a in p.top} == {None}
    (p,) = predict(tiny_vit(channels=1), pictures[:1])
    assert len(p.top) == 5


def test_a_bit_and_strings_for_paths(pictures: list[Path]) -> None:
    config = BiTConfig(**{**vars(SMALL_RESNET), "image_size": 32, "num_classes": 4})
    (p,) = predict(draw(BiT(config)), [str(pictures[0])])
    assert p.image == str(pictures[0])
    assert len(p.top) == 4


def test_batches_do_not_change_the_answers(pictures: list[Path]) -> None:
    model = tiny_vit()
    one, all_at_once = (list(predict(model, pictures, batch_size=size)) for size in (1, 32))
    for a, b in zip(one, all_at_once, strict=True):
        assert [x.index for x in a.top] == [x.index for x in b.top]
        assert [x.probability for x in a.top] == pytest.approx([x.probability for x in b.top], abs=1e-6)


def test_a_file_and_the_image_in_it_have_the_same_answer(tmp_path: Path) -> None:
    """A photograph on its side and 16-bit grey: as a path, opened by Pillow, in bytes, and by hand in Python."""
    model, exif = tiny_vit(), Image.Exif()
    model.preprocessing = Preprocessing(size=32, resize=40, interpolation="bicubic")
    exif[0x0112] = 6
    pixels = np.random.default_rng(0).integers(0, 256, (60, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "sideways.jpg", exif=exif)
    Image.fromarray(np.linspace(0, 65535, 2400).reshape(60, 40).astype(np.uint16)).save(tmp_path / "deep.png")
    for path in (tmp_path / "sideways.jpg", tmp_path / "deep.png"):
        with Image.open(path) as image:
            answers = [p.top for p in predict(model, [path, image, path.read_bytes()], top=7, batch_size=1)]
        assert answers[0] == answers[1] == answers[2]
        probabilities = by_hand(model, path, model.preprocessing)
        assert [a.probability for a in answers[0]] == pytest.approx(sorted(probabilities.tolist(), reverse=True))
    batch = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    assert [p.top for p in predict(model, batch)] == [p.top for p in predict(model, [pixels])]


def test_one_image_is_not_several(pictures: list[Path]) -> None:
    with Image.open(pictures[0]) as image:
        for one in (str(pictures[0]), pictures[0], pictures[0].read_bytes(), image, np.asarray(image), None):
            with pytest.raises(VitreousError, match="images: expected several, such as a list of paths, got one"):
                predict(tiny_vit(), one)  # type: ignore[arg-type]
    (p,) = predict(tiny_vit(), [pictures])  # type: ignore[list-item]
    assert p.error == "expected one image, got several"


def test_files_that_cannot_be_decoded_stand_in_their_place(pictures: list[Path], tmp_path: Path) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no image")
    paths = [broken, pictures[0], tmp_path / "gone.png", pictures[1], broken, broken]
    predictions = list(predict(tiny_vit(), paths, batch_size=2))
    assert [p.image for p in predictions] == paths
    reasons = [p.error for p in predictions]
    unreadable = "not an image, or not a supported format"
    assert reasons == [unreadable, None, "there is no such file", None, unreadable, unreadable]
    assert [bool(p.top) for p in predictions] == [error is None for error in reasons]


def test_a_thousand_classes_are_imagenets(pictures: list[Path]) -> None:
    model = tiny_vit(num_classes=1000)
    (p,) = predict(model, pictures[:1], top=1000)
    assert {a.index: a.label for a in p.top}[207] == "golden retriever"
    model.labels = tuple(f"mine {i}" for i in range(1000))
    (p,) = predict(model, pictures[:1], top=1)
    assert p.top[0].label == f"mine {p.top[0].index}"
    assert labels_of(tiny_vit()) is None


def test_dropout_is_off_and_no_gradients_are_kept(pictures: list[Path]) -> None:
    model = tiny_vit(dropout=0.5, stochastic_depth=0.5).train()
    first, second = (list(predict(model, pictures[:2])) for _ in range(2))
    assert first == second
    seen = []
    model.register_forward_hook(lambda _m, _i, out: seen.append(out.is_inference()))
    for _ in predict(model, pictures[:2], batch_size=1):
        assert not torch.is_inference_mode_enabled()  # it does not leak to whoever reads the answers
    assert seen == [True, True]


def test_the_models_own_precision(pictures: list[Path]) -> None:
    model = tiny_vit()
    (expected,) = predict(model, pictures[:1])
    (p,) = predict(model.double(), pictures[:1])
    assert [a.index for a in p.top] == [a.index for a in expected.top]
    assert [a.probability for a in p.top] == pytest.approx([a.probability for a in expected.top], abs=1e-5)


@pytest.mark.gpu
def test_on_the_models_own_device(pictures: list[Path]) -> None:
    model = tiny_vit()
    expected = list(predict(model, pictures))
    for p, q in zip(predict(model.cuda(), pictures), expected, strict=True):
        assert [a.probability for a in p.top] == pytest.approx([a.probability for a in q.top], abs=1e-3)


def test_as_they_come_and_never_far_ahead(pictures: list[Path]) -> None:
    taken = 0

    def endless() -> Iterator[Path]:
        nonlocal taken
        while True:
            taken += 1
            yield pictures[0]

    predictions = predict(tiny_vit(), endless(), batch_size=2)
    for n in range(1, 20):
        assert next(predictions).top
        assert taken <= n + 6  # the batch being handed out, and two more
    before = threading.active_count()
    predictions.close()  # type: ignore[attr-defined]
    assert threading.active_count() < before


def test_mistakes_are_told_at_once(pictures: list[Path]) -> None:
    model = tiny_vit()
    with pytest.raises(VitreousError, match="top = 0: must be 1 or more"):
        predict(model, pictures, top=0)
    with pytest.raises(VitreousError, match="batch_size = -1: must be 1 or more"):
        predict(model, pictures, batch_size=-1)
    with pytest.raises(VitreousError, match="has no head: it gives features"):
        predict(tiny_vit(num_classes=0), pictures)
    with pytest.raises(VitreousError, match="answers for every token"):
        list(predict(tiny_vit(pool="none"), pictures))
    model.labels = ("cat", "dog")
    with pytest.raises(VitreousError, match="7 classes and 2 names"):
        predict(model, pictures)
    model = tiny_vit(channels=1)
    model.preprocessing = Preprocessing(size=32)
    with pytest.raises(VitreousError, match="takes 1 channels, and its preprocessing is for 3"):
        predict(model, pictures)


def test_an_answer_that_is_not_a_number_is_no_answer(pictures: list[Path]) -> None:
    model = tiny_vit()
    with torch.no_grad():
        model.head.bias[3] = torch.nan
    (p,) = predict(model, pictures[:1])
    assert p == Prediction(pictures[0], (), p.error)
    assert "not a number" in str(p.error)
