"""Table 8 of the paper: position embeddings, and where they are added."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from vitreous.experiments.grid.experiment import Cell, Experiment, Scale
from vitreous.experiments.grid.plots import dot_rows
from vitreous.experiments.grid.records import measure_label
from vitreous.experiments.grid.statistics import Claim, Verdict, judge, paired_difference
from vitreous.experiments.grid.tables import Entry, ResultTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitreous.experiments.grid.records import CellRecords
    from vitreous.experiments.grid.settings import Setting

STEM, EVERY, SHARED = "stem", "every-layer", "every-layer-shared"
PLACE_NAMES = {STEM: "input", EVERY: "every layer", SHARED: "every layer, shared"}
NAMES = {
    "none": "none",
    "learned-1d": "1-D learned",
    "learned-2d": "2-D learned",
    "relative": "relative",
    "sincos-2d": "2-D sine-cosine",
}
PLACES = {
    "none": (STEM,),
    "learned-1d": (STEM, EVERY, SHARED),
    "learned-2d": (STEM, EVERY, SHARED),
    "relative": (EVERY, SHARED),
    "sincos-2d": (STEM, SHARED),
}
# ImageNet 5-shot linear accuracy of B/16 in the paper. It does not say whether its relative embeddings are shared.
PAPER = {
    ("none", STEM): 61.382,
    ("learned-1d", STEM): 64.206,
    ("learned-1d", EVERY): 63.964,
    ("learned-1d", SHARED): 64.292,
    ("learned-2d", STEM): 64.001,
    ("learned-2d", EVERY): 64.046,
    ("learned-2d", SHARED): 64.022,
    ("relative", EVERY): 64.032,
}
MARGIN = 1.0  # points: position embeddings that differ by less count as equal; in the paper they differ by up to 0.3


class PositionTable(Experiment):
    title = "position embeddings: none, learned in 1-D and 2-D, relative, sine-cosine; at the input or in every layer"
    place = "Table 8, Appendix D.4"
    conclusion = (
        "Models with position embeddings are much better than the model without; among the ways to encode positions"
        " there is little or no difference."
    )
    time: ClassVar[Mapping[Scale, str]] = {"tiny": "8 s on 2 CPU cores", "small": "19 min / jobs, H200"}

    def cells(self, setting: Setting) -> list[Cell]:
        return [
            Cell(
                {"position": position, "at": place},
                setting.measures(),
                seed,
                setting.pretraining(seed, position=position, position_at=None if place == STEM else place),
            )
            for position, places in PLACES.items()
            for place in places
            for seed in range(setting.seeds)
        ]

    def table(self, records: CellRecords) -> ResultTable:
        fewshot = records.main_measure
        others = [name for name in records.measured_names if name != fewshot]
        rows: list[tuple[Entry, ...]] = []
        for group in records.groups("position", "at"):
            position, place = str(group["position"]), str(group["at"])
            values = [records.summary(name, **group) for name in (fewshot, *others)]
            rows.append((NAMES[position], PLACE_NAMES[place], *values, PAPER.get((position, place))))
        columns = ("position embedding", "added at", *map(measure_label, (fewshot, *others)))
        return ResultTable((*columns, "paper: ImageNet 5-shot (%)"), tuple(rows))

    def verdict(self, records: CellRecords) -> Verdict:
        fewshot = records.main_measure
        groups = [(str(g["position"]), str(g["at"])) for g in records.groups("position", "at")]
        scores = {group: records.by_seed(fewshot, position=group[0], at=group[1]) for group in groups}
        base = scores.get(("learned-1d", STEM), {})
        claims = [
            Claim(
                "1-D learned positions (input) are better than none",
                paired_difference(base, scores.get(("none", STEM), {})),
            )
        ]
        for (position, place), values in scores.items():
            if position != "none" and (position, place) != ("learned-1d", STEM):
                text = f"{NAMES[position]} ({PLACE_NAMES[place]}) differs by less than 1 point from 1-D learned (input)"
                claims.append(Claim(text, paired_difference(values, base), MARGIN))
        return judge(claims)

    def draw(self, records: CellRecords) -> Figure:
        fewshot = records.main_measure
        rows = [
            (f"{NAMES[str(g['position'])]}, {PLACE_NAMES[str(g['at'])]}", list(records.by_seed(fewshot, **g).values()))
            for g in records.groups("position", "at")
        ]
        paper = [PAPER.get((str(g["position"]), str(g["at"]))) for g in records.groups("position", "at")]
        return dot_rows(
            rows, measure_label(fewshot), paper, "the paper, B/16 on JFT-300M:\nImageNet 5-shot accuracy (%)"
        )


EXPERIMENT = PositionTable()
