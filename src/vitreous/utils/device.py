"""What the machine can do: device, precision, memory; and the settings of torch that a run needs while it lasts."""

import resource
import subprocess
import sys

import torch

from vitreous.errors import VitreousError

FP8 = "fp8: logits are some 4 to 7% away from those of fp32, those of bf16 1%; one answer in 70 of a DeiT-Ti is another"


def pick_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        known = "cpu" + "".join(f", cuda:{i}" for i in range(torch.cuda.device_count()))
        raise VitreousError(f"device = {name!r} cannot be used here: there is {known}") from error
    if device.type not in ("cpu", "cuda"):
        raise VitreousError(f"device = {name!r}: there is cpu and cuda")
    return torch.device("cuda", torch.cuda.current_device()) if name == "cuda" else device


def pick_precision(name: str, device: torch.device) -> tuple[str, str | None]:
    """The precision that is used, and what there is to say about it."""
    if name == "auto":
        return ("bf16" if device.type == "cuda" else "fp32"), None
    if name == "bf16" and device.type == "cpu" and not _bf16_lives():
        return "fp32", "bf16 matrix products end the process on this CPU (tried in a child process): fp32 is used"
    if name == "fp8" and device.type == "cuda":
        return name, FP8
    return name, None


def _bf16_lives() -> bool:
    """Some virtual CPUs promise instructions that kill whoever uses them: a child goes first."""
    code = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); (x @ x).sum().item()"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def used_memory(device: torch.device) -> int:
    """The most bytes that were taken so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
