"""Tar shards: indexed once, and read by offset in several processes."""

import errno
import gc
import gzip
import io
import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from limits import limited
from pictures import encoded, same, write, write_tar
from vitreous.data import tar_index
from vitreous.data.dataset import DataSet, Source
from vitreous.data.digests import image_digests
from vitreous.data.encoded import EncodedSource
from vitreous.data.open_data import open_data
from vitreous.data.options import Reading
from vitreous.data.scan import scan_images
from vitreous.data.statistics import describe
from vitreous.data.transforms import DecodeCheck
from vitreous.errors import SystemFaultError, VitreousError

WHOLE = Reading(val_fraction=0)


def web(path: Path, numbers: range, label: str = "cls") -> Path:
    """Write a tar in WebDataset's format; the label of an image is its index modulo 3."""
    members = {}
    for i in numbers:
        members[f"{i:05}.png"] = encoded(i)
        members[f"{i:05}.{label}"] = json.dumps({"label": i % 3}).encode() if label == "json" else str(i % 3).encode()
    return write_tar(path, members)


def refused(path: object) -> str:
    with pytest.raises(VitreousError) as caught:
        open_data(str(path), WHOLE)
    return str(caught.value)


def agrees(data: DataSet, numbers: range) -> bool:
    return all(
        same(data.train.image(i), number) and data.train.labels[i] == number % 3 for i, number in enumerate(numbers)
    )


@pytest.mark.parametrize("label", ["cls", "txt", "json"])
def test_labels_in_files_next_to_the_images(tmp_path: Path, label: str) -> None:
    data = open_data(web(tmp_path / "s.tar", range(9), label), WHOLE)
    assert (data.name, data.classes, len(data.train)) == ("s", ("0", "1", "2"), 9)
    assert agrees(data, range(9))
    assert data.train.name(4) == f"{tmp_path / 's.tar'}:00004.png"
    assert data.train.content(4) == encoded(4)


def test_label_formats(tmp_path: Path) -> None:
    members = {"0.png": encoded(0), "0.cls": b"3", "1.png": encoded(1), "1.json": b'{"label": 3}'}
    path = write_tar(tmp_path / "s.tar", members)
    assert f"labels of different types ('3' at {path}:0.png, 3 at {path}:1.png)" in refused(path)
    path = write_tar(tmp_path / "t.tar", {**members, "1.json": b'{"label": 1.5}'})
    assert f"{path}:1.png: the label is 1.5" in refused(path)


def test_a_folder_and_patterns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for shard in range(3):
        web(tmp_path / f"shards-{shard:03}.tar", range(shard * 4, shard * 4 + 4))
    monkeypatch.chdir(tmp_path)
    for source in (
        str(tmp_path),
        "shards-{000..002}.tar",
        "shards-*.tar",
        "*.tar",
        str(tmp_path / "shards-00[012].tar"),
    ):
        data = open_data(source, WHOLE)
        assert len(data.train) == 12
        assert agrees(data, range(12))
    assert open_data("shards-{000..002}.tar", WHOLE).name == "shards"
    assert len(open_data("shards-{000,002}.tar", WHOLE).train) == 8
    assert "there is no shards-003.tar" in refused("shards-{000..003}.tar")
    assert "there is no gone*.tar" in refused("gone*.tar")


def test_shards_of_splits(tmp_path: Path) -> None:
    folder = tmp_path / "train and test"  # the name of the folder itself is not used
    folder.mkdir()
    web(folder / "birds_train-0.tar", range(6))
    web(folder / "birds_train-1.tar", range(6, 12))
    web(folder / "birds_val.tar", range(12, 15))
    web(folder / "birds-TEST.tar", range(15, 17))
    data = open_data(folder)
    assert {name: len(source) for name, source in data.splits.items()} == {"train": 12, "val": 3, "test": 2}
    assert data.split == "val shards"
    assert agrees(data, range(12))
    alone = open_data(folder / "birds_val.tar", WHOLE)  # the only file is used for training
    assert len(alone.train) == 3
    assert alone.notes[0] == "birds_val.tar is the only file: used for training in spite of its name"
    web(folder / "more.tar", range(2))
    assert "'more.tar': no split (train, val or test) in the name" in refused(folder)


