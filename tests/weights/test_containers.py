"""Container formats: tensors are read, faults are reported, and a file is written completely or not at all."""

import argparse
import json
import os
import pickle
import re
import resource
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor

import command
import vitreous
from helpers import images, oracle, outputs, tiny_vit
from limits import limited
from vitreous import VitreousError
from vitreous.errors import VitreousWarning, brief
from vitreous.utils.atomic import atomic_file
from vitreous.weights.containers import open_tensors, write_tensors
from vitreous.weights.safetensors_file import DTYPES, SafetensorsFile
from vitreous.weights.tensors import InMemoryTensors

State = dict[str, Tensor]
MODEL = {"gelu": "erf", "resample": "timm"}


def timm_state() -> State:
    return {name: p.detach().clone() for name, p in tiny_vit(**MODEL).named_parameters()}


def assert_loads(path: Path) -> None:
    model = vitreous.load(path, heads=3)
    expected = timm_state()
    assert model.state_dict().keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model.state_dict().items())


def refusal(path: str | os.PathLike[str], **options: Any) -> str:
    """Return the error of `load` for an unreadable file. It begins with the file's name."""
    with pytest.raises(VitreousError) as caught:
        vitreous.load(path, **options)
    said = str(caught.value)
    assert said.startswith(f"{os.fspath(path)}: ")
    return said.removeprefix(f"{os.fspath(path)}: ")


