"""Files that would exhaust memory or time, or block the reader. Each is refused with one sentence."""

import io
import json
import os
import re
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from fuzzing import Assembler

import vitreous
from helpers import tiny_vit
from limits import limited
from vitreous import VitreousError
from vitreous.weights.containers import write_tensors

MAKERS: dict[str, "Case"] = {}


@dataclass
class Case:
    make: Callable[[Path], Any]
    file: str
    expected: str  # a pattern
    options: dict[str, Any] = field(default_factory=dict)


def case(file: str, expected: str, **options: Any) -> Callable[[Callable[[Path], Any]], None]:
    """Register a function that writes a file, with the expected error of `load`."""

    def add(make: Callable[[Path], Any]) -> None:
        MAKERS[make.__name__] = Case(make, file, expected, options)

    return add


def state() -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in tiny_vit(gelu="erf").named_parameters()}


# ---------------------------------------------------------------- pickles

make = Assembler(Random(0))


def archive(path: Path, content: bytes, storage: bytes = bytes(96)) -> None:
    """Write a PyTorch file with this pickle."""
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x/data.pkl", b"\x80\x02" + content + b".")
        file.writestr("x/version", "3\n")
        file.writestr("x/data/0", storage)


def call(name: str, *arguments: bytes) -> bytes:
    return make.some_global(name) + make.tuple_of(*arguments) + b"R"


def tensor(count: int, size: int, stride: int) -> bytes:
    """Return the instructions of a 1-D tensor whose storage declares `count` numbers."""
    parts = [make.text("storage"), make.some_global("torch FloatStorage"), make.text("0"), make.text("cpu")]
    storage = make.tuple_of(*parts, make.number(count)) + b"Q"
    shape = [make.tuple_of(make.number(n)) for n in (size, stride)]
    hooks = make.some_global("collections OrderedDict") + b")R"
    return call("torch._utils _rebuild_tensor_v2", storage, make.number(0), *shape, b"\x89", hooks)


def doubled(times: int) -> bytes:
    """(x, x) of (x, x) of ..., each level in two instructions."""
    return b")" + b"".join(b"r" + struct.pack("<I", i) + b"j" + struct.pack("<I", i) + b"\x86" for i in range(times))


@case("x.pth", "the weights are nested more than 8 dicts deep: model.model.model")
def contains_itself(path: Path) -> None:
    content: dict[str, Any] = {"epoch": 3}
    content["model"] = content
    torch.save(content, path)
    assert path.stat().st_size < 2000


@case("x.pth", "the weights are nested more than 8 dicts deep: model.state_dict.model")
def contains_itself_in_two_steps(path: Path) -> None:
    content: dict[str, Any] = {}
    content["model"] = {"state_dict": content}
    torch.save(content, path, _use_new_zipfile_serialization=False)


@case("x.pth", "refused: a pickle with a dict key of more than 1000 values")
def key_that_takes_forever_to_hash(path: Path) -> None:
    archive(path, b"}" + doubled(64) + b"Ns")


@case("x.pth", "refused: a pickle with a dict key of more than 1000 values")
def key_that_overflows_the_stack(path: Path) -> None:
    archive(path, b"})" + b"\x85" * 200_000 + b"Ns")


@case("x.pth", "refused: the pickle calls builtins.bytearray with arguments that no state dict has")
def bytes_without_end(path: Path) -> None:
    archive(path, b"}" + make.text("x") + call("builtins bytearray", make.number(2 * 10**9)) + b"s")


@case("x.pth", "truncated or damaged .a storage of 40,000,000,000 bytes, of which the file has 96")
def storage_larger_than_its_file(path: Path) -> None:
    archive(path, b"}" + make.text("x") + tensor(10**10, 24, 1) + b"s")


@case("x.pth", "truncated or damaged .a tensor of shape .600000000,. that exceeds its storage of 24 numbers")
def tensor_larger_than_its_storage(path: Path) -> None:
    archive(path, b"}" + make.text("x") + tensor(24, 600_000_000, 1) + b"s")


