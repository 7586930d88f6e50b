"""The result of a run: on which images, with which interval, and how the weights were selected."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from runs import TINY_RUN, config, draw_folder, records
from vitreous import VitreousError, load, resume, train
from vitreous.data.dataset import Subset
from vitreous.data.digests import image_digests
from vitreous.data.open_data import open_data
from vitreous.evaluation.metrics import wilson_interval
from vitreous.evaluation.training_images import FILE, SeenImages


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough images for a test split."""
    return draw_folder(tmp_path_factory.mktemp("data") / "photos", images=40)


def right(model: Any, source: Any) -> float:
    """Return the accuracy, computed image by image."""
    answers = [model(model.preprocessing(source.image(i))[None]).argmax().item() for i in range(len(source))]
    return sum(a == b for a, b in zip(answers, source.labels.tolist(), strict=True)) / len(source)


def test_best_weights_are_evaluated_on_the_test_split(photos: Path, tmp_path: Path) -> None:
    changes = {"duration": "4 steps", "evaluate_every": "1 steps", "lr": 1e-4}
    outcome = train(photos, config(tmp_path / "run", **changes), quiet=True)
    data = open_data(photos)
    assert (outcome.split, outcome.result.images) == ("test", len(data.test)) == ("test", 18)
    assert outcome.result.top1 == right(load(outcome.run / "best.safetensors"), data.test)
    evaluations = records(outcome.run, "eval")
    assert len(evaluations) == 8  # raw and EMA weights
    (how,) = outcome.selection
    assert "best of 8 evaluations on 18 validation images" in how
    assert "not selected with the test images" in how
    stored = json.loads((outcome.run / "result.json").read_text())
    assert stored["selection"] == [how]
    low, high = stored["result"]["interval"]
    assert 0 <= low <= outcome.result.top1 <= high <= 1
    assert high - low > 0.1


def test_without_a_test_split_the_last_weights_are_evaluated(photos: Path, tmp_path: Path) -> None:
    """The last weights were not selected with the validation images."""
    changes = {"duration": "6 steps", "evaluate_every": "1 steps", "lr": 3e-2, "ema": 0.0, "test_fraction": 0.0}
    outcome = train(photos, config(tmp_path / "run", **changes), quiet=True)
    data = open_data(photos, config(tmp_path, test_fraction=0.0).reading)
    values = [line["top1"] for line in records(outcome.run, "eval")]
    assert outcome.split == "val"
    assert outcome.result.top1 == pytest.approx(values[-1])
    assert outcome.result.top1 == right(load(outcome.run / "last.safetensors"), data.val)
    measured, best = outcome.selection
    assert "last.safetensors" in measured
    assert "not selected with these images" in measured
    assert "best of 6 evaluations on 24 validation images" in best
    assert f"{max(values):.2%}" in best
    assert "expect a lower value on new images" in best


def test_output_and_report_state_the_selection(photos: Path, tmp_path: Path, vitreous: Callable[..., Any]) -> None:
    done = vitreous("train", photos, *TINY_RUN, "--duration", "6steps", "--evaluate-every", "3steps", "--out", "run")
    assert done.returncode == 0, done.stderr
    told = " ".join(done.stdout.split())
    assert re.search(r"\d+\.\d% accuracy on 18 test images \(95% interval, Wilson: \d+\.\d to \d+\.\d%\), after", told)
    assert "selected by top1: the best of 4 evaluations on 18 validation images" in told
    page = (tmp_path / "run" / "report.html").read_text()
    assert "accuracy on 18 test images (95% interval" in page
    assert "the best of 4 evaluations on 18 validation images" in page
    assert "highest val accuracy of 4 evaluations, selected" in page


def test_selection_without_validation_images(tmp_path: Path) -> None:
    for split in ("train", "test"):
        draw_folder(tmp_path / "data" / split, images=8)
    outcome = train(tmp_path / "data", config(tmp_path / "run", val_fraction=0.0, evaluate_every=None), quiet=True)
    assert outcome.split == "test"
    assert "not selected with validation images" in outcome.selection[0]


def test_early_stopping_is_stated_as_selection(photos: Path, tmp_path: Path) -> None:
    changes = {"evaluate_every": "1 steps", "patience": 1, "lr": 1e-9, "warmup": "0%", "test_fraction": 0.0}
    outcome = train(photos, config(tmp_path / "run", **changes), quiet=True)
    assert outcome.steps < 12
    assert "also decided when to stop" in outcome.selection[0]


