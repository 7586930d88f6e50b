"""Files that are often among photos and are not images that can be read: videos, RAW photos, documents, and so on."""

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from vitreous.errors import VitreousError, find_url, format_count, summarize_names


@dataclass(frozen=True)
class FileKind:
    """A kind of file: its name in the singular, and what a user can do with it."""

    noun: str
    advice: str
    suffixes: frozenset[str]


def _suffixes(text: str) -> frozenset[str]:
    return frozenset(f".{name}" for name in text.split())


KINDS = (
    FileKind(
        "video",
        "extract images from it, for example one per second: ffmpeg -i VIDEO -vf fps=1 frame-%05d.jpg",
        _suffixes("mov mp4 m4v avi mkv webm mpg mpeg 3gp 3g2 mts m2ts wmv flv mod tod vob ogv insv lrv"),
    ),
    FileKind(
        "RAW photo",
        "convert it to JPEG or TIFF with the camera's program, darktable or dcraw",
        # Pillow opens some of them as TIFF, but decodes only the thumbnail that they contain.
        _suffixes(
            "cr2 cr3 crw nef nrw arw srf sr2 dng orf rw2 raf pef ptx srw x3f erf kdc dcr mrw 3fr fff iiq mef mos rwl"
        ),
    ),
    FileKind(
        "document", "export its pages as JPEG or PNG", _suffixes("pdf svg svgz eps ps ai indd xcf doc docx ppt pptx")
    ),
    FileKind("archive", "extract it", _suffixes("zip rar 7z tar gz tgz bz2 xz zst")),
)
# Files and folders that systems and network drives put among photos. They are not worth a remark.
SYSTEM_FILES = frozenset({"thumbs.db", "ehthumbs.db", "desktop.ini", "picasa.ini", "icon\r"})
SYSTEM_FOLDERS = frozenset({"__macosx", "@eadir", "#recycle", "$recycle.bin", "system volume information"})


def is_system_file(name: str) -> bool:
    """Whether a file or folder is hidden, or was written by the system: Thumbs.db, desktop.ini, .DS_Store, __MACOSX."""
    return name.startswith(".") or name.lower() in SYSTEM_FILES | SYSTEM_FOLDERS


def file_kind(name: str) -> FileKind | None:
    """The kind of a file that is not an image, from its suffix; None if it is not one of `KINDS`."""
    suffix = os.path.splitext(name)[1].lower()  # noqa: PTH122 (fast)
    return next((kind for kind in KINDS if suffix in kind.suffixes), None)


def refuse_other_kinds(path: str | Path) -> None:
    """Raise an error for a URL, and for a file with the suffix of a video, a RAW photo, a document or an archive."""
    if find_url(path):
        raise VitreousError("is a URL, not a file on this machine: download it first")
    if (kind := file_kind(os.fspath(path))) is not None and os.path.isfile(path):  # noqa: PTH113
        article = "an" if kind.noun[0] in "aeiou" else "a"
        raise VitreousError(f"is {article} {kind.noun}, not an image: {kind.advice}")


def describe_other_files(names: Iterable[str]) -> list[str]:
    """What files without an image suffix are, one text for each kind: "3 videos ('a.mov', 'b.mov', 'c.mov')"."""
    groups: dict[str, list[str]] = {}
    for name in names:
        kind = file_kind(name)
        groups.setdefault(kind.noun if kind else "", []).append(name)
    texts = [
        f"{format_count(len(groups[kind.noun]), kind.noun)} ({summarize_names(groups[kind.noun], 3)})"
        for kind in KINDS
        if kind.noun in groups
    ]
    if others := groups.get(""):
        kinds = Counter(os.path.splitext(name)[1].lower() or "no suffix" for name in others).most_common(4)  # noqa: PTH122
        counts = ", ".join(f"{number:,} {suffix}" for suffix, number in kinds)
        texts.append(f"{format_count(len(others), 'file')} without an image suffix ({counts})")
    return texts
