"""The images to predict: files, folders, patterns, a list of paths, bytes from standard input, or images in memory."""

import codecs
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from glob import has_magic
from pathlib import Path

import numpy as np
from PIL.Image import Image
from torch import Tensor

from vitreous.errors import VitreousError, brief
from vitreous.preprocessing import ImageLike
from vitreous.utils.regular_files import read_regular

STDIN = "-"
MAX_BYTES = 2**30  # of an image or a list from standard input
IMAGE_STARTS = (b"\xff\xd8\xff", b"\x89PNG")  # of the most frequent formats


@dataclass(frozen=True)
class PredictionInput:
    name: str  # for display
    content: ImageLike


def image_inputs(images: object, paths_from: str | None = None) -> list[PredictionInput]:
    """Return the images of the Python function: one image or several, in any form that `Preprocessing` accepts. Folders
    and patterns stand for their images. An image that is given twice is predicted twice."""
    from vitreous.data.image_files import find_images

    if isinstance(images, np.ndarray | Tensor):
        several: Sequence[object] = [images] if images.ndim < 4 else list(images)
    else:
        several = images if isinstance(images, list | tuple) else [images]
    patterns = [] if paths_from is None else read_path_list(paths_from)
    found: list[PredictionInput] = []
    for number, image in enumerate([*several, *patterns]):
        if isinstance(image, str | os.PathLike):
            found += [PredictionInput(str(path), path) for path in find_images([Path(os.fsdecode(image))])]
        elif isinstance(image, bytes | Image | np.ndarray | Tensor):
            found.append(PredictionInput(f"image {number}", image))
        else:
            raise VitreousError(f"image {number}: expected a path, an image, an array or a tensor, got {brief(image)}")
    if not found:
        raise VitreousError("no images were given")
    return found


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
    content = (_read_stdin() if source == STDIN else _read_list(source)).removeprefix(codecs.BOM_UTF8)
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise VitreousError(f"{name}: this list is encoded in UTF-16: save it as UTF-8")
    if content.startswith(IMAGE_STARTS):
        raise VitreousError(f"{name}: this is an image, and --paths-from expects a list of paths")
    # Not str.splitlines, which also splits at characters that a file name can contain. A name may be invalid UTF-8.
    separator = b"\0" if b"\0" in content else b"\n"
    lines = [line if separator == b"\0" else line.removesuffix(b"\r") for line in content.split(separator)]
    paths = [os.fsdecode(line) for line in lines if line.strip()]
    if not paths:
        raise VitreousError(f"{name}: the list of paths is empty")
    for path in paths:
        if has_magic(path) and not os.path.lexists(path):  # it would be expanded as a pattern, to other files
            raise VitreousError(f"{path}: there is no such file or folder, and patterns are not expanded in {name}")
    return paths


def _read_list(source: str) -> bytes:
    try:
        return read_regular(source, MAX_BYTES)
    except OSError as error:
        raise VitreousError(f"{source}: this list cannot be read ({error.strerror or error})") from error
    except VitreousError as error:
        expected = "--paths-from expects a file with a list of paths, or - for a list from standard input"
        raise VitreousError(f"{source} {error}: {expected}") from error


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
