"""Check values against type annotations, for the fields of config dataclasses."""

import os
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

NAMES: dict[Any, str] = {
    int: "an integer",
    float: "a number",
    str: "a string",
    bool: "True or False",
    type(None): "None",
    os.PathLike: "a path",
}


def matches_annotation(value: object, annotation: Any, exact: bool = False) -> bool:
    """Whether a value has the annotated type. An integer also matches float, unless `exact`. A bool is not a number."""
    kind, inner = get_origin(annotation), get_args(annotation)
    if kind is Literal:
        return isinstance(value, str) and value in inner
    if kind in (Union, UnionType):
        return any(matches_annotation(value, option, exact) for option in inner)
    if kind is tuple:
        if not isinstance(value, tuple):
            return False
        items = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        return len(value) == len(items) and all(map(matches_annotation, value, items))
    if annotation in (int, float):
        allowed = (int, float) if annotation is float and not exact else annotation
        return isinstance(value, allowed) and not isinstance(value, bool)
    return isinstance(value, annotation)


def describe_annotation(annotation: Any) -> str:
    """Return an annotation in words, for error messages."""
    kind, inner = get_origin(annotation), get_args(annotation)
    if kind is Literal:
        return f"one of {', '.join(map(repr, inner))}"
    if kind in (Union, UnionType):
        return " or ".join(map(describe_annotation, inner))
    if kind is tuple:
        items = list(map(describe_annotation, inner[:1] if inner[-1] is Ellipsis else inner))
        return f"a tuple in which each item is {items[0]}" if inner[-1] is Ellipsis else f"({', '.join(items)})"
    return NAMES.get(annotation, f"a {getattr(annotation, '__name__', annotation)}")
