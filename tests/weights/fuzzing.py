"""Generate damaged checkpoints: small valid files of every format, and functions that damage their bytes or structures.
test_fuzz.py loads them with limits on time and memory."""

import copy
import functools
import io
import json
import pickle
import re
import struct
import tempfile
import warnings
import zipfile
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

import vitreous
from fuzz_harness import attempt
from helpers import FIXTURES, tiny_vit
from vitreous.weights.containers import write_tensors

Folder = dict[str, bytes]  # file name -> bytes; the first file is the one to damage
MODEL = {"width": 24, "depth": 1, "num_classes": 2, "image_size": 16, "gelu": "erf"}


# ---------------------------------------------------------------- sound files


@functools.cache
def sound(kind: str) -> Folder:
    """Return a small valid checkpoint of each format."""
    model, hf = tiny_vit(**MODEL, resample="timm"), tiny_vit(**MODEL, resample="hf")
    model.labels = ("ant", "bee")
    state = {name: p.detach().clone() for name, p in model.named_parameters()}
    wrapped = {"model": state, "epoch": 3, "args": Namespace(lr=0.1), "loss": np.float64(0.5)}
    index = {"metadata": {"total_size": 5}, "weight_map": dict.fromkeys(state, "model-1.safetensors")}
    makers: dict[str, Callable[[Path], object]] = {
        "safetensors": lambda folder: write_tensors(folder / "x.safetensors", state),
        "native": lambda folder: vitreous.save(model, folder / "x.safetensors"),
        "native bit": lambda folder: vitreous.save(
            vitreous.load(FIXTURES / "bit_v2_small.npz"), folder / "x.safetensors"
        ),
        "pth": lambda folder: torch.save(wrapped, folder / "x.pth"),
        "legacy pth": lambda folder: torch.save(wrapped, folder / "x.pth", _use_new_zipfile_serialization=False),
        "timm": lambda folder: vitreous.save(model, folder, to="timm"),
        "huggingface": lambda folder: vitreous.save(hf, folder, to="huggingface"),
        "processor": lambda folder: vitreous.save(hf, folder, to="huggingface"),
        "index": lambda folder: (
            write_tensors(folder / "model-1.safetensors", state),
            (folder / "model.safetensors.index.json").write_text(json.dumps(index)),
        ),
    }
    if kind not in makers:
        return {"x.npz": (FIXTURES / f"{kind}.npz").read_bytes()}
    with tempfile.TemporaryDirectory() as name:
        makers[kind](Path(name))
        files = {file.name: file.read_bytes() for file in Path(name).iterdir()}
    first = {
        "timm": "config.json",
        "huggingface": "config.json",
        "processor": "preprocessor_config.json",
        "index": "model.safetensors.index.json",
    }.get(kind, next(iter(files)))
    return {first: files[first]} | files


def first_of(files: Folder) -> bytes:
    return next(iter(files.values()))


def with_first(files: Folder, content: bytes) -> Folder:
    return files | {next(iter(files)): content}


# ---------------------------------------------------------------- bytes


def edited(content: bytes, draw: Random, times: int = 3) -> bytes:
    """Change, insert or remove a few bytes: anywhere, or near an end, where headers and directories are."""
    for _ in range(draw.randint(1, times)):
        where = draw.choice(
            [draw.randrange(len(content) or 1), draw.randint(0, 300), len(content) - draw.randint(1, 300)]
        )
        at = where % max(len(content), 1)
        some = draw.randbytes(draw.randint(1, 8))
        length = draw.choice([draw.randint(1, 16), draw.randint(1, 100_000)])
        before, after = content[:at], content[at:]
        content = draw.choice(
            [
                before + bytes(a ^ b for a, b in zip(after, some, strict=False)) + after[len(some) :],
                before + some + after[len(some) :],
                before + some + after,
                before + after[length:],
                before,
                before + after[:length] + after,
            ]
        )
    return content


def damaged_bytes(kind: str, draw: Random) -> Folder:
    files = sound(kind)
    return with_first(files, edited(first_of(files), draw))


# ---------------------------------------------------------------- JSON

