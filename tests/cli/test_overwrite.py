"""Existing output is an error in every command; --overwrite replaces it once the new output is complete."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import vitreous
from helpers import tiny_vit
from runs import TINY_RUN, draw_folder
from vitreous import VitreousError
from vitreous.cli import main
from vitreous.training import final_evaluation

RUN = (*TINY_RUN, "--workers", "0", "--duration", "2steps", "--evaluate-every", "2steps")
MODEL = ("--model", "m.safetensors", "--device", "cpu", "--workers", "0")
KNN = ("compare", "m.safetensors", *MODEL[2:], "--data", "data", "--with", "knn", "--cache", "cache")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("outputs")
    draw_folder(folder / "data", images=8)
    for name, seed_of in (("m", {}), ("other", {"registers": 1})):
        model = tiny_vit(num_classes=3, **seed_of)
        model.labels = ("blau", "grün", "rot")
        vitreous.save(model, folder / f"{name}.safetensors")
    return folder


@pytest.fixture
def place(original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(original, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> int:
    try:
        main(list(arguments))
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def snapshot(path: Path) -> dict[str, bytes]:
    files = [path] if path.is_file() else sorted(one for one in path.rglob("*") if one.is_file())
    return {str(file): file.read_bytes() for file in files}


def is_checkpoint(path: Path) -> bool:
    return vitreous.load(path).config.num_classes == 3


COMMANDS: dict[str, tuple[tuple[str, ...], str, Callable[[Path], bool]]] = {
    "convert a file": (
        ("convert", "m.safetensors", "out.npz", "--to", "google", "--force"),
        "out.npz",
        is_checkpoint,
    ),
    "convert a folder": (("convert", "m.safetensors", "out", "--to", "timm", "--force"), "out", is_checkpoint),
    "evaluate": (
        ("evaluate", "data", *MODEL, "--out", "out"),
        "out",
        lambda path: "scores" in json.loads((path / "evaluation.json").read_text()),
    ),
    "compare": (
        (*KNN, "--out", "out"),
        "out",
        lambda path: {one.suffix for one in path.iterdir()} == {".json", ".md", ".png", ".svg"},
    ),
    "compare --markdown": ((*KNN, "--markdown", "t.md"), "t.md", lambda path: "k-NN" in path.read_text()),
    "data --sheet": (("data", "data", "--sheet", "s.png"), "s.png", lambda path: path.read_bytes()[1:4] == b"PNG"),
    "data": (("data", "data"), "data-samples.png", lambda path: path.read_bytes()[1:4] == b"PNG"),
}


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.filterwarnings("ignore::vitreous.VitreousWarning")
def test_every_command(name: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, out, good = COMMANDS[name]
    path = Path(out)
    assert run(*arguments) == 0
    assert good(path)
    if path.is_dir():  # make the folder differ from the new one
        lost = sorted(path.iterdir())[-1]
        lost.write_bytes(b"old")
    else:
        path.write_bytes(b"old")
    before = snapshot(path)
    capsys.readouterr()
    assert run(*arguments) == 2
    message = f"vitreous: {out} exists already: give another name, or replace it with --overwrite"
    assert message in capsys.readouterr().err
    assert snapshot(path) == before
    assert run(*arguments, "--overwrite") == 0
    assert good(path)
    assert b"old" not in snapshot(path).values()
    assert not [one.name for one in Path().iterdir() if one.name.startswith(".")]


@pytest.mark.parametrize("name", ["convert a folder", "evaluate", "compare"])
def test_folders_with_other_files_are_not_replaced(name: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, out, _ = COMMANDS[name]
    Path(out).mkdir()
    Path(out, "thesis.tex").write_text("years of work")
    for more in ((), ("--overwrite",)):
        assert run(*arguments, *more) == 2
        assert f"{out} holds other files ('thesis.tex'): give an empty or a new folder" in capsys.readouterr().err
    assert snapshot(Path(out)) == {"out/thesis.tex": b"years of work"}


def test_a_failed_command_keeps_the_old_output(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("out.safetensors").write_bytes(b"old")
    Path("bad.safetensors").write_bytes(b"not a checkpoint")
    assert run("convert", "bad.safetensors", "out.safetensors", "--to", "native", "--overwrite") == 2
    assert Path("out.safetensors").read_bytes() == b"old"
    with pytest.raises(VitreousError, match="exists already"):
        vitreous.convert("m.safetensors", "out.safetensors", "native")
    vitreous.convert("m.safetensors", "out.safetensors", "native", overwrite=True)
    assert is_checkpoint(Path("out.safetensors"))
    vitreous.save(vitreous.load("other.safetensors"), "out.safetensors")  # `save` always replaces
    assert vitreous.load("out.safetensors").config.registers == 1


def test_features(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Incomplete features are continued; those of another model are replaced only with --overwrite."""
    theirs = ("features", "data", "out", "--model", "other.safetensors", *MODEL[2:])
    assert run("features", "data", "out", *MODEL) == 0
    before = snapshot(Path("out"))
    assert run("features", "data", "out", *MODEL) == 0
    assert snapshot(Path("out")) == before
    capsys.readouterr()
    assert run(*theirs) == 2
    assert "give another folder, or replace them with --overwrite" in capsys.readouterr().err
    Path("out/mine.txt").write_text("mine")
    assert run(*theirs, "--overwrite") == 2
    assert "out holds other files ('mine.txt')" in capsys.readouterr().err
    Path("out/mine.txt").unlink()
    assert snapshot(Path("out")) == before
    assert run(*theirs, "--overwrite") == 0
    assert "other" in Path("out/features.json").read_text()
    assert not Path(".out.new").exists()


