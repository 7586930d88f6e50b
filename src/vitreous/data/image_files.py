"""Finding image files by name: in folders, and by glob patterns."""

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from glob import escape, glob, has_magic
from pathlib import Path

from vitreous.data.dataset import Source
from vitreous.errors import VitreousError, format_count, refuse_url, summarize_names
from vitreous.utils.file_kinds import describe_other_files, is_system_file
from vitreous.utils.heif import HEIF_SUFFIXES, INSTALL, can_read_heif
from vitreous.utils.images import IMAGE_SUFFIXES


def find_images(patterns: Sequence[str | Path]) -> list[Path]:
    """The image files for a list of files, folders (searched recursively, without hidden folders) and glob patterns.

    A file that is given by name may have any suffix; in folders and patterns only files with image suffixes count.
    """
    images: dict[tuple[str, str], Path] = {}
    for pattern in [patterns] if isinstance(patterns, str | Path) else patterns:
        refuse_url(pattern)
        if pattern == "":  # Path("") is the current folder
            raise VitreousError("an empty path was given; the current folder is .")
        for path in _matches(Path(pattern)):
            images.setdefault((os.path.realpath(path.parent), path.name), path)
    if not images:
        raise VitreousError("no images were given")
    return list(images.values())


def _matches(pattern: Path) -> list[Path]:
    if os.path.isdir(pattern):  # noqa: PTH112 (Path.is_dir raises an error for a name that is too long)
        if images := _images_in(pattern):
            return images
        files = (file for _, names in walk_folders(pattern) for file in names if not is_system_file(file))
        found = describe_other_files(files)
        raise VitreousError(f"{pattern}: no image in this folder" + (f"; it has {', '.join(found)}" if found else ""))
    if os.path.lexists(pattern):  # before globbing, for names with [ in them; a dangling link fails when it is decoded
        return [pattern]
    if not has_magic(str(pattern)):
        raise VitreousError(f"{pattern}: there is no such file or folder")
    images = []
    for match in sorted(_expand(pattern)):
        if match.is_dir():
            images += _images_in(match)
        elif is_image(match.name):
            images.append(match)
    if not images:
        raise VitreousError(f"{pattern}: no image matches")
    return images


def _expand(pattern: Path) -> Iterator[Path]:
    """The matches of a glob pattern. Unlike in glob, ** does not loop through a link to a parent folder."""
    parts = pattern.parts
    if "**" not in parts:
        yield from map(Path, glob(str(pattern)))  # noqa: PTH207 (Path.glob takes no absolute pattern)
        return
    at = parts.index("**")
    for root in _expand(Path(*parts[:at])):
        for folder, _ in walk_folders(root) if root.is_dir() else ():
            yield from _expand(Path(escape(folder), *(parts[at + 1 :] or ["*"])))


def _images_in(folder: Path) -> list[Path]:
    return sorted(Path(name, file) for name, files in walk_folders(folder) for file in files if is_image(file))


def is_image(name: str) -> bool:
    """Whether a file name has an image suffix and is not hidden."""
    return os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES and not name.startswith(".")  # noqa: PTH122 (fast)


def heif_notes(sources: Iterable[Source]) -> list[str]:
    """A note that names the HEIC images if they cannot be read, since pillow-heif is not installed."""
    if can_read_heif():
        return []
    names = (source.name(index) for source in sources if source.array is None for index in range(len(source)))
    missing = [name for name in names if name.lower().endswith(HEIF_SUFFIXES)]
    if not missing:
        return []
    files = summarize_names(map(os.path.basename, missing), 3)
    return [f"{format_count(len(missing), 'HEIC image')} cannot be read ({files}): {INSTALL}"]


def walk_folders(root: str | Path, excluded: Collection[tuple[int, int]] = ()) -> Iterator[tuple[str, list[str]]]:
    """Each folder below `root`, and the names of its files, without hidden folders.

    Links are followed. Each folder is visited once; those `excluded` (by `folder_identity`) are not visited.
    """

    def refuse(error: OSError) -> None:
        raise VitreousError(f"{error.filename}: this folder cannot be read ({error.strerror})")

    visited = set(excluded)
    for name, folders, files in os.walk(root, onerror=refuse, followlinks=True):
        if (identity := folder_identity(name)) in visited:
            folders.clear()
            continue
        visited.add(identity)
        folders[:] = sorted(folder for folder in folders if not is_system_file(folder))
        yield name, files


def folder_identity(folder: str | Path) -> tuple[int, int]:
    """Device and inode: equal for all paths to the same folder."""
    status = Path(folder).stat()
    return status.st_dev, status.st_ino