LEAVES: list[Any] = [
    *(None, True, False, -1, 0, 1, 2, 3, 7, 224, 10**6, 10**9, 2**31, 2**62, 2**63, 2**64, 10**30, 10**400),
    *(
        1e-320,
        1e308,
        0.5,
        float("nan"),
        float("inf"),
        "",
        "gelu",
        "..",
        "\ud800",
        "\0",
        "\x1b]0;x\a",
        "[/]",
        "x" * 3000,
    ),
]


def any_json(draw: Random, depth: int = 0) -> Any:
    kind = draw.random()
    if kind < 0.7 or depth == 3:
        return draw.choice([*LEAVES, draw.randint(-(2**20), 2**20), draw.gauss(0, 100)])
    if kind < 0.85:
        return [any_json(draw, depth + 1) for _ in range(draw.randint(0, 4))]
    if kind < 0.87:
        return json.loads("[" * 500 + "]" * 500)
    return {str(draw.choice(LEAVES))[:20]: any_json(draw, depth + 1) for _ in range(draw.randint(0, 3))}


def spots(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Return the path to every value of a JSON document."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield (*path, key)
        yield from spots(child, (*path, key))


def edited_json(document: Any, draw: Random) -> Any:
    """Replace or remove one or two values of a JSON document."""
    document = copy.deepcopy(document)
    for _ in range(draw.randint(1, 2)):
        shallow = draw.random() < 0.5
        found = [path for path in spots(document) if not shallow or len(path) == 1]
        if not found:
            return any_json(draw)
        *way, last = draw.choice(found)
        parent = functools.reduce(lambda inner, key: inner[key], way, document)
        if draw.random() < 0.2:
            del parent[last]
        elif isinstance(parent, dict) and draw.random() < 0.1:
            parent[str(draw.choice([*LEAVES, "module." * 300, "x" * 10_000]))] = parent.pop(last)
        else:
            parent[last] = any_json(draw)
    return document


def dumped(document: Any) -> bytes:
    try:
        return json.dumps(document).encode()
    except RecursionError:  # nested too deeply for the writer: the nesting itself is tested by other cases
        return b"[" * 10_000


def damaged_json(kind: str, draw: Random) -> Folder:
    """Damage config.json, preprocessor_config.json or the index of parts."""
    files = sound(kind)
    text = dumped(edited_json(json.loads(first_of(files)), draw))
    return with_first(files, text if draw.random() < 0.9 else edited(text, draw))


# ---------------------------------------------------------------- safetensors


def damaged_header(kind: str, draw: Random) -> Folder:
    files = sound(kind)
    content = first_of(files)
    start = 8 + int.from_bytes(content[:8], "little")
    header = dumped(edited_json(json.loads(content[8:start]), draw))
    length = len(header) if draw.random() < 0.9 else draw.choice([0, 2**20, 2**31, 2**40, 2**64 - 1])
    return with_first(files, length.to_bytes(8, "little") + header + content[start:])


def damaged_card(kind: str, draw: Random) -> Folder:
    """Damage the metadata of a native file, which contains the config of the model."""
    files = sound(kind)
    content = first_of(files)
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    card = json.loads(header["__metadata__"]["vitreous"])
    if draw.random() < 0.5:
        card["config"] = edited_json(card["config"], draw)
    else:
        card = edited_json(card, draw)
    header["__metadata__"]["vitreous"] = json.dumps(card)
    text = dumped(header)
    return with_first(files, len(text).to_bytes(8, "little") + text + content[start:])


def names_only(draw: Random) -> Folder:
    """Return a header of thousands of empty or tiny tensors: very many layers, very long names."""
    count, header = draw.choice([1, 10, 1000, 20_000]), {}
    pattern = draw.choice(
        [
            "blocks.{}.norm1.weight",
            "module.{}",
            "encoder.layer.{}.attention",
            "Transformer/encoderblock_{}/LayerNorm_0/scale",
        ]
    )
    prefix = draw.choice(["", "module.", "module." * (2000 if count < 100 else 3), "backbone." * 50])
    shape = draw.choice([[0], [0, 3], [1], [0] * 5, [0, 2**40]])
    position = 0
    for number in range(count):
        size = 4 if shape == [1] else 0
        header[prefix + pattern.format(number)] = {
            "dtype": "F32",
            "shape": shape,
            "data_offsets": [position, position + size],
        }
        position += size
    for name, one in (("patch_embed.proj.weight", [8, 3, 4, 4]), ("blocks.0.mlp.fc1.weight", [8, 8])):
        header[prefix + name] = {
            "dtype": "F32",
            "shape": one,
            "data_offsets": [position, position + 4 * int(np.prod(one))],
        }
        position += 4 * int(np.prod(one))
    text = dumped(header)
    return {"x.safetensors": len(text).to_bytes(8, "little") + text + bytes(position)}


# ---------------------------------------------------------------- zip archives


def repacked(content: bytes, methods: dict[str, int], change: Callable[[str, bytes], bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(buffer, "w") as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)), methods.get(name))
    return buffer.getvalue()


