"""Named pipes, devices, sockets and endless files instead of data are refused at once with one sentence."""

import io
import os
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from limits import limited
from pictures import classes, encoded, write, write_tar
from vitreous.data.image_files import find_images
from vitreous.data.open_data import open_data
from vitreous.data.options import Reading
from vitreous.data.statistics import describe
from vitreous.errors import VitreousError
from vitreous.evaluation.matching import read_class_map
from vitreous.utils.images import decode

WHOLE = Reading(val_fraction=0)
MEMORY = 1 << 30


def message(path: str) -> str:
    try:
        open_data(path, WHOLE)
    except VitreousError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("suffix", [".tar", ".npz", ".parquet", ".csv", ".tsv", ".jsonl"])
def test_data_that_is_not_a_regular_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    os.mkfifo(path)
    assert "named pipe" in limited(message, str(path), seconds=10)
    path.unlink()
    path.symlink_to("/dev/zero")
    assert "device" in limited(message, str(path), seconds=10, memory=MEMORY)


def unreadable(path: str) -> dict[str, str]:
    return {Path(bad.name).name: bad.reason for bad in describe(open_data(path, WHOLE), threads=2).unreadable}


def test_a_folder_with_a_pipe_and_a_device_in_it(tmp_path: Path) -> None:
    classes(tmp_path / "set", {"a": 3, "b": 3})
    os.mkfifo(tmp_path / "set" / "a" / "pipe.png")
    (tmp_path / "set" / "b" / "zero.png").symlink_to("/dev/zero")
    with (tmp_path / "set" / "b" / "huge.png").open("wb") as file:
        file.truncate(1 << 42)
    found = limited(unreadable, str(tmp_path / "set"), seconds=20, memory=2 * MEMORY)
    assert set(found) == {"pipe.png", "zero.png", "huge.png"}
    assert "named pipe" in found["pipe.png"]
    assert "device" in found["zero.png"]
    assert "4,398,046,511,104 bytes, and the limit is 1,120,000,000" in found["huge.png"]


def test_a_manifest_that_refers_to_a_pipe(tmp_path: Path) -> None:
    names = [write(tmp_path / f"{i}.png", i).name for i in range(4)]
    os.mkfifo(tmp_path / "pipe.png")
    rows = [f"{name},{i % 2}\n" for i, name in enumerate([*names, "pipe.png"])]
    (tmp_path / "x.csv").write_text("image,label\n" + "".join(rows))
    assert list(limited(unreadable, str(tmp_path / "x.csv"))) == ["pipe.png"]


def test_a_pipe_instead_of_a_tar_index(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", {f"{'ab'[i % 2]}/{i}.png": encoded(i) for i in range(4)})
    os.mkfifo(tmp_path / ".x.tar.vitreous-index.json")
    assert limited(message, str(path)) == ""


def test_an_index_that_is_larger_than_its_tar(tmp_path: Path) -> None:
    """An index may come from an untrusted source. If it is too large, it is not read but rebuilt."""
    path = write_tar(tmp_path / "x.tar", {f"{'ab'[i % 2]}/{i}.png": encoded(i) for i in range(4)})
    index = tmp_path / ".x.tar.vitreous-index.json"
    with index.open("wb") as file:
        file.write(b"[")
        file.truncate((1 << 32) - 1)
    assert limited(message, str(path), seconds=10, memory=MEMORY) == ""
    assert index.stat().st_size < 10_000


def test_a_pipe_among_the_files_of_the_datasets_library(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    rows = {"image": [encoded(i) for i in range(4)], "label": [0, 1, 0, 1]}
    datasets.Dataset.from_dict(rows).save_to_disk(str(tmp_path / "saved"))
    (data,) = (tmp_path / "saved").glob("*.arrow")
    data.unlink()
    os.mkfifo(data)
    assert f"{data}: is not a regular file" in limited(message, str(tmp_path / "saved"))


def pictures(path: str) -> list[str]:
    errors = []
    for image in find_images([path]):
        try:
            decode(image)
        except VitreousError as error:
            errors.append(str(error))
    return errors


def test_images_to_predict(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "random.jpg").symlink_to("/dev/urandom")
    found = limited(pictures, str(tmp_path), memory=MEMORY)
    assert [error.split(": ", 1)[1] for error in found] == [
        "is a named pipe (FIFO), not a regular file",
        "is a device, not a regular file",
    ]


def test_an_endless_line(tmp_path: Path) -> None:
    for suffix in (".csv", ".jsonl"):
        path = tmp_path / f"x{suffix}"
        with path.open("wb") as file:
            file.truncate(1 << 40)
        assert "more than 8,388,608 characters" in limited(message, str(path), memory=MEMORY)


def test_a_small_npz_with_a_large_array(tmp_path: Path) -> None:
    """Declared sizes are compared with the file size and the header before memory is allocated."""
    header = {"descr": "|u1", "fortran_order": False, "shape": (4_000_000, 32, 32)}
    path = tmp_path / "x.npz"
    _zeros(path, header, 4_096_000_000)
    assert "more than 100 times as much" in limited(message, str(path), memory=MEMORY)
    _zeros(path, header, 1000)  # the header declares more than the file has
    assert "shape (4000000, 32, 32) does not fit its 1,000 bytes" in limited(message, str(path), memory=MEMORY)


def _zeros(path: Path, header: dict[str, object], size: int) -> None:
    """Write an .npz file with an array of zeros whose size is only in the directory."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, header)  # type: ignore[no-untyped-call]
    head = stream.getvalue()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", head + bytes(min(size, 100_000)))
    if size > 100_000:
        data = bytearray(path.read_bytes())
        at = data.rindex(b"PK\x01\x02")
        data[at + 24 : at + 28] = struct.pack("<I", min(size + len(head), 0xFFFFFFFE))
        path.write_bytes(data)


@pytest.mark.parametrize("name", ["map.json", "map.csv"])
def test_other_files_given_by_the_user(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    os.mkfifo(path)

    def refused() -> str:
        try:
            read_class_map(path, ["a"], ["b"], 1)
        except VitreousError as error:
            return str(error)
        return ""

    assert "named pipe" in limited(refused, seconds=10)