def test_folders_in_tars(tmp_path: Path) -> None:
    images = {f"{'ab'[i % 2]}/{i}.JPG": encoded(i, "JPEG") for i in range(6)}
    data = open_data(write_tar(tmp_path / "flat.tar", {**images, "a/notes.md": b"", "a/.hidden.png": b""}), WHOLE)
    assert data.classes == ("a", "b")
    assert data.train.labels.tolist() == [0, 1] * 3
    assert data.notes == ("1 file in the tars without an image suffix: ignored",)
    data = open_data(write_tar(tmp_path / "top.tar", {f"./top/more/{k}": v for k, v in images.items()}), WHOLE)
    assert data.classes == ("a", "b")
    inner = {f"set/{'val' if i > 3 else 'train'}/{'ab'[i % 2]}/{i}.png": encoded(i) for i in range(6)}
    data = open_data(write_tar(tmp_path / "split.tar", inner))
    assert {name: len(source) for name, source in data.splits.items()} == {"train": 4, "val": 2}
    assert data.split == "val/ in the tars"
    assert data.val is not None
    assert same(data.val.image(1), 5)


def test_long_and_unusual_names(tmp_path: Path) -> None:
    members = {f"{'long ' * 60}/ü漢.png": encoded(0), "b/x.y.png": encoded(1)}
    data = open_data(write_tar(tmp_path / "odd.tar", members), WHOLE)
    assert sorted(data.train.name(i).partition(":")[2] for i in range(2)) == sorted(members)


def test_multi_label(tmp_path: Path) -> None:
    members = {
        "0.png": encoded(0),
        "0.json": b'{"labels": ["a", "b"]}',
        "1.png": encoded(1),
        "1.json": b'{"labels": []}',
    }
    data = open_data(write_tar(tmp_path / "m.tar", members), WHOLE)
    assert data.train.labels.tolist() == [[True, True], [False, False]]


def index_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.vitreous-index.json")


