"""Config files: the settings of a run as TOML. This module does not import torch, so that the command line starts fast.

A file may name `data` and a `recipe`; all other keys are fields of TrainConfig, at the top of the file or in tables
that have the names of its groups.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from textwrap import wrap
from typing import Any, get_args

from vitreous.errors import VitreousError, brief
from vitreous.training.config import DURATION_FIELDS, RENAMED_FIELDS, TrainConfig, field_types
from vitreous.training.recipes import recipe as recipe_of_train
from vitreous.utils.annotations import matches_annotation
from vitreous.utils.import_path import is_object_text
from vitreous.utils.toml_files import key_line, read_toml, toml_comment, toml_value

NONE = "none"  # stands for None, which TOML does not have
FLAG_NAMES = {"start": "from"}  # `from` is a keyword of Python and cannot be the name of a field
ALIASES = {"duration": ["epochs"], "image_size": ["size"]}
OTHER_NAMES = {
    **{other: name for name, other in FLAG_NAMES.items()},
    **{other: name for name, others in ALIASES.items() for other in others},
}
RUN_KEYS = ("data", "recipe")
SEARCH_TABLES = ("grid", "random")  # of `vitreous sweep`
GROUPS = {group.name: [one.name for one in fields(group.default_factory)] for group in fields(TrainConfig)}  # type: ignore


@dataclass(frozen=True)
class ConfigFile:
    """The content of a config file, checked."""

    path: Path
    fields: Mapping[str, Any]  # of TrainConfig
    data: str | None = None
    recipe: str | None = None
    searches: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # tables of `vitreous sweep`

    def config(self, by_recipe: Callable[[str], TrainConfig] = recipe_of_train) -> TrainConfig:
        """Return the settings: those of the recipe, overridden by those of the file."""
        base = TrainConfig() if self.recipe is None else by_recipe(self.recipe)
        return base.with_(**self.fields)


def read_config_file(path: str | os.PathLike[str], searches: bool = False) -> ConfigFile:
    """Read a config file. `searches`: it may have the tables [grid] and [random] of `vitreous sweep`."""
    tables, text = read_toml(path)
    run: dict[str, str | None] = dict.fromkeys(RUN_KEYS)
    found: dict[str, Any] = {}
    search: dict[str, Mapping[str, Any]] = {}
    for table, key, value in _entries(tables):
        with _located(Path(path), text, table, key):
            if not table and key in SEARCH_TABLES:
                search[key] = _search_table(key, value, searches)
            elif not table and key in RUN_KEYS:
                if not isinstance(value, str):
                    raise VitreousError(f"{key} = {brief(value)}: expected a string")
                run[key] = value
            else:
                name = _field_name(table, key)
                if name in found:
                    raise VitreousError(f"{name} is given twice")
                found[name] = _field_value(name, value)
    return ConfigFile(Path(path), found, run["data"], run["recipe"], search)


def load_settings(
    data: object,
    config: TrainConfig | str | os.PathLike[str] | None,
    by_recipe: Callable[[str], TrainConfig] = recipe_of_train,
) -> tuple[Any, TrainConfig]:
    """Return data and settings of a run, of which one or both may be given by a config file."""
    if isinstance(config, str | os.PathLike):
        file = read_config_file(config)
        data, config = file.data if data is None else data, file.config(by_recipe)
    if data is None:
        raise VitreousError("data is missing: give a folder of images, a file or a name, or `data` in a config file")
    return data, config or TrainConfig()


# ---------------------------------------------------------------- reading


def _entries(tables: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield (table, key, value). Keys at the top of the file have the table ""."""
    for key, value in tables.items():
        if key in GROUPS and isinstance(value, dict):
            yield from ((key, inner, one) for inner, one in value.items())
        else:
            yield "", key, value


@contextmanager
def _located(path: Path, text: str, table: str, key: str) -> Iterator[None]:
    """Add file and line of a key to errors."""
    try:
        yield
    except VitreousError as error:
        line = key_line(text, key, table)
        raise error.at(path if line is None else f"{path}, line {line}") from error


