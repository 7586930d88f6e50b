"""From images on disk to batches on the device: decoded by workers, or held there since the start.

A batch depends on the seed and on its position in the stream; never on the number of workers, nor on who decodes what.
"""

from __future__ import annotations

import signal
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from vitreous import draws
from vitreous.data.augmentation import crop_box, crop_boxes, crop_draws, flips
from vitreous.data.encoded import Encoded
from vitreous.data.held import Held
from vitreous.data.options import Augmentation
from vitreous.data.sampling import Stream
from vitreous.data.sources import Source, Subset
from vitreous.errors import VitreousError
from vitreous.preprocessing import Preprocessing

CHUNK = 64  # images that a worker hands over at a time
SPARE = 1.5  # held images are so much larger than the model's size, for crops of a part of them
FINE = 64  # a crop of fewer pixels a side is cut at fractions of them; for a larger one half a pixel is below 1%
VECTORS = torch.backends.cpu.get_cpu_capability().startswith("AVX")  # without, torch resizes more slowly than Pillow

# ---------------------------------------------------------------- one image


class Read(ABC):
    """What is made of an image: (height, width, channels), in uint8 unless the preprocessing wants fractions."""

    def drawn(self, keys: Tensor) -> Sequence[Any]:
        """What is random about each image, for many of them at once; here nothing is."""
        return [None] * len(keys)

    @abstractmethod
    def __call__(self, source: Source, index: int, drawn: Any) -> NDArray[Any]: ...


@dataclass(frozen=True)
class Look(Read):
    """Only whether the image can be decoded: at the smallest scale, every byte is read all the same."""

    def __call__(self, source: Source, index: int, drawn: Any) -> NDArray[Any]:
        source.image(index, (1, 1))
        return np.empty((0, 0, 1), np.uint8)


@dataclass(frozen=True)
class Prepare(Read):
    """As the model is shown it in evaluation."""

    preprocessing: Preprocessing

    def __call__(self, source: Source, index: int, drawn: Any) -> NDArray[Any]:
        return self.preprocessing.pixels(source.image(index)).permute(1, 2, 0).numpy()


@dataclass(frozen=True)
class Shrink(Read):
    """As it is held for training: large enough for crops, and no larger."""

    size: tuple[int, int]
    channels: int

    def __call__(self, source: Source, index: int, drawn: Any) -> NDArray[Any]:
        enough = (round(self.size[0] * SPARE), round(self.size[1] * SPARE))
        image = source.image(index, enough)
        scale = max(enough[0] / image.height, enough[1] / image.width)
        if scale < 1:
            smaller = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
            image = image.resize(smaller, Image.Resampling.BILINEAR)
        return _array(image, self.channels)


@dataclass(frozen=True)
class Crop(Read):
    """A random part of it, drawn by its key, decoded no larger than that needs."""

    size: tuple[int, int]
    channels: int
    options: Augmentation

    def drawn(self, keys: Tensor) -> Sequence[Any]:
        boxes = crop_draws(keys, self.size[1] / self.size[0], self.options)
        return list(zip(boxes.tolist(), flips(keys, self.options).tolist(), strict=True))

    def __call__(self, source: Source, index: int, drawn: Any) -> NDArray[Any]:
        place, mirrored = drawn
        share, aspect = self.options.crop or 1.0, self.options.aspect or 1.0
        reach = (aspect / share) ** 0.5  # the whole image, if the smallest crop of it is to fill the model's size
        image = _pixels(source, index, (round(self.size[0] * reach), round(self.size[1] * reach)))
        pixels = torch.from_numpy(_coloured(self._cut(image, *crop_box(place, *image.shape[:2])), self.channels))
        return (pixels.flip(1) if mirrored else pixels).numpy()

    def _cut(self, image: NDArray[Any], top: float, left: float, height: float, width: float) -> NDArray[Any]:
        """The box at the model's size, cut at whole pixels unless it has few of them. torch knows of no others; but it
        takes a fifth of Pillow's time and agrees with it to one grey level."""
        box = (left, top, left + width, top + height)
        if min(height, width) < FINE:
            return _by_pillow(image, self.size, box)
        x, y, right, bottom = map(round, box)
        part = image[y:bottom, x:right].copy()  # which torch may write to
        if not VECTORS:
            return _by_pillow(part, self.size)
        batch = torch.from_numpy(part)[None].permute(0, 3, 1, 2)
        return F.interpolate(batch, self.size, mode="bilinear", antialias=True).permute(0, 2, 3, 1)[0].numpy()


