"""Process-wide settings of torch, changed for a run and restored: dtype, grad mode, threads, determinism, seeds."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from vitreous.errors import VitreousError
from vitreous.utils.device import pick_device


@contextmanager
def default_modes() -> Iterator[None]:
    """float32, the CPU, gradients and no autocast by default, whatever holds around the block; and again after it."""
    with ExitStack() as stack:
        stack.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.set_default_dtype(torch.float32)
        if torch.get_default_device().type != "cpu":  # only then: inside such a context every call of torch is slower
            stack.enter_context(torch.device("cpu"))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


VERSIONS = 64  # of one compiled function: models and image sizes that one process may train

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


@contextmanager
def run_settings(device: str, deterministic: bool = False) -> Iterator[None]:
    """The process-wide settings of a run: enter this around all of it, and let nothing else in a run outlive it.

    On exit, also after an error or Ctrl-C, torch's flags, threads, random state and the environment are what the caller
    had. Inside, the caller's default dtype, default device, no_grad, inference mode and autocast are switched off, so
    that they do not change what a run computes.
    """
    with ExitStack() as stack:
        stack.callback(set_threads, torch.get_num_threads())
        stack.enter_context(default_modes())
        # All ViTs of a process share the code of a block: more than the usual 8 versions of it are no mistake.
        from torch._dynamo import config as dynamo

        stack.enter_context(dynamo.patch(recompile_limit=max(dynamo.recompile_limit, VERSIONS)))
        gpus = range(torch.cuda.device_count()) if pick_device(device).type == "cuda" else ()
        stack.enter_context(torch.random.fork_rng(gpus, device_type="cuda"))
        if deterministic:
            _deterministic(stack)
        try:
            yield
        except RuntimeError as error:
            if deterministic and WORKSPACE in str(error):  # torch read it when the process first multiplied on a GPU
                raise VitreousError(
                    f"deterministic: this process used the GPU before; start Python with {WORKSPACE}=:4096:8 set"
                ) from error
            raise


def seed(number: int, device: torch.device) -> None:
    """Seed torch's generators of the CPU and of this device. torch.manual_seed would seed every GPU there is, also
    those that are not used."""
    torch.default_generator.manual_seed(number)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(number)


def set_threads(count: int) -> None:
    """How many threads torch uses on the CPU. Not touched if it is so many already: torch.set_num_threads also changes
    settings of the libraries below it."""
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)


def _deterministic(stack: ExitStack) -> None:
    """The same bits on the same GPU."""
    if WORKSPACE not in os.environ:
        os.environ[WORKSPACE] = ":4096:8"
        stack.callback(os.environ.pop, WORKSPACE, None)
    stack.callback(torch.set_deterministic_debug_mode, torch.get_deterministic_debug_mode())
    torch.use_deterministic_algorithms(True)
    stack.callback(setattr, torch.backends.cudnn, "benchmark", torch.backends.cudnn.benchmark)
    torch.backends.cudnn.benchmark = False
    stack.callback(torch.backends.cuda.enable_cudnn_sdp, torch.backends.cuda.cudnn_sdp_enabled())
    torch.backends.cuda.enable_cudnn_sdp(False)  # fast, but its backward is not deterministic