def test_the_index_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = web(tmp_path / "s.tar", range(6))
    made = []
    make = tar_index._build_index
    monkeypatch.setattr(tar_index, "_build_index", lambda *a: made.append(a) or make(*a))
    for _ in range(3):
        assert agrees(open_data(path, WHOLE), range(6))
    assert len(made) == 1
    assert [p.name for p in tmp_path.iterdir() if p != path] == [index_of(path).name]  # and no temporary file is left
    web(path, range(9))
    os.utime(path, ns=(1, time.time_ns() + 10**9))
    assert agrees(open_data(path, WHOLE), range(9))
    assert len(made) == 2


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", "null", '{"version": 1}', "cut", "huge", "text"], ids=lambda damage: damage or "empty"
)
def test_a_damaged_index_is_rebuilt(tmp_path: Path, damage: str) -> None:
    path = web(tmp_path / "s.tar", range(6))
    open_data(path, WHOLE)
    whole = index_of(path).read_text()
    held = json.loads(whole)
    if damage == "cut":
        damage = whole[: len(whole) // 2]
    elif damage == "huge":
        damage = json.dumps({**held, "offsets": [10**12] * 6})
    elif damage == "text":
        damage = json.dumps({**held, "names": [1] * 6})
    index_of(path).write_text(damage)
    assert agrees(open_data(path, WHOLE), range(6))
    assert index_of(path).read_text() == whole


def test_read_only_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = web(tmp_path / "s.tar", range(6))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    make = tar_index.tempfile.mkstemp

    def forbid(dir: Path, prefix: str, suffix: str) -> object:
        if Path(dir) == tmp_path:
            raise PermissionError(13, "Permission denied")
        return make(dir=dir, prefix=prefix)

    monkeypatch.setattr(tar_index.tempfile, "mkstemp", forbid)
    assert agrees(open_data(path, WHOLE), range(6))
    assert not index_of(path).exists()
    assert len(list((tmp_path / "cache" / "vitreous").iterdir())) == 1
    monkeypatch.setattr(tar_index, "_build_index", None)
    assert agrees(open_data(path, WHOLE), range(6))


def test_truncated_and_damaged_tars(tmp_path: Path) -> None:
    path = web(tmp_path / "s.tar", range(20))
    whole = path.read_bytes()
    bodies = [i * 512 for i in range(len(whole) // 512)]
    for cut in (len(whole) // 2, len(whole) // 2 + 100, bodies[4], bodies[5], 700, 100):
        path.write_bytes(whole[:cut])
        index_of(path).unlink(missing_ok=True)
        assert refused(path).startswith(str(path))
        assert "truncated" in refused(path)
    path.write_bytes(whole[:2048] + b"\xff" * 512 + whole[2560:])
    assert "damaged" in refused(path) or "truncated" in refused(path)
    path.write_bytes(b"")
    assert "s.tar: not a tar, or truncated" in refused(path)
    write_tar(path, {})
    assert "the tars contain no images" in refused(path)
    for name in ("s.tar.gz", "s.tgz", "other.tar"):
        (tmp_path / name).write_bytes(gzip.compress(whole))
        assert "decompress it to a plain .tar first" in refused(tmp_path / name)


def test_missing_labels(tmp_path: Path) -> None:
    members = {"0.png": encoded(0), "0.cls": b"0", "1.png": encoded(1)}
    assert "1.png has no label: no 1.cls, .json or .txt" in refused(write_tar(tmp_path / "s.tar", members))
    assert "images without a class folder and without a label file" in refused(
        write_tar(tmp_path / "t.tar", {"0.png": encoded(0)})
    )


def _read(source: Source, numbers: list[int], results: "multiprocessing.Queue[bool]") -> None:
    results.put(all(same(source.image(i), i) for i in numbers))


@pytest.mark.skipif(os.name != "posix", reason="forks")
def test_reading_in_threads_forks_and_pickled_copies(tmp_path: Path) -> None:
    data = open_data(web(tmp_path / "s.tar", range(60)), WHOLE)
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda i: same(data.train.image(i), i), list(range(60)) * 4))
    copy = pickle.loads(pickle.dumps(data.train))
    assert len(pickle.dumps(data.train)) < 60 * 80 + 2000
    assert same(copy.image(7), 7)
    context = multiprocessing.get_context("fork")
    results: multiprocessing.Queue[bool] = context.Queue()
    halves = [list(range(0, 60, 2)), list(range(1, 60, 2))]
    children = [context.Process(target=_read, args=(data.train, half * 10, results)) for half in halves]
    for child in children:
        child.start()
    assert all(same(data.train.image(i), i) for i in range(60))
    assert [results.get(timeout=60) for _ in children] == [True, True]
    for child in children:
        child.join()


def test_an_image_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "s.tar", {"a/0.png": encoded(0), "b/1.png": b"no image", "b/2.png": encoded(2)})
    data = open_data(path, WHOLE)
    with pytest.raises(VitreousError, match=r"s\.tar:b/1\.png: not an image"):
        data.train.image(1)
    os.truncate(path, 1024)
    with pytest.raises(VitreousError, match=r"s\.tar:b/2\.png: the file is shorter"):
        data.train.image(2)


def read_all(pattern: str) -> tuple[int, list[str], int]:
    data = open_data(pattern, WHOLE)
    found = describe(data, threads=2)
    return len(data.train), [bad.reason for bad in found.unreadable], len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def test_more_shards_than_a_process_may_open(tmp_path: Path) -> None:
    for shard in range(60):
        web(tmp_path / f"s{shard:02}.tar", range(2 * shard, 2 * shard + 2))
    images, unreadable, descriptors = limited(read_all, f"{tmp_path}/s*.tar", files=40)
    assert (images, unreadable) == (120, [])
    assert descriptors < 40


def test_file_descriptors_are_closed(tmp_path: Path) -> None:
    for shard in range(20):
        web(tmp_path / f"s{shard:02}.tar", range(2 * shard, 2 * shard + 2))
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    def read() -> None:
        data = open_data(f"{tmp_path}/s*.tar", WHOLE)
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(lambda i: same(data.train.image(i % 40), i % 40), range(400)))
        assert before < len(os.listdir("/proc/self/fd")) <= before + 16  # noqa: PTH208

    read()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def exhausted(folder: str) -> tuple[str, str]:
    """Return the errors of opening a folder and of reading an image when no more files can be opened."""
    data: DataSet = pickle.loads(pickle.dumps(open_data(folder, WHOLE)))  # a pickled copy has no open files
    held = []
    with suppress(OSError):
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    told = []
    for attempt in (lambda: describe(data, threads=1), lambda: data.train.image(0), lambda: image_digests(data.train)):
        try:
            attempt()
            told.append("nothing")
        except SystemFaultError as error:
            told.append(str(error))
    for descriptor in held:
        os.close(descriptor)
    return told[0], told[1] if told[1] == told[2] else f"{told[1]} / {told[2]}"


