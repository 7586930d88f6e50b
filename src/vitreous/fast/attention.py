"""Attention through torch's fastest kernel, and attention with the class token as the only query."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from vitreous.fast.guards import first_derivative_only

FASTEST_FIRST = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]


@contextmanager
def fastest_attention() -> Iterator[None]:
    """Prefer cuDNN attention: at the sizes of a ViT it takes half the time of flash attention. Its backward pass is not
    deterministic, so torch's own order applies in deterministic mode."""
    if torch.are_deterministic_algorithms_enabled() or not torch.cuda.is_available():
        yield
    else:
        with sdpa_kernel(FASTEST_FIRST, set_priority=True):
            yield


def split_heads(qkv: Tensor, batch: int, heads: int, parts: int = 3) -> tuple[Tensor, ...]:
    """(B x T, parts x D) -> `parts` views (B, heads, T, d)."""
    return qkv.view(batch, -1, parts, heads, qkv.shape[-1] // (parts * heads)).permute(2, 0, 3, 1, 4).unbind()


def merge_heads(o: Tensor) -> Tensor:
    """(B, heads, T, d) -> (B x T, D)."""
    return o.transpose(1, 2).flatten(2).flatten(0, 1)


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Scaled dot-product attention by the fastest backend."""
    with fastest_attention():
        return F.scaled_dot_product_attention(q, k, v)


def cudnn_attention_with_lse(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the output of cuDNN attention and its log-sum-exp (B, heads, T), or None if cuDNN does not support the
    inputs."""
    try:
        o, lse, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True)
    except RuntimeError:
        return None
    return o, lse.flatten(2).contiguous()


class WeightedTokenMean(torch.autograd.Function):
    """Softmax-weighted means of the tokens y (B, T, D) for queries (B, N, D): softmax(queries y') y, (B, N, D).

    Autograd would compute the gradient of y by two matmuls and an addition. Here it is one matmul.
    """

    @staticmethod
    def forward(ctx: Any, y: Tensor, queries: Tensor) -> Tensor:
        logits = y @ queries.transpose(1, 2)
        p = logits.softmax(1, dtype=torch.promote_types(y.dtype, torch.float32))
        ctx.save_for_backward(y, queries, p)
        return p.to(y.dtype).transpose(1, 2) @ y

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor, Tensor]:
        y, queries, p = ctx.saved_tensors
        (dmean,) = outputs
        dp = (y @ dmean.transpose(1, 2)).to(p.dtype)
        dlogits = (p * (dp - (p * dp).sum(1, keepdim=True))).to(y.dtype)
        dy = torch.cat([dlogits, p.to(y.dtype)], 2) @ torch.cat([queries, dmean], 1)
        return dy, dlogits.transpose(1, 2) @ y


class ClassTokenAttention(NamedTuple):
    """Attention of the class token to all tokens, with weights (heads, d, D) and biases (heads, 1, d)."""

    q: Tensor
    k: Tensor
    v: Tensor
    q_bias: Tensor | None
    v_bias: Tensor | None

    @classmethod
    def from_linear(cls, qkv: nn.Linear, heads: int, dtype: torch.dtype) -> "ClassTokenAttention":
        q, k, v = qkv.weight.unflatten(0, (3, heads, -1)).to(dtype)
        if qkv.bias is None:
            return cls(q, k, v, None, None)
        q_bias, _, v_bias = qkv.bias.view(3, heads, 1, -1).to(dtype)
        return cls(q, k, v, q_bias, v_bias)

    def copied(self) -> "ClassTokenAttention":
        """Return a copy that later changes of the model do not affect."""
        q, k, v = (weight.detach().clone() for weight in self[:3])
        return ClassTokenAttention(q, k, v, *(bias if bias is None else bias.detach().clone() for bias in self[3:]))

    def __call__(self, first: Tensor, y: Tensor) -> Tensor:
        """Return attention's output (B, D), before the projection, for the query token `first` (B, D) over all tokens
        y (B, T, D).

        Keys and values are not computed, because for one query q per head

            q . (y_t Wk' + bk) = (q Wk) . y_t + the same for all t
            sum_t p_t (y_t Wv' + bv) = (sum_t p_t y_t) Wv' + bv

        so Wk is applied to the query and Wv to the weighted mean of the tokens, once per image.
        """
        q = first @ self.q.transpose(1, 2)  # (heads, B, d)
        q = q if self.q_bias is None else q + self.q_bias
        queries = ((q * q.shape[-1] ** -0.5) @ self.k).transpose(0, 1)  # (B, heads, D)
        queries = F.pad(queries, (0, 0, 0, -len(self.q) % 8))  # matmuls of odd sizes are slow
        mean: Tensor = WeightedTokenMean.apply(y, queries)[:, : len(self.q)]  # type: ignore[no-untyped-call]
        o = mean.transpose(0, 1) @ self.v.transpose(1, 2)  # (heads, B, d)
        o = o if self.v_bias is None else o + self.v_bias
        return o.transpose(0, 1).flatten(1)
