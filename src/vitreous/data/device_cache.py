"""A decoded data set cached on the device as uint8, with images of any sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.data.geometry import gather_boxes

LUMA = np.array([19595, 38470, 7471], np.uint32)  # ITU-R 601 weights of red, green and blue, times 65536


@dataclass(frozen=True)
class CachedImages:
    """Images of any sizes in one flat buffer: height x width x channels bytes each."""

    flat: Tensor  # uint8
    offsets: Tensor  # start of each image in `flat`, int64
    sizes: Tensor  # (N, 2), heights and widths
    channels: int

    @classmethod
    def from_array(cls, array: NDArray[Any], channels: int, device: torch.device) -> CachedImages:
        """Cache images (N, H, W, C), converted to `channels` channels."""
        if array.shape[3] < channels:
            array = np.repeat(array, channels, 3)
        elif array.shape[3] > channels:  # grey, with Pillow's rounding
            array = ((array.astype(np.uint32) @ LUMA + 0x8000) >> 16).astype(np.uint8)[..., None]
        sizes = torch.tensor(array.shape[1:3]).expand(len(array), 2)
        return cls.from_parts([torch.from_numpy(np.ascontiguousarray(array)).flatten()], sizes, channels, device)

    @classmethod
    def from_parts(cls, parts: Sequence[Tensor], sizes: Tensor, channels: int, device: torch.device) -> CachedImages:
        """Cache images whose bytes are given as consecutive flat tensors."""
        counts = sizes.prod(1) * channels
        flat = torch.empty(int(counts.sum()), dtype=torch.uint8, device=device)
        start = 0
        for part in parts:
            flat[start : start + len(part)] = part
            start += len(part)
        return cls(flat, (counts.cumsum(0) - counts).to(device), sizes.to(device), channels)

    def crops(self, indices: Tensor, boxes: Tensor, flips: Tensor, size: tuple[int, int]) -> Tensor:
        """Boxes (top, left, height, width) in pixels, resampled to `size`: float32 (B, C, H, W) in 0..255."""
        heights, widths = self.sizes[indices].unbind(1)
        offsets = self.offsets[indices]
        return gather_boxes(self.flat, offsets, heights, widths, boxes, flips, size, self.channels, taps=2)

    def full_images(self, indices: Tensor, size: tuple[int, int]) -> Tensor:
        """Uncropped images, uint8 (B, C, H, W), if all cached images have this size."""
        count = size[0] * size[1] * self.channels
        rows = self.flat.view(-1, count)[indices]
        return rows.view(-1, *size, self.channels).permute(0, 3, 1, 2)
