"""The fuzz harness detects errors, excessive memory, hangs and crashes, and names the case."""

import os
import re
import signal
import time
from pathlib import Path

import pytest

import fuzz_harness
from fuzz_harness import PLAN, Case, Work, attempt, endure, fuzz
from vitreous.errors import VitreousError


def raise_other_error() -> None:
    attempt(int, [])


def take_memory() -> None:
    assert b"1" * (3 << 25)


def take_more_memory_than_there_is() -> None:
    assert b"1" * (1 << 32)


def refuse_for_lack_of_memory() -> None:
    def read() -> None:
        try:
            take_more_memory_than_there_is()
        except MemoryError:
            raise VitreousError("too large") from None

    attempt(read)


def compute() -> None:
    end = time.process_time() + 0.7
    while time.process_time() < end:
        pass


def crash() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


MISTAKES = {
    raise_other_error: "TypeError",
    take_memory: "bytes of memory more than its 5",
    take_more_memory_than_there_is: "MemoryError",
    refuse_for_lack_of_memory: "out of memory",
    compute: "took 0.",
    lambda: time.sleep(0.7): "took 0.",
    crash: "kills the process (-9)",
}


def test_a_faulty_case_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz_harness, "SECONDS", 0.5)
    monkeypatch.setattr(fuzz_harness, "HANGS", 40)
    monkeypatch.setattr(fuzz_harness, "BYTES", 1 << 26)
    mistakes = list(MISTAKES)

    def prepare(case: Case) -> Work:
        return Work(5, mistakes[case.seed // 2] if case.seed % 2 else lambda: None)

    cases = [Case("x", number) for number in range(2 * len(mistakes) + 1)]
    ended = dict(endure(cases, prepare))
    assert list(ended) == cases
    for case, (wrong, *_) in ended.items():
        expected = MISTAKES[mistakes[case.seed // 2]] if case.seed % 2 else ""
        assert expected in wrong, (case, wrong)
        assert bool(expected) == bool(wrong), (case, wrong)


def test_a_hanging_case_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz_harness, "HANGS", 0.2)
    cases = [Case("x", number) for number in range(3)]
    found = endure(cases, lambda case: Work(0, lambda: time.sleep(60 if case.seed == 1 else 0)))
    assert [ended.wrong for _, ended in found] == ["", "hangs", ""]


def test_a_failure_prints_how_to_repeat_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz_harness, "TALLIES", [])
    monkeypatch.setattr(fuzz_harness, "TIMES", 1)
    kinds = {form: [f"{form} one", f"{form} two"] for form in PLAN["data"]}

    def prepare(case: Case) -> Work:
        return Work(0, raise_other_error if case.kind == "tar two" and case.seed % 8 == 0 else lambda: None)

    with pytest.raises(AssertionError, match=r"VITREOUS_FUZZ_CASE='tar two:\d+' make fuzz: Traceback") as caught:
        fuzz("data", kinds, prepare)
    case = re.search("CASE='(.*?)'", str(caught.value))
    assert case is not None
    monkeypatch.setattr(fuzz_harness, "ONLY", case[1])
    with pytest.raises(AssertionError, match="1 of 1 cases"):
        fuzz("data", kinds, prepare)
    first, again = fuzz_harness.TALLIES
    assert (first.cases, dict(again.cases)) == (PLAN["data"], {"tar": 1})


def test_make_fuzz_has_enough_cases_of_every_format() -> None:
    found = re.search(r"VITREOUS_FUZZ=(\d+)", (Path(__file__).parents[1] / "Makefile").read_text())
    assert found is not None
    cases = {
        form: int(found[1]) * sum(plan.get(form, 0) for plan in PLAN.values())
        for form in ("pickled", "zipped", "tar", "Parquet", "CSV", "JSON")
    }
    assert sum(cases.values()) >= 20_000
    assert min(cases.values()) >= 2_500
