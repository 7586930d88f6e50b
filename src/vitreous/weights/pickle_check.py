"""Check a PyTorch pickle before torch unpickles it.

`torch.load(weights_only=True)` runs no code of the file, but it trusts the sizes that the file declares: a kilobyte can
allocate terabytes, or cause the hash of a tuple that contains itself a billion times. This module interprets the same
opcodes on placeholders. It allows the opcodes and calls that a checkpoint of plain tensors needs, and no others.
"""

import io
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from struct import unpack
from typing import Any, BinaryIO

import torch

from vitreous.errors import VitreousError

MAX_INSTRUCTIONS = 500_000  # about one second; the state dict of a large ViT has about ten thousand
MAX_KEY_VALUES = 1000  # values in a dict key, which may be a nested tuple
ITEM_SIZES = {
    **dict.fromkeys(("DoubleStorage", "LongStorage", "ComplexFloatStorage"), 8),
    **dict.fromkeys(("FloatStorage", "IntStorage"), 4),
    **dict.fromkeys(("HalfStorage", "BFloat16Storage", "ShortStorage"), 2),
    **dict.fromkeys(("CharStorage", "ByteStorage", "BoolStorage"), 1),
    "ComplexDoubleStorage": 16,
}
STORAGES = {f"{module}.{name}": size for name, size in ITEM_SIZES.items() for module in ("torch", "torch.cuda")}
STORAGES["torch.storage.UntypedStorage"] = 1
DTYPE_SIZES = {str(dtype): dtype.itemsize for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
REBUILD_TENSOR = {f"torch._utils._rebuild_tensor{version}" for version in ("", "_v2", "_v3")}
REBUILD_PARAMETER = {f"torch._utils._rebuild_parameter{more}" for more in ("", "_with_state")}
REBUILD_FROM_TYPE = "torch._tensor._rebuild_from_type_v2"
NUMPY_SCALARS = {f"numpy.{core}.multiarray.scalar" for core in ("core", "_core")}
TENSOR_CLASSES = ("torch.Tensor", "torch.nn.parameter.Parameter")
OTHER_ALLOWED = {
    *("collections.OrderedDict", "collections.Counter", "builtins.set", "__builtin__.set", "builtins.complex"),
    *("builtins.bytearray", "torch.Size", "torch.device", "_codecs.encode", "numpy.dtype", "argparse.Namespace"),
}
ALLOWED = {
    *STORAGES,
    *DTYPE_SIZES,
    *REBUILD_TENSOR,
    *REBUILD_PARAMETER,
    REBUILD_FROM_TYPE,
    *NUMPY_SCALARS,
    *TENSOR_CLASSES,
    *OTHER_ALLOWED,
}
# Kinds of tensors that torch can save and that no supported model has, for error messages.
UNSUPPORTED_TENSORS = (
    (r".*(nested_tensor|_njt$|NestedTensor)", "nested tensor"),
    (r".*_rebuild_qtensor|torch\.(cuda\.)?QU?Int\w+Storage", "quantized tensor"),
    (r".*_rebuild_sparse\w*tensor|torch\.serialization\._get_layout", "sparse tensor"),
    (r".*_rebuild_wrapper_subclass", "tensor of a subclass of torch.Tensor"),
    (r".*_rebuild_meta_tensor", "tensor on the meta device, which has no values"),
    (r".*_rebuild_device_tensor", "tensor of a device without storage support in torch"),
    (r"torch\.distributed\..*", "tensor that is distributed over several processes"),
)
# A numpy dtype is pickled as its name and a state that contains only the byte order.
NUMPY_DTYPES = {
    f"{kind}{size}" for kind, sizes in {"f": (2, 4, 8), "i": (1, 2, 4, 8), "b": (1,)}.items() for size in sizes
}
BYTE_ORDERS = {(3, order, None, None, None, -1, -1, 0) for order in "<>|="}


@dataclass(frozen=True)
class Global:
    """A function or class, by its qualified name."""

    name: str


@dataclass(frozen=True)
class Storage:
    """Size of a tensor storage."""

    items: int
    item_size: int


class TupleValue:
    """A tuple. `hash_cost` is the number of values that its hash visits, repeated values included."""

    __slots__ = ("hash_cost", "values")

    def __init__(self, values: list[Any]):
        self.values = tuple(values)
        self.hash_cost = 1 + len(values)
        for value in values:
            if type(value) is TupleValue:
                self.hash_cost = min(self.hash_cost + value.hash_cost, 10**9)


def _hash_cost(value: Any) -> int:
    return value.hash_cost if isinstance(value, TupleValue) else 1


@dataclass(frozen=True)
class ObjectKind:
    """Placeholder for any other object."""

    kind: str


DICT, SET, ORDERED_DICT, TENSOR, BYTES, DTYPE, NAMESPACE, OTHER = (
    ObjectKind(kind) for kind in ("dict", "set", "OrderedDict", "tensor", "bytes", "dtype", "namespace", "other")
)


def check_pickle(file: BinaryIO, stored_bytes: Mapping[str, int] | None = None) -> dict[str, Storage]:
    """Return the storages of a pickle; raise an error if it has more than a checkpoint of plain tensors needs.

    `stored_bytes`: size of each storage in the archive; None if the storages follow in the same file. A damaged pickle
    may also raise other exceptions, as it does in torch.
    """
    checker = _Checker(file, stored_bytes)
    checker.run()
    return checker.storages


class _Checker:
    """Interpreter of the opcodes of torch's unpickler. Its stack holds placeholders instead of objects."""

    def __init__(self, file: BinaryIO, stored_bytes: Mapping[str, int] | None):
        self.file, self.stored_bytes = file, stored_bytes
        position = file.tell()
        self.size = file.seek(0, io.SEEK_END)
        file.seek(position)
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.storages: dict[str, Storage] = {}
        self.last_text = ""  # usually the name of the tensor that is being read

    def run(self) -> None:
        read, step = self.file.read, self._step
        for _ in range(MAX_INSTRUCTIONS):
            code = read(1)
            if code == b".":  # STOP
                self.stack.pop()
                return
            step(code)
        raise VitreousError(
            f"refused: a pickle of more than {MAX_INSTRUCTIONS:,} instructions. Save only its tensors (torch.save of a"
            " state dict, or safetensors)"
        )

    def _read(self, count: int) -> bytes:
        content = self.file.read(count) if count <= self.size else b""  # read() allocates `count` bytes first
        if len(content) < count:
            raise EOFError("the pickle is truncated")
        return content

    def _step(self, code: bytes) -> None:
        if code in _METHODS:
            _METHODS[code](self)
        elif code in _CONSTANTS:
            self.stack.append(_CONSTANTS[code])
        elif code in _NUMBERS:
            form, size = _NUMBERS[code]
            self.stack.append(unpack(form, self._read(size))[0])
        elif not code:
            raise EOFError("the pickle is truncated")
        else:
            raise VitreousError(
                f"refused: a pickle with the instruction {code!r}, which torch.load(weights_only=True) does not"
                " support. Save it with torch.save and its default pickle protocol, 2"
            )

    # ------------------------------------------------ values

    def _unicode(self) -> None:
        self._text(str(self._read(unpack("<I", self._read(4))[0]), "utf-8", "surrogatepass"))

    def _short_string(self) -> None:
        self._text(self._read(self._read(1)[0]).decode("utf-8"))

    def _text(self, text: str) -> None:
        self.last_text = text
        self.stack.append(text)

    def _long(self) -> None:
        self.stack.append(int.from_bytes(self._read(self._read(1)[0]), "little", signed=True))

    def _list(self) -> None:
        self.stack.append([])

    def _global(self) -> None:
        module, name = (self.file.readline(1000)[:-1].decode() for _ in range(2))
        path = f"{module}.{name}"
        if path in ALLOWED:
            self.stack.append(Global(path))
            return
        for pattern, kind in UNSUPPORTED_TENSORS:
            if re.match(pattern, path):
                raise VitreousError(
                    f"{self.last_text[:200] or 'it'} is a {kind}, not a plain tensor: save it as a plain tensor"
                )
        raise VitreousError(
            f"refused: the pickle would run code ({path[:200]}). If you trust the file, load it with torch and save"
            " only its tensors (torch.save of a state dict, or safetensors)"
        )

    # ------------------------------------------------ stack and memo

    def _mark(self) -> None:
        self.marks.append(self.stack)
        self.stack = []

    def _pop_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.marks.pop()
        return items

    def _put(self) -> None:
        self.memo[self._read(1)[0]] = self.stack[-1]

    def _long_put(self) -> None:
        self.memo[unpack("<I", self._read(4))[0]] = self.stack[-1]

    def _get(self) -> None:
        self._push_memo(self._read(1)[0])

    def _long_get(self) -> None:
        self._push_memo(unpack("<I", self._read(4))[0])

    def _push_memo(self, number: int) -> None:
        value = self.memo[number]
        if isinstance(value, str):
            self.last_text = value
        self.stack.append(value)

    # ------------------------------------------------ containers

    def _tuple(self) -> None:
        items = self._pop_mark()
        self.stack.append(TupleValue(items))

    def _short_tuple(self, count: int) -> None:
        if len(self.stack) < count:
            raise IndexError("a tuple of more values than the stack has")
        self.stack[-count:] = [TupleValue(self.stack[-count:])]

    def _append(self) -> None:
        self._extend([self.stack.pop()])

    def _appends(self) -> None:
        self._extend(self._pop_mark())

    def _extend(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not list:
            raise TypeError("append to an object that is not a list")
        self.stack[-1].extend(items)

    def _set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set([key, value])

    def _set_items(self) -> None:
        self._set(self._pop_mark())

    def _set(self, items: list[Any]) -> None:
        if self.stack[-1] not in (DICT, ORDERED_DICT):
            raise TypeError("an item of an object that is not a dict")
        _check_keys(items[::2])

    # ------------------------------------------------ calls

    def _persistent(self) -> None:
        values = _tuple_values(self.stack.pop())
        word, kind, key, _location, items, *view = values
        if word != "storage" or not isinstance(kind, Global) or kind.name not in STORAGES or type(key) is not str:
            raise TypeError("a reference to an object that is not a storage")
        if view not in ([], [None]):
            raise VitreousError("refused: a storage that is a view of another storage, which current files do not have")
        if type(items) is not int or not 0 <= items < 2**60:
            raise TypeError(f"a storage of {str(items)[:40]} numbers")
        storage = Storage(items, STORAGES[kind.name])
        size = storage.items * storage.item_size
        if self.stored_bytes is not None and size > self.stored_bytes.get(key, 0):
            raise ValueError(f"a storage of {size:,} bytes, of which the file has {self.stored_bytes.get(key, 0):,}")
        self.storages.setdefault(key, storage)
        self.stack.append(self.storages[key])

    def _call(self) -> None:
        arguments = _tuple_values(self.stack.pop())
        function = self.stack.pop()
        if not isinstance(function, Global):
            raise TypeError("a call of an object that is not a function")
        self.stack.append(_result(function.name, arguments))

    def _new(self) -> None:
        arguments, kind = _tuple_values(self.stack.pop()), self.stack.pop()
        if kind == Global("argparse.Namespace") and not arguments:
            self.stack.append(NAMESPACE)
        elif kind == Global("collections.OrderedDict") and not arguments:
            self.stack.append(ORDERED_DICT)
        else:
            raise VitreousError("refused: the pickle creates objects of classes that a state dict does not have")

    def _build(self) -> None:
        state, target = self.stack.pop(), self.stack[-1]
        if target == DTYPE and isinstance(state, TupleValue) and state.values in BYTE_ORDERS:
            return
        if target not in (ORDERED_DICT, NAMESPACE) or state not in (DICT, ORDERED_DICT):
            raise VitreousError("refused: the pickle sets the state of objects that a state dict does not have")


_CONSTANTS: dict[bytes, Any] = {
    b"N": None,
    b"\x88": True,
    b"\x89": False,
    b")": TupleValue([]),
    b"}": DICT,
    b"\x8f": SET,
}
_NUMBERS = {b"J": ("<i", 4), b"K": ("<B", 1), b"M": ("<H", 2), b"G": (">d", 8)}
_METHODS = {
    b"\x80": lambda self: self._read(1),  # protocol number
    b"X": _Checker._unicode,
    b"U": _Checker._short_string,
    b"\x8a": _Checker._long,
    b"]": _Checker._list,
    b"c": _Checker._global,
    b"(": _Checker._mark,
    b"q": _Checker._put,
    b"r": _Checker._long_put,
    b"h": _Checker._get,
    b"j": _Checker._long_get,
    b"t": _Checker._tuple,
    b"\x85": lambda self: self._short_tuple(1),
    b"\x86": lambda self: self._short_tuple(2),
    b"\x87": lambda self: self._short_tuple(3),
    b"a": _Checker._append,
    b"e": _Checker._appends,
    b"s": _Checker._set_item,
    b"u": _Checker._set_items,
    b"Q": _Checker._persistent,
    b"R": _Checker._call,
    b"\x81": _Checker._new,
    b"b": _Checker._build,
}


def _tuple_values(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, TupleValue):
        raise TypeError("arguments that are not a tuple")
    return value.values


def _check_keys(keys: list[Any]) -> None:
    """Refuse large tuples as dict keys: hashing a tuple visits all its values."""
    if any(_hash_cost(key) > MAX_KEY_VALUES for key in keys):
        raise VitreousError(f"refused: a pickle with a dict key of more than {MAX_KEY_VALUES} values")


def _result(name: str, arguments: tuple[Any, ...]) -> Any:
    """Return a placeholder for the result of a call; refuse calls that a checkpoint does not need."""
    if name in REBUILD_TENSOR:
        _check_tensor(*arguments[:4], *(arguments[6:7] if name.endswith("v3") else ()))
        return TENSOR
    if name in REBUILD_PARAMETER and arguments[:1] == (TENSOR,):
        return TENSOR
    if name == REBUILD_FROM_TYPE and len(arguments) == 4:
        inner, kind, rest, _state = arguments
        known = isinstance(inner, Global) and inner.name in REBUILD_TENSOR | REBUILD_PARAMETER
        if known and isinstance(kind, Global) and kind.name in TENSOR_CLASSES:
            return _result(inner.name, _tuple_values(rest))
    if name in _CALLS:
        kind, accepts = _CALLS[name]
        if accepts(arguments):
            return kind
    raise VitreousError(f"refused: the pickle calls {name} with arguments that no state dict has")


def _check_tensor(storage: Any, offset: Any, sizes: Any, strides: Any, dtype: Global | None = None) -> None:
    """Check that a tensor is inside its storage. Otherwise torch would enlarge the storage."""
    if not isinstance(storage, Storage) or not isinstance(dtype, Global | None):
        raise TypeError("a tensor without a storage, or without a dtype")
    sizes, strides = _tuple_values(sizes), _tuple_values(strides)
    integers = all(type(n) is int and 0 <= n < 2**60 for n in (offset, *sizes, *strides))
    if not integers or len(sizes) != len(strides) or len(sizes) > 64 or math.prod(n or 1 for n in sizes) >= 2**60:
        raise TypeError("a tensor with invalid sizes or strides")
    item_size = storage.item_size if dtype is None else DTYPE_SIZES[dtype.name]
    extent = 1 + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True)) if all(sizes) else 0
    if (offset + extent) * item_size > storage.items * storage.item_size:
        raise ValueError(f"a tensor of shape {sizes} that exceeds its storage of {storage.items:,} numbers")


