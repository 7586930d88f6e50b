"""Small valid files of every data format, and functions that damage them: bytes, numbers, parts of a format."""

import gzip
import importlib.util
import io
import json
import pickle
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from PIL import Image, features

from pictures import encoded, heic, pixels, write_tar

Folder = dict[str, bytes]  # path in a folder -> content; the first file is damaged


# ---------------------------------------------------------------- sound files


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def sound_images() -> dict[str, bytes]:
    """Return an image of every supported format, in all variants that the decoder treats differently."""
    colour = Image.fromarray(pixels(1, 40, 33))
    grey = colour.convert("L")
    clear = colour.copy()
    clear.putalpha(grey)
    deep = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    turned = Image.Exif()
    turned[0x0112] = 6
    frames = {"save_all": True, "append_images": [colour.rotate(90), colour.rotate(180)]}
    found = {
        "jpg": saved(colour, "JPEG"),
        "progressive.jpg": saved(colour, "JPEG", progressive=True, exif=turned),
        "cmyk.jpg": saved(colour.convert("CMYK"), "JPEG"),
        "png": saved(colour, "PNG", exif=turned),
        "clear.png": saved(clear, "PNG"),
        "palette.png": saved(colour.quantize(16), "PNG", transparency=3),
        "deep.png": saved(deep, "PNG"),
        "one.png": saved(grey.convert("1"), "PNG"),
        "moving.png": saved(colour, "PNG", **frames),
        "gif": saved(colour, "GIF", **frames),
        "tif": saved(colour, "TIFF"),
        "deep.tif": saved(deep, "TIFF"),
        "float.tif": saved(Image.fromarray(np.asarray(grey).astype(np.float32)), "TIFF"),
        "lzw.tif": saved(clear, "TIFF", compression="tiff_lzw"),
        "zip.tif": saved(colour, "TIFF", compression="tiff_adobe_deflate"),
        "jpeg.tif": saved(colour, "TIFF", compression="jpeg"),
        "fax.tif": saved(grey.convert("1"), "TIFF", compression="group4"),
        "bmp": saved(colour, "BMP"),
        "palette.bmp": saved(colour.quantize(16), "BMP"),
        "ppm": saved(colour, "PPM"),
        "pfm": saved(Image.fromarray(np.asarray(grey).astype(np.float32)), "PPM"),
        "text.ppm": b"P3\n4 3\n255\n" + b" ".join(b"%d" % (i * 7) for i in range(36)),
        "qoi": saved(colour, "QOI"),
        "ico": saved(colour, "ICO", sizes=[(16, 16), (32, 32)]),
        "bmp.ico": saved(colour, "ICO", sizes=[(16, 16)], bitmap_format="bmp"),
        "tga": saved(colour, "TGA", compression="tga_rle"),
        "psd": psd(colour),
    }
    if features.check("webp"):
        found |= {"webp": saved(clear, "WEBP"), "moving.webp": saved(colour, "WEBP", lossless=True, **frames)}
    if features.check("jpg_2000"):
        found |= {"jp2": saved(colour, "JPEG2000"), "j2k": saved(clear, "JPEG2000", no_jp2=True, tile_size=(16, 16))}
    if features.check("avif"):
        found["avif"] = saved(colour, "AVIF", speed=10)
    if importlib.util.find_spec("pillow_heif") is not None:
        large = colour.resize((96, 64))
        found |= {
            "heic": heic(large, 6),
            "clear.heic": heic(clear.resize((64, 64))),
            "grey.hif": heic(large.convert("L")),
        }
    return found


def psd(image: Image.Image) -> bytes:
    """Return a PSD file, which Pillow cannot write: a header, three empty sections, then the channels."""
    header = b"8BPS" + struct.pack(">H6xHIIHH", 1, 3, image.height, image.width, 8, 3)
    planes = np.asarray(image).transpose(2, 0, 1).tobytes()
    return header + struct.pack(">III", 0, 0, 0) + struct.pack(">H", 0) + planes


