"""Access check for image files that a manifest or table refers to: only files in the data set's folder are read.

A table may come from an untrusted source, and the images it refers to are decoded and may appear in a report. So a
downloaded table must not be able to include private pictures of the user.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from vitreous.errors import VitreousError

FLAG = "--allow-outside-files (allow_outside_files in Python)"


class AllowedFiles:
    """The folders that referenced files must be in, after symbolic links and `..` are resolved."""

    def __init__(self, folders: Iterable[str | Path], anywhere: bool = False):
        self.folders = tuple(os.path.realpath(folder) for folder in folders)
        self.anywhere = anywhere
        self._resolved: dict[str, str] = {}  # resolved parent folders, since most files share one

    def check(self, path: str) -> None:
        """Raise a VitreousError if this file is outside the folders. It need not exist."""
        if self.anywhere:
            return
        try:
            real = self._resolve(path)
        except (OSError, ValueError):  # too many links, or an invalid name: reading the file fails, too
            return
        if not any(real.startswith(folder.rstrip(os.sep) + os.sep) for folder in self.folders):
            inside = self.folders[0] if self.folders else "it"
            raise VitreousError(f"{path} is not inside the data set's folder, {inside}; to read it, use {FLAG}")

    def _resolve(self, path: str) -> str:
        """As `os.path.realpath`, but with one file-system call per file, since folders are cached."""
        folder, name = os.path.split(path)
        if name in ("", ".", "..") or os.path.islink(path):  # noqa: PTH114 (a million paths)
            return os.path.realpath(path)
        return os.path.join(self._resolve_folder(folder), name)  # noqa: PTH118

    def _resolve_folder(self, folder: str) -> str:
        if folder not in self._resolved:
            parent, name = os.path.split(folder)
            if parent not in self._resolved:
                self._resolved[parent] = os.path.realpath(parent)
            linked = name in ("", ".", "..") or os.path.islink(folder)  # noqa: PTH114
            real = os.path.realpath(folder) if linked else os.path.join(self._resolved[parent], name)  # noqa: PTH118
            self._resolved[folder] = real
        return self._resolved[folder]