def test_too_many_open_files_is_not_an_unreadable_image(tmp_path: Path) -> None:
    for place, name in enumerate("aabb"):
        write(tmp_path / "folder" / name / f"{place}.png", place)
    web(tmp_path / "s.tar", range(4))
    for data in (tmp_path / "folder", tmp_path / "s.tar"):
        both = limited(exhausted, str(data), files=64)
        assert set(both) == {both[0]}
        assert both[0].endswith("cannot be read: too many open files; raise the limit (`ulimit -n`)")


class Failing(EncodedSource):
    """A source on a disk that fails at one image; another image is only damaged."""

    def __init__(self) -> None:
        self.labels = torch.zeros(6, dtype=torch.int64)

    def name(self, index: int) -> str:
        return f"image {index}"

    def read_bytes(self, index: int) -> bytes:
        if index == 4:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return b"damaged" if index == 2 else encoded(index)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_failing_disk_stops_a_scan(workers: int) -> None:
    with pytest.raises(SystemFaultError, match=r"^image 4: cannot be read: the system reports an error \(Input/output"):
        scan_images(Failing(), DecodeCheck(), 3, workers, torch.device("cpu"), lambda images: None)


def sparse_tar(path: Path, kind: str) -> Path:
    """Write a tar with a sparse BMP, as GNU tar does: the zeros are not stored."""
    name, image = "b/hole.bmp", bytearray(encoded(1, "BMP", height=64, width=64))
    image[1024:9216] = bytes(8192)
    spans = [(0, 1024), (9216, len(image) - 9216)]
    stored = b"".join(bytes(image[at : at + length]) for at, length in spans)
    header = tarfile.TarInfo(name)
    with tarfile.open(path, "w") as tar:
        for i in range(3):
            info = tarfile.TarInfo(f"{'ab'[i % 2]}/{i}.png")
            info.size = len(encoded(i))
            tar.addfile(info, io.BytesIO(encoded(i)))
        if kind == "old GNU":
            header.size, header.type = len(stored), tarfile.GNUTYPE_SPARSE
            block = bytearray(header.tobuf(tarfile.GNU_FORMAT))
            fields = b"".join(b"%011o\0%011o\0" % span for span in spans)
            block[386 : 386 + len(fields)] = fields
            block[483:495] = b"%011o\0" % len(image)
            block[148:156] = b"        "
            block[148:156] = b"%06o\0 " % sum(block)
            tar.fileobj.write(bytes(block))
        else:
            table = f"{len(spans)}\n" + "".join(f"{at}\n{length}\n" for at, length in spans)
            stored = table.encode().ljust(512, b"\0") + stored
            header.size = len(stored)
            header.pax_headers = {
                "GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": name,
                "GNU.sparse.realsize": str(len(image)),
            }  # fmt: skip
            tar.fileobj.write(header.tobuf(tarfile.PAX_FORMAT))
        tar.fileobj.write(stored + bytes(-len(stored) % 512))
        tar.offset += tar.fileobj.tell() - tar.offset
    return path


@pytest.mark.parametrize("kind", ["old GNU", "PAX"])
def test_a_sparse_image(tmp_path: Path, kind: str) -> None:
    path = sparse_tar(tmp_path / "s.tar", kind)
    with tarfile.open(path) as tar:
        whole = tar.extractfile("b/hole.bmp").read()
    for _ in range(2):  # from the tar, then from the saved index
        data = open_data(path, WHOLE)
        (index,) = (i for i in range(len(data.train)) if data.train.name(i).endswith("hole.bmp"))
        assert data.train.content(index) == whole
        assert data.train.image(index).size == (64, 64)


def test_temporary_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    left = tmp_path / f".vitreous-index-abc.{int(dead.stdout)}.tmp"
    mine = tmp_path / f".vitreous-index-def.{os.getpid()}.tmp"
    other = tmp_path / ".vitreous-index-notes.tmp"
    for path in (left, mine, other):
        path.write_text("{")
    open_data(web(tmp_path / "s.tar", range(4)), WHOLE)
    assert not left.exists()
    assert mine.exists()
    assert other.exists()
    assert index_of(tmp_path / "s.tar").exists()
