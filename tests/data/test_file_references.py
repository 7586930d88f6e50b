"""Tables may refer only to files in their own folder, unless the user allows others."""

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from pictures import same, write
from vitreous.data.file_references import AllowedFiles
from vitreous.data.open_data import open_data
from vitreous.data.options import Reading
from vitreous.errors import VitreousError

WHOLE = Reading(val_fraction=0)
ANYWHERE = Reading(val_fraction=0, allow_outside_files=True)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Create a data set in a folder, and a private image next to that folder."""
    folder = tmp_path / "set"
    for number in range(4):
        write(folder / "images" / f"{number}.png", number)
    write(tmp_path / "secret" / "9.png", 9)
    (folder / "link.png").symlink_to(tmp_path / "secret" / "9.png")
    (folder / "elsewhere").symlink_to(tmp_path / "secret")
    (folder / "inner.png").symlink_to(folder / "images" / "3.png")
    return folder


def manifest(folder: Path, secret: str, kind: str = "csv") -> Path:
    names = ["images/0.png", "images/1.png", str(folder / "images" / "2.png"), "images/../inner.png", secret]
    rows = [{"image": name, "label": "ab"[i % 2]} for i, name in enumerate(names)]
    path = folder / f"list.{kind}"
    if kind == "csv":
        path.write_text("image,label\n" + "".join(f"{row['image']},{row['label']}\n" for row in rows))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize(
    "secret", ["../secret/9.png", "link.png", "elsewhere/9.png", "images/../../secret/9.png", "{absolute}"]
)
def test_a_manifest_may_not_refer_to_files_outside_its_folder(folder: Path, secret: str, kind: str) -> None:
    secret = secret.format(absolute=folder.parent / "secret" / "9.png")
    path = manifest(folder, secret, kind)
    line = 6 if kind == "csv" else 5
    with pytest.raises(VitreousError, match=rf"line {line}: .*(9|link)\.png is not inside the data set's") as caught:
        open_data(path, WHOLE)
    assert "--allow-outside-files" in str(caught.value)
    allowed = open_data(path, ANYWHERE)
    assert same(allowed.train.image(4), 9)
    assert same(allowed.train.image(3), 3)


def test_a_manifest_in_a_linked_folder(folder: Path) -> None:
    (folder.parent / "alias").symlink_to(folder)
    path = manifest(folder, "images/0.png")
    data = open_data(folder.parent / "alias" / path.name, WHOLE)
    assert same(data.train.image(2), 2)


def test_class_folders_follow_links(folder: Path, tmp_path: Path) -> None:
    for number, name in enumerate("aabb"):
        write(tmp_path / "classes" / name / f"{number}.png", number)
    (tmp_path / "classes" / "b" / "x.png").symlink_to(tmp_path / "secret" / "9.png")
    assert same(open_data(tmp_path / "classes", WHOLE).train.image(4), 9)


def parquet(path: Path, cells: list[Any]) -> Path:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path.parent.mkdir(exist_ok=True, parents=True)
    pq.write_table(pa.table({"image": cells, "label": [i % 2 for i in range(len(cells))]}), path)
    return path


def test_parquet_cells_may_not_refer_to_files_outside_the_folder(folder: Path) -> None:
    names = ["images/0.png", "images/1.png", "inner.png", "../secret/9.png", "link.png"]
    path = parquet(folder / "x.parquet", [{"bytes": None, "path": name} for name in names])
    for reading, refused in ((WHOLE, True), (ANYWHERE, False)):
        data = open_data(path, reading)
        assert [same(data.train.image(i), number) for i, number in enumerate((0, 1, 3))] == [True] * 3
        for index in (3, 4):
            if refused:
                with pytest.raises(VitreousError, match=r"x\.parquet\[\d\]: .* is not inside .* --allow-outside-files"):
                    data.train.image(index)
                with pytest.raises(VitreousError, match="is not inside"):
                    data.train.content(index)
            else:
                assert same(data.train.image(index), 9)


def test_several_parquet_files_share_their_common_folder(folder: Path) -> None:
    for name in ("train", "test"):
        parquet(folder / name / "0.parquet", ["../images/0.png", "../images/1.png", "../../secret/9.png"])
    for data in (open_data(f"{folder}/t*/0.parquet", WHOLE), open_data(folder, WHOLE)):
        assert data.test is not None
        assert same(data.test.image(1), 1)
        with pytest.raises(VitreousError, match="is not inside"):
            data.test.image(2)


def test_saved_data_sets_may_not_refer_to_files_outside_the_folder(folder: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    secret, saved = str(folder.parent / "secret" / "9.png"), folder.parent / "saved"
    inside = str(write(saved / "0.png", 0))
    cells = [{"bytes": None, "path": path} for path in (inside, inside, secret)]
    image = {"bytes": datasets.Value("binary"), "path": datasets.Value("string")}
    features = datasets.Features({"image": image, "label": datasets.Value("int64")})
    rows = datasets.Dataset.from_dict({"image": cells, "label": [0, 1, 0]}, features=features)
    rows.save_to_disk(str(saved))
    about = json.loads((saved / "dataset_info.json").read_text())
    about["features"]["image"] = {"_type": "Image"}  # the library itself would store the bytes
    (saved / "dataset_info.json").write_text(json.dumps(about))
    data = open_data(saved, WHOLE)
    assert same(data.train.image(0), 0)
    with pytest.raises(VitreousError, match="is not inside the data set's folder"):
        data.train.image(2)
    assert same(open_data(saved, ANYWHERE).train.image(2), 9)


def test_every_command_that_opens_data_has_the_flag() -> None:
    for command in ("train", "data", "evaluate", "features"):
        shown = subprocess.run(
            [sys.executable, "-m", "vitreous", command, "--help"], capture_output=True, text=True, check=True,
            env={**os.environ, "COLUMNS": "200"},
        ).stdout  # fmt: skip
        assert "--allow-outside-files" in shown
        assert "--max-pixels" in shown


def test_folders_are_resolved_as_the_system_does(tmp_path: Path) -> None:
    """Resolved folders are cached. With links and `..`, the result equals os.path.realpath."""
    inside, outside = tmp_path / "data", tmp_path / "other"
    (inside / "a" / "b").mkdir(parents=True)
    (outside / "c").mkdir(parents=True)
    for file in (inside / "x", inside / "a" / "x", inside / "a" / "b" / "x", outside / "x", outside / "c" / "x"):
        file.write_bytes(b"")
    (inside / "a" / "out").symlink_to(outside)
    (inside / "a" / "b" / "up").symlink_to("..")
    (inside / "loop").symlink_to(inside / "loop")
    (outside / "in").symlink_to(inside)
    allowed, parts = AllowedFiles([inside]), ("a", "b", "c", "out", "up", "in", "loop", "..", ".", "x", "missing")
    for names in product(parts, repeat=3):
        path = "/".join((str(inside), *names))
        real = os.path.realpath(path)
        try:
            allowed.check(path)
            accepted = True
        except VitreousError:
            accepted = False
        assert accepted == real.startswith(f"{inside}/"), path
