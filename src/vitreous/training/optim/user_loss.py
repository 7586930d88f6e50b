"""A loss of the user's own."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.errors import VitreousError, brief
from vitreous.training.optim.losses import Loss, check_target_labels
from vitreous.utils.import_path import run_user_code


@dataclass(frozen=True)
class UserLoss(Loss):
    """Calls `function(logits, targets)`, which returns one value per image, (B,), or their mean.

    Targets are class indices, (B,) int64; or (B, classes) in float32, with mixup, CutMix or several labels per image.
    """

    function: Callable[[Tensor, Tensor], Tensor] = torch.subtract  # always given
    code: str = ""

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        targets = targets.float() if targets.dtype == torch.bool else targets
        losses = run_user_code(f"loss {self.code}", self.function, logits.float(), targets)
        if not isinstance(losses, Tensor) or not losses.is_floating_point() or losses.shape not in ((), (len(logits),)):
            got = tuple(losses.shape) if isinstance(losses, Tensor) else brief(losses)
            raise VitreousError(
                f"loss {self.code}: expected one value per image, ({len(logits)},), or their mean, a tensor of shape"
                f" (); got {got}"
            )
        if torch.is_grad_enabled() and not losses.requires_grad:
            raise VitreousError(f"loss {self.code}: its result has no gradient: compute it from the logits with torch")
        return losses.float().expand(len(logits))


def build_user_loss(
    function: Any, code: str, labels: Tensor, classes: int, multi_label: bool, device: torch.device | str
) -> UserLoss:
    """Return the loss for training images with these labels."""
    check_target_labels(labels, classes)
    if isinstance(function, nn.Module):
        if any(p.requires_grad for p in function.parameters()):
            raise VitreousError(f"loss {code}: has parameters, which would not be trained: make them part of the model")
        function = function.to(device)
    return UserLoss(multi_label, classes, function=function, code=code)
