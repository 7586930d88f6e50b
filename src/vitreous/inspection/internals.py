"""What the tools for looking into a model share: which models they accept, how these are run, names of tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from operator import index
from typing import Any, cast

import torch
from torch import Tensor

from vitreous.errors import VitreousError, brief
from vitreous.models.base import Model
from vitreous.models.checks import Grid, pair, pick_layers
from vitreous.models.resnet import BiT
from vitreous.models.standard import differences, is_compiled, vitreous_model
from vitreous.models.vit import VisionTransformer, ViTConfig
from vitreous.utils.memory import free_memory

Place = str | int | tuple[int, int]
"""A token: "class", "register 1", the number of a patch, or its (row, column)."""

SHARE = 0.8  # of the memory that is free, for what is kept of attention


# Parts of a ViT by their names, as regular expressions. A tool that calls a part exactly as the model's own forward
# does gives the right answer whatever is in it: adapters, hooks, another module.
STEM = r"patch_embed|backbone|drop"
BLOCKS = r"blocks\.\d+"  # as a whole
IN_BLOCKS = r"blocks\.\d+\.(norm1|norm2|ls1|ls2|drop1|drop2|mlp|attn\.(qkv|proj|q_norm|k_norm))"
NORMS = r"norm|fc_norm|pre_logits"  # behind the last block
POOL, HEAD = "attn_pool", "head"
UNITS = r"backbone\.(stem|stages\.\d+\.\d+|norm)"  # of a BiT


def as_described(model: Any, what: str, *called: str) -> Model:
    """The model without torch's wrappers, if it is what its config describes but for the parts that are only `called`.
    What it shows would otherwise not be what it computes."""
    found = vitreous_model(model, what)
    for one in differences(found):
        inside = any(re.fullmatch(rf"({part})(\..+)?", one.name) for part in called)
        counted = one.kind == "module" and any(re.fullmatch(part, one.name) for part in called)  # missing, or one more
        if one.kind not in ("compiled", "shared") and (counted or not inside):
            raise VitreousError(
                f"{what}: the model is not as its config describes it, so that this would be wrong: {one}"
            )
    return found


def with_attention(model: Any, what: str, *called: str) -> VisionTransformer:
    """The same, if it is a model that attends."""
    if isinstance(vitreous_model(model, what), BiT):
        raise VitreousError(
            f"{what}: a BiT is a convolutional network and has no attention; it can show embedding_filters (of its"
            " first convolution), patch_similarity and token_pca (of the maps behind its stages)"
        )
    return cast(VisionTransformer, as_described(model, what, *called))


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
    """In evaluation mode, its own precision and not compiled; afterwards every part is in the mode it was in."""
    modes, again = [(module, module.training) for module in model.modules()], model.checkpoint_activations
    model.eval()
    model.checkpoint_activations = False  # what is looked at is looked at once
    try:
        with torch.autocast(next(model.parameters()).device.type, enabled=False), _not_compiled(model):
            yield
    finally:
        model.checkpoint_activations = again
        for module, mode in modes:
            module.training = mode


def _not_compiled(model: Model) -> AbstractContextManager[Any]:
    """What looks inside replaces parts for a while, which compiled code may not notice."""
    if any(map(is_compiled, model.modules())):
        return cast(AbstractContextManager[Any], torch.compiler.set_stance("force_eager"))
    return nullcontext()


def names_of(config: ViTConfig) -> tuple[str, ...]:
    """What the tokens in front of the patches are called."""
    return (*(["class"] if config.class_token else []), *(f"register {i + 1}" for i in range(config.registers)))


def token_at(place: Place, names: Sequence[str], grid: Grid) -> int:
    """The number of a token among all of them."""
    rows, cols = grid
    if not isinstance(place, str | int | tuple):
        raise VitreousError(f"source = {brief(place)}: expected a name, the number of a patch, or its (row, column)")
    if isinstance(place, str):
        if place in names:
            return list(names).index(place)
        there = ", ".join(map(repr, names)) or "none with a name"
        raise VitreousError(f"source = {brief(place)}: this model has {there}, and patches (row, column)")
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
        raise VitreousError(f"{what}: expected whole numbers from 0 to {count - 1}, got {brief(numbers)}") from None
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
