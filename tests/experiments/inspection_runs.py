"""Helpers of the tests of inspection figures: redrawing, and given models."""

from pathlib import Path
from typing import Any

from helpers import tiny_vit
from vitreous import save
from vitreous.experiments.experiment_result import ExperimentResult
from vitreous.experiments.reproduce import redraw


def assert_redrawn(result: ExperimentResult, out: Path) -> None:
    """Check that table, figure and report are the same when they are made from result.json alone."""
    assert result.folder is not None
    again = redraw(result.folder / "result.json", out, overwrite=False)
    assert again.folder is not None
    assert again.folder != result.folder
    names = ["result.json", "table.md", "table.csv", "report.md", f"{result.name}.png", f"{result.name}.svg"]
    assert sorted(path.name for path in again.folder.iterdir()) == sorted(names)
    for name in names:
        assert (again.folder / name).read_bytes() == (result.folder / name).read_bytes(), name


def saved_model(path: Path, **changes: Any) -> str:
    """Save a random ViT for images of 32 px with 4 x 4 patches."""
    save(tiny_vit(**changes), path)
    return str(path)


def values_of(result: ExperimentResult) -> dict[str, Any]:
    """Return what was measured in the only cell."""
    (record,) = result.records
    assert not record.error
    return dict(record.values)
