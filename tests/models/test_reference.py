"""Outputs and gradients of whole small models, compared with a reference written with loops over tokens, in float64.

The reference computes attention pair by pair: a score for each query and each key that it is compared with. Relative
positions look up the embedding of the offset between both. Of the library, the reference uses only `resample`, for
images of another size (test_embed.py compares it with other libraries).
"""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from helpers import draw, images
from vitreous import VisionTransformer, ViTConfig
from vitreous.models.embed import resample

Parameters = dict[str, Tensor]
PATCH = 4
SMALL: dict[str, Any] = {
    "image_size": (12, 20),
    "patch_size": PATCH,
    "channels": 2,
    "width": 12,
    "depth": 3,
    "heads": 2,
    "mlp_dim": 10,
    "num_classes": 3,
}


def position_of(c: ViTConfig, p: Parameters, grid: tuple[int, int], layer: int) -> list[Tensor | float]:
    """What is added to each token at a layer, in the order of the tokens."""
    rows, cols = grid
    table = 0 if c.position_at != "every-layer" else layer
    slots: list[Tensor | float] = [0.0] * c.prefix
    cells: list[Tensor | float] = [0.0] * (rows * cols)
    own_rows, own_cols = c.grid
    if c.position == "learned-1d":
        slots[: c.slots] = p["pos_embed"][table, : c.slots].unbind()
        own = [p["pos_embed"][table, c.slots + i] for i in range(own_rows * own_cols)]
    elif c.position == "learned-2d":
        if c.slots:
            slots[: c.slots] = p["pos_embed_slots"][table].unbind()
        x, y = p["pos_embed_x"][table], p["pos_embed_y"][table]
        own = [torch.cat([x[col], y[row]]) for row in range(own_rows) for col in range(own_cols)]
    else:
        return [*slots, *cells]
    cells = list(own if grid == c.grid else resample(torch.stack(own)[None], c.grid, grid, c.resample)[0].unbind())
    return [*slots, *cells]


def offset_table(c: ViTConfig, p: Parameters, grid: tuple[int, int], layer: int) -> Tensor:
    """The embeddings of all offsets on a grid, (2 rows - 1, 2 cols - 1, heads, d)."""
    table = p["rel_pos_embed"][0 if c.position_at == "every-layer-shared" else layer]
    old, new = ((2 * g[0] - 1, 2 * g[1] - 1) for g in (c.grid, grid))
    table = table if old == new else resample(table[None], old, new, c.resample)[0]
    return table.unflatten(0, new).unflatten(-1, (c.heads, -1))


def compared(c: ViTConfig, grid: tuple[int, int], layer: int, i: int, j: int) -> bool:
    """Whether the query token i is compared with the key token j."""
    i, j = i - c.prefix, j - c.prefix
    if c.attention == "full" or i < 0 or j < 0:
        return True
    if layer % 2 == 0:
        return i // grid[1] == j // grid[1]  # the same row
    return i % grid[1] == j % grid[1]  # the same column


def attend(c: ViTConfig, p: Parameters, x: Tensor, grid: tuple[int, int], layer: int) -> tuple[Tensor, Tensor]:
    """MSA of equation 2 for tokens (B, T, D), and the attention weights (B, heads, T, T)."""
    name, tokens, d = f"blocks.{layer}.attn.", x.shape[1], c.width // c.heads
    qkv = F.linear(x, p[f"{name}qkv.weight"], p[f"{name}qkv.bias"])
    q, k, v = (part.unflatten(-1, (c.heads, d)) for part in qkv.chunk(3, -1))  # (B, T, heads, d)
    if c.qk_norm:
        q, k = (norm(c, p, f"{name}{one}_norm", part) for one, part in (("q", q), ("k", k)))
    offsets = offset_table(c, p, grid, layer) if c.position == "relative" else None
    weights = x.new_zeros(len(x), c.heads, tokens, tokens)
    outputs = []
    for i in range(tokens):
        keys = [j for j in range(tokens) if compared(c, grid, layer, i, j)]
        scores = []
        for j in keys:
            score = (q[:, i] * k[:, j]).sum(-1) / d**0.5
            if offsets is not None and min(i, j) >= c.prefix:
                (y, x_), (v_, u) = (divmod(one - c.prefix, grid[1]) for one in (i, j))
                embedding = offsets[y - v_ + grid[0] - 1, x_ - u + grid[1] - 1]
                score = score + (q[:, i] * embedding).sum(-1) / d**0.5
            scores.append(score)
        exponents = torch.stack(scores, -1).exp()
        shares = exponents / exponents.sum(-1, keepdim=True)  # (B, heads, keys)
        weights[:, :, i, keys] = shares.detach()
        outputs.append(sum(shares[..., n, None] * v[:, j] for n, j in enumerate(keys)).flatten(1))
    return F.linear(torch.stack(outputs, 1), p[f"{name}proj.weight"], p[f"{name}proj.bias"]), weights


def norm(c: ViTConfig, p: Parameters, name: str, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], p[f"{name}.weight"], p[f"{name}.bias"], c.norm_eps)


def mlp(p: Parameters, name: str, x: Tensor) -> Tensor:
    hidden = F.gelu(F.linear(x, p[f"{name}.fc1.weight"], p[f"{name}.fc1.bias"]), approximate="tanh")
    return F.linear(hidden, p[f"{name}.fc2.weight"], p[f"{name}.fc2.bias"])


