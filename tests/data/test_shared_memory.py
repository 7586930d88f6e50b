"""Workers with a small, full or read-only /dev/shm: batches are the same, and one note gives advice."""

import os
import warnings
from pathlib import Path

import pytest
import torch

from limits import limited, mount_shared_memory
from pictures import encoded
from vitreous.data.encoded import FileSource
from vitreous.data.loading import EvalLoader, TrainLoader
from vitreous.data.options import Augmentation
from vitreous.data.sampling import TrainingSampler
from vitreous.data.scan import ScanResult, scan_images
from vitreous.data.transforms import DecodeCheck, EvalTransform, RandomResizedCrop, ResizeForCache
from vitreous.preprocessing import Preprocessing

CPU = torch.device("cpu")


@pytest.fixture
def files(tmp_path: Path) -> FileSource:
    names = [f"{number}.jpg" for number in range(8)]
    for number, name in enumerate(names):
        (tmp_path / name).write_bytes(encoded(number, "JPEG", height=240, width=240))
    return FileSource(tmp_path, names, torch.arange(8) % 2)


def loaded(files: FileSource, workers: int) -> list[str]:
    """Return digests of all decoded batches."""
    size = (224, 224)
    crop = RandomResizedCrop(size, 3, Augmentation(crop=0.5, aspect=1.5, flip=True))
    train = TrainLoader(files, TrainingSampler(8, 0), ScanResult({}), crop, 24, 0, workers, CPU)
    shown = EvalLoader(files, ScanResult({}), EvalTransform(Preprocessing(224)), 16, workers, CPU)
    held = scan_images(files, ResizeForCache(size, 3), 3, workers, CPU, lambda images: None).cached
    assert held is not None
    assert scan_images(files, DecodeCheck(), 3, workers, CPU, lambda images: None).bad == {}
    pixels = [*(batch.rows for batch in train.batches(0, 2)), *(batch for batch, *_ in shown), held.flat]
    return [str(tensor.long().sum().item()) for tensor in pixels]


def noted(
    files: FileSource, size: str, read_only: bool = False, fill: bool = False
) -> tuple[list[str], list[str]] | None:
    if not mount_shared_memory(size, read_only):
        return None
    if fill:
        with Path("/dev/shm/full").open("wb") as file:  # except for the last MiB, since queues need some pages
            os.posix_fallocate(file.fileno(), 0, (int(size[:-1]) - 1) << 20)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        found = loaded(files, 2)
    return found, [str(one.message) for one in caught]


@pytest.mark.parametrize(
    ("settings", "note"),
    [
        (("1m",), "/dev/shm (1 MiB) is too small for all decoded images: some go through pipes"),
        (("64m", False, True), "/dev/shm (64 MiB) is too small for all decoded images: some go through pipes"),
        (("1m", True), "images are decoded without worker processes, which is slower: /dev/shm cannot be used (Read-"),
    ],
    ids=["small", "full", "read-only"],
)
def test_too_little_shared_memory(files: FileSource, settings: tuple[object, ...], note: str) -> None:
    expected = loaded(files, 0)
    answer = limited(noted, files, *settings, seconds=60)
    if answer is None:
        pytest.skip("needs the right to mount (root, or a user namespace)")
    found, notes = answer
    assert found == expected
    assert set(notes) == {notes[0]}
    assert notes[0].startswith(note)
    assert "--shm-size" in notes[0]


def test_few_open_files(files: FileSource) -> None:
    """Tensors in shared memory need open files; with a low limit, pipes are used."""
    expected = loaded(files, 0)
    assert limited(loaded, files, 2, seconds=60, files=48) == expected


def test_no_note_if_there_is_enough_shared_memory(files: FileSource) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert loaded(files, 2) == loaded(files, 0)
