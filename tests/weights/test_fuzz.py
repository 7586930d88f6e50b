"""Damaged files: whatever was done to one, `load` raises a VitreousError that names it, or loads it.

VITREOUS_FUZZ multiplies the number of cases, which are then drawn anew every time: `make fuzz`.
"""

import copy
import functools
import io
import json
import os
import tempfile
import warnings
import zipfile
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import vitreous
from helpers import FIXTURES, tiny_vit
from vitreous import VitreousError
from vitreous.errors import VitreousWarning
from vitreous.weights.files import write_tensors

TIMES = int(os.environ.get("VITREOUS_FUZZ", "1"))
Folder = dict[str, bytes]  # a file's name -> its bytes


def cases(count: int) -> settings:
    return settings(
        max_examples=count * TIMES,
        deadline=None,
        derandomize=TIMES == 1,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


# ---------------------------------------------------------------- what is damaged


@contextmanager
def folder_of(files: Folder) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        for file, content in files.items():
            (Path(name) / file).write_bytes(content)
        yield Path(name)


MODEL = {"width": 24, "depth": 1, "num_classes": 2, "image_size": 16, "gelu": "erf"}


@functools.cache
def sound(kind: str) -> Folder:
    """A small checkpoint of each kind. The first file is the one to damage."""
    model, hf = tiny_vit(**MODEL, resample="timm"), tiny_vit(**MODEL, resample="hf")
    model.labels = ("ant", "bee")
    state = {name: p.detach().clone() for name, p in model.named_parameters()}
    wrapped = {"model": state, "epoch": 3, "args": Namespace(lr=0.1)}
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


def load(files: Folder) -> str | None:
    """Load them, and what was said if that did not work."""
    with folder_of(files) as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", VitreousWarning)
        first, *others = files
        source = folder if others else folder / first
        bare = first in ("x.safetensors", "x.pth", "model.safetensors.index.json")
        tells_heads = not bare or b'"vitreous"' in files[first]
        try:
            vitreous.load(source, heads=None if tells_heads else 3)
        except VitreousError as error:
            return str(error).replace(str(source), "FILE")
    return None


def endure(files: Folder) -> None:
    said = load(files)
    assert said is None or said.startswith("FILE: ")
    assert len(said or "") < 4000


# ---------------------------------------------------------------- how


SEEDS = st.integers(0, 2**32)  # for a choice that is to be even, as hypothesis' own are not


@st.composite
def edits(draw: st.DrawFn) -> Callable[[bytes], bytes]:
    """A few bytes changed, put in or taken out; anywhere, or near an end, where headers and directories are."""
    kind = draw(st.sampled_from(["flip", "set", "insert", "remove", "cut", "repeat"]))
    chance = Random(draw(SEEDS))
    where = chance.choice([chance.random(), chance.randint(0, 300), chance.randint(-300, -1)])
    some = draw(st.binary(min_size=1, max_size=8))
    length = draw(st.one_of(st.integers(1, 16), st.integers(1, 100_000)))

    def edit(content: bytes) -> bytes:
        at = int(where * len(content)) if isinstance(where, float) else where % max(len(content), 1)
        before, after = content[:at], content[at:]
        if kind == "flip":
            return before + bytes(a ^ b for a, b in zip(after, some, strict=False)) + after[len(some) :]
        return {
            "set": before + some + after[len(some) :],
            "insert": before + some + after,
            "remove": before + after[length:],
            "cut": before,
            "repeat": before + after[:length] + after,
        }[kind]

    return edit


JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.sampled_from([-1, 0, 1, 2, 3, 7, 224, 2**31, 2**62, 2**63, 2**64, 10**30, 10**400]),
        st.integers(),
        st.floats(),
        st.sampled_from([1e-320, 1e308, 0.5, "", "gelu", "..", "\ud800", "\0", "[/]", "x" * 300]),
        st.text(max_size=5),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=5,
)