def sound_tars(folder: Path) -> dict[str, Folder]:
    web = {f"{i}.{kind}": data for i in range(6) for kind, data in (("png", encoded(i)), ("cls", b"%d" % (i % 2)))}
    told = {f"{i}.{kind}": data for i in range(6)
            for kind, data in (("jpg", encoded(i, "JPEG")), ("json", b'{"label": "%d"}' % (i % 2)))}  # fmt: skip
    folders = {f"{'x' * 120 if long else 'set'}/{'ab'[i % 2]}/{i}.png": encoded(i) for i in range(6) for long in (0, 1)}
    found = {}
    for name, members in {"web": web, "told": told}.items():
        found[f"tar {name}"] = {"x.tar": write_tar(folder / f"{name}.tar", members).read_bytes()}
    for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w", format=form) as tar:
            for name, data in folders.items():
                member = tarfile.TarInfo(name.replace("x" * 120, "x" * 60) if form == tarfile.USTAR_FORMAT else name)
                member.size = len(data)
                if form == tarfile.PAX_FORMAT:
                    member.pax_headers = {"comment": "é", "mtime": "1.5"}
                tar.addfile(member, io.BytesIO(data))
        found[f"tar folders {form}"] = {"x.tar": stream.getvalue()}
    return found


def sound_zips() -> dict[str, Folder]:
    """Return zip archives of class folders: stored and compressed, with splits, and with sizes after the data."""
    splits = {f"{split}/{'ab'[i % 2]}/{i}.png": encoded(i) for split in ("train", "val") for i in range(4)}
    years = {f"set/{2020 + i % 3}/{'ab'[i % 2]}/{i}.png": encoded(i) for i in range(8)}
    found = {}
    for name, members in {"splits": splits, "years": {**years, "__MACOSX/x.png": b"x", "set/clip.mov": b"x"}}.items():
        for way, method in (("", zipfile.ZIP_STORED), (" packed", zipfile.ZIP_DEFLATED)):
            stream = io.BytesIO()
            with zipfile.ZipFile(stream, "w", method) as archive:
                for member, data in members.items():
                    with archive.open(member, "w", force_zip64=member.endswith("3.png")) as file:
                        file.write(data)
            found[f"zip {name}{way}"] = {"x.zip": stream.getvalue()}
    return found


def sound_tables(folder: Path) -> dict[str, Folder]:
    import pyarrow as pa
    from pyarrow import parquet

    images = [encoded(i) for i in range(6)]
    about = {"info": {"features": {"image": {"_type": "Image"}, "label": {"names": ["a", "b"], "_type": "ClassLabel"}}}}
    numbers = [i % 2 for i in range(6)]
    tables = {
        "parquet": pa.table({"image": [{"bytes": data, "path": "x.png"} for data in images], "label": numbers}),
        "parquet texts": pa.table({"image": images, "label": pa.array(["a", "b"] * 3).dictionary_encode()}),
        "parquet paths": pa.table({"image": [f"{i}.png" for i in range(6)], "label": ["a", "b"] * 3}),
        "parquet lists": pa.table({"image": images, "labels": [["a"], ["b"], [], ["a", "b"], ["b"], None]}),
    }
    tables["parquet"] = tables["parquet"].replace_schema_metadata({"huggingface": json.dumps(about)})
    found = {}
    for (name, table), compression in zip(tables.items(), ("snappy", "zstd", "gzip", "none"), strict=True):
        path = folder / "x.parquet"
        parquet.write_table(table, path, row_group_size=4, compression=compression)
        found[name] = {"x.parquet": path.read_bytes()}
    found["parquet paths"] |= {f"{i}.png": data for i, data in enumerate(images)}
    return found