def write_with_header(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    """Write a `.safetensors` file with an arbitrary header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


# ---------------------------------------------------------------- safetensors


def samples() -> State:
    wide = torch.arange(12.0).reshape(3, 4)
    state = {str(dtype).removeprefix("torch."): wide.to(dtype) for dtype in DTYPES.values()}
    return state | {"empty": torch.empty(0, 7), "scalar": torch.tensor(2.5), "half scalar": torch.tensor(1.5).half()}


def assert_same(found: Any, expected: State) -> None:
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert bytes_of(found[name]) == bytes_of(tensor)


def bytes_of(tensor: Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def test_every_dtype_of_the_library_is_supported() -> None:
    assert set(safetensors.torch._TYPES.items()) <= set(DTYPES.items())


def test_read_safetensors_written_by_the_library(tmp_path: Path) -> None:
    safetensors.torch.save_file(samples(), tmp_path / "x.safetensors", {"who": "them"})
    found = open_tensors(tmp_path / "x.safetensors")
    assert isinstance(found, SafetensorsFile)
    assert found.metadata == {"who": "them"}
    assert_same(found, samples())
    assert found.shape("scalar") == ()
    assert "absent" not in found


def test_the_library_reads_our_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, samples(), {"who": "wë"})
    assert_same(open_tensors(path), samples())
    assert_same(safetensors.torch.load_file(path), samples())
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata() == {"who": "wë"}
    assert (8 + int.from_bytes(path.read_bytes()[:8], "little")) % 64 == 0


@pytest.mark.parametrize("spaces", range(8))
def test_data_that_is_not_aligned(spaces: int, tmp_path: Path) -> None:
    """The format does not guarantee alignment, and old writers did not align."""
    content = safetensors.torch.save(samples())
    length = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + length].rstrip() + b" " * spaces
    found = open_tensors(write_with_header(tmp_path / "x", header, content[8 + length :]))
    assert_same(found, samples())
    assert torch.equal(found["float32"] + 1, samples()["float32"] + 1)


def test_unusual_tensor_names(tmp_path: Path) -> None:
    state = {name: torch.ones(2) for name in ("a.b", "ü/ß", '"', "\\", "\n", "漢字", "", "__metadata", "x" * 1000)}
    write_tensors(tmp_path / "x.safetensors", state)
    assert_same(open_tensors(tmp_path / "x.safetensors"), state)
    assert_same(safetensors.torch.load_file(tmp_path / "x.safetensors"), state)


def entry(**changes: Any) -> dict[str, Any]:
    return {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (entry(dtype="F4"), "a tensor has the unknown dtype F4"),
        (entry(dtype=[]), "its header"),
        (entry(shape=[3]), r"a tensor of shape \(3,\) at the bytes from 0 to 8"),
        (entry(shape=[-1, -2]), "a tensor of shape"),
        (entry(shape=[2.0]), "a tensor of shape"),
        (entry(shape=[True, 2]), "a tensor of shape"),
        (entry(shape="2"), "a tensor of shape"),
        (entry(shape=[0, 2**70], data_offsets=[0, 0]), "a tensor of shape"),
        (entry(shape=[0, 2**40, 2**40], data_offsets=[0, 0]), "a tensor of shape"),
        (entry(shape=[1] * 100 + [2]), "a tensor of shape"),
        (entry(data_offsets=[8, 0]), "a tensor of shape"),
        (entry(data_offsets=[0]), "not enough values"),
        (entry(data_offsets=[-8, 0]), "a tensor of shape"),
        (entry(data_offsets=[0, 2**70], shape=[2**68]), "a tensor of shape|truncated"),
        (entry(data_offsets=[8, 16]), "the file is truncated: 8 of its [0-9]+ bytes are missing"),
        ({"a": 3}, "its header"),
        ({"a": None}, "its header"),
        ({"a": {}}, "its header"),
        ({"__metadata__": 3}, "its metadata"),
        (b"{" * 50, "its header"),
        (b'{"a": ' + b"[" * 100_000, "its header"),
        (b"{\xff\xfe}", "its header"),
        (b'{"a": NaN}', "its header"),
    ],
)
def test_invalid_headers_are_refused(header: Any, message: str, tmp_path: Path) -> None:
    assert re.search(message, refusal(write_with_header(tmp_path / "x.safetensors", header, bytes(8))))


@pytest.mark.parametrize("length", [0, 1, 10_000, 2**40, 2**63, 2**64 - 1])
def test_a_header_that_is_longer_than_the_file(length: int, tmp_path: Path) -> None:
    path = write_with_header(tmp_path / "x.safetensors", entry(), bytes(8), length)
    assert f"its header should have {length} bytes, the file has {path.stat().st_size}" in refusal(path)


@pytest.mark.parametrize("size", [1, 7, 8, 9, 30, 200, -100_000, -5_000, -1])
def test_safetensors_cut_short(size: int, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, timm_state())
    path.write_bytes(path.read_bytes()[:size])
    said = refusal(path, heads=3)
    if size > 8:
        assert re.search("its header should have|its header: ", said)
    elif size < 0:
        assert re.match(f"the file is truncated: {-size:,} of its", said)


# ---------------------------------------------------------------- parts


def shards(folder: Path, kind: str = "safetensors") -> dict[str, Any]:
    """Write a checkpoint in two parts, and its index."""
    state = timm_state()
    names = sorted(state)
    halves = {f"part-{i}.{kind}": names[i::2] for i in range(2)}
    folder.mkdir(exist_ok=True)
    for file, half in halves.items():
        write_tensors(folder / file, {name: state[name] for name in half})
    index = {"metadata": {}, "weight_map": {name: file for file, half in halves.items() for name in half}}
    base = "model.safetensors" if kind == "safetensors" else "pytorch_model.bin"
    (folder / f"{base}.index.json").write_text(json.dumps(index))
    return index


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_sharded_checkpoint(kind: str, tmp_path: Path) -> None:
    shards(tmp_path, kind)
    assert_loads(tmp_path)
    (index,) = tmp_path.glob("*.index.json")
    assert_loads(index)
    assert "in 2 parts" in vitreous.load(tmp_path, heads=3).report.container


def test_sharded_checkpoint_with_a_fault(tmp_path: Path) -> None:
    index = shards(tmp_path)
    file = tmp_path / "model.safetensors.index.json"

    def said(weight_map: Any) -> str:
        file.write_text(json.dumps({"weight_map": weight_map}))
        return refusal(tmp_path, heads=3)

    whole = index["weight_map"]
    assert said(whole | {"new": "part-1.safetensors"}) == "1 tensors are not in the part that the index names: 'new'"
    unlisted = said({name: part for name, part in whole.items() if name != "norm.bias"})
    assert unlisted == "1 tensors of its parts are not in the index: 'norm.bias'"
    for elsewhere in ("../part-0.safetensors", "/etc/passwd", "sub/part", "..", "."):
        assert said(whole | {"head.bias": elsewhere}) == f"its index names files in other folders: {elsewhere!r}"
    for absent in ("part-9.safetensors", "x" * 300, "a\0b"):
        assert said(whole | {"head.bias": absent}) == f"1 of 3 parts are missing: {brief(absent)}"
    assert "its index names files that are not weights: 'model.safet" in said(
        whole | {"head.bias": file.name}
    )  # itself
    for wrong in (None, [], 3, {"a": 3}, {"a": None}):
        assert said(wrong) == "its index has no weight_map of file names"
    assert "nothing at all" in said({})
    for text in ("", "{", '{"weight_map": {', "\xff", "[" * 100_000):
        file.write_text(text, encoding="latin-1")
        assert "model.safetensors.index.json is not JSON" in refusal(tmp_path)
    file.write_text("[1]")
    assert refusal(tmp_path) == "model.safetensors.index.json holds a list, not an object"
    file.write_text(json.dumps(index))
    part = tmp_path / "part-1.safetensors"
    part.write_bytes(part.read_bytes()[:-50])
    assert refusal(tmp_path).startswith("part-1.safetensors: the file is truncated: 50 of its")
    part.unlink()
    assert refusal(tmp_path) == "1 of 2 parts are missing: 'part-1.safetensors'"


# ---------------------------------------------------------------- PyTorch's


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize(
    ("wrap", "took"),
    [
        (lambda state: state, []),
        (lambda state: {"model": state}, []),
        (lambda state: {"state_dict": state, "epoch": 3}, ["'state_dict'; other keys in the file: 'epoch'"]),
        (
            lambda state: {
                "student": {"a": torch.ones(1)},
                "teacher": state,
                "optimizer": {"state": {}, "param_groups": [{"lr": 1.0}]},
                "args": argparse.Namespace(lr=0.1, name="x"),
            },
            ["'teacher'; other keys in the file: 'student', 'optimizer', 'args'"],
        ),
        (
            lambda state: {"model": {"state_dict": state}, "model_ema": None},
            ["'model'; other keys in the file: 'model_ema'"],
        ),
        (lambda state: {f"module.{name}": tensor for name, tensor in state.items()}, []),
        (lambda state: {name: torch.nn.Parameter(tensor) for name, tensor in state.items()}, []),
    ],
)
def test_checkpoints_of_training_scripts(
    wrap: Callable[[State], Any], took: list[str], legacy: bool, tmp_path: Path
) -> None:
    torch.save(wrap(timm_state()), tmp_path / "x.pth", _use_new_zipfile_serialization=not legacy)
    assert_loads(tmp_path / "x.pth")
    model = vitreous.load(tmp_path / "x.pth", heads=3)
    assert [note for note in model.report.notes if "weights under" in note] == [
        f"loaded the weights under {t}" for t in took
    ]
    assert all(p.is_leaf and p.requires_grad for p in model.parameters())


def test_values_that_are_not_tensors_are_reported(tmp_path: Path) -> None:
    torch.save(timm_state() | {"step": 3, "note": "x"}, tmp_path / "x.pth")
    assert vitreous.load(tmp_path / "x.pth", heads=3).report.ignored == {"step": "not a tensor", "note": "not a tensor"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "holds a list, not a state dict"),
        (torch.ones(3), "holds a Tensor, not a state dict"),
        ({}, "no state dict in the file: it contains nothing"),
        ({"epoch": 3, "model": "x"}, "no state dict in the file: it contains 'epoch', 'model'"),
        (
            timm_state() | {"cls_token": torch.ones(1, 1, 48).to_sparse()},
            "cls_token is a sparse tensor, not a plain tensor",
        ),
        (timm_state() | {"cls_token": torch.ones(1, 1, 48, device="meta")}, "cls_token is a tensor on the meta device"),
        (
            timm_state() | {"head.weight": torch.ones(1, 1).expand(10**11, 48)},
            "head.weight has 4,800,000,000,000 values and memory",
        ),
        (timm_state() | {"cls_token": torch.ones(1, 1, 48, dtype=torch.complex64)}, "cls_token holds complex64"),
    ],
)
def test_pytorch_files_without_a_state_dict(content: Any, message: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "x.pth")
    assert message in refusal(tmp_path / "x.pth", heads=3)


class Trap:
    """Its pickle creates a file if the reader runs code from pickles."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch '{self.path}'",)


