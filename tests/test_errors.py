"""Error messages show any value in a short form."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import vitreous
from vitreous import Preprocessing, TrainConfig, VitreousError, create
from vitreous.errors import brief
from vitreous.inspection import rollout
from vitreous.utils.sizes import pair


class Rude:
    def __repr__(self) -> str:
        raise RuntimeError("no")


LARGE = nn.Sequential(*(nn.Linear(4, 4) for _ in range(50)))
ANYTHING = [LARGE, [LARGE] * 9, torch.zeros(9, 9), np.zeros((99, 99)), "x" * 5000, list(range(5000)), object(), Rude()]


@pytest.mark.parametrize("value", ANYTHING, ids=lambda value: type(value).__name__)
def test_long_values_are_abbreviated(value: Any) -> None:
    text = brief(value)
    assert len(text) < 120
    assert "\n" not in text
    assert " at 0x" not in text


@pytest.mark.parametrize("value", ["S/16", 3, 0.5, None, True, (1, 2), [1, 2], torch.int64, {"a": 1}])
def test_short_values_are_shown_unchanged(value: Any) -> None:
    assert brief(value) == repr(value)


def test_long_values_are_described() -> None:
    assert brief(LARGE) == "a Sequential"
    assert brief(torch.zeros(2, 3)) == "a Tensor of shape (2, 3)"
    assert brief(Rude) == "the class Rude"


MODEL = create("Ti/16", image_size=32, num_classes=3)
PLACES = {
    "train": lambda value: vitreous.train("digits", model=value),
    "start": lambda value: vitreous.finetune("digits", value),
    "config": lambda value: TrainConfig().with_(lr=value),
    "duration": lambda value: TrainConfig().with_(duration=value),
    "create": vitreous.create,
    "field": lambda value: vitreous.ViTConfig(width=value),
    "size": pair,
    "load": lambda value: vitreous.load("vitreous-mini", num_classes=value),
    "dtype": lambda value: vitreous.load("vitreous-mini", dtype=value),
    "preprocessing": Preprocessing,
    "interpolation": lambda value: Preprocessing(224, interpolation=value),
    "precision": lambda value: vitreous.accelerate(MODEL, value),
    "layers": lambda value: MODEL.intermediates(torch.zeros(1, 3, 32, 32), value),
    "rollout": lambda value: rollout(MODEL, torch.zeros(1, 3, 32, 32), fusion=value),
}


@pytest.mark.parametrize("call", PLACES.values(), ids=PLACES)
def test_a_module_is_not_printed_in_full(call: Any) -> None:
    with pytest.raises(VitreousError) as error:
        call(LARGE)
    assert len(str(error.value)) < 300
    assert "\n" not in str(error.value)
    assert "Sequential" in str(error.value)


def test_a_model_in_a_config_is_named_by_text() -> None:
    with pytest.raises(VitreousError, match=r"model = a VisionTransformer: expected a name such as 'S/16'"):
        TrainConfig().with_(model=MODEL)


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("lr", "fast", "a number or None"),
        ("batch_size", 1.5, "an integer or None"),
        ("flip", 1, "True or False or None"),
        ("optimiser", "adam", "one of 'adamw', 'sgd', 'muon', 'lamb', .*; did you mean 'adamw'.*"),
        ("class_weights", "even", "one of 'none', 'balanced' or None"),
        ("betas", (0.9,), r"\(a number, a number\)"),
        ("freeze", "head", "a tuple in which each item is a string"),
    ],
)
def test_expected_types_in_words(field: str, value: Any, expected: str) -> None:
    with pytest.raises(VitreousError, match=f"{field} = .*: expected {expected}$"):
        TrainConfig().with_(**{field: value})


def test_very_long_messages_are_shortened() -> None:
    error = VitreousError("the file " + "9" * 100_000 + " is damaged")
    assert len(str(error)) < 4_100
    assert str(error).startswith("the file 999")
    assert str(error).endswith("999 is damaged")
    assert len(str(error.at("x" * 50_000))) < 4_100
    assert str(VitreousError("short")) == "short"