def damaged_member(kind: str, draw: Random) -> Folder:
    """Damage a member and pack it again, so that its checksum is valid."""
    files = sound(kind)
    names = zipfile.ZipFile(io.BytesIO(first_of(files))).namelist()
    chosen = draw.choice([*names, *[name for name in names if name.endswith(".pkl")] * len(names)])
    methods = {chosen: draw.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])}
    return with_first(files, repacked(first_of(files), methods, lambda n, c: edited(c, draw) if n == chosen else c))


@functools.cache
def bomb(size: int) -> bytes:
    """Return a large array of zeros, which deflate compresses a thousandfold."""
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(size // 4, np.float32))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("bomb.npy", buffer.getvalue())
    return packed.getvalue()


def damaged_directory(kind: str, draw: Random) -> Folder:
    """Damage sizes, offsets, names and methods in the archive's directory, or repeat members."""
    files = sound(kind)
    content = bytearray(first_of(files))
    if draw.random() < 0.1:
        content = bytearray(bomb(150 * 2**20))
    if draw.random() < 0.3:  # the same names again
        buffer = io.BytesIO(content)
        with warnings.catch_warnings(), zipfile.ZipFile(buffer, "a") as archive:
            warnings.simplefilter("ignore")
            for name in draw.sample(archive.namelist(), 1):
                archive.writestr(draw.choice([name, name.upper(), f"other/{name}"]), archive.read(name)[:1000])
        content = bytearray(buffer.getvalue())
    entries = [match.start() for match in re.finditer(rb"PK\x01\x02", content[:-46])]
    fields = {8: "<H", 10: "<H", 16: "<I", 20: "<I", 24: "<I", 28: "<H", 30: "<H", 42: "<I"}
    for _ in range(draw.randint(0, 3)):
        offset, form = draw.choice(list(fields.items()))
        values = (0, 1, 8, 12, 14, 65535) if form == "<H" else (0, 1, 10**6, 2**31 - 1, 2**32 - 1)
        for at in draw.choice([entries[:], [draw.choice(entries)]]):
            struct.pack_into(form, content, at + offset, draw.choice(values))
    return with_first(files, bytes(content))


def npy(draw: Random) -> bytes:
    """Return an array with an arbitrary header."""
    shapes = [
        (3,),
        (0,),
        (),
        (2**40,),
        (10**30,),
        (-1,),
        (2**31, 2**31),
        (0, 10**30),
        (1,) * 70,
        ("x",),
        (1.5,),
        5,
        None,
    ]
    descrs = [
        "<f4",
        "<f8",
        "|V2",
        "|O",
        "<U1000000000",
        "|V2000000000",
        [("a", "<f4")],
        ("<f4", (2**20,)),
        "x",
        3,
        "<f2",
    ]
    header = {
        "descr": draw.choice(descrs),
        "fortran_order": draw.choice([False, True, 0]),
        "shape": draw.choice(shapes),
    }
    text = draw.choice([repr(header), "(" * 9000, "[" * 200, repr(header)[:-3], "{}"]).encode() + b"\n"
    version = draw.choice([(1, 0), (1, 0), (2, 0), (3, 0), (9, 9)])
    length = len(text) if draw.random() < 0.9 else draw.choice([0, 65535])
    form = "<H" if version == (1, 0) else "<I"
    return b"\x93NUMPY" + bytes(version) + struct.pack(form, length) + text + bytes(draw.choice([0, 12, 4096]))


def hostile_npz(kind: str, draw: Random) -> Folder:
    files = sound(kind)
    names = zipfile.ZipFile(io.BytesIO(first_of(files))).namelist()
    chosen = draw.choice(names)
    methods = {chosen: draw.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])}
    return with_first(files, repacked(first_of(files), methods, lambda n, c: npy(draw) if n == chosen else c))