def sound_manifests() -> dict[str, Folder]:
    images = {f"{i}.png": encoded(i) for i in range(4)}
    rows = [{"image": f"{i % 4}.png", "label": "ab"[i % 2], "split": ["train", "val"][i // 6]} for i in range(8)]
    texts = {
        "csv": "image,label,split\n" + "".join(",".join(row.values()) + "\n" for row in rows),
        "tsv": "File Name\tclass\n" + "".join(f"{row['image']}\t{i % 3}\n" for i, row in enumerate(rows)),
        "csv several": 'image;labels\n0.png;a|b c\n1.png;"[""a"", ""b""]"\n2.png;\n3.png;[\'a\', \'x\']\n',
        "jsonl": "".join(json.dumps(row) + "\n" for row in rows),
        "jsonl lists": "".join(json.dumps({"path": f"{i % 4}.png", "tags": [i % 2, 2]}) + "\n" for i in range(6)),
    }
    return {kind: {f"x.{kind.split()[0]}": text.encode(), **images} for kind, text in texts.items()}


def sound_arrays() -> dict[str, Folder]:
    images, labels = np.stack([pixels(i) for i in range(8)]), np.arange(8) % 2
    sets: dict[str, dict[str, Any]] = {
        "plain": {"images": images, "labels": labels},
        "named": {"x_train": images[..., 0], "y_train": np.array(["a", "b"] * 4), "x_test": images[..., 0],
                  "y_test": np.array(["a", "b"] * 4), "classes": np.array(["a", "b"])},
        "several": {"images": np.asfortranarray(images), "labels": np.eye(8, 3, dtype=bool) | (labels == 0)[:, None]},
    }  # fmt: skip
    found = {}
    for name, arrays in sets.items():
        for way, save in (("", np.savez), (" packed", np.savez_compressed)):
            stream = io.BytesIO()
            save(stream, **arrays)
            found[f"npz {name}{way}"] = {"x.npz": stream.getvalue()}
    return found


def sound_classics() -> dict[str, Folder]:
    """Return files in the formats of MNIST and CIFAR."""
    images, labels = np.stack([pixels(i, channels=1) for i in range(6)]), np.arange(6, dtype=np.uint8)
    idx = {
        "train-images-idx3-ubyte": b"\0\0\x08\x03" + struct.pack(">III", *images.shape) + images.tobytes(),
        "train-labels-idx1-ubyte": b"\0\0\x08\x01" + struct.pack(">I", 6) + labels.tobytes(),
    }
    colour = np.stack([pixels(i, 32, 32).transpose(2, 0, 1).reshape(-1) for i in range(4)])
    batch: dict[Any, Any] = {b"data": colour, b"fine_labels": [0, 1, 0, 1], b"filenames": ["x"] * 4}
    meta = pickle.dumps({b"fine_label_names": [b"a", b"b"]})
    binary = b"".join(bytes([0, i % 2]) + row.tobytes() for i, row in enumerate(colour))
    found: dict[str, Folder] = {"idx": idx, "idx gz": {f"{name}.gz": gzip.compress(data) for name, data in idx.items()}}
    for protocol in (0, 2, 5):
        whole = pickle.dumps(batch, protocol)
        found[f"cifar {protocol}"] = {"train": whole, "test": whole, "meta": meta}
    found["cifar meta"] = {"meta": meta, "train": pickle.dumps(batch), "test": pickle.dumps(batch)}
    found["cifar binary"] = {"train.bin": binary, "test.bin": binary}
    return found


# ---------------------------------------------------------------- damage


NUMBERS = (
    0,
    1,
    2,
    3,
    7,
    127,
    128,
    255,
    256,
    32767,
    65535,
    65536,
    1 << 20,
    1 << 24,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63 - 1,
)
TOKENS = (
    b"", b"0", b"-1", b"1e999", b"NaN", b"9" * 5000, b"[" * 3000, b"]", b"{", b"}", b'"', b"'", b",", b";", b"\t",
    b"\n",
    b"\r", b"\0", b"\\ud800", b"\xff\xfe", b"\xef\xbb\xbf", b"../../../etc/passwd", b"/dev/zero", b"0.png", b"null",
    b"true", b"[1, 2]", b"['a'", b"label", b"image", b"train", b"|", b"a" * 70_000, b"0x" + b"f" * 6000, b"1_0", b"\\",
)  # fmt: skip


def by_bytes(data: bytes, chance: Random) -> bytes:
    """Change, insert or remove a few bytes: anywhere, or near an end, where headers and directories are."""
    where = chance.choice([chance.random() * len(data), chance.randint(0, 300), len(data) - chance.randint(1, 300)])
    at = min(max(0, int(where)), len(data))
    length = chance.choice([1, 1, 2, 4, chance.randint(1, 100), chance.randint(1, max(1, len(data)))])
    some = chance.randbytes(min(length, 8))
    return chance.choice(
        [
            lambda: data[:at] + bytes(b ^ (1 << chance.randrange(8)) for b in data[at : at + 1]) + data[at + 1 :],
            lambda: data[:at] + some + data[at + len(some) :],
            lambda: data[:at] + some + data[at:],
            lambda: data[:at] + data[at + length :],
            lambda: data[:at],
            lambda: data[:at] + data[at : at + length] * 2 + data[at + length :],
        ]
    )()


def by_numbers(data: bytes, chance: Random) -> bytes:
    """Replace a number that may be a size or an offset."""
    size = chance.choice([1, 2, 2, 4, 4, 4, 8])
    number = (chance.choice(NUMBERS) + chance.choice([0, 0, 0, -1, 1, chance.randint(-300, 300)])) % (1 << 8 * size)
    near = chance.choice([len(data), min(len(data), 200)])
    at = chance.randrange(max(1, near))
    at = chance.choice([at, max(0, len(data) - at - size)])
    return data[:at] + number.to_bytes(size, chance.choice(["little", "big"])) + data[at + size :]


def by_tokens(data: bytes, chance: Random) -> bytes:
    """Replace or repeat a word of a text file."""
    words = [match.span() for match in re.finditer(rb"[\w.]+|[^\w\s]", data)]
    if not words:
        return data + chance.choice(TOKENS)
    start, stop = chance.choice(words)
    other = chance.choice([chance.choice(TOKENS), data[slice(*chance.choice(words))]])
    return data[:start] + chance.choice([other, data[start:stop] + other, other + data[start:stop]]) + data[stop:]


def in_tar(data: bytes, chance: Random) -> bytes:
    """Change a field of a tar header and correct its checksum."""
    headers = [at for at in range(0, len(data) - 511, 512) if data[at + 257 : at + 262] == b"ustar"]
    if not headers:
        return by_bytes(data, chance)
    at = chance.choice(headers)
    block = bytearray(data[at : at + 512])
    first, last = chance.choice(
        [(0, 100), (100, 108), (124, 136), (124, 136), (156, 157), (157, 257), (345, 500), (386, 500)]
    )
    kinds = b"01234567LKSxgV\0"
    field = {
        (156, 157): lambda: bytes([chance.choice(kinds)]),
        (124, 136): lambda: chance.choice(
            [b"%011o\0" % chance.randrange(8**11), b"\x80" + chance.randbytes(11), b"\xff" * 12, b"-1          "]
        ),
    }.get(
        (first, last), lambda: chance.choice([chance.randbytes(last - first), b"7" * (last - first), b"../../x.png\0"])
    )()
    block[first : first + len(field)] = field[: last - first]
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return data[:at] + bytes(block[:512]) + data[at + 512 :]


ZIP_RECORDS = {b"PK\x01\x02": 46, b"PK\x03\x04": 30, b"PK\x05\x06": 22, b"PK\x06\x06": 56}  # lengths of their fields


def in_zip_records(data: bytes, chance: Random) -> bytes:
    """Change a number or a name in a record of a zip archive: a member of the list, a local header, or the end."""
    signature = chance.choice(list(ZIP_RECORDS))
    places = [match.start() for match in re.finditer(re.escape(signature), data)]
    if not places:
        return by_bytes(data, chance)
    at, length = chance.choice(places), ZIP_RECORDS[signature]
    if chance.random() < 0.3:  # the name follows the fixed fields
        name = chance.choice(
            [b"../../../x.png", b"/etc/passwd.png", b"a\0b/1.png", b"\xff\xfe/\xfe.png", b"a\\b\\1.png", b"x/" * 9]
        )
        return data[: at + length] + name + data[at + length + len(name) :]
    size = chance.choice([2, 2, 4])
    place = at + chance.randrange(4, length - size + 1)
    number = chance.choice(NUMBERS) % (1 << 8 * size)
    return data[:place] + number.to_bytes(size, "little") + data[place + size :]


def in_zip(data: bytes, chance: Random) -> bytes:
    """Change a member and pack it again, so that its checksum is valid."""
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as new:
        members = {name: old.read(name) for name in old.namelist()}
        name = chance.choice(list(members))
        shape = re.search(rb"'shape': \(([^)]*)\)", members[name])
        kind = re.search(rb"'descr': '([^']*)'", members[name])
        way = chance.choice(["shape", "kind", "bytes", "name", "zeros"])
        if way == "shape" and shape:
            text = b", ".join(b"%d" % chance.choice([*NUMBERS, -1, 2**70]) for _ in range(chance.randint(0, 5))) + b","
            members[name] = _resized_header(members[name], shape.span(1), text)
        elif way == "kind" and kind:
            text = chance.choice(
                [b"|u1", b"<f8", b"|O", b"<U1", b"<U0", b"|V0", b"<U1000000", b"|S9", b"<M8[ns]", b"|b1", b">i8"]
            )
            members[name] = _resized_header(members[name], kind.span(1), text)
        elif way == "name":
            members[chance.choice(["images.npy", "y_val.npy", "x.txt", "é.npy", "labels", "../x.npy"])] = members.pop(
                name
            )
        elif way == "zeros":
            members[name] = members[name][:128] + bytes(chance.randrange(1 << 22))
        else:
            members[name] = chance.choice([by_bytes, by_numbers])(members[name], chance)
        for member, content in members.items():
            new.writestr(member, content)
    return stream.getvalue()


def _resized_header(array: bytes, span: tuple[int, int], text: bytes) -> bytes:
    """Return an array header with changed words and the same length."""
    changed = array[: span[0]] + text + array[span[1] :]
    extra = len(changed) - len(array)
    end = changed.index(b"\n", 10)
    spaces = changed[:end].rstrip(b" ")
    room = end - len(spaces) - extra
    return spaces + b" " * max(0, room) + changed[end:] if room >= 0 else changed


def in_png(data: bytes, chance: Random) -> bytes:
    """Change a PNG chunk and correct its checksum."""
    if not data.startswith(b"\x89PNG"):
        return by_numbers(data, chance)
    chunks, at = [], 8
    while at + 8 <= len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        chunks.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + size]))
        at += 12 + size
    place = chance.randrange(len(chunks))
    kind, content = chunks[place]
    if kind in (b"IDAT", b"fdAT") and chance.random() < 0.5:
        content = zlib.compress(chance.choice([b"", bytes(1 << 20), chance.randbytes(500)]))
    else:
        content = chance.choice([by_bytes, by_numbers])(content, chance)
    chunks[place] = (kind, content)
    if chance.random() < 0.2:
        chance.shuffle(chunks)
    packed = (struct.pack(">I", len(c)) + k + c + struct.pack(">I", zlib.crc32(k + c)) for k, c in chunks)
    return b"".join([data[:8], *packed])


