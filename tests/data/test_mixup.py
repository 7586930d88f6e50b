from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from vitreous.data.mixup import beta, mix
from vitreous.data.options import Augmentation
from vitreous.utils import random_keys

OFF = Augmentation(
    crop=1.0, aspect=1.0, shift=0.0, flip=False, randaugment=0, magnitude=9.0, three_augment=False, jitter=0.0,
    erase=0.0, mixup=0.0, cutmix=0.0,
)  # fmt: skip


def options(**changes: Any) -> Augmentation:
    return Augmentation(**{**vars(OFF), **changes})


def batch(size: int, height: int = 12, width: int = 20) -> tuple[Tensor, Tensor, Tensor]:
    """Return images filled with their index, of the class with that index, so that mixing is visible in both."""
    images = torch.arange(size).float()[:, None, None, None].expand(size, 3, height, width).contiguous()
    return images, torch.eye(size), random_keys.keys(5, torch.arange(size))


@pytest.mark.parametrize("alpha", [0.05, 0.2, 0.4, 0.8, 1.0, 1.5, 4.0, 30.0, 1000.0])
def test_beta(alpha: float) -> None:
    uniform = random_keys.uniform(random_keys.keys(1, torch.arange(20_000)), "beta", 1)[:, 0]
    drawn = beta(uniform, alpha)
    assert drawn.dtype == torch.float32
    assert 0 <= drawn.min() <= drawn.max() <= 1
    # Below one half, since float32 cannot represent values very close to 1; the other half is symmetric.
    lower = drawn[uniform < 0.5].double().numpy()
    assert stats.kstest(lower, lambda x: 2 * stats.beta(alpha, alpha).cdf(x)).pvalue > 0.01
    torch.testing.assert_close(drawn, 1 - beta(1 - uniform, alpha), atol=1e-4, rtol=0)
    wanted = torch.tensor([1e-4, 0.03, 0.2, 0.4999, 0.5, 0.77, 0.999])
    quantiles = torch.from_numpy(stats.beta(alpha, alpha).ppf(wanted.double().numpy())).float()
    torch.testing.assert_close(beta(wanted, alpha), quantiles, atol=3e-4, rtol=0)


def test_beta_near_zero_and_one() -> None:
    ends = torch.tensor([0.0, 2.0**-24, 1 - 2.0**-24])
    for alpha in (1e-3, 0.2, 2.0, 1e6):
        drawn = beta(ends, alpha)
        assert drawn.isfinite().all()
        assert 0 <= drawn.min() <= drawn.max() <= 1


def test_mixup_blends_neighbours() -> None:
    images, targets, keys = batch(8)
    mixed, labels = mix(images, targets, keys, options(mixup=0.8))
    for first in range(0, 8, 2):
        kept = labels[first, first]
        assert 0 < kept < 1
        torch.testing.assert_close(labels[first + 1, first + 1], kept)
        torch.testing.assert_close(labels[first, first + 1], 1 - kept)
        torch.testing.assert_close(mixed[first], torch.full((3, 12, 20), first + 1 - kept.item()))
        torch.testing.assert_close(mixed[first + 1], torch.full((3, 12, 20), first + kept.item()))
    torch.testing.assert_close(labels.sum(1), torch.ones(8))


def test_cutmix_pastes_one_rectangle_and_counts_its_pixels() -> None:
    images, targets, keys = batch(200, 9, 14)
    mixed, labels = mix(images, targets, keys, options(cutmix=1.0))
    shares = []
    for row in range(200):
        partner = row ^ 1
        pasted = mixed[row, 0] == partner
        assert ((mixed[row] == partner) == pasted).all()
        assert ((mixed[row, 0] == row) == ~pasted).all()
        assert torch.equal(pasted, mixed[partner, 0] == row)  # the same place in both
        where = pasted.nonzero()
        if len(where):
            sides = where.amax(0) - where.amin(0) + 1
            assert sides.prod() == len(where)  # a rectangle
        torch.testing.assert_close(labels[row, partner], pasted.float().mean())
        shares.append(pasted.float().mean())
    torch.testing.assert_close(labels.sum(1), torch.ones(200))
    assert 0.25 < torch.stack(shares).mean() < 0.45  # one half, minus the part outside of the image
    assert torch.stack(shares).max() > 0.6


def test_mixup_and_cutmix_together_get_half_of_the_pairs_each() -> None:
    images, targets, keys = batch(600, 6, 6)
    mixed, labels = mix(images, targets, keys, options(mixup=0.8, cutmix=1.0))
    pasted = torch.stack([torch.isin(mixed[row], images[[row, row ^ 1], 0, 0, 0]).all() for row in range(600)])
    assert torch.equal(pasted[::2], pasted[1::2])
    assert 120 < pasted[::2].sum() < 180
    torch.testing.assert_close(labels.sum(1), torch.ones(600))


@pytest.mark.parametrize("changes", [{"mixup": 0.2}, {"cutmix": 1.0}, {"mixup": 0.8, "cutmix": 0.5}])
def test_an_even_micro_batch_has_the_same_pairs(changes: dict[str, float]) -> None:
    images, targets, keys = batch(10)
    whole = mix(images, targets, keys, options(**changes))
    for begin, end in ((0, 4), (4, 10), (8, 10)):
        part = mix(images[begin:end], targets[begin:end], keys[begin:end], options(**changes))
        torch.testing.assert_close(part[0], whole[0][begin:end])
        torch.testing.assert_close(part[1], whole[1][begin:end])


@pytest.mark.parametrize("size", [1, 5])
def test_an_unpaired_last_sample_is_unchanged(size: int) -> None:
    images, targets, keys = batch(size)
    mixed, labels = mix(images, targets, keys, options(mixup=0.8, cutmix=1.0))
    assert torch.equal(mixed[-1], images[-1])
    assert torch.equal(labels[-1], targets[-1])


def test_off_and_empty() -> None:
    images, targets, keys = batch(4)
    mixed, labels = mix(images, targets, keys, options())
    assert mixed is images
    assert labels is targets
    mixed, labels = mix(images[:0], targets[:0], keys[:0], options(mixup=0.8, cutmix=1.0))
    assert mixed.shape == (0, 3, 12, 20)
    assert labels.shape == (0, 4)
