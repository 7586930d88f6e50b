"""Warnings of the public functions, raised at the line of the user that called them."""

import warnings
from collections.abc import Sequence

from vitreous.errors import VitreousWarning, format_count, summarize_names

STACK = 4  # this file, the function, the decorator that checks its arguments, its caller


def warn_caller(texts: Sequence[str], unreadable: Sequence[str] = ()) -> None:
    """Raise each text as a VitreousWarning, and one for the images that could not be read."""
    for text in texts:
        warnings.warn(text, VitreousWarning, stacklevel=STACK)
    if unreadable:
        count = format_count(len(unreadable), "image")
        text = f"left out: {count} that cannot be read: {summarize_names(unreadable, 3)}"
        warnings.warn(text, VitreousWarning, stacklevel=STACK)
