"""Time loading JPEG folders with one core: Vitreous, a plain Pillow loader and Hugging Face datasets.

Each loader has one worker process, which shares a single core with the process that consumes the batches. The loaders
take turns, and the median of the rounds counts. The peers decode, crop, flip and normalise one image at a time in the
worker. Our worker delivers uint8; augmentation and normalisation follow on the device. Hence two rows of ours:

- "vitreous": normalised float32, computed in groups of 16 images. On a CPU the same core does this work.
- "handed over": the uint8 batch, which is all the CPU work if a GPU does the rest.

"without simplejpeg" is the uint8 batch with Pillow as the decoder; `pip install vitreous[fast]` installs simplejpeg.

FOLDER has a folder of JPEGs for each class. They are read unchanged at 128 and 160 px. For 224 px, the images of PHOTOS
(default: FOLDER) are first saved at 500 x 375 and JPEG quality 87. Decoders and resizers are also timed alone;
libraries that are not installed are skipped.

    python benchmarks/data_loading.py FOLDER --photos PHOTOS --out benchmarks/results/input-cpu.json
"""

import io
import itertools
import math
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler

from harness import RESULTS, argument_parser, environment, write_result
from vitreous.data.augmentation import augment, crop_boxes
from vitreous.data.encoded import FileSource
from vitreous.data.loading import TrainLoader
from vitreous.data.options import Augmentation
from vitreous.data.sampling import TrainingSampler
from vitreous.data.scan import ScanResult
from vitreous.data.transforms import RandomResizedCrop
from vitreous.preprocessing import IMAGENET_MEAN, IMAGENET_STD, preset
from vitreous.utils import images as decoding
from vitreous.utils import random_keys

