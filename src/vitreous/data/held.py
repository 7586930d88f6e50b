"""A data set decoded once and kept on the device as uint8, whatever the sizes of its images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.data.geometry import gather_boxes

LUMA = np.array([19595, 38470, 7471], np.uint32)  # red, green and blue of ITU-R 601, of 65536


@dataclass(frozen=True)
class Held:
    """Images of any sizes in one row of bytes: height x width x channels each."""

    flat: Tensor  # uint8
    offsets: Tensor  # where each begins, int64
    sizes: Tensor  # (N, 2), heights and widths
    channels: int

    @classmethod
    def from_array(cls, array: NDArray[Any], channels: int, device: torch.device) -> Held:
        """Of (N, H, W, C) images of one size."""
        if array.shape[3] < channels:  # grey ones, shown to a model of colours
            array = np.repeat(array, channels, 3)
        elif array.shape[3] > channels:  # as Pillow makes them grey
            array = ((array.astype(np.uint32) @ LUMA + 0x8000) >> 16).astype(np.uint8)[..., None]
        sizes = torch.tensor(array.shape[1:3]).expand(len(array), 2)
        return cls.from_parts([torch.from_numpy(np.ascontiguousarray(array)).flatten()], sizes, channels, device)

    @classmethod
    def from_parts(cls, parts: Sequence[Tensor], sizes: Tensor, channels: int, device: torch.device) -> Held:
        """Of rows of bytes that follow each other."""
        counts = sizes.prod(1) * channels
        flat = torch.empty(int(counts.sum()), dtype=torch.uint8, device=device)
        start = 0
        for part in parts:
            flat[start : start + len(part)] = part
            start += len(part)
        return cls(flat, (counts.cumsum(0) - counts).to(device), sizes.to(device), channels)

    def crops(self, indices: Tensor, boxes: Tensor, flips: Tensor, size: tuple[int, int]) -> Tensor:
        """Boxes of pixels (top, left, height, width), as float32 (B, C, H, W) in 0..255."""
        heights, widths = self.sizes[indices].unbind(1)
        offsets = self.offsets[indices]
        return gather_boxes(self.flat, offsets, heights, widths, boxes, flips, size, self.channels, taps=2)

    def whole(self, indices: Tensor, size: tuple[int, int]) -> Tensor:
        """Images that are all of one size, uint8 (B, C, H, W)."""
        count = size[0] * size[1] * self.channels
        rows = self.flat.view(-1, count)[indices]
        return rows.view(-1, *size, self.channels).permute(0, 3, 1, 2)
