"""Damaged data: every file is either read or refused with a VitreousError that names the fault.

The limits are in fuzz_harness.py; damage.py generates the cases.
"""

import functools
import tempfile
import warnings
from pathlib import Path
from random import Random

import pytest
from damage import Folder, damaged, sound

from fuzz_harness import PLAN, Case, Work, attempt, fuzz
from vitreous.data.dataset import Source
from vitreous.data.digests import image_digests
from vitreous.data.open_data import open_data
from vitreous.data.options import Reading
from vitreous.preprocessing import Preprocessing
from vitreous.utils.images import decode, decode_array, upright_size

FORMATS = {"npz": "zipped", "csv": "CSV", "tsv": "CSV", "jsonl": "JSON", "parquet": "Parquet", "idx": "raw array"}


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Folder]:
    return sound(tmp_path_factory.mktemp("sound"))


def format_of(kind: str) -> str:
    first = kind.split(maxsplit=1)[0]
    if first == "cifar":
        return "raw array" if kind == "cifar binary" else "pickled"
    return FORMATS.get(first, first)


def exercise(kind: str, files: Folder) -> None:
    """Do everything that the commands do with a file, until an error occurs."""
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind.startswith("image"):
            data = next(iter(files.values()))
            for read in (decode, decode_array, upright_size, Preprocessing(16).pixels):
                attempt(read, data)
            attempt(decode_array, data, (1, 1))
            return
        for file, content in files.items():
            (Path(name) / file).write_bytes(content)
        alone = next(iter(files)).startswith("x.")
        attempt(read_data, Path(name) / next(iter(files)) if alone else Path(name))


def read_data(path: Path) -> None:
    data = open_data(path, Reading(val_fraction=0))
    for source in data.splits.values():
        attempt(image_digests, source)
        for index in range(min(len(source), 8)):
            attempt(image_of, source, index)


def image_of(source: Source, index: int) -> None:
    assert source.image(index).mode in ("L", "RGB")
    assert source.name(index)


def test_damaged_data(kinds: dict[str, Folder]) -> None:
    def prepare(case: Case) -> Work:
        files = damaged(kinds[case.kind], Random(case.seed))
        return Work(sum(map(len, files.values())), functools.partial(exercise, case.kind, files))

    formats = {form: [kind for kind in kinds if format_of(kind) == form] for form in PLAN["data"]}
    assert sum(map(len, formats.values())) == len(kinds)
    fuzz("data", formats, prepare)


def test_undamaged_data_is_read(kinds: dict[str, Folder], tmp_path: Path) -> None:
    """Otherwise the test above would prove nothing."""
    for kind, files in kinds.items():
        folder = tmp_path / kind
        folder.mkdir()
        if kind.startswith("image"):
            assert decode(next(iter(files.values()))).size[0] > 1, kind
            continue
        for name, content in files.items():
            (folder / name).write_bytes(content)
        alone = next(iter(files)).startswith("x.")
        data = open_data(folder / next(iter(files)) if alone else folder, Reading(val_fraction=0))
        for index in range(len(data.train)):
            data.train.image(index)
