"""Limits of counts and seeds. Larger values are typing errors: they would overflow inside torch, or start far too many
processes."""

from vitreous.errors import VitreousError, brief

MAX_COUNT = 2**31 - 1  # images of a batch, classes, shots
MAX_WORKERS = 1024  # processes that decode images
SEED_LIMIT = 2**62  # seeds between -SEED_LIMIT and SEED_LIMIT are valid for every random generator


def check_count(name: str, value: int, minimum: int = 1, maximum: int = MAX_COUNT) -> None:
    """Raise an error if a count is out of range."""
    if value < minimum:
        raise VitreousError(f"{name} = {brief(value)}: must be {minimum:,} or more")
    if value > maximum:
        raise VitreousError(f"{name} = {brief(value)}: must be {maximum:,} or less")


def check_seed(name: str, value: int) -> None:
    """Raise an error if a seed is out of range."""
    if not -SEED_LIMIT < value < SEED_LIMIT:
        raise VitreousError(f"{name} = {brief(value)}: must be below 2**62")
