"""Words for counts, places and lists in generated sentences."""

from __future__ import annotations

from collections.abc import Sequence


def counted(count: int, noun: str, plural: str = "") -> str:
    """A number and its noun, singular or plural: `1 patch`, `1,024 patches`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def patches(count: int) -> str:
    return counted(count, "patch", "patches")


def of_patches(some: int, count: int) -> str:
    """`4 of 196 patches`."""
    return f"{some:,} of {patches(count)}"


def times(factor: float) -> str:
    return f"{factor:.1f} times"


def grid_place(patch: int, columns: int) -> str:
    return f"row {patch // columns + 1}, column {patch % columns + 1}"


def listed(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def settled(holds: Sequence[bool]) -> int:
    """The first position from which a condition holds up to the end. It holds at the end."""
    return next((k + 1 for k in range(len(holds) - 1, -1, -1) if not holds[k]), 0)
