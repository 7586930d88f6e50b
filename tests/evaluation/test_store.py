"""Features on disk: complete, resumable, and of one model only."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers import tiny_vit
from vitreous import VitreousError
from vitreous.data.arrays import ArraySource
from vitreous.data.dataset import Source, Subset
from vitreous.data.encoded import FileSource
from vitreous.data.fingerprint import source_fingerprint
from vitreous.evaluation import store
from vitreous.evaluation.evaluated_model import EvaluatedModel
from vitreous.evaluation.features import extract_features
from vitreous.evaluation.inference_options import InferenceOptions
from vitreous.evaluation.store import read_features, write_features
from vitreous.preprocessing import default_preprocessing

OPTIONS = InferenceOptions(batch_size=7)
PREPROCESSING = default_preprocessing(32, 3)


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SHARD", 10)


def random_images(count: int = 34) -> ArraySource:
    random = np.random.default_rng(0)
    return ArraySource(random.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8), torch.arange(count) % 3, "x")


def tiny_model(seed: int = 0) -> EvaluatedModel:
    model = tiny_vit()
    with torch.no_grad():
        model.blocks[0].mlp.fc1.bias += seed
    return EvaluatedModel("tiny", model)


def write(folder: Path, source: Source, model: EvaluatedModel | None = None, **changes: object) -> list[int]:
    ticks: list[int] = []
    write_features(model or tiny_model(), source, folder, PREPROCESSING, OPTIONS, tick=ticks.append, **changes)  # type: ignore[arg-type]
    return ticks


def expected(source: Source) -> torch.Tensor:
    return extract_features(tiny_model().model, OPTIONS.loader(source, PREPROCESSING, {}))[0]


def test_features_round_trip(tmp_path: Path) -> None:
    source = random_images()
    assert sum(write(tmp_path / "f", source, about={"data": "x"})) == 34
    files = sorted(path.name for path in (tmp_path / "f").iterdir())
    assert files == [*(f"features-0000{i}.safetensors" for i in range(4)), "features.json"]
    found = read_features(tmp_path / "f")
    assert (found.features - expected(source)).abs().max() < 1e-5
    assert found.labels.tolist() == source.labels.tolist()
    assert found.indices.tolist() == list(range(34))
    assert found.names == tuple(source.name(i) for i in range(34))
    assert found.about == {"model": "tiny", "data": "x"}
    assert found.origin.model == tiny_model().digest
    assert found.origin.preprocessing == PREPROCESSING.to_json()


def test_only_missing_or_damaged_shards_are_computed(tmp_path: Path) -> None:
    source, folder = random_images(), tmp_path / "f"
    write(folder, source)
    dates = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    (folder / "features-00001.safetensors").unlink()
    damaged = folder / "features-00003.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-200] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(VitreousError, match="missing or damaged; run the same command"):
        read_features(folder)
    write(folder, source)
    for name in ("features-00000.safetensors", "features-00002.safetensors", "features.json"):
        assert (folder / name).stat().st_mtime_ns == dates[name]
    assert (read_features(folder).features - expected(source)).abs().max() < 1e-5


@pytest.mark.parametrize("change", [("x[12]", "x[99]"), ('"unreadable": {}', '"unreadable": 77')])
def test_a_damaged_shard_header_is_detected(tmp_path: Path, change: tuple[str, str]) -> None:
    """The header of a shard contains the names of the images."""
    source, folder = random_images(), tmp_path / "f"
    write(folder, source)
    shard = folder / "features-00001.safetensors"
    before, after = (text.replace('"', '\\"').encode() for text in change)
    content = shard.read_bytes()
    assert before in content
    shard.write_bytes(content.replace(before, after, 1))
    with pytest.raises(VitreousError, match="missing or damaged"):
        read_features(folder)
    write(folder, source)
    assert read_features(folder).names == tuple(source.name(i) for i in range(34))


def test_finished_shards_survive_an_interruption(tmp_path: Path) -> None:
    source, folder = random_images(), tmp_path / "f"

    def stop(images: int) -> None:
        if (folder / "features-00001.safetensors").exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_features(tiny_model(), source, folder, PREPROCESSING, OPTIONS, tick=stop)
    assert not (folder / "features-00003.safetensors").exists()
    kept = (folder / "features-00000.safetensors").stat().st_mtime_ns
    write(folder, source)
    assert (folder / "features-00000.safetensors").stat().st_mtime_ns == kept
    assert (read_features(folder).features - expected(source)).abs().max() < 1e-5


def test_features_of_another_model_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "f", random_images())
    with pytest.raises(VitreousError, match=r"features of another model \(content hash \w+, here \w+\)"):
        write(tmp_path / "f", random_images(), tiny_model(1))
    with pytest.raises(VitreousError, match="another model"):
        read_features(tmp_path / "f", model=tiny_model(1).digest)
    assert len(read_features(tmp_path / "f", model=tiny_model().digest).features) == 34
    with pytest.raises(VitreousError, match="features of other images"):
        write(tmp_path / "f", random_images(33))
    with pytest.raises(VitreousError, match="layer -1, not 0"):
        write(tmp_path / "f", random_images(), layer=0)


def test_folders_with_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").touch()
    with pytest.raises(VitreousError, match="not empty"):
        write(tmp_path, random_images())
    with pytest.raises(VitreousError, match="there are no features here"):
        read_features(tmp_path / "gone")
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / "features.json").write_text("{}")
    with pytest.raises(VitreousError, match="damaged"):
        read_features(tmp_path / "g")


def test_temporary_files_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    for name in (f".features.json.{int(gone.stdout)}.tmp", f".features-00000.safetensors.{int(gone.stdout)}.tmp"):
        (tmp_path / name).write_bytes(b"half")
    (tmp_path / f".features.json.{os.getpid()}.tmp").touch()  # of a running process
    assert sum(write(tmp_path, random_images())) == 34
    assert sorted(path.name for path in tmp_path.glob(".*")) == []  # the one of this process was renamed
    assert len(read_features(tmp_path).features) == 34


def test_concurrent_processes_can_write_the_same_features(tmp_path: Path) -> None:
    """Each process uses the shards of the others or writes them again; none fails."""
    code = """
