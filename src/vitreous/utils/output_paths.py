"""Checks of output paths before a long computation."""

import os
from pathlib import Path

from vitreous.errors import VitreousError
from vitreous.utils.atomic import Names, check_output
from vitreous.utils.figures import require_matplotlib


def check_output_paths(
    folder: Path | None, replaceable: Names, *files: Path | None, overwrite: bool = False, figures: bool = True
) -> None:
    """Raise an error now if the results of a long command cannot be written at its end.

    `replaceable`: names of the files in `folder` that `overwrite` may replace. `figures`: figures are written too.
    """
    outputs = [(file, file.absolute().parent) for file in files if file is not None]
    if folder is not None:
        existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
        outputs.append((folder, existing))
        if figures:
            require_matplotlib()
    for path, parent in outputs:
        if not parent.is_dir():
            raise VitreousError(f"{path}: cannot be written, because {parent} is not a folder")
        if not os.access(parent, os.W_OK | os.X_OK):
            raise VitreousError(f"{path}: cannot be written, because {parent} is not writable")
        if path is not folder and path.is_dir():
            raise VitreousError(f"{path}: this is a folder; give the name of a file")
        check_output(path, overwrite, replaceable if path is folder else None)


def optional_path(path: str | os.PathLike[str] | None) -> Path | None:
    """Return a path as a `Path`, or None."""
    return None if path is None else Path(path)
