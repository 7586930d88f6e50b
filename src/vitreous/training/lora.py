"""Low-rank adapters (LoRA): each matrix of a ViT's blocks stays as it was, and a product of two thin ones is added.

    y = W x + b + alpha / rank  B A x        A: (rank, in), drawn;  B: (out, rank), zero at the start

Adapters are put into a model from outside. It keeps the names of its own parameters, with `.lora_a` and `.lora_b`
beside each adapted `.weight`; within `merged` it is the plain model again, which is how it is written to files.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.errors import VitreousError
from vitreous.models import BiT, VisionTransformer
from vitreous.training.config import Finetuning

ADAPTED = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")  # of every block


class LoraLinear(nn.Module):
    """A linear layer and what is added to it."""

    def __init__(self, plain: nn.Linear, rank: int, alpha: float):
        super().__init__()
        self.weight, self.bias = plain.weight, plain.bias
        self.scale = alpha / rank
        self.lora_a = nn.Parameter(self.weight.new_empty(rank, plain.in_features))
        self.lora_b = nn.Parameter(self.weight.new_zeros(plain.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias) + self.scale * F.linear(F.linear(x, self.lora_a), self.lora_b)

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """One matrix that does the same, to rounding."""
        out_features, in_features = self.weight.shape
        plain = nn.Linear(in_features, out_features, bias=self.bias is not None, device="meta")
        plain.weight = nn.Parameter(self.weight + self.scale * self.lora_b @ self.lora_a)
        plain.bias = self.bias
        return plain


def add_adapters_(model: VisionTransformer | BiT, options: Finetuning) -> None:
    """Put adapters into a model, and train nothing but them and the head. Rank 0: leave it as it is."""
    rank, alpha = options.lora, options.lora_alpha
    if rank == 0:
        if alpha is not None:
            raise VitreousError(f"lora_alpha = {alpha:g}: is that of adapters, and lora = 0 asks for none")
        return
    if isinstance(model, BiT):
        raise VitreousError(
            f"lora = {rank}: adapters are for the matrices of a ViT's blocks, and a BiT has none; all of it can be"
            " trained (recipes paper and fast), or the head alone (linear)"
        )
    largest = model.config.width
    if not 1 <= rank < largest:
        raise VitreousError(f"lora = {rank}: expected 0, or a rank below the width of the model, {largest}")
    alpha = 2.0 * rank if alpha is None else alpha
    if not 0 < alpha < math.inf:
        raise VitreousError(f"lora_alpha = {alpha:g}: expected a positive number")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith("head."))
    for name in _names(model):
        model.set_submodule(name, LoraLinear(_linear(model, name), rank, alpha))


@contextmanager
def merged(model: nn.Module) -> Iterator[None]:
    """The plain model, each matrix with what its adapters add; as it was, to the bit, when the block is left."""
    adapted = {name: part for name, part in model.named_modules() if isinstance(part, LoraLinear)}
    for name, part in adapted.items():
        model.set_submodule(name, part.merged())
    try:
        yield
    finally:
        for name, part in adapted.items():
            model.set_submodule(name, part)


def _names(model: VisionTransformer) -> list[str]:
    return [f"blocks.{number}.{part}" for number in range(len(model.blocks)) for part in ADAPTED]


def _linear(model: nn.Module, name: str) -> nn.Linear:
    found = model.get_submodule(name)
    assert isinstance(found, nn.Linear)
    return found