def _by_pillow(
    pixels: NDArray[Any], size: tuple[int, int], box: tuple[float, float, float, float] | None = None
) -> NDArray[Any]:
    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    return np.array(image.resize(size[::-1], Image.Resampling.BILINEAR, box=box)).reshape(*size, -1)


def _pixels(source: Source, index: int, at_least: tuple[int, int]) -> NDArray[Any]:
    """Of an image, (height, width, 1 or 3)."""
    while isinstance(source, Subset):
        index, source = int(source.indices[index]), source.source
    if isinstance(source, Encoded):
        return source.pixels(index, at_least)
    image = source.image(index, at_least)
    return np.asarray(image).reshape(image.height, image.width, -1)


def _coloured(pixels: NDArray[Any], channels: int) -> NDArray[Any]:
    if pixels.shape[2] == channels:
        return pixels
    if channels == 3:
        return np.repeat(pixels, 3, 2)
    return np.array(Image.fromarray(pixels).convert("L"))[..., None]


def _array(image: Image.Image, channels: int) -> NDArray[Any]:
    image = image.convert("L" if channels == 1 else "RGB")
    return np.asarray(image).reshape(image.height, image.width, channels)


# ---------------------------------------------------------------- many of them, by workers


@dataclass(frozen=True)
class Chunk:
    """Images one after the other in a row, with their heights and widths. A tensor that leaves a worker costs a file
    descriptor, so only the large one is one."""

    flat: Tensor
    sizes: NDArray[np.int64]  # (n, 2)
    indices: NDArray[np.int64]  # which they are: not those asked for, where one could not be read
    bad: tuple[tuple[int, str], ...]


class _Reader(Dataset[Chunk]):
    def __init__(self, source: Source, read: Read, replace: bool):
        self.source, self.read, self.replace = source, read, replace
        self.instead: dict[int, int] = {}  # of images that could not be read: those that were taken for them

    def __getitem__(self, task: tuple[Tensor, Tensor]) -> Chunk:
        indices, keys = task
        arrays, used = [], []
        bad: list[tuple[int, str]] = []
        for wanted, drawn in zip(indices.tolist(), self.read.drawn(keys), strict=True):
            if (found := self._found(wanted, drawn, bad)) is not None:
                arrays.append(found[0])
                used.append(found[1])
        sizes = np.array([array.shape[:2] for array in arrays], np.int64).reshape(-1, 2)
        return Chunk(_joined(arrays), sizes, np.array(used, np.int64), tuple(bad))

    def _found(self, wanted: int, drawn: Any, bad: list[tuple[int, str]]) -> tuple[NDArray[Any], int] | None:
        """The image; or, if it cannot be read, the next one that can be."""
        index, passed = self.instead.get(wanted, wanted), []
        for _ in range(len(self.source) if self.replace else 1):
            try:
                array = self.read(self.source, index, drawn)
            except VitreousError as error:
                bad.append((index, str(error)))
                passed.append(index)
                index = (index + 1) % len(self.source)
                index = self.instead.get(index, index)
                continue
            self.instead |= dict.fromkeys(passed, index)
            return array, index
        return None


def _joined(arrays: Sequence[NDArray[Any]]) -> Tensor:
    """In one row; by a worker in memory that the main process sees too, into which torch would copy it otherwise."""
    rows = [array.reshape(-1) for array in arrays]
    if not (count := sum(map(len, rows))):
        return torch.empty(0, dtype=torch.uint8)
    flat = torch.from_numpy(np.empty(0, rows[0].dtype))
    if get_worker_info() is None:
        flat = flat.new_empty(count)
    else:
        flat = flat.new_empty(0).set_(torch.UntypedStorage._new_shared(count * flat.element_size()))
    np.concatenate(rows, out=flat.numpy())
    return flat