@pytest.mark.parametrize("wrap", [lambda trap: trap, lambda trap: {"model": timm_state(), "args": trap}])
@pytest.mark.parametrize("form", ["zip", "legacy", "bare", "text"])
def test_code_is_not_run(form: str, wrap: Callable[[Trap], Any], tmp_path: Path) -> None:
    sprung, path = tmp_path / "sprung", tmp_path / "x.pth"
    content = wrap(Trap(sprung))
    if form in ("zip", "legacy"):
        torch.save(content, path, _use_new_zipfile_serialization=form == "zip")
    elif form == "bare" or isinstance(content, dict):
        path.write_bytes(pickle.dumps(content))
    else:
        path.write_bytes(pickle.dumps(content, protocol=0))
    said = refusal(path, heads=3)
    assert not sprung.exists()
    if form in ("zip", "legacy"):
        assert "refused: the pickle would run code (posix.system)" in said
        torch.load(path, weights_only=False)  # pickle itself runs the code
        assert sprung.exists()


def test_models_and_scripts_are_not_state_dicts(tmp_path: Path) -> None:
    torch.save({"model": tiny_vit()}, tmp_path / "model.pth")
    assert "refused: the pickle would run code (vitreous.models.vit.VisionTransformer)" in refusal(
        tmp_path / "model.pth"
    )


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("size", [5, 100, 1000, 60_000, -100_000, -1000, -100, -10])
def test_pytorch_files_cut_short(size: int, legacy: bool, tmp_path: Path) -> None:
    path = tmp_path / "x.pth"
    torch.save(timm_state(), path, _use_new_zipfile_serialization=not legacy)
    path.write_bytes(path.read_bytes()[:size])
    assert re.search("cannot be read: truncated or damaged|neither|refused", refusal(path, heads=3))


