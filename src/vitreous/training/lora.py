"""Low-rank adapters (LoRA): each weight matrix of a ViT's blocks is frozen, and a product of two thin ones is added.

    y = W x + b + alpha / rank  B A x        A: (rank, in), random;  B: (out, rank), zero at the start

`add_adapters_` changes a model from outside. Its parameters keep their names, with `.lora_a` and `.lora_b` next to each
adapted `.weight`. Inside `merged_adapters` it is a plain model again; this is how it is saved.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.errors import VitreousError
from vitreous.models import BiT, VisionTransformer
from vitreous.models.custom import AnyModel, CustomModel
from vitreous.training.config import Finetuning

ADAPTED = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")  # in every block


class LoraLinear(nn.Module):
    """A frozen linear layer with a low-rank adapter."""

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
    def merge(self) -> nn.Linear:
        """Return one linear layer that computes the same, up to rounding."""
        out_features, in_features = self.weight.shape
        plain = nn.Linear(in_features, out_features, bias=self.bias is not None, device="meta")
        plain.weight = nn.Parameter(self.weight + self.scale * self.lora_b @ self.lora_a)
        plain.bias = self.bias
        return plain


def add_adapters_(model: AnyModel, options: Finetuning) -> None:
    """Add adapters to a model and freeze everything except them and the head. With rank 0 the model is unchanged."""
    rank, alpha = options.lora, options.lora_alpha
    if rank == 0:
        if alpha is not None:
            raise VitreousError(f"lora_alpha = {alpha:g}: has no effect, since lora = 0 (there are no adapters)")
        return
    if isinstance(model, CustomModel):
        raise VitreousError(f"lora = {rank}: adapters are for the blocks of a ViT, and this is a model of your own")
    if isinstance(model, BiT):
        raise VitreousError(
            f"lora = {rank}: adapters are for the blocks of a ViT, and a BiT has none; train all of it (recipes paper"
            " and fast) or only the head (linear)"
        )
    largest = model.config.width
    if not 1 <= rank < largest:
        raise VitreousError(f"lora = {rank}: expected 0, or a rank below the width of the model, {largest}")
    alpha = 2.0 * rank if alpha is None else alpha
    if not 0 < alpha < math.inf:
        raise VitreousError(f"lora_alpha = {alpha:g}: expected a positive number")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith("head."))
    for name in _adapted_layers(model):
        model.set_submodule(name, LoraLinear(_linear(model, name), rank, alpha))


@contextmanager
def merged_adapters(model: nn.Module) -> Iterator[None]:
    """Replace each adapted layer by its merged linear layer. On exit the model is restored, bit for bit."""
    adapted = {name: part for name, part in model.named_modules() if isinstance(part, LoraLinear)}
    for name, part in adapted.items():
        model.set_submodule(name, part.merge())
    try:
        yield
    finally:
        for name, part in adapted.items():
            model.set_submodule(name, part)


def _adapted_layers(model: VisionTransformer) -> list[str]:
    return [f"blocks.{number}.{part}" for number in range(len(model.blocks)) for part in ADAPTED]


def _linear(model: nn.Module, name: str) -> nn.Linear:
    layer = model.get_submodule(name)
    assert isinstance(layer, nn.Linear)
    return layer
