"""Process-wide state that a call into a library must not change."""

import gc
import locale
import logging
import os
import random
import signal
import socket
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
import torch._dynamo  # torch imports it when the first optimiser is created
from huggingface_hub import constants
from PIL import Image, ImageFile


def snapshot() -> dict[str, Any]:
    """Return all state by name, as comparable values."""
    return {f"{part.__name__[1:]}: {name}": value for part in PARTS for name, value in part().items()}


@contextmanager
def unchanged() -> Iterator[None]:
    """Check that the state after the block equals the state before it, also after an error or Ctrl-C."""
    before = snapshot()
    try:
        yield
    finally:
        after = snapshot()
        changed = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
        assert not changed, f"changed: {changed}"


def _torch_flags() -> dict[str, Any]:
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    return {
        "deterministic": torch.get_deterministic_debug_mode(),
        "fill uninitialised memory": torch.utils.deterministic.fill_uninitialized_memory,
        "cudnn": (cudnn.enabled, cudnn.benchmark, cudnn.benchmark_limit, cudnn.deterministic, cudnn.allow_tf32),
        "matmul": (cuda.matmul.allow_tf32, torch.get_float32_matmul_precision()),
        "reduced precision": (
            cuda.matmul.allow_bf16_reduced_precision_reduction,
            cuda.matmul.allow_fp16_reduced_precision_reduction,
        ),
        "attention": (
            cuda.flash_sdp_enabled(),
            cuda.mem_efficient_sdp_enabled(),
            cuda.math_sdp_enabled(),
            cuda.cudnn_sdp_enabled(),
        ),
        "mkldnn": torch.backends.mkldnn.enabled,
        "dynamo": torch._dynamo.config.get_config_copy(),
        "stance": torch._dynamo.eval_frame._stance.stance,
        "sharing": torch.multiprocessing.get_sharing_strategy(),
        "start method": torch.multiprocessing.get_start_method(allow_none=True),
        "printing": vars(torch._tensor_str.PRINT_OPTS).copy(),
        "profiler": torch.autograd.profiler._is_profiler_enabled,
    }


def _torch_modes() -> dict[str, Any]:
    return {
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "function modes": len(torch.overrides._get_current_function_mode_stack()),
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_anomaly_enabled()),
        "autocast": [(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")],
        "autocast cache": torch.is_autocast_cache_enabled(),
    }


def _random() -> dict[str, Any]:
    kind, keys, *rest = np.random.get_state()  # the global generator
    found = {
        "torch": torch.get_rng_state().tolist(),
        "python": random.getstate(),
        "numpy": (kind, keys.tolist(), *rest),
    }
    if torch.cuda.is_available():
        found["cuda"] = [state.tolist() for state in torch.cuda.get_rng_state_all()]
    return found


def _process() -> dict[str, Any]:
    mask = os.umask(0)
    os.umask(mask)
    return {
        "environment": dict(os.environ),
        "folder": Path.cwd(),
        "umask": mask,
        "signals": {number.name: signal.getsignal(number) for number in signal.valid_signals() if number in NAMED},
        "blocked signals": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "timeout": socket.getdefaulttimeout(),
        "locale": locale.setlocale(locale.LC_ALL),
        "temporary files": tempfile.tempdir,
    }


NAMED = set(signal.Signals)


def _python() -> dict[str, Any]:
    return {
        "collection": (gc.isenabled(), gc.get_threshold()),
        "streams": (sys.stdin, sys.stdout, sys.stderr),
        "hooks": (sys.excepthook, sys.displayhook, sys.unraisablehook),
        "recursion": sys.getrecursionlimit(),
        "path": sys.path.copy(),
        "warnings": (warnings.filters.copy(), warnings.showwarning),  # type: ignore[attr-defined]
    }


def _libraries() -> dict[str, Any]:
    logs = {name: logging.getLogger(name) for name in ("root", "PIL", "matplotlib", "torch", "huggingface_hub")}
    return {
        "numpy": (np.geterr(), np.get_printoptions()),
        "pillow": (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, ImageFile.MAXBLOCK),
        "matplotlib": {name: dict.__getitem__(mpl.rcParams, name) for name in mpl.rcParams},
        "hub": constants.HF_HUB_OFFLINE,
        "logging": {name: (log.level, log.handlers.copy(), log.filters.copy()) for name, log in logs.items()},
    }


PARTS: tuple[Callable[[], dict[str, Any]], ...] = (_torch_flags, _torch_modes, _random, _process, _python, _libraries)