# ---------------------------------------------------------------- npz


def test_npz_with_bfloat16_and_other_members(tmp_path: Path) -> None:
    parameters, _ = oracle("google_vit_token_prelogits")
    bits = {name: torch.from_numpy(a).bfloat16().view(torch.uint16).numpy() for name, a in parameters.items()}
    path = tmp_path / "x.npz"
    np.savez_compressed(path, **{name: array.view("V2") for name, array in bits.items()})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("README.txt", "words")
    model = vitreous.load(path, dtype=None)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert model.report.ignored == {"README.txt": "not an array"}
    expected = torch.from_numpy(parameters["head/kernel"]).T.bfloat16()
    assert torch.equal(model.head.weight, expected)
    write_tensors(tmp_path / "y.npz", {"a": expected})
    assert_same(open_tensors(tmp_path / "y.npz"), {"a": expected})


@pytest.mark.parametrize("size", [3, 30, 200, 50_000, -20_000, -500, -21, -1])
def test_npz_cut_short(size: int, tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, **oracle("google_vit_token_prelogits")[0])
    path.write_bytes(path.read_bytes()[:size])
    assert re.search("truncated or damaged|not a readable .npz|neither", refusal(path))


def test_an_npz_that_was_damaged_inside(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, **oracle("google_vit_token_prelogits")[0])
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert "Bad CRC-32" in refusal(path)


# ---------------------------------------------------------------- detected from the content, not from the name


@pytest.mark.parametrize("suffix", ["safetensors", "npz", "pth", "pt", "bin", "txt", "json", ""])
def test_a_wrong_suffix_is_ignored(suffix: str, tmp_path: Path) -> None:
    for kind, write in {
        "safetensors": lambda path: path.write_bytes(safetensors.torch.save(timm_state())),
        "zip": lambda path: torch.save(timm_state(), path),
        "legacy": lambda path: torch.save(timm_state(), path, _use_new_zipfile_serialization=False),
    }.items():
        path = tmp_path / kind / f"x.{suffix}".rstrip(".")
        path.parent.mkdir()
        write(path)
        assert_loads(path)
    google = tmp_path / f"google.{suffix}".rstrip(".")
    with google.open("wb") as file:
        np.savez(file, **oracle("google_vit_token_prelogits")[0])
    assert vitreous.load(google).report.dialect == "google"