def _ready(worker: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the main process decides


def chunks(
    source: Source, read: Read, tasks: Iterable[tuple[Tensor, Tensor]], workers: int, replace: bool
) -> Iterator[Chunk]:
    """The images of tasks (indices, keys), in order."""
    options: dict[str, Any] = {"prefetch_factor": 4, "worker_init_fn": _ready} if workers else {}
    with warnings.catch_warnings():  # that there are more workers than cores: whoever asks for them may have them
        warnings.simplefilter("ignore")
        loader: DataLoader[Chunk] = DataLoader(
            _Reader(source, read, replace), batch_size=None, sampler=tasks, num_workers=workers, **options
        )
    try:
        yield from loader
    except RuntimeError as error:
        if "DataLoader worker" in str(error):
            raise VitreousError(
                f"a process that decodes images came to its end ({str(error).splitlines()[0]}): memory may be short,"
                " try fewer --workers"
            ) from error
        raise


def in_chunks(indices: Tensor, keys: Tensor | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    yield from zip(indices.split(CHUNK), (indices if keys is None else keys).split(CHUNK), strict=True)


# ---------------------------------------------------------------- looking at all of them once


@dataclass(frozen=True)
class Survey:
    """What was found when every image was read once, and the images themselves if they are to be held."""

    bad: dict[int, str]
    held: Held | None = None


def survey(
    source: Source, read: Read, channels: int, workers: int, device: torch.device, tick: Callable[[int], None]
) -> Survey:
    """Read every image. An unreadable one is held as the next one that can be read."""
    bad: dict[int, str] = {}
    parts, sizes, hold = [], [], not isinstance(read, Look)
    for chunk in chunks(source, read, in_chunks(torch.arange(len(source))), workers, replace=hold):
        bad |= dict(chunk.bad)
        parts.append(chunk.flat.clone())  # a worker's tensor keeps a file open for as long as it lives
        sizes.append(torch.from_numpy(chunk.sizes))
        tick(min(CHUNK, len(source) - CHUNK * (len(parts) - 1)))
    held = Held.from_parts(parts, torch.cat(sizes), channels, device) if hold and len(bad) < len(source) else None
    return Survey(bad, held)


def stand_ins(count: int, bad: Iterable[int]) -> Tensor:
    """For each image the one that is shown: itself, or the next one that can be read."""
    broken = torch.zeros(count, dtype=torch.bool)
    broken[list(bad)] = True
    good = (~broken).nonzero()[:, 0]
    return good[torch.searchsorted(good, torch.arange(count)) % len(good)]


# ---------------------------------------------------------------- batches for training


@dataclass(frozen=True)
class Batch:
    """One process's part of a step, on the device."""

    rows: Tensor  # what the loader's `cut` makes pixels of: numbers of images that are held, or the pixels themselves
    keys: Tensor
    labels: Tensor
    bad: tuple[tuple[int, str], ...] = ()

    def __len__(self) -> int:
        return len(self.keys)


@dataclass(frozen=True)
class Cut:
    """Pixels of a batch: crops out of what is held, made on the device; or what the workers made already."""

    held: Held | None
    crop: Crop

    def __call__(self, rows: Tensor, keys: Tensor, size: tuple[int, int] | None = None) -> Tensor:
        """`size`: of the pixels, where it is not the one that they were read for."""
        held, whole, options = self.held, self.crop.size, self.crop.options
        if held is None:
            return resized(rows, size or whole)
        if options.crop == 1:  # held as they are shown
            pixels = held.whole(rows, whole)
            pixels = torch.where(flips(keys, options)[:, None, None, None], pixels.flip(3), pixels)
            return resized(pixels, size or whole)
        sizes, size = held.sizes[rows], size or whole
        boxes = crop_boxes(keys, sizes[:, 0], sizes[:, 1], size[1] / size[0], options)
        return held.crops(rows, boxes, flips(keys, options), size)


def resized(pixels: Tensor, size: tuple[int, int]) -> Tensor:
    """Images (B, C, H, W) at another size, antialiased."""
    if tuple(pixels.shape[2:]) == size:
        return pixels
    return F.interpolate(pixels.float(), size, mode="bilinear", antialias=True, align_corners=False)


@dataclass(frozen=True)
class TrainLoader:
    """The batches of a run. `rank` of `ranks` processes gets its own part of each."""

    source: Source
    stream: Stream
    survey: Survey
    crop: Crop
    batch_size: int
    seed: int
    workers: int
    device: torch.device
    rank: int = 0
    ranks: int = 1

    @property
    def cut(self) -> Cut:
        return Cut(self.survey.held, self.crop)

    @property
    def shown(self) -> Tensor:
        """For each image the one that is shown."""
        return stand_ins(len(self.source), self.survey.bad)

    def positions(self, step: int) -> tuple[int, int]:
        """Which part of the stream this process sees at a step."""
        share = self.batch_size // self.ranks
        start = step * self.batch_size + self.rank * share
        return start, start + share

    def batches(self, first: int, last: int) -> Iterator[Batch]:
        """Those of the steps from `first` to before `last`."""
        return self._held(first, last) if self.survey.held is not None else self._decoded(first, last)

    def _order(self, step: int) -> tuple[Tensor, Tensor]:
        start, stop = self.positions(step)
        return self.stream.indices(start, stop), draws.keys(self.seed, torch.arange(start, stop))

    def _held(self, first: int, last: int) -> Iterator[Batch]:
        labels = self.source.labels.to(self.device)
        shown = self.shown.to(self.device)
        for step in range(first, last):
            indices, keys = (_sent(tensor, self.device) for tensor in self._order(step))
            yield Batch(indices, keys, labels[shown[indices]])

    def _decoded(self, first: int, last: int) -> Iterator[Batch]:
        shown = self.shown
        tasks = (
            (shown[indices], keys) for step in range(first, last) for indices, keys in in_chunks(*self._order(step))
        )
        stream = chunks(self.source, self.crop, tasks, self.workers, replace=True)
        count = -(-(self.batch_size // self.ranks) // CHUNK)
        for step in range(first, last):
            parts = [next(stream) for _ in range(count)]
            pixels = _sent(_together([part.flat for part in parts], self.device), self.device)
            pixels = pixels.view(-1, *self.crop.size, self.crop.channels)
            pixels = pixels.permute(0, 3, 1, 2).contiguous()  # one channel after the other: all that follows is faster
            labels = self.source.labels[np.concatenate([part.indices for part in parts])]
            _, keys = self._order(step)
            bad = tuple(item for part in parts for item in part.bad)
            yield Batch(pixels, _sent(keys, self.device), _sent(labels, self.device), bad)


def _together(parts: Sequence[Tensor], device: torch.device) -> Tensor:
    """One row, in memory that the device can fetch by itself."""
    whole = parts[0].new_empty(sum(map(len, parts)), pin_memory=device.type == "cuda")
    return torch.cat(list(parts), out=whole)


def _sent(tensor: Tensor, device: torch.device) -> Tensor:
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)  # as it is, if it is pinned already


# ---------------------------------------------------------------- every image once


@dataclass(frozen=True)
class EvalLoader:
    """Every image that can be read, once, as the model is shown it in evaluation."""

    source: Source
    survey: Survey
    prepare: Prepare
    batch_size: int
    workers: int
    device: torch.device
    rank: int = 0
    ranks: int = 1
    unreadable: dict[int, str] | None = None  # filled on the way, where no survey has looked at the images before

    @property
    def indices(self) -> Tensor:
        """This process's part of them."""
        good = torch.ones(len(self.source), dtype=torch.bool)
        good[list(self.survey.bad)] = False
        return good.nonzero()[self.rank :: self.ranks, 0]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Pixels (B, C, H, W) in uint8, labels, and which images they are."""
        size = self.prepare.preprocessing.size
        assert isinstance(size, tuple)
        if (held := self.survey.held) is not None:
            labels = self.source.labels.to(self.device)
            for indices in self.indices.to(self.device).split(self.batch_size):
                yield held.whole(indices, size), labels[indices], indices
            return
        if not len(self.indices):
            return
        tasks = ((indices, indices) for indices in self.indices.split(self.batch_size))
        for chunk in chunks(self.source, self.prepare, tasks, self.workers, replace=False):
            if self.unreadable is not None:
                self.unreadable.update(chunk.bad)
            elif chunk.bad:
                raise VitreousError(f"{chunk.bad[0][1]}; it could be read when the data was checked")
            if not len(chunk.sizes):
                continue
            pixels = chunk.flat.view(len(chunk.sizes), *size, -1)
            found = torch.from_numpy(chunk.indices)
            indices, labels = (_sent(x, self.device) for x in (found, self.source.labels[found]))
            yield _sent(pixels, self.device).permute(0, 3, 1, 2), labels, indices
