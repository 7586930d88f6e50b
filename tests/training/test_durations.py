"""Durations as text, compared with numbers computed by hand."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import vitreous
from vitreous.errors import VitreousError
from vitreous.training.config import Schedule, TrainConfig
from vitreous.training.durations import duration_steps, run_length


@pytest.mark.parametrize(
    ("duration", "expected"),
    [  # 1,000 images in batches of 50: 20 steps per epoch; 2,000 steps in total
        ("30 epochs", 600),
        ("30epochs", 600),
        ("30 EP", 600),
        ("  1\tEpoch\n", 20),
        ("30\u00a0epochs", 600),
        ("0.5 epochs", 10),
        (".25 ep", 5),
        ("30", 600),
        (30, 600),
        (1.5, 30),
        ("500 steps", 500),
        ("1 step", 1),
        ("1_500 steps", 1500),
        ("64000 examples", 1280),
        ("1e6 examples", 20_000),
        ("1E+6EXAMPLES", 20_000),
        ("2.5e-1 epochs", 5),
        ("300k examples", 6000),
        ("300 K examples", 6000),
        ("1.2M images", 24_000),
        ("2k steps", 2000),
        ("130 examples", 3),  # 2.6
        ("5%", 100),
        ("5 %", 100),
        ("12.5 percent", 250),
        ("100%", 2000),
        ("0%", 0),
        ("0 steps", 0),
        (0, 0),
        ("1 example", 1),  # rounding would give 0
        ("1e-9 epochs", 1),
        ("0.001%", 1),
        ("1e300 examples", None),
        ("9e18 steps", None),
    ],
)
def test_number_of_steps(duration: Any, expected: int | None) -> None:
    if expected is None:
        with pytest.raises(VitreousError, match="longer than any run"):
            duration_steps(duration, batch_size=50, images=1000, total_steps=2000)
    else:
        assert duration_steps(duration, batch_size=50, images=1000, total_steps=2000) == expected


def test_epochs_of_partial_batches() -> None:
    assert duration_steps("3 epochs", batch_size=64, images=100) == 5  # 300 / 64 = 4.69
    assert duration_steps("1 epoch", batch_size=512, images=10) == 1
    assert duration_steps("100 epochs", batch_size=512, images=10) == 2


def test_number_without_unit() -> None:
    assert duration_steps("7", batch_size=4, images=40, default_unit="steps") == 7
    assert duration_steps(50, batch_size=4, images=40, default_unit="percent", total_steps=9) == 4
    assert duration_steps("7 epochs", batch_size=4, images=40, default_unit="steps") == 70


@given(st.integers(1, 10**6), st.integers(1, 10**5), st.integers(1, 10**4))
def test_epochs_are_rounded_to_the_nearest_step(epochs: int, images: int, batch_size: int) -> None:
    found = duration_steps(f"{epochs} epochs", batch_size=batch_size, images=images)
    assert found >= 1
    assert found == 1 or abs(found * batch_size - epochs * images) <= batch_size / 2


@pytest.mark.parametrize(
    ("duration", "message"),
    [
        (
            "5 fortnights",
            "warmup = '5 fortnights': 'fortnights' is not a unit; use epochs, steps, examples or %",
        ),
        ("5 minutes", "'minutes' is not a unit"),
        ("5k", "'k' is not a unit"),
        ("5k%", "'k%' is not a unit"),
        ("64,000 examples", "',000 examples' is not a unit"),
        ("5 épochs", "'épochs' is not a unit"),
        ("-1 epochs", "0 or more"),
        (-3, "0 or more"),
        ("-5%", "0 or more"),
        ("nan epochs", "finite"),
        (float("nan"), "finite"),
        ("inf steps", "finite"),
        ("1e400 examples", "finite"),
        (10**400, "finite"),
        ("epochs", "a number and a unit, such as '30 epochs'"),
        ("", "a number and a unit"),
        ("30 epochs 5 steps", "'epochs 5 steps' is not a unit"),
        (True, "a number and a unit"),
        (None, "a number and a unit"),
        (["5"], "a number and a unit"),
    ],
)
def test_error_messages(duration: Any, message: str) -> None:
    with pytest.raises(VitreousError) as error:
        duration_steps(duration, batch_size=50, images=1000, total_steps=2000)
    assert message in str(error.value)


def test_percentage_without_total_is_an_error() -> None:
    with pytest.raises(VitreousError, match="cooldown = '5%': a percentage refers to the whole run"):
        duration_steps("5%", batch_size=50, images=1000, name="cooldown")
    with pytest.raises(VitreousError, match="duration = '5%'"):
        run_length("5%", batch_size=50, images=1000)


@pytest.mark.parametrize("duration", ["0 epochs", "0", 0, "0 steps", 0.0])
def test_run_of_zero_steps_is_an_error(duration: Any) -> None:
    with pytest.raises(VitreousError, match=r"duration = .*at least one step"):
        run_length(duration, batch_size=50, images=1000)


def test_run_length() -> None:
    assert run_length("3", batch_size=50, images=1000) == 60
    assert run_length("1 example", batch_size=50, images=1000) == 1


def test_no_images_or_batch_size_is_an_error() -> None:
    with pytest.raises(VitreousError, match="no training images"):
        duration_steps("1 epoch", batch_size=4, images=0)
    assert duration_steps("10 steps", batch_size=4, images=0) == 10
    with pytest.raises(VitreousError, match="batch_size = 0"):
        duration_steps("1 epoch", batch_size=0, images=10)


def test_durations_and_schedules_do_not_import_torch() -> None:
    code = "import sys, vitreous.training.durations, vitreous.training.optim.schedules; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


# ---------------------------------------------------------------- stored with their unit


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (3, "3 epochs"),
        ("3", "3 epochs"),
        (1, "1 epoch"),
        (1.5, "1.5 epochs"),
        ("0", "0 epochs"),
        ("5%", "5%"),
        ("500 steps", "500 steps"),
        ("1e6 examples", "1e6 examples"),
        ("2k steps", "2k steps"),
        ("forever", "forever"),  # an error when it is used
    ],
)
@pytest.mark.parametrize("field", ["duration", "warmup", "cooldown", "evaluate_every", "candidate_duration"])
def test_number_alone_is_stored_as_epochs(field: str, given: Any, shown: str) -> None:
    assert TrainConfig().with_(**{field: given}).flat()[field] == shown
    stored = {**TrainConfig().flat(), field: str(given)}  # the config.json of a run
    assert TrainConfig.from_flat(stored).flat()[field] == shown


def test_progressive_number_alone_is_stored_as_epochs() -> None:
    config = TrainConfig().with_(progressive=["16@2", "24@30%"])
    assert config.schedule.progressive == ("16@2 epochs", "24@30%")


def test_run_prints_its_epochs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = TrainConfig(schedule=Schedule(duration="0.05", batch_size=16))
    vitreous.train("digits", config, device="cpu", out=tmp_path / "run")
    assert "images (0.05 epochs)" in capsys.readouterr().out