CROPPED = Augmentation(0.08, 4 / 3, 0, flip=True, randaugment=0, three_augment=False, jitter=0, erase=0)
MEAN, STD = (torch.tensor(values).view(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
IMAGES, BATCH, PASS = 1000, 128, 16
BILINEAR = Image.Resampling.BILINEAR


# ---------------------------------------------------------------- the peers


def listed(folder: Path) -> tuple[list[str], list[int]]:
    """Return the names and classes of up to IMAGES files, evenly spaced in the sorted list."""
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.[jJ][pP]*[gG]"))
    names = names[:: max(1, len(names) // IMAGES)][:IMAGES]
    classes = sorted({Path(name).parts[0] for name in names})
    return names, [classes.index(Path(name).parts[0]) for name in names]


def usual_transform(image: Image.Image, size: int) -> Tensor:
    """Apply the usual training transform to one image: random resized crop, flip, to a tensor, normalise."""
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


class PillowDataset(Dataset[tuple[Tensor, int]]):
    def __init__(self, folder: Path, size: int):
        self.folder, self.size = str(folder), size
        self.names, self.labels = listed(folder)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        with Image.open(os.path.join(self.folder, self.names[index])) as image:  # noqa: PTH118
            return usual_transform(image.convert("RGB"), self.size), self.labels[index]


def pillow(folder: Path, size: int, device: torch.device) -> Iterator[Tensor]:
    yield from _sent((pixels for pixels, _ in _loaded(PillowDataset(folder, size), device)), device)


def datasets(folder: Path, size: int, device: torch.device) -> Iterator[Tensor]:
    def transform(rows: dict[str, Any]) -> dict[str, Any]:
        return {
            "pixels": [usual_transform(image.convert("RGB"), size) for image in rows["image"]],
            "label": rows["label"],
        }

    loaded = _loaded(_image_folder(folder).with_transform(transform), device)
    yield from _sent((rows["pixels"] for rows in loaded), device)


@cache
def _image_folder(folder: Path) -> Any:
    import datasets as library

    library.disable_progress_bars()
    names = [str(folder / name) for name in listed(folder)[0]]
    with tempfile.TemporaryDirectory() as cache_dir:
        return library.load_dataset(
            "imagefolder", data_files={"train": names}, split="train", cache_dir=cache_dir, keep_in_memory=True
        )


def _loaded(data: Any, device: torch.device) -> Iterator[Any]:
    endless = RandomSampler(data, num_samples=1 << 24)
    return iter(DataLoader(data, BATCH, sampler=endless, num_workers=1, pin_memory=device.type == "cuda"))


def _sent(batches: Iterator[Tensor], device: torch.device) -> Iterator[Tensor]:
    return (pixels.to(device, non_blocking=True) for pixels in batches)


# ---------------------------------------------------------------- ours


def vitreous(folder: Path, size: int, device: torch.device) -> Iterator[Tensor]:
    normalise = preset("deit", size).normalise
    for pixels, keys in _ours(folder, size, device):
        for part, its in zip(pixels.split(PASS), keys.split(PASS), strict=True):
            yield normalise(augment(part, its, CROPPED))


def uint8_batches(folder: Path, size: int, device: torch.device) -> Iterator[Tensor]:
    yield from (pixels for pixels, _ in _ours(folder, size, device))


def without_simplejpeg(folder: Path, size: int, device: torch.device) -> Iterator[Tensor]:
    before, decoding._simplejpeg = decoding._simplejpeg, lambda: None  # type: ignore[assignment]
    try:
        yield from uint8_batches(folder, size, device)
    finally:
        decoding._simplejpeg = before


def _ours(folder: Path, size: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    names, labels = listed(folder)
    files = FileSource(folder, names, torch.tensor(labels))
    crop, stream = RandomResizedCrop((size, size), 3, CROPPED), TrainingSampler(len(files), 0)
    loader = TrainLoader(files, stream, ScanResult({}), crop, BATCH, 0, 1, device)
    for batch in loader.batches(0, 1 << 24):
        yield loader.cropper(batch.rows, batch.keys), batch.keys


LOADERS: dict[str, Callable[[Path, int, torch.device], Iterator[Tensor]]] = {
    "pillow": pillow,
    "datasets": datasets,
    "vitreous": vitreous,
    "handed over": uint8_batches,
    "without simplejpeg": without_simplejpeg,
}


def rate(batches: Iterator[Tensor], seconds: float) -> float:
    """Return images/s, after the batches that were prefetched have been consumed."""
    ahead = 0
    while ahead < 4 * BATCH:
        ahead += len(next(batches))
    began, images = time.perf_counter(), 0
    while (taken := time.perf_counter() - began) < seconds:
        images += len(last := next(batches))
        if last.is_cuda:
            torch.cuda.synchronize()
    batches.close()  # type: ignore[attr-defined]
    return images / taken


def compare(folder: Path, size: int, device: torch.device, rounds: int, seconds: float) -> dict[str, Any]:
    found: dict[str, list[float]] = {name: [] for name in LOADERS}
    for _, (name, load) in itertools.product(range(rounds), LOADERS.items()):
        found[name].append(rate(load(folder, size, device), seconds))
    medians = {name: statistics.median(values) for name, values in found.items()}
    best = max(medians["pillow"], medians["datasets"])
    return {
        "size": size,
        "batch": BATCH,
        "images_per_second": {name: round(value) for name, value in medians.items()},
        "ratio_to_the_better_peer": {name: round(value / best, 2) for name, value in medians.items()},
        "least_and_most": {name: [round(min(values)), round(max(values))] for name, values in found.items()},
    }


# ---------------------------------------------------------------- decoders and resizers


def decoders() -> dict[str, Callable[[bytes], Any]]:
    """Return functions that decode the bytes of a JPEG."""

    def opened(data: bytes) -> Image.Image:
        image = Image.open(io.BytesIO(data))
        image.load()
        return image

    found: dict[str, Callable[[bytes], Any]] = {
        "Pillow": opened,
        "Pillow, as an array": lambda data: np.asarray(opened(data)),
        "vitreous": decoding.decode_array,
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


def resizers(size: int) -> dict[str, Callable[[Any, Any], Any]]:
    """Return functions that resize a box (left, top, right, bottom) of an image to the model's size."""

    def part(pixels: Any, box: Any) -> Any:
        left, top, right, bottom = map(round, box)
        return pixels[top:bottom, left:right].copy()

    def by_torch(pixels: Any, box: Any) -> Tensor:
        batch = torch.from_numpy(part(pixels, box))[None].permute(0, 3, 1, 2)
        return F.interpolate(batch, (size, size), mode="bilinear", antialias=True)

    found: dict[str, Callable[[Any, Any], Any]] = {
        "Pillow": lambda pixels, box: np.asarray(Image.fromarray(part(pixels, box)).resize((size, size), BILINEAR)),
        "torch, antialiased": by_torch,
    }
    try:
        import cv2

        found["OpenCV, area"] = lambda pixels, box: cv2.resize(
            part(pixels, box), (size, size), interpolation=cv2.INTER_AREA
        )
        found["OpenCV, linear, not antialiased"] = lambda pixels, box: cv2.resize(part(pixels, box), (size, size))
    except ImportError:
        pass
    return found


def parts(folder: Path, size: int, rounds: int) -> dict[str, Any]:
    """Return images/s of one core for decoding alone and for resizing alone."""
    files = [(folder / name).read_bytes() for name in listed(folder)[0][::5]]
    images = [np.asarray(Image.open(io.BytesIO(data)).convert("RGB")) for data in files]
    heights, widths = (torch.tensor([image.shape[side] for image in images]) for side in (0, 1))
    boxes = crop_boxes(random_keys.keys(0, torch.arange(len(files))), heights, widths, 1.0, CROPPED).tolist()
    edges = [(left, top, left + width, top + height) for top, left, height, width in boxes]
    jobs = {("decode", name): partial(_each, decode, files) for name, decode in decoders().items()}
    jobs |= {("resize", name): partial(_each, resize, images, edges) for name, resize in resizers(size).items()}
    times: dict[tuple[str, str], list[float]] = {job: [] for job in jobs}
    for _, (job, run) in itertools.product(range(rounds), jobs.items()):
        began = time.perf_counter()
        run()
        times[job].append(time.perf_counter() - began)
    rates = {job: round(len(files) / statistics.median(values)) for job, values in times.items()}
    return {"size": size} | {
        f"{what}_images_per_second": {name: value for (kind, name), value in rates.items() if kind == what}
        for what in ("decode", "resize")
    }


def _each(function: Callable[..., object], *rows: list[Any]) -> None:
    for row in zip(*rows, strict=True):
        function(*row)


# ---------------------------------------------------------------- command line


def photographs(folder: Path, into: Path) -> Path:
    """Save the images at 500 x 375 or 375 x 500 and JPEG quality 87, as is usual in ImageNet."""
    for number, name in enumerate(listed(folder)[0]):
        with Image.open(folder / name) as image:
            size = (500, 375) if image.width >= image.height else (375, 500)
            large = image.convert("RGB").resize(size, Image.Resampling.LANCZOS)
        path = into / f"{number % 10}" / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        large.save(path, quality=87)
    return into


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="a folder of JPEGs for each class")
    parser.add_argument("--photos", type=Path, help="images for 224 px (default: FOLDER)")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"), help="default: cpu")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each loader (default: 5)")
    parser.add_argument("--seconds", type=float, default=1.5, help="time of each turn (default: 1.5)")
    parser.add_argument("--out", type=Path, help="JSON file")
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
            tables["loaders"].append({"data": data, **compare(folder, size, args.device, args.rounds, args.seconds)})
            tables["parts"].append({"data": data, **parts(folder, size, args.rounds)})
            print(tables["loaders"][-1], tables["parts"][-1], sep="\n", flush=True)
    out = args.out or RESULTS / f"input-{args.device.type}.json"
    write_result(out, {**environment("PIL", "datasets", "simplejpeg", "cv2", "pyvips"), **tables})


if __name__ == "__main__":
    main()
