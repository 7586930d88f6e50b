"""A zip archive of class folders, read in place: nothing is extracted, and member names are never used as paths.

Only the list of members is read when the archive is opened. An image is read by its offset, decompressed up to the size
that the list declares, and compared with its checksum.
"""

import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitreous.data.encoded import EncodedSource, PackedStrings
from vitreous.data.file_pool import FilePool
from vitreous.data.folder_listing import (
    FolderListing,
    assign_classes,
    assign_split_folders,
    class_paths,
    folder_class_name,
)
from vitreous.data.image_files import is_image
from vitreous.data.options import Reading
from vitreous.data.raw_dataset import SPLITS, RawDataset
from vitreous.errors import VitreousError, format_count, one_line, summarize_names
from vitreous.utils.file_kinds import is_system_file
from vitreous.utils.images import check_file_size
from vitreous.utils.regular_files import is_system_fault, open_regular

LOCAL_HEADER = struct.Struct("<4s5H3I2H")  # precedes the data of each member
SIGNATURE = b"PK\x03\x04"
METHODS = {zipfile.ZIP_STORED: "stored", zipfile.ZIP_DEFLATED: "deflate"}  # that can be read
OTHER_METHODS = {
    1: "shrink",
    6: "implode",
    9: "deflate64",
    12: "bzip2",
    14: "LZMA",
    93: "Zstandard",
    95: "XZ",
    98: "PPMd",
}
ENCRYPTED = 0x1 | 0x40 | 0x2000  # flags: traditional and strong encryption, encrypted headers
UTF8 = 0x800  # flag: the name is UTF-8
WINDOWS, UNIX = 0, 3  # systems that wrote an archive
MAX_RATIO = 100  # of the sizes of a large image and its compressed data; images are compressed already
LARGE = 1 << 26  # bytes; smaller members may have any ratio


@dataclass(frozen=True)
class ZipMember:
    """An image in a zip archive, as its list of members describes it."""

    name: str  # as it is displayed
    folders: tuple[str, ...]
    offset: int  # of the local header
    compressed: int  # bytes
    size: int  # bytes
    method: int
    checksum: int


@dataclass
class _ZipContent:
    """What a zip archive contains."""

    images: dict[str, ZipMember] = field(default_factory=dict)  # by path
    other_files: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class ZipSource(EncodedSource):
    """Images in a zip archive, read by offset. The splits of a data set share the open file."""

    def __init__(self, files: FilePool, members: Sequence[ZipMember], labels: Tensor):
        self.files, self.labels = files, labels
        self.names = PackedStrings(member.name for member in members)
        self.offsets = np.array([member.offset for member in members], dtype=np.int64)
        self.compressed = np.array([member.compressed for member in members], dtype=np.int64)
        self.sizes = np.array([member.size for member in members], dtype=np.int64)
        self.methods = np.array([member.method for member in members], dtype=np.int16)
        self.checksums = np.array([member.checksum for member in members], dtype=np.int64)

    @property
    def path(self) -> str:
        return self.files.paths[0]

    def name(self, index: int) -> str:
        return f"{self.path}:{self.names[index]}"

    def read_bytes(self, index: int) -> bytes:
        offset, compressed, size = (int(array[index]) for array in (self.offsets, self.compressed, self.sizes))
        check_file_size(max(size, compressed), self.max_pixels)
        if size > LARGE and size > MAX_RATIO * compressed:
            raise VitreousError(
                f"has {size:,} bytes, compressed to {compressed:,}: not read, since it would fill the memory"
            )
        header = self.files.read(0, offset, LOCAL_HEADER.size)
        signature, _, flags, method, *_, name_length, extra_length = LOCAL_HEADER.unpack(header)
        if signature != SIGNATURE or method != self.methods[index] or flags & ENCRYPTED:
            raise VitreousError("is damaged: its header does not match the list of members of the zip archive")
        data = self.files.read(0, offset + LOCAL_HEADER.size + name_length + extra_length, compressed)
        if method == zipfile.ZIP_DEFLATED:
            data = _inflate(data, size)
        if len(data) != size or zlib.crc32(data) != int(self.checksums[index]):
            raise VitreousError("is damaged: its checksum does not match")
        return data


def _inflate(data: bytes, size: int) -> bytes:
    """Decompress a member to at most one byte more than its declared size."""
    try:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, size + 1)
    except zlib.error as error:
        raise VitreousError(f"cannot be decompressed ({one_line(error)})") from error


def open_zip(path: Path, reading: Reading) -> RawDataset:
    """Open a zip archive of class folders, with or without a folder around them and folders for the splits."""
    content = _list_members(path)
    top = _common_folders(content)
    tops = {member.folders[len(top)] for member in content.images.values() if len(member.folders) > len(top)}
    splits, notes = assign_split_folders(sorted(tops))
    prefixes = {split: (*top, name) for split, name in splits.items()} or {"train": top}
    listings = {split: _list_folder(content, folders, bool(splits)) for split, folders in prefixes.items()}
    notes = [*content.notes, *notes]
    classes, listings = assign_classes(listings, reading, notes)
    pool, sources = FilePool([str(path)]), {}
    for split, listing in listings.items():
        labels, paths = class_paths(listing.images, classes)
        start = "".join(f"{folder}/" for folder in prefixes[split])
        members = [content.images[start + name] for name in paths]
        sources[split] = ZipSource(pool, members, torch.tensor(labels, dtype=torch.int64))
    val_origin = f"{listings['val'].title}/ in the zip archive" if "val" in listings else ""
    return RawDataset(path.stem, classes, sources, notes, val_origin, has_class_folders=True)


