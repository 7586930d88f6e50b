"""Python objects of a run (data, callbacks, model, loss, optimiser, augmentation): how the run directory stores them,
and how `resume` gets them.

Classes and functions at the top level of a file or module have an import path, which config.json stores. Objects have
none: they must be passed to `resume` again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vitreous.data.open_data import absolute_data_path
from vitreous.data.user_dataset import describe_user_data
from vitreous.errors import VitreousError
from vitreous.training.callbacks import Callback, Callbacks
from vitreous.training.config import TrainConfig
from vitreous.training.run_directory import RunDirectory
from vitreous.training.user_parts import UserParts, load_parts, part_import_paths, parts_in_memory
from vitreous.utils.import_path import import_object, import_path_of, is_import_path, source_digest
from vitreous.utils.progress import ProgressReporter


@dataclass(frozen=True)
class UserCode:
    """Data and callbacks of a run, and how they are stored."""

    data: object  # for `open_data`
    source: str  # the text in config.json: the location or import path of the data, or a description
    callbacks: Callbacks = field(default_factory=Callbacks)
    data_in_memory: bool = False  # whether the data cannot be opened again from `source`
    callback_paths: tuple[str | None, ...] = ()
    notes: tuple[str, ...] = ()
    parts: UserParts = field(default_factory=UserParts)
    part_paths: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The additional entries of config.json. A run without Python objects has none."""
        values: dict[str, Any] = {"data_in_memory": True} if self.data_in_memory else {}
        if self.callback_paths:
            values["callbacks"] = list(self.callback_paths)
        if digests := _digests([self.source, *self.callback_paths, *self.part_paths]):
            values["code_digests"] = digests
        return values


def describe_user_code(
    data: object,
    callbacks: Sequence[Callback | type[Callback]],
    config: TrainConfig,
    objects: Mapping[str, Any],
) -> UserCode:
    """Check the callbacks, import the parts that settings name, and note what a resumed run will need. `objects`: parts
    of the run by setting."""
    created = Callbacks.create(callbacks)
    paths = tuple(import_path_of(one) if isinstance(one, type) else None for one in callbacks)
    if isinstance(data, str | os.PathLike):
        source, in_memory = absolute_data_path(data), False
    else:
        path = import_path_of(data)
        source, in_memory = path or describe_user_data(data), path is None
    needed = (["data"] if in_memory else []) + (["callbacks"] if None in paths else []) + parts_in_memory(config)
    notes = []
    if needed:
        again = ", ".join(f"{name}=..." for name in needed)
        notes.append(
            f"to resume this run, pass the same {' and '.join(needed)} again: vitreous.resume(RUN, {again}); a class or"
            " function at the top level of a file would be imported automatically"
        )
    parts, part_paths = load_parts(config, objects), tuple(part_import_paths(config))
    return UserCode(data, source, created, in_memory, paths, tuple(notes), parts, part_paths)


def restore_user_code(
    directory: RunDirectory,
    description: dict[str, Any],
    data: object,
    callbacks: Sequence[Callback | type[Callback]] | None,
    config: TrainConfig,
    objects: Mapping[str, Any],
    reporter: ProgressReporter,
) -> UserCode:
    """The code of a run that is resumed: what is given again, or imported from the paths that it stores."""
    if data is None and description.get("data_in_memory"):
        raise VitreousError(
            f"{directory.path}: the data of this run cannot be imported ({description['data']}): resume it in Python,"
            " with vitreous.resume(RUN, data=...) and the same data"
        )
    paths = description.get("callbacks") or []
    if callbacks is None and None in paths:
        raise VitreousError(
            f"{directory.path}: the callbacks of this run cannot be imported: resume it in Python, with"
            " vitreous.resume(RUN, callbacks=[...]) and the same callbacks"
        )
    source = description["data"] if data is None else data
    created = Callbacks.create([import_object(path) for path in paths] if callbacks is None else callbacks)
    for path, digest in (description.get("code_digests") or {}).items():
        if source_digest(path) != digest:
            reporter.note(f"{path} has changed since the run was started: the results may differ")
    return UserCode(source, str(description["data"]), created, parts=load_parts(config, objects))


def _digests(paths: Sequence[str | None]) -> dict[str, str]:
    found = {path: source_digest(path) for path in paths if path is not None and is_import_path(path)}
    return {path: digest for path, digest in found.items() if digest is not None}
