"""Percentages for text: parts of a whole that are shown together add up to 100."""

from collections.abc import Sequence

from torch import Tensor


def percentages(parts: Sequence[float], decimals: int = 1) -> list[str]:
    """Return each part of the sum of all parts in percent. The rounded numbers add up to 100 exactly.

    Largest-remainder rounding: all are rounded down, and the units that are missing go to the largest remainders.
    """
    total = sum(parts)
    units = 100 * 10**decimals
    exact = [part / total * units for part in parts] if total > 0 else [0.0] * len(parts)
    whole = [int(value) for value in exact]
    missing = units - sum(whole) if total > 0 else 0
    order = sorted(range(len(parts)), key=lambda i: whole[i] - exact[i])
    for i in order[:missing]:
        whole[i] += 1
    return [f"{value / 10**decimals:.{decimals}f}%" for value in whole]


def percentage(share: float) -> str:
    """Return one share in percent with one decimal."""
    return f"{100 * share:.1f}%"


def precise_percentage(share: float) -> str:
    """Return one share in percent with two significant digits, or one decimal from 10% on."""
    value = 100 * share
    if value >= 9.95:
        return percentage(share)
    return "less than 0.001%" if 0 < value < 0.001 else f"{value:.2g}%"


def class_percentages(probabilities: Tensor, order: Sequence[int]) -> list[str]:
    """Return the percentages of the classes in `order`; if they sum to one with the other classes, also that of the
    others."""
    total = float(probabilities.sum())
    shown = [float(probabilities[k]) for k in order]
    if abs(total - 1) > 1e-3:  # sigmoid outputs do not sum to one
        return [percentage(p) for p in shown]
    if len(order) == len(probabilities):
        return percentages(shown)
    return percentages([*shown, max(0.0, total - sum(shown))])
