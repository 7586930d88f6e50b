"""Read TOML files with a size limit and exact error messages, and write TOML values."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

from vitreous.errors import VitreousError, brief, one_line
from vitreous.utils.console import printable
from vitreous.utils.regular_files import read_regular

MAX_TOML_BYTES = 1_000_000
ESCAPES = {"\\": "\\\\", '"': '\\"', "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}


def read_toml(path: str | os.PathLike[str]) -> tuple[dict[str, Any], str]:
    """Return the content of a TOML file, and its text. Errors name the file, the line and the column."""
    path = Path(path)
    try:
        content = read_regular(path, MAX_TOML_BYTES)
    except VitreousError as error:
        raise error.at(path) from error
    except OSError as error:
        raise VitreousError(f"{path}: cannot be read ({error.strerror or error})") from error
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise VitreousError(f"{path}: cannot be read: line {line} is not UTF-8 text") from error
    try:
        return tomllib.loads(text), text
    except (ValueError, RecursionError) as error:  # ValueError: also for an integer with thousands of digits
        raise VitreousError(f"{path}: cannot be read: it is not valid TOML: {one_line(error)}") from error


def key_line(text: str, key: str, table: str = "") -> int | None:
    """Return the number of the line with a key of a table, for error messages. None: it was not found.

    `text` is valid TOML. Keys may be quoted or dotted; text in multi-line strings may be mistaken for a key.
    """
    current = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[+\s*([^\[\]]+?)\s*\]", line):
            current = header[1].strip("\"' ")
            if current == key and not table:
                return number
        elif found := re.match(r"\s*([^#=]+?)\s*=", line):
            parts = [part.strip("\"' ") for part in found[1].split(".")]
            wanted = [key] if current == table else [table, key] if not current else []
            if parts[: len(wanted)] == wanted != []:
                return number
    return None


def toml_value(value: Any, ascii_only: bool = False) -> str:
    """Return a value of a setting as TOML. `ascii_only`: escape all other characters, for outputs that lack them."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return f'"{"".join(_escape(character, ascii_only) for character in value)}"'
    if isinstance(value, tuple | list):
        return f"[{', '.join(toml_value(item, ascii_only) for item in value)}]"
    raise VitreousError(f"{brief(value)} cannot be written to a TOML file")


def _escape(character: str, ascii_only: bool) -> str:
    if character in ESCAPES:
        return ESCAPES[character]
    code = ord(character)
    if 0xD800 <= code < 0xE000:  # a byte of a file name that is not UTF-8
        raise VitreousError("a name that is not UTF-8 text cannot be written to a TOML file: rename the file")
    if character.isprintable() and (code < 0x7F or not ascii_only):
        return character
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def toml_comment(text: str, ascii_only: bool = False) -> str:
    """Return a comment on one line."""
    shown = printable(" ".join(text.split()))
    return f"# {shown.encode('ascii', 'replace').decode() if ascii_only else shown}"