def _list_folder(content: _ZipContent, folders: tuple[str, ...], is_split: bool) -> FolderListing:
    """The files below a folder of the archive, by class."""
    listing, depth = FolderListing(folders[-1] if is_split else ""), len(folders)
    start = "".join(f"{folder}/" for folder in folders)
    for path, member in content.images.items():
        if member.folders[:depth] == folders:
            inner = path[len(start) :]
            if len(member.folders) == depth:
                listing.outside.append(inner)
            else:
                listing.images.setdefault(folder_class_name(member.folders[depth]), []).append(inner)
    listing.other_files = [name[len(start) :] for name in content.other_files if name.startswith(start)]
    for images in listing.images.values():
        images.sort()
    return listing


def _common_folders(content: _ZipContent) -> tuple[str, ...]:
    """The folders around all images and around the splits. A single folder with images is a class."""
    folders = {member.folders for member in content.images.values()}
    first, last = min(folders, default=()), max(folders, default=())  # sorted, these two differ most
    same = [one == other for one, other in zip(first, last, strict=False)]
    common = first[: same.index(False) if False in same else len(same)]
    outer = common if len(folders) > 1 else common[:-1]
    split = next((at for at, name in enumerate(outer) if name.lower() in SPLITS), len(outer))
    return outer[:split]


def _list_members(path: Path) -> _ZipContent:
    """Read the list of members. Archives that cannot be read in place raise an error that says why."""
    try:
        with open_regular(path) as file:
            length = os.fstat(file.fileno()).st_size
            with zipfile.ZipFile(file) as archive:
                infos = archive.infolist()
    except VitreousError:
        raise
    except Exception as error:  # a damaged list can raise any exception
        if is_system_fault(error):
            raise
        raise VitreousError(f"not a zip archive, or damaged ({one_line(error)})") from error
    content, members, repeated, unknown = _ZipContent(), [], 0, 0
    for info in infos:
        name, known = _member_name(info)
        parts = [part for part in name.split("/") if part not in ("", ".", "..")]
        if info.orig_filename.endswith(("/", "\\")) or not parts or any(map(is_system_file, parts)):
            continue
        plain = "/".join(parts)
        if not is_image(parts[-1]) or _is_link(info):
            content.other_files.append(plain)
            continue
        unknown += not known
        repeated += plain in content.images
        content.images[plain] = ZipMember(
            plain,
            tuple(parts[:-1]),
            info.header_offset,
            info.compress_size,
            info.file_size,
            info.compress_type,
            info.CRC,
        )
        members.append(info)
    _check_members(members, length)
    if repeated:
        content.notes.append(
            f"{format_count(repeated, 'name')} of images more than once in the archive: the last image of each is used"
        )
    if unknown:
        content.notes.append(f"{format_count(unknown, 'name')} of images in an unknown encoding: read as code page 437")
    return content


def _member_name(info: zipfile.ZipInfo) -> tuple[str, bool]:
    """The name of a member with forward slashes, and whether its encoding is known.

    Without the flag for UTF-8 it is code page 437, by the standard. Many programs write UTF-8 all the same.
    """
    name, known = info.orig_filename.partition("\0")[0], True
    if not info.flag_bits & UTF8 and not name.isascii():
        try:
            name = name.encode("cp437").decode("utf-8")
        except UnicodeError:
            known = False
    return (name.replace("\\", "/") if info.create_system == WINDOWS else name), known


def _is_link(info: zipfile.ZipInfo) -> bool:
    return info.create_system == UNIX and stat.S_ISLNK(info.external_attr >> 16)


def _check_members(members: Sequence[zipfile.ZipInfo], length: int) -> None:
    """Raise an error if images are encrypted, compressed with an unusual method, outside of the file, or overlap."""
    advice = "extract the archive, and give the folder"
    if encrypted := [info.filename for info in members if info.flag_bits & ENCRYPTED]:
        raise VitreousError(f"encrypted images in the zip archive ({summarize_names(encrypted, 3)}): {advice}")
    if others := {info.filename: info.compress_type for info in members if info.compress_type not in METHODS}:
        methods = ", ".join(OTHER_METHODS.get(method, f"method {method}") for method in sorted(set(others.values())))
        raise VitreousError(
            f"images in the zip archive are compressed with {methods}, which cannot be read in place"
            f" ({summarize_names(others, 3)}): {advice}"
        )
    end = 0
    for info in sorted(members, key=lambda info: info.header_offset):
        if info.header_offset < end:
            raise VitreousError(
                f"the zip archive is damaged: {summarize_names([info.filename])} overlaps another member"
            )
        end = info.header_offset + LOCAL_HEADER.size + info.compress_size
    if end > length:
        raise VitreousError("the zip archive is truncated")
