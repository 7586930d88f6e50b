"""Augmentation of the user's own, on batches of training images."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vitreous.errors import VitreousError, brief
from vitreous.utils.import_path import run_user_code
from vitreous.utils.torch_settings import seeded_generators


@dataclass(frozen=True)
class UserAugment:
    """Calls `function(images)` with images (B, C, H, W), 0 to 1 in float32. It returns images of the same shape.

    Its random draws come from the global generators of torch, numpy and Python, which are seeded by the first image of
    each pass, so that a resumed run draws the same numbers.
    """

    function: Any
    code: str

    @torch.no_grad()
    def __call__(self, images: Tensor, keys: Tensor) -> Tensor:
        """Images with values from 0 to 255, and their keys."""
        with seeded_generators(int(keys[0]) & (2**62 - 1), images.device):
            result = run_user_code(f"augment {self.code}", self.function, images.float().div(255))
        if not isinstance(result, Tensor) or result.shape != images.shape or not result.is_floating_point():
            got = f"{tuple(result.shape)} {result.dtype}" if isinstance(result, Tensor) else brief(result)
            raise VitreousError(
                f"augment {self.code}: expected images {tuple(images.shape)} in floating point, as it was given; got"
                f" {got}"
            )
        return result.float().mul(255)
