"""Zip archives of photos: read in place, equal to the folder that they were made from, and refused if unsafe."""

import io
import pickle
import shutil
import stat
import struct
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from limits import limited
from pictures import classes, encoded, same
from runs import config
from vitreous import train
from vitreous.data.fingerprint import dataset_fingerprint, source_fingerprint
from vitreous.data.open_data import open_data
from vitreous.data.options import Reading
from vitreous.data.scan import scan_images
from vitreous.data.transforms import DecodeCheck
from vitreous.errors import VitreousError
from vitreous.training.train import resume

WHOLE = Reading(val_fraction=0)


def write_zip(path: Path, members: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED, **options: Any) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members.items():
            with archive.open(name, "w", **options) as file:
                file.write(data)
    return path


def pets(start: str = "", count: int = 3) -> dict[str, bytes]:
    labels = ("cat", "dog")
    return {f"{start}{label}/{i}.png": encoded(10 * n + i) for n, label in enumerate(labels) for i in range(count)}


def refused(path: Path) -> str:
    with pytest.raises(VitreousError) as caught:
        open_data(path, WHOLE)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("start", ["", "photos/", "backup/my photos/"])
def test_class_folders(tmp_path: Path, start: str, method: int) -> None:
    data = open_data(write_zip(tmp_path / "pets.zip", pets(start), method), WHOLE)
    assert (data.name, data.classes, data.notes) == ("pets", ("cat", "dog"), ())
    assert data.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert all(same(data.train.image(i), number) for i, number in enumerate((0, 1, 2, 10, 11, 12)))
    assert data.train.name(3) == f"{tmp_path / 'pets.zip'}:{start}dog/0.png"


def test_a_zip_equals_the_folder(tmp_path: Path) -> None:
    root = classes(
        tmp_path / "pets", {f"{split}/{name}": 4 for split in ("train", "valid") for name in ("b", "a", "ü")}
    )
    classes(root, {"test/a": 2, "train/a/more": 2})
    (root / "train" / "b" / "clip.mov").write_bytes(b"x")
    (root / "train" / "loose.png").write_bytes(encoded(7))
    members = {f"pets/{file.relative_to(root)}": file.read_bytes() for file in root.rglob("*") if file.is_file()}
    members |= {"__MACOSX/pets/train/b/._000.png": b"x", "pets/.DS_Store": b"x", "pets/Thumbs.db": b"x"}
    folder, archive = open_data(root), open_data(write_zip(tmp_path / "pets.zip", members))
    assert archive.classes == folder.classes == ("a", "b", "ü")
    assert archive.notes == folder.notes
    assert archive.split == "valid/ in the zip archive"
    assert archive.splits.keys() == folder.splits.keys()
    for name, source in folder.splits.items():
        assert torch.equal(archive.splits[name].labels, source.labels)
        assert [archive.splits[name].content(i) for i in range(len(source))] == [
            source.content(i) for i in range(len(source))
        ]


def test_odd_but_valid_archives(tmp_path: Path) -> None:
    expected = list(pets().values())

    def contents(path: Path) -> list[bytes]:
        train = open_data(path, WHOLE).train
        return [train.content(i) for i in range(len(train))]

    assert contents(write_zip(tmp_path / "64.zip", pets(), force_zip64=True)) == expected
    plain = write_zip(tmp_path / "plain.zip", pets()).read_bytes()
    (tmp_path / "prefix.zip").write_bytes(b"#!/bin/sh\n" * 50 + plain)  # self-extracting
    assert contents(tmp_path / "prefix.zip") == expected

    class Stream(io.RawIOBase):  # cannot seek: sizes and checksums follow the data
        parts = b""

        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            self.parts += bytes(data)
            return len(data)

    stream = Stream()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in pets().items():
            archive.writestr(name, data)
    (tmp_path / "stream.zip").write_bytes(stream.parts)
    assert contents(tmp_path / "stream.zip") == expected


def test_names(tmp_path: Path) -> None:
    """Names with .., absolute names, links and repeated names are harmless."""
    path = tmp_path / "names.zip"
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w") as archive:
        warnings.simplefilter("ignore")  # zipfile warns of a repeated name
        for i in range(3):
            archive.writestr(f"../../dog/{i}.png", encoded(i))
            archive.writestr(f"/cat/{i}.png", encoded(10 + i))
        archive.writestr("dog/1.png", encoded(50))
        link = zipfile.ZipInfo("dog/link.png")
        link.create_system, link.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
    data = open_data(path, WHOLE)
    assert data.classes == ("cat", "dog")
    assert data.train.labels.bincount().tolist() == [3, 3]
    assert data.notes == (
        "1 name of images more than once in the archive: the last image of each is used",
        "ignored: 1 file without an image suffix (1 .png)",
    )
    assert same(data.train.image(4), 50)
    assert [path.name for path in tmp_path.iterdir()] == ["names.zip"]


def test_encodings_of_names(tmp_path: Path) -> None:
    path = tmp_path / "names.zip"
    names = ("mit Flagge ü/1.png", "Katz##/1.png", "H#nd/1.png", "back@slash@1.png")
    with zipfile.ZipFile(path, "w") as archive:
        for i, name in enumerate(names):
            info = zipfile.ZipInfo(name)
            info.create_system = 0 if "@" in name else 3
            archive.writestr(info, encoded(i))
    raw = path.read_bytes()
    for ascii_name, name in ((b"Katz##", "Katzé".encode()), (b"H#nd", b"H\x81nd"), (b"back@slash@", b"back\\slash\\")):
        raw = raw.replace(ascii_name, name)
    path.write_bytes(raw)
    data = open_data(path, Reading(val_fraction=0, class_level=1))
    assert data.classes == ("Hünd", "Katzé", "back", "mit Flagge ü")
    assert data.notes[0] == "1 name of images in an unknown encoding: read as code page 437"


