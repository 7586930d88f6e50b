"""Who changes the weights: AdamW, SGD, LAMB, or Muon with AdamW beside it; and with which learning rate for which.

Weight decay is AdamW's everywhere but in LAMB: each step takes lr x decay of a weight away, apart from gradients and
momentum.
"""

import math
from collections.abc import Sequence
from typing import Any, get_args, get_type_hints

import torch
from torch import Tensor, nn

from vitreous.errors import VitreousError
from vitreous.models import BiT, VisionTransformer
from vitreous.training import config
from vitreous.training.optim.lamb import Lamb
from vitreous.training.optim.muon import Muon
from vitreous.training.optim.parameters import (
    freeze_,
    last_layer,
    layer_of,
    lr_factors,
    muon_matrices,
    takes_weight_decay,
)

__all__ = ["Lamb", "Muon", "Optimisers", "Sgd", "build_optimisers", "clip_gradients_", "layer_of"]

KINDS = get_args(get_args(get_type_hints(config.Optimiser)["optimiser"])[0])
READ_BY = {"momentum": ("sgd",), "betas": ("adamw", "muon", "lamb"), "muon_lr": ("muon",), "muon_momentum": ("muon",)}


class Sgd(torch.optim.SGD):
    """torch's SGD with decoupled weight decay, under `decay` in its groups: torch's own adds it to the gradient."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            moving = [p for p in group["params"] if p.grad is not None]
            if moving and group["decay"]:
                torch._foreach_mul_(moving, 1 - group["lr"] * group["decay"])
        return super().step(closure)


class Optimisers:
    """One or two of torch's optimisers that go together. Each group keeps its highest learning rate as `initial_lr`."""

    def __init__(self, optimisers: list[torch.optim.Optimizer], parameters: list[nn.Parameter], lr: float):
        self.optimisers = optimisers
        self.parameters = parameters  # those that are trained, in the order of the model
        self._lr, self._factor = lr, 1.0

    def set_factor(self, factor: float) -> None:
        """Every learning rate is so much of its highest."""
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

    @property
    def learning_rate(self) -> float:
        """That of AdamW, SGD or LAMB before multipliers, to show."""
        return self._lr * self._factor


def build_optimisers(
    model: VisionTransformer | BiT, options: config.Optimiser, fused: bool | None = None
) -> Optimisers:
    """The optimisers of a model, which has the dtype and is on the device that it is trained with. `options.freeze` is
    carried out here. `fused`: torch's fused kernels; None: on CUDA.
    """
    _check(options)
    lr, decay = options.lr or 0.0, options.weight_decay or 0.0
    freeze_(model, options.freeze)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    matrices = _matrices(model, trained) if options.optimiser == "muon" else {}
    factors = lr_factors(trained, options.lr_multipliers)
    last = last_layer(model)

    # By learning rate, decay, parts (0: not Muon's), and whether decay is for them at all, be it 0.
    groups: dict[tuple[float, float, int, bool], list[nn.Parameter]] = {}
    for name, p in trained.items():
        factor = factors[name] * options.layer_decay ** (last - layer_of(name, model))
        highest = (options.muon_lr if name in matrices else lr) * factor
        matrix = takes_weight_decay(name, p)
        groups.setdefault((highest, decay if matrix else 0.0, matrices.get(name, 0), matrix), []).append(p)
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
    """Scale the gradients down to a norm of `max_norm` all together; None: leave them. Gives the norm that they had, as
    a tensor on their device: nothing waits for it."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients, foreach=True)
    if max_norm is not None:
        torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm, foreach=True)
    return norm


# The states are made at once, not at the first step: torch.distributed.checkpoint would make them by a step of its own,
# which AdamW counts, and a run that was saved before its first step would not be the run that was not.


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


def _matrices(model: VisionTransformer | BiT, trained: dict[str, nn.Parameter]) -> dict[str, int]:
    found = {name: parts for name, parts in muon_matrices(model).items() if name in trained}
    if not found:
        why = "a BiT has none" if isinstance(model, BiT) else "all of them are frozen"
        raise VitreousError(f"optimiser = 'muon': it is for matrices of a ViT's blocks, and {why}; use adamw or sgd")
    return found


def _check(options: config.Optimiser) -> None:
    """Every number in its range, and none that the optimiser would not look at."""
    kind = options.optimiser
    if kind not in KINDS:
        raise VitreousError(f"optimiser = {kind!r}: expected {_words(KINDS, 'or')}")
    for name in ("lr", "muon_lr", "layer_decay"):
        _require(options, name, lambda x: 0 < x < math.inf, "a positive number")
    _require(options, "layer_decay", lambda x: x <= 1, "at most 1, which is the same learning rate for all layers")
    _require(options, "weight_decay", lambda x: 0 <= x < math.inf, "0 or more")
    for name in ("momentum", "muon_momentum"):
        _require(options, name, lambda x: 0 <= x < 1, "at least 0 and below 1")
    _require(options, "betas", lambda pair: len(pair) == 2 and all(0 <= x < 1 for x in pair), "two from 0 to below 1")
    _require(options, "clip", lambda x: x is None or x > 0, "a positive number, or None")
    defaults = config.Optimiser()
    for name, readers in READ_BY.items():
        if kind not in readers and (value := getattr(options, name)) != getattr(defaults, name):
            raise VitreousError(f"{name} = {value!r}: an option of {_words(readers, 'and')}, not of {kind}")


def _words(names: Sequence[str], last: str) -> str:
    return f" {last} ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _require(options: config.Optimiser, name: str, holds: Any, expected: str) -> None:
    value = getattr(options, name)
    if (value is None and name != "clip") or not holds(value):
        raise VitreousError(f"{name} = {value!r}: expected {expected}")