def spots(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value of a JSON document."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield (*path, key)
        yield from spots(child, (*path, key))


@st.composite
def json_edits(draw: st.DrawFn) -> Callable[[Any], Any]:
    """One or two values of a JSON document replaced by anything, or taken out."""
    changes = draw(st.lists(st.tuples(SEEDS, st.booleans(), st.booleans(), JSON), min_size=1, max_size=2))

    def edit(document: Any) -> Any:
        document = copy.deepcopy(document)
        for seed, shallow, remove, new in changes:
            found = [path for path in spots(document) if not shallow or len(path) == 1]
            if not found:
                return new
            *way, last = Random(seed).choice(found)
            parent = functools.reduce(lambda inner, key: inner[key], way, document)
            if remove and new is None:
                del parent[last]
            else:
                parent[last] = new
        return document

    return edit


def with_first(files: Folder, content: bytes) -> Folder:
    return files | {next(iter(files)): content}


def dumped(document: Any) -> bytes:
    return json.dumps(document).encode()


ANY = ("safetensors", "native", "google_vit_token_prelogits", "pth", "legacy pth", "timm", "huggingface", "index")


@pytest.mark.parametrize("kind", [*ANY, "native bit", "processor", "google_hybrid_r", "bit_v2_small"])
def test_sound_files_load(kind: str) -> None:
    assert load(sound(kind)) is None


@pytest.mark.parametrize("kind", ANY)
@cases(20)
@given(changes=st.lists(edits(), min_size=1, max_size=3))
def test_bytes(kind: str, changes: list[Callable[[bytes], bytes]]) -> None:
    files = sound(kind)
    content = next(iter(files.values()))
    for change in changes:
        content = change(content)
    endure(with_first(files, content))


@pytest.mark.parametrize("kind", ["google_vit_token_prelogits", "google_hybrid_r", "bit_v2_small", "pth"])
@cases(25)
@given(
    changes=st.lists(edits(), min_size=1, max_size=3),
    seed=SEEDS,
    method=st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]),
)
def test_members_of_a_sound_archive(kind: str, changes: list[Callable[[bytes], bytes]], seed: int, method: int) -> None:
    """Past the check sums: what is damaged is packed again."""
    files = sound(kind)
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(next(iter(files.values())))) as old, zipfile.ZipFile(buffer, "w", method) as new:
        names = old.namelist()
        chosen = Random(seed).choice([*names, *[name for name in names if name.endswith(".pkl")] * len(names)])
        for name in names:
            content = old.read(name)
            if name == chosen:
                for change in changes:
                    content = change(content)
            new.writestr(name, content)
    endure(with_first(files, buffer.getvalue()))


@pytest.mark.parametrize("kind", ["timm", "huggingface", "processor", "index"])
@cases(25)
@given(change=json_edits())
def test_json_beside_the_weights(kind: str, change: Callable[[Any], Any]) -> None:
    files = sound(kind)
    endure(with_first(files, dumped(change(json.loads(next(iter(files.values())))))))


@pytest.mark.parametrize("kind", ["safetensors", "native"])
@cases(25)
@given(change=json_edits())
def test_the_header_of_safetensors(kind: str, change: Callable[[Any], Any]) -> None:
    files = sound(kind)
    content = next(iter(files.values()))
    start = 8 + int.from_bytes(content[:8], "little")
    header = dumped(change(json.loads(content[8:start])))
    endure(with_first(files, len(header).to_bytes(8, "little") + header + content[start:]))


@pytest.mark.parametrize("kind", ["native", "native bit"])
@cases(25)
@given(change=json_edits())
def test_the_description_in_a_native_file(kind: str, change: Callable[[Any], Any]) -> None:
    files = sound(kind)
    content = next(iter(files.values()))
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header["__metadata__"]["vitreous"] = json.dumps(change(json.loads(header["__metadata__"]["vitreous"])))
    text = dumped(header)
    endure(with_first(files, len(text).to_bytes(8, "little") + text + content[start:]))
