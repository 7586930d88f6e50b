"""Every public name has a docstring with an example that runs, and explains its arguments, fields and methods.

`...` in the output of an example stands for any text.
"""

import doctest
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import vitreous

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))
from api_reference import field_groups, fields_of, methods_of, other_types, own_classes, properties_of  # noqa: E402

OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
CLASSES = [name for name in vitreous.__all__ if inspect.isclass(getattr(vitreous, name))]
FUNCTIONS = [name for name in vitreous.__all__ if name not in CLASSES]


def examples(name: str) -> Iterator[doctest.DocTest]:
    """The examples in the docstrings of a public name and of its methods. Each has its own copy of the names."""
    item = getattr(vitreous, name)
    for one in own_classes(item) if inspect.isclass(item) else [item]:
        tests = doctest.DocTestFinder().find(one, one.__name__, globs={"vitreous": vitreous})
        yield from (test for test in tests if test.examples)


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run in an empty folder, with a cache folder of its own."""
    folder = tmp_path / "cwd"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("MPLBACKEND", "agg")
    return folder


@pytest.mark.parametrize("name", vitreous.__all__)
def test_the_examples_run(name: str, empty_folder: Path) -> None:
    found = list(examples(name))
    assert any(test.name == name for test in found), f"vitreous.{name} has no example (>>>) in its docstring"
    for test in found:
        report: list[str] = []
        result = doctest.DocTestRunner(optionflags=OPTIONS).run(test, out=report.append)
        assert not result.failed, "".join(report)


def test_a_wrong_or_missing_example_is_found(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong() -> None:
        """
        >>> 1 + 1
        3
        """

    def missing() -> None:
        """No example."""

    for function, message in ((wrong, r"Expected:\s+3\s+Got:\s+2"), (missing, "vitreous.missing has no example")):
        monkeypatch.setattr(vitreous, function.__name__, function, raising=False)
        with pytest.raises(AssertionError, match=message):
            test_the_examples_run(function.__name__, empty_folder)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_argument_is_explained(name: str) -> None:
    function = getattr(vitreous, name)
    text = inspect.getdoc(function) or ""
    unexplained = [one for one in inspect.signature(function).parameters if f"`{one}" not in text]
    assert not unexplained, f"the docstring of vitreous.{name} does not explain {', '.join(unexplained)}"


@pytest.mark.parametrize("name", [*CLASSES, *other_types()])
def test_every_field_and_method_is_explained(name: str) -> None:
    item: Any = other_types().get(name) or getattr(vitreous, name)
    groups = field_groups(item)
    listed = [one for one in (*fields_of(item), *properties_of(item)) if one.name not in groups]
    listed += [one for group in groups.values() for one in fields_of(group)]
    unexplained = [one.name for one in listed if not one.meaning]
    unexplained += [f"{method}()" for method, function in methods_of(item).items() if not inspect.getdoc(function)]
    unexplained += [group.__name__ for group in groups.values() if not inspect.getdoc(group)]
    assert not unexplained, f"{name} does not explain {', '.join(unexplained)}"