# ---------------------------------------------------------------- pickles


class Assembler:
    """Assembles pickles from random instructions: mostly those of a state dict, some that no state dict has."""

    GLOBALS = (
        *("torch._utils _rebuild_tensor_v2", "torch._utils _rebuild_tensor", "torch._utils _rebuild_tensor_v3"),
        *("torch._utils _rebuild_parameter", "torch._utils _rebuild_sparse_tensor", "torch._utils _rebuild_qtensor"),
        *("torch._utils _rebuild_nested_tensor", "torch._utils _rebuild_meta_tensor_no_storage"),
        *("torch._tensor _rebuild_from_type_v2", "torch Tensor", "torch FloatTensor", "torch.nn.parameter Parameter"),
        *("torch FloatStorage", "torch DoubleStorage", "torch.storage UntypedStorage", "torch float32", "torch device"),
        *("collections OrderedDict", "collections Counter", "builtins set", "builtins bytearray", "builtins complex"),
        *(
            "_codecs encode",
            "numpy dtype",
            "numpy.core.multiarray scalar",
            "numpy._core.multiarray scalar",
            "torch Size",
        ),
        *("argparse Namespace", "posix system", "builtins eval", "torch.serialization _get_layout"),
    )

    def __init__(self, draw: Random):
        self.draw = draw
        self.memo = 0

    def number(self, value: int) -> bytes:
        if -(2**31) <= value < 2**31:
            return b"J" + struct.pack("<i", value)
        size = value.bit_length() // 8 + 1
        return b"\x8a" + bytes([size]) + value.to_bytes(size, "little", signed=True)

    def text(self, value: str) -> bytes:
        content = value.encode("utf-8", "surrogatepass")
        return b"X" + struct.pack("<I", len(content)) + content

    def tuple_of(self, *parts: bytes) -> bytes:
        return b"(" + b"".join(parts) + b"t"

    def some_global(self, name: str | None = None) -> bytes:
        module, name = (name or self.draw.choice(self.GLOBALS)).split(" ")
        return b"c" + module.encode() + b"\n" + name.encode() + b"\n"

    def some_number(self) -> bytes:
        return self.number(self.draw.choice([0, 1, 2, 3, 24, 48, 1000, 10**6, 10**10, 2**40, 2**62, 2**70, -1]))

    def storage(self) -> bytes:
        kind = self.draw.choice(
            ["torch FloatStorage"] * 6 + ["torch HalfStorage", "torch.storage UntypedStorage", "torch X"]
        )
        key = self.text(self.draw.choice(["0", "0", "0", "1", "2", "../x", "", "9"]))
        count = self.number(self.draw.choice([24, 24, 24, 1, 0, 25, 10**6, 10**10, 2**62, -1]))
        parts = [self.text("storage"), self.some_global(kind), key, self.text("cpu"), count]
        return self.tuple_of(*parts, *([b"N"] if self.draw.random() < 0.1 else [])) + b"Q"

    def tensor(self) -> bytes:
        shapes = [([24], [1]), ([2, 12], [12, 1]), ([24], [0]), ([10**6], [0]), ([10**10], [1]), ([0, 10**10], [1, 1])]
        shapes += [([], []), ([2**40, 2**40], [0, 0]), ([-1], [1]), ([24], [10**9]), ([1] * 70, [1] * 70), ([12], [2])]
        sizes, strides = self.draw.choice(shapes)
        offset = self.number(self.draw.choice([0, 0, 0, 1, 23, 10**9, -1]))
        lists = [self.tuple_of(*map(self.number, values)) for values in (sizes, strides)]
        rest = [b"\x89", self.some_global("collections OrderedDict") + b")R"]
        return self.some_global(self.GLOBALS[0]) + self.tuple_of(self.storage(), offset, *lists, *rest) + b"R"

    def call(self) -> bytes:
        """Call an arbitrary object with arbitrary arguments."""
        arguments = [self.value(2) for _ in range(self.draw.randint(0, 4))]
        return self.some_global() + self.tuple_of(*arguments) + self.draw.choice([b"R", b"\x81"])

    def doubled(self) -> bytes:
        """A tuple that contains the same tuple twice, recursively."""
        self.memo += 1
        put = b"r" + struct.pack("<I", self.memo) + b"j" + struct.pack("<I", self.memo)
        return b")" + (put + b"\x86") * self.draw.choice([5, 60, 1000])

    def itself(self) -> bytes:
        """A dict or list that contains itself."""
        self.memo += 1
        put, get = b"r" + struct.pack("<I", self.memo), b"j" + struct.pack("<I", self.memo)
        if self.draw.random() < 0.3:
            return b"]" + put + get + b"a"
        return b"}" + put + self.text(self.draw.choice(["model", "state_dict", "teacher", "x"])) + get + b"s"

    def nested(self) -> bytes:
        depth = self.draw.choice([10, 1000, 100_000])
        inner, key = self.tensor(), self.text("model")
        kind = self.draw.choice(["dict", "list", "tuple"])
        if kind == "dict":
            return (b"}" + key) * depth + b"}" + b"s" * depth
        return b"]" * depth + inner + b"a" * depth if kind == "list" else inner + b"\x85" * depth

    def value(self, depth: int = 0) -> bytes:
        makers: list[Callable[[], bytes]] = [self.some_number, self.tensor, lambda: b"N", lambda: b"G" + bytes(8)]
        makers += [
            lambda: self.text(self.draw.choice(["latin1", "zip", "f8", "V2000000000", "x", "cpu"])),
            self.some_global,
        ]
        if depth < 2:
            makers += [self.call, self.itself, self.doubled, self.nested, lambda: self.mapping(depth + 1)]
            makers += [lambda: b"](" + b"".join(self.value(depth + 1) for _ in range(3)) + b"e"]
        return self.draw.choice(makers)()

    def mapping(self, depth: int = 0) -> bytes:
        """A dict of a few tensors and of other values with unusual keys."""
        items = [self.text(name) + self.tensor() for name in ("cls_token", "norm.weight")]
        for _ in range(self.draw.randint(0, 3)):
            plain = self.text(self.draw.choice(["model", "epoch", "head.bias", "teacher"]))
            key = (
                plain if self.draw.random() < 0.7 else self.draw.choice([self.doubled, self.some_number, self.tensor])()
            )
            items.append(key + self.value(depth))
        self.draw.shuffle(items)
        return b"}(" + b"".join(items) + b"u"

    def pickle(self) -> bytes:
        content = self.draw.choice([self.mapping, self.mapping, self.itself, self.nested, self.call, self.value])()
        return b"\x80\x02" + content + b"."


