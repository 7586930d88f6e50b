"""Batches do not depend on workers, on the first step or on the number of processes, and no image is omitted."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from vitreous.data import transforms
from vitreous.data.arrays import ArraySource
from vitreous.data.augmentation import crop_boxes, flip_mask
from vitreous.data.dataset import Source, Subset
from vitreous.data.device_cache import CachedImages
from vitreous.data.encoded import FileSource
from vitreous.data.loading import Batch, EvalLoader, TrainLoader
from vitreous.data.options import Augmentation
from vitreous.data.parallel_decoding import CHUNK_SIZE
from vitreous.data.sampling import TrainingSampler
from vitreous.data.scan import ScanResult, replacement_indices, scan_images
from vitreous.data.transforms import DecodeCheck, EvalTransform, RandomResizedCrop, ResizeForCache
from vitreous.errors import VitreousError
from vitreous.preprocessing import Preprocessing, default_preprocessing
from vitreous.utils import images, random_keys

CPU = torch.device("cpu")
SIZE = (16, 20)
CROPPED = Augmentation(crop=0.3, aspect=1.5, flip=True)
BATCH = CHUNK_SIZE + 13  # more than the chunk size of a worker, and not a multiple of it
# torch warns about more workers than cores; here batches must not depend on the number of workers.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def scene(number: int) -> Image.Image:
    """Return an image like a photograph: smooth coloured shapes. Some are much larger than the model's input."""
    random = np.random.default_rng(number)
    coarse = random.integers(0, 256, (4, 5, 3), dtype=np.uint8)
    scale = 6 if number % 7 == 0 else 1
    width, height = (scale * int(random.integers(22, 50)) for _ in range(2))
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> FileSource:
    folder = tmp_path_factory.mktemp("photos")
    names = [f"{number:03}.jpg" for number in range(50)]
    for number, name in enumerate(names):
        scene(number).save(folder / name, quality=92)
    return FileSource(folder, names, torch.arange(50) % 4)


@pytest.fixture
def broken(source: FileSource, tmp_path: Path) -> FileSource:
    """The same source with unreadable images: two in a row, and the last one."""
    for number, name in enumerate(source.names):
        data = Path(source.name(number)).read_bytes()
        (tmp_path / name).write_bytes({7: b"no image", 8: data[:200], 49: b""}.get(number, data))
    return FileSource(tmp_path, source.names, source.labels)


def look(source: Source, read: Any, workers: int = 0) -> ScanResult:
    channels = 1 if isinstance(read, DecodeCheck) else 3
    return scan_images(source, read, channels, workers, CPU, lambda images: None)


def loader(source: Source, found: ScanResult | None = None, workers: int = 0, **changes: Any) -> TrainLoader:
    settings: dict[str, Any] = {"options": CROPPED, "batch_size": BATCH, "rank": 0, "ranks": 1, "seed": 3} | changes
    crop = RandomResizedCrop(settings.get("size", SIZE), 3, settings["options"])
    stream = TrainingSampler(len(source), settings["seed"])
    return TrainLoader(
        *(source, stream, found or ScanResult({}), crop, settings["batch_size"], settings["seed"], workers, CPU),
        rank=settings["rank"],
        ranks=settings["ranks"],
    )


def held(source: Source) -> ScanResult:
    return look(source, ResizeForCache(SIZE, 3))


