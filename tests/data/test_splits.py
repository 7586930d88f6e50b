"""Splits are stratified and depend only on labels, fraction and seed."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vitreous.data.splits import default_fraction, stratified_split, train_val_test_split
from vitreous.errors import VitreousError


def labels_of(*counts: int) -> Tensor:
    return torch.cat([torch.full((count,), i) for i, count in enumerate(counts)]).long()


def shares(labels: Tensor, fraction: float, seed: int = 0) -> list[int]:
    _, val = stratified_split(labels, fraction, seed)
    return torch.bincount(labels[val], minlength=int(labels.max()) + 1).tolist()


def test_each_class_contributes_its_share() -> None:
    assert shares(labels_of(100, 50, 10), 0.1) == [10, 5, 1]
    assert shares(labels_of(1000, 10), 0.2) == [200, 2]
    assert sum(shares(labels_of(*[4] * 10), 0.2)) == 8
    assert set(shares(labels_of(*[4] * 10), 0.2)) == {0, 1}
    assert shares(labels_of(6, 9, 15), 0.1) == [1, 1, 1]  # 0.6, 0.9 and 1.5: the largest remainders are rounded up


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.floats(0.01, 0.95), st.integers(0, 2**31))
def test_any_classes(counts: list[int], fraction: float, seed: int) -> None:
    labels = labels_of(*counts)[torch.randperm(sum(counts), generator=torch.Generator().manual_seed(seed))]
    train, val = stratified_split(labels, fraction, seed)
    assert torch.equal(torch.cat([train, val]).sort().values, torch.arange(len(labels)))
    assert torch.equal(train, train.sort().values)
    assert torch.equal(val, val.sort().values)
    assert torch.bincount(labels[train], minlength=len(counts)).min() >= 1
    room = sum(count - 1 for count in counts)
    assert len(val) == min(max(1, int(len(labels) * fraction + 0.5)), room)
    if all(count * (1 - fraction) > 2 for count in counts):  # no class is at its limit
        for count, share in zip(counts, torch.bincount(labels[val], minlength=len(counts)).tolist(), strict=True):
            assert abs(share - count * fraction) <= 1 or len(val) == 1
    again = stratified_split(labels.clone(), fraction, seed)
    assert torch.equal(again[0], train)
    assert torch.equal(again[1], val)


def test_the_draw_does_not_depend_on_other_classes() -> None:
    """Which images of a class are held out depends only on their order within the class."""
    torch.manual_seed(5)
    labels = torch.randint(0, 4, (400,))
    mixed = torch.cat([labels, labels_of(100, 100, 100, 100)])
    order = torch.argsort(mixed, stable=True)  # sorted by class: the order within each class is the same
    _, val = stratified_split(mixed, 0.25, 3)
    _, val_sorted = stratified_split(mixed[order], 0.25, 3)
    assert set(order[val_sorted].tolist()) == set(val.tolist())


def test_seeds() -> None:
    labels = labels_of(50, 50)
    chosen = {tuple(stratified_split(labels, 0.2, seed)[1].tolist()) for seed in range(20)}
    assert len(chosen) == 20
    often = torch.zeros(100)
    for seed in range(400):
        often[stratified_split(labels, 0.2, seed)[1]] += 1
    assert often.sum() == 400 * 20
    assert often.min() > 40  # 80 is expected; 5 standard deviations are 40
    assert often.max() < 120


def test_single_images_remain_in_train() -> None:
    train, val = stratified_split(labels_of(1, 1, 2), 0.5, 0)
    assert {0, 1} <= set(train.tolist())
    assert len(val) == 1
    train, val = stratified_split(labels_of(1, 1, 1), 0.5, 0)
    assert (len(train), len(val)) == (3, 0)


def test_fraction_zero() -> None:
    for labels in (labels_of(5, 5), torch.ones(10, 2, dtype=torch.bool)):
        train, val = stratified_split(labels, 0, 0)
        assert train.tolist() == list(range(10))
        assert not len(val)


@pytest.mark.parametrize("fraction", [-0.1, 1.0, 7, float("nan")])
def test_invalid_fractions(fraction: float) -> None:
    with pytest.raises(VitreousError, match="val_fraction"):
        stratified_split(labels_of(5, 5), fraction, 0)


def test_multi_label() -> None:
    generator = torch.Generator().manual_seed(0)
    rates = torch.tensor([0.5, 0.2, 0.05, 0.01])
    labels = torch.rand(2000, 4, generator=generator) < rates
    labels[7] = False
    train, val = stratified_split(labels, 0.1, 0)
    assert torch.equal(torch.cat([train, val]).sort().values, torch.arange(2000))
    assert abs(len(val) - 200) <= 10
    expected = labels.sum(0) * 0.1
    assert ((labels[val].sum(0) - expected).abs() <= 0.02 * labels.sum(0) + 1).all()
    assert torch.equal(stratified_split(labels, 0.1, 0)[1], val)
    assert not torch.equal(stratified_split(labels, 0.1, 1)[1], val)
    rare = torch.zeros(30, 2, dtype=torch.bool)
    rare[3, 0] = True
    assert 3 in stratified_split(rare, 0.5, 0)[0]
    assert len(stratified_split(rare, 0.5, 0)[1]) == 15


def test_default_fractions() -> None:
    assert [default_fraction(n) for n in (2, 1000, 1001, 50_000, 50_001)] == [0.2, 0.2, 0.1, 0.1, 0.05]


def test_a_million_images_are_split_fast() -> None:
    labels = torch.randint(0, 1000, (1_000_000,))
    train, val = stratified_split(labels, 0.05, 0)
    assert (len(train), len(val)) == (950_000, 50_000)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 60), min_size=2, max_size=8),
    st.sampled_from([None, 0.0, 0.1, 0.3]),
    st.sampled_from([None, 0.0, 0.1, 0.3]),
    st.integers(0, 9),
)
def test_three_splits_share_no_image(counts: list[int], val: float | None, test: float | None, seed: int) -> None:
    labels = labels_of(*counts)
    parts = train_val_test_split(labels, val, test, seed)
    assert torch.cat(parts).sort().values.equal(torch.arange(len(labels)))
    assert torch.bincount(labels[parts[0]], minlength=len(counts)).min() >= 1
    assert len(parts[1]) == 0 if val == 0 else len(parts[1]) > 0 or sum(counts) - len(counts) < 1
    for one, again in zip(parts, train_val_test_split(labels, val, test, seed), strict=True):
        assert one.equal(again)


def test_a_test_split_needs_enough_images() -> None:
    sizes = {
        n: [len(part) for part in train_val_test_split(labels_of(n // 2, n // 2), None, None, 0)]
        for n in (98, 240, 20_000)
    }
    assert sizes == {98: [78, 20, 0], 240: [168, 36, 36], 20_000: [16_000, 2_000, 2_000]}
    assert [len(part) for part in train_val_test_split(labels_of(120, 120), 0, None, 0)] == [240, 0, 0]
    assert [len(part) for part in train_val_test_split(labels_of(120, 120), None, 0, 0)] == [192, 48, 0]
    assert [len(part) for part in train_val_test_split(labels_of(120, 120), 0.1, 0.5, 0)] == [96, 24, 120]
    with pytest.raises(VitreousError, match=r"test_fraction = 0\.95: only 216 images are left"):
        train_val_test_split(labels_of(120, 120), 0.1, 0.95, 0)
    for wrong in (1.5, 1, -0.1):
        with pytest.raises(VitreousError, match=f"test_fraction = {wrong:g}: expected a fraction"):
            train_val_test_split(labels_of(120, 120), 0, wrong, 0)
