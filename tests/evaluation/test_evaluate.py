"""`evaluate` on a data set, compared with predictions for single images."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from helpers import tiny_vit
from vitreous import VitreousError
from vitreous.data.arrays import ArraySource
from vitreous.data.encoded import FileSource
from vitreous.data.open_data import open_data
from vitreous.evaluation.evaluate import evaluate_source
from vitreous.evaluation.evaluated_model import EvaluatedModel, open_model
from vitreous.evaluation.evaluation_images import evaluation_split, train_and_test_images
from vitreous.evaluation.inference_options import InferenceOptions
from vitreous.evaluation.matching import ClassMapping
from vitreous.evaluation.real_labels import RealScores, read_real_labels
from vitreous.preprocessing import Preprocessing

OPTIONS = InferenceOptions(batch_size=8)


def tiny_model(**changes: object) -> EvaluatedModel:
    model = tiny_vit(**changes)
    model.preprocessing = Preprocessing(size=32, resize=36)
    return EvaluatedModel("tiny", model)


def random_images(count: int = 30, classes: int = 3) -> ArraySource:
    random = np.random.default_rng(0)
    return ArraySource(random.integers(0, 256, (count, 40, 44, 3), dtype=np.uint8), torch.arange(count) % classes, "x")


@pytest.mark.parametrize("size", [None, 24, 48])
def test_scores_agree_with_single_images_at_any_size(size: int | None) -> None:
    model, source, ticks = tiny_model(), random_images(), []
    preprocessing = model.preprocessing(size)
    mapping = ClassMapping((4, 0, 2), "")
    found = evaluate_source(model, source, mapping, preprocessing, OPTIONS, tick=ticks.append)
    assert sum(ticks) == found.result.images == 30
    with torch.no_grad():
        logits = torch.cat([model.model(preprocessing(source.image(i))[None]) for i in range(30)])
    truth = torch.tensor(mapping.indices)[source.labels]
    assert found.result.top1 == pytest.approx((logits.argmax(1) == truth).double().mean().item())
    assert found.result.loss == pytest.approx(F.cross_entropy(logits, truth).item(), rel=1e-4)
    assert [score.images for score in found.result.per_class] == [10, 0, 10, 0, 10, 0, 0]
    assert found.size == (size or 32, size or 32)
    assert found.images_per_second > 0


def test_multi_label_data() -> None:
    model, source = tiny_model(), random_images()
    source.labels = torch.rand(30, 3) < 0.4
    found = evaluate_source(model, source, ClassMapping((4, 0, 2), ""), model.preprocessing(), OPTIONS)
    assert found.result.top1 is None
    assert [score.images > 0 for score in found.result.per_class] == [True, False, True, False, True, False, False]


def test_errors_name_what_cannot_be_scored() -> None:
    model, mapping = tiny_model(), ClassMapping((0, 1, 2), "")
    with pytest.raises(VitreousError, match=r"tiny has no head.*--with fewshot knn probe"):
        evaluate_source(tiny_model(num_classes=0), random_images(), mapping, model.preprocessing(), OPTIONS)
    with pytest.raises(VitreousError, match="every token"):
        evaluate_source(tiny_model(pool="none"), random_images(), mapping, model.preprocessing(), OPTIONS)
    with pytest.raises(VitreousError, match=r"tiny at size 30: .*24.*32"):
        model.preprocessing(30)
    with pytest.raises(VitreousError, match="batch_size = 0"):
        InferenceOptions(batch_size=0)


def image_files(folder: Path, names: list[str]) -> FileSource:
    folder.mkdir()
    for number, name in enumerate(names):
        random_images().image(number).save(folder / name)
    return FileSource(folder, names, torch.arange(len(names)) % 3)


def test_unreadable_images_are_left_out_and_named(tmp_path: Path) -> None:
    source = image_files(tmp_path / "p", [f"{i}.png" for i in range(12)])
    for i in (3, 8, 9, 10, 11):  # the last batch has no readable image
        (tmp_path / "p" / f"{i}.png").write_bytes(b"broken")
    found = evaluate_source(tiny_model(), source, ClassMapping((0, 1, 2), ""), tiny_model().preprocessing(), OPTIONS)
    assert found.result.images == 7
    assert sorted(found.unreadable) == [3, 8, 9, 10, 11]
    for path in (tmp_path / "p").iterdir():
        path.write_bytes(b"")
    with pytest.raises(VitreousError, match="no image can be read"):
        evaluate_source(tiny_model(), source, ClassMapping((0, 1, 2), ""), tiny_model().preprocessing(), OPTIONS)


# ---------------------------------------------------------------- ImageNet ReaL labels


NAMES = [f"ILSVRC2012_val_{number:08d}.png" for number in (3, 1, 2, 5)]


def write_labels(path: Path, entries: object) -> Path:
    path.write_text(json.dumps(entries))
    return path


def test_real_labels_are_found_by_the_number_in_the_file_name(tmp_path: Path) -> None:
    source = image_files(tmp_path / "p", NAMES)
    path = write_labels(tmp_path / "real.json", [[5, 7], [], [999], [1], [0, 2, 4]])
    sets = read_real_labels(path, source, None, 1000)
    assert sets.tolist() == [[999, -1, -1], [5, 7, -1], [-1, -1, -1], [0, 2, 4]]
    scores = RealScores(sets)
    logits = torch.zeros(4, 1000)
    logits[torch.arange(4), torch.tensor([999, 6, 3, 4])] = 1
    scores.add(logits[:3], torch.zeros(3), torch.zeros(3), torch.tensor([0, 1, 2]))
    scores.add(logits[3:], torch.zeros(1), torch.zeros(1), torch.tensor([3]))
    result = scores.result()
    assert (result.images, result.right, result.left_out, result.top1) == (3, 2, 1, pytest.approx(2 / 3))


def test_wrong_real_labels_are_an_error(tmp_path: Path) -> None:
    source = image_files(tmp_path / "p", NAMES)
    path = write_labels(tmp_path / "real.json", [[5]] * 5)
    with pytest.raises(VitreousError, match="which this model does not have"):
        read_real_labels(path, source, ("cat", "dog"), 2)
    with pytest.raises(VitreousError, match=r"1\.png: the file name does not identify its entry of real\.json"):
        read_real_labels(path, image_files(tmp_path / "q", ["1.png"]), None, 1000)
    with pytest.raises(VitreousError, match="has 2 entries, none for this number"):
        read_real_labels(write_labels(path, [[5]] * 2), source, None, 1000)
    with pytest.raises(VitreousError, match="expected a list with a list"):
        read_real_labels(write_labels(path, {"1": [5]}), source, None, 1000)
    scores = RealScores(read_real_labels(write_labels(path, [[]] * 5), source, None, 1000))
    scores.add(torch.zeros(4, 1000), torch.zeros(4), torch.zeros(4), torch.arange(4))
    with pytest.raises(VitreousError, match="none of the images has a ReaL label"):
        scores.result()


# ---------------------------------------------------------------- models and splits by name


def test_random_weights_do_not_depend_on_the_global_seed() -> None:
    state = torch.get_rng_state()
    first, second = open_model("random:vitreous-mini"), open_model("random:vitreous-mini")
    assert first.digest == second.digest != open_model("vitreous-mini").digest
    assert torch.equal(torch.get_rng_state(), state)
    assert first.preprocessing().size == (96, 96)
    with pytest.raises(VitreousError, match="unknown model"):
        open_model("random:mini")


def make_folder(root: Path, *parts: str) -> Path:
    for part in parts:
        for label in ("cat", "dog"):
            (root / part / label).mkdir(parents=True)
            for number in range(10):
                colour = (number, 200 if label == "dog" else 0, len(part))
                Image.new("RGB", (8, 8), colour).save(root / part / label / f"{number}.png")
    return root


def test_default_splits(tmp_path: Path) -> None:
    unsplit = open_data(make_folder(tmp_path / "alone", "."))
    assert [(name, len(source)) for name, source in [evaluation_split(unsplit)]] == [("all", 20)]
    images = train_and_test_images(unsplit)
    assert (len(images.train), len(images.test)) == (16, 4)
    assert "held out" in images.description
    both = open_data(make_folder(tmp_path / "both", "train", "val"))
    assert evaluation_split(both)[0] == "val"
    assert both.notes == ()
    three = open_data(make_folder(tmp_path / "three", "train", "val", "test"))
    assert evaluation_split(three)[0] == "test"
    assert evaluation_split(three, "val")[0] == "val"
    with pytest.raises(VitreousError, match=r"there is no test split; it has train and val \(--split\)"):
        evaluation_split(both, "test")
    with pytest.raises(VitreousError, match="fitted to the train split and cannot be tested on train"):
        train_and_test_images(both, "train")
