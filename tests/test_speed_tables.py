"""Summary, tables and figures of the benchmarks against other libraries. The numbers here are made up."""

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from vitreous import cost

ROOT = Path(__file__).parents[1]
FLOPS = cost("B/16").flops.total
Row = dict[str, Any]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Import modules of benchmarks/ and docs/, which are not packages."""
    known = set(sys.modules)
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.syspath_prepend(ROOT / "docs")
    yield importlib.import_module
    for name in set(sys.modules) - known:
        if str(ROOT) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def row(who: str, task: str, variant: str, images: float, peak: float, **more: Any) -> Row:
    batch = 1 if task == "latency" else 256
    common = {"kind": "time", "who": who, "model": "B/16", "task": task, "variant": variant, "batch": batch}
    times = {"images_per_second": images, "ms": 1e3 * batch / images, "peak_gib": peak, "first_seconds": 9.0}
    return {**common, "height": 224, "width_px": 224, "width": None, "axis": "", **times, **more}


LINES: list[Row] = [
    {"kind": "machine", "matmul_flops": {"bf16": 800e12, "fp8": 1600e12}, "copy_bytes": 4e12},
    {"kind": "environment", "timm": "1.0"},
    row("timm", "train", "compiled autocast", 1, 1.0),  # measured again below
    row("timm", "train", "compiled autocast", 4000, 20.0),
    row("timm", "train", "eager bf16", 3000, 10.0),
    row("torchvision", "train", "compiled bf16", 3500, 15.0),
    row("ours", "train", "compiled", 5000, 8.0),
    row("timm", "infer", "compiled", 10_000, 1.0),
    row("ours", "infer", "bf16", 11_000, 1.0),
    row("ours", "infer", "bf16 uint8", 99_000, 1.0),  # another input than the peers get: not compared with them
    row("ours", "infer", "fp8", 17_000, 1.0),
    row("timm", "latency", "reduce-overhead", 1000, 1.0),
    row("ours", "latency", "bf16", 2000, 1.0),
    row("ours", "train", "compiled", 1, 1.0, kind="startup", first_seconds=12.0),
    row("huggingface", "infer", "eager", 1, 1.0, kind="failed", failed="out of memory"),
]


@pytest.fixture
def summary(load: Any) -> dict[str, Any]:
    module = load("peer_summary")
    merged = module.merge_measurements(LINES)
    costs = {"B/16": {"flops": FLOPS, "parameters": 86_567_656}}
    described = {"hardware": "a machine", "date": "today", "versions": {"python": "3", "torch": "2"}}
    return {**described, **merged, "cells": module.compare_cells(merged, costs)}


def test_the_best_peer_is_the_best_of_all_variants(summary: dict[str, Any]) -> None:
    cells = {cell["task"]: cell for cell in summary["cells"]}
    assert list(cells) == ["train", "infer", "fp8", "latency"]
    assert (cells["train"]["best"]["variant"], cells["train"]["ratio"]) == ("compiled autocast", 1.25)
    assert (cells["train"]["least_peak_gib"], cells["train"]["memory_ratio"]) == (10.0, 0.8)
    assert cells["infer"]["ratio"] == 1.1
    assert cells["fp8"]["ratio"] == 1.7
    assert cells["latency"]["ratio"] == 2.0
    assert cells["infer"]["floor_flops_ms"] == pytest.approx(1e3 * 256 * FLOPS / 800e12, rel=1e-3)
    assert cells["fp8"]["floor_flops_ms"] == pytest.approx(cells["infer"]["floor_flops_ms"] / 2, rel=1e-3)
    moved = 2 * (86_567_656 + 256 * (3 * 224 * 224 + 1000))
    assert cells["infer"]["bytes"] == moved
    assert len(summary["failed"]) == 1


def test_targets(load: Any, summary: dict[str, Any]) -> None:
    listed = {name: met for name, _, _, met in load("peer_summary").check_targets(summary)}
    assert listed == {
        "B/16 training, images/s": True,
        "B/16 training, memory": True,
        "B/16 inference, images/s": False,
        "B/16 inference in fp8, images/s": True,
        "B/16 one image, time": True,
        "B/16 training (compiled), start-up": True,
    }
    summary["machine"] = {"matmul_flops": {"fp32": 1e11}, "copy_bytes": 1e10}
    assert load("peer_summary").check_targets(summary) == []  # the targets are for a GPU


def test_a_failure_is_dropped_when_a_later_run_succeeds(load: Any) -> None:
    lines = [*LINES, row("huggingface", "infer", "eager", 9000, 1.0)]
    merged = load("peer_summary").merge_measurements(lines)
    assert merged["failed"] == []
    assert [r["images_per_second"] for r in merged["rows"] if r["who"] == "huggingface"] == [9000]


def test_tables(load: Any, summary: dict[str, Any]) -> None:
    tables = load("tables")
    lines = tables.speed_table(summary).splitlines()
    assert lines[0] == "|  | B/16 training | B/16 inference | B/16 inference in fp8 | B/16 one image |"
    assert lines[2] == "| **Vitreous** | **5,000** | **11,000** | **17,000** | **0.50 ms** |"
    assert lines[3] == "| timm | 4,000 | 10,000 |  | 1.00 ms |"
    assert lines[5] == "| Vitreous / best peer | 1.25 × | 1.10 × | 1.70 × | 0.50 × the time |"
    assert lines[-1] == "a machine, today; torch 2; batch size 256 for B/16."
    assert "| B/16, batch 256 | **8.0** | 10.0 |  | 15.0 | 0.80 × |" in tables.memory_table(summary)
    assert "| Vitreous, training (compiled) | 12.0 |" in tables.startup_table(summary)
    assert "800 TFLOP/s in bf16" in tables.lower_bounds_table(summary)
    assert "| no |" in tables.targets_table(summary)
    rates = (("ours", 1, 50.0), ("timm eager", 1, 40.0), ("ours", 8, 1234.5), ("timm eager", 8, 1000.0))
    rows = [{"model": "B/16", "batch": b, "who": who, "images_per_second": r, "ratio": 1.2} for who, b, r in rates]
    lines = tables.cpu_table({**summary, "rows": rows}).splitlines()
    assert lines[2:5] == ["| **Vitreous** | 50.0 | 1,234 |", "| timm eager | 40.0 | 1,000 |", lines[4]]
    assert lines[4] == "| Vitreous / best peer | 1.20 × | 1.20 × |"


def test_tables_replace_the_text_between_markers(
    load: Any, summary: dict[str, Any], monkeypatch: Any, tmp_path: Path
) -> None:
    tables, refresh = load("tables"), load("refresh")
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    page = "before\n<!-- measured: speed -->\nold\n<!-- /measured -->\nafter\n"
    assert refresh.refresh_text(page) == page.replace("old", "*There is no `peers-cuda.json` yet.*")
    (tmp_path / "peers-cuda.json").write_text(json.dumps(summary))
    assert "| **Vitreous** | **5,000** |" in refresh.refresh_text(page)
    assert set(tables.TABLES) >= {"speed", "memory", "startup", "floors", "aims", "growth", "cpu"}


def test_growth(load: Any) -> None:
    peers = load("peers")
    x = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]
    assert peers.exponent(x, [100 + 5 * value**1.5 for value in x[:3]] + [5 * value**1.5 for value in x[3:]]) == 1.5
    assert peers.exponent([1.0], [2.0]) is None
    series = {"axis": "tokens", "task": "infer", "x": x, "ms": x, "peak_gib": x}
    table = load("tables").growth_table({"series": [{**series, "time_exponent": 1.25, "memory_exponent": 1.0}]})
    assert "| inference, time | 1.25 |  |  |" in table


def test_measurements(load: Any) -> None:
    """--quick measures a subset, with the fastest variants of each library."""
    peers = load("peers")
    everything, quick = (set(peers.peer_measurements("cuda", quick)) for quick in (False, True))
    assert quick < everything
    for model in ("B/16", "L/16"):
        for task in ("infer", "train"):
            assert {cell.who for cell in quick if (cell.model, cell.task) == (model, task)} == {*peers.NAMES}
    only = peers.select(everything, ["who=timm", "task=train", "variant=*cudnn*bf16*,eager autocast"])
    assert {cell.who for cell in only} == {"timm"}
    assert all("bf16" in cell.variant or cell.variant == "eager autocast" for cell in only)
    assert {cell.axis for cell in peers.growth_measurements("cuda")} == {"tokens", "batch", "width"}
    tokens = [
        c.height * c.width_px // 256
        for c in peers.growth_measurements("cuda")
        if (c.axis, c.task) == ("tokens", "infer")
    ]
    assert tokens == [64, 128, 256, 512, 1024, 2048, 4096]
    assert {(cell.model, cell.batch) for cell in peers.peer_measurements("cpu", True)} == {("Ti/16", 8), ("B/16", 8)}


def test_figures(load: Any, summary: dict[str, Any]) -> None:
    figures, render_figure = load("figures"), load("vitreous.utils.figures").render_figure
    series = {"axis": "batch", "x": [1, 2, 4], "ms": [1, 2, 4], "peak_gib": [1, 1, 2]}
    grown = [{**series, "task": task, "time_exponent": 1.0, "memory_exponent": None} for task in ("infer", "train")]
    for figure in (figures.draw_speed(summary), figures.draw_roofline(summary), figures.draw_growth({"series": grown})):
        assert render_figure(figure, "png", dpi=40).startswith(b"\x89PNG")
