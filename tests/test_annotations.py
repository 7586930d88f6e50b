"""Values are checked against annotations, and annotations are described in words."""

from typing import Any, Literal

import pytest

from vitreous.utils.annotations import describe_annotation, matches_annotation


@pytest.mark.parametrize(
    ("annotation", "valid", "invalid", "words"),
    [
        (int, [3, -1], [3.0, True, "3", None], "an integer"),
        (float, [0.5, 2, float("inf")], [True, "0.5"], "a number"),
        (bool, [True], [1, "yes"], "True or False"),
        (str, ["a"], [b"a", 1], "a string"),
        (Literal["a", "b"], ["a"], ["c", 0], "one of 'a', 'b'"),
        (int | None, [1, None], ["1", 1.0], "an integer or None"),
        (tuple[int, ...], [(), (1, 2, 3)], [[1], (1, "2"), 1], "a tuple in which each item is an integer"),
        (tuple[float, float], [(1, 0.5)], [(1.0,), (1.0, 2.0, 3.0)], "(a number, a number)"),
    ],
)
def test_annotations(annotation: Any, valid: list[object], invalid: list[object], words: str) -> None:
    assert [value for value in valid if not matches_annotation(value, annotation)] == []
    assert [value for value in invalid if matches_annotation(value, annotation)] == []
    assert describe_annotation(annotation) == words


def test_an_integer_is_not_exactly_a_float() -> None:
    assert matches_annotation(1, float)
    assert not matches_annotation(1, float, exact=True)
    assert matches_annotation(1, int | float, exact=True)
