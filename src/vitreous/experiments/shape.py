"""Depth, width, MLP width, patch size and all together, against compute (D.2)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from vitreous.experiments.grid.experiment import Cell, Experiment, Scale
from vitreous.experiments.grid.plots import line_panels
from vitreous.experiments.grid.records import measure_label
from vitreous.experiments.grid.statistics import Claim, Verdict, judge, paired_difference
from vitreous.experiments.grid.tables import ResultTable
from vitreous.experiments.grid.work import model_gflops

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitreous.experiments.grid.records import CellRecords
    from vitreous.experiments.grid.settings import Setting

BASE = "base"
# Per dimension, the changed fields. The base model of each scale is in grid/settings.py.
VARIANTS: Mapping[Scale, Mapping[str, tuple[dict[str, int], ...]]] = {
    "tiny": {
        "depth": ({"depth": 1}, {"depth": 3}),
        "width": ({"width": 16}, {"width": 48, "heads": 3}),
        "patch size": ({"patch_size": 4},),
    },
    "small": {
        "depth": ({"depth": 3}, {"depth": 12}),
        "width": ({"width": 128, "heads": 2}, {"width": 320, "heads": 5}),
        "MLP width": ({"mlp_dim": 384}, {"mlp_dim": 1536}),
        "patch size": ({"patch_size": 16}, {"patch_size": 8}),
        "all": (
            {"depth": 4, "width": 128, "heads": 2, "mlp_dim": 512, "patch_size": 16},
            {"depth": 8, "width": 256, "heads": 4, "mlp_dim": 1024, "patch_size": 8},
        ),
    },
    "paper": {
        "depth": ({"depth": 6}, {"depth": 24}),
        "width": ({"width": 384, "heads": 6}, {"width": 1536, "heads": 24}),
        "MLP width": ({"mlp_dim": 1536}, {"mlp_dim": 6144}),
        "patch size": ({"patch_size": 32}, {"patch_size": 14}),
        "all": (
            {"depth": 8, "width": 512, "heads": 8, "mlp_dim": 2048, "patch_size": 32},
            {"depth": 18, "width": 1152, "heads": 18, "mlp_dim": 4608, "patch_size": 14},
        ),
    },
}


class ShapeExperiment(Experiment):
    title = "scaling depth, width, MLP width, patch size and all together, against compute"
    place = "Figure 8, Appendix D.2"
    conclusion = (
        "More depth improves results most and more width least; smaller patches improve them, too; scaling everything"
        " together improves them robustly."
    )
    seeds: ClassVar[Mapping[Scale, int]] = {"tiny": 1, "small": 2, "paper": 2}
    time: ClassVar[Mapping[Scale, str]] = {"tiny": "6 s on 2 CPU cores", "small": "12 min / jobs, H200"}

    def cells(self, setting: Setting) -> list[Cell]:
        variants = VARIANTS[setting.scale]
        changes: list[tuple[str, dict[str, int]]] = [(BASE, {})]
        changes += [(dimension, fields) for dimension, each in variants.items() for fields in each]
        cells = []
        for dimension, fields in changes:
            config = setting.pretraining(0, **fields)
            factors: dict[str, Any] = {"dimension": dimension, "change": describe_change(fields)}
            factors["GFLOPs"] = float(f"{model_gflops(config):.4g}")
            for seed in range(setting.seeds):
                cells.append(Cell(factors, setting.measures(), seed, config.with_(seed=seed)))
        return cells

    def table(self, records: CellRecords) -> ResultTable:
        rows = tuple(
            (
                str(group["dimension"]),
                str(group["change"]),
                f"{group['GFLOPs']:.3g}",
                *(records.summary(name, **group) for name in records.measured_names),
            )
            for group in records.groups("dimension", "change", "GFLOPs")
        )
        slopes = {name: slope_by_seed(records, name) for name in dimensions(records)}
        texts = [f"{name} {sum(each.values()) / len(each):+.1f}" for name, each in slopes.items() if each]
        gains = ", ".join(texts) or "no results"
        note = f"Points of {records.main_measure} accuracy per doubling of FLOPs, mean over seeds: {gains}."
        return ResultTable(("dimension", "change", "GFLOPs per image", *records.percent_columns), rows, (note,))

    def verdict(self, records: CellRecords) -> Verdict:
        slope = {name: slope_by_seed(records, name) for name in dimensions(records)}
        width = slope.get("width", {})
        claims = [
            Claim(f"{name} gains more than width", paired_difference(slope[name], width))
            for name in ("depth", "patch size")
            if name in slope
        ]
        if "all" in slope:
            zero = dict.fromkeys(slope["all"], 0.0)
            claims.append(Claim("scaling everything together gains accuracy", paired_difference(slope["all"], zero)))
        return judge(claims, "points per doubling of FLOPs")

    def draw(self, records: CellRecords) -> Figure:
        panels = {
            measure_label(name): {
                dimension: with_base(records, dimension).curve(name, "GFLOPs") for dimension in dimensions(records)
            }
            for name in records.measured_names
        }
        return line_panels(panels, "GFLOPs per image, forward", log=True)


def describe_change(fields: Mapping[str, int]) -> str:
    """Return the changed fields as text, without the heads, which follow from the width."""
    shown = [
        f"{name.replace('_dim', '').replace('_size', '')} {value}" for name, value in fields.items() if name != "heads"
    ]
    return ", ".join(shown) or "–"


def dimensions(records: CellRecords) -> list[str]:
    return [str(group["dimension"]) for group in records.groups("dimension") if group["dimension"] != BASE]


def with_base(records: CellRecords, dimension: str) -> CellRecords:
    """Return the models that differ from the base in one dimension, and the base."""
    cells = [cell for cell in records if cell.factors["dimension"] in (dimension, BASE)]
    return type(records)(records.scale, tuple(cells))


def slope_by_seed(records: CellRecords, dimension: str) -> dict[int, float]:
    """Return the least-squares slope of accuracy over log2 of the FLOPs, by seed. A seed with fewer than two models is
    left out."""
    name, slopes = records.main_measure, {}
    chosen = with_base(records, dimension)
    for seed in sorted({cell.seed for cell in chosen}):
        points = [
            (math.log2(float(cell.factors["GFLOPs"])), float(cell.values[name]))
            for cell in chosen
            if cell.seed == seed and name in cell.values
        ]
        mean_x, mean_y = (sum(values) / len(points) for values in zip(*points, strict=True)) if points else (0.0, 0.0)
        spread = sum((x - mean_x) ** 2 for x, _ in points)
        if spread > 0:
            slopes[seed] = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    return slopes


EXPERIMENT = ShapeExperiment()