@case("x.pth", r"truncated or damaged \(tensors of 2,400,000,000 bytes, of which the file has")
def legacy_storage_larger_than_its_file(path: Path) -> None:
    torch.save({"x": torch.zeros(24)}, path, _use_new_zipfile_serialization=False)
    content = path.read_bytes()
    declared = content.index(b"cpu") + 5  # after the location and its memo entry: the number of values, K 24
    assert content[declared : declared + 2] == b"K\x18"
    path.write_bytes(content[:declared] + b"J" + struct.pack("<i", 600_000_000) + content[declared + 2 :])


@case("x.pth", "refused: a pickle of more than 500,000 instructions")
def values_without_end(path: Path) -> None:
    archive(path, b"](" + b"}" * 20_000_000 + b"e")


@case("x.pth", "refused: x/data/0 is compressed, which torch.save does not do", heads=3)
def compressed_storages(path: Path) -> None:
    torch.save(state(), path)
    with zipfile.ZipFile(path) as old:
        members = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path, "w") as new:
        for name, content in members.items():
            method = zipfile.ZIP_DEFLATED if "/data/" in name else zipfile.ZIP_STORED
            new.writestr(name, content, method)


@case("x.pth", "the same name twice: 'x/data.pkl'")
def two_pickles(path: Path) -> None:
    archive(path, b"}")
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("x/DATA.PKL", b"\x80\x02}.")


@case("x.pth", r"its tensors have 1\.\d GiB, but share 9\.0 MiB of memory: save copies")
def many_tensors_of_one_storage(path: Path) -> None:
    """The tensors of a ViT with 48 layers, each a transposed view, which loading would copy."""
    memory = torch.zeros(768 * 3072)
    shapes = {"attn.qkv.weight": (2304, 768), "mlp.fc1.weight": (3072, 768), "mlp.fc2.weight": (768, 3072)}
    views = {name: memory[: rows * cols].view(cols, rows).t() for name, (rows, cols) in shapes.items()}
    torch.save({f"blocks.{i}.{name}": view for i in range(48) for name, view in views.items()}, path)
    assert path.stat().st_size < 10_000_000


@case("x.pth", "cls_token is a nested tensor, not a plain tensor", heads=3)
def nested_tensor(path: Path) -> None:
    parts = [torch.ones(2, 3), torch.ones(3, 3)]
    torch.save(state() | {"cls_token": torch.nested.nested_tensor(parts)}, path)


@case("x.pth", "cls_token is a nested tensor, not a plain tensor", heads=3)
def jagged_tensor(path: Path) -> None:
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(3, 3)], layout=torch.jagged)
    torch.save(state() | {"cls_token": nested}, path)


@case("x.pth", "cls_token is a sparse tensor, not a plain tensor", heads=3)
def sparse_tensor(path: Path) -> None:
    torch.save(state() | {"cls_token": torch.ones(3, 3).to_sparse_csr()}, path)


@case("x.pth", "cls_token is a quantized tensor, not a plain tensor", heads=3)
def quantized_tensor(path: Path) -> None:
    torch.save(state() | {"cls_token": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)}, path)


