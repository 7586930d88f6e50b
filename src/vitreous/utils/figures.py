"""Pictures by matplotlib, which is imported when something is drawn."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from vitreous.errors import VitreousError
from vitreous.utils.console import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

P = ParamSpec("P")
R = TypeVar("R")
# "$5^{th}$" may be the name of a class: it is neither a formula nor TeX, whatever the user's matplotlibrc says.
LITERAL: Any = {"text.parse_math": False, "text.usetex": False, "axes.formatter.use_mathtext": False}


def check_drawing() -> None:
    """Before hours of work: whether a picture can be drawn at the end."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise VitreousError('drawing needs matplotlib: pip install "vitreous[plot]"') from None


def literal_text(draw: Callable[P, R]) -> Callable[P, R]:
    """For functions that draw: whatever is written in a figure is shown letter by letter, never as a formula.

    A text keeps this when it is drawn later, outside of the function.
    """

    @wraps(draw)
    def drawing(*arguments: P.args, **options: P.kwargs) -> R:
        check_drawing()
        from matplotlib import rc_context

        with rc_context(LITERAL):
            return draw(*arguments, **options)

    return drawing


def label(name: object, most: int = 60) -> str:
    """A name as it is drawn: on one line, without control characters, and not too long."""
    shown = printable(str(name)[: most + 1])
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def legend(owner: Any, handles: Sequence[Any], names: Sequence[str], **options: Any) -> None:
    """A legend of a figure or an axis. matplotlib itself would leave out names that start with an underscore."""
    made = owner.legend(handles, ["name"] * len(handles), **options)
    for text, name in zip(made.get_texts(), names, strict=True):
        text.set_text(label(name, 40))


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
    with rc_context({"svg.hashsalt": "vitreous"}), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of letters that the font does not have, which are drawn as boxes
        figure.savefig(held, format=kind, dpi=dpi, metadata=undated, bbox_inches="tight")
    return held.getvalue()
