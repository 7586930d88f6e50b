"""Helpers shared by the tests: random parameters, small models, oracle files, error measures."""

from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from vitreous.models import BiT, ResNetConfig, VisionTransformer, ViTConfig

M = TypeVar("M", bound=nn.Module)
FIXTURES = Path(__file__).parent / "fixtures"
TINY: dict[str, Any] = {"image_size": 32, "patch_size": 8, "width": 48, "depth": 2, "heads": 3, "num_classes": 7}
SMALL_RESNET = ResNetConfig(blocks=(1, 1), width_factor=0.5, activation="post")


def draw(model: M, seed: int = 0) -> M:
    """Draw all parameters at random, including those initialised with zeros: a zero head would hide differences."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            scale = 0.1 if p.ndim < 2 else 1.5 / p[0].numel() ** 0.5
            p.copy_(torch.randn(p.shape, generator=generator) * scale + (1 if "norm" in name and p.ndim == 1 else 0))
    return model.eval()


def tiny_vit(**changes: Any) -> VisionTransformer:
    return draw(VisionTransformer(ViTConfig(**{**TINY, **changes})))


def images(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def plant_sinks(model: VisionTransformer, patches: tuple[int, ...], layer: int) -> VisionTransformer:
    """Give some of the 16 patches long tokens that all queries of one layer attend to."""
    config, attn = model.config, model.blocks[layer].attn
    direction = images(config.width, seed=5).sign()
    key = images(config.heads, config.width // config.heads, seed=6).sign()
    with torch.no_grad():
        for patch in patches:
            assert model.pos_embed is not None
            model.pos_embed.view(-1, config.width)[patch - 16] += 6 * direction
        for block in model.blocks:  # the attention of the other layers is more uniform, so that they have no sinks
            block.attn.qkv.weight[config.width : 2 * config.width] *= 0.3
        attn.qkv.weight[config.width : 2 * config.width] += 0.4 * key.flatten()[:, None] * direction / config.width**0.5
        attn.qkv.bias[: config.width] += 1.5 * key.flatten()
    return model


def oracle(name: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the parameters of an oracle file by the reference's names, and the rest of the file."""
    with np.load(FIXTURES / f"{name}.npz") as file:
        arrays = {key: file[key] for key in file.files}
    parameters = {k.removeprefix("params/"): a for k, a in arrays.items() if k.startswith("params/")}
    return parameters, {k: a for k, a in arrays.items() if not k.startswith("params/")}


def relative_error(ours: Tensor, reference: np.ndarray | Tensor) -> float:
    """Return max |difference| / max |reference|."""
    reference = torch.as_tensor(reference)
    assert ours.shape == reference.shape
    return ((ours - reference).abs().max() / reference.abs().max()).item()


def outputs(model: VisionTransformer | BiT, x: Tensor) -> Tensor:
    with torch.no_grad():
        return model(x)
