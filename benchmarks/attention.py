"""Time our attention kernels against cuDNN attention and flash attention: `python benchmarks/attention.py`

Needs a CUDA GPU. Forward: from the packed q, k, v of a block to its output. Backward: to the packed gradient of q, k, v
and its sum over rows, which the block needs for its bias; the peers return three gradients, which are then merged. The
shapes are those of B/16 and L/16 at 224 px, and other numbers of tokens.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from harness import RESULTS, argument_parser, environment, require_gpu, write_result
from vitreous.benchmark.machine import time_steps
from vitreous.fast.attention import merge_heads, split_heads
from vitreous.fast.kernels import merge_qkv_gradients
from vitreous.fast.short_attention import short_attention, short_attention_backward

SHAPES = ((256, 197, 12), (128, 197, 16), (1024, 64, 4), (512, 100, 6), (128, 256, 12), (64, 577, 12))
CUDA = torch.device("cuda")
PEERS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


def milliseconds(function: Callable[[], object]) -> float:
    return round(1e3 * time_steps(function, CUDA, repeats=20, warm_up=5).median, 4)


def measure_shape(batch: int, tokens: int, heads: int, head: int = 64) -> dict[str, dict[str, float]]:
    qkv = torch.randn(batch * tokens, 3 * heads * head, device="cuda", dtype=torch.bfloat16)
    do = torch.randn(batch * tokens, heads * head, device="cuda", dtype=torch.bfloat16)
    parts = split_heads(qkv, batch, heads)
    o, lse = short_attention(qkv, batch, heads)
    forward = {"ours": milliseconds(lambda: short_attention(qkv, batch, heads))}
    backward = {}

    def our_backward() -> object:
        gradient, sums = short_attention_backward(qkv, o, do, lse, batch, heads)
        return gradient, sums.sum(0)

    backward["ours"] = milliseconds(our_backward)
    leaves = [part.detach().requires_grad_() for part in parts]
    (gradient,) = split_heads(do, batch, heads, parts=1)
    for name, backend in PEERS.items():
        with sdpa_kernel(backend), torch.no_grad():
            forward[name] = milliseconds(lambda: merge_heads(torch.nn.functional.scaled_dot_product_attention(*parts)))
        with sdpa_kernel(backend):
            output = torch.nn.functional.scaled_dot_product_attention(*leaves)

        def peer_backward(output=output) -> object:  # type: ignore[no-untyped-def]
            merged, sums = merge_qkv_gradients(*torch.autograd.grad(output, leaves, gradient, retain_graph=True))
            return merged, sums.sum(0)

        backward[name] = milliseconds(peer_backward)
    return {"forward": forward, "backward": backward}


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS / "attention-cuda.json", help="JSON file")
    options = parser.parse_args()
    require_gpu()
    rows = []
    for batch, tokens, heads in SHAPES:
        rows.append({"batch": batch, "tokens": tokens, "heads": heads, "ms": measure_shape(batch, tokens, heads)})
        print(rows[-1], flush=True)
    write_result(options.out, {**environment(), "rows": rows})


if __name__ == "__main__":
    main()
