"""Random numbers that belong to a sample: from its key alone, whatever batch, worker, process or device it is in.

A key is made from (seed, position in the training stream). Every number is a hash of the key, of what it is for, and of
its place; so a run that is resumed, or cut into other batches, draws what it would have drawn.
"""

import torch
from torch import Tensor

# splitmix64 (Steele, Lea and Flood, 2014), in the signed integers that torch has.
GOLDEN, FIRST, SECOND = (c - (1 << 64) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def keys(seed: int, positions: Tensor) -> Tensor:
    """One key, an int64, for each position in the training stream."""
    start = _mixed(torch.tensor(seed, dtype=torch.int64, device=positions.device))
    return _mixed(start + positions.long() * GOLDEN)


def uniform(keys: Tensor, purpose: str, count: int) -> Tensor:
    """`count` numbers in [0, 1) for each key, (B, count) in float32. Each purpose has its own."""
    return elements(keys[:, None], purpose, torch.arange(count, device=keys.device))


def elements(keys: Tensor, purpose: str, numbers: Tensor) -> Tensor:
    """The numbers in [0, 1) at these places of each key's sequence: keys and numbers of shapes that go together."""
    stream = _mixed(keys + _number(purpose))
    bits = _mixed(stream ^ numbers)
    return ((bits >> 40) & 0xFFFFFF).float() / (1 << 24)


def streams(keys: Tensor, count: int) -> Tensor:
    """`count` keys, (B, count), from each key: one for each place that draws by itself."""
    return _mixed(_mixed(keys[:, None]) ^ torch.arange(count, device=keys.device))


def _number(purpose: str) -> int:
    """Of a word (FNV-1a), in arithmetic that torch's compiler can follow."""
    number = 0xCBF29CE484222325
    for character in purpose:
        number = (number ^ ord(character)) * 0x100000001B3 % (1 << 62)
    return number


def _mixed(x: Tensor) -> Tensor:
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * FIRST  # shifts of signed numbers drag the sign along: masked away
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * SECOND
    return x ^ ((x >> 31) & ((1 << 33) - 1))