def test_archives_that_cannot_be_read_in_place(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    for method, name in ((zipfile.ZIP_LZMA, "LZMA"), (zipfile.ZIP_BZIP2, "bzip2")):
        assert f"compressed with {name}, which cannot be read in place" in refused(write_zip(path, pets(), method))
    raw = bytearray(write_zip(path, pets()).read_bytes())
    raw[raw.find(b"PK\x03\x04") + 6] |= 1
    raw[raw.find(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(raw)
    assert "encrypted images in the zip archive ('cat/0.png'): extract the archive" in refused(path)
    assert "2 archives ('a.zip', 'b.tar')" in refused(write_zip(path, {"a.zip": b"x", "b.tar": b"x"}))
    assert "2 images, but no class folders" in refused(write_zip(path, {"1.png": encoded(1), "2.png": encoded(2)}))
    assert "only one class, 'cat'" in refused(write_zip(path, {"x/cat/1.png": encoded(1), "x/cat/2.png": encoded(2)}))
    assert "no images in this folder" in refused(write_zip(path, {}))
    path.write_bytes(b"PK\x03\x04 not a zip")
    assert "not a zip archive, or damaged" in refused(path)


def test_damaged_members_are_unreadable_images(tmp_path: Path) -> None:
    path = write_zip(tmp_path / "a.zip", pets(), zipfile.ZIP_STORED)
    raw = bytearray(path.read_bytes())
    raw[raw.find(encoded(1)) + 40] ^= 1
    raw[raw.find(b"cat/2.png") - 30] ^= 1
    path.write_bytes(raw)
    data = open_data(path, WHOLE)
    result = scan_images(data.train, DecodeCheck(), 3, 0, torch.device("cpu"), lambda count: None)
    assert sorted(result.bad) == [1, 2]
    assert "cat/1.png: is damaged: its checksum does not match" in result.bad[1]
    assert "header does not match the list" in result.bad[2]
    path.write_bytes(raw[: len(raw) // 2])
    assert "not a zip archive, or damaged" in refused(path)


def test_zip_bombs(tmp_path: Path) -> None:
    """A member that decompresses to gigabytes, one whose size is wrong, and members that share their data."""
    zeros = bytes(1 << 20)
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in pets().items():
            archive.writestr(name, data)
        with archive.open("cat/bomb.png", "w") as file:
            for _ in range(300):
                file.write(zeros)
    raw = path.read_bytes()
    at = raw.find(b"cat/bomb.png", raw.find(b"PK\x01\x02"))
    lying = bytearray(raw)
    lying[at - 22 : at - 18] = struct.pack("<I", 1000)  # the size in the list of members

    def errors() -> list[str]:
        found = []
        for content in (raw, bytes(lying)):
            path.write_bytes(content)
            train = open_data(path, WHOLE).train
            with pytest.raises(VitreousError) as caught:
                train.image(3)
            found.append(str(caught.value))
        return found

    large, wrong = limited(errors, seconds=10, memory=1 << 28)
    assert "has 314,572,800 bytes, compressed to" in large
    assert "checksum does not match" in wrong

    write_zip(path, pets())
    raw = bytearray(path.read_bytes())
    second = raw.find(b"PK\x01\x02", raw.find(b"PK\x01\x02") + 1)
    raw[second + 42 : second + 46] = struct.pack("<I", 0)  # its data begins where that of the first member does
    path.write_bytes(raw)
    assert "overlaps another member" in refused(path)


def test_workers_and_pickled_copies(tmp_path: Path) -> None:
    data = open_data(write_zip(tmp_path / "a.zip", pets(count=50)), WHOLE)
    copy = pickle.loads(pickle.dumps(data.train))
    assert copy.content(60) == data.train.content(60)
    device = torch.device("cpu")
    one, several = (scan_images(data.train, DecodeCheck(), 3, n, device, lambda count: None) for n in (0, 2))
    assert not one.bad
    assert one.digests is not None
    assert several.digests is not None
    assert torch.equal(one.digests, several.digests)


def test_the_fingerprint_depends_on_the_content(tmp_path: Path) -> None:
    members = pets()
    before = open_data(write_zip(tmp_path / "a.zip", members), WHOLE)
    copy = open_data(write_zip(tmp_path / "b.zip", members, zipfile.ZIP_STORED), WHOLE)
    other = open_data(write_zip(tmp_path / "c.zip", {**members, "cat/0.png": encoded(99)}), WHOLE)
    assert source_fingerprint(before.train) == source_fingerprint(copy.train) != source_fingerprint(other.train)
    assert dataset_fingerprint(before) == dataset_fingerprint(open_data(tmp_path / "a.zip", WHOLE))


def test_a_run_on_a_zip_is_resumed(tmp_path: Path) -> None:
    path, run = write_zip(tmp_path / "pets.zip", pets(count=12)), tmp_path / "run"
    train(path, config(run, workers=1, cache="never"), quiet=True)
    weights = (run / "last.safetensors").read_bytes()
    shutil.rmtree(run / "state")  # as if it had been killed before the first state
    for name in ("result.json", "report.html", "best.safetensors", "last.safetensors"):
        (run / name).unlink()
    changed = write_zip(tmp_path / "changed.zip", {**pets(count=12), "cat/0.png": encoded(99)})
    original = path.rename(tmp_path / "original.zip")
    changed.rename(path)
    with pytest.raises(VitreousError, match="changed"):
        resume(run, quiet=True)
    original.rename(path)
    resume(run, quiet=True)
    assert (run / "last.safetensors").read_bytes() == weights