def test_run_stores_image_digests(photos: Path, tmp_path: Path) -> None:
    outcome = train(photos, config(tmp_path / "run", duration="2 steps", evaluate_every=None), quiet=True)
    data, seen = open_data(photos), SeenImages.read(outcome.run)
    for name, source in data.splits.items():
        assert getattr(seen, name).equal(image_digests(source))
        assert len(getattr(seen, name).unique()) == len(source)
    # The initial weights have seen images too.
    more = train(photos, config(tmp_path / "next", **START, start=str(outcome.run), split_seed=1), quiet=True)
    assert SeenImages.read(more.run).earlier.equal(seen.train)


START = {
    **dict.fromkeys(("model", "patch_size", "width", "depth", "heads", "mlp_dim")),
    "duration": "2 steps",
    "evaluate_every": None,
}


def test_copies_of_training_images_are_left_out_of_a_held_out_test_split(photos: Path, tmp_path: Path) -> None:
    """A few images are in the folder twice, and the split puts copies of some on both sides."""
    folder = tmp_path / "copies"
    shutil.copytree(photos, folder)
    for path in sorted(folder.rglob("*.*"))[::2]:
        shutil.copy(path, path.with_stem(f"copy-{path.stem}"))
    data = open_data(folder)
    known = torch.cat([image_digests(data.train), image_digests(data.val)])
    unseen = ~torch.isin(image_digests(data.test), known)
    assert 0 < unseen.sum() < len(unseen)
    outcome = train(folder, config(tmp_path / "run", duration="4 steps"), quiet=True)
    assert outcome.result.images == int(unseen.sum())
    assert re.search(r"left out of the test images: copies of \d+ training images", outcome.selection[-1])
    source = Subset(data.test, unseen.nonzero().flatten())
    assert outcome.result.top1 == right(load(outcome.run / "best.safetensors"), source)


def test_training_images_in_a_stored_test_split_are_a_warning(photos: Path, tmp_path: Path) -> None:
    for split in ("train", "val", "test"):
        shutil.copytree(photos, tmp_path / "leak" / split)
    outcome = train(tmp_path / "leak", config(tmp_path / "run", duration="4 steps"), quiet=True)
    count = outcome.result.images
    assert outcome.selection[-1].startswith(f"WARNING: {count} of the {count} evaluated images are TRAINING IMAGES")
    assert outcome.selection[-1] in json.loads((outcome.run / "result.json").read_text())["selection"]
    assert "TRAINING IMAGES" in (outcome.run / "report.html").read_text()


def test_replaced_image_is_an_error_on_resume(tmp_path: Path) -> None:
    """An image is replaced by another of the same name and size while the run is interrupted."""
    data = draw_folder(tmp_path / "data")
    train(data, config(tmp_path / "run"), quiet=True)
    for name in ("result.json", "report.html"):
        (tmp_path / "run" / name).unlink()
    first, second = (data / "rot" / f"{number:03d}.jpg" for number in (0, 1))
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    with pytest.raises(VitreousError, match=r"content of 1 (train|val) images has changed"):
        resume(tmp_path / "run", quiet=True)
    first.write_bytes(content)
    assert resume(tmp_path / "run", quiet=True).steps == 12


def test_run_without_digests_can_be_resumed(tmp_path: Path) -> None:
    """A run that was killed before its digests were written."""
    data = draw_folder(tmp_path / "data")
    train(data, config(tmp_path / "run"), quiet=True)
    for name in ("result.json", "report.html", FILE):
        (tmp_path / "run" / name).unlink()
    resume(tmp_path / "run", quiet=True)
    assert SeenImages.read(tmp_path / "run") is not None


def test_coverage_of_the_confidence_interval() -> None:
    """About 95% of the intervals of random samples contain the true value."""
    generator = torch.Generator().manual_seed(0)
    for share, images in ((0.5, 36), (0.9, 36), (0.97, 200)):
        hits = torch.binomial(torch.full((4000,), float(images)), torch.tensor(share).expand(4000), generator)
        covered = [
            low <= share <= high for low, high in (wilson_interval(hit / images, images) for hit in hits.tolist())
        ]
        assert 0.92 < sum(covered) / len(covered) < 0.985
    assert wilson_interval(1.0, 10) == (pytest.approx(0.7225, abs=1e-3), pytest.approx(1.0))
    assert wilson_interval(0.0, 10)[0] == 0


def test_damaged_digests_are_not_blamed_on_the_images(tmp_path: Path) -> None:
    seen = SeenImages.of({"train": torch.arange(1, 9), "val": torch.arange(3)})
    seen.write(tmp_path)
    read = SeenImages.read(tmp_path)
    assert read is not None
    assert torch.equal(read.train, seen.train)
    content = bytearray((tmp_path / FILE).read_bytes())
    content[-70] ^= 1
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(VitreousError, match=f"{FILE}: cannot be read .*damaged"):
        SeenImages.read(tmp_path)
