"""EMA of the weights, compared with an average in float64."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers import images, tiny_vit
from vitreous.errors import VitreousError
from vitreous.training.optim.ema import Ema


def bits(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def wander(model: nn.Module) -> None:
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p))


@pytest.mark.parametrize("decay", [0.3, 0.9, 0.9999])
def test_average_follows_the_weights(decay: float) -> None:
    model = tiny_vit()
    ema, mean = Ema(model, decay), {name: p.double() for name, p in bits(model).items()}
    for step in range(20):
        wander(model)
        ema.update(step)
        rate = min(decay, (1 + step) / (10 + step))
        mean = {name: rate * mean[name] + (1 - rate) * p.double() for name, p in bits(model).items()}
    for name, value in ema.state_dict().items():
        torch.testing.assert_close(value, mean[name].float())


def test_average_of_a_constant() -> None:
    model = tiny_vit()
    ema = Ema(model, 0.999)
    for step in range(5):
        ema.update(step)
    assert all(torch.equal(ema.shadow[name], p) for name, p in bits(model).items())


def test_applied_restores_the_weights_exactly() -> None:
    model, x = tiny_vit(), images(2, 3, 32, 32)
    ema = Ema(model, 0.9)
    first = model(x)
    wander(model)
    raw, storage = bits(model), [p.data_ptr() for p in model.parameters()]
    with ema.applied():
        assert torch.equal(model(x), first)  # not updated yet: the average equals the old weights
    assert all(torch.equal(p, raw[name]) for name, p in bits(model).items())
    assert [p.data_ptr() for p in model.parameters()] == storage  # optimisers and compiled graphs refer to it

    def fail() -> None:
        with ema.applied(), torch.inference_mode():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert all(torch.equal(p, raw[name]) for name, p in bits(model).items())
    model(x).sum().backward()


def test_frozen_parameters_are_not_copied() -> None:
    model = tiny_vit()
    model.patch_embed.requires_grad_(False)
    ema = Ema(model, 0.9)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert set(ema.state_dict()) == trained
    assert not any(name.startswith("patch_embed") for name in trained)
    before = model.patch_embed.proj.weight.detach().clone()
    with ema.applied():
        assert torch.equal(model.patch_embed.proj.weight, before)


def test_state_dict_round_trip_is_exact() -> None:
    model = tiny_vit()
    ema = Ema(model, 0.9)
    for step in range(3):
        wander(model)
        ema.update(step)
    kept = {name: value.clone() for name, value in ema.state_dict().items()}
    other = tiny_vit()
    other.load_state_dict(model.state_dict())
    resumed = Ema(other, 0.9)
    resumed.load_state_dict(kept)
    for step in range(3, 6):
        for m, e in ((model, ema), (other, resumed)):
            torch.manual_seed(step)
            wander(m)
            e.update(step)
    assert all(torch.equal(value, resumed.shadow[name]) for name, value in ema.shadow.items())


def test_half_precision_weights_are_averaged_in_float32() -> None:
    model = nn.Linear(3, 3).bfloat16()
    ema = Ema(model, 0.5)
    wander(model)
    raw = bits(model)
    ema.update(100)
    assert ema.shadow["weight"].dtype == torch.float32
    with ema.applied():
        assert model.weight.dtype == torch.bfloat16
    assert torch.equal(model.weight, raw["weight"])


@pytest.mark.parametrize("decay", [0, 1, -0.1, 1.5, float("nan")])
def test_invalid_decay_is_an_error(decay: Any) -> None:
    with pytest.raises(VitreousError, match=r"ema = .*between 0 and 1"):
        Ema(nn.Linear(2, 2), decay)


def test_state_of_another_model_is_an_error() -> None:
    ema = Ema(nn.Linear(2, 2), 0.9)
    state = ema.state_dict()
    with pytest.raises(VitreousError, match="weight' missing in the state, 'x' not in this model"):
        ema.load_state_dict({"bias": state["bias"], "x": state["bias"]})
    before = state["bias"].clone()
    with pytest.raises(VitreousError, match=r"weight is \(3, 2\)"):
        ema.load_state_dict({"bias": before + 1, "weight": torch.zeros(3, 2)})
    with pytest.raises(VitreousError, match="float64"):
        ema.load_state_dict({"bias": before + 1, "weight": torch.zeros(2, 2).double()})
    assert torch.equal(ema.shadow["bias"], before)  # nothing was copied
