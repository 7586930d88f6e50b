"""Keyed random numbers are uniform, independent of each other, and independent of the batch."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from vitreous.utils import random_keys

MANY = 1 << 16


def keys(seed: int = 0, count: int = MANY, first: int = 0) -> Tensor:
    return random_keys.keys(seed, torch.arange(first, first + count))


def one_each(seed: int = 0, purpose: str = "crop", place: int = 0, first: int = 0) -> np.ndarray:
    """Return one number for each of many positions."""
    return random_keys.uniform(keys(seed, first=first), purpose, place + 1)[:, place].numpy()


def test_the_hash_is_splitmix64() -> None:
    """Compared with the first (unsigned) numbers of the published generator for seed 1234567."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    states = [(1234567 + k * 0x9E3779B97F4A7C15) % 2**64 for k in range(1, 5)]
    signed = torch.tensor([state - 2**64 if state >= 2**63 else state for state in states])
    assert [int(x) % 2**64 for x in random_keys._hash(signed)] == published


def test_types_and_range() -> None:
    made = keys(count=1000)
    assert made.dtype == torch.int64
    assert made.shape == (1000,)
    numbers = random_keys.uniform(made, "crop", 1000)
    assert numbers.shape == (1000, 1000)
    assert numbers.dtype == torch.float32
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert torch.equal(numbers * 2**24, (numbers * 2**24).round())  # 24 bits, the precision of float32


@pytest.mark.parametrize("seed", [0, 1, 2**61])
@pytest.mark.parametrize(("purpose", "place"), [("crop", 0), ("crop", 3), ("dropout", 100_000)])
def test_uniform_over_positions(seed: int, purpose: str, place: int) -> None:
    numbers = random_keys.uniform_at(keys(seed), purpose, torch.tensor(place)).numpy()
    assert abs(numbers.mean() - 1 / 2) < 5 * (1 / 12 / MANY) ** 0.5
    assert abs(numbers.var() - 1 / 12) < 5 * (1 / 180 / MANY) ** 0.5
    assert stats.kstest(numbers, "uniform").pvalue > 1e-4


def test_uniform_over_indices() -> None:
    for position in (0, 1, 10**12):
        numbers = random_keys.uniform(keys(count=1, first=position), "dropout", MANY)[0].numpy()
        assert stats.kstest(numbers, "uniform").pvalue > 1e-4


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"first": 1}, id="neighbouring positions"),
        pytest.param({"first": 2}, id="positions two apart"),
        pytest.param({"purpose": "flip"}, id="purposes"),
        pytest.param({"purpose": "croq"}, id="purposes that differ in one letter"),
        pytest.param({"seed": 1}, id="seeds"),
        pytest.param({"place": 1}, id="places"),
        pytest.param({"seed": 1, "first": 1}, id="seed and position"),
    ],
)
def test_nothing_is_correlated(other: dict) -> None:
    one, two = one_each(), one_each(**other)
    assert abs(np.corrcoef(one, two)[0, 1]) < 5 / MANY**0.5
    cells = np.histogram2d(one, two, bins=16, range=[[0, 1], [0, 1]])[0]  # nor otherwise dependent
    assert stats.chisquare(cells.ravel()).pvalue > 1e-4


def test_split_keys_are_independent() -> None:
    """Each layer of a model has its own keys."""
    made = random_keys.split_keys(keys(), 3)
    assert made.shape == (MANY, 3)
    first, second, third = (random_keys.uniform(stream, "depth", 1)[:, 0].numpy() for stream in made.unbind(1))
    parent = one_each(purpose="depth")
    for one, two in ((first, second), (second, third), (first, third), (first, parent), (second, parent)):
        assert abs(np.corrcoef(one, two)[0, 1]) < 5 / MANY**0.5
    assert len(made.unique()) == made.numel()


def test_numbers_do_not_depend_on_the_batch() -> None:
    whole = random_keys.uniform(keys(3, 100), "erase", 7)
    for size in (1, 3, 64, 99):
        parts = [random_keys.uniform(part, "erase", 7) for part in keys(3, 100).split(size)]
        assert torch.equal(torch.cat(parts), whole)
    again = random_keys.keys(3, torch.arange(50, 60))
    assert torch.equal(again, keys(3, 100)[50:60])
    shuffled = torch.randperm(100)
    assert torch.equal(random_keys.uniform(keys(3, 100)[shuffled], "erase", 7), whole[shuffled])


def test_numbers_do_not_depend_on_the_count() -> None:
    made = keys(count=10)
    assert torch.equal(random_keys.uniform(made, "crop", 4), random_keys.uniform(made, "crop", 9)[:, :4])
    places = torch.tensor([[8, 0], [3, 3]])
    drawn = random_keys.uniform_at(made[:, None, None], "crop", places)
    assert torch.equal(drawn, random_keys.uniform(made, "crop", 9)[:, places])
    assert torch.equal(random_keys.split_keys(made, 2), random_keys.split_keys(made, 5)[:, :2])


def test_positions_of_any_integer_type() -> None:
    assert torch.equal(random_keys.keys(0, torch.arange(9, dtype=torch.int32)), keys(count=9))
    assert random_keys.keys(0, torch.tensor(5)) == keys(count=9)[5]


def test_keys_are_unique() -> None:
    million = 1_000_000
    made = torch.cat([keys(0, million), keys(1, million), keys(0, 1000, first=10**15)])
    assert len(made.unique()) == len(made)