def test_old_features_are_kept_until_the_new_ones_are_complete(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitreous.evaluation import store

    monkeypatch.setattr(store, "SHARD", 8)
    theirs = ("features", "data", "out", "--model", "other.safetensors", *MODEL[2:], "--batch-size", "4", "--overwrite")
    assert run("features", "data", "out", *MODEL) == 0
    before = snapshot(Path("out"))
    flush, shards = store._flush, []

    def interrupted(*arguments: object) -> object:
        if len(shards) == 1:
            raise KeyboardInterrupt
        shards.append(arguments[3])
        return flush(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "_flush", interrupted)
    assert run(*theirs) == 130
    assert snapshot(Path("out")) == before
    monkeypatch.setattr(store, "_flush", lambda *arguments: (shards.append(arguments[3]), flush(*arguments))[1])
    assert run(*theirs) == 0
    assert [number for number, *_ in shards] == [0, 1, 2]  # the first shard was not computed again
    assert "other" in Path("out/features.json").read_text()


# ---------------------------------------------------------------- runs


def train(*more: str) -> int:
    return run("train", "data", "--out", "run", *RUN, *more)


def test_run_directory(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train() == 0
    Path("run/inspection/mark").write_text("of the first")
    capsys.readouterr()
    assert train() == 2
    err = capsys.readouterr().err
    assert "run exists already; to continue it: vitreous train --resume run; to replace it: --overwrite" in err
    assert train("--resume", "run", "--overwrite") == 2
    assert Path("run/inspection/mark").exists()
    assert train("--overwrite", "--seed", "1") == 0
    assert not Path("run/inspection/mark").exists()
    assert not Path("run.replaced").exists()
    assert json.loads(Path("run/config.json").read_text())["config"]["seed"] == 1


def test_old_run_is_kept_until_the_new_one_is_complete(place: Path) -> None:
    assert train() == 0
    first = Path("run/best.safetensors").read_bytes()
    for _ in range(2):  # a failed run is replaced by the next, and the complete one is kept
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(final_evaluation, "write_run_report", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            assert train("--overwrite", "--seed", "1") == 130
        assert Path("run.replaced/best.safetensors").read_bytes() == first
        assert Path("run.replaced/result.json").is_file()
        assert not Path("run/result.json").exists()
    assert run("train", "--resume", "run") == 0
    assert not Path("run.replaced").exists()
    assert Path("run/best.safetensors").read_bytes() != first


def test_old_run_is_kept_if_the_new_one_cannot_start(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train() == 0
    before = snapshot(Path("run"))
    assert train("--overwrite", "--lr", "-1") == 2
    Path("run.replaced").mkdir()
    assert train("--overwrite") == 2
    assert "run.replaced exists already: run would be kept under that name" in capsys.readouterr().err
    assert {name: text for name, text in snapshot(Path("run")).items() if name != "run/.lock"} == {
        name: text for name, text in before.items() if name != "run/.lock"
    }


def test_only_run_directories_are_replaced(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in (("thesis.tex", "years of work"), ("config.json", "{}")):
        Path("run").mkdir()
        Path("run", name).write_text(text)
        assert train("--overwrite") == 2
        assert snapshot(Path("run")) == {f"run/{name}": text.encode()}
        shutil.rmtree("run")
    capsys.readouterr()
    Path("run").mkdir()  # an empty folder may be used
    inode = os.stat("run").st_ino  # noqa: PTH116
    assert train() == 0
    assert os.stat("run").st_ino == inode  # noqa: PTH116


def test_a_run_with_files_of_the_user_is_not_replaced(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train("--tensorboard", "--profile", "--duration", "10steps") == 0
    Path("run/notes.txt").write_text("years of work")
    capsys.readouterr()
    assert train("--overwrite") == 2
    assert "run holds other files ('notes.txt')" in capsys.readouterr().err
    assert Path("run/notes.txt").read_text() == "years of work"
    Path("run/notes.txt").unlink()
    assert train("--overwrite") == 0  # all other files are those of a run
