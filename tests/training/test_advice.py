"""Advice at the end of a run: the most promising changes first, with commands that work as shown."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vitreous import TrainConfig, cli
from vitreous.data.arrays import ArraySource
from vitreous.data.dataset import DataSet
from vitreous.evaluation.extremes import Example
from vitreous.evaluation.metrics import ClassScore, Result
from vitreous.training.advice import Advice, give_advice
from vitreous.training.distributed import World
from vitreous.training.initial_weights import load_initial_weights
from vitreous.training.outcome import Outcome
from vitreous.training.plan import Plan, make_plan

SOURCE = "/data/my photos"
TYPED = shlex.join(["vitreous", "train", "my photos"])


def data(counts: tuple[int, int] = (20, 20), side: int = 96) -> DataSet:
    labels = torch.cat([torch.full((count,), label) for label, count in enumerate(counts)])
    pixels = np.zeros((len(labels), side, side, 3), np.uint8)
    return DataSet("photos", ("cats", "dogs"), 3, ArraySource(pixels, labels, "x"))


def plan_of(images: DataSet, **given: Any) -> Plan:
    config = TrainConfig().with_(**{"device": "cpu", "duration": "10 epochs", "start": "vitreous-mini"} | given)
    start = None
    if config.architecture.start != "none":
        start, _ = load_initial_weights(config, 2)
    else:
        config = config.with_(start=None, model="Ti/16")
    return make_plan(images, config, World(), start)


def outcome(top1: float = 0.8, split: str = "test") -> Outcome:
    scores = (ClassScore(0, 10, 9, 0.9, 0.9, 0.9), ClassScore(1, 10, 7, 0.7, 0.8, 0.7))
    result = Result(20, 0.5, top1, None, 0.8, None, scores, ((9, 1), (3, 7)))
    return Outcome(Path("runs/a run"), split, result, 20, 1.0)


def advice_of(
    plan: Plan, images: DataSet, result: Outcome | None = None, command: str = TYPED, **changes: Any
) -> tuple[Advice, ...]:
    given: dict[str, Any] = {"records": [], "worst": []} | changes
    choices = [{"field": choice.field} for choice in plan.choices]
    description = {"command": command, "data": SOURCE, "choices": choices}
    return give_advice(images, plan, description, result or outcome(), **given)


def evaluations(values: list[float]) -> list[dict[str, Any]]:
    return [{"kind": "eval", "step": 2 * number + 2, "weights": "raw", "top1": v} for number, v in enumerate(values)]


def sure(probability: float, truth: int = 0) -> Example:
    return Example(0, "", (truth,), ((1 - truth, probability), (truth, 1 - probability)), 2.0)


def test_weights_are_the_first_advice() -> None:
    images = data()
    assert advice_of(plan_of(images), images)[0].command == "vitreous train 'my photos' --from deit-tiny"
    scratch = plan_of(images, start="none")
    assert advice_of(scratch, images)[0].command == "vitreous train 'my photos' --from vitreous-mini"


def test_longer_run_if_the_last_evaluations_are_the_best() -> None:
    images = data()
    plan = replace(plan_of(images), steps=20)
    rising = advice_of(plan, images, records=evaluations([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.79, 0.8]))
    epochs = 2 * 20 * plan.batch_size / 40
    assert rising[1].command == f"vitreous train --resume 'runs/a run' --epochs {epochs:.0f}"
    flat = advice_of(plan, images, records=evaluations([0.1, 0.8, 0.8, 0.8, 0.7, 0.7, 0.7, 0.7, 0.7, 0.8]))
    assert not any("--resume" in one.command for one in flat)


def test_suspicious_labels_need_sure_predictions() -> None:
    images = data()
    plan = plan_of(images)
    found = advice_of(plan, images, worst=[sure(0.95), sure(0.85), sure(0.6)])
    assert found[1] == Advice(
        "2 test images contradict their label with a probability of 80% or more; some labels may be wrong",
        "vitreous data '/data/my photos' --check",
    )
    unsure = advice_of(plan, images, worst=[sure(0.95), sure(0.6), sure(0.7)])
    assert not any("contradict" in one.reason for one in unsure)


def test_unequal_classes() -> None:
    images = data((40, 4))
    given = plan_of(images, class_weights="none")
    assert advice_of(given, images)[1].command == "vitreous train 'my photos' --class-weights balanced"
    assert not any("balanced" in one.command for one in advice_of(plan_of(images), images))  # they are weighted


def test_higher_resolution_and_class_with_the_lowest_recall() -> None:
    large, small = data(side=200), data()
    assert advice_of(plan_of(large), large)[1].command == "vitreous train 'my photos' --size 144"
    found = advice_of(plan_of(small), small)[1]
    assert found.reason.startswith("'dogs' has the lowest recall (70% of its test images, trained on 20)")


def test_no_advice_without_unseen_images_or_for_a_good_result() -> None:
    images = data()
    plan = plan_of(images)
    assert advice_of(plan, images, outcome(split="train")) == ()
    assert advice_of(plan, images, outcome(0.98)) == ()
    assert advice_of(plan, images, replace(outcome(), result=None)) == ()


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("vitreous train d --from none --lr 1e-3", "vitreous train d --lr 1e-3 --from deit-tiny"),
        ("vitreous train --from=none d --out runs/x", "vitreous train d --from deit-tiny"),
        ("vitreous train d --overwrite --out x --seed 3", "vitreous train d --seed 3 --from deit-tiny"),
        ("vitreous train d --size 104 104 --patch_size 8 --ema 0", "vitreous train d --ema 0 --from deit-tiny"),
        ("vitreous finetune d --from x --recipe lora", "vitreous finetune d --recipe lora --from deit-tiny"),
        ("vitreous train d --recipe small_folder", "vitreous train d --recipe small_folder --from deit-tiny"),
        ("vitreous train d --recipe digits_transfer", "vitreous train d --from deit-tiny"),  # its size is 32 px
    ],
)
def test_commands_keep_the_other_options(typed: str, shown: str) -> None:
    images = data()
    assert advice_of(plan_of(images), images, command=typed)[0].command == shown


@pytest.mark.parametrize("typed", ["vitreous train --resume runs/a", "python3 train.py"])
def test_settings_of_a_run_from_python_are_shown_as_flags(typed: str) -> None:
    images = data((40, 4))
    given = {"device": "cpu", "duration": "10 epochs", "class_weights": "none", "freeze": ("blocks.0.*", "head.*")}
    plan = plan_of(images, **given, balanced=False, betas=(0.9, 0.99), flip=False, clip=None)
    first, second = advice_of(plan, images, command=typed)
    assert shlex.split(first.command)[:3] == ["vitreous", "train", SOURCE]
    words = shlex.split(second.command)
    config = parsed_config(words)
    for name, value in {**given, "class_weights": "balanced", "betas": (0.9, 0.99), "start": "vitreous-mini"}.items():
        assert config.flat()[name] == value, name
    assert config.augmentation.flip is False
    assert config.optimiser.clip is None
    assert config.optimiser.lr is None  # it was chosen from the data


def parsed_config(words: list[str]) -> TrainConfig:
    """The config of the command line `words`."""
    found: list[TrainConfig] = []
    module = sys.modules["vitreous.training.train"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "train", lambda data, config, overwrite: found.append(config))
        cli.main(words[1:])
    return found[0]


@pytest.mark.parametrize(
    "typed",
    [
        "vitreous train d --model BiT-R50x1 --size 50 --lr 1e-3",
        "vitreous train d --recipe cifar10_fast --lr 1e-3",
        "vitreous train d --recipe=digits --pool map --lr 1e-3",
        "vitreous train d --from none --image-size 50 --lr 1e-3",
    ],
)
def test_other_weights_replace_the_options_of_the_model(typed: str) -> None:
    """--from vitreous-mini with a model or size that it does not have would be an error."""
    images = data()
    scratch = plan_of(images, start="none")
    assert advice_of(scratch, images, command=typed)[0].command == "vitreous train d --lr 1e-3 --from vitreous-mini"


def test_check_command_reads_the_same_images() -> None:
    images = data()
    chosen = {"only_classes": ("a", "b c"), "class_level": 2, "allow_outside_files": True}
    plan = plan_of(images, label_column="a label", **chosen)
    shown = (
        "vitreous data '/data/my photos' --label-column 'a label' --only-classes a 'b c' --class-level 2"
        " --allow-outside-files --check"
    )
    assert advice_of(plan, images)[1].command == shown


def test_new_image_size_replaces_both_numbers() -> None:
    images = data(side=300)
    found = advice_of(plan_of(images), images, command="vitreous train --image-size 96 96 d")
    assert found[1].command == "vitreous train d --size 144"


def test_a_budget_that_is_too_short_is_the_first_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    images = data()
    monkeypatch.setattr("vitreous.training.budget.MEASURED_SECONDS", 0.01)
    short = plan_of(images, duration=None, budget="1s", batch_size=4)
    found = advice_of(short, images, command="vitreous train d --budget 1s")
    assert found[0] == Advice("only 0.1 epochs fit into the time budget", "vitreous train d --budget 1h")
    longer = advice_of(replace(short, seconds=6_000.0), images, command="vitreous train d --budget 2h")
    assert longer[0].command == "vitreous train d --budget 10h"  # not less than before
    chosen = plan_of(images, duration="1 step")  # the user's own choice
    assert not any("--budget" in one.command for one in advice_of(chosen, images))
