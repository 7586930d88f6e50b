"""Settings of a sweep: values, ranges, draws, and mistakes."""

import math
from typing import Any

import pytest

from vitreous import VitreousError
from vitreous.experiments.sweeps.search_space import (
    SearchSpace,
    ValueRange,
    combination_label,
    make_search_space,
    split_arguments,
)


def grid(**values: Any) -> SearchSpace:
    return make_search_space(values, None, 20, 0)


def drawn(draws: int = 20, seed: int = 0, **values: Any) -> SearchSpace:
    return make_search_space(None, values, draws, seed)


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("lr", "1e-3,3e-3", (1e-3, 3e-3)),
        ("lr", [1, 0.5], (1.0, 0.5)),
        ("model", "Ti/16, S/16", ("Ti/16", "S/16")),
        ("width", "16,32", (16, 32)),
        ("width", range(8, 24, 8), (8, 16)),
        ("flip", "true,False", (True, False)),
        ("clip", "none,1", (None, 1.0)),
        ("position", "none,relative", ("none", "relative")),
        ("image_size", "96,96x128", (96, (96, 128))),
        ("duration", "10,20 epochs,300 steps", ("10 epochs", "20 epochs", "300 steps")),
        ("freeze", "none,!head.*", ((), ("!head.*",))),
        ("betas", [(0.9, 0.99), [0.9, 0.999]], ((0.9, 0.99), (0.9, 0.999))),
        ("start", ["none", "vitreous-mini"], ("none", "vitreous-mini")),
    ],
)
def test_values_have_the_type_of_the_setting(name: str, given: Any, expected: tuple[Any, ...]) -> None:
    found = grid(**{name: given})
    assert found.values == {name: expected}
    assert [combination[name] for combination in found.combinations()] == list(expected)


def test_names_of_flags() -> None:
    assert list(grid(**{"weight-decay": "0,0.1", "epochs": "1,2", "from": "none"}).values) == [
        "weight_decay",
        "duration",
        "start",
    ]


def test_a_grid_has_all_combinations() -> None:
    found = grid(lr="0.1,0.2", width="16,32", clip="none").combinations()
    assert [combination_label(one) for one in found] == [
        "lr=0.1, width=16, clip=none",
        "lr=0.1, width=32, clip=none",
        "lr=0.2, width=16, clip=none",
        "lr=0.2, width=32, clip=none",
    ]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("lr", "1e-4..1e-2", ValueRange(1e-4, 1e-2, "log", False)),
        ("weight_decay", "1e-3..0.1", ValueRange(1e-3, 0.1, "log", False)),
        ("weight_decay", "linear:0..0.1", ValueRange(0, 0.1, "linear", False)),
        ("dropout", "0..0.3", ValueRange(0, 0.3, "linear", False)),
        ("dropout", ".1...3", ValueRange(0.1, 0.3, "linear", False)),
        ("width", "log:16..1024", ValueRange(16, 1024, "log", True)),
        ("depth", "2..4", ValueRange(2, 4, "linear", True)),
    ],
)
def test_ranges(name: str, text: str, expected: ValueRange) -> None:
    assert drawn(**{name: text}).values == {name: expected}


def test_draws() -> None:
    space = drawn(400, lr="1e-4..1e-2", width="16,32", depth="2..4", dropout="0..0.3")
    found = space.combinations()
    assert found == drawn(400, lr="1e-4..1e-2", width="16,32", depth="2..4", dropout="0..0.3").combinations()
    assert found[:7] == drawn(7, lr="1e-4..1e-2", width="16,32", depth="2..4", dropout="0..0.3").combinations()
    assert found != drawn(400, 1, lr="1e-4..1e-2", width="16,32", depth="2..4", dropout="0..0.3").combinations()
    rates = [one["lr"] for one in found]
    assert all(1e-4 <= rate <= 1e-2 and float(f"{rate:.3g}") == rate for rate in rates)
    assert abs(sum(map(math.log10, rates)) / 400 + 3) < 0.1  # log-uniform: the mean of the logarithms is in the middle
    assert abs(sum(one["dropout"] for one in found) / 400 - 0.15) < 0.02
    assert {one["width"] for one in found} == {16, 32}
    assert {one["depth"] for one in found} == {2, 3, 4}
    assert all(type(one["depth"]) is int for one in found)


def test_combinations_are_drawn_once() -> None:
    found = drawn(10, width="16,32", depth="1,2").combinations()
    assert len(found) == 4
    assert len({combination_label(one) for one in found}) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"grid": {"lrr": "1"}}, "grid: unknown setting 'lrr'; did you mean 'lr'?"),
        ({"drawn": {"batchsize": "1,2"}}, "random: unknown setting 'batchsize'; did you mean 'batch_size'?"),
        ({"grid": {"lr": "fast"}}, "grid: lr = 'fast': expected a number"),
        ({"grid": {"lr": "nan,1"}}, "lr = nan"),
        ({"grid": {"width": "8.5"}}, "width = '8.5': expected an integer"),
        ({"grid": {"schedule": "cosin,linear"}}, "schedule = 'cosin': expected one of 'cosine', 'linear'"),
        ({"grid": {"lr": "1e-3,0.001"}}, "lr = 0.001 is given twice"),
        ({"grid": {"lr": []}}, "expected a list of values"),
        ({"grid": {"lr": 3}}, "expected a list of values"),
        ({"grid": {"epochs": "1", "duration": "2"}}, "duration is given twice"),
        ({"grid": {"lr": "1e-4..1e-2"}}, "is a range: list its values"),
        ({"grid": ["lr"]}, "expected a dict"),
        ({"drawn": {"lr": "1e-2..1e-4"}}, "the first number must be below the second"),
        ({"drawn": {"lr": "0..1"}}, "lr=linear:0..1 draws uniformly"),
        ({"drawn": {"lr": "a..b"}}, "expected two numbers"),
        ({"drawn": {"width": "1.5..3"}}, "expected two whole numbers"),
        ({"grid": {"seed": "1,2"}}, "seed cannot be swept: --seeds N"),
        ({"grid": {"best_by": "top1,loss"}}, "best_by cannot be swept"),
        ({"grid": {"val_fraction": "0.1,0.2"}}, "changes the validation images"),
        ({"grid": {"device": "cpu,cuda"}}, "it has no effect on the weights"),
        ({}, "give the settings to vary"),
        ({"grid": {"lr": "1"}, "drawn": {"lr": "1..2"}}, "not both"),
        ({"grid": {"lr": range(200), "width": range(1, 200)}}, "39,800 combinations of settings are too many"),
    ],
)
def test_mistakes(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(VitreousError) as raised:
        make_search_space(arguments.get("grid"), arguments.get("drawn"), 20, 0).combinations()
    assert message in str(raised.value)


def test_arguments() -> None:
    assert split_arguments(["lr=1,2", "lr-multipliers=head.*=10"], "--grid") == {
        "lr": "1,2",
        "lr-multipliers": "head.*=10",
    }
    for arguments, message in (
        (["20", "lr=1..2"], "--random 20: expected SETTING=VALUES, such as lr=1e-4..1e-2; --draws N sets the number"),
        (["lr"], "--random lr: expected SETTING=VALUES"),
        (["lr="], "--random lr=: expected"),
        (["lr=1", "lr=2"], "--random: lr is given twice"),
    ):
        with pytest.raises(VitreousError) as raised:
            split_arguments(arguments, "--random")
        assert message in str(raised.value)
