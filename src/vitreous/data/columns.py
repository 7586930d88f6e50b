"""Which column of a table holds the images, and which the labels."""

import re
from collections.abc import Sequence

from vitreous.errors import VitreousError

IMAGE = (
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
MANY = ("labels", "tags", "classes", "targets", "categories")
LABEL = ("label", "class", "target", "category", "class_name", "classname", "label_name", "cls", "y", *MANY)
SPLIT = ("split", "set", "subset", "partition")


def plain(name: str) -> str:
    """A column's name without the ways in which people write it: "File Name" is file_name."""
    return re.sub(r"[^0-9a-z]+", "_", name.strip().lower()).strip("_")


def find_column(columns: Sequence[str], known: Sequence[str], wanted: str | None, what: str) -> str:
    """The column that is asked for, or the one that has a known name. `what`: "image" or "label"."""
    option = f"--{what}-column ({what}_column in Python)"
    if wanted is not None:
        if wanted not in columns:
            raise VitreousError(f"there is no column {wanted!r}; the columns are {', '.join(map(repr, columns))}")
        return wanted
    matching = [column for column in columns if plain(column) in known]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise VitreousError(f"{' and '.join(map(repr, matching))} could both be the {what}: say which with {option}")
    names = ", ".join(map(repr, columns))
    raise VitreousError(f"no column is known for the {what}; name one of {names} with {option}")