def pooled(c: ViTConfig, p: Parameters, x: Tensor) -> Tensor:
    if c.pool in ("token", "none"):
        return x[:, 0] if c.pool == "token" else x
    x = x[:, c.prefix :]
    if c.pool == "gap":
        return x.mean(1)
    q = F.linear(p["attn_pool.latent"][0, 0], p["attn_pool.q.weight"], p["attn_pool.q.bias"]).unflatten(
        0, (c.heads, -1)
    )
    k, v = F.linear(x, p["attn_pool.kv.weight"], p["attn_pool.kv.bias"]).unflatten(-1, (2, c.heads, -1)).unbind(2)
    shares = ((q * k).sum(-1) / q.shape[-1] ** 0.5).softmax(1)
    x = F.linear((shares[..., None] * v).sum(1).flatten(1), p["attn_pool.proj.weight"], p["attn_pool.proj.bias"])
    return x + mlp(p, "attn_pool.mlp", norm(c, p, "attn_pool.norm", x))


def reference(c: ViTConfig, p: Parameters, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The logits of a model, and the attention weights of all layers."""
    grid = x.shape[2] // PATCH, x.shape[3] // PATCH
    prefix = [token[0] for token in (p.get("cls_token"), p.get("reg_token")) if token is not None]
    tokens = [row.expand(len(x), -1) for token in prefix for row in token]
    for row in range(grid[0]):
        for col in range(grid[1]):
            cut = x[:, :, row * PATCH : (row + 1) * PATCH, col * PATCH : (col + 1) * PATCH].flatten(1)
            tokens.append(F.linear(cut, p["patch_embed.proj.weight"].flatten(1), p["patch_embed.proj.bias"]))
    z, maps = torch.stack(tokens, 1), []
    for layer in range(c.depth):
        if c.position_at != "stem" or layer == 0:
            z = torch.stack([z[:, i] + e for i, e in enumerate(position_of(c, p, grid, layer))], 1)
        name = f"blocks.{layer}"
        branch, weights = attend(c, p, norm(c, p, f"{name}.norm1", z), grid, layer)
        maps.append(weights)
        z = z + branch
        z = z + mlp(p, f"{name}.mlp", norm(c, p, f"{name}.norm2", z))
    return F.linear(pooled(c, p, norm(c, p, "norm", z)), p["head.weight"], p["head.bias"]), maps


def check(changes: dict[str, Any], size: tuple[int, int]) -> None:
    """Compare logits, attention weights and the gradients of all parameters and of the images."""
    model = draw(VisionTransformer(ViTConfig(**{**SMALL, **changes}))).double()
    x = images(2, 2, *size).double().requires_grad_()
    copies: Parameters = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    expected, maps = reference(model.config, copies, x)
    logits = model.train()(x)
    torch.testing.assert_close(logits, expected)
    with torch.no_grad():
        for ours, theirs in zip(model.attention(x, range(model.config.depth)), maps, strict=True):
            torch.testing.assert_close(ours, theirs)
    factors = images(*logits.shape, seed=3).double()
    ours = torch.autograd.grad(logits, [*model.parameters(), x], factors)
    theirs = torch.autograd.grad(expected, [*copies.values(), x], factors)
    for name, found, wanted in zip([*copies, "images"], ours, theirs, strict=True):
        torch.testing.assert_close(found, wanted, msg=lambda text, name=name: f"{name}: {text}")


AXIAL: dict[str, dict[str, Any]] = {
    "class token": {},
    "class token and registers": {"registers": 2, "position_slots": "all"},
    "no prefix": {"pool": "gap"},
    "registers only": {"pool": "gap", "registers": 1},
    "attention pooling": {"pool": "map", "registers": 2, "qk_norm": True},
    "all tokens": {"pool": "none", "position": "none"},
    "learned-2d before every layer": {"position": "learned-2d", "position_at": "every-layer"},
    "one block": {"depth": 1},
}


@pytest.mark.parametrize("size", [(12, 20), (20, 12), (4, 20), (20, 4), (8, 8), (4, 4)])
@pytest.mark.parametrize("changes", AXIAL.values(), ids=AXIAL)
def test_axial_attention(changes: dict[str, Any], size: tuple[int, int]) -> None:
    check({"attention": "axial", **changes}, size)


POSITIONS: dict[str, dict[str, Any]] = {
    f"{position}, {at}, {tokens}": {"position": position, "position_at": at, **changes}
    for position in ("learned-1d", "learned-2d", "relative")
    for at in ("stem", "every-layer", "every-layer-shared")
    for tokens, changes in {"class token": {}, "no prefix": {"pool": "gap"}}.items()
    if (position, at) != ("relative", "stem")
} | {
    "relative, registers, qk-norm": {"position": "relative", "registers": 2, "qk_norm": True},
    "learned-2d, positions of registers": {"position": "learned-2d", "registers": 2, "position_slots": "all"},
    "learned-2d, registers without positions": {"position": "learned-2d", "registers": 2},
}


@pytest.mark.parametrize("size", [(12, 20), (16, 8)])
@pytest.mark.parametrize("changes", POSITIONS.values(), ids=POSITIONS)
def test_positions(changes: dict[str, Any], size: tuple[int, int]) -> None:
    """At the size of the model and at another one, where the embeddings are resampled."""
    check(changes, size)


def test_the_reference_can_tell() -> None:
    """Axial attention in another order, or without the prefix tokens, would be detected."""
    model = draw(VisionTransformer(ViTConfig(**SMALL, attention="axial"))).double()
    x = images(1, 2, 12, 20).double()
    parameters = dict(model.named_parameters())
    expected, _ = reference(model.config, parameters, x)
    for block, axis in zip(model.blocks, ("column", "row", "column"), strict=True):
        block.attn.axis = axis  # type: ignore[union-attr, assignment]
    assert (model(x) - expected).abs().max() > 1e-3
    for block in model.blocks:
        block.attn.axis = None  # type: ignore[union-attr, assignment]
    assert (model(x) - expected).abs().max() > 1e-3
