"""Learning-rate factors step by step, compared with tables and sums."""

import math
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitreous.errors import VitreousError
from vitreous.training.config import Schedule
from vitreous.training.optim.schedules import build_schedule


def table(total: int, **options: Any) -> list[float]:
    """Return the factors of all steps, for batches of 10 from 100 images."""
    settings = Schedule(**{"warmup": "0%", **options})
    factor = build_schedule(settings, total_steps=total, batch_size=10, images=100)
    return [factor(step) for step in range(total)]


@pytest.mark.parametrize(
    ("total", "options", "expected"),
    [
        (5, {"schedule": "linear"}, [1, 0.75, 0.5, 0.25, 0]),
        (5, {"schedule": "linear", "final_lr": 0.2}, [1, 0.8, 0.6, 0.4, 0.2]),
        (6, {"schedule": "linear", "warmup": "2 steps"}, [0.5, 1, 0.75, 0.5, 0.25, 0]),
        (5, {"schedule": "cosine"}, [1, 0.5 + math.sqrt(0.125), 0.5, 0.5 - math.sqrt(0.125), 0]),
        (7, {"schedule": "cosine", "warmup": "5 steps"}, [0.2, 0.4, 0.6, 0.8, 1, 0.5, 0]),
        (3, {"schedule": "cosine", "warmup": "1 step", "final_lr": 0.1}, [1, 0.55, 0.1]),
        (4, {"schedule": "constant"}, [1, 1, 1, 1]),
        (4, {"schedule": "constant", "warmup": "50%"}, [0.5, 1, 1, 1]),
        (6, {"schedule": "constant", "warmup": "2 steps", "cooldown": "2 steps"}, [0.5, 1, 1, 1, 0.5, 0]),
        (4, {"schedule": "constant", "warmup": "2 steps", "cooldown": "2 steps"}, [0.5, 1, 0.5, 0]),
        (4, {"schedule": "constant", "cooldown": "100%"}, [0.75, 0.5, 0.25, 0]),
        (6, {"schedule": "constant", "cooldown": "40 examples", "final_lr": 0.2}, [1, 1, 0.8, 0.6, 0.4, 0.2]),
        (5, {"schedule": "rsqrt", "rsqrt_timescale": "1 step"}, [(1 / (1 + i)) ** 0.5 for i in range(5)]),
        (
            8,
            {"schedule": "rsqrt", "rsqrt_timescale": "3 steps", "warmup": "2 steps", "cooldown": "2 steps"},
            [0.5, 1, (3 / 4) ** 0.5, (3 / 5) ** 0.5, (3 / 6) ** 0.5, (3 / 7) ** 0.5, (3 / 7) ** 0.5 / 2, 0],
        ),
        (30, {"schedule": "linear", "warmup": "3 epochs"}, [(i + 1) / 30 for i in range(30)]),
        (1, {"schedule": "cosine"}, [1]),
        (1, {"schedule": "linear", "warmup": "1 step"}, [1]),
        (1, {"schedule": "constant", "cooldown": "1 step"}, [0]),
        (2, {"schedule": "linear"}, [1, 0]),
    ],
)
def test_factors_of_all_steps(total: int, options: dict[str, Any], expected: list[float]) -> None:
    assert table(total, **options) == pytest.approx(expected, abs=1e-12)


def test_cosine_equals_its_integrated_slope() -> None:
    total, warmup = 10_000, 500
    found = table(total, schedule="cosine", warmup=f"{warmup} steps")
    value, top = 1.0, warmup - 1
    width = math.pi / (total - 1 - top)
    for step in range(top + 1, total):
        value -= 0.5 * width * math.sin(width * (step - top - 0.5))
        assert found[step] == pytest.approx(value, abs=1e-5)


def test_rsqrt_timescale() -> None:
    found = table(2000, schedule="rsqrt", warmup="100 steps")  # timescale: 10%, 200 steps
    assert found[99] == 1
    assert found[99 + 200] == pytest.approx(math.sqrt(0.5))
    assert found[99 + 3 * 200] == pytest.approx(0.5)
    assert found[100] > 0.99


@given(
    st.integers(1, 400),
    st.integers(0, 400),
    st.integers(0, 400),
    st.sampled_from(["cosine", "linear", "constant", "rsqrt"]),
    st.floats(0, 1),
)
def test_factor_rises_in_warmup_and_never_after(
    total: int, warmup: int, cooldown: int, schedule: Any, final: float
) -> None:
    falls = schedule in ("cosine", "linear")
    options = {
        "schedule": schedule,
        "warmup": f"{warmup} steps",
        "cooldown": f"{0 if falls else cooldown} steps",
        "final_lr": final if falls else 0.0,
    }
    if warmup + (0 if falls else cooldown) > total:
        with pytest.raises(VitreousError, match=f"the whole run has {total}"):
            table(total, **options)
        return
    found = table(total, **options)
    top = max(warmup - 1, 0)
    assert found[: top + 1] == sorted(found[: top + 1])
    assert all(after <= before + 1e-12 for before, after in zip(found[top:], found[top + 1 :], strict=False))
    assert found[0] > 0 or total == 1 or total == cooldown == 1
    if warmup:
        assert found[0] == 1 / warmup
        assert found[top] == 1
    if (falls and total - 1 > top) or (not falls and cooldown):
        assert found[-1] == options["final_lr"]
    assert all(0 <= value <= 1 for value in found)


def test_schedule_depends_only_on_the_step() -> None:
    factor = build_schedule(Schedule(schedule="cosine", warmup="10%"), total_steps=100, batch_size=4, images=40)
    forwards = [factor(step) for step in range(100)]
    copy = pickle.loads(pickle.dumps(factor))
    assert [copy(step) for step in reversed(range(100))] == forwards[::-1]
    assert factor(100) == factor(10**9) == forwards[-1] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schedule": "cosine", "cooldown": "5%"}, "cooldown = '5%': cosine decays over the whole run"),
        ({"schedule": "linear", "cooldown": "1 step"}, "cooldown = '1 step': linear"),
        ({"schedule": "constant", "final_lr": 0.1}, "final_lr = 0.1: has no effect, since constant"),
        ({"schedule": "cosine", "final_lr": 1.5}, "final_lr = 1.5"),
        ({"schedule": "cosine", "final_lr": float("nan")}, "final_lr = nan"),
        (
            {"schedule": "cosine", "rsqrt_timescale": "20%"},
            "rsqrt_timescale = '20%': has no effect, since",
        ),
        ({"schedule": "rsqrt", "rsqrt_timescale": "0%"}, "rsqrt_timescale = '0%': expected more than 0"),
        ({"schedule": "rsqrt", "cooldown": "10%", "final_lr": 0.9}, "final_lr = 0.9: higher than 0.3"),
        ({"schedule": "cosine", "warmup": "101 steps"}, "a warm-up of 101 steps, but the whole run has 100"),
        ({"schedule": "constant", "warmup": "60%", "cooldown": "41%"}, "of 60 and a cool-down of 41 steps"),
        ({"schedule": "cosine", "warmup": "3 weeks"}, "warmup = '3 weeks'"),
        ({"schedule": "constant", "cooldown": "x"}, "cooldown = 'x'"),
        ({"schedule": "step"}, "schedule = 'step': expected one of cosine, linear, constant, rsqrt"),
        ({"schedule": None}, "have to be chosen"),
        ({"schedule": "cosine", "warmup": None}, "have to be chosen"),
    ],
)
def test_error_messages(options: dict[str, Any], message: str) -> None:
    with pytest.raises(VitreousError, match=message):
        table(100, **options)