@pytest.mark.parametrize("name", ["x.npz", "x.safetensors", "x.pth"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"hello", "it contains text"),
        (b"hello, this is a longer text\n" * 100, "it contains text"),
        (b"<!doctype html><html>404</html>", "it contains text"),
        (b'{"error": "Not found"}', "it contains text"),
        (bytes(1000), "it contains something else"),
        (bytes(range(200, 256)) * 10, "it contains something else"),
        (b"\x89HDF\r\n\x1a\n" + bytes(range(100)), "it contains something else"),
        (b"PK\x03\x04" + bytes(100), "a zip archive that cannot be read"),
        (b"PK\x05\x06" + bytes(18), "not a checkpoint of any supported format: it contains nothing at all"),
        (b"\x80\x02", "cannot be read: truncated"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12345\n",
            "a Git LFS pointer, not the file itself: download it with `git lfs pull`",
        ),
    ],
)
def test_files_of_another_kind(content: bytes, message: str, name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    assert message in refusal(tmp_path / name)


def test_folders(tmp_path: Path) -> None:
    assert refusal(tmp_path).startswith("a folder without weights: no file in it ends in .safetensors, ")
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / ".hidden.pth").write_text("x")
    (tmp_path / "folder.pth").mkdir()
    assert refusal(tmp_path).startswith("a folder without weights")
    torch.save(timm_state(), tmp_path / "a.pth")
    assert_loads(tmp_path)
    torch.save(timm_state(), tmp_path / "b.pth")
    assert refusal(tmp_path) == "a folder with several checkpoints; give the path of one: a.pth, b.pth"
    write_tensors(tmp_path / "model.safetensors", timm_state())
    assert_loads(tmp_path)


def test_paths_that_do_not_exist(tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "file").write_text("x")
    for name in ("absent", "absent/x.npz", "file/x.npz", "x" * 300, "a\0b"):
        assert refusal(tmp_path / name) == "no such file or folder"
    assert refusal(tmp_path / "dangling") == "no such file"
    assert "cannot be read (Too many levels of symbolic links)" in refusal(tmp_path / "loop")


def test_pipes_and_devices_do_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.npz")
    assert refusal(tmp_path / "pipe.npz") == "is a named pipe (FIFO), not a regular file"
    assert refusal("/dev/null") == "is a device, not a regular file"
    assert refusal("/dev/zero") == "is a device, not a regular file"
    write_tensors(tmp_path / "model.safetensors", timm_state())
    os.mkfifo(tmp_path / "config.json")
    assert refusal(tmp_path) == "config.json is a named pipe (FIFO), not a regular file"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, timm_state())
    path.chmod(0)
    assert refusal(path) == "cannot be read (Permission denied)"
    path.chmod(0o600)
    tmp_path.chmod(0o500)
    with pytest.raises(VitreousError, match=r"cannot be written .Permission denied."):
        vitreous.save(tiny_vit(), path)
    tmp_path.chmod(0o700)


# ---------------------------------------------------------------- other contents


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["conv1.weight", "bn1.weight", "layer1.0.conv1.weight", "fc.weight"], "a ResNet with batch normalisation"),
        (
            ["patch_embed.proj.weight", "layers.0.blocks.0.attn.relative_position_bias_table", "head.weight"],
            "a Swin Transformer or BEiT",
        ),
        (["bert.embeddings.word_embeddings.weight", "bert.encoder.layer.0.output.dense.weight"], "a language model"),
        (["visual.conv1.weight", "visual.transformer.resblocks.0.ln_1.weight", "logit_scale"], "a CLIP vision tower"),
        (["vision_model.embeddings.class_embedding", "text_model.final_layer_norm.weight"], "a CLIP or SigLIP model"),
        (["stem.0.weight", "stages.0.blocks.0.conv_dw.weight", "head.fc.weight"], "a ConvNeXt"),
        (["downsample_layers.0.0.weight", "stages.0.0.dwconv.weight"], "a ConvNeXt"),
        (["conv_stem.weight", "blocks.0.0.conv_dw.weight"], "depthwise convolutions"),
        (["base_model.model.blocks.0.attn.qkv.lora_A.weight"], "a LoRA adapter"),
        (["something.weight"], "not a checkpoint of any supported format: it contains 'something.weight'"),
    ],
)
def test_other_architectures_are_named(names: list[str], message: str, tmp_path: Path) -> None:
    write_tensors(tmp_path / "x.safetensors", {name: torch.ones(2, 2) for name in names})
    assert message in refusal(tmp_path / "x.safetensors")


