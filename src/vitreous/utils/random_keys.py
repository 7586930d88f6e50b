"""Counter-based random numbers: they depend on a sample's key, not on its batch, worker, process or device.

A key is a hash of (seed, position in the training stream). Every random number is a hash of the key, its purpose and
its index. So a resumed run, or a run with another batch size, draws the same numbers.
"""

import torch
from torch import Tensor

# splitmix64 (Steele, Lea and Flood, 2014), in torch's signed integers.
GOLDEN, FIRST, SECOND = (c - (1 << 64) for c in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def keys(seed: int, positions: Tensor) -> Tensor:
    """An int64 key for each position in the training stream."""
    start = _hash(torch.tensor(seed, dtype=torch.int64, device=positions.device))
    return _hash(start + positions.long() * GOLDEN)


def uniform(keys: Tensor, purpose: str, count: int) -> Tensor:
    """`count` uniform numbers in [0, 1) for each key, (B, count) in float32. They are independent between purposes."""
    return uniform_at(keys[:, None], purpose, torch.arange(count, device=keys.device))


def uniform_at(keys: Tensor, purpose: str, indices: Tensor) -> Tensor:
    """The uniform numbers in [0, 1) at these indices of each key's sequence. `keys` and `indices` are broadcast."""
    stream = _hash(keys + _hash_purpose(purpose))
    bits = _hash(stream ^ indices)
    return ((bits >> 40) & 0xFFFFFF).float() / (1 << 24)


def split_keys(keys: Tensor, count: int) -> Tensor:
    """`count` independent keys from each key, (B, count)."""
    return _hash(_hash(keys[:, None]) ^ torch.arange(count, device=keys.device))


def _hash_purpose(purpose: str) -> int:
    """FNV-1a hash of a string, in arithmetic that torch.compile can trace."""
    number = 0xCBF29CE484222325
    for character in purpose:
        number = (number ^ ord(character)) * 0x100000001B3 % (1 << 62)
    return number


def _hash(x: Tensor) -> Tensor:
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * FIRST  # the mask removes the sign bits of the arithmetic shift
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * SECOND
    return x ^ ((x >> 31) & ((1 << 33) - 1))
