"""Process-wide settings of torch, changed for a run and restored: dtype, grad mode, threads, determinism, seeds."""

import os
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import torch

from vitreous.errors import VitreousError
from vitreous.utils.device import pick_device


@contextmanager
def default_modes() -> Iterator[None]:
    """Use torch's defaults (float32, CPU, gradients, no autocast) inside the block; restore the caller's after it."""
    with ExitStack() as stack:
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float32)
        if torch.get_default_device().type != "cpu":  # not always: inside such a context every torch call is slower
            stack.enter_context(torch.device("cpu"))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


MAX_VERSIONS = 64  # of one compiled function: one for each model and image size that a process trains

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"  # the environment variable that makes cuBLAS deterministic


@contextmanager
def run_settings(device: str, deterministic: bool = False) -> Iterator[None]:
    """Set the process-wide settings of a run, and restore the caller's on exit, also after an error or Ctrl-C.

    Restored are torch's flags, threads and random state, and the environment. Inside, the caller's default dtype,
    default device, no_grad, inference mode and autocast are off, so that they do not change what a run computes.
    """
    with ExitStack() as stack:
        stack.callback(set_threads, torch.get_num_threads())
        stack.enter_context(default_modes())
        # All ViTs of a process share the code of a block, so more than the default of 8 versions are normal.
        from torch._dynamo import config as dynamo

        stack.enter_context(dynamo.patch(recompile_limit=max(dynamo.recompile_limit, MAX_VERSIONS)))
        gpus = range(torch.cuda.device_count()) if pick_device(device).type == "cuda" else ()
        stack.enter_context(torch.random.fork_rng(gpus, device_type="cuda"))
        if deterministic:
            _use_deterministic_algorithms(stack)
        try:
            yield
        except RuntimeError as error:
            if deterministic and WORKSPACE in str(error):  # torch reads it at the first matmul on a GPU
                raise VitreousError(
                    f"deterministic: this process used the GPU before; start Python with {WORKSPACE}=:4096:8 set"
                ) from error
            raise


def seed(number: int, device: torch.device) -> None:
    """Seed torch's generators of the CPU and of this device. torch.manual_seed would also seed unused GPUs."""
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(number)
    if device.type == "mps":
        torch.mps.manual_seed(number)


@contextmanager
def seeded_generators(number: int, device: torch.device | None = None) -> Iterator[None]:
    """Seed the global random generators of torch (CPU and this device), numpy and Python, for code of the user inside
    the block; restore them after it."""
    python, arrays = random.getstate(), np.random.get_state()
    gpus = [device] if device is not None and device.type == "cuda" else []
    with torch.random.fork_rng(gpus):
        seed(number, device or torch.device("cpu"))
        random.seed(number)
        np.random.seed(number % 2**32)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(arrays)


def set_threads(count: int) -> None:
    """Set the number of CPU threads of torch, unless it is set already: torch.set_num_threads also changes settings of
    other libraries."""
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)


def _use_deterministic_algorithms(stack: ExitStack) -> None:
    """Use deterministic algorithms until the stack is closed."""
    if WORKSPACE not in os.environ:
        os.environ[WORKSPACE] = ":4096:8"
        stack.callback(os.environ.pop, WORKSPACE, None)
    stack.callback(torch.set_deterministic_debug_mode, torch.get_deterministic_debug_mode())
    torch.use_deterministic_algorithms(True)
    stack.callback(setattr, torch.backends.cudnn, "benchmark", torch.backends.cudnn.benchmark)
    torch.backends.cudnn.benchmark = False
    stack.callback(torch.backends.cuda.enable_cudnn_sdp, torch.backends.cuda.cudnn_sdp_enabled())
    torch.backends.cuda.enable_cudnn_sdp(False)  # fast, but its backward is not deterministic
