"""Image sizes: one number for a square, or (height, width)."""

from vitreous.errors import VitreousError, brief

MAX_SIDE = 2**20  # pixels; products of larger sides overflow
Size = int | tuple[int, int]  # one number: a square


def pair(size: Size, name: str = "size") -> tuple[int, int]:
    """Return a size as (height, width). Lists are accepted, since JSON has no tuples."""
    values = tuple(size) if isinstance(size, list | tuple) else (size, size)
    integers = all(isinstance(value, int) and not isinstance(value, bool) for value in values)
    if len(values) != 2 or not integers or min(values) < 1:
        raise VitreousError(f"{name} = {brief(size)}: expected a positive integer, or a pair of them (height, width)")
    if max(values) > MAX_SIDE:
        raise VitreousError(f"{name} = {brief(size)}: expected {MAX_SIDE:,} pixels or less along a side")
    return values[0], values[1]
