"""`--profile`: a trace of a few training steps, for Perfetto or chrome://tracing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

PROFILED_STEPS = (5, 10)  # first and last; the steps before compile and allocate


class StepProfiler:
    """Record a trace of PROFILED_STEPS. The context manager returns a function to call after each step."""

    def __init__(self, path: Path, device: torch.device):
        from torch.profiler import ProfilerActivity, profile, schedule

        activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])
        first, last = PROFILED_STEPS
        steps = schedule(wait=first - 1, warmup=1, active=last - first, repeat=1)
        self.profile = profile(
            activities=activities, schedule=steps, on_trace_ready=lambda p: p.export_chrome_trace(str(path))
        )

    def __enter__(self) -> Callable[[], None]:
        self.profile.__enter__()
        return self.profile.step

    def __exit__(self, *error: Any) -> None:
        self.profile.__exit__(*error)
