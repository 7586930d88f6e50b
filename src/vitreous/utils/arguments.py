"""Check the keyword arguments of the public functions: a misspelt name is answered with the nearest one."""

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache, wraps
from types import UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from vitreous.errors import VitreousError, brief
from vitreous.utils.annotations import describe_annotation, matches_annotation

P = ParamSpec("P")
R = TypeVar("R")


def checked_arguments(more: type | None = None) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function: an unknown or missing argument, or a keyword argument of another type than its annotation,
    raises a VitreousError.

    `more`: the TypedDict of the arguments that the function collects as `**options: Unpack[more]`.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature, name = inspect.signature(function), function.__name__
        kinds = {parameter.name: parameter.kind for parameter in signature.parameters.values()}
        named = [one for one, kind in kinds.items() if kind is not inspect.Parameter.VAR_KEYWORD]

        @cache
        def annotations() -> Mapping[str, Any]:
            own = {one: hint for one, hint in get_type_hints(function).items() if one in named}
            return {**own, **(get_type_hints(more) if more is not None else {})}

        @wraps(function)
        def checked(*arguments: P.args, **options: P.kwargs) -> R:
            for option, value in options.items():
                if option not in annotations():
                    raise VitreousError(f"{name} has no argument {option!r}; {_hint(option, list(annotations()))}")
                if kinds.get(option) is not inspect.Parameter.POSITIONAL_OR_KEYWORD:  # the function checks these itself
                    _check(option, value, annotations()[option])
            try:
                signature.bind(*arguments, **options)
            except TypeError as error:
                raise VitreousError(f"{name}: {error}") from error
            return function(*arguments, **options)

        return checked

    return decorate


def _hint(option: str, names: list[str]) -> str:
    near = get_close_matches(option, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"expected {', '.join(names)}"


def _check(name: str, value: object, annotation: Any) -> None:
    expected = _checkable(annotation)
    if not matches_annotation(tuple(value) if isinstance(value, list) else value, expected):
        raise VitreousError(f"{name} = {brief(value)}: expected {describe_annotation(expected)}")


def _checkable(annotation: Any) -> Any:
    """Return an annotation that `matches_annotation` understands: a sequence is checked as a tuple, and what cannot be
    checked is `object`."""
    kind, inner = get_origin(annotation), get_args(annotation)
    if kind in (Union, UnionType):
        return Union[tuple(map(_checkable, inner))]  # noqa: UP007 (the options are known at run time only)
    if kind is Sequence:
        return tuple[_checkable(inner[0]), ...]  # type: ignore[misc]
    if kind is os.PathLike:
        return os.PathLike
    if kind in (Literal, tuple) or isinstance(annotation, type):
        return annotation
    return object
