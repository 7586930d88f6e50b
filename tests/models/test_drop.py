"""Dropout and stochastic depth: how much is lost, and that an image loses the same in any company."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from helpers import SMALL_RESNET, images, outputs, relative_error, tiny_vit
from vitreous.errors import VitreousError
from vitreous.models.drop import Drop, keyed_drops
from vitreous.utils import random_keys

DROPPING = {"dropout": 0.2, "stochastic_depth": 0.5}


def keys(count: int, seed: int = 0) -> Tensor:
    return random_keys.keys(seed, torch.arange(count))


def dropped(x: Tensor, dropout: float, depth: float = 0.0) -> Tensor:
    drop = Drop(dropout, depth)
    with keyed_drops(drop, keys(len(x))):
        return drop(x)


def keyed(model: Any, x: Tensor, own: Tensor) -> Tensor:
    with keyed_drops(model, own):
        return outputs(model, x)


# ---------------------------------------------------------------- how much


@pytest.mark.parametrize("rate", [0.05, 0.5, 0.9])
def test_dropout_keeps_the_expectation(rate: float) -> None:
    out = dropped(torch.ones(64, 50, 40), rate)
    spread = (rate * (1 - rate) / out.numel()) ** 0.5
    assert abs((out == 0).float().mean() - rate) < 5 * spread
    assert torch.allclose(out[out != 0], torch.tensor(1 / (1 - rate)))
    assert abs(out.mean() - 1) < 5 * spread / (1 - rate)
    each = (out == 0).float().mean((1, 2))  # no image much more than another
    assert (each - rate).abs().max() < 6 * (rate * (1 - rate) / 2000) ** 0.5
    for axis in (0, 1, 2):  # nor a token, nor a channel
        assert len(out.unbind(axis)[0].unique()) == 2


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.8])
def test_stochastic_depth_takes_all_of_an_image_or_nothing(rate: float) -> None:
    out = dropped(torch.ones(20_000, 2, 3), 0.0, rate)
    assert torch.equal(out, out[:, :1, :1].expand_as(out))
    lost = (out[:, 0, 0] == 0).float().mean()
    assert abs(lost - rate) < 5 * (rate * (1 - rate) / len(out)) ** 0.5
    assert abs(out.mean() - 1) < 5 * (rate / (1 - rate) / len(out)) ** 0.5


def test_both_together() -> None:
    out = dropped(torch.ones(20_000, 4, 5), 0.25, 0.5)
    gone = (out == 0).flatten(1).all(1).float().mean()
    assert abs(gone - 0.5) < 0.02
    assert abs(out.mean() - 1) < 0.03
    assert torch.allclose(out.max(), torch.tensor(1 / 0.75 / 0.5))


def test_the_type_stays() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        assert dropped(torch.ones(3, 4, 5, dtype=dtype), 0.5, 0.5).dtype == dtype


def test_gradients_flow_where_values_do() -> None:
    x = torch.ones(4, 5, 6, requires_grad=True)
    out = dropped(x, 0.5, 0.3)
    out.sum().backward()
    assert torch.equal(x.grad, out.detach())


# ---------------------------------------------------------------- in which company


def test_an_image_loses_the_same_alone_and_in_a_batch() -> None:
    x = images(9, 7, 8)
    drop = Drop(0.3, 0.3)
    with keyed_drops(drop, keys(9)):
        whole = drop(x)
    for size in (1, 2, 5):
        parts = []
        for part, some in zip(x.split(size), keys(9).split(size), strict=True):
            with keyed_drops(drop, some):
                parts.append(drop(part))
        assert torch.equal(torch.cat(parts), whole)
    assert len({tuple((row == 0).flatten().tolist()) for row in whole}) > 1  # and not all of them lose the same


def test_a_whole_model_gives_an_image_the_same_alone_and_in_a_batch() -> None:
    model, x, own = tiny_vit(**DROPPING, depth=4).train(), images(6, 3, 32, 32), keys(6)
    whole = keyed(model, x, own)
    alone = [keyed(model, x[number : number + 1], own[number : number + 1]) for number in range(6)]
    assert relative_error(torch.cat(alone), whole) < 1e-5
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    assert relative_error(keyed(model, x[order], own[order]), whole[order]) < 1e-5
    assert relative_error(keyed(model, x, keys(6, seed=1)), whole) > 1e-2


def test_every_place_of_a_model_loses_something_else() -> None:
    model = tiny_vit(**DROPPING).train()
    places = [module for module in model.modules() if isinstance(module, Drop)]
    assert len(places) == 1 + 3 * len(model.blocks)
    ones = torch.ones(5, 10, 10)
    with keyed_drops(model, keys(5)):
        assert len(torch.stack([place.keys for place in places]).unique()) == 5 * len(places)
        first, second = (Drop.forward(place, ones) for place in places[:2])
    assert not torch.equal(first, second)


def test_a_model_that_is_run_twice_with_the_same_keys() -> None:
    model, x = tiny_vit(**DROPPING).train(), images(4, 3, 32, 32)
    with keyed_drops(model, keys(4)):
        assert torch.equal(outputs(model, x), outputs(model, x))


def test_recomputing_activations_changes_no_gradient() -> None:
    model, x = tiny_vit(**DROPPING, depth=3).train(), images(4, 3, 32, 32)
    found = []
    for recompute in (False, True):
        model.checkpoint_activations = recompute
        model.zero_grad()
        with keyed_drops(model, keys(4)):
            model(x).square().sum().backward()
        found.append({name: p.grad.clone() for name, p in model.named_parameters()})
    for name, gradient in found[0].items():
        assert torch.equal(gradient, found[1][name]), name


# ---------------------------------------------------------------- and when not


def test_evaluation_loses_nothing() -> None:
    x = images(4, 3, 32, 32)
    plain = outputs(tiny_vit(), x)
    model = tiny_vit(**DROPPING).eval()
    assert torch.equal(keyed(model, x, keys(4)), plain)
    assert torch.equal(outputs(model, x), plain)


def test_without_keys_the_generator_of_torch_draws() -> None:
    model, x = tiny_vit(**DROPPING).train(), images(4, 3, 32, 32)
    with_keys = keyed(model, x, keys(4))
    torch.manual_seed(5)
    first, second = outputs(model, x), outputs(model, x)
    assert not torch.equal(first, second)
    assert not torch.equal(first, with_keys)
    torch.manual_seed(5)
    assert torch.equal(outputs(model, x), first)


def test_dropout_without_keys_is_that_of_torch() -> None:
    x = images(4, 5, 6)
    torch.manual_seed(3)
    ours = Drop(0.4)(x)
    torch.manual_seed(3)
    assert torch.equal(ours, F.dropout(x, 0.4))


@pytest.mark.parametrize("changes", [{}, {"backbone": SMALL_RESNET, "patch_size": 1}])
def test_a_model_that_drops_nothing(changes: dict) -> None:
    model, x = tiny_vit(**changes).train(), images(2, 3, 32, 32)
    assert torch.equal(keyed(model, x, keys(2)), outputs(model, x))


def test_keys_are_no_part_of_the_weights() -> None:
    model = tiny_vit(**DROPPING).train()
    names = set(model.state_dict())
    with keyed_drops(model, keys(3)):
        assert set(model.state_dict()) == names


# ---------------------------------------------------------------- and for how long


def test_keys_do_not_outlive_their_batch() -> None:
    model, x = tiny_vit(**DROPPING).train(), images(4, 3, 32, 32)
    keyed(model, x, keys(4))
    assert outputs(model, x[:1]).shape == (1, 7)
    torch.manual_seed(2)
    first = outputs(model, x)
    assert not torch.equal(first, outputs(model, x))  # drawn by torch again


def test_keys_do_not_outlive_an_error() -> None:
    model, x = tiny_vit(**DROPPING).train(), images(4, 3, 32, 32)
    with pytest.raises(KeyError), keyed_drops(model, keys(4)):
        raise KeyError
    assert outputs(model, x[:1]).shape == (1, 7)


def test_keys_within_keys() -> None:
    model, x = tiny_vit(**DROPPING).train(), images(4, 3, 32, 32)
    with keyed_drops(model, keys(4)):
        before = outputs(model, x)
        keyed(model, x[:2], keys(2, seed=1))
        assert torch.equal(outputs(model, x), before)


@pytest.mark.parametrize("rates", [{"dropout": 0.2}, {"stochastic_depth": 0.5}])
@pytest.mark.parametrize("count", [1, 3])
def test_keys_for_another_number_of_images(rates: dict[str, float], count: int) -> None:
    """Broadcasting would give as many logits as there are keys."""
    model, x = tiny_vit(**rates).train(), images(count, 3, 32, 32)
    with pytest.raises(VitreousError, match=f"{count} images with 4 keys"):
        keyed(model, x, keys(4))
    with pytest.raises(VitreousError, match="4 images with 1 keys"):
        keyed(model, images(4, 3, 32, 32), keys(1))
