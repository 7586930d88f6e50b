"""Texts of the training loop: numbers below the progress bar, metrics, and the error if memory runs out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from vitreous.errors import VitreousError
from vitreous.utils.memory import size_text


@contextmanager
def explain_out_of_memory(device: torch.device) -> Iterator[None]:
    """In a training pass, smaller passes avoid this error; in the optimiser or in evaluation nothing can."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise VitreousError(
            f"out of memory on {device}, outside of forward and backward passes: use a smaller model, image_size or"
            " micro_batch"
        ) from error


def format_line(values: dict[str, Any]) -> str:
    """The numbers below the progress bar."""
    parts = [f"loss {values['loss']:.3f}"]
    if values["accuracy"] is not None:
        parts.append(f"acc {values['accuracy']:.1%}")
    parts.append(f"lr {values['lr']:.1e}")
    parts.append(f"{values['images_per_second']:,.0f} images/s")
    parts.append(f"wait {values['data_wait']:.0%}")
    parts.append(size_text(values["memory_bytes"]))
    return "  ".join(parts)


def format_metric(name: str, value: float | None) -> str:
    """A loss with four decimals, any other metric as a percentage."""
    if value is None:
        return "-"
    return f"{value:.4f}" if name == "loss" else f"{value:.2%}"
