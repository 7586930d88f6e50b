"""The type of the progress bars that evaluations report to."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

Tick = Callable[[int], None]  # called with the number of images processed since the last call
ProgressBar = Callable[[str, int], AbstractContextManager[Tick]]  # called with a title and the number of images


def no_progress_bar(title: str, images: int) -> AbstractContextManager[Tick]:
    """Return a progress bar that shows nothing."""
    return nullcontext(lambda images: None)
