"""Pictures by matplotlib, which is not there unless somebody wants them."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from vitreous.errors import VitreousError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def check_drawing() -> None:
    """Before hours of work: whether a picture can be drawn at the end."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise VitreousError('drawing needs matplotlib: pip install "vitreous[plot]"') from None


def blank(width: float, height: float) -> Figure:
    """A figure of so many inches, which no window shows."""
    check_drawing()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def rendered(figure: Figure, kind: str, dpi: int = 160) -> bytes:
    """The bytes of a file: png or svg. The same figure gives the same bytes."""
    from matplotlib import rc_context

    held = io.BytesIO()
    undated = {"Date": None} if kind == "svg" else {}
    with rc_context({"svg.hashsalt": "vitreous"}):
        figure.savefig(held, format=kind, dpi=dpi, metadata=undated, bbox_inches="tight")
    return held.getvalue()