def hostile_pickle(draw: Random) -> Folder:
    """Return a pickle in an archive, with storages of right and wrong sizes, or in the legacy format."""
    content = Assembler(draw).pickle()
    if draw.random() < 0.2:
        content = edited(content, draw)
    if draw.random() < 0.3:
        first = [pickle.dumps(value, 2) for value in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True})]
        last = pickle.dumps(draw.choice([["0"], ["0"], [], ["1"], "0", [[]]]), 2)
        sizes = struct.pack("<q", draw.choice([24, 24, 10**12, -1, 0]))
        return {"x.pth": b"".join(first) + content + last + sizes + bytes(draw.choice([96, 10, 0]))}
    buffer = io.BytesIO()
    method = draw.choice([zipfile.ZIP_STORED] * 5 + [zipfile.ZIP_DEFLATED])
    with zipfile.ZipFile(buffer, "w", method) as archive:
        archive.writestr("x/data.pkl", content)
        if draw.random() < 0.9:
            archive.writestr("x/version", "3\n")
        if draw.random() < 0.5:
            archive.writestr("x/byteorder", draw.choice(["little", "little", "big", "middle", ""]))
        for key in ("0", "1"):
            archive.writestr(f"x/data/{key}", bytes(draw.choice([96, 96, 96, 100, 1, 0])))
        if draw.random() < 0.05:
            archive.writestr("X/DATA.PKL", b"\x80\x02}.")
    return {"x.pth": buffer.getvalue()}