def _is_list(value: Any) -> bool:
    return type(value) is list


def _is_ordered_dict(arguments: tuple[Any, ...]) -> bool:
    """Whether these are arguments of OrderedDict: none, or, as Python 2 wrote them, a list of pairs."""
    if not arguments:
        return True
    if len(arguments) != 1 or not _is_list(arguments[0]):
        return False
    pairs = [pair.values if isinstance(pair, TupleValue) else pair for pair in arguments[0]]
    if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
        return False
    _check_keys([pair[0] for pair in pairs])
    return True


def _is_set(arguments: tuple[Any, ...]) -> bool:
    if len(arguments) != 1 or not _is_list(arguments[0]):
        return not arguments
    _check_keys(arguments[0])
    return True


def _is_text(arguments: tuple[Any, ...]) -> bool:
    return bool(arguments) and type(arguments[0]) is str


def _is_size(arguments: tuple[Any, ...]) -> bool:
    values = arguments[0].values if len(arguments) == 1 and isinstance(arguments[0], TupleValue) else (None,)
    return all(type(n) is int for n in values)


# Function name -> (placeholder for the result, check whether the arguments occur in state dicts).
_CALLS: dict[str, tuple[Any, Any]] = {
    "collections.OrderedDict": (ORDERED_DICT, _is_ordered_dict),
    "collections.Counter": (DICT, lambda arguments: arguments in ((), (DICT,))),
    "builtins.set": (SET, _is_set),
    "__builtin__.set": (SET, _is_set),
    "builtins.complex": (OTHER, lambda arguments: [type(a) for a in arguments] == [float, float]),
    "builtins.bytearray": (OTHER, lambda arguments: arguments == (BYTES,)),
    "torch.Size": (OTHER, _is_size),
    "torch.device": (OTHER, lambda arguments: all(isinstance(a, str | int) for a in arguments)),
    "_codecs.encode": (BYTES, lambda arguments: _is_text(arguments) and arguments[1:] == ("latin1",)),
    "numpy.dtype": (DTYPE, lambda arguments: _is_text(arguments) and arguments[0] in NUMPY_DTYPES),
    **dict.fromkeys(NUMPY_SCALARS, (OTHER, lambda arguments: arguments == (DTYPE, BYTES))),
}
