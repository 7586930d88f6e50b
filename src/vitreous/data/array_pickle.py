"""A restricted unpickler: reads dicts of numpy arrays, lists, numbers and strings, and runs no code from the file."""

import io
import pickle
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import VitreousError, brief, one_line

MAX_INSTRUCTIONS = 2_000_000  # the largest file of CIFAR-100 has about 250,000
ALLOWED_DTYPES = re.compile(r"[iu][1248]|f[248]|b1|[SU]\d{1,9}")  # no objects, fields or dates
REFUSED = "refused: the pickle contains more than arrays"
FORBIDDEN_OPCODES = (  # sets, objects, references to other files
    *(pickle.EMPTY_SET, pickle.ADDITEMS, pickle.FROZENSET),
    *(pickle.NEWOBJ, pickle.NEWOBJ_EX, pickle.OBJ, pickle.INST),
    *(pickle.PERSID, pickle.BINPERSID, pickle.EXT1, pickle.EXT2, pickle.EXT4),
    *(pickle.NEXT_BUFFER, pickle.READONLY_BUFFER),
)


def load_array_pickle(data: bytes) -> Mapping[str, Any]:
    """The dict in a pickle. Pickles that need any function or class other than those of numpy arrays are refused."""
    try:
        content = _ArrayUnpickler(data).load()
    except VitreousError:
        raise
    except Exception as error:  # a damaged pickle can raise any exception
        raise VitreousError(f"not a readable pickle, or truncated ({one_line(error)})") from error
    if not isinstance(content, dict):
        raise VitreousError(f"expected a dict, got {type(content).__name__}")
    return {
        to_text(key): value.values if isinstance(value, _Array) else value
        for key, value in content.items()
        if isinstance(key, str | bytes)
    }


def to_text(text: Any) -> str:
    """A string from a pickle, which is bytes if Python 2 wrote it."""
    return text.decode("latin1") if isinstance(text, bytes) else str(text)


@dataclass
class _DType:
    """Replaces numpy.dtype, which accepts any state from a pickle, even one that interprets bytes as pointers."""

    name: str
    order: str = "="

    def build(self, state: Any) -> None:
        version, order, subarray, names, fields, *_ = state
        if version != 3 or order not in ("<", ">", "|", "=") or (subarray, names, fields) != (None, None, None):
            raise VitreousError(REFUSED)
        self.order = order

    def numpy(self) -> np.dtype[Any]:
        return np.dtype(self.order + self.name)


@dataclass
class _Array:
    """Replaces numpy.ndarray until its values are read, since a pickle could allocate an array of any size."""

    values: NDArray[Any] | None = None

    def build(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        raw = data.encode("latin1") if isinstance(data, str) else data  # Python 2 wrote a string
        self.values = _make_array(raw, dtype, shape, "F" if fortran else "C")


def _make_array(data: Any, dtype: Any, shape: Any, order: Any) -> NDArray[Any]:
    if not isinstance(data, bytes) or not isinstance(dtype, _DType):
        raise VitreousError(REFUSED)
    values: NDArray[Any] = np.ndarray(shape, dtype.numpy(), data, order=order)
    if values.nbytes != len(data):
        raise VitreousError(f"an array needs {values.nbytes:,} bytes, but the pickle has {len(data):,}")
    return values


def _dtype(name: Any, *_: Any) -> _DType:
    if not isinstance(name, str | bytes) or not ALLOWED_DTYPES.fullmatch(to_text(name)):
        raise VitreousError(REFUSED)
    return _DType(to_text(name))


def _ndarray(*_: Any) -> None:
    """Pickles of arrays refer to this class, but never call it."""
    raise VitreousError(REFUSED)


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _frombuffer(data: Any, dtype: Any, shape: Any, order: Any) -> _Array:
    return _Array(_make_array(data, dtype, shape, order))


class _CountedDispatch(dict[int, Any]):
    """A dispatch table that raises an error after `MAX_INSTRUCTIONS` lookups."""

    left = MAX_INSTRUCTIONS

    def __getitem__(self, code: int) -> Any:
        self.left -= 1
        if self.left < 0:
            raise VitreousError(f"refused: the pickle has more than {MAX_INSTRUCTIONS:,} instructions")
        return super().__getitem__(code)


PYTHON_UNPICKLER: Any = pickle._Unpickler


class _ArrayUnpickler(PYTHON_UNPICKLER):  # type: ignore[misc]
    """An unpickler that can only build numpy arrays and plain Python values.

    It extends Python's unpickler in Python, since the one in C allocates as much memory as the file asks for (its
    memo). Opcodes that arrays do not need are removed. Keys of dicts must be strings: hashing nested tuples can take
    forever.
    """

    instructions: ClassVar = {
        code: read for code, read in PYTHON_UNPICKLER.dispatch.items() if bytes([code]) not in FORBIDDEN_OPCODES
    }

    def __init__(self, data: bytes):
        super().__init__(io.BytesIO(data), encoding="latin1")
        self.dispatch = _CountedDispatch(self.instructions)
        self.encodable = len(data)

    def load_build(self) -> None:
        state = self.stack.pop()
        if not isinstance(self.stack[-1], _Array | _DType):
            raise VitreousError(REFUSED)
        self.stack[-1].build(state)

    def load_bytearray8(self) -> None:
        """Read bytes instead of a bytearray, and only as many as the file has: Python allocates the memory first."""
        (size,) = struct.unpack("<Q", self.read(8))
        data = self.read(size)
        if len(data) < size:
            raise EOFError("an array is truncated")
        self.append(data)

    def load_setitem(self) -> None:
        self._check_keys(self.stack[-2:-1])
        super().load_setitem()

    def load_setitems(self) -> None:
        self._check_keys(self.stack[::2])  # keys and values alternate since the mark
        super().load_setitems()

    def load_dict(self) -> None:
        self._check_keys(self.stack[::2])
        super().load_dict()

    def _check_keys(self, keys: list[Any]) -> None:
        if not all(isinstance(key, str | bytes) for key in keys):
            raise VitreousError("refused: the keys of a dict are not strings")

    for _code, _read in (
        (pickle.BUILD, load_build),
        (pickle.BYTEARRAY8, load_bytearray8),
        (pickle.SETITEM, load_setitem),
        (pickle.SETITEMS, load_setitems),
        (pickle.DICT, load_dict),
    ):
        instructions[_code[0]] = _read

    def find_class(self, module: str, name: str) -> Any:
        allowed = {
            ("numpy", "ndarray"): _ndarray,
            ("numpy", "dtype"): _dtype,
            ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
            ("numpy._core.numeric", "_frombuffer"): _frombuffer,
            ("_codecs", "encode"): self._encode,
        }
        new_module = module.replace("numpy.core", "numpy._core")  # renamed in numpy 2
        if (new_module, name) not in allowed:
            raise VitreousError(f"refused: the pickle refers to {brief(f'{module}.{name}')}, which could run any code")
        return allowed[new_module, name]

    def _encode(self, text: Any, encoding: Any) -> bytes:
        """Replaces codecs.encode, which Python 3 calls for bytes in old protocols.

        The total length is limited to the size of the file: encoding the same text thousands of times would take as
        much memory.
        """
        if encoding != "latin1" or not isinstance(text, str):
            raise VitreousError(REFUSED)
        self.encodable -= len(text)
        if self.encodable < 0:
            raise VitreousError("refused: the pickle repeats the same bytes many times")
        return text.encode("latin1")
