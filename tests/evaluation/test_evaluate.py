"""A model's answers on a data set, against answers taken one by one."""

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
from vitreous.evaluation.evaluate import evaluate
from vitreous.evaluation.matching import Match
from vitreous.evaluation.real_labels import RealScores, read_real
from vitreous.evaluation.subject import (
    Loading,
    Subject,
    learn_and_measure,
    measured_split,
    open_subject,
)
from vitreous.preprocessing import Preprocessing

LOADING = Loading(batch_size=8)


def subject(**changes: object) -> Subject:
    model = tiny_vit(**changes)
    model.preprocessing = Preprocessing(size=32, resize=36)
    return Subject("tiny", model)


def pictures(count: int = 30, classes: int = 3) -> ArraySource:
    random = np.random.default_rng(0)
    return ArraySource(random.integers(0, 256, (count, 40, 44, 3), dtype=np.uint8), torch.arange(count) % classes, "x")


@pytest.mark.parametrize("size", [None, 24, 48])
def test_every_image_once_at_any_size(size: int | None) -> None:
    one, source, seen = subject(), pictures(), []
    shown = one.shown(size)
    matched = Match((4, 0, 2), "")
    found = evaluate(one, source, matched, shown, LOADING, tick=seen.append)
    assert sum(seen) == found.result.images == 30
    with torch.no_grad():
        logits = torch.cat([one.model(shown(source.image(i))[None]) for i in range(30)])
    truth = torch.tensor(matched.places)[source.labels]
    assert found.result.top1 == pytest.approx((logits.argmax(1) == truth).double().mean().item())
    assert found.result.loss == pytest.approx(F.cross_entropy(logits, truth).item(), rel=1e-4)
    assert [score.images for score in found.result.per_class] == [10, 0, 10, 0, 10, 0, 0]
    assert found.size == (size or 32, size or 32)
    assert found.images_per_second > 0


def test_several_labels() -> None:
    one, source = subject(), pictures()
    source.labels = torch.rand(30, 3) < 0.4
    found = evaluate(one, source, Match((4, 0, 2), ""), one.shown(), LOADING)
    assert found.result.top1 is None
    assert [score.images > 0 for score in found.result.per_class] == [True, False, True, False, True, False, False]


def test_what_cannot_be_scored_is_one_sentence() -> None:
    one, match = subject(), Match((0, 1, 2), "")
    with pytest.raises(VitreousError, match=r"tiny has no head.*--with fewshot knn probe"):
        evaluate(subject(num_classes=0), pictures(), match, one.shown(), LOADING)
    with pytest.raises(VitreousError, match="every token"):
        evaluate(subject(pool="none"), pictures(), match, one.shown(), LOADING)
    with pytest.raises(VitreousError, match=r"tiny at size 30: .*24.*32"):
        one.shown(30)
    with pytest.raises(VitreousError, match="batch_size = 0"):
        Loading(batch_size=0)


def files(folder: Path, names: list[str]) -> FileSource:
    folder.mkdir()
    for number, name in enumerate(names):
        pictures().image(number).save(folder / name)
    return FileSource(folder, names, torch.arange(len(names)) % 3)


def test_unreadable_images_are_left_out_and_named(tmp_path: Path) -> None:
    source = files(tmp_path / "p", [f"{i}.png" for i in range(12)])
    for i in (3, 8, 9, 10, 11):  # the last batch of all has none
        (tmp_path / "p" / f"{i}.png").write_bytes(b"broken")
    found = evaluate(subject(), source, Match((0, 1, 2), ""), subject().shown(), LOADING)
    assert found.result.images == 7
    assert sorted(found.unreadable) == [3, 8, 9, 10, 11]
    for path in (tmp_path / "p").iterdir():
        path.write_bytes(b"")
    with pytest.raises(VitreousError, match="no image can be read"):
        evaluate(subject(), source, Match((0, 1, 2), ""), subject().shown(), LOADING)


# ---------------------------------------------------------------- several right answers


