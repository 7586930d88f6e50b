"""The backward of attention, ours beside cuDNN's and flash attention's, on a GPU: `python benchmarks/attention.py`

From the packed q, k, v of a block to their packed gradient and its sum over rows, which is what a block asks for; the
others give three gradients, which are merged. B/16 and L/16 at 224 px, and other numbers of tokens.
"""

import argparse
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from harness import RESULTS, environment, median_seconds, write
from vitreous.fast.attention import attend_with_sums, joined, split
from vitreous.fast.attention_backward import attention_backward
from vitreous.fast.kernels import merge

SHAPES = ((256, 197, 12), (128, 197, 16), (1024, 64, 4), (512, 100, 6), (128, 256, 12), (64, 577, 12))
PEERS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


def measured(batch: int, tokens: int, heads: int, head: int = 64) -> dict[str, float]:
    qkv = torch.randn(batch * tokens, 3 * heads * head, device="cuda", dtype=torch.bfloat16)
    do = torch.randn(batch * tokens, heads * head, device="cuda", dtype=torch.bfloat16)
    parts = split(qkv, batch, heads)
    found = attend_with_sums(*parts)
    assert found is not None
    o, lse = joined(found[0]).contiguous(), found[1]
    rows = {}

    def ours() -> object:
        gradient, sums = attention_backward(qkv, o, do, lse, batch, heads)
        return gradient, sums.sum(0)

    rows["ours"] = median_seconds(ours, "cuda")
    leaves = [part.detach().requires_grad_() for part in parts]
    (gradient,) = split(do, batch, heads, parts=1)
    for name, backend in PEERS.items():
        with sdpa_kernel(backend):
            output = torch.nn.functional.scaled_dot_product_attention(*leaves)

        def theirs(output=output) -> object:  # type: ignore[no-untyped-def]
            merged, sums = merge(*torch.autograd.grad(output, leaves, gradient, retain_graph=True))
            return merged, sums.sum(0)

        rows[name] = median_seconds(theirs, "cuda")
    return {name: round(1e3 * seconds, 4) for name, seconds in rows.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / "attention-cuda.json")
    options = parser.parse_args()
    rows = []
    for batch, tokens, heads in SHAPES:
        rows.append({"batch": batch, "tokens": tokens, "heads": heads, "ms": measured(batch, tokens, heads)})
        print(rows[-1], flush=True)
    write(options.out, {**environment(), "rows": rows})


if __name__ == "__main__":
    main()
