"""The files of an evaluation: evaluation.json and figures."""

from __future__ import annotations

from pathlib import Path

from vitreous.evaluation.figures import draw_precision_recall, draw_resolution_curve
from vitreous.evaluation.report import EvaluationReport, format_size
from vitreous.utils.atomic import atomic_folder
from vitreous.utils.figures import matplotlib_is_installed
from vitreous.utils.json_files import dump_json


def evaluation_files(folder: Path) -> tuple[str, ...]:
    """Return the names of the files that `write_evaluation` writes."""
    return (
        "evaluation.json",
        *(f"{name}.{kind}" for name in ("resolution", "precision_recall") for kind in ("png", "svg")),
    )


def write_evaluation(found: EvaluationReport, out: Path, overwrite: bool) -> list[Path]:
    """Write evaluation.json, precision-recall curves, and with several sizes the accuracy by size. Return the paths of
    the figures. Without matplotlib, curves are not drawn."""
    figures: list[Path] = []
    with atomic_folder(out, overwrite, evaluation_files) as folder:
        dump_json(folder / "evaluation.json", found.to_json())
        title = f"{found.evaluated.name} on {Path(found.data).name}, {found.split}"
        caption = [f"{found.images:,} images; weights: {found.evaluated.selection}"]
        caption += [f"WARNING: {text}" for text in found.warnings]
        if len(found.scores) > 1:
            figures += draw_resolution_curve(found.scores, title, caption, folder)
        if found.curves and (curves := found.curves[0]) is not None and matplotlib_is_installed():
            size = format_size(found.preprocessing[0])
            figures += draw_precision_recall(curves, f"{title}, {size} px", caption, folder)
    return [out / path.name for path in figures]
