"""What the machine can do: device, precision, memory."""

import os
import resource
import subprocess
import sys

import torch

from vitreous.errors import VitreousError
from vitreous.models.cost import cost
from vitreous.models.resnet import BiTConfig
from vitreous.models.vit import ViTConfig
from vitreous.training.parameters import Trained

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


def be_deterministic() -> None:
    """The same bits on the same GPU."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cuda.enable_cudnn_sdp(False)  # fast, and not deterministic backward


def used_memory(device: torch.device) -> int:
    """The most bytes that were taken so far."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def training_memory(config: ViTConfig | BiTConfig, micro_batch: int, precision: str, copies: int, part: Trained) -> int:
    """Bytes that a training step takes, about: `copies` of the weights in fp32 (themselves, gradients, moments, their
    mean), what the forward of a micro-batch keeps, and the largest thing made on the way. `part`: what is trained."""
    found = cost(config)
    share = 0.6 if precision == "bf16" else 1.0  # norms, residuals and masks stay in fp32
    weights = found.parameters + part.numbers * (copies - 1)
    return round(4 * weights + micro_batch * found.activation_bytes * part.share * share * 1.1)
