"""Names in figures are drawn literally: not as formulas, without control characters, and without errors."""

import io
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from helpers import images, tiny_vit
from vitreous import open_data
from vitreous.data.contact_sheet import sample_sheet
from vitreous.data.options import Reading
from vitreous.evaluation.figures import draw_resolution_curve
from vitreous.evaluation.measures import Measure
from vitreous.experiments.compare import Comparison, ComparisonRow
from vitreous.experiments.compare_figure import draw_comparison
from vitreous.inspection import depth_readout, figures, relevance
from vitreous.utils.figures import label_text, render_figure

matplotlib = pytest.importorskip("matplotlib")

NAMES = (
    "$^{",
    "$5^{th}$ & 100% of #1 \\frac",
    "a\nb\r\x1b[31mc\x9b\x00",
    "_hidden",
    "",
    "x" * 10_000,
    "漢字 🙂 \U0001f9ff\u202e\udcff",
)


@pytest.fixture(autouse=True)
def _settings_stay() -> Iterator[None]:
    before = dict(matplotlib.rcParams)
    yield
    assert dict(matplotlib.rcParams) == before


def words(figure: Any) -> str:
    """Return all text of a figure, from its SVG."""
    stream = io.BytesIO()
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        figure.savefig(stream, format="svg")
    return stream.getvalue().decode()


def readout(names: tuple[str, ...]) -> Any:
    model = tiny_vit(num_classes=len(names))
    model.labels = names
    return depth_readout(model, images(1, 3, 32, 32)).figure(top=len(names))


def relevances(names: tuple[str, ...]) -> Any:
    model = tiny_vit(num_classes=len(names))
    model.labels = names
    return relevance(model, images(1, 3, 32, 32), top=len(names)).figure()


def tables(names: tuple[str, ...]) -> Any:
    return figures.draw_map_table(torch.rand(len(names), len(names), 2, 2), names, names, "share")


@pytest.mark.parametrize("draw", [readout, relevances, tables])
def test_figures_of_inspection(draw: Callable[[tuple[str, ...]], Any]) -> None:
    figure = draw(NAMES)
    for kind in ("png", "svg"):
        assert len(render_figure(figure, kind, 40)) < 2_000_000


@pytest.mark.parametrize("draw", [readout, relevances, tables])
def test_names_are_drawn_literally_and_completely(draw: Callable[[tuple[str, ...]], Any]) -> None:
    """Also if the user renders the figure later."""
    written = words(draw(("$5^{th}$", "_hidden", "plain", "$x$")))
    assert all(f">{name}" in written for name in ("$5^{th}$", "_hidden", "plain", "$x$"))


def test_classes_with_equal_names_are_all_drawn() -> None:
    assert words(readout(("cat", "cat", "dog"))).count(">cat<") == 2


def measure(name: str, value: float) -> Measure:
    return Measure("knn", name, (value,), {})


def test_a_comparison(tmp_path: Path) -> None:
    values = tuple(measure("10-NN", 0.5) for _ in NAMES)
    rows = tuple(ComparisonRow(name, name, "10-NN", values) for name in NAMES if name)
    images = dict.fromkeys(NAMES, "10 images")
    found = Comparison("", NAMES, ("",) * len(NAMES), NAMES, rows, images)
    for path in draw_comparison(found, tmp_path):
        assert 0 < path.stat().st_size < 3_000_000


@pytest.mark.parametrize("name", NAMES)
def test_a_curve(name: str, tmp_path: Path) -> None:
    scores: Any = [
        SimpleNamespace(size=(side, side), real=None, result=SimpleNamespace(top1=0.5, top5=None, map=None))
        for side in (16, 24)
    ]
    png, _ = draw_resolution_curve(scores, f"{name} on {name}, test", [f"10 images; weights: {name}"], tmp_path)
    with Image.open(png) as drawn:
        assert drawn.width < 3000


def test_a_sheet(tmp_path: Path) -> None:
    names = [name for name in NAMES if "\0" not in name]
    arrays = np.zeros((len(names) * 2, 8, 8), np.uint8)
    np.savez(tmp_path / "x.npz", images=arrays, labels=np.arange(len(names) * 2) % len(names))
    plain = open_data(tmp_path / "x.npz", Reading(val_fraction=0, test_fraction=0))
    data = replace(plain, classes=tuple(names), name=NAMES[5])  # an .npz has no file names
    with Image.open(sample_sheet(data, tmp_path / "s.png", cell=32)) as sheet:
        assert sheet.width < 2000


def test_shortened_names() -> None:
    assert label_text("cat") == "cat"
    assert label_text("$x^{") == "$x^{"
    assert label_text("a\nb\x1b") == "a\ufffdb\ufffd"
    assert label_text("x" * 100, 10) == "x" * 9 + "…"
    assert label_text("x" * 10, 10) == "x" * 10