@pytest.mark.parametrize("prefix", ["", "deit."])
def test_a_distilled_deit(prefix: str, tmp_path: Path) -> None:
    theirs = {
        "": {"dist_token": torch.ones(1, 1, 48), "head_dist.weight": torch.ones(7, 48)},
        "deit.": {"deit.embeddings.distillation_token": torch.ones(1, 1, 48)},
    }[prefix]
    write_tensors(tmp_path / "x.safetensors", timm_state() | theirs)
    assert "a distilled DeiT" in refusal(tmp_path / "x.safetensors")


def test_wrong_values_and_shapes(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    state = timm_state()
    state["blocks.1.norm2.bias"][3] = torch.nan
    write_tensors(path, state)
    assert "blocks.1.norm2.bias holds 1 of 48 values that are not numbers" in refusal(path, heads=3)
    write_tensors(path, timm_state() | {"blocks.1.norm2.bias": torch.ones(47)})
    assert "- blocks.1.norm2.bias (48,)" in refusal(path, heads=3)
    write_tensors(path, timm_state() | {"cls_token": torch.ones(1, 1, 48, dtype=torch.int64)})
    assert "cls_token holds int64" in refusal(path, heads=3)
    write_tensors(path, timm_state() | {"pos_embed": torch.ones(1, 0, 48)})
    assert "pos_embed has shape (1, 0, 48)" in refusal(path, heads=3)


# ---------------------------------------------------------------- writing


KINDS = ("x.safetensors", "x.npz", "x.pth")


def content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_writing_is_deterministic_and_readable(tmp_path: Path) -> None:
    state, paths = timm_state(), [tmp_path / name for name in KINDS]
    code = """
        import sys
        from pathlib import Path
        from vitreous.weights.containers import open_tensors, write_tensors
        for path in map(Path, sys.argv[1:]):
            write_tensors(path.with_name("again" + path.suffix), dict(open_tensors(path)))
    """
    for path in paths:
        write_tensors(path, state)
    with child(code, *paths) as process:  # another process, another name
        assert process.wait(60) == 0
    for path in paths:
        assert path.with_name(f"again{path.suffix}").read_bytes() == path.read_bytes()
        assert_same(open_tensors(path), state)
    assert_same(safetensors.torch.load_file(tmp_path / "x.safetensors"), state)
    assert_same(torch.load(tmp_path / "x.pth", weights_only=True), state)
    with np.load(tmp_path / "x.npz") as archive:
        assert all(np.array_equal(archive[name], tensor) for name, tensor in state.items())


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, RuntimeError("x"), OSError(28, "No space left")])
def test_a_failed_write_leaves_the_old_file(name: str, error: Any, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(b"the old one")

    class Broken(dict[str, Tensor]):
        def items(self) -> Any:
            yield "a", torch.ones(100_000)
            raise error

    expected = VitreousError if isinstance(error, OSError) else error if isinstance(error, type) else type(error)
    with pytest.raises(expected):
        write_tensors(path, Broken())
    assert content(tmp_path) == {name: b"the old one"}


def test_a_write_that_fails_halfway_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"the old one")

    def write(error: BaseException) -> None:
        with atomic_file(path) as temporary:
            temporary.write_bytes(b"half of the")
            raise error

    with pytest.raises(KeyboardInterrupt):
        write(KeyboardInterrupt())
    with pytest.raises(VitreousError, match=r"cannot be written .No space left.; the existing file is unchanged"):
        write(OSError(28, "No space left"))
    assert content(tmp_path) == {"x": b"the old one"}


