"""Appendix D.5 of the paper: images per second, and the largest batch that fits into memory, by image size."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from vitreous.benchmark.batch_limit import CHECKED_SHARE, GpuMemory, batch_limit
from vitreous.benchmark.machine import StepTimes, time_steps
from vitreous.benchmark.synthetic import randomise_head_
from vitreous.errors import VitreousError, format_count
from vitreous.experiments.compare_figure import COLOURS, MARKERS
from vitreous.experiments.grid.cell_measures import CellMeasure, TrainedCell
from vitreous.experiments.grid.experiment import Cell, Experiment, Factor, Needs
from vitreous.experiments.grid.plots import plain_log_ticks
from vitreous.experiments.grid.statistics import Answer, Verdict
from vitreous.experiments.grid.tables import Entry, ResultTable
from vitreous.fast.accelerate import Precision, accelerate
from vitreous.models import zoo
from vitreous.models.cost import cost
from vitreous.models.resnet import BiTConfig
from vitreous.models.vit import ViTConfig
from vitreous.utils.figures import add_legend, new_figure
from vitreous.utils.memory import size_text
from vitreous.utils.sizes import pair
from vitreous.utils.torch_settings import run_settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from vitreous.experiments.grid.experiment import Scale
    from vitreous.experiments.grid.records import CellRecords
    from vitreous.experiments.grid.settings import Setting
    from vitreous.models import BiT, VisionTransformer

VITS, RESNETS = ("B/32", "L/32", "B/16", "L/16", "H/14"), ("BiT-R50x1", "BiT-R50x2", "BiT-R152x2")
MODELS: dict[Scale, tuple[str, ...]] = {
    "tiny": ("Ti/16", "S/16", "BiT-R50x1"),
    "small": (*VITS, *RESNETS),
    "paper": (*VITS, *RESNETS, "BiT-R152x4"),
}
SIZES: dict[Scale, tuple[int, ...]] = {"tiny": (32, 64), "small": (64, 128, 224, 384, 512)}
SIZES["paper"] = SIZES["small"]
# ViTs and the ResNet with the closest FLOPs at 224 px: the ratio is between 0.9 and 1.4.
PAIRS = (
    ("S/16", "BiT-R50x1"),
    ("B/32", "BiT-R50x1"),
    ("L/32", "BiT-R50x2"),
    ("B/16", "BiT-R50x2"),
    ("L/16", "BiT-R152x2"),
    ("H/14", "BiT-R152x4"),
)
LARGE = ("L/32", "L/16", "H/14")  # the ViTs that the conclusion on memory is about
COMPARABLE = 2.0  # the speed is comparable if it differs by less than this factor

# The larger of two batches has about this many FLOPs in a forward pass; the other one is a quarter of it.
BATCH_FLOPS = {"cuda": 1.6e13, "cpu": 1e9}
BATCH_RANGE = {"cuda": (16, 8192), "cpu": (4, 32)}
REPEATS = {"cuda": (5, 3), "cpu": (3, 1)}  # timed steps of a batch, and warm-up steps before them

SPEED, PLAIN_SPEED = "images/s", "images/s, plain"
TRAINING, INFERENCE = "training", "inference"


@dataclass(frozen=True)
class InferenceSpeed(CellMeasure):
    """Images per second of forward passes from images on the device to logits: of the fastest path for the device, and
    of plain PyTorch. As in the paper, each is the highest over batch sizes, of which there are two here."""

    model: str
    px: int

    def measure(self, cell: TrainedCell) -> dict[str, Any]:
        with measurement(cell.device, self.model, self.px):
            model, size = build_model_for(self.model, self.px, cell.device)
            precision: Precision = "bf16" if cell.device.type == "cuda" else "fp32"
            dtype = torch.bfloat16 if precision == "bf16" else torch.float32
            flops, batches = cost(model, size).flops.total, batch_sizes(model.config, size, cell.device)
            fast = accelerate(model, precision)
            plain = model.eval().to(dtype)

            def run_plain(images: torch.Tensor) -> object:
                with torch.inference_mode():
                    return plain(images)

            values: dict[str, Any] = {"size": size, "flops": flops, "precision": precision, "path": fast.path}
            timed: dict[str, Callable[[torch.Tensor], object]] = {SPEED: fast, PLAIN_SPEED: run_plain}
            if fast.path.startswith("plain"):
                del timed[SPEED]
            for name, run in timed.items():
                values |= best_speed(name, run, batches, model.config.channels, size, dtype, cell.device)
            if SPEED not in values:
                values |= {SPEED + end: values[PLAIN_SPEED + end] for end in ("", ": batch", ": spread (%)")}
        return values


def best_speed(
    name: str,
    run: Callable[[torch.Tensor], object],
    batches: tuple[int, int],
    channels: int,
    size: int,
    dtype: torch.dtype,
    device: torch.device,
) -> dict[str, Any]:
    """Time `run` with each batch size, and return the values of the fastest."""
    repeats, warm_up = REPEATS[device.type]
    found: list[tuple[float, int, StepTimes]] = []
    for batch in batches:
        images = torch.randn(batch, channels, size, size, device=device, dtype=dtype)
        times = time_steps(lambda images=images: run(images), device, repeats=repeats, warm_up=warm_up)  # type: ignore[misc]
        found.append((batch / times.median, batch, times))
    speed, batch, times = max(found, key=lambda one: one[0])
    spread = 100 * (max(times.seconds) - min(times.seconds)) / times.median
    return {name: speed, f"{name}: batch": batch, f"{name}: spread (%)": spread}


@dataclass(frozen=True)
class LargestBatch(CellMeasure):
    """The largest batch that fits into the memory of a GPU: for inference, with weights in bf16, and for training under
    autocast with gradients and the state of AdamW. Both run plain PyTorch. On other devices nothing is measured."""

    model: str
    px: int

    def measure(self, cell: TrainedCell) -> dict[str, Any]:
        if cell.device.type != "cuda":
            return {}
        values: dict[str, Any] = {}
        memory = GpuMemory(cell.device)
        with measurement(cell.device, self.model, self.px):
            model, size = build_model_for(self.model, self.px, cell.device)
            small, large = batch_sizes(model.config, size, cell.device)
            # Activations are stored, so fewer images are enough to measure their memory.
            few = (large // 32 or 1, large // 16 + (large < 32))
            found = {TRAINING: batch_limit(_training_pass(model, size), few, memory)}
            model.zero_grad(set_to_none=True)
            model.eval().to(torch.bfloat16)
            # Not checked: close to the limit, single tensors have more than 2^31 elements, which some kernels do not
            # support, and the pass of a large ViT takes half a minute.
            found[INFERENCE] = batch_limit(_inference_pass(model, size), (small, large), memory, check=False)
        for name, limit in found.items():
            values[f"largest {name} batch"] = limit.images
            values[f"{name}: bytes per image"] = limit.bytes_per_image
            values[f"{name}: checked with"] = limit.checked
            values[f"{name}: not verified"] = limit.failure
            values["memory"] = limit.available
        return values


def _inference_pass(model: VisionTransformer | BiT, size: int) -> Callable[[int], object]:
    device, channels = next(model.parameters()).device, model.config.channels

    def run(count: int) -> None:
        with torch.inference_mode():
            model(torch.zeros(count, channels, size, size, device=device, dtype=torch.bfloat16))

    return run


def _training_pass(model: VisionTransformer | BiT, size: int) -> Callable[[int], object]:
    """Forward and backward in bf16. The gradients stay allocated, and so does the memory that AdamW would take."""
    device, channels = next(model.parameters()).device, model.config.channels
    model.train()
    state = [torch.zeros_like(p) for p in model.parameters() for _ in range(2)]

    def run(count: int) -> None:
        assert state
        images = torch.zeros(count, channels, size, size, device=device)
        labels = torch.zeros(count, device=device, dtype=torch.long)
        with torch.autocast(device.type, torch.bfloat16):
            logits = model(images)
        F.cross_entropy(logits.float(), labels).backward()
        model.zero_grad(set_to_none=False)

    return run


@contextmanager
def measurement(device: torch.device, model: str, px: int) -> Iterator[None]:
    """Use the settings of a run. Running out of memory is an error that names the model."""
    if device.type not in BATCH_FLOPS:
        raise VitreousError(f"device {device}: speed is measured on cpu and cuda only")
    try:
        with run_settings(str(device)):
            yield
    except torch.OutOfMemoryError as error:
        raise VitreousError(f"out of memory on {device}: {model} at {px} px") from error


def build_model_for(name: str, px: int, device: torch.device) -> tuple[VisionTransformer | BiT, int]:
    """Return a model with random weights, and the image size: the multiple of the patch size closest to `px`."""
    size = usable_size(zoo.config(name), px)
    model = zoo.create(name, image_size=size, device=device)
    randomise_head_(model)
    return model, size


def usable_size(config: ViTConfig | BiTConfig, px: int) -> int:
    if isinstance(config, BiTConfig):
        return px
    patch = pair(config.patch_size)[0]
    return max(1, round(px / patch)) * patch


def batch_sizes(config: ViTConfig | BiTConfig, size: int, device: torch.device) -> tuple[int, int]:
    """Return two batch sizes, powers of 2, from the FLOPs of the model: large enough for the device."""
    least, most = BATCH_RANGE[device.type]
    images = BATCH_FLOPS[device.type] / cost(config, size).flops.total
    large = min(most, max(least, 2 ** round(math.log2(images))))
    return large // 4, large


class SpeedExperiment(Experiment):
    title = "images per second, and the largest batch that fits into memory, by model and image size"
    place = "Figure 12, Appendix D.5"
    conclusion = (
        "ViT models have speed comparable to similar ResNets. Large ViT models are more memory-efficient than ResNets."
    )
    seeds = {"tiny": 1, "small": 1, "paper": 1}  # noqa: RUF012 (as in the base class)
    needs = Needs(pretraining=False)
    time = {"tiny": "7 s on 2 CPU cores"}  # noqa: RUF012 (as in the base class)

    def cells(self, setting: Setting) -> list[Cell]:
        """Every seed is another measurement of the same model."""
        return [
            Cell({"model": model, "px": px}, (InferenceSpeed(model, px), LargestBatch(model, px)), seed, alone=True)
            for model in MODELS[setting.scale]
            for px in SIZES[setting.scale]
            for seed in range(setting.seeds)
        ]

    def table(self, records: CellRecords) -> ResultTable:
        names = [SPEED, PLAIN_SPEED, *(f"largest {kind} batch" for kind in (TRAINING, INFERENCE))]
        rows: list[tuple[Entry, ...]] = []
        for group in records.groups("model", "px"):
            flops, state = records.first("flops", **group), records.first(f"{TRAINING}: not verified", **group)
            numbers = [_mean(records, name, group) for name in names]
            numbers[2:2] = [None if flops is None else flops / 1e9]
            verified = None if state is None else "no" if state else "yes"
            rows.append((str(group["model"]), records.first("size", **group), *numbers, verified))
        columns = ("model", "image size (px)", SPEED, "images/s, plain PyTorch", "forward GFLOPs")
        batches = ("largest batch, training", "largest batch, inference", "training batch verified")
        return ResultTable((*columns, *batches), tuple(rows), tuple(_notes(records)))

    def verdict(self, records: CellRecords) -> Verdict:
        """Fixed rules on measured ratios. Timings on one machine say nothing about other machines, so nothing is
        tested."""
        speed = _ratios(records, PLAIN_SPEED, PAIRS)
        memory = _ratios(records, f"largest {TRAINING} batch", [pair for pair in PAIRS if pair[0] in LARGE])
        if not speed:
            return Verdict("undecided", "Nothing can be concluded: no ViT and ResNet of similar FLOPs have results.")
        fast = all(ratio > 1 / COMPARABLE for ratio in speed.values())
        sentences = [
            "Images/s in plain PyTorch, ViT divided by ResNet of similar FLOPs, geometric mean over image sizes:"
            f" {_list(speed)}. Rule: the speed is comparable if every ratio is above {1 / COMPARABLE:g}:"
            f" {'it is' if fast else 'it is not'}.",
        ]
        if accelerated := _ratios(records, SPEED, PAIRS):
            sentences.append(f"With the fastest path for each model: {_list(accelerated)}.")
        small = all(ratio > 1 for ratio in memory.values())
        if memory:
            sentences.append(
                f"Largest training batch, large ViT divided by ResNet of similar FLOPs: {_list(memory)}. Rule: large"
                f" ViTs are more memory-efficient if every ratio is above 1: {'they are' if small else 'they are not'}."
            )
        else:
            sentences.append("The memory of large ViTs was not measured.")
        if failed := len(records.failed):
            sentences.append(f"{format_count(failed, 'cell')} failed and {'are' if failed > 1 else 'is'} left out.")
        sentences.append("These are measurements on one machine, and there is no statistical test.")
        contradicted = not fast or not small
        answer: Answer = "no" if contradicted else "yes" if memory else "undecided"
        return Verdict(answer, " ".join(sentences))

    def draw(self, records: CellRecords) -> Figure | None:
        batch = f"largest {TRAINING} batch"
        panels = [(SPEED, "images/s, inference")]
        if records.has(batch):
            panels.append((batch, "largest batch, training (images)"))
        figure = new_figure(5.4 * len(panels) + 1.4, 4.4)
        handles: dict[str, Any] = {}
        for axis, (value, label) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            handles = _draw_panel(axis, records, value, label) | handles
        if handles:
            add_legend(figure, list(handles.values()), list(handles), loc="outside right upper", frameon=False)
        return figure


def _mean(records: CellRecords, value: str, group: dict[str, Factor]) -> Entry:
    """Return mean and standard deviation of several measurements, or the number if there is one."""
    summary = records.summary(value, **group)
    if summary is None or summary.seeds > 1:
        return summary
    return records.first(value, **group)  # type: ignore[no-any-return]


def _ratios(records: CellRecords, value: str, pairs: Any) -> dict[str, float]:
    """Return value(ViT) / value(ResNet) of each pair, the geometric mean over the image sizes that both have."""
    found = {}
    for vit, resnet in pairs:
        logs = []
        for group in records.where(model=vit).groups("px"):
            ours, theirs = (records.summary(value, model=model, **group) for model in (vit, resnet))
            if ours is not None and theirs is not None and theirs.mean:
                logs.append(math.log(ours.mean / theirs.mean))
        if logs:
            found[f"{vit} and {resnet}"] = math.exp(sum(logs) / len(logs))
    return found


def _list(ratios: dict[str, float]) -> str:
    return ", ".join(f"{ratio:.2f} ({names})" for names, ratio in ratios.items())


def _notes(records: CellRecords) -> Iterator[str]:
    models_by_path: dict[str, dict[str, None]] = {}
    for cell in records:
        if cell.values:
            path = f"{cell.values['precision']}, {cell.values['path']}"
            models_by_path.setdefault(path, {})[str(cell.factors["model"])] = None
    for path, models in models_by_path.items():
        yield f"Images/s of {', '.join(models)}: {path}."
    yield (
        "Images/s: forward passes from images on the device to logits; the median time of a few steps after warm-up,"
        " with the faster of two batch sizes. Plain PyTorch: the model's own code in the same precision, not compiled."
    )
    if changed := sorted(
        {(c.factors["px"], c.values["size"]) for c in records if c.values and _other_size(c.values, c)}
    ):
        sizes = ", ".join(f"{size} px instead of {px}" for px, size in changed)
        yield f"Sizes that the patch size does not divide are replaced by the closest that it does: {sizes}."
    spreads = [float(cell.values[f"{SPEED}: spread (%)"]) for cell in records if cell.values]
    if spreads:
        yield f"Largest difference between the timed steps of a cell: {max(spreads):.0f}% of their median."
    if not records.has("memory"):
        yield "The largest batch is measured on GPUs only."
        return
    memory = min(int(cell.values["memory"]) for cell in records if "memory" in cell.values)
    yield (
        f"Largest batch in plain PyTorch and bf16, for {size_text(memory)} of memory: extrapolated from the peak memory"
        f" of two small batches. Training keeps fp32 weights, gradients and the state of AdamW; verified: one pass with"
        f" {CHECKED_SHARE:.0%} of these images was run. Inference batches were not run."
    )
    for cell in records:
        if reason := cell.values.get(f"{TRAINING}: not verified"):
            yield f"Not verified: {cell.factors['model']} at {cell.values['size']} px: {reason}."


def _other_size(values: Any, cell: Any) -> bool:
    return bool(values["size"] != cell.factors["px"])


def _draw_panel(axis: Axes, records: CellRecords, value: str, label: str) -> dict[str, Any]:
    """Draw a value over the image size, on a logarithmic axis: ViTs as lines with filled markers, ResNets dashed with
    open ones. Return the handles for the legend."""
    handles = {}
    models = [str(group["model"]) for group in records.groups("model")]
    for resnet in (False, True):
        for number, model in enumerate(name for name in models if name.startswith("BiT") == resnet):
            points = []
            for group in records.where(model=model).groups("px"):
                summary = records.summary(value, model=model, **group)
                if summary is not None:
                    points.append((records.first("size", model=model, **group), summary.mean))
            if points:
                style: dict[str, Any] = {"color": COLOURS[number], "marker": MARKERS[number], "markersize": 6}
                if resnet:
                    style |= {"linestyle": "--", "markerfacecolor": "white"}
                (handles[model],) = axis.plot(*zip(*sorted(points), strict=True), **style)
    axis.set_yscale("log")
    plain_log_ticks(axis.yaxis)
    axis.set(xlabel="image size (px)", ylabel=label)
    axis.set_xticks(sorted({int(group["px"]) for group in records.groups("px")}))
    axis.grid(alpha=0.3)
    return handles


EXPERIMENT = SpeedExperiment()
