"""Exponential moving average (EMA) of the weights."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vitreous.errors import VitreousError, summarize_names


class Ema:
    """A float32 moving average of each trained parameter. Frozen parameters are not copied."""

    def __init__(self, model: nn.Module, decay: float):
        if not 0 < decay < 1:
            raise VitreousError(f"ema = {decay!r}: expected a decay between 0 and 1, such as 0.999")
        self.decay = decay
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.parameters: list[Tensor] = list(trained.values())
        self.shadow = {name: p.detach().to(torch.float32, copy=True) for name, p in trained.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Call after optimiser step number `step`, from 0. The decay is lower in the first steps, so that the average
        of a short run does not contain the initial weights."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.shadow.values()), [p.float() for p in self.parameters], 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Replace the weights of the model by their average. On exit its weights are restored, bit for bit."""
        with torch.no_grad():
            own = [p.detach().clone() for p in self.parameters]
            torch._foreach_copy_(self.parameters, list(self.shadow.values()))
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self.parameters, own)

    def state_dict(self) -> dict[str, Tensor]:
        """The averages by parameter name. They are not copied: later updates change them."""
        return dict(self.shadow)

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Copy the result of `state_dict`; names, shapes and types must be the same."""
        if state.keys() != self.shadow.keys():
            missing, unknown = sorted(self.shadow.keys() - state.keys()), sorted(state.keys() - self.shadow.keys())
            raise VitreousError(
                f"ema: {_some_names(missing)} missing in the state, {_some_names(unknown)} not in this model"
            )
        for name, value in state.items():
            own = self.shadow[name]
            if value.shape != own.shape or value.dtype != own.dtype:
                raise VitreousError(
                    f"ema: {name} is {tuple(value.shape)} {value.dtype}, expected {tuple(own.shape)} {own.dtype}"
                )
        for name, value in state.items():
            self.shadow[name].copy_(value)


def _some_names(names: list[str]) -> str:
    return summarize_names(names, 3) if names else "nothing"
