"""Targets and loss of masked-patch prediction (appendix B.1.2 of the ViT paper).

A value v of a colour channel, 0 to 255, has the 3-bit level floor(v / 32), 0 to 7. The class of an RGB colour is
64 r + 8 g + b, of a grey value its level.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.errors import VitreousError
from vitreous.models.masked import draw_corruption
from vitreous.training.optim.losses import Loss

LEVELS = 8  # 3 bits per channel
LEVEL_WIDTH = 256 // LEVELS
CELLS = 4  # rows and columns of a downsized patch


@dataclass(frozen=True)
class PatchTargets:
    """`targets(images, keys)`: what is predicted of the corrupted patches.

    - colour: the class of the mean colour of the patch, (B, M) int64.
    - colours: the classes of the patch downsized to 4 x 4 cells by averaging, row by row, (B, M, 16) int64.
    - pixels: all pixels divided by 255, channel by channel and row by row, (B, M, channels x height x width).
    """

    kind: str
    channels: int
    patch: tuple[int, int]  # (height, width) in pixels
    ratio: float  # of corrupted patches

    def __post_init__(self) -> None:
        if self.kind == "colours" and any(side % CELLS for side in self.patch):
            raise VitreousError(
                f"patch_target = 'colours': needs a patch size that is a multiple of {CELLS}, not {self.patch[0]}"
            )

    @property
    def outputs(self) -> int:
        """Number of outputs of the model for each patch."""
        colours: int = LEVELS**self.channels
        pixels = self.channels * self.patch[0] * self.patch[1]
        return {"colour": colours, "colours": CELLS**2 * colours, "pixels": pixels}[self.kind]

    def __call__(self, images: Tensor, keys: Tensor) -> Tensor:
        """`images`: (B, C, H, W), 0 to 255, before normalisation. `keys`: as in `keyed_corruption`."""
        every = self.of_all_patches(images)
        patches = draw_corruption(keys, every.shape[1], self.ratio).patches
        return every.gather(1, patches.view(*patches.shape, *[1] * (every.ndim - 2)).expand(-1, -1, *every.shape[2:]))

    def of_all_patches(self, images: Tensor) -> Tensor:
        """The targets of all patches, row by row."""
        patches = cut_patches(images.float(), self.patch)  # (B, N, C, h, w)
        if self.kind == "colour":
            return colour_classes(patches.mean((3, 4)))
        if self.kind == "pixels":
            return patches.flatten(2) / 255
        rows, cols = (side // CELLS for side in self.patch)
        cells = patches.unflatten(4, (CELLS, cols)).unflatten(3, (CELLS, rows)).mean((4, 6))  # (B, N, C, 4, 4)
        return colour_classes(cells.flatten(3).transpose(2, 3))


def cut_patches(images: Tensor, patch: tuple[int, int]) -> Tensor:
    """Patches (B, N, C, h, w), row by row. A remainder at the right and lower border is left out."""
    h, w = patch
    rows, cols = images.shape[2] // h, images.shape[3] // w
    images = images[:, :, : rows * h, : cols * w]
    grid = images.unflatten(2, (rows, h)).unflatten(4, (cols, w)).permute(0, 2, 4, 1, 3, 5)  # (B, r, c, C, h, w)
    patches: Tensor = grid.flatten(1, 2)
    return patches


def colour_classes(colours: Tensor) -> Tensor:
    """The class of colours (..., channels), 0 to 255."""
    classes = torch.zeros(colours.shape[:-1], dtype=torch.int64, device=colours.device)
    for levels in (colours / LEVEL_WIDTH).floor().clamp(0, LEVELS - 1).long().unbind(-1):
        classes = classes * LEVELS + levels
    return classes


def class_colours(classes: Tensor, channels: int) -> Tensor:
    """The colour in the middle of each class, (..., channels), 0 to 255."""
    powers = [LEVELS**place for place in reversed(range(channels))]
    levels = torch.stack([classes // power % LEVELS for power in powers], -1)
    return (levels * LEVEL_WIDTH + LEVEL_WIDTH // 2).float()


@dataclass(frozen=True)
class PatchLoss(Loss):
    """The loss of each image, (B,): the mean over its corrupted patches, and over the cells or pixels of a patch.

    Cross-entropy for classes; for pixels (targets in floating point) the squared error.
    """

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        if not self.classifies:
            return (logits.float() - targets).square().flatten(1).mean(1)
        logits = logits.float().reshape(*targets.shape, -1)
        losses = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none")
        return losses.view(len(targets), -1).mean(1)

    def right(self, logits: Tensor, targets: Tensor) -> Tensor:
        """For each image, the share of colours that are predicted correctly; zeros for pixels."""
        if not self.classifies:
            return torch.zeros(len(targets), device=logits.device)
        return (logits.reshape(*targets.shape, -1).argmax(-1) == targets).flatten(1).float().mean(1)
