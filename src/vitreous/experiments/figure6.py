"""Figure 6 of the paper: which parts of an image the class token attends to, by attention rollout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vitreous.experiments.grid.experiment import Cell, Experiment, Needs
from vitreous.experiments.grid.inspection_measures import ONE_SEED, RolloutMaps, inspected_cell
from vitreous.experiments.grid.inspection_plots import SMALL, add_rollout_bar, rollout_pair, show_pixels, show_text
from vitreous.experiments.grid.packed_values import unpack_array
from vitreous.experiments.grid.tables import ResultTable
from vitreous.utils.figures import label_text, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vitreous.experiments.grid.records import CellRecords
    from vitreous.experiments.grid.settings import Setting

IMAGES = 6
PAIRS_PER_ROW = 3
SPACE = 0.12  # between pairs, as a fraction of an image


class RolloutFigure(Experiment):
    title = "attention rollout from the class token to the input, of up to six images"
    place = "Figure 6"
    conclusion = ""  # "regions that are semantically relevant for classification" cannot be measured without masks
    seeds = ONE_SEED
    time = {"tiny": "7 s on 2 CPU cores", "small": "8 s, H200"}  # noqa: RUF012 (as in the base class)
    needs = Needs(pretraining=True, model=True)

    def cells(self, setting: Setting) -> list[Cell]:
        return [inspected_cell(setting, [RolloutMaps.of(setting, IMAGES)])]

    def table(self, records: CellRecords) -> ResultTable:
        found = records.first("rollout")
        source = found["source"] if found else "class token"
        columns = (
            "image",
            "label",
            "patches",
            "patches with half of the rollout (%)",
            "share of the rollout on patches (%)",
        )
        images = found["images"] if found else []
        rows = tuple((image["name"], image["class"], *_concentration(image)) for image in images)
        notes = (
            f"Rollout from the {source}: the attention of all heads is averaged, the identity is added for the residual"
            " connections, and the matrices of all layers are multiplied.",
            "Patches with half of the rollout: the smallest share of patches that holds half of the sum over all"
            " patches. It is 50% if the rollout is uniform.",
        )
        return ResultTable(columns, rows, notes)

    def draw(self, records: CellRecords) -> Figure:
        found = records.first("rollout")
        if not found:
            figure = new_figure(4, 1.5)
            show_text(figure.add_subplot(), "no result")
            return figure
        pairs = [rollout_pair(image) for image in found["images"]]
        across = min(PAIRS_PER_ROW, len(pairs))
        down = -(-len(pairs) // across)
        figure = new_figure(0.6 + 2.45 * across, 0.3 + 1.32 * down)
        widths = ([1.0, 1.0, SPACE] * across)[:-1]
        grid = figure.add_gridspec(down, len(widths), width_ratios=widths)
        for place, (image, pair) in enumerate(zip(found["images"], pairs, strict=True)):
            row, column = divmod(place, across)
            for side, (pixels, title) in enumerate(zip(pair, ("input", "rollout"), strict=True)):
                axis = figure.add_subplot(grid[row, 3 * column + side])
                show_pixels(axis, pixels)
                if row == 0:
                    axis.set_title(title, fontsize=9)
                if side == 0:
                    axis.set_xlabel(label_text(image["class"], 34), fontsize=SMALL, loc="left")
        add_rollout_bar(figure)
        return figure


def _concentration(image: Any) -> tuple[int, float, float]:
    """Return the number of patches, the share of them that holds half of the rollout, and the sum over patches (%)."""
    values = np.sort(unpack_array(image["map"]).ravel())[::-1]
    total = float(values.sum())
    half = int((values.cumsum() < total / 2).sum()) + 1
    return values.size, 100 * half / values.size, 100 * total


EXPERIMENT = RolloutFigure()