def _search_table(key: str, value: Any, allowed: bool) -> Mapping[str, Any]:
    if not allowed:
        raise VitreousError(f"[{key}] is for `vitreous sweep`; a run has one value of every setting")
    if not isinstance(value, dict):
        raise VitreousError(f"{key} = {brief(value)}: expected a table, [{key}], with one line per setting")
    return {_field_name("", name): values for name, values in value.items()}


def _field_name(table: str, key: str) -> str:
    """Return the field of a key: the name of the field or of its flag, with - or _."""
    name = key.replace("-", "_")
    name = OTHER_NAMES.get(name, name)
    if any(name in names for names in GROUPS.values()) or name in RENAMED_FIELDS:
        return name
    if name in RUN_KEYS:
        raise VitreousError(f"{key} belongs to the top of the file, above the first [table]")
    known = [*RUN_KEYS, *GROUPS, *(one for names in GROUPS.values() for one in names), *OTHER_NAMES, *SEARCH_TABLES]
    where = "" if not table else f" in [{table}]"
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "`vitreous train --help` lists all settings"
    raise VitreousError(f"unknown setting {brief(key)}{where}; {hint}")


def _field_value(name: str, value: Any) -> Any:
    """Check and convert the value of a field."""
    if is_none_text(name, value):
        return None
    try:
        return TrainConfig().with_(**{name: value}).flat()[RENAMED_FIELDS.get(name, name)]
    except VitreousError as error:
        text = str(error).replace("expected a tuple in which each item", "expected a list in which each item")
        raise VitreousError(text.replace("or None", f'or "{NONE}"')) from error


def is_none_text(name: str, value: object) -> bool:
    """Whether a text stands for None: "none", for a setting that can be None and for which this text is no value."""
    if not isinstance(value, str) or value.casefold() != NONE:
        return False
    hint = field_types().get(RENAMED_FIELDS.get(name, name))
    is_value = matches_annotation(NONE, hint) and name not in (*DURATION_FIELDS, "budget")
    return type(None) in get_args(hint) and not is_value


# ---------------------------------------------------------------- writing


def config_toml(
    config: TrainConfig,
    data: str | None = None,
    reasons: Mapping[str, str] | None = None,
    header: tuple[str, ...] = (),
    ascii_only: bool = False,
) -> str:
    """Return a config as a TOML file that `read_config_file` turns into the same config.

    `reasons`: all settings are known, and those in it were chosen from the data. None: settings that are not given are
    chosen when a run starts.
    """
    comments = ["settings of a training run: vitreous train --config FILE; flags override them", *header]
    if reasons is None:
        comments.append("settings that are not set are chosen from the data when a run starts, or those of the model")
    lines = [toml_comment(text, ascii_only) for text in comments]
    if data is not None:
        lines.append(f"data = {toml_value(data, ascii_only)}")
    for group in fields(config):
        lines += ["", f"[{group.name}]"]
        missing = []
        for name, value in vars(getattr(config, group.name)).items():
            shown = _written(name, value, resolved=reasons is not None)
            if shown is None:
                missing.append(name)
                continue
            why = (reasons or {}).get(name)
            comment = "" if why is None else f"  {toml_comment(f'chosen: {why}', ascii_only)}"
            try:
                lines.append(f"{name} = {toml_value(shown, ascii_only)}{comment}")
            except VitreousError as error:
                raise error.at(name) from error
        lines += [toml_comment(line) for line in wrap(f"not set: {', '.join(missing)}", 100) if missing]
    return "\n".join(lines) + "\n"


def _written(name: str, value: Any, resolved: bool) -> Any:
    """Return the value of a setting in a file. None: it is left out, since None is the default."""
    if value is not None:
        if isinstance(value, str) and is_object_text(value):
            raise VitreousError(
                f"{name} = {value}: a config file names code by its import path; define it at the top level of a file"
            )
        if is_none_text(name, value):  # an evaluation interval "none", for example: it is no valid value
            raise VitreousError(f"{name} = {brief(value)} cannot be written to a config file")
        return value
    if name == "start":  # without a start, one would be chosen
        return NONE if resolved else None
    return NONE if TrainConfig().flat()[name] is not None else None