class Wrapper(torch.Tensor):
    """A tensor subclass."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "Wrapper":
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError


@case("x.pth", "cls_token is a tensor of a subclass of torch.Tensor, not a plain tensor", heads=3)
def wrapped_tensor(path: Path) -> None:
    torch.save({"cls_token": Wrapper(torch.ones(3))}, path)


# ---------------------------------------------------------------- zip archives of numpy


@case("x.npz", r"refused: the archive expands from 1\.\d MiB to 1\.2 GiB, which no real checkpoint does")
def deflate_bomb(path: Path) -> None:
    """One array of zeros, assembled from compressed pieces: compressing all of it would take seconds."""
    size = 300 * 4 * 2**20
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (size // 4,)})
    start = header.getvalue()
    piece, packer, check = bytes(4 * 2**20), zlib.compressobj(9, zlib.DEFLATED, -15), zlib.crc32(start)
    packed = packer.compress(piece) + packer.flush(zlib.Z_FULL_FLUSH)  # then the same input gives the same bytes
    for _ in range(300):
        check = zlib.crc32(piece, check)
    stored = b"\0" + struct.pack("<HH", len(start), len(start) ^ 0xFFFF) + start  # a block that is not compressed
    data, total = stored + 300 * packed + packer.flush(zlib.Z_FINISH), len(start) + size
    fields = struct.pack("<HHHHHIIIHH", 20, 0, 8, 0, 0x21, check, len(data), total, 5, 0)
    local = b"PK\x03\x04" + fields + b"x.npy" + data
    central = b"PK\x01\x02" + struct.pack("<H", 20) + fields + struct.pack("<HHHII", 0, 0, 0, 0, 0) + b"x.npy"
    path.write_bytes(local + central + b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(central), len(local), 0))
    assert path.stat().st_size < 2_000_000


@case("x.npz", r"x: an array of float32 and shape \(600000000,\) does not fit its 96 bytes: the file is damaged")
def array_larger_than_its_file(path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (600_000_000,)})
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x.npy", header.getvalue() + bytes(96))


# ---------------------------------------------------------------- safetensors and JSON


@case("x.safetensors", r"its header has 3,221,225,472 bytes, and the limit is 25,000,000")
def header_of_gigabytes(path: Path) -> None:
    with path.open("wb") as file:
        file.write((3 * 2**30).to_bytes(8, "little") + b"{")
        file.truncate(4 * 2**30)
    assert path.stat().st_blocks < 100  # a sparse file: it takes no space on disk


@case("x.safetensors", "its header has 26,000,00. bytes, and the limit is 25,000,000")
def header_of_many_lists(path: Path) -> None:
    text = b'{"__metadata__":[' + b"[]," * 8_666_660 + b"[]" + b"]}"
    path.write_bytes(len(text).to_bytes(8, "little") + text)


@case("folder", "config.json has 24,000,000 bytes, and the limit is 10,000,000")
def configs_of_many_objects(path: Path) -> None:
    vitreous.save(tiny_vit(gelu="erf", resample="timm"), path.parent, to="timm")
    text = b'{"a":[' + b"{}," * 7_999_990 + b"{}" + b"]}"
    for name in ("config.json", "preprocessor_config.json"):
        (path.parent / name).write_bytes(text.ljust(24_000_000))


@case("folder", r"part-00\.npz: the parts of an index must be \.safetensors or PyTorch files, not npz")
def index_of_compressed_arrays(path: Path) -> None:
    """Each part has one kilobyte on disk and 60 MiB in memory."""
    names = [f"part-{number:02}.npz" for number in range(40)]
    np.savez_compressed(path.parent / names[0], x=np.zeros(15 << 20, np.float32))
    for name in names[1:]:
        os.link(path.parent / names[0], path.parent / name)
    index = {"weight_map": {f"x{number}": name for number, name in enumerate(names)}}
    (path.parent / "model.safetensors.index.json").write_text(json.dumps(index))


def empty_tensors(path: Path, names: list[str], card: dict[str, Any] | None = None) -> None:
    """Write a native file of empty tensors with this metadata."""
    header: dict[str, Any] = {name: {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for name in names}
    if card is not None:
        header["__metadata__"] = {"format": "pt", "vitreous": json.dumps(card)}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)


@case("x.safetensors", r"most of the model is missing: 9\.\d GiB would be initialised at random", strict=False)
def description_of_a_huge_model(path: Path) -> None:
    config = {"width": 4096, "depth": 12, "heads": 16, "num_classes": 10}
    empty_tensors(path, [f"x{i}" for i in range(12)], {"model": "vit", "config": config, "preprocessing": {}})


@case("x.safetensors", "depth = 20000: must be 10,000 or less", strict=False)
def layers_without_end(path: Path) -> None:
    config = {"width": 2, "depth": 20_000, "heads": 1, "num_classes": 10}
    empty_tensors(path, [f"x{i}" for i in range(20_000)], {"model": "vit", "config": config, "preprocessing": {}})


@case("x.safetensors", "a tensor name has 13,945 characters: module.module.")
def wrappers_without_end(path: Path) -> None:
    empty_tensors(path, ["module." * 2000 + "x"])


# ---------------------------------------------------------------- what is no file


@case("x.pth", "FILE: is a named pipe .FIFO., not a regular file")
def pipe(path: Path) -> None:
    os.mkfifo(path)


@case("x.safetensors", "FILE: is a device, not a regular file")
def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@case("x.npz", "FILE: a folder without weights")
def folder(path: Path) -> None:
    path.mkdir()


@case("folder", "FILE: config.json is a named pipe .FIFO., not a regular file")
def pipe_next_to_the_weights(path: Path) -> None:
    write_tensors(path.parent / "model.safetensors", state())
    os.mkfifo(path.parent / "config.json")


@case("model.safetensors.index.json", "FILE: model.safetensors.index.json is a named pipe .FIFO., not a regular file")
def pipe_for_an_index(path: Path) -> None:
    os.mkfifo(path)


# ---------------------------------------------------------------- sizes that were asked for


@case("x.safetensors", r"Preprocessing.size = \[1000000, 1000000\]: more than [\d,]+ pixels")
def preprocessing_of_a_huge_size(path: Path) -> None:
    size = {"size": [10**6, 10**6], "resize": None, "interpolation": "bilinear", "mean": [0.5] * 3, "std": [0.5] * 3}
    config = {"width": 2, "depth": 1, "heads": 1, "num_classes": 10}
    empty_tensors(path, ["x"], {"model": "vit", "config": config, "preprocessing": size})


def small_file(path: Path) -> None:
    vitreous.save(tiny_vit(), path)


@case("x.safetensors", "the table of positions for images of 160000 x 160000 px takes", image_size=160_000)
def huge_image_size(path: Path) -> None:
    small_file(path)


@case("x.safetensors", "expected 1,048,576 pixels or less along a side", image_size=16 * 10**30)
def image_size_that_is_no_size(path: Path) -> None:
    small_file(path)


@case("x.safetensors", r"the model takes .* GiB of memory, and .* are free", num_classes=10**9)
def huge_number_of_classes(path: Path) -> None:
    small_file(path)


@case("x.safetensors", "num_classes = .*: must be below", num_classes=10**30)
def number_of_classes_that_is_no_number_of_rows(path: Path) -> None:
    small_file(path)


def refusal(path: Path, options: dict[str, Any]) -> str:
    """Return the error of `load`. An error because of this process's memory limit does not count."""
    try:
        vitreous.load(path, **options)
    except VitreousError as error:
        cause: BaseException | None = error
        while cause is not None:
            assert not isinstance(cause, MemoryError)
            assert "allocate memory" not in str(cause)
            cause = cause.__cause__
        return str(error).replace(str(path), "FILE")
    return "it was loaded"


@pytest.mark.parametrize("name", MAKERS)
def test_hostile_files_are_refused(name: str, tmp_path: Path) -> None:
    """In a process that may allocate 1 GiB more than the file has."""
    each = MAKERS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of torch about prototypes, and ours about missing tensors
        each.make(tmp_path / each.file)
        path = tmp_path if each.file == "folder" else tmp_path / each.file
        size = path.stat().st_size if path.is_file() else 0
        said = limited(refusal, path, each.options, memory=2**30 + size)
    assert re.search(each.expected, said), said
    assert "\n" not in said