def aliased(draw: Random) -> Folder:
    """Return many tensors that share one storage."""
    whole = torch.zeros(draw.choice([2**16, 2**20]))
    count = draw.choice([2, 100, 2000])
    views = {f"blocks.{i}.x": draw.choice([whole, whole.view(256, -1).t(), whole[None]]) for i in range(count)}
    buffer = io.BytesIO()
    torch.save({"model": views}, buffer, _use_new_zipfile_serialization=draw.random() < 0.5)
    return {"x.pth": buffer.getvalue()}


PICKLED, JSON = ("pth", "legacy pth"), ("timm", "huggingface", "processor", "index")
ZIPPED = ("google_vit_token_prelogits", "google_hybrid_r", "bit_v2_small")
NATIVE = ("native", "native bit")
SOUND = (*PICKLED, *ZIPPED, *JSON, *NATIVE, "safetensors")

Damage = Callable[[Random], Folder]


def each(way: str, damage: Callable[[str, Random], Folder], kinds: Iterable[str]) -> dict[str, Damage]:
    return {f"{way} of {kind}": functools.partial(damage, kind) for kind in kinds}


# Functions that damage the files of each format. Their names are the kinds of cases.
DAMAGE: dict[str, dict[str, Damage]] = {
    "pickled": {
        **{f"pickle {number}": hostile_pickle for number in range(6)},  # more often than the others
        "aliased": aliased,
        **each("bytes", damaged_bytes, PICKLED),
        **each("member", damaged_member, ["pth"]),
    },
    "zipped": {
        **each("array", hostile_npz, ZIPPED),
        **each("bytes", damaged_bytes, ZIPPED),
        **each("member", damaged_member, ZIPPED),
        **each("directory", damaged_directory, (*ZIPPED, "pth")),
    },
    "JSON": {**each("values", damaged_json, JSON), **each("bytes", damaged_bytes, JSON)},
    "safetensors": {
        **each("header", damaged_header, ["safetensors", "native"]),
        **each("description", damaged_card, NATIVE),
        **each("bytes", damaged_bytes, ["safetensors", "native"]),
        "names": names_only,
    },
}


def make_sound_files() -> None:
    """Write the valid files once, before child processes with limits need them."""
    for kind in SOUND:
        sound(kind)
    bomb(150 * 2**20)


# ---------------------------------------------------------------- loading


def options(files: Folder, draw: Random) -> dict[str, Any]:
    first = next(iter(files))
    bare = first in ("x.safetensors", "x.pth", "model.safetensors.index.json")
    chosen: dict[str, Any] = {"heads": 3 if bare and b'"vitreous"' not in files[first] else None}
    if draw.random() < 0.4:
        chosen["strict"] = False
    if draw.random() < 0.1:
        chosen["num_classes"] = draw.choice([0, 5, 10**9, 2**63])
    if draw.random() < 0.1:
        chosen["image_size"] = draw.choice([32, 10**6, (16, 10**9), 2**63])
    return chosen


def load(files: Folder, **chosen: Any) -> str:
    """Load the files. Return the error message if they are refused."""
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for file, content in files.items():
            (Path(name) / file).write_bytes(content)
        first, *others = files
        source = Path(name) if others else Path(name) / first
        said = attempt(functools.partial(vitreous.load, source, **chosen))
        assert not said or said.startswith(f"{source}: "), said
    return said
