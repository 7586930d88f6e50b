"""Shared by all inspections: which models are supported, running them in eval mode, tokens by name, memory limits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from operator import index
from typing import Any, cast

import torch
from torch import Tensor

from vitreous.errors import VitreousError, brief
from vitreous.models.base import Model, restored_modes
from vitreous.models.checks import Grid, pick_layers
from vitreous.models.resnet import BiT
from vitreous.models.standard import differences, is_compiled, vitreous_model
from vitreous.models.vit import VisionTransformer, ViTConfig
from vitreous.utils.memory import free_memory
from vitreous.utils.sizes import pair

Token = str | int | tuple[int, int]
"""A token: "class", "register 1", the index of a patch, or its (row, column)."""

MEMORY_SHARE = 0.8  # of the free memory may be used for attention weights


# Names of the parts of a ViT, as regular expressions. An inspection that calls a part exactly as the model's own
# forward does is correct whatever the part contains: adapters, hooks, another module.
STEM = r"patch_embed|backbone|drop"
BLOCKS = r"blocks\.\d+"  # each as a whole
IN_BLOCKS = r"blocks\.\d+\.(norm1|norm2|ls1|ls2|drop1|drop2|mlp|attn\.(qkv|proj|q_norm|k_norm))"
NORMS = r"norm|fc_norm|pre_logits"  # after the last block
POOL, HEAD = "attn_pool", "head"
UNITS = r"backbone\.(stem|stages\.\d+\.\d+|norm)"  # of a BiT


def require_unmodified(model: Any, what: str, *called: str) -> Model:
    """Return the model without torch's wrappers. Raise an error if it differs from its config in a way that would make
    the inspection `what` wrong. Modified parts are accepted if they are only `called` (patterns as above)."""
    found = vitreous_model(model, what)
    for difference in differences(found):
        inside = any(re.fullmatch(rf"({part})(\..+)?", difference.name) for part in called)
        # The part itself is missing or additional.
        whole = difference.kind == "module" and any(re.fullmatch(part, difference.name) for part in called)
        if difference.kind not in ("compiled", "shared") and (whole or not inside):
            raise VitreousError(
                f"{what}: the model differs from its config, so the result would be wrong: {difference}"
            )
    return found


def require_vit(model: Any, what: str, *called: str) -> VisionTransformer:
    """Return the model as `require_unmodified` does. Raise an error if it has no attention."""
    if isinstance(vitreous_model(model, what), BiT):
        raise VitreousError(
            f"{what}: a BiT is a convolutional network and has no attention; available are embedding_filters (first"
            " convolution), patch_similarity and token_pca (feature maps of its stages)"
        )
    return cast(VisionTransformer, require_unmodified(model, what, *called))


def prepare_batch(model: Model, images: Tensor) -> Tensor:
    """Check a batch of images, and move it to the model's device and dtype."""
    if not isinstance(images, Tensor) or images.ndim != 4 or not len(images):
        found = f"a tensor of shape {tuple(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
        raise VitreousError(f"images: expected a batch of one or more (B, channels, height, width), got {found}")
    parameter = next(model.parameters())
    images = images.detach().to(parameter.device, parameter.dtype)
    if not images.isfinite().all():
        raise VitreousError("images: some pixels are NaN or infinite")
    return images


@contextmanager
def eval_mode(model: Model) -> Iterator[None]:
    """Run the model in eval mode, in its own precision and not compiled. Restore all modes afterwards."""
    checkpointing, device = model.checkpoint_activations, next(model.parameters()).device.type
    with restored_modes(model), torch.autocast(device, enabled=False), _not_compiled(model):
        model.eval()
        model.checkpoint_activations = False  # recomputation would call the visitors of blocks twice
        try:
            yield
        finally:
            model.checkpoint_activations = checkpointing


def _not_compiled(model: Model) -> AbstractContextManager[Any]:
    """Run compiled modules eagerly: inspections replace methods temporarily, which compiled code may not notice."""
    if any(map(is_compiled, model.modules())):
        return cast(AbstractContextManager[Any], torch.compiler.set_stance("force_eager"))
    return nullcontext()


def prefix_names(config: ViTConfig) -> tuple[str, ...]:
    """Return the names of the tokens before the patches."""
    return (*(["class"] if config.class_token else []), *(f"register {i + 1}" for i in range(config.registers)))


def token_index(token: Token, names: Sequence[str], grid: Grid) -> int:
    """Return the index of a token in the sequence. `names`: of the tokens before the patches."""
    rows, cols = grid
    if not isinstance(token, str | int | tuple):
        raise VitreousError(f"source = {brief(token)}: expected a name, the index of a patch, or its (row, column)")
    if isinstance(token, str):
        if token in names:
            return list(names).index(token)
        available = ", ".join(map(repr, names)) or "no named tokens"
        raise VitreousError(f"source = {brief(token)}: this model has {available}, and patches (row, column)")
    if isinstance(token, tuple):
        if len(token) != 2 or not (0 <= token[0] < rows and 0 <= token[1] < cols):
            raise VitreousError(f"source = {token}: expected (row, column) of {rows} x {cols} patches, from (0, 0)")
        return len(names) + token[0] * cols + token[1]
    if not 0 <= token < rows * cols:
        raise VitreousError(f"source = {token}: expected a patch from 0 to {rows * cols - 1}")
    return len(names) + token


