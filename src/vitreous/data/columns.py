"""The image column and the label column of a table: detected from the column names, and checked for missing labels."""

import re
from collections.abc import Sequence
from typing import Any

from vitreous.errors import VitreousError, brief, summarize_names

MAX_NAMES_IN_ERROR = 20

IMAGE_COLUMNS = (
    "image",
    "img",
    "images",
    "picture",
    "photo",
    "path",
    "paths",
    "file",
    "files",
    "filename",
    "file_name",
    "filepath",
    "file_path",
    "image_path",
    "image_file",
    "image_name",
    "image_filename",
    "img_path",
    "img_file",
    "imagepath",
    "imagefile",
)
MULTI_LABEL_COLUMNS = ("labels", "tags", "classes", "targets", "categories")
LABEL_COLUMNS = (
    *("label", "class", "target", "category", "class_name", "classname", "label_name", "cls", "y"),
    *MULTI_LABEL_COLUMNS,
)
SPLIT_COLUMNS = ("split", "set", "subset", "partition")


def normalize_column(name: str) -> str:
    """A column name in lower case with underscores: "File Name" becomes file_name."""
    return re.sub(r"[^0-9a-z]+", "_", name.strip().lower()).strip("_")


def find_column(columns: Sequence[str], known: Sequence[str], requested: str | None, role: str) -> str:
    """The requested column, or the only column with a known name. `role`: "image" or "label"."""
    option = f"--{role}-column ({role}_column in Python)"
    if requested is not None:
        if requested not in columns:
            names = summarize_names(columns, MAX_NAMES_IN_ERROR)
            raise VitreousError(f"there is no column {requested!r}; the columns are {names}")
        return requested
    matches = [column for column in columns if normalize_column(column) in known]
    if len(matches) == 1:
        return matches[0]
    if matches:
        several = " and ".join(map(brief, matches[:MAX_NAMES_IN_ERROR]))
        raise VitreousError(f"{several} could both be the {role} column: choose one with {option}")
    names = summarize_names(columns, MAX_NAMES_IN_ERROR)
    raise VitreousError(f"no {role} column was recognised among {names}: choose one with {option}")


def check_label_column(values: list[Any], column: str) -> list[Any]:
    """Return the labels of a column. In multi-label data, a row without labels is an empty list; otherwise an error."""
    if any(isinstance(value, list) for value in values):
        return [value or [] for value in values]
    for row, value in enumerate(values):
        if value is None or value == "":
            raise VitreousError(f"row {row} has no label in column {column!r}")
    return values
