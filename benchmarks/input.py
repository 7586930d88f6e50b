"""From folders of JPEGs to batches, on one core: beside a plain Pillow loader and Hugging Face datasets.

Each loader has one worker process, which shares a single core with the process that takes the batches. All of them
decode, take a random resized crop, flip, and end at normalised float32 batches; "uint8" is ours up to the batch that is
handed over for augmentation and normalisation, which is all that a core has to do where a GPU does the rest. They take
turns, and the median of the rounds counts. A library that is not installed is left out.

FOLDER has a folder of JPEGs for each class. They are read as they are at 128 and 160 px; for 224 px, those of PHOTOS
(the same, unless it is given) are made 500 x 375 and saved again at quality 87 first.

python benchmarks/input.py FOLDER --photos PHOTOS --out benchmarks/results/input-cpu.json
"""

import argparse
import io
import itertools
import math
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler

from harness import RESULTS, environment, write
from vitreous import draws
from vitreous.data.augmentation import augment, crop_boxes
from vitreous.data.encoded import Files
from vitreous.data.loading import Crop, Survey, TrainLoader
from vitreous.data.options import Augmentation
from vitreous.data.sampling import Stream
from vitreous.preprocessing import IMAGENET_MEAN, IMAGENET_STD, preset

CROPPED = Augmentation(0.08, 4 / 3, 0, flip=True, randaugment=0, three_augment=False, jitter=0, erase=0)
MEAN, STD = (torch.tensor(values).view(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
IMAGES = 1000
BILINEAR = Image.Resampling.BILINEAR


# ---------------------------------------------------------------- loaders


def listed(folder: Path) -> tuple[list[str], list[int]]:
    """Names and classes of up to IMAGES files, evenly spaced."""
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.[jJ][pP]*[gG]"))
    names = names[:: max(1, len(names) // IMAGES)][:IMAGES]
    classes = sorted({Path(name).parts[0] for name in names})
    return names, [classes.index(Path(name).parts[0]) for name in names]


def varied(image: Image.Image, size: int) -> Tensor:
    """What a data set's transform usually is: crop, resize, flip, to a tensor, normalise."""
    width, height = image.size
    for _ in range(10):
        area, ratio = width * height * random.uniform(0.08, 1), math.exp(random.uniform(-1, 1) * math.log(4 / 3))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            break
    else:
        w = h = min(width, height)
    left, top = random.randint(0, width - w), random.randint(0, height - h)
    image = image.crop((left, top, left + w, top + h)).resize((size, size), BILINEAR)
    if random.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float().div_(255)
    return pixels.sub_(MEAN).div_(STD)


class Plain(Dataset[tuple[Tensor, int]]):
    def __init__(self, folder: Path, size: int):
        self.folder, self.size = str(folder), size
        self.names, self.labels = listed(folder)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        with Image.open(os.path.join(self.folder, self.names[index])) as image:  # noqa: PTH118
            return varied(image.convert("RGB"), self.size), self.labels[index]


def _loaded(data: Any, batch: int) -> Iterator[Any]:
    endless = RandomSampler(data, replacement=False, num_samples=1 << 24)
    return iter(DataLoader(data, batch, sampler=endless, num_workers=1))


def pillow(folder: Path, size: int, batch: int) -> Iterator[Tensor]:
    yield from (pixels for pixels, _ in _loaded(Plain(folder, size), batch))


def datasets(folder: Path, size: int, batch: int) -> Iterator[Tensor]:
    import datasets as library

    library.disable_progress_bars()
    names = [str(folder / name) for name in listed(folder)[0]]
    with tempfile.TemporaryDirectory() as cache:
        data = library.load_dataset("imagefolder", data_files={"train": names}, split="train", cache_dir=cache)

        def transform(rows: dict[str, Any]) -> dict[str, Any]:
            return {"pixels": [varied(image.convert("RGB"), size) for image in rows["image"]], "label": rows["label"]}

        yield from (rows["pixels"] for rows in _loaded(data.with_transform(transform), batch))


def uint8(folder: Path, size: int, batch: int) -> Iterator[Tensor]:
    yield from (pixels for pixels, _ in _ours(folder, size, batch))


def vitreous(folder: Path, size: int, batch: int) -> Iterator[Tensor]:
    normalise = preset("deit", size).normalise
    yield from (normalise(augment(pixels, keys, CROPPED)) for pixels, keys in _ours(folder, size, batch))


def _ours(folder: Path, size: int, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    names, labels = listed(folder)
    files = Files(folder, names, torch.tensor(labels))
    crop, stream = Crop((size, size), 3, CROPPED), Stream(len(files), 0)
    loader = TrainLoader(files, stream, Survey({}), crop, batch, 0, 1, torch.device("cpu"))
    for found in loader.batches(0, 1 << 24):
        yield loader.cut(found.rows, found.keys), found.keys


LOADERS: dict[str, Callable[[Path, int, int], Iterator[Tensor]]] = {
    "pillow": pillow,
    "datasets": datasets,
    "vitreous": vitreous,
    "uint8": uint8,
}


def rate(batches: Iterator[Tensor], seconds: float) -> float:
    """Images a second, once what was loaded ahead is used up."""
    for _ in range(4):
        next(batches)
    began, images = time.perf_counter(), 0
    while (taken := time.perf_counter() - began) < seconds:
        images += len(next(batches))
    batches.close()  # type: ignore[attr-defined]
    return images / taken


def compare(folder: Path, size: int, batch: int, rounds: int, seconds: float) -> dict[str, Any]:
    found: dict[str, list[float]] = {name: [] for name in LOADERS}
    for _, (name, load) in itertools.product(range(rounds), LOADERS.items()):
        found[name].append(rate(load(folder, size, batch), seconds))
    medians = {name: statistics.median(values) for name, values in found.items()}
    best = max(medians["pillow"], medians["datasets"])
    return {
        "size": size,
        "batch": batch,
        "images_per_second": {name: round(value) for name, value in medians.items()},
        "rounds": {name: [round(value) for value in values] for name, values in found.items()},
        "ratio_to_the_better_peer": round(medians["vitreous"] / best, 2),
        "ratio_up_to_uint8": round(medians["uint8"] / best, 2),
    }


# ---------------------------------------------------------------- decoders, and ways to resize a part


def decoders() -> dict[str, Callable[[bytes], Any]]:
    """From the bytes of a JPEG to its pixels."""
    from vitreous.data.decoding import decode

    def opened(data: bytes) -> Image.Image:
        image = Image.open(io.BytesIO(data))
        image.load()
        return image

    found: dict[str, Callable[[bytes], Any]] = {
        "Pillow": opened,
        "Pillow, to an array": lambda data: np.asarray(opened(data)),
        "vitreous (Pillow)": decode,
    }
    try:
        import simplejpeg

        found["simplejpeg"] = simplejpeg.decode_jpeg
    except ImportError:
        pass
    try:
        import cv2

        cv2.setNumThreads(1)
        found["OpenCV"] = lambda data: cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
    except ImportError:
        pass
    try:
        import pyvips

        found["pyvips"] = lambda data: pyvips.Image.new_from_buffer(data, "", access="sequential").numpy()
    except (ImportError, OSError):
        pass
    return found


def resizers(size: int) -> dict[str, Callable[[Image.Image, Any], Any]]:
    """A part (top, left, height, width) of a decoded image at the model's size."""

    def by_torch(image: Image.Image, box: Any) -> Tensor:
        top, left, height, width = box
        edges = (round(left), round(top), round(left + width), round(top + height))
        part = torch.from_numpy(np.array(image.crop(edges)))[None].permute(0, 3, 1, 2)
        return F.interpolate(part, (size, size), mode="bilinear", antialias=True)

    def by_pillow(image: Image.Image, box: Any) -> Any:
        top, left, height, width = box
        return np.asarray(image.resize((size, size), BILINEAR, box=(left, top, left + width, top + height)))

    return {"Pillow, of a box": by_pillow, "torch, of whole pixels (from Pillow's image)": by_torch}


def parts(folder: Path, size: int, rounds: int) -> dict[str, Any]:
    """Microseconds for an image: decoding alone, and resizing alone."""
    files = [(folder / name).read_bytes() for name in listed(folder)[0][::5]]
    images = [Image.open(io.BytesIO(data)).convert("RGB") for data in files]
    heights, widths = (torch.tensor([getattr(image, side) for image in images]) for side in ("height", "width"))
    boxes = crop_boxes(draws.keys(0, torch.arange(len(files))), heights, widths, 1.0, CROPPED).tolist()
    jobs: dict[str, Callable[[], object]] = {}
    for name, decode in decoders().items():
        jobs[f"decode: {name}"] = partial(_each, decode, files)
    for name, resize in resizers(size).items():
        jobs[f"resize: {name}"] = partial(_each, resize, images, boxes)
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for _, (name, job) in itertools.product(range(rounds), jobs.items()):
        began = time.perf_counter()
        job()
        times[name].append((time.perf_counter() - began) / len(files))
    return {"size": size, "microseconds": {name: round(1e6 * statistics.median(t)) for name, t in times.items()}}


def _each(function: Callable[..., object], *rows: list[Any]) -> None:
    for row in zip(*rows, strict=True):
        function(*row)


# ---------------------------------------------------------------- the run


def photographs(folder: Path, into: Path) -> Path:
    """500 x 375 or 375 x 500 at quality 87, as photographs on the web were when ImageNet was collected."""
    for number, name in enumerate(listed(folder)[0]):
        with Image.open(folder / name) as image:
            size = (500, 375) if image.width >= image.height else (375, 500)
            large = image.convert("RGB").resize(size, Image.Resampling.LANCZOS)
        path = into / f"{number % 10}" / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        large.save(path, quality=87)
    return into


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each loader in each round")
    parser.add_argument("--out", type=Path, default=RESULTS / "input-cpu.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # the workers inherit it
    tables: dict[str, list[Any]] = {"loaders": [], "parts": []}
    with tempfile.TemporaryDirectory() as made:
        photos = photographs(args.photos or args.folder, Path(made))
        for data, folder, size in (
            ("as it is", args.folder, 128),
            ("as it is", args.folder, 160),
            ("500 x 375", photos, 224),
        ):
            for table, row in (
                ("loaders", compare(folder, size, args.batch, args.rounds, args.seconds)),
                ("parts", parts(folder, size, args.rounds)),
            ):
                tables[table].append({"data": data, **row})
                print(tables[table][-1], flush=True)
    write(args.out, {**environment("PIL", "datasets", "simplejpeg", "cv2", "pyvips"), **tables})


if __name__ == "__main__":
    main()
