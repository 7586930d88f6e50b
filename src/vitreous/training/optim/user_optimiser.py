"""An optimiser of the user's own: any torch.optim.Optimizer, with its state saved without pickle.

The state is that of its `state_dict`: tensors go to the tensors of a saved state, everything else to its progress.json.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.errors import VitreousError, brief
from vitreous.models.custom import CustomModel
from vitreous.models.resnet import BiT
from vitreous.models.vit import VisionTransformer
from vitreous.training import config
from vitreous.training.optim.optimisers import Optimisers
from vitreous.training.optim.parameters import freeze_, layer_decay_factors, lr_factors, takes_weight_decay
from vitreous.utils.import_path import run_user_code
from vitreous.utils.json_files import MAX_JSON_BYTES

OTHERS_OPTIONS = ("muon_lr", "momentum", "muon_momentum", "betas")  # options of the optimisers of Vitreous
TENSOR, TUPLE, KEYS, FLOAT = "tensor", "tuple", "keys", "float"  # marks of values in JSON that are not JSON


class UserOptimisers(Optimisers):
    """An optimiser of the user's own as that of a run."""

    def __init__(self, optimiser: torch.optim.Optimizer, parameters: list[nn.Parameter], code: str):
        super().__init__([optimiser], parameters, optimiser.param_groups[0]["initial_lr"])
        self.optimiser, self.code = optimiser, code

    def step(self) -> None:
        run_user_code(f"optimiser {self.code}", self.optimiser.step)

    def state_tensors(self, names: Mapping[Tensor, str]) -> dict[str, Any]:
        return dict(self.packed_state()[1])

    def packed_state(self) -> tuple[str, dict[str, Tensor]]:
        """The state as JSON without line breaks, and its tensors by name."""
        tensors: dict[str, Tensor] = {}
        packed = json.dumps(self._pack(self.optimiser.state_dict(), "", tensors), separators=(",", ":"))
        if 2 * len(packed) > MAX_JSON_BYTES:  # quotes are escaped in progress.json, which is not read if it is larger
            raise VitreousError(f"optimiser {self.code}: the description of its state is too long to be saved")
        return packed, tensors

    def stored_tensors(self, packed: str) -> dict[str, Tensor]:
        """Empty tensors for those of a saved state."""
        found: dict[str, Tensor] = {}
        _collect(json.loads(packed), found)
        return found

    def restore_state(self, packed: str, tensors: Mapping[str, Tensor]) -> None:
        """Restore the result of `packed_state`, and check that the optimiser has taken it exactly."""
        run_user_code(f"optimiser {self.code}", self.optimiser.load_state_dict, _unpack(json.loads(packed), tensors))
        again, restored = self.packed_state()
        same = again == packed and restored.keys() == tensors.keys()
        if not same or not all(torch.equal(restored[name].cpu(), value) for name, value in tensors.items()):
            raise VitreousError(
                f"optimiser {self.code}: load_state_dict does not restore its state_dict exactly, so the run cannot be"
                " continued"
            )

    def _pack(self, value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {FLOAT: repr(value)}
        if type(value) in (Tensor, nn.Parameter):
            tensors[name] = value.detach()
            kind = str(value.dtype).removeprefix("torch.")
            return {TENSOR: name, "shape": list(value.shape), "dtype": kind}
        if isinstance(value, list):
            return [self._pack(item, f"{name}.{i}", tensors) for i, item in enumerate(value)]
        if isinstance(value, tuple):
            return {TUPLE: [self._pack(item, f"{name}.{i}", tensors) for i, item in enumerate(value)]}
        if isinstance(value, Mapping) and all(type(key) in (int, str) for key in value):
            keys = sorted(value, key=lambda key: (isinstance(key, str), key))
            return {KEYS: [[key, self._pack(value[key], f"{name}.{key}".strip("."), tensors)] for key in keys]}
        raise VitreousError(
            f"optimiser {self.code}: its state has {name}, a {type(value).__name__}; only tensors, numbers and texts,"
            " and lists and dicts of these, can be saved"
        )


def _collect(packed: Any, found: dict[str, Tensor]) -> None:
    if isinstance(packed, list):
        for item in packed:
            _collect(item, found)
    elif isinstance(packed, dict) and TENSOR in packed:
        found[packed[TENSOR]] = torch.empty(packed["shape"], dtype=getattr(torch, packed["dtype"]))
    elif isinstance(packed, dict):
        _collect(next(iter(packed.values())), found)


def _unpack(packed: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(packed, list):
        return [_unpack(item, tensors) for item in packed]
    if not isinstance(packed, dict):
        return packed
    if TENSOR in packed:
        return tensors[packed[TENSOR]].clone()
    if FLOAT in packed:
        return float(packed[FLOAT])
    if TUPLE in packed:
        return tuple(_unpack(packed[TUPLE], tensors))
    return {key: _unpack(item, tensors) for key, item in packed[KEYS]}


def build_user_optimiser(
    create: Callable[..., Any], code: str, model: VisionTransformer | BiT | CustomModel, options: config.Optimiser
) -> UserOptimisers:
    """Freeze parameters by `options.freeze`, and return the optimiser of the others.

    `create` is called with groups of parameters. Learning rate and weight decay are those of `create`, unless the
    options set them; norms, biases and other vectors have no weight decay.
    """
    _check_options(options, code)
    inner = model.module if isinstance(model, CustomModel) else model
    freeze_(inner, options.freeze)
    trained = {name: p for name, p in inner.named_parameters() if p.requires_grad}
    by_layer = layer_decay_factors(model, trained, options.layer_decay)
    factors = {name: f * by_layer[name] for name, f in lr_factors(trained, options.lr_multipliers).items()}
    groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for name, p in trained.items():
        groups.setdefault((factors[name], takes_weight_decay(name, p)), []).append(p)
    given = [_group(parameters, decays, options) for (_, decays), parameters in groups.items()]
    optimiser = run_user_code(f"optimiser {code}", create, given)
    if not isinstance(optimiser, torch.optim.Optimizer):
        raise VitreousError(f"optimiser {code}: expected a torch.optim.Optimizer, got {brief(optimiser)}")
    _check_groups(optimiser, code, trained, options)
    factor_of = {id(p): factor for (factor, _), parameters in groups.items() for p in parameters}
    for group in optimiser.param_groups:
        rates = {factor_of[id(p)] for p in group["params"]}
        if len(rates) > 1:
            raise VitreousError(
                f"optimiser {code}: merged groups of parameters with different learning rates: keep the groups, or"
                " leave out lr_multipliers and layer_decay"
            )
        group["lr"] = group["initial_lr"] = float(group["lr"]) * rates.pop()
    return UserOptimisers(optimiser, list(trained.values()), code)


def _group(parameters: list[nn.Parameter], decays: bool, options: config.Optimiser) -> dict[str, Any]:
    group: dict[str, Any] = {"params": parameters}
    if options.lr is not None:
        group["lr"] = options.lr
    if not decays:
        group["weight_decay"] = 0.0
    elif options.weight_decay is not None:
        group["weight_decay"] = options.weight_decay
    return group


def _check_options(options: config.Optimiser, code: str) -> None:
    defaults = config.Optimiser()
    for name in OTHERS_OPTIONS:
        if getattr(options, name) != getattr(defaults, name):
            raise VitreousError(f"{name}: is not passed to the optimiser {code}: set it in its own code")


def _check_groups(
    optimiser: torch.optim.Optimizer, code: str, trained: Mapping[str, nn.Parameter], options: config.Optimiser
) -> None:
    """Check that the optimiser has all trained parameters, and the settings that are given."""
    has = {id(p) for group in optimiser.param_groups for p in group["params"]}
    missing = [name for name, p in trained.items() if id(p) not in has]
    if missing or len(has) != len(trained):
        which = f"lacks {missing[0]}" if missing else "has other parameters"
        raise VitreousError(f"optimiser {code}: it {which}: it has to train the parameters that it is called with")
    if any(not isinstance(group.get("lr"), float | int | Tensor) for group in optimiser.param_groups):
        raise VitreousError(f"optimiser {code}: its groups have no lr, which the schedule changes")
    if options.weight_decay and "weight_decay" not in optimiser.defaults:
        raise VitreousError(f"weight_decay = {options.weight_decay}: the optimiser {code} has no weight decay")