import sys
sys.path[:0] = sys.argv[2:]
import test_store as t
from pathlib import Path
t.store.SHARD = 10
t.write(Path(sys.argv[1]), t.random_images())
"""
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    command = [sys.executable, "-c", code, str(tmp_path / "f"), *paths]
    started = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for process in started:
        _, error = process.communicate(timeout=120)
        assert process.returncode == 0, error
    assert len(read_features(tmp_path / "f").features) == 34


def test_an_error_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(VitreousError, match="use 0 to 1, or -1"):
        write(tmp_path / "f", random_images(), layer=2)
    broken = image_files(tmp_path / "pictures", 3)
    for path in (tmp_path / "pictures").iterdir():
        path.write_bytes(b"broken")
    with pytest.raises(VitreousError, match="no image can be read"):
        write(tmp_path / "f", broken)
    assert not (tmp_path / "f").exists()
    assert sum(write(tmp_path / "f", random_images(), layer=1)) == 34


def test_fingerprints_of_data_without_files(tmp_path: Path) -> None:
    """The content of every image is used, since rows of a table have no modification time."""

    class Table(Source):
        def __init__(self, changed: int | None = None):
            self.labels, self.changed = torch.zeros(600, dtype=torch.int64), changed

        def name(self, index: int) -> str:
            return f"row {index}"

        def content(self, index: int) -> bytes:
            return b"another" if index == self.changed else b"%d" % index

        def image(self, index: int) -> Any:
            raise AssertionError("a fingerprint decodes nothing")

    found = {source_fingerprint(Table(changed)) for changed in (None, 0, 1, 2, 331, 599)}
    assert len(found) == 6
    assert source_fingerprint(Table()) == source_fingerprint(Table())


def image_files(folder: Path, count: int = 24) -> FileSource:
    folder.mkdir()
    for number in range(count):
        random_images(count).image(number).save(folder / f"{number:02d}.png")
    return FileSource(folder, (f"{number:02d}.png" for number in range(count)), torch.arange(count) % 3)


def test_unreadable_images_are_left_out_and_reported(tmp_path: Path) -> None:
    source = image_files(tmp_path / "pictures")
    for number in (0, 9, 10, 23):  # at the edges of shards
        (tmp_path / "pictures" / f"{number:02d}.png").write_bytes(b"broken")
    write(tmp_path / "f", source)
    found = read_features(tmp_path / "f")
    assert sorted(found.unreadable) == [0, 9, 10, 23]
    assert "00.png" in found.unreadable[0]
    kept = [i for i in range(24) if i not in found.unreadable]
    assert found.indices.tolist() == kept
    assert found.labels.tolist() == [i % 3 for i in kept]
    whole = expected(Subset(source, torch.tensor(kept)))
    assert (found.features - whole).abs().max() < 1e-5


def test_image_names_round_trip(tmp_path: Path) -> None:
    source = image_files(tmp_path / "pictures", 3)
    write(tmp_path / "f", source)
    metadata = json.loads((tmp_path / "f" / "features.json").read_text())
    assert metadata["images"] == 3
    assert read_features(tmp_path / "f").names[2].endswith("pictures/02.png")


def test_fingerprints_change_with_content(tmp_path: Path) -> None:
    source = image_files(tmp_path / "pictures", 4)
    before = source_fingerprint(source)
    assert source_fingerprint(source) == before
    assert source_fingerprint(Subset(source, torch.arange(3))) != before
    (tmp_path / "pictures" / "01.png").write_bytes(b"another")
    assert source_fingerprint(source) != before
    first, second = random_images(), random_images()
    assert source_fingerprint(first) == source_fingerprint(second)
    second.labels = second.labels.flip(0)
    assert source_fingerprint(first) != source_fingerprint(second)
