"""Import paths of the user's own code: `folder/file.py:name` or `package.module:name`.

A run that uses such code stores its import paths, so that another process can import the same functions and classes.
"""

import functools
import importlib
import importlib.util
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches
from hashlib import blake2b
from pathlib import Path
from types import ModuleType
from typing import Any

from vitreous.errors import VitreousError, brief, one_line

FILE_MODULE_PREFIX = "vitreous_user_file_"  # modules imported from a file, in sys.modules

_PACKAGE = str(Path(__file__).parents[1])
_importing: ContextVar[str | None] = ContextVar("importing", default=None)


def is_import_path(text: str) -> bool:
    """Whether a text has the form of an import path: `file.py:name` or `package.module:name`."""
    place, _, name = text.rpartition(":")
    if not all(part.isidentifier() for part in name.split(".")):
        return False
    return place.endswith(".py") or (bool(place) and all(part.isidentifier() for part in place.split(".")))


def import_object(text: str) -> Any:
    """Import the object at an import path. Code of the user runs, and its errors become a VitreousError."""
    place, _, name = text.rpartition(":")
    if not is_import_path(text):
        raise VitreousError(f"{brief(text)}: expected an import path, file.py:name or package.module:name")
    found: Any = _import_file(Path(place).expanduser()) if place.endswith(".py") else _import_module(place)
    for part in name.split("."):
        if not hasattr(found, part):
            near = get_close_matches(part, dir(found), n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise VitreousError(f"{place} has no {part!r}{hint}")
        found = getattr(found, part)
    return found


def import_path_of(value: object) -> str | None:
    """The import path of a class or function that is defined at the top level of a file or module, else None.

    A module that is part of a package or installed is named; a single file and the running script are given as a path,
    so that the import works from any folder.
    """
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    name = getattr(value, "__qualname__", None)
    if module is None or not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
        return None  # an instance, a lambda, or defined inside a function
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not value:
        return None
    file = getattr(module, "__file__", None)
    if "." in module.__name__ or (file is not None and _is_installed(Path(file))):
        return f"{module.__name__}:{name}"
    if file is None or not file.endswith(".py"):  # a notebook, an interactive session or a built-in module
        return None if module.__name__ == "__main__" else f"{module.__name__}:{name}"
    return f"{Path(file).resolve()}:{name}"


def absolute_import_path(text: str) -> str:
    """The same import path with an absolute path of the file, so that it can be imported from any folder."""
    place, _, name = text.rpartition(":")
    return f"{Path(place).expanduser().absolute()}:{name}" if place.endswith(".py") else text


def short_import_path(text: str) -> str:
    """The same import path with the name of the file only."""
    place, _, name = text.rpartition(":")
    return f"{Path(place).name}:{name}" if place.endswith(".py") else text


def object_text(value: object) -> str:
    """A description of an object that has no import path: "<Net object>"."""
    named = value.func if isinstance(value, functools.partial) else value
    named = named if hasattr(named, "__qualname__") else type(named)
    name = str(named.__qualname__).replace("<lambda>", "lambda").replace(".<locals>", "")
    return f"<{'partial ' if isinstance(value, functools.partial) else ''}{name} object>"


def is_object_text(text: str) -> bool:
    """Whether a text has the form of `object_text`."""
    return text.startswith("<") and text.endswith(" object>")


def is_user_code(text: str | None) -> bool:
    """Whether the text of a setting names code of the user."""
    return text is not None and (is_import_path(text) or is_object_text(text))


def source_digest(text: str) -> str | None:
    """A hash of the file with the code at an import path, to detect changes. None: there is no source file."""
    place = text.rpartition(":")[0]
    if place.endswith(".py"):
        file: Path | None = Path(place)
    else:
        module = sys.modules.get(place)
        origin = getattr(module, "__file__", None)
        file = Path(origin) if origin and origin.endswith(".py") else None
    try:
        return None if file is None else blake2b(file.read_bytes(), digest_size=16).hexdigest()
    except OSError:
        return None


def refuse_during_import(action: str) -> None:
    """Raise an error if a file is being imported as user code: its top level must define things, not start runs."""
    if (text := _importing.get()) is not None:
        raise VitreousError(
            f'{text} calls {action} while it is imported: put the call under `if __name__ == "__main__":`'
        )


def run_user_code(what: str, function: Any, *arguments: Any, **named: Any) -> Any:
    """Call code of the user. Its errors become a VitreousError that names the line; the original is its cause."""
    try:
        return function(*arguments, **named)
    except VitreousError:
        raise
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":  # torch's: the caller may try again with fewer images
            raise
        raise VitreousError(f"{what}: {type(error).__name__}: {one_line(error)}{_place_of(error)}") from error


def _place_of(error: BaseException) -> str:
    """The innermost line of the user's own code that an error went through: " (mine.py, line 3)"."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not _is_installed(Path(frame.filename)) and _PACKAGE not in frame.filename]
    return f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise VitreousError(f"{path}: there is no such file")
    path = path.resolve()
    main = sys.modules.get("__main__")
    if main is not None and (own := getattr(main, "__file__", None)) and Path(own).resolve() == path:
        return main  # the running script: its classes must not exist twice
    name = FILE_MODULE_PREFIX + blake2b(f"{path} {path.stat().st_mtime_ns}".encode(), digest_size=8).hexdigest()
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # before it runs, as for every import: dataclasses look their module up
    try:
        with _running(str(path), path.parent):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _import_module(name: str) -> ModuleType:
    with _running(name, Path.cwd()):
        return importlib.import_module(name)


@contextmanager
def _running(what: str, folder: Path) -> Iterator[None]:
    """Run the import of the user's code, with modules of `folder` importable, and explain its errors."""
    before = list(sys.path)
    sys.path.insert(0, str(folder))
    token = _importing.set(what)
    try:
        yield
    except (VitreousError, KeyboardInterrupt):
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (what == error.name or what.startswith(f"{error.name}.")):
            raise VitreousError(f"there is no module {error.name!r}, here or among the installed packages") from error
        raise VitreousError(f"{what}: {one_line(error)}{_line_of(error, what)}") from error
    except (Exception, SystemExit) as error:
        raise VitreousError(f"{what}: {type(error).__name__}: {one_line(error)}{_line_of(error, what)}") from error
    finally:
        _importing.reset(token)
        sys.path[:] = before


def _line_of(error: BaseException, what: str) -> str:
    """The last line of a file that an error went through: " (line 3)"."""
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f" (line {error.lineno})"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == what]
    return f" (line {lines[-1]})" if lines else ""


def _is_installed(file: Path) -> bool:
    folders = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return any(file.resolve().is_relative_to(Path(folder).resolve()) for folder in folders if folder)
