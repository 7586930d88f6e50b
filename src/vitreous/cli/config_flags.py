"""Flags for the fields of dataclasses: TrainConfig and the groups of options of the other commands.

tyro reads names, types, defaults and help texts from the dataclasses and their docstrings. This module adds what they
do not contain: short metavars, additional names of flags, and which defaults are chosen from the data.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass, replace
from functools import partial
from types import UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import tyro
from tyro.constructors import ConstructorRegistry, StructConstructorSpec, StructFieldSpec, StructTypeInfo

from vitreous.errors import VitreousError, VitreousWarning
from vitreous.training.config import RENAMED_FIELDS, TrainConfig
from vitreous.training.config_file import ALIASES, FLAG_NAMES
from vitreous.utils.console import printable

# Fields whose default is chosen from the data. The docstrings of other fields that are None state their defaults.
CHOSEN_FROM_DATA = frozenset(
    (
        *("model", "image_size", "patch_size", "width", "depth", "heads", "mlp_dim", "pool", "dropout"),
        *("stochastic_depth", "crop", "aspect", "shift", "flip", "randaugment", "magnitude", "three_augment", "jitter"),
        *("erase", "mixup", "cutmix", "loss", "label_smoothing", "class_weights", "best_by", "optimiser", "lr"),
        *("weight_decay", "ema"),
        *("duration", "warmup", "schedule", "batch_size", "dev_fraction"),
    )
)
CONFIG_GROUPS = frozenset(get_type_hints(TrainConfig).values())
OWN_CODE = {"augment": "FILE:NAME"}  # metavars of fields that are code of the user
METAVARS = {int: "N", float: "X", str: "TEXT", bool: "True|False"}
DEFAULT_RULE = object()  # marks a request for tyro's own rule

FLAGS = ConstructorRegistry()


@FLAGS.struct_rule
def dataclass_flags(info: StructTypeInfo) -> StructConstructorSpec | None:
    """Return tyro's own flags for a dataclass of this package, with the additions of this module."""
    if not is_dataclass(info.type) or not info.type.__module__.startswith("vitreous.") or DEFAULT_RULE in info.markers:
        return None
    spec = ConstructorRegistry.get_struct_spec(replace(info, markers=(*info.markers, DEFAULT_RULE)))
    assert isinstance(spec, StructConstructorSpec)
    fields = tuple(_adapt_field(field, info.type in CONFIG_GROUPS) for field in spec.fields)
    return replace(spec, fields=fields)


def _adapt_field(field: StructFieldSpec, of_config: bool) -> StructFieldSpec:
    if is_dataclass(field.type):  # a group of flags
        return field
    kind, *annotations = get_args(field.type) if get_origin(field.type) is Annotated else (field.type,)
    from_data = of_config and field.name in CHOSEN_FROM_DATA
    argument = tyro.conf.arg(
        name=FLAG_NAMES.get(field.name) if of_config else None,
        metavar=OWN_CODE.get(field.name) or metavar(kind),
        help_behavior_hint=_default_hint(field, "chosen from the data" if from_data else ""),
        aliases=[_flag(name) for name in ALIASES.get(field.name, ())] or None if of_config else None,
    )
    annotated = Annotated[(kind, argument, *annotations)]  # type: ignore[valid-type]  # later ones take precedence
    return replace(field, type=cast(Any, annotated), helptext=partial(_one_line, field.helptext))


def _one_line(helptext: str | Callable[[], str | None] | None) -> str:
    """tyro keeps the line breaks of indented docstrings; this joins the lines."""
    text = helptext() if callable(helptext) else helptext
    return " ".join((text or "").split())


def metavar(hint: Any) -> str | None:
    """Return the placeholder of a flag's value: N (integer), X (number), TEXT, A|B (choice); None for a switch."""
    if hint is bool:
        return None
    kinds = [kind for kind in get_args(hint) if kind is not type(None)] if _is_union(hint) else [hint]
    if len(kinds) > 1 and get_origin(kinds[0]) is Literal:
        return "|".join((*get_args(kinds[0]), "FILE:NAME"))  # a name, or code of the user
    if len(kinds) > 1:
        return "N [N]"  # an integer or a pair of integers
    kind = kinds[0]
    if get_origin(kind) is Literal:
        return "|".join(get_args(kind))
    if get_origin(kind) is tuple:
        first, second = (METAVARS.get(part, "...") for part in get_args(kind))
        return f"{first} {second}"
    return METAVARS.get(kind, "PATH")


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, UnionType)


def _default_hint(field: StructFieldSpec, meaning_of_none: str) -> str:
    value = field.default
    if value is None:
        text = meaning_of_none
    elif value == () and "Default:" in _one_line(field.helptext):
        text = ""
    else:
        text = " ".join(map(str, value)) or "none" if isinstance(value, tuple) else str(value)
    return f"(default: {printable(text)})" if text else ""


def replace_renamed_flags(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with old names of flags replaced by the current ones; each gives a warning.

    --compare-with twice is an error, since the parser would drop the runs of the first one.
    """
    current = []
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        for old, new in RENAMED_FIELDS.items():
            if flag == _flag(old):
                text = f"{flag} is now called {_flag(new)}; the old name will be removed"
                warnings.warn(text, VitreousWarning, stacklevel=2)
                flag = _flag(new)
        current.append(f"{flag}{equals}{value}")
    several = _flag("compare_with")
    if sum(argument.partition("=")[0] == several for argument in current) > 1:
        raise VitreousError(f"{several} is given twice: give all runs after one {several}")
    return current


def _flag(field: str) -> str:
    return f"--{field.replace('_', '-')}"
