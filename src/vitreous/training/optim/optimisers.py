"""Optimisers: AdamW, SGD, LAMB, or Muon with AdamW for the parameters that are no matrices; and learning-rate groups.

Weight decay is decoupled, except in LAMB: each step subtracts lr x decay of a weight, independent of gradient and
momentum.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.errors import VitreousError
from vitreous.models import BiT, VisionTransformer
from vitreous.models.custom import CustomModel
from vitreous.training import config
from vitreous.training.optim.lamb import Lamb
from vitreous.training.optim.muon import Muon
from vitreous.training.optim.parameters import (
    freeze_,
    layer_decay_factors,
    layer_of,
    lr_factors,
    muon_matrices,
    takes_weight_decay,
)

__all__ = ["Lamb", "Muon", "Optimisers", "Sgd", "build_optimisers", "clip_gradients_", "layer_of"]

KINDS = config.CHOICES["optimiser"]
USED_BY = {"momentum": ("sgd",), "betas": ("adamw", "muon", "lamb"), "muon_lr": ("muon",), "muon_momentum": ("muon",)}


class Sgd(torch.optim.SGD):
    """torch's SGD with decoupled weight decay, the group option `decay`. torch's own is added to the gradient."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            trained = [p for p in group["params"] if p.grad is not None]
            if trained and group["decay"]:
                torch._foreach_mul_(trained, 1 - group["lr"] * group["decay"])
        return super().step(closure)


class Optimisers:
    """One or two optimisers that step together. Each group stores its peak learning rate as `initial_lr`."""

    def __init__(self, optimisers: list[torch.optim.Optimizer], parameters: list[nn.Parameter], lr: float):
        self.optimisers = optimisers
        self.parameters = parameters  # the trained ones, in the order of the model
        self._lr, self._factor = lr, 1.0

    def set_factor(self, factor: float) -> None:
        """Set every learning rate to this fraction of its peak."""
        self._factor = factor
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = group["initial_lr"] * factor

    def step(self) -> None:
        for optimiser in self.optimisers:
            optimiser.step()

    def zero_grad(self) -> None:
        for optimiser in self.optimisers:
            optimiser.zero_grad(set_to_none=True)

    def state_tensors(self, names: Mapping[Tensor, str]) -> dict[str, Any]:
        """The tensors of the state, by the names of the parameters."""
        return {names[p]: dict(o.state[p]) for o in self.optimisers for p in o.state}

    @property
    def learning_rate(self) -> float:
        """The learning rate of AdamW, SGD or LAMB before multipliers, for display."""
        return self._lr * self._factor


def build_optimisers(
    model: VisionTransformer | BiT | CustomModel, options: config.Optimiser, fused: bool | None = None
) -> Optimisers:
    """Freeze parameters by `options.freeze`, and return the optimisers of the others.

    The model must have its final dtype and device. `fused`: use torch's fused kernels; by default on CUDA.
    """
    _check_optimiser(options)
    lr, decay = options.lr or 0.0, options.weight_decay or 0.0
    inner = model.module if isinstance(model, CustomModel) else model
    freeze_(inner, options.freeze)
    trained = {name: p for name, p in inner.named_parameters() if p.requires_grad}
    matrices = _trained_matrices(model, trained) if options.optimiser == "muon" else {}
    factors = lr_factors(trained, options.lr_multipliers)
    layer_factors = layer_decay_factors(model, trained, options.layer_decay)

    # Key: peak learning rate, decay, parts for Muon (0: not Muon), whether decay applies (even if it is 0).
    groups: dict[tuple[float, float, int, bool], list[nn.Parameter]] = {}
    for name, p in trained.items():
        factor = factors[name] * layer_factors[name]
        peak = (options.muon_lr if name in matrices else lr) * factor
        decays = takes_weight_decay(name, p)
        groups.setdefault((peak, decay if decays else 0.0, matrices.get(name, 0), decays), []).append(p)
    muon = [
        {"params": ps, "lr": r, "initial_lr": r, "weight_decay": d, "parts": parts}
        for (r, d, parts, _), ps in groups.items()
        if parts
    ]
    rest = [
        {"params": ps, "lr": r, "initial_lr": r, "decay": d, "matrix": matrix}
        for (r, d, parts, matrix), ps in groups.items()
        if not parts
    ]

    fused = all(p.is_cuda for p in trained.values()) if fused is None else fused
    optimisers: list[torch.optim.Optimizer] = []
    if rest:
        optimisers.append({"sgd": _sgd, "lamb": _lamb}.get(options.optimiser or "", _adamw)(rest, options, fused))
    if muon:
        optimisers.append(Muon(muon, momentum=options.muon_momentum))
    return Optimisers(optimisers, list(trained.values()), lr)


