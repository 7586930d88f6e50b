"""The errors that vitreous raises, and helpers that format values for their messages."""

import os
import re
import reprlib
from collections.abc import Iterable
from typing import Self

MAX_MESSAGE = 4_000  # characters


class VitreousError(ValueError):
    """A wrong setting, file or input. The message says what, where, and what to do; the CLI prints it alone.

    It is a `ValueError`. All functions of the package raise it for what the caller can correct. The middle of a very
    long message is left out: a damaged file may contain names of any length.

    >>> try:
    ...     vitreous.create("B/17")
    ... except vitreous.VitreousError as error:
    ...     print(error)
    unknown model 'B/17': did you mean B/16 or B/14? ...
    """

    def __init__(self, message: str = ""):
        if len(message) > MAX_MESSAGE:
            message = f"{message[: MAX_MESSAGE // 2]} [...] {message[-MAX_MESSAGE // 2 :]}"
        super().__init__(message)

    def at(self, where: object) -> Self:
        """Return the same error with the file, row or setting that it concerns before its message."""
        return type(self)(f"{where}: {self}")


class SystemFaultError(VitreousError):
    """The system failed (too many open files, no memory, a disk or network error), not the file that was being read.

    It ends a command and is never counted as an unreadable image, because the next image may fail in the same way.
    """


class VitreousWarning(UserWarning):
    """A warning: the result can be used, but something about it differs from what one might expect.

    For example, a file is written that does not contain all of the model. Turn warnings into errors with Python's
    `warnings`:

    >>> import warnings
    >>> model = vitreous.load("vitreous-mini")
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", vitreous.VitreousWarning)
    ...     vitreous.save(model, "mini.npz", to="google", force=True)
    Traceback (most recent call last):
    ...
    vitreous.errors.VitreousWarning: mini.npz: google cannot represent all of this model; ...
    """


def find_url(path: str | os.PathLike[str]) -> str | None:
    """Return the URL if `path` is a URL and no such file exists, else None. `pathlib` merges the two slashes of a URL:
    both are restored."""
    text = os.fsdecode(path)
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):/{1,2}(?=[^/])", text)
    return f"{match[1]}://{text[match.end() :]}" if match and not os.path.lexists(text) else None


def refuse_url(path: str | os.PathLike[str], instead: str = "download it, and give the name of the file") -> None:
    """Raise an error if `path` is a URL."""
    if url := find_url(path):
        raise VitreousError(f"{url}: this is a URL, not a file or folder on this machine: {instead}")


def brief(value: object) -> str:
    """Return a value as text for a message: its repr, or if that is long, its type. Works for any object."""
    return _BRIEF.repr(value)


def summarize_names(names: Iterable[object], limit: int = 5) -> str:
    """The first names in quotes and the number of the others: "'a', 'b' and 3 more"."""
    names = list(names)
    first = ", ".join(map(brief, names[:limit]))
    return first + (f" and {len(names) - limit:,} more" if len(names) > limit else "")


def format_count(number: int, noun: str) -> str:
    """A number with its noun in the singular or plural: "1 image", "2,000 classes"."""
    return f"{number:,} {noun}" + ("" if number == 1 else "es" if noun.endswith("s") else "s")


class _Brief(reprlib.Repr):
    """Shortens strings and collections as `reprlib` does, and shows other objects with a long repr by their type."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = 80

    def repr_int(self, value: int, level: int) -> str:
        # Python refuses to format integers of thousands of digits.
        return super().repr_int(value, level) if value.bit_length() < 1000 else "a very large number"

    def repr_instance(self, value: object, level: int) -> str:
        kind = type(value).__name__
        if isinstance(value, type):
            return f"the class {value.__name__}"
        shape = getattr(value, "shape", None)
        if isinstance(shape, tuple) and shape:  # an array or a tensor
            return f"{_article(kind)} of shape {tuple(shape)}"
        try:
            text = repr(value)
        except Exception:  # __repr__ of the user's class may raise anything
            return _article(kind)
        readable = len(text) <= self.maxstring and "\n" not in text and " at 0x" not in text
        return text if readable else _article(kind)


def _article(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


_BRIEF = _Brief()


def one_line(error: BaseException) -> str:
    """Return the message of an exception on one line of at most 160 characters, for use in another message."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 160 else text[:157] + "..."
