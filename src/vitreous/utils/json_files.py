"""Read JSON files with a size limit, and write them indented."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitreous.errors import VitreousError, one_line
from vitreous.utils.regular_files import read_regular

# Parsed JSON takes up to 30 times as much memory, and a folder may have two such files.
MAX_JSON_BYTES = 10_000_000


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file."""
    try:
        value = json.loads(read_regular(path, MAX_JSON_BYTES).decode())
    except VitreousError as error:
        raise VitreousError(f"{path.name} {error}") from error
    except OSError as error:
        raise VitreousError(f"{path.name} cannot be read ({error.strerror or error})") from error
    except (ValueError, RecursionError) as error:
        raise VitreousError(f"{path.name} is not JSON ({one_line(error)})") from error
    if not isinstance(value, dict):
        raise VitreousError(f"{path.name} holds a {type(value).__name__}, not an object")
    return value


def dump_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write an object to a JSON file. Not atomic: use it with `atomic_file`."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