def clip_gradients_(parameters: Sequence[nn.Parameter], max_norm: float | None) -> Tensor:
    """Scale all gradients so that their total norm is at most `max_norm`; None: no clipping. Returns the norm before,
    as a tensor on the device, so that nothing waits for the GPU."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients, foreach=True)
    if max_norm is not None:
        torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm, foreach=True)
    return norm


# The optimiser state is created here and not in the first step, so that it has the same tensors at any time: a state
# that was saved before the first step can be restored like any other.


def _adamw(groups: list[dict[str, Any]], options: config.Optimiser, fused: bool) -> torch.optim.Optimizer:
    groups = [{"weight_decay": group.pop("decay"), **group} for group in groups]
    adamw = torch.optim.AdamW(groups, betas=options.betas, fused=fused, foreach=not fused)
    for p in _parameters(adamw):
        adamw.state[p] = {
            "step": torch.zeros((), device=p.device if fused else "cpu"),
            "exp_avg": torch.zeros_like(p),
            "exp_avg_sq": torch.zeros_like(p),
        }
    return adamw


def _sgd(groups: list[dict[str, Any]], options: config.Optimiser, fused: bool) -> torch.optim.Optimizer:
    sgd = Sgd(groups, momentum=options.momentum, fused=fused, foreach=not fused)
    for p in _parameters(sgd):
        sgd.state[p] = {"momentum_buffer": torch.zeros_like(p)}
    return sgd


def _lamb(groups: list[dict[str, Any]], options: config.Optimiser, fused: bool) -> torch.optim.Optimizer:
    groups = [{"weight_decay": group.pop("decay"), "scaled": group.pop("matrix"), **group} for group in groups]
    return Lamb(groups, betas=options.betas)


def _parameters(optimiser: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [p for group in optimiser.param_groups for p in group["params"]]


def _trained_matrices(model: VisionTransformer | BiT | CustomModel, trained: dict[str, nn.Parameter]) -> dict[str, int]:
    matrices = {name: parts for name, parts in muon_matrices(model).items() if name in trained}
    if not matrices:
        why = "all of them are frozen"
        if not isinstance(model, VisionTransformer):
            why = "a BiT has none" if isinstance(model, BiT) else "those of a model of your own are not known"
        raise VitreousError(
            f"optimiser = 'muon': trains the weight matrices of a ViT's blocks, and {why}; use adamw or sgd"
        )
    return matrices


def _check_optimiser(options: config.Optimiser) -> None:
    """Raise an error for a value out of range, and for an option that the optimiser does not use."""
    kind = options.optimiser
    if kind not in KINDS:
        raise VitreousError(f"optimiser = {kind!r}: expected {_join(KINDS, 'or')}")
    for name in ("lr", "muon_lr", "layer_decay"):
        _require(options, name, lambda x: 0 < x < math.inf, "a positive number")
    _require(options, "layer_decay", lambda x: x <= 1, "at most 1, which is the same learning rate for all layers")
    _require(options, "weight_decay", lambda x: 0 <= x < math.inf, "0 or more")
    for name in ("momentum", "muon_momentum"):
        _require(options, name, lambda x: 0 <= x < 1, "at least 0 and below 1")
    _require(
        options, "betas", lambda pair: len(pair) == 2 and all(0 <= x < 1 for x in pair), "two numbers from 0 to below 1"
    )
    _require(options, "clip", lambda x: x is None or x > 0, "a positive number, or None")
    defaults = config.Optimiser()
    for name, users in USED_BY.items():
        if kind not in users and (value := getattr(options, name)) != getattr(defaults, name):
            raise VitreousError(f"{name} = {value!r}: an option of {_join(users, 'and')}, not of {kind}")


def _join(names: Sequence[str], last: str) -> str:
    return f" {last} ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _require(options: config.Optimiser, name: str, is_valid: Any, expected: str) -> None:
    value = getattr(options, name)
    if (value is None and name != "clip") or not is_valid(value):
        raise VitreousError(f"{name} = {value!r}: expected {expected}")
