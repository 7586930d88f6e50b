"""Choice of device and precision, and peak memory."""

import subprocess
import sys

import torch

from vitreous.errors import VitreousError
from vitreous.utils.system_calls import peak_process_memory

FP8_NOTE = "fp8: logits differ from fp32 by 4 to 7% (bf16: 1%); for a DeiT-Ti, 1 prediction in 70 changes"


def pick_device(name: str) -> torch.device:
    """Return the device of this name; "auto": the GPU if there is one (CUDA, or MPS on a Mac), otherwise the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        known = "cpu" + "".join(f", cuda:{i}" for i in range(torch.cuda.device_count()))
        known += ", mps" if torch.backends.mps.is_available() else ""
        raise VitreousError(f"device = {name!r} cannot be used here; available: {known}") from error
    if device.type not in ("cpu", "cuda", "mps"):
        raise VitreousError(f"device = {name!r} is not supported: expected cpu, cuda or mps")
    return torch.device("cuda", torch.cuda.current_device()) if name == "cuda" else device


def pick_precision(name: str, device: torch.device) -> tuple[str, str | None]:
    """Return the precision to use, and a note for the user if there is one."""
    if name == "auto":
        return ("bf16" if device.type == "cuda" else "fp32"), None
    if name == "bf16" and device.type == "cpu" and not _bf16_works():
        return "fp32", "bf16 matmuls crash on this CPU (tested in a child process): fp32 is used"
    if name == "bf16" and device.type == "mps":
        return "fp32", "bf16 is not used on mps: fp32 is used"
    if name == "fp8" and device.type == "cuda":
        return name, FP8_NOTE
    return name, None


def float64_device(device: torch.device) -> torch.device:
    """Return the device that prepares batches and counts results: the CPU for MPS, which has no float64."""
    return torch.device("cpu") if device.type == "mps" else device


def _bf16_works() -> bool:
    """Whether bf16 matmuls work. Some virtual CPUs advertise instructions that kill the process: test in a child."""
    code = "import torch; x = torch.ones(64, 64, dtype=torch.bfloat16); (x @ x).sum().item()"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def peak_memory(device: torch.device) -> int:
    """Return the highest number of bytes allocated so far: tensors on a GPU, the whole process on a CPU. MPS does not
    record the maximum: the present number."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if device.type == "mps":
        return torch.mps.driver_allocated_memory()
    return peak_process_memory()
