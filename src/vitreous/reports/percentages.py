"""Percentages for text: parts of a whole that are shown together add up to 100."""

from collections.abc import Sequence


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