Damage = Callable[[bytes, Random], bytes]


def ways(name: str) -> list[Damage]:
    """Return functions that damage a file of this name. Effective ones are listed more than once."""
    kind = name.rsplit(".", 1)[-1]
    special: dict[str, list[Damage]] = {
        "tar": [in_tar, in_tar, by_tokens],
        "npz": [in_zip, in_zip],
        "zip": [in_zip_records, in_zip_records, in_zip_records, in_zip],
        "png": [in_png, in_png],
        "csv": [by_tokens, by_tokens],
        "tsv": [by_tokens, by_tokens],
        "jsonl": [by_tokens, by_tokens],
        "ppm": [by_tokens],
    }
    return [by_bytes, by_numbers, *special.get(kind, [])]


def damaged(files: Folder, chance: Random) -> Folder:
    """Damage the first file once or a few times."""
    name, content = next(iter(files.items()))
    content = chance.choice(ways(name))(content, chance)
    for _ in range(chance.choice([0, 0, 0, 1, 2, 5])):
        content = chance.choice([by_bytes, by_numbers, by_tokens])(content, chance)
    return {**files, name: content}


def sound(folder: Path) -> dict[str, Folder]:
    """Return valid data of every format, with small images."""
    images = {f"image {kind}": {f"x.{kind}": data} for kind, data in sound_images().items()}
    sets = {**sound_tars(folder), **sound_zips(), **sound_manifests(), **sound_arrays(), **sound_classics()}
    with suppress(ImportError):
        sets |= sound_tables(folder)
    return {**images, **sets}
