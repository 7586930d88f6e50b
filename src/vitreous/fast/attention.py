"""Attention by the fastest kernel there is, and the views it takes; and attention of one token alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from vitreous.fast.guards import first_derivative_only

FASTEST = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


@contextmanager
def fastest_attention() -> Iterator[None]:
    """cuDNN's where it can: at the sizes of a ViT it takes half the time of flash attention. Its backward is not
    deterministic, so that where results must be, torch's own order holds."""
    if torch.are_deterministic_algorithms_enabled() or not torch.cuda.is_available():
        yield
    else:
        with sdpa_kernel(FASTEST, set_priority=True):
            yield


def split(qkv: Tensor, batch: int, heads: int, parts: int = 3) -> tuple[Tensor, ...]:
    """(B x T, parts x D) -> `parts` views (B, heads, T, d)."""
    return qkv.view(batch, -1, parts, heads, qkv.shape[-1] // (parts * heads)).permute(2, 0, 3, 1, 4).unbind()


def joined(o: Tensor) -> Tensor:
    """(B, heads, T, d) -> (B x T, D)."""
    return o.transpose(1, 2).flatten(2).flatten(0, 1)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with fastest_attention():
        return F.scaled_dot_product_attention(q, k, v)


def attend_with_sums(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor] | None:
    """The same by cuDNN, and the logarithms of its sums (B, heads, T); None: it cannot do these."""
    try:
        o, lse, *_ = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True)
    except RuntimeError:
        return None
    return o, lse.flatten(2).contiguous()


class Gathered(torch.autograd.Function):
    """The mean of tokens (B, T, D) by what they answer to questions (B, N, D), for each of those: (B, N, D).

    Autograd would get the two gradients of the tokens by two products and add them; they are one.
    """

    @staticmethod
    def forward(ctx: Any, y: Tensor, asked: Tensor) -> Tensor:
        logits = y @ asked.transpose(1, 2)
        p = logits.softmax(1, dtype=torch.promote_types(y.dtype, torch.float32))
        ctx.save_for_backward(y, asked, p)
        return p.to(y.dtype).transpose(1, 2) @ y

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor, Tensor]:
        y, asked, p = ctx.saved_tensors
        (dmean,) = outputs
        dp = (y @ dmean.transpose(1, 2)).to(p.dtype)
        dlogits = (p * (dp - (p * dp).sum(1, keepdim=True))).to(y.dtype)
        dy = torch.cat([dlogits, p.to(y.dtype)], 2) @ torch.cat([asked, dmean], 1)
        return dy, dlogits.transpose(1, 2) @ y


class Asking(NamedTuple):
    """What one token asks all the others with: (heads, d, D) each, and the biases (heads, 1, d)."""

    q: Tensor
    k: Tensor
    v: Tensor
    q_bias: Tensor | None
    v_bias: Tensor | None

    @classmethod
    def of(cls, qkv: nn.Linear, heads: int, dtype: torch.dtype) -> "Asking":
        q, k, v = qkv.weight.unflatten(0, (3, heads, -1)).to(dtype)
        if qkv.bias is None:
            return cls(q, k, v, None, None)
        q_bias, _, v_bias = qkv.bias.view(3, heads, 1, -1).to(dtype)
        return cls(q, k, v, q_bias, v_bias)

    def copied(self) -> "Asking":
        """With tensors of its own, which do not change when the model does."""
        q, k, v = (weight.detach().clone() for weight in self[:3])
        return Asking(q, k, v, *(bias if bias is None else bias.detach().clone() for bias in self[3:]))

    def __call__(self, first: Tensor, y: Tensor) -> Tensor:
        """Attention's output for the first (B, D) of the tokens y (B, T, D) alone, (B, D).

        Keys and values are not made, for with one query q for each head

            q . (y_t Wk' + bk) = (q Wk) . y_t + the same for all t
            sum_t p_t (y_t Wv' + bv) = (sum_t p_t y_t) Wv' + bv

        so that the query goes through Wk and the mean of the tokens through Wv, once for each image.
        """
        q = first @ self.q.transpose(1, 2)  # (heads, B, d)
        q = q if self.q_bias is None else q + self.q_bias
        asked = ((q * q.shape[-1] ** -0.5) @ self.k).transpose(0, 1)  # (B, heads, D)
        asked = F.pad(asked, (0, 0, 0, -len(self.q) % 8))  # products of odd sizes are slow
        mean: Tensor = Gathered.apply(y, asked)[:, : len(self.q)]  # type: ignore[no-untyped-call]
        o = mean.transpose(0, 1) @ self.v.transpose(1, 2)  # (heads, B, d)
        o = o if self.v_bias is None else o + self.v_bias
        return o.transpose(0, 1).flatten(1)
