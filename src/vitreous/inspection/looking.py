"""What the tools for looking into a model share: how it is held still, and what its tokens are called."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import index
from typing import Any

import torch
from torch import Tensor

from vitreous.errors import VitreousError
from vitreous.memory import free_memory
from vitreous.models.base import Model
from vitreous.models.checks import Grid, pair, pick_layers
from vitreous.models.vit import VisionTransformer, ViTConfig

Place = str | int | tuple[int, int]
"""A token: "class", "register 1", the number of a patch, or its (row, column)."""

SHARE = 0.8  # of the memory that is free, for what is kept of attention


def bare(model: Any) -> Model:
    """The model itself, whatever torch has put around it to compile it or to spread it."""
    while not isinstance(model, Model):
        model = getattr(model, "_orig_mod", None) or getattr(model, "module", None)
        if model is None:
            raise VitreousError("expected a model of Vitreous: one that vitreous.load or vitreous.create gave")
    return model


def with_attention(model: Model, what: str) -> VisionTransformer:
    """The model, if it is one that attends."""
    model = bare(model)
    if isinstance(model, VisionTransformer):
        return model
    raise VitreousError(
        f"{what}: a BiT is a convolutional network and has no attention; it can show embedding_filters (of its first"
        " convolution), patch_similarity and token_pca (of the maps behind its stages)"
    )


def ready(model: Model, images: Tensor) -> Tensor:
    """A batch as the model takes it, or one sentence about what is wrong with it."""
    if not isinstance(images, Tensor) or images.ndim != 4 or not len(images):
        found = f"a tensor of shape {tuple(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
        raise VitreousError(f"images: expected a batch of one or more (B, channels, height, width), got {found}")
    parameter = next(model.parameters())
    images = images.detach().to(parameter.device, parameter.dtype)
    if not images.isfinite().all():
        raise VitreousError("images: some pixels are not numbers (NaN or infinite)")
    return images


@contextmanager
def still(model: Model) -> Iterator[None]:
    """In evaluation mode and its own precision, and afterwards every part of it in the mode it was in."""
    modes, again = [(module, module.training) for module in model.modules()], model.checkpoint_activations
    model.eval()
    model.checkpoint_activations = False  # what is looked at is looked at once
    try:
        with torch.autocast(next(model.parameters()).device.type, enabled=False):
            yield
    finally:
        model.checkpoint_activations = again
        for module, mode in modes:
            module.training = mode


def names_of(config: ViTConfig) -> tuple[str, ...]:
    """What the tokens in front of the patches are called."""
    return (*(["class"] if config.class_token else []), *(f"register {i + 1}" for i in range(config.registers)))


def token_at(place: Place, names: Sequence[str], grid: Grid) -> int:
    """The number of a token among all of them."""
    rows, cols = grid
    if not isinstance(place, str | int | tuple):
        raise VitreousError(f"source = {place!r}: expected a name, the number of a patch, or its (row, column)")
    if isinstance(place, str):
        if place in names:
            return list(names).index(place)
        there = ", ".join(map(repr, names)) or "none with a name"
        raise VitreousError(f"source = {place!r}: this model has {there}, and patches (row, column)")
    if isinstance(place, tuple):
        if len(place) != 2 or not (0 <= place[0] < rows and 0 <= place[1] < cols):
            raise VitreousError(f"source = {place}: expected (row, column) of {rows} x {cols} patches, from (0, 0)")
        return len(names) + place[0] * cols + place[1]
    if not 0 <= place < rows * cols:
        raise VitreousError(f"source = {place}: expected a patch from 0 to {rows * cols - 1}")
    return len(names) + place


def picked(numbers: Sequence[int] | None, count: int, what: str) -> list[int]:
    """Layers or heads, from 0, negative ones from the end; None is all of them."""
    if numbers is None:
        return list(range(count))
    if not numbers:
        raise VitreousError(f"{what}: none were asked for; there are 0 to {count - 1}")
    try:
        return pick_layers([index(number) for number in numbers], count)
    except TypeError:
        raise VitreousError(f"{what}: expected whole numbers from 0 to {count - 1}, got {numbers!r}") from None
    except VitreousError as error:
        raise VitreousError(str(error).replace("layers", what, 1)) from None


def check_room(model: VisionTransformer, images: Tensor, kept: int, transient: int) -> None:
    """Whether attention can be held: `kept` maps of each image, and `transient` ones while it is computed."""
    height, width = images.shape[2:]
    rows, cols = model.config.grid_at((height, width))
    tokens = model.config.prefix + rows * cols
    maps = len(images) * (kept + transient)
    free = round(SHARE * free_memory(images.device))
    if 4 * maps * tokens**2 <= free:
        return
    step = [side // n for side, n in zip((height, width), (rows, cols), strict=True)]
    most = max(1.0, (free / (4 * maps)) ** 0.5 - model.config.prefix)
    shrink = (most / (rows * cols)) ** 0.5
    fits = [max(1, int(n * shrink)) * pixels for n, pixels in zip((rows, cols), step, strict=True)]
    raise VitreousError(
        f"attention over {tokens:,} tokens (an image of {height} x {width} px) takes {4 * maps * tokens**2 / 2**30:.1f}"
        f" GiB for {len(images)} image{'s' * (len(images) > 1)}, and {free / 2**30:.1f} GiB can be had: {fits[0]} x"
        f" {fits[1]} px would fit, or fewer layers or images at a time"
    )


def walk(
    model: VisionTransformer, images: Tensor, layers: Sequence[int], see: Callable[[int, Tensor], None]
) -> tuple[Tensor, Grid]:
    """Run the model up to the last of these layers, its attention fused, and show `see` the exact weights (B, heads, T,
    T) of each in float32: those of a second q k product, one layer at a time. The tokens and the grid come back."""
    wanted = set(layers)

    def visit(layer: int, block: Any, before: Tensor, after: Tensor, bias: Any) -> None:
        if layer in wanted:
            see(layer, block.attn.weights(block.norm1(before), bias).float())

    with still(model), torch.no_grad():
        return model.encode(images, visit, max(layers))


def pixels_of(config: ViTConfig) -> tuple[int, int]:
    """Height and width of a patch, in pixels of the image."""
    stride = 1 if config.backbone is None else config.backbone.stride
    height, width = pair(config.patch_size)
    return height * stride, width * stride


def pooled(model: VisionTransformer, tokens: Tensor) -> Tensor:
    """How much the head takes from each token behind the last layer, (B, T): all of the class token, each patch alike,
    or as attention pooling weighs them."""
    prefix = model.config.prefix
    taken = tokens.new_zeros(tokens.shape[:2], dtype=torch.float32)
    pool = model.attn_pool
    if pool is not None:
        x = model.norm(tokens)[:, prefix:]
        q = pool.q(pool.latent).expand(len(x), -1, -1).unflatten(-1, (pool.heads, -1)).transpose(1, 2)
        k = pool.kv(x).unflatten(-1, (2, pool.heads, -1)).permute(2, 0, 3, 1, 4)[0]
        taken[:, prefix:] = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1).mean(1)[:, 0].float()
    elif model.config.class_token and model.config.pool != "gap":
        taken[:, 0] = 1
    else:
        taken[:, prefix:] = 1 / (tokens.shape[1] - prefix)
    return taken


def pooling(config: ViTConfig) -> str:
    """What the head looks at, in words."""
    if config.pool == "map":
        return "attention pooling"
    return "class token" if config.class_token and config.pool != "gap" else "mean of the patches"


def answers(model: VisionTransformer, tokens: Tensor) -> Tensor:
    """Logits (B, classes) in float32 of what the head makes of tokens, wherever in the model they come from."""
    x = model.fc_norm(model.pool(model.norm(tokens)))
    logits: Tensor = model.head(x if model.pre_logits is None else torch.tanh(model.pre_logits(x)))
    return logits.float()


def probabilities(model: Model, logits: Tensor) -> Tensor:
    return logits.sigmoid() if model.multi_label else logits.softmax(-1)
