"""Figures with matplotlib, which is imported only when something is drawn."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Sequence
from functools import wraps
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from vitreous.errors import VitreousError
from vitreous.utils.console import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

P = ParamSpec("P")
R = TypeVar("R")
# A class may be called "$5^{th}$". These settings draw it literally, whatever the user's matplotlibrc says.
LITERAL: Any = {"text.parse_math": False, "text.usetex": False, "axes.formatter.use_mathtext": False}


def require_matplotlib() -> None:
    """Raise an error if matplotlib is not installed. Commands call it before they do hours of work."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise VitreousError('drawing needs matplotlib: pip install "vitreous[plot]"') from None


def matplotlib_is_installed() -> bool:
    return find_spec("matplotlib") is not None


def literal_text(draw: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that draws: text in its figures is shown literally, never as a formula.

    This also holds if the figure is rendered after the function has returned.
    """

    @wraps(draw)
    def drawing(*arguments: P.args, **options: P.kwargs) -> R:
        require_matplotlib()
        from matplotlib import rc_context

        with rc_context(LITERAL):
            return draw(*arguments, **options)

    return drawing


def label_text(name: object, most: int = 60) -> str:
    """Return a name for a figure: on one line, without control characters, at most `most` characters long."""
    shown = printable(str(name)[: most + 1])
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def add_legend(owner: Any, handles: Sequence[Any], names: Sequence[str], **options: Any) -> None:
    """Add a legend to a figure or an axis. Unlike matplotlib's own, it shows names that start with an underscore."""
    made = owner.legend(handles, ["name"] * len(handles), **options)
    for text, name in zip(made.get_texts(), names, strict=True):
        text.set_text(label_text(name, 40))


def new_figure(width: float, height: float) -> Figure:
    """Return a new figure of this size in inches. It needs no display."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def render_figure(figure: Figure, kind: str, dpi: int = 160) -> bytes:
    """Return a figure as the bytes of a png or svg file. The same figure gives the same bytes."""
    from matplotlib import rc_context

    buffer = io.BytesIO()
    undated = {"Date": None} if kind == "svg" else {}
    with rc_context({"svg.hashsalt": "vitreous"}), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about missing glyphs, which are drawn as boxes
        figure.savefig(buffer, format=kind, dpi=dpi, metadata=undated, bbox_inches="tight")
    return _number_clip_paths(buffer.getvalue()) if kind == "svg" else buffer.getvalue()


def _number_clip_paths(svg: bytes) -> bytes:
    """Replace the names of clip paths by numbers. matplotlib makes them from coordinates, whose last bits differ from
    one layout to the next; the coordinates in the file are rounded."""
    names = dict.fromkeys(re.findall(rb'<clipPath id="(\w+)"', svg))
    numbers = {name: b"clip%d" % number for number, name in enumerate(names)}
    return re.sub(
        rb'(?<=<clipPath id=")\w+|(?<=clip-path="url\(#)\w+', lambda found: numbers.get(found[0], found[0]), svg
    )