def pick_indices(numbers: Sequence[int] | None, count: int, what: str) -> list[int]:
    """Return indices of layers, heads or classes. Negative ones count from the end; None: all."""
    if numbers is None:
        return list(range(count))
    if not numbers:
        raise VitreousError(f"{what}: the list is empty; expected 0 to {count - 1}")
    try:
        return pick_layers([index(number) for number in numbers], count)
    except TypeError:
        raise VitreousError(f"{what}: expected integers from 0 to {count - 1}, got {brief(numbers)}") from None
    except VitreousError as error:
        raise VitreousError(str(error).replace("layers", what)) from None


def check_attention_memory(model: VisionTransformer, images: Tensor, kept: int, transient: int) -> None:
    """Raise an error if attention weights do not fit into memory: per image `kept` maps in the result, and `transient`
    maps during the computation."""
    height, width = images.shape[2:]
    rows, cols = model.config.grid_at((height, width))
    tokens = model.config.prefix + rows * cols
    maps = len(images) * (kept + transient)
    free = round(MEMORY_SHARE * free_memory(images.device))
    if 4 * maps * tokens**2 <= free:
        return
    step = [side // n for side, n in zip((height, width), (rows, cols), strict=True)]
    max_patches = max(1.0, (free / (4 * maps)) ** 0.5 - model.config.prefix)
    shrink = (max_patches / (rows * cols)) ** 0.5
    fits = [max(1, int(n * shrink)) * pixels for n, pixels in zip((rows, cols), step, strict=True)]
    raise VitreousError(
        f"attention over {tokens:,} tokens (an image of {height} x {width} px) takes {4 * maps * tokens**2 / 2**30:.1f}"
        f" GiB for {len(images)} image{'s' * (len(images) > 1)}, but {free / 2**30:.1f} GiB are available: {fits[0]} x"
        f" {fits[1]} px would fit, or fewer layers or images at a time"
    )


def visit_attention(
    model: VisionTransformer, images: Tensor, layers: Sequence[int], visit: Callable[[int, Tensor], None]
) -> tuple[Tensor, Grid]:
    """Run the model up to the last of these layers with fused attention. Return its tokens and the grid.

    `visit` is called with the index and the exact attention weights (B, heads, T, T) in float32 of each layer, one
    layer at a time. The weights come from a second q k product.
    """
    visited = set(layers)

    def visit_block(layer: int, block: Any, before: Tensor, after: Tensor, *rest: Any) -> None:
        if layer in visited:
            visit(layer, block.attn.weights(block.norm1(before), *rest).float())

    with eval_mode(model), torch.no_grad():
        return model.encode(images, visit_block, max(layers))


def patch_pixels(config: ViTConfig) -> tuple[int, int]:
    """Return height and width of a patch in pixels of the image."""
    stride = 1 if config.backbone is None else config.backbone.stride
    height, width = pair(config.patch_size)
    return height * stride, width * stride


def pooling_weights(model: VisionTransformer, tokens: Tensor) -> Tensor:
    """Return the weight of each token (B, T) of the last layer in the pooled representation: 1 for the class token,
    equal weights of all patches, or the weights of attention pooling."""
    prefix = model.config.prefix
    weights = tokens.new_zeros(tokens.shape[:2], dtype=torch.float32)
    pool = model.attn_pool
    if pool is not None:
        x = model.norm(tokens)[:, prefix:]
        q = pool.q(pool.latent).expand(len(x), -1, -1).unflatten(-1, (pool.heads, -1)).transpose(1, 2)
        k = pool.kv(x).unflatten(-1, (2, pool.heads, -1)).permute(2, 0, 3, 1, 4)[0]
        weights[:, prefix:] = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1).mean(1)[:, 0].float()
    elif model.config.class_token and model.config.pool != "gap":
        weights[:, 0] = 1
    else:
        weights[:, prefix:] = 1 / (tokens.shape[1] - prefix)
    return weights


def describe_pooling(config: ViTConfig) -> str:
    """Return what the head uses, as text."""
    if config.pool == "map":
        return "attention pooling"
    return "class token" if config.class_token and config.pool != "gap" else "mean of the patches"


def describe_query(config: ViTConfig) -> str:
    """Return the token whose attention the inspection page shows first, as text: the one that the head uses, or without
    one the mean over all patches."""
    return "class token" if config.class_token and config.pool != "gap" else "mean of the patches"


def head_logits(model: VisionTransformer, tokens: Tensor) -> Tensor:
    """Return the logits (B, classes) in float32 of the model's norm, pooling and head for the tokens of any layer."""
    logits: Tensor = model.head(model.representation(model.norm(tokens)))
    return logits.float()


def class_probabilities(model: Model, logits: Tensor) -> Tensor:
    return model.probabilities(logits)
