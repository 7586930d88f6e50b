"""The running mean of the weights, evaluated beside the raw ones."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vitreous.errors import VitreousError


class Ema:
    """A float32 copy of each trained parameter, which follows it slowly. Frozen ones are not copied."""

    def __init__(self, model: nn.Module, decay: float):
        if not 0 < decay < 1:
            raise VitreousError(f"ema = {decay!r}: expected a decay between 0 and 1, such as 0.999")
        self.decay = decay
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.parameters: list[Tensor] = list(trained.values())
        self.shadow = {name: p.detach().to(torch.float32, copy=True) for name, p in trained.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """After optimiser step number `step`, from 0. The decay is lower at first: short runs have to forget, too."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.shadow.values()), [p.float() for p in self.parameters], 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model with the mean weights; with its own again, to the bit, when the block is left."""
        with torch.no_grad():
            own = [p.detach().clone() for p in self.parameters]
            torch._foreach_copy_(self.parameters, list(self.shadow.values()))
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self.parameters, own)

    def state_dict(self) -> dict[str, Tensor]:
        """By the names of the parameters. Not copied: later updates show in it."""
        return dict(self.shadow)

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """What `state_dict` gave, to the bit; every name and shape has to be the same."""
        if state.keys() != self.shadow.keys():
            missing, unknown = sorted(self.shadow.keys() - state.keys()), sorted(state.keys() - self.shadow.keys())
            raise VitreousError(f"ema: {_some(missing)} missing in the state, {_some(unknown)} not of this model")
        for name, value in state.items():
            mine = self.shadow[name]
            if value.shape != mine.shape or value.dtype != mine.dtype:
                raise VitreousError(
                    f"ema: {name} is {tuple(value.shape)} {value.dtype}, expected {tuple(mine.shape)} {mine.dtype}"
                )
        for name, value in state.items():
            self.shadow[name].copy_(value)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more if names else "nothing"