NAMES = [f"ILSVRC2012_val_{number:08d}.png" for number in (3, 1, 2, 5)]


def reassessed(path: Path, entries: object) -> Path:
    path.write_text(json.dumps(entries))
    return path


def test_real_labels_by_the_number_in_the_name(tmp_path: Path) -> None:
    source = files(tmp_path / "p", NAMES)
    path = reassessed(tmp_path / "real.json", [[5, 7], [], [999], [1], [0, 2, 4]])
    sets = read_real(path, source, None, 1000)
    assert sets.tolist() == [[999, -1, -1], [5, 7, -1], [-1, -1, -1], [0, 2, 4]]
    scores = RealScores(sets)
    logits = torch.zeros(4, 1000)
    logits[torch.arange(4), torch.tensor([999, 6, 3, 4])] = 1
    scores.add(logits[:3], torch.zeros(3), torch.zeros(3), torch.tensor([0, 1, 2]))
    scores.add(logits[3:], torch.zeros(1), torch.zeros(1), torch.tensor([3]))
    result = scores.result()
    assert (result.images, result.right, result.left_out, result.top1) == (3, 2, 1, pytest.approx(2 / 3))


def test_real_labels_that_do_not_fit(tmp_path: Path) -> None:
    source = files(tmp_path / "p", NAMES)
    path = reassessed(tmp_path / "real.json", [[5]] * 5)
    with pytest.raises(VitreousError, match="not the 1,000 of ImageNet"):
        read_real(path, source, ("cat", "dog"), 2)
    with pytest.raises(VitreousError, match=r"1\.png: its name does not tell which entry of real\.json"):
        read_real(path, files(tmp_path / "q", ["1.png"]), None, 1000)
    with pytest.raises(VitreousError, match="has 2 entries, and none for this number"):
        read_real(reassessed(path, [[5]] * 2), source, None, 1000)
    with pytest.raises(VitreousError, match="expected a list with a list"):
        read_real(reassessed(path, {"1": [5]}), source, None, 1000)
    scores = RealScores(read_real(reassessed(path, [[]] * 5), source, None, 1000))
    scores.add(torch.zeros(4, 1000), torch.zeros(4), torch.zeros(4), torch.arange(4))
    with pytest.raises(VitreousError, match="none of the images has a label"):
        scores.result()


# ---------------------------------------------------------------- models and splits by name


def test_a_random_model_is_always_the_same() -> None:
    state = torch.get_rng_state()
    first, second = open_subject("random:vitreous-mini"), open_subject("random:vitreous-mini")
    assert first.digest == second.digest != open_subject("vitreous-mini").digest
    assert torch.equal(torch.get_rng_state(), state)
    assert first.shown().size == (96, 96)
    with pytest.raises(VitreousError, match="no model is called"):
        open_subject("random:mini")


def folder(root: Path, *parts: str) -> Path:
    for part in parts:
        for label in ("cat", "dog"):
            (root / part / label).mkdir(parents=True)
            for number in range(10):
                colour = (number, 200 if label == "dog" else 0, len(part))
                Image.new("RGB", (8, 8), colour).save(root / part / label / f"{number}.png")
    return root


def test_which_split_is_measured(tmp_path: Path) -> None:
    alone = open_data(folder(tmp_path / "alone", "."))
    assert [(name, len(source)) for name, source in [measured_split(alone)]] == [("all", 20)]
    parts = learn_and_measure(alone)
    assert (len(parts.train), len(parts.test)) == (16, 4)
    assert "set aside" in parts.told
    both = open_data(folder(tmp_path / "both", "train", "val"))
    assert measured_split(both)[0] == "val"
    assert both.notes == ()
    three = open_data(folder(tmp_path / "three", "train", "val", "test"))
    assert measured_split(three)[0] == "test"
    assert measured_split(three, "val")[0] == "val"
    with pytest.raises(VitreousError, match=r"there is no test split; it has train and val \(--split\)"):
        measured_split(both, "test")
    with pytest.raises(VitreousError, match="cannot be learnt from train"):
        learn_and_measure(both, "train")