def child(code: str, *arguments: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("name", ["x.safetensors", "x.pth"])
def test_a_process_that_is_killed_while_it_writes(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    write_tensors(path, timm_state())
    before = path.read_bytes()
    code = """
        import sys, torch
        from pathlib import Path
        from vitreous.weights.containers import write_tensors
        state = {str(i): torch.zeros(2**18) for i in range(64)}
        print("ready", flush=True)
        while True:
            write_tensors(Path(sys.argv[1]), state)
    """
    with child(code, path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        deadline = time.monotonic() + 60
        while not any(file.stat().st_size > 2**20 for file in tmp_path.glob(".*.tmp")):
            assert time.monotonic() < deadline
        process.send_signal(signal.SIGKILL)
    after = path.read_bytes()
    if after == before:
        assert_same(open_tensors(path), timm_state())
    else:  # the complete new file, not a part of it
        assert_same(open_tensors(path), {str(i): torch.zeros(2**18) for i in range(64)})


def convert_with_little_room(source: Path, target: Path, to: str) -> tuple[int, str]:
    """Return exit code and message of a process in which no file may have more than 50,000 bytes."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
    result = command.vitreous("convert", source, target, "--to", to, "--overwrite", "--force")
    return result.returncode, result.stderr


@pytest.mark.parametrize(
    ("name", "to"), [("x.safetensors", "native"), ("x.npz", "google"), ("x.pth", "torchvision"), ("x", "timm")]
)
def test_a_disk_that_is_full(name: str, to: str, tmp_path: Path) -> None:
    source, target = tmp_path / "in.safetensors", tmp_path / "out" / name
    vitreous.save(tiny_vit(**MODEL), source)
    target.parent.mkdir()
    if to == "timm":
        vitreous.convert(source, target, to)
    else:
        target.write_bytes(b"the old one")
    before = content(target if to == "timm" else target.parent)
    code, err = limited(convert_with_little_room, source, target, to, seconds=60)
    assert code == 2
    assert re.search(r"cannot be written \(File too large\); the existing (file|folder) is unchanged", err)
    assert content(target if to == "timm" else target.parent) == before


def test_targets_that_cannot_be_written(tmp_path: Path) -> None:
    model = tiny_vit(**MODEL)
    (tmp_path / "folder.safetensors").mkdir()
    os.mkfifo(tmp_path / "pipe.safetensors")
    (tmp_path / "device.safetensors").symlink_to("/dev/null")
    (tmp_path / "file").write_text("x")
    before = sorted(tmp_path.iterdir())
    for name, message in {
        "absent/x.safetensors": "there is no folder",
        "file/x.safetensors": "there is no folder",
        "folder.safetensors": "is a folder: give the name of a file",
        "pipe.safetensors": "is not a regular file",
        "device.safetensors": "is not a regular file",
        "x" * 300 + ".safetensors": "File name too long",
        "a\0b.safetensors": "null byte",
    }.items():
        with pytest.raises(VitreousError, match=message) as caught:
            vitreous.save(model, tmp_path / name)
        assert "Errno" not in str(caught.value)
    assert sorted(tmp_path.iterdir()) == before
    assert stat.S_ISFIFO((tmp_path / "pipe.safetensors").stat().st_mode)
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_a_long_file_name(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 243 + ".safetensors")
    vitreous.save(tiny_vit(**MODEL), path)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("name", KINDS)
def test_permissions_of_new_and_replaced_files(name: str, tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        write_tensors(tmp_path / name, {"a": torch.ones(2)})
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o640
        (tmp_path / name).chmod(0o400)
        write_tensors(tmp_path / name, {"a": torch.zeros(2)})
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o400
    finally:
        os.umask(old)


def test_a_symbolic_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    link, target = tmp_path / "x.safetensors", tmp_path / "elsewhere" / "y.safetensors"
    link.symlink_to(target)
    for _ in range(2):  # a target that does not exist yet, and one that exists
        vitreous.save(tiny_vit(**MODEL), link)
        assert link.is_symlink()
        assert [file.name for file in target.parent.iterdir()] == [target.name]
        assert_loads(target)


@pytest.mark.parametrize(
    ("name", "to"), [("x.safetensors", "native"), ("x.pth", "torchvision"), ("x.npz", "google"), ("x", "timm")]
)
def test_convert_a_checkpoint_in_place(name: str, to: str, tmp_path: Path) -> None:
    path = tmp_path / name
    changes = {"google": {"resample": "google", "gelu": "tanh"}, "torchvision": {"resample": "torchvision"}}
    vitreous.save(tiny_vit(**MODEL | changes.get(to, {})), path, to=to)
    heads = 3 if to == "torchvision" else None
    before = vitreous.load(path, heads=heads).state_dict()
    for _ in range(2):
        vitreous.convert(path, path, to, heads=heads, overwrite=True)
    assert_same(vitreous.load(path, heads=heads).state_dict(), before)


@pytest.mark.parametrize("name", KINDS)
def test_a_file_may_be_replaced_while_a_model_uses_it(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    google = name.endswith("npz")
    model = tiny_vit() if google else tiny_vit(**MODEL)
    if google:
        vitreous.save(model, path, to="google", force=True)
    else:
        write_tensors(path, timm_state())
    loaded = vitreous.load(path, heads=3)
    before, x = {k: v.clone() for k, v in loaded.state_dict().items()}, images(1, 3, 32, 32)
    answer = outputs(loaded, x)
    write_tensors(path, {k: torch.zeros_like(v) for k, v in open_tensors(path).items()})
    assert_same(loaded.state_dict(), before)
    assert torch.equal(outputs(loaded, x), answer)
    with torch.no_grad():
        loaded.head.weight.zero_()  # changing a model does not change its file
    vitreous.save(tiny_vit(**MODEL), tmp_path / "x.safetensors")
    again = vitreous.load(tmp_path / "x.safetensors")
    with torch.no_grad():
        again.head.weight.zero_()
    assert vitreous.load(tmp_path / "x.safetensors").head.weight.any()


def test_8_bit_floating_point_types(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, {name: tensor.to(torch.float8_e4m3fn) for name, tensor in timm_state().items()})
    assert vitreous.load(path, heads=3).head.weight.dtype == torch.float32
    vitreous.convert(path, tmp_path / "y.safetensors", "native", heads=3)
    assert vitreous.load(tmp_path / "y.safetensors", dtype=None).head.weight.dtype == torch.float8_e4m3fn
    with (
        pytest.warns(VitreousWarning),
        pytest.raises(
            VitreousError, match=r"holds torch.float8_e4m3fn, and .npz files cannot hold 8-bit floating-point numbers"
        ),
    ):
        vitreous.convert(path, tmp_path / "y.npz", "google", heads=3, force=True)


def test_unusual_labels_survive_a_round_trip(tmp_path: Path) -> None:
    labels = ("ü", "漢字", '"', "\n", "\ud800", "", "[/]")
    model = tiny_vit(gelu="erf", resample="timm")
    model.labels = labels
    vitreous.save(model, tmp_path / "x.safetensors")
    vitreous.save(model, tmp_path / "timm", to="timm")
    assert vitreous.load(tmp_path / "x.safetensors").labels == labels
    assert vitreous.load(tmp_path / "timm").labels == labels


def test_the_memory_of_a_tensor_can_be_released() -> None:
    held = InMemoryTensors({"a": torch.ones(3), "b": np.ones((2, 2))}, "x")
    held.release("a")
    assert held["a"].is_meta
    assert held["b"].dtype == torch.float64
    assert (held.shape("a"), held.shape("b"), len(held)) == ((3,), (2, 2), 2)


def ended_process() -> int:
    """Return the id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_temporary_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    """Only those of the same path, and only of processes that have ended."""
    gone, path = ended_process(), tmp_path / "x.safetensors"
    (tmp_path / f".x.safetensors.{gone}.tmp").write_text("a part of it")
    kept = [f".y.safetensors.{gone}.tmp", f".x.safetensors.{os.getppid()}.tmp", ".x.safetensors.abc.tmp", ".x.tmp"]
    for name in kept:
        (tmp_path / name).write_text("of others")
    vitreous.save(tiny_vit(), path)
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted([*kept, path.name])


def test_folders_of_killed_processes_are_removed_or_restored(tmp_path: Path) -> None:
    gone, folder, model = ended_process(), tmp_path / "x", tiny_vit(gelu="erf", resample="timm")
    vitreous.save(model, folder, to="timm")
    for ending in ("tmp", "old"):
        shutil.copytree(folder, tmp_path / f".x.{gone}.{ending}")
    vitreous.save(model, folder, to="timm")
    assert [file.name for file in tmp_path.iterdir()] == ["x"]
    folder.rename(tmp_path / f".x.{gone}.old")  # the last complete folder
    (tmp_path / f".x.{gone}.tmp").mkdir()
    vitreous.save(tiny_vit(), tmp_path / "in.safetensors")
    _, err = limited(convert_with_little_room, tmp_path / "in.safetensors", folder, "timm", seconds=60)
    assert "the existing folder is unchanged" in err
    assert sorted(file.name for file in tmp_path.iterdir()) == ["in.safetensors", "x"]
    assert vitreous.load(folder).report.dialect == "timm"
