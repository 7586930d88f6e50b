"""The images of `vitreous predict`: files, folders, patterns, a list of paths, or bytes from standard input."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitreous.errors import VitreousError
from vitreous.utils.regular_files import read_text

STDIN = "-"
MAX_BYTES = 2**30  # of an image or a list from standard input


@dataclass(frozen=True)
class PredictionInput:
    name: str  # for display
    content: Path | bytes


def collect_inputs(images: Sequence[str], paths_from: str | None = None) -> list[PredictionInput]:
    """Return the images of the command line. `-` is one image from standard input; `paths_from`: file with a list of
    paths, or `-` for a list from standard input."""
    from vitreous.data.image_files import find_images

    if STDIN in images and paths_from == STDIN:
        raise VitreousError("standard input cannot be both an image (-) and a list of paths (--paths-from -)")
    patterns = [image for image in images if image != STDIN]
    if paths_from is not None:
        patterns += read_path_list(paths_from)
    found = [PredictionInput(str(path), path) for path in find_images(patterns)] if patterns else []
    if STDIN in images:
        found.append(PredictionInput(STDIN, _read_stdin_image()))
    if not found:
        raise VitreousError("no images were given")
    return found


def read_path_list(source: str) -> list[str]:
    """Return the paths in a file or in standard input: one per line, or separated by null characters."""
    name = "standard input" if source == STDIN else source
    try:
        text = _read_stdin().decode(errors="surrogateescape") if source == STDIN else read_text(Path(source))
    except (OSError, UnicodeDecodeError) as error:
        raise VitreousError(
            f"{name}: this list cannot be read ({getattr(error, 'strerror', None) or error})"
        ) from error
    paths = text.split("\0") if "\0" in text else text.splitlines()
    if not any(paths):
        raise VitreousError(f"{name}: the list of paths is empty")
    return [path for path in paths if path]


def _read_stdin() -> bytes:
    stream = sys.stdin
    if stream is None or stream.closed or stream.isatty():
        raise VitreousError("standard input is not connected: pipe data into it, or give names of files")
    try:
        content = stream.buffer.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise VitreousError(f"standard input cannot be read ({getattr(error, 'strerror', None) or error})") from error
    if len(content) > MAX_BYTES:
        raise VitreousError(f"standard input: more than {MAX_BYTES:,} bytes")
    return content


def _read_stdin_image() -> bytes:
    content = _read_stdin()
    if not content:
        raise VitreousError("standard input is empty: expected the bytes of an image")
    if _is_text(content[:4096]) and not content.startswith((b"P1", b"P2", b"P3")):  # PPM images may be text
        raise VitreousError(
            "standard input contains text, and - expects the bytes of one image; a list of paths: --paths-from -"
        )
    return content


def _is_text(start: bytes) -> bool:
    """Return whether the start of a file is UTF-8 text, of which the last character may be cut off."""
    text = start.decode("utf-8", "ignore")
    return len(text.encode()) >= len(start) - 3 and "".join(text.split()).isprintable()