def shown(loader: TrainLoader, first: int, last: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return pixels, keys and labels."""
    return [(loader.cropper(batch.rows, batch.keys), batch.keys, batch.labels) for batch in loader.batches(first, last)]


def same(one: list[tuple[Tensor, ...]], other: list[tuple[Tensor, ...]]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a, b) for left, right in zip(one, other, strict=True) for a, b in zip(left, right, strict=True)
    )


# ---------------------------------------------------------------- training batches


def test_any_number_of_workers_gives_the_same_batches(source: FileSource, broken: FileSource) -> None:
    for files, found in ((source, None), (broken, look(broken, DecodeCheck()))):
        alone = shown(loader(files, found), 0, 3)
        assert [len(pixels) for pixels, *_ in alone] == [BATCH] * 3
        assert alone[0][0].shape == (BATCH, 3, *SIZE)
        assert alone[0][0].dtype == torch.uint8
        for workers in (1, 4):
            assert same(alone, shown(loader(files, found, workers), 0, 3))


def test_any_number_of_workers_fills_the_same_cache(source: FileSource) -> None:
    alone = held(source).cached
    for workers in (1, 4):
        other = look(source, ResizeForCache(SIZE, 3), workers).cached
        assert torch.equal(alone.flat, other.flat)
        assert torch.equal(alone.sizes, other.sizes)
        assert torch.equal(alone.offsets, other.offsets)


@pytest.mark.parametrize("hold", [False, True])
def test_batches_from_any_first_step(source: FileSource, hold: bool) -> None:
    found = held(source) if hold else None
    whole = shown(loader(source, found, batch_size=12), 0, 6)
    for first in range(7):
        assert same(whole[first:], shown(loader(source, found, batch_size=12), first, 6))


@pytest.mark.parametrize("hold", [False, True])
@pytest.mark.parametrize("ranks", [2, 3])
def test_several_processes_get_the_batches_of_one(source: FileSource, hold: bool, ranks: int) -> None:
    found = held(source) if hold else None
    alone = shown(loader(source, found, batch_size=12), 0, 5)
    parts = [shown(loader(source, found, batch_size=12, rank=r, ranks=ranks), 0, 5) for r in range(ranks)]
    together = [tuple(torch.cat(tensors) for tensors in zip(*step, strict=True)) for step in zip(*parts, strict=True)]
    assert same(alone, together)


def test_labels_and_images_belong_together(source: FileSource) -> None:
    """The order is the same for decoded and cached images, and each image has its own label."""
    order = TrainingSampler(50, 3).indices(0, BATCH)
    for found in (None, held(source)):
        batch = next(loader(source, found).batches(0, 1))
        assert torch.equal(batch.labels, source.labels[order])
        assert torch.equal(batch.keys, random_keys.keys(3, torch.arange(BATCH)))
        assert len(batch) == BATCH


def test_every_epoch_has_other_crops(source: FileSource) -> None:
    """A repeated image has another key, and so another crop."""
    pixels, keys, _ = shown(loader(source, batch_size=100), 0, 1)[0]
    order = TrainingSampler(50, 3).indices(0, 100)
    again = [(order == image).nonzero()[:, 0].tolist() for image in range(50)]
    assert all(not torch.equal(pixels[first], pixels[second]) for first, second in again)
    assert len(keys.unique()) == 100


def test_an_unreadable_image_is_replaced_by_the_next(broken: FileSource) -> None:
    decoded, kept = (
        loader(broken, look(broken, DecodeCheck()), batch_size=50),
        loader(broken, held(broken), batch_size=50),
    )
    order = TrainingSampler(50, 3).indices(0, 50)
    expected = torch.tensor([{7: 9, 8: 9, 49: 0}.get(number, number) for number in order.tolist()])
    for each in (decoded, kept):
        batch = next(each.batches(0, 1))
        assert torch.equal(batch.labels, broken.labels[expected])
        assert batch.bad == ()
    batch = next(kept.batches(0, 1))
    wanted = kept.cropper(expected, batch.keys)  # the images, not only their labels
    assert torch.equal(kept.cropper(batch.rows, batch.keys), wanted)


def test_sources_of_one_image() -> None:
    tiny = ArraySource(np.full((1, 5, 5, 3), 7, np.uint8), torch.tensor([0]), "one")
    for found in (None, held(tiny)):
        for pixels, keys, labels in shown(loader(tiny, found, batch_size=5), 0, 3):
            assert (pixels == 7).all()
            assert len(keys.unique()) == 5
            assert labels.tolist() == [0] * 5


# ---------------------------------------------------------------- crops


def pillow_crops(source: Source, batch: Batch, order: Tensor, size: tuple[int, int] = SIZE) -> np.ndarray:
    """Crop the same boxes from the full image with Pillow."""
    found = []
    for index, key in zip(order.tolist(), batch.keys, strict=True):
        image = source.image(index)
        sides = torch.tensor([image.height]), torch.tensor([image.width])
        top, left, height, width = crop_boxes(key[None], *sides, size[1] / size[0], CROPPED)[0].tolist()
        box = (left, top, left + width, top + height)
        cut = np.asarray(image.resize(size[::-1], Image.Resampling.BILINEAR, box=box))
        found.append(cut[:, ::-1] if flip_mask(key[None], CROPPED) else cut)
    return np.stack(found).transpose(0, 3, 1, 2).astype(float)


@pytest.mark.parametrize("hold", [False, True])
def test_crops_equal_pillow(source: FileSource, hold: bool) -> None:
    """To a few grey levels: cached images were shrunk, and files may be decoded at a reduced size."""
    train = loader(source, held(source) if hold else None, batch_size=50)
    batch = next(train.batches(0, 1))
    ours = train.cropper(batch.rows, batch.keys).double().numpy()
    wanted = pillow_crops(source, batch, TrainingSampler(50, 3).indices(0, 50))
    assert ours.shape == wanted.shape
    each = np.abs(ours - wanted).mean((1, 2, 3))
    assert each.mean() < 1.5
    assert each.max() < 6
    assert wanted.std() > 40  # the crops are not constant


LARGE = (96, 120)


def gradients(folder: Path, mode: str = "RGB") -> FileSource:
    """Return images that are large enough for boxes of whole pixels, not so large that they are decoded at a reduced
    size for crops of LARGE, and smooth, so that half a pixel is a few grey levels."""
    names = [f"{number}.jpg" for number in range(12)]
    for number, name in enumerate(names):
        coarse = np.random.default_rng(number).integers(0, 256, (4, 5, 3), dtype=np.uint8)
        size = (200 + 10 * number, 300 - 10 * number)
        Image.fromarray(coarse).convert(mode).resize(size, Image.Resampling.BICUBIC).save(folder / name, quality=95)
    return FileSource(folder, names, torch.zeros(12, dtype=torch.int64))


@pytest.mark.parametrize("vectors", [False, True])
def test_large_crops_are_within_half_a_pixel(tmp_path: Path, vectors: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transforms, "HAS_AVX", vectors)
    files = gradients(tmp_path)
    batch = next(loader(files, size=LARGE, batch_size=48).batches(0, 1))
    ours, wanted = batch.rows.double().numpy(), pillow_crops(files, batch, TrainingSampler(12, 3).indices(0, 48), LARGE)
    each = np.abs(ours - wanted).mean((1, 2, 3))
    assert each.mean() < 1
    assert each.max() < 3
    assert wanted.std() > 40


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("channels", [1, 3])
def test_crops_in_colour_and_grey(tmp_path: Path, mode: str, channels: int) -> None:
    files = gradients(tmp_path, mode)
    parts = Subset(files, torch.tensor([3, 1, 2]))
    crop = RandomResizedCrop((160, 160), channels, Augmentation(crop=1.0, aspect=1.0, flip=False))
    for row, index in enumerate((3, 1, 2)):
        found = crop(parts, row, crop.draw_parameters(torch.tensor([0]))[0])
        whole = files.image(index).resize((160, 160), Image.Resampling.BILINEAR)
        wanted = np.asarray(whole.convert("L" if channels == 1 else "RGB")).reshape(160, 160, channels)
        assert found.shape == wanted.shape
        assert np.abs(found.astype(int) - wanted).max() <= 1


def test_batches_do_not_depend_on_the_decoder(
    source: FileSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("simplejpeg")
    for files in (source, gradients(tmp_path)):
        ours = shown(loader(files), 0, 2)
        with monkeypatch.context() as patch:
            patch.setattr(images, "_simplejpeg", lambda: None)
            assert same(ours, shown(loader(files), 0, 2))


def test_cached_images_are_no_larger_than_needed(source: FileSource) -> None:
    kept = held(source).cached
    for index in range(50):
        original = source.image(index)
        height, width = kept.sizes[index].tolist()
        assert height <= original.height
        assert width <= original.width
        if original.height > 1.5 * SIZE[0] + 1 and original.width > 1.5 * SIZE[1] + 1:
            assert height == 1.5 * SIZE[0] or width == 1.5 * SIZE[1]
            assert abs(width / height - original.width / original.height) < 0.05


@pytest.mark.parametrize("flip", [False, True])
def test_uncropped_images_are_preprocessed_as_in_evaluation(source: FileSource, flip: bool) -> None:
    preprocessing = default_preprocessing(SIZE, 3)
    options = Augmentation(crop=1.0, aspect=1.0, flip=flip)
    train = loader(source, look(source, EvalTransform(preprocessing)), options=options, batch_size=50)
    pixels, keys, _ = shown(train, 0, 1)[0]
    mirrored = (random_keys.uniform(keys, "flip", 1)[:, 0] < 0.5) & flip
    assert mirrored.any() == flip
    for row, index in enumerate(TrainingSampler(50, 3).indices(0, 50).tolist()):
        expected = preprocessing.pixels(source.image(index))
        assert torch.equal(pixels[row], expected.flip(2) if mirrored[row] else expected)


@pytest.mark.parametrize("channels", [1, 3])
def test_cached_images_from_an_array(channels: int) -> None:
    """Grey images are converted for an RGB model."""
    array = np.random.default_rng(0).integers(0, 256, (6, 4, 5, 1), dtype=np.uint8)
    kept = CachedImages.from_array(array, channels, CPU)
    pixels = kept.full_images(torch.tensor([5, 0, 0]), (4, 5))
    assert pixels.shape == (3, channels, 4, 5)
    for channel in range(channels):
        assert np.array_equal(pixels[:, channel].numpy(), array[[5, 0, 0], :, :, 0])


def test_colour_images_for_a_grey_model() -> None:
    """Training images are grey, and some validation images are not."""
    array = np.random.default_rng(0).integers(0, 256, (3, 4, 5, 3), dtype=np.uint8)
    pixels = CachedImages.from_array(array, 1, CPU).full_images(torch.arange(3), (4, 5))
    wanted = [np.asarray(Image.fromarray(image).convert("L")) for image in array]
    assert np.array_equal(pixels[:, 0].numpy(), np.stack(wanted))


# ---------------------------------------------------------------- evaluation


def evaluated(source: Source, found: ScanResult, batch: int, preprocessing: Preprocessing, **changes: Any) -> list[Any]:
    settings: dict[str, Any] = {"workers": 0, "rank": 0, "ranks": 1} | changes
    return list(EvalLoader(source, found, EvalTransform(preprocessing), batch, device=CPU, **settings))


MIDDLE = Preprocessing(SIZE, 18)


@pytest.mark.parametrize("hold", [False, True])
@pytest.mark.parametrize("batch", [1, 7, 47, 64])
def test_every_readable_image_once_and_in_order(broken: FileSource, hold: bool, batch: int) -> None:
    found = look(broken, EvalTransform(MIDDLE) if hold else DecodeCheck())
    batches = evaluated(broken, found, batch, MIDDLE)
    good = [number for number in range(50) if number not in (7, 8, 49)]
    pixels, labels, indices = (torch.cat(parts) for parts in zip(*batches, strict=True))
    assert indices.tolist() == good
    assert torch.equal(labels, broken.labels[good])
    for row, index in enumerate(good):
        assert torch.equal(pixels[row], MIDDLE.pixels(broken.image(index)))
    assert all(len(part) == batch for part, *_ in batches[:-1])


def test_evaluation_with_workers(broken: FileSource) -> None:
    found = look(broken, DecodeCheck())
    alone = evaluated(broken, found, 5, MIDDLE)
    for workers in (1, 4):
        assert same(alone, evaluated(broken, found, 5, MIDDLE, workers=workers))


@pytest.mark.parametrize("hold", [False, True])
@pytest.mark.parametrize("ranks", [2, 5])
def test_several_processes_share_the_evaluation_images(broken: FileSource, hold: bool, ranks: int) -> None:
    found = look(broken, EvalTransform(MIDDLE) if hold else DecodeCheck())
    parts = [evaluated(broken, found, 4, MIDDLE, rank=rank, ranks=ranks) for rank in range(ranks)]
    seen = [int(index) for part in parts for *_, indices in part for index in indices]
    assert sorted(seen) == [number for number in range(50) if number not in (7, 8, 49)]
    counts = [sum(len(indices) for *_, indices in part) for part in parts]
    assert max(counts) - min(counts) <= 1


def test_more_processes_than_images(tmp_path: Path) -> None:
    tiny = ArraySource(np.zeros((2, 16, 20, 3), np.uint8), torch.tensor([0, 1]), "two")
    for found in (look(tiny, DecodeCheck()), look(tiny, EvalTransform(MIDDLE))):
        parts = [evaluated(tiny, found, 4, MIDDLE, rank=rank, ranks=3) for rank in range(3)]
        assert sum(len(indices) for part in parts for *_, indices in part) == 2


def test_an_image_that_was_removed_before_evaluation(broken: FileSource) -> None:
    found = look(broken, DecodeCheck())
    Path(broken.name(20)).unlink()
    with pytest.raises(VitreousError, match=r"020\.jpg.*it was readable when the data was checked"):
        evaluated(broken, found, 8, MIDDLE)


# ---------------------------------------------------------------- looking at all of them


@pytest.mark.parametrize(
    "read", [DecodeCheck(), EvalTransform(MIDDLE), ResizeForCache(SIZE, 3)], ids=lambda read: type(read).__name__
)
@pytest.mark.parametrize("workers", [0, 2])
def test_exactly_the_broken_files_are_found(broken: FileSource, read: Any, workers: int) -> None:
    found = look(broken, read, workers)
    assert sorted(found.bad) == [7, 8, 49]
    for index, why in found.bad.items():
        assert why.startswith(broken.name(index))
    assert (found.cached is None) == isinstance(read, DecodeCheck)


def test_all_images_are_counted(source: FileSource) -> None:
    counted: list[int] = []
    scan_images(source, DecodeCheck(), 3, 0, CPU, counted.append)
    assert sum(counted) == 50


def test_a_source_without_one_readable_image(tmp_path: Path) -> None:
    files = FileSource(tmp_path, ["a.jpg", "b.jpg", "c.jpg"], torch.zeros(3, dtype=torch.int64))
    for read in (DecodeCheck(), ResizeForCache(SIZE, 3), EvalTransform(MIDDLE)):
        found = look(files, read)
        assert sorted(found.bad) == [0, 1, 2]
        assert found.cached is None


class Counting(ArraySource):
    """Images of which one class is unreadable, as after a failed download. Counts the accesses to each image."""

    asked = 0

    def image(self, index: int, at_least: tuple[int, int] | None = None) -> Image.Image:
        self.asked += 1
        if self.labels[index] == 1:
            raise VitreousError(f"{self.name(index)}: broken")
        return super().image(index, at_least)


def test_unreadable_images_are_not_read_repeatedly() -> None:
    labels = torch.repeat_interleave(torch.arange(3), 200)
    files = Counting(np.zeros((600, 4, 4, 3), np.uint8), labels, "many")
    found = look(files, ResizeForCache(SIZE, 3))
    assert len(found.bad) == 200
    assert files.asked < 4 * 600


@pytest.mark.parametrize("bad", [[], [0], [9], [0, 9], [3, 4, 5], [9, 8, 0, 1], list(range(9)), list(range(1, 10))])
def test_replacement_images(bad: list[int]) -> None:
    expected = [next(i % 10 for i in range(start, start + 10) if i % 10 not in bad) for start in range(10)]
    assert replacement_indices(10, bad).tolist() == expected


# ---------------------------------------------------------------- processes

ENDLESS = """
import multiprocessing, sys, time
import torch
from vitreous.data.encoded import FileSource
from vitreous.data.loading import TrainLoader
from vitreous.data.options import Augmentation
from vitreous.data.sampling import TrainingSampler
from vitreous.data.scan import ScanResult
from vitreous.data.transforms import RandomResizedCrop

source = FileSource(sys.argv[1], [f"{n:03}.jpg" for n in range(50)], torch.arange(50) % 4)
crop = RandomResizedCrop((16, 20), 3, Augmentation(crop=0.3, aspect=1.5, flip=True))
loader = TrainLoader(source, TrainingSampler(50, 0), ScanResult({}), crop, 8, 0, 2, torch.device("cpu"))
batches = loader.batches(0, 10**9)
next(batches)
print(*(child.pid for child in multiprocessing.active_children()), flush=True)
for _ in batches:
    time.sleep(0.01)
"""


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")
def test_workers_end_when_their_parent_is_killed(source: FileSource) -> None:
    command = [sys.executable, "-W", "ignore", "-c", ENDLESS, source.root]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    ) as run:
        workers = [int(pid) for pid in run.stdout.readline().split()]
        assert len(workers) == 2
        assert all(map(lives, workers))
        run.send_signal(signal.SIGKILL)
        run.wait()
        deadline = time.monotonic() + 20
        try:
            while any(map(lives, workers)) and time.monotonic() < deadline:
                time.sleep(0.1)
            assert not any(map(lives, workers))
        finally:
            for pid in filter(lives, workers):
                os.kill(pid, signal.SIGKILL)
