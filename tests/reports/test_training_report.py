"""The training report: self-contained, safe for any names in the data, and drawn from the records."""

import base64
import io
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.datasets import load_digits

from vitreous.errors import VitreousError
from vitreous.evaluation.metrics import Result, Scores
from vitreous.reports.charts import Chart, Line, downsample, draw_chart, log_ticks, moving_average, tick_names, ticks
from vitreous.reports.training_curves import History, charts
from vitreous.reports.training_report import ExampleImage, TrainingReport, render_training_report, write_report
from vitreous.utils.html import text

VOID = {"meta", "img", "br", "hr", "input", "link"}
EVIL = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "漢字 🙂 \u202eabc",
    "x" * 300,
    "\udcff\x00",
    "a&b'c",
)


class Page(HTMLParser):
    """Elements and text of a page. An unclosed element, or one that is closed twice, is an error."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    def all(self, tag: str, css: str = "") -> list[dict[str, str | None]]:
        return [a for t, a in self.elements if t == tag and css in (a.get("class") or "")]

    @property
    def said(self) -> str:
        return " ".join(" ".join(self.words).split())


def train(step: int, **values: Any) -> dict[str, Any]:
    return {"kind": "train", "step": step, "epoch": step / 10, "loss": 2.0 / step, "lr": 1e-3, **values}


def records(steps: int = 60) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = [
        train(i, accuracy=1 - 1 / i, grad_norm=0.5, images_per_second=3500.0, data_wait=0.01, memory_bytes=2**30)
        for i in range(1, steps + 1)
    ]
    for step in range(10, steps + 1, 10):
        for weights in ("raw", "ema"):
            lines.append({"kind": "eval", "step": step, "epoch": step / 10, "split": "val", "weights": weights,
                          "loss": 1.5 / step, "top1": 1 - 1 / step, "top5": None, "images": 100})  # fmt: skip
    return [*lines, {"kind": "event", "step": 25, "text": "resumed <here>"}]


def result(classes: int, images: int = 200) -> Result:
    scores, targets = Scores(classes), torch.randint(0, classes, (images,))
    scores.add(torch.randn(images, classes).scatter_add(1, targets[:, None], torch.full((images, 1), 2.0)), targets,
               torch.rand(images))  # fmt: skip
    return scores.result()


def report(classes: tuple[str, ...] = tuple("0123456789"), **changes: Any) -> TrainingReport:
    digits = load_digits()
    pictures = [
        ExampleImage(f"digits[{i}]", (digits.images[i] * 15).astype(np.uint8)[..., None], (classes[0],),
                ((classes[1], 0.7), (classes[0], 0.2999999)), 1.5) for i in range(3)
    ]  # fmt: skip
    made = TrainingReport(
        title="digits", outcome="98.9% of 360 test images right", command="vitreous train digits", classes=classes,
        records=records(), result=result(len(classes)), split="test", best=pictures, worst=pictures,
        choices=[("lr", "0.001", "few images")], config={"lr": 0.001, "freeze": (), "model": None},
        environment={"torch": "2.13"}, data=[("images", "1,797")], notes=["interrupted once"],
        next_steps=["vitreous predict"],
    )  # fmt: skip
    return replace(made, **changes)


def test_a_complete_page(tmp_path: Path) -> None:
    write_report(tmp_path / "report.html", report())
    page = Page((tmp_path / "report.html").read_text("utf-8"))
    for words in ("98.9% of 360 test images right", "vitreous train digits", "few images", "interrupted once", "2.13",
                  "vitreous predict", "1,797", "resumed <here>", "digits[2]", "1.0 GiB", "3,500"):  # fmt: skip
        assert words in page.said
    assert len(page.all("figure", "chart")) == 6
    assert list(tmp_path.iterdir()) == [tmp_path / "report.html"]


def test_nothing_is_loaded_from_the_network() -> None:
    page = Page(
        render_training_report(
            report(links=[("Look inside", "inspection.html"), ("x", "javascript:alert(1)"), ("y", "//h.org/z")])
        )
    )
    for tag, attributes in page.elements:
        if source := attributes.get("src"):
            assert source.startswith("data:image/png;base64,"), tag
        if href := attributes.get("href"):
            assert href.startswith(("#", "./")), tag
        assert not any(name.startswith("on") for name in attributes)
    assert not page.all("link")
    policy = next(a["content"] for a in page.all("meta") if a.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'; img-src data:;")
    ids = {a.get("id") for _, a in page.elements}
    assert all(a["href"][1:] in ids for a in page.all("a") if a["href"][0] == "#")  # type: ignore[index]


def test_names_are_escaped() -> None:
    evil = report(EVIL)
    pictures = [ExampleImage(name, np.zeros((9, 5), np.uint8), (name,), ((name, 0.5),), math.nan) for name in EVIL]
    lines = [
        *records(),
        {"kind": "event", "step": 3, "text": EVIL[0]},
        {"kind": "eval", "step": 5, "epoch": 0.5, "split": EVIL[1], "loss": 1.0},
    ]
    html = render_training_report(replace(
        evil, title=EVIL[0], outcome=EVIL[1], command=EVIL[0], worst=pictures, best=[], notes=EVIL, next_steps=EVIL,
        choices=[(EVIL[0], EVIL[1], EVIL[2])], config={EVIL[0]: EVIL[1], "p": Path("x")}, records=lines,
        environment={EVIL[1]: EVIL[0]}, data=[(EVIL[1], EVIL[0])], links=[(EVIL[1], EVIL[1])], split=EVIL[1],
    ))  # fmt: skip
    page = Page(html)
    assert len(page.all("script")) == 1
    assert len(page.all("img")) == len(EVIL)
    assert "<script>alert(1)</script>" in page.said
    assert '"><img src=x onerror=alert(1)>' in page.said
    html.encode("utf-8")


@given(st.text(alphabet=st.characters()))
@settings(max_examples=200, deadline=None)
def test_any_text_can_be_written(words: str) -> None:
    html = text(words)
    html.encode("utf-8")
    assert not set(html) & set("<>\"'\x00")
    shown = "".join(Page(f"<p>{html}</p>").words)
    assert len(shown) == len(words)
    assert all(b in (a, "\ufffd") for a, b in zip(words, shown, strict=True))
    assert all(a == b for a, b in zip(words, shown, strict=True) if a.isprintable())


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [{"kind": "train"}],
        [{"kind": "train", "step": 1, "loss": 2.3}],
        [{"kind": "train", "step": 1, "loss": None, "epoch": None}, {"kind": "eval"}, {"kind": "event"}],
        [{"kind": "train", "step": i, "loss": math.nan} for i in range(3)],
        [{"kind": "train", "step": 5, "loss": 0.0, "lr": 0}, {"kind": "train", "step": 6, "loss": 1e300, "lr": 1e-30}],
        [{"kind": "eval", "step": 5, "split": "val", "weights": None, "loss": 1, "map": 0.5}],
        [{"kind": "new"}, {}, {"kind": "train", "step": "x", "loss": "y", "accuracy": True}],
        [{"kind": "train", "step": i, "loss": -5.0 + i % 2} for i in range(200)],
        [{"kind": "train", "step": i, "loss": 1e9 + i * 1e-7} for i in range(200)],
    ],
)
def test_few_and_unusual_records(lines: list[dict[str, Any]]) -> None:
    html = render_training_report(report(records=lines, result=None, best=[], worst=[]))
    Page(html)
    assert "nan" not in " ".join(re.findall(r' (?:d|style|data-[xy])="([^"]*)"', html)).lower()


def test_an_empty_run() -> None:
    empty = TrainingReport("run", "stopped", "", (), [], None, "val", [], [], [], {}, {}, [], [], [])
    assert "stopped" in Page(render_training_report(empty)).said


def test_many_records_are_downsampled_and_keep_their_peaks() -> None:
    rng = np.random.default_rng(0)
    lines = [train(i, loss=float(1 + 0.1 * rng.random())) for i in range(1, 100_001)]
    lines[77_777]["loss"], lines[55_555]["loss"] = 3.5, 0.25
    html = render_training_report(report(records=lines))
    loss = next(
        chart for chart in re.findall(r"<figure class=\"chart\".*?</figure>", html, re.DOTALL) if ">Loss<" in chart
    )
    raw = next(d for d in re.findall(r'<path class="line raw"[^>]* d="([^"]*)"', loss))
    points = np.array([[float(v) for v in p.split(",")] for p in re.split("[ML]", raw)[1:]])
    low, high = (float(v) for v in re.search(r'data-y="([^"]*)"', loss)[1].split())  # type: ignore[index]
    values = high - (high - low) * points[:, 1] / 1000
    assert len(points) <= 800
    assert values.max() == pytest.approx(3.5, abs=1e-3)
    assert values.min() == pytest.approx(0.25, abs=1e-3)
    assert len(html) < 1_000_000


@given(st.integers(0, 3000), st.integers(4, 100), st.integers(0, 9))
@settings(max_examples=50, deadline=None)
def test_downsampling(count: int, most: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y = np.arange(count, dtype=np.float64), rng.standard_normal(count)
    y[rng.random(count) < 0.1] = np.nan
    kept_x, kept_y = downsample(x, y, most)
    assert len(kept_x) <= most
    assert (np.diff(kept_x) > 0).all()
    np.testing.assert_array_equal(kept_y, y[kept_x.astype(int)])
    if np.isfinite(y).any():
        assert (np.nanmin(kept_y), np.nanmax(kept_y)) == (np.nanmin(y), np.nanmax(y))


def test_smoothing_is_a_moving_average() -> None:
    y = np.array([1.0, 2.0, np.nan, 4.0, 9.0])
    np.testing.assert_allclose(moving_average(y, 3), [1.5, 1.5, np.nan, 6.5, 6.5])
    np.testing.assert_array_equal(moving_average(y, 1), y)
    assert len(moving_average(y, 100)) == 5


@given(st.floats(-1e20, 1e20), st.floats(-1e20, 1e20))
@settings(max_examples=200, deadline=None)
def test_ticks_cover_the_values(a: float, b: float) -> None:
    low, high = min(a, b), max(a, b)
    found = ticks(low, high)
    assert 2 <= len(found) <= 12
    assert found == sorted(set(found))
    slack = 1e-6 * max(abs(low), abs(high)) + 1e-29
    assert found[0] <= low + slack
    assert found[-1] >= high - slack
    assert len(set(tick_names(found))) == len(found) or high - low < 1e-6 * max(abs(low), abs(high))


def test_ticks_are_round() -> None:
    assert ticks(0, 2.3) == [0, 0.5, 1.0, 1.5, 2.0, 2.5]
    assert tick_names(ticks(0, 2.3)) == ["0.0", "0.5", "1.0", "1.5", "2.0", "2.5"]
    assert tick_names(ticks(0, 1e-3)) == ["0", "2e-4", "4e-4", "6e-4", "8e-4", "1e-3"]
    assert tick_names(ticks(0, 24_000)) == ["0", "5k", "10k", "15k", "20k", "25k"]
    assert tick_names([0.0, 0.5, 1.0], "percent") == ["0%", "50%", "100%"]
    assert log_ticks(0.04, 2.4) == [0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5]
    assert log_ticks(1e-8, 5.0)[0] == 1e-8


def test_repeated_steps_are_drawn_once() -> None:
    lines = [train(1), train(2), train(3, loss=9.0), train(4, loss=9.0), train(3), train(5)]
    history = History.of(lines)
    assert [(r["step"], r["loss"]) for r in history.train] == [(1, 2.0), (2, 1.0), (3, 2.0 / 3), (5, 0.4)]


def test_the_x_axis_is_epochs_if_all_records_have_them() -> None:
    assert History.of(records()).x_name == "epoch"
    assert History.of([*records(), {"kind": "train", "step": 61, "loss": 1.0}]).x_name == "step"
    assert History.of(records()).events == [(pytest.approx(2.5), "resumed <here>")]


def test_multi_label_runs_show_mean_average_precision() -> None:
    lines = [train(1, accuracy=0.5), {"kind": "eval", "step": 1, "epoch": 0.1, "split": "val", "map": 0.7}]
    titles = {chart.title: chart for chart in charts(History.of(lines))}
    assert [line.name for line in titles["Mean average precision"].lines if np.isfinite(line.y).any()] == ["val"]
    assert "Accuracy" not in titles
    targets = torch.rand(50, 3) < 0.5
    scores = Scores(3, multi_label=True)
    scores.add(torch.randn(50, 3), targets, torch.rand(50))
    page = Page(render_training_report(report(("a", "b", "c"), result=scores.result())))
    assert "average precision" in page.said
    assert not page.all("table", "confusion")


def test_curves_start_and_end_at_the_recorded_values() -> None:
    html = draw_chart(
        Chart("Loss", "step", [Line("val", "val", np.array([0.0, 5.0, 10.0]), np.array([4.0, np.nan, 1.0]))])
    )
    assert 'data-x="0 10" data-y="0 4"' in html
    assert 'd="M0.00,0.00M1000.00,750.00"' in html
    log = draw_chart(
        Chart("Loss", "step", [Line("val", "val", np.array([0.0, 1.0]), np.array([1.0, 100.0]))], log=True)
    )
    assert 'data-y="1 100" data-log' in log
    assert 'd="M0.00,1000.00L1000.00,0.00"' in log


def test_a_peak_does_not_flatten_the_rest() -> None:
    y = np.ones(1000)
    y[500] = 1e6
    html = draw_chart(Chart("Norm", "step", [Line("train", "train", np.arange(1000.0), y)]))
    assert 'data-y="1 1.5"' in html
    assert "Peaks up to 1e+06" in html


@pytest.mark.parametrize(("classes", "cells"), [(1, 0), (2, 4), (20, 400), (60, 3600), (61, 0), (2100, 0)])
def test_the_confusion_matrix_fits_its_classes(classes: int, cells: int) -> None:
    html = render_training_report(report(tuple(f"c{i}" for i in range(max(classes, 2))), result=result(classes)))
    page = Page(html)
    matrix = re.search(r'<table class="confusion.*?</table>', html, re.DOTALL)
    assert (len(re.findall("<td", matrix[0])) - 1 if matrix else 0) == cells
    rows = re.search(r'<table class="classes">.*?</table>', html, re.DOTALL)
    assert rows is not None
    assert rows[0].count("<tr>") - 1 == min(classes, 2000)
    assert ("100 more are not shown" in page.said) == (classes == 2100)


def test_counts_of_the_matrix_equal_the_result() -> None:
    found = result(4)
    html = render_training_report(report(tuple("abcd"), result=found))
    body = re.search(r'<table class="confusion">.*?<tbody>(.*?)</tbody>', html, re.DOTALL)
    assert body is not None
    rows = [re.findall(r"<td[^>]*>(\d*)</td>", row) for row in body[1].split("</tr>")[:4]]
    assert tuple(tuple(int(cell or 0) for cell in row) for row in rows) == found.confusion


@pytest.mark.parametrize("shape", [(8, 8), (8, 8, 1), (5, 9, 3), (5, 9, 4), (1, 1, 3), (300, 2000, 3)])
def test_images_are_embedded_unchanged(shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    page = Page(render_training_report(report(worst=[ExampleImage("p", pixels, ("0",), (("0", 1.0),), 0.0)], best=[])))
    source = page.all("img")[0]["src"]
    assert source is not None
    image = Image.open(io.BytesIO(base64.b64decode(source.split(",")[1])))
    assert max(image.size) <= 224
    if max(shape) <= 224:
        np.testing.assert_array_equal(np.asarray(image), pixels[..., 0] if shape[2:] == (1,) else pixels)
    assert bool(page.all("img", "tiny")) == (max(shape) <= 64)


@pytest.mark.parametrize("pixels", [np.zeros((4, 4, 2), np.uint8), np.zeros((4, 4)), np.zeros((0, 4, 3), np.uint8)])
def test_an_invalid_image_is_refused(pixels: Any) -> None:
    with pytest.raises(VitreousError, match=r"bad\.png: an image of shape .* cannot be shown"):
        render_training_report(report(worst=[ExampleImage("bad.png", pixels, (), (), 0.0)]))


def test_the_report_is_written_atomically(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(path, report())
    before = path.read_bytes()
    with pytest.raises(VitreousError):
        write_report(path, report(worst=[ExampleImage("bad", np.zeros((4, 4)), (), (), 0.0)]))  # type: ignore[arg-type]
    assert path.read_bytes() == before
    with pytest.raises(VitreousError, match="cannot be written"):
        write_report(tmp_path / "no" / "report.html", report())


# ---------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "report.html"
    names = (*EVIL, *(f"a rather long name of a class {i}" for i in range(24)))
    write_report(path, report(names, title=EVIL[3], outcome=EVIL[0], command=EVIL[3], notes=EVIL))
    return path.as_uri()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1200])
def test_it_opens_from_a_file_and_fits_the_screen(browser: Any, address: str, scheme: str, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: (said.append("dialog"), dialog.dismiss()))
    page.on("request", lambda r: said.append(r.url) if r.url != address and not r.url.startswith("data:") else None)
    page.goto(address)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", background))) > 600) == (scheme == "light")
    page.close()
    assert said == []


def test_values_under_the_pointer_and_sortable_tables(browser: Any, tmp_path: Path) -> None:
    write_report(tmp_path / "report.html", report())
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.goto((tmp_path / "report.html").as_uri())
    plot = page.locator(".plot").first  # the loss has a logarithmic axis
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + box["width"] - 1, box["y"] + 20)
    read = plot.locator(".readout").inner_text().split("\n")
    assert read == ["epoch 6", "train 0.03333", "val 0.025", "val EMA 0.025"]
    recall = page.locator("table.classes thead button", has_text="recall")
    for direction in (1, -1):
        recall.click()
        values = page.evaluate(
            "[...document.querySelectorAll('table.classes tbody tr')].map(r => r.cells[3].dataset.value)"
        )
        assert [float(v) for v in values] == sorted(map(float, values), reverse=direction < 0)
    page.close()


def test_it_is_complete_without_scripts(browser: Any, address: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    assert page.locator("svg path.line").count() > 6
    assert page.locator("table.classes tbody tr").count() == 30
    context.close()


def test_records_from_a_file_give_the_same_page(tmp_path: Path) -> None:
    lines = records()
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    read = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    made = report(records=lines)
    assert render_training_report(made) == render_training_report(replace(made, records=read))
