"""Table 1 of the paper: the sizes of the models, and the pre-training compute of its Table 6. Nothing is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vitreous.experiments.compare_figure import COLOURS, MARKERS
from vitreous.experiments.grid.cell_measures import CellMeasure, TrainedCell
from vitreous.experiments.grid.experiment import Cell, Experiment, Needs
from vitreous.experiments.grid.plots import plain_log_ticks
from vitreous.experiments.grid.statistics import Verdict
from vitreous.experiments.grid.tables import Entry, ResultTable
from vitreous.models import zoo
from vitreous.models.cost import cost
from vitreous.models.resnet import BiTConfig
from vitreous.models.vit import ViTConfig
from vitreous.utils.figures import add_legend, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from vitreous.experiments.grid.records import CellRecords
    from vitreous.experiments.grid.settings import Setting

PIXELS = 224  # image size of pre-training
JFT_IMAGES = 303e6
TOLERANCE = 7.0  # percent

MODELS = ("Ti/16", "S/16", "B/32", "B/16", "L/32", "L/16", "H/14")
HYBRIDS = ("R50+B/32", "R50+B/16", "R50+L/32", "R50+L/16")
RESNETS = ("BiT-R50x1", "BiT-R50x2", "BiT-R101x1", "BiT-R152x1", "BiT-R152x2", "BiT-R200x3")
# The paper's hybrids without a name in the zoo: the one with the same backbone, and the variant of the encoder.
OTHER_HYBRIDS = {"R50+B/32": ("R50+L/32", "B"), "R50+L/16": ("R50+B/16", "L")}

PAPER_PARAMETERS = {"Base": 86, "Large": 307, "Huge": 632}  # millions, Table 1
SIZES = {"B/32": "Base", "B/16": "Base", "L/32": "Large", "L/16": "Large", "H/14": "Huge"}
# Pre-training exaFLOPs by model and number of epochs: Table 6 of the second version of the paper.
PAPER_EXAFLOPS: dict[str, dict[int, int]] = {
    "B/32": {7: 55},
    "B/16": {7: 224},
    "L/32": {7: 196},
    "L/16": {7: 783, 14: 1567},
    "H/14": {14: 4262},
    "R50+B/32": {7: 106},
    "R50+B/16": {7: 274},
    "R50+L/32": {7: 246},
    "R50+L/16": {7: 859, 14: 1668},
    "BiT-R50x1": {7: 50},
    "BiT-R50x2": {7: 199},
    "BiT-R101x1": {7: 96},
    "BiT-R152x1": {7: 141},
    "BiT-R152x2": {7: 563, 14: 1126},
    "BiT-R200x3": {14: 3306},
}
KINDS = {"ViT": MODELS, "hybrid": HYBRIDS, "ResNet": RESNETS}  # for the colours of the figure


def variant_config(model: str) -> ViTConfig | BiTConfig:
    """Return the config of a model of the paper."""
    if model in OTHER_HYBRIDS:
        name, variant = OTHER_HYBRIDS[model]
        return zoo.config(name, **zoo.VARIANTS[variant])
    return zoo.config(model)


@dataclass(frozen=True)
class VariantCost(CellMeasure):
    """Layers, width, parameters and FLOPs of a model, from its config."""

    model: str

    def measure(self, cell: TrainedCell) -> dict[str, Any]:
        config = variant_config(self.model)
        found = cost(config, PIXELS)
        values: dict[str, Any] = {"parameters": found.parameters, "flops": found.flops.total}
        if isinstance(config, ViTConfig):
            return {**values, **{name: getattr(config, name) for name in ("depth", "width", "mlp_dim", "heads")}}
        # Three convolutions per unit, the stem and the head, as in the name.
        return {**values, "depth": 3 * sum(config.blocks) + 2, "width": config.out_width}


@dataclass(frozen=True)
class Deviation:
    """A number of ours beside that of the paper."""

    model: str
    epochs: int | None  # None: the number of parameters in millions; otherwise pre-training exaFLOPs
    ours: float
    paper: float

    @property
    def percent(self) -> float:
        return 100 * (self.ours / self.paper - 1)

    @property
    def name(self) -> str:
        return f"{self.model}, parameters" if self.epochs is None else f"{self.model}, {self.epochs} epochs"


class VariantTable(Experiment):
    title = "layers, width, parameters, FLOPs and pre-training compute of the models"
    place = "Tables 1 and 6"
    conclusion = (
        "ViT-Base, Large and Huge have 86, 307 and 632 million parameters; pre-training takes between 50 exaFLOPs"
        " (R50x1, 7 epochs) and 4262 exaFLOPs (H/14, 14 epochs)."
    )
    seeds = {"tiny": 1, "small": 1, "paper": 1}  # noqa: RUF012 (as in the base class)
    time = dict.fromkeys(seeds, "3 s on 2 CPU cores")
    needs = Needs(pretraining=False)

    def cells(self, setting: Setting) -> list[Cell]:
        """One cell per model, whatever the scale and the number of seeds: nothing is random."""
        return [Cell({"model": model}, (VariantCost(model),)) for model in (*MODELS, *HYBRIDS, *RESNETS)]

    def table(self, records: CellRecords) -> ResultTable:
        rows: list[tuple[Entry, ...]] = []
        for group in records.groups("model"):
            model = str(group["model"])
            shape = [records.first(name, **group) for name in ("depth", "width", "mlp_dim", "heads")]
            parameters = _scaled(records.first("parameters", **group), 1e6)
            flops = _scaled(records.first("flops", **group), 1e9)
            paper = PAPER_PARAMETERS.get(SIZES.get(model, ""))
            for epochs, exaflops in PAPER_EXAFLOPS.get(model, {None: None}).items():
                own = None if epochs is None else pretraining_exaflops(records, model, epochs)
                deviation = None if own is None or exaflops is None else 100 * (own / exaflops - 1)
                rows.append((model, *shape, parameters, paper, flops, epochs, own, exaflops, deviation))
        columns = (
            *("model", "layers", "width", "MLP size", "heads", "parameters (M)", "paper: parameters (M)"),
            *("forward GFLOPs", "epochs", "pre-training exaFLOPs", "paper: exaFLOPs", "deviation of exaFLOPs (%)"),
        )
        return ResultTable(columns, tuple(rows), NOTES)

    def verdict(self, records: CellRecords) -> Verdict:
        """A comparison of numbers that follow from the configs: there is no chance, so there is no test."""
        found = deviations(records)
        expected = len(SIZES) + sum(map(len, PAPER_EXAFLOPS.values()))
        if not found:
            return Verdict("undecided", "Nothing can be concluded: no model has a result.")
        largest = max(found, key=lambda one: abs(one.percent))
        outside = [one for one in found if abs(one.percent) > TOLERANCE]
        numbers = f"{largest.name}: {largest.ours:,.1f} here, {largest.paper:,g} in the paper"
        rule = (
            f"{len(found) - len(outside)} of {len(found)} numbers of the paper are met within {TOLERANCE:g}%. The"
            f" largest deviation is {largest.percent:+.1f}% ({numbers}). This is a comparison of computed numbers"
            " without randomness, so there is no statistical test."
        )
        if len(found) < expected and not outside:
            return Verdict("undecided", f"{rule} {expected - len(found)} numbers have no result.")
        return Verdict("no" if outside else "yes", rule)

    def draw(self, records: CellRecords) -> Figure | None:
        found = deviations(records)
        figure = new_figure(10.5, 5.6)
        left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
        handles = _draw_agreement(left, [one for one in found if one.epochs is not None])
        kinds, points = list(handles), list(handles.values())
        add_legend(figure, points, kinds, loc="outside upper center", ncols=len(kinds), frameon=False)
        heights = range(len(found), 0, -1)
        for height, one in zip(heights, found, strict=True):
            colour, marker = _style(one.model)
            right.plot(one.percent, height, marker, color=colour, markersize=6)
        right.axvline(0, color="0.4", linewidth=1)
        right.set_yticks(list(heights), [one.name for one in found], fontsize=8)
        right.set(xlabel="deviation from the paper (%)", ylim=(0.4, len(found) + 0.6), xlim=(-TOLERANCE, TOLERANCE))
        if any(abs(one.percent) > TOLERANCE for one in found):
            right.set_xlim(auto=True)
            right.autoscale(axis="x")
        right.grid(axis="x", alpha=0.3)
        return figure


NOTES = (
    "Computed from the configs. Parameters with a head of 1000 classes. 2 FLOPs per multiply-add; image size 224 px.",
    "Pre-training exaFLOPs: 3 x forward FLOPs x 303 million images x epochs, and their deviation from the paper's.",
    "Paper: Table 1 (parameters of Base, Large and Huge, without a patch size); exaFLOPs and epochs from Table 6 of the"
    " second version (arXiv 2010.11929v2).",
    "ResNets: layers are convolutions and the head as in the name; the width is that of the last stage.",
    f"Not in the zoo, built from its parts: {' and '.join(OTHER_HYBRIDS)}.",
)


def pretraining_exaflops(records: CellRecords, model: str, epochs: int) -> float | None:
    """Return the FLOPs of pre-training on JFT-300M in units of 1e18; None if the cell has failed."""
    flops = records.first("flops", model=model)
    return None if flops is None else 3 * flops * JFT_IMAGES * epochs / 1e18


def deviations(records: CellRecords) -> list[Deviation]:
    """Return every number that the paper gives, with ours. Failed cells are left out."""
    found = []
    for model, size in SIZES.items():
        if (parameters := records.first("parameters", model=model)) is not None:
            found.append(Deviation(model, None, parameters / 1e6, PAPER_PARAMETERS[size]))
    for model, by_epochs in PAPER_EXAFLOPS.items():
        for epochs, paper in by_epochs.items():
            if (ours := pretraining_exaflops(records, model, epochs)) is not None:
                found.append(Deviation(model, epochs, ours, paper))
    return found


def _scaled(value: int | None, unit: float) -> float | None:
    return None if value is None else value / unit


def _style(model: str) -> tuple[str, str]:
    """Return the colour and marker of a model."""
    number = next(i for i, models in enumerate(KINDS.values()) if model in models)
    return COLOURS[number], MARKERS[number]


def _draw_agreement(axis: Axes, found: list[Deviation]) -> dict[str, Any]:
    """Draw our compute over the paper's, and the diagonal. Return a handle of each kind of model for the legend."""
    handles: dict[str, Any] = {}
    for kind, models in KINDS.items():
        of_kind = [one for one in found if one.model in models]
        if of_kind:
            colour, marker = _style(of_kind[0].model)
            (handles[kind],) = axis.plot(
                [one.paper for one in of_kind], [one.ours for one in of_kind], marker, color=colour, markersize=7
            )
    axis.axline((100, 100), (1000, 1000), color="0.4", linewidth=1, zorder=1)
    axis.set(xscale="log", yscale="log", xlim=(40, 6000), ylim=(40, 6000))
    plain_log_ticks(axis.xaxis)
    plain_log_ticks(axis.yaxis)
    axis.set(xlabel="paper: pre-training exaFLOPs", ylabel="computed: pre-training exaFLOPs")
    axis.grid(alpha=0.3)
    return handles


EXPERIMENT = VariantTable()
