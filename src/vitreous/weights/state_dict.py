"""Build a model's state dict from the tensors of a file: check shapes, values and memory, convert dtype and device."""

import math
import warnings

import numpy as np
import torch
from torch import Tensor

from vitreous.errors import VitreousError, VitreousWarning
from vitreous.models.zoo import build_model
from vitreous.utils.memory import require_memory, size_text
from vitreous.weights.checkpoint import Config, parameter_shapes
from vitreous.weights.dialect import ParsedCheckpoint
from vitreous.weights.load_report import LoadReport
from vitreous.weights.tensor_map import SAME, State
from vitreous.weights.tensors import Tensors

ALWAYS_INITIALISED = 256 * 2**20  # bytes of missing weights that are initialised however little the file has


def read_state_dict(
    tensors: Tensors, parsed: ParsedCheckpoint, report: LoadReport, device: torch.device, dtype: torch.dtype | None
) -> State:
    """Return the state dict of the model. Missing parameters are initialised at random; memory of tensors that were
    copied is released."""
    _check_memory(tensors, parsed, report, device, dtype)
    initialised = _initialise(parsed.config, report.missing) if report.missing else {}
    state: State = {}
    mismatches = []
    for parameter, shape in parameter_shapes(parsed.config).items():
        if parameter in initialised:
            tensor = initialised[parameter]
        elif parameter not in parsed.tensor_map:  # a new head, initialised as in `reset_head`
            tensor = torch.full(shape, parsed.config.head_bias if parameter == "head.bias" else 0.0)
        else:
            stored = parsed.tensor_map[parameter]
            tensor = stored.read(tensors)
            if tuple(tensor.shape) != shape:
                mismatches += [f"  - {parameter} {shape}", f"  + {' + '.join(stored.names)} {tuple(tensor.shape)}"]
                continue
            _check_finite(tensor, " + ".join(stored.names))
            if parameter == "head.weight" and not tensor.any():
                note = "the head is all zeros: its logits mean nothing until it is trained"
                report.add_note(note)
                warnings.warn(f"{report.source}: {note}", VitreousWarning, stacklevel=4)
        state[parameter] = tensor.to(device, dtype)
        if parameter in parsed.tensor_map and parameter not in initialised:
            _release_copied(parameter, state[parameter], tensors, parsed)
    if mismatches:
        raise VitreousError("tensors do not fit the model (- expected, + in the file):\n" + "\n".join(mismatches[:24]))
    return state


def _release_copied(parameter: str, tensor: Tensor, tensors: Tensors, parsed: ParsedCheckpoint) -> None:
    """Release the file's tensors of a parameter, unless the parameter is a view of them or other layers need them."""
    if parsed.tensor_map[parameter].layer is None:
        for name in parsed.tensor_map[parameter].names:
            if tensors[name].data_ptr() != tensor.data_ptr():
                tensors.release(name)


def _check_memory(
    tensors: Tensors, parsed: ParsedCheckpoint, report: LoadReport, device: torch.device, dtype: torch.dtype | None
) -> None:
    """Check that the model fits into memory before it is allocated: a small file may describe a model of any size."""
    sizes = {parameter: 4 * math.prod(shape) for parameter, shape in parameter_shapes(parsed.config).items()}
    missing = sum(sizes[parameter] for parameter in report.missing)
    present = sum(4 * math.prod(tensors.shape(name)) for name in report.used)
    if missing > max(present, ALWAYS_INITIALISED):
        raise VitreousError(
            f"most of the model is missing: {size_text(missing)} would be initialised at random, and the file has"
            f" {size_text(present)} of weights. To make a new model, use vitreous.create"
        )
    total = sum(sizes.values())
    if missing:
        require_memory(total, "the model")
    if device.type == "cpu":
        views = (parameter for parameter in parsed.tensor_map if _is_view(parameter, tensors, parsed, dtype))
        total -= sum(sizes[parameter] for parameter in views)
    require_memory(total * (4 if dtype is None else dtype.itemsize) // 4, "the model", device)


def _is_view(parameter: str, tensors: Tensors, parsed: ParsedCheckpoint, dtype: torch.dtype | None) -> bool:
    """Whether the parameter will be a view of the file's tensor, and not a copy."""
    stored = parsed.tensor_map[parameter]
    if len(stored.names) > 1 or stored.layout is not SAME or stored.names[0] not in tensors:
        return False
    return dtype is None or tensors[stored.names[0]].dtype == dtype


def _initialise(config: Config, names: tuple[str, ...]) -> State:
    model = build_model(config)
    return {name: model.get_parameter(name).detach() for name in names}


def _check_finite(tensor: Tensor, name: str) -> None:
    """Raise an error if a tensor holds NaN or infinity."""
    if tensor.numel() == 0 or _is_finite_fast(tensor):
        return
    bad = int((~torch.isfinite(tensor.double())).sum())
    if bad:
        raise VitreousError(f"{name} holds {bad:,} of {tensor.numel():,} values that are not numbers (NaN or infinite)")


def _is_finite_fast(tensor: Tensor) -> bool:
    """Return True if all values are finite; False may be wrong. With numpy on one thread, which runs at the speed of
    memory and does not wait for other threads on a busy machine."""
    if tensor.dtype in (torch.float16, torch.bfloat16):  # NaN and infinity have all exponent bits set
        exponent = 0x7C00 if tensor.dtype == torch.float16 else 0x7F80
        return bool((tensor.view(torch.int16).numpy() & 0x7FFF).max() < exponent)
    if tensor.dtype.itemsize == 1:
        return False
    with np.errstate(all="ignore"):  # the sum is not finite if any term is not
        return bool(np.isfinite(tensor.numpy().sum()))
