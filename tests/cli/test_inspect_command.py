"""The command `vitreous inspect`."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from helpers import SMALL_RESNET, draw, tiny_vit
from runs import draw_folder
from vitreous import VitreousError, inspection, load, open_data, save, train
from vitreous.cli import main
from vitreous.inspection import internals
from vitreous.models.resnet import BiT, BiTConfig
from vitreous.reports import inspect_image, inspect_model
from vitreous.utils.figures import render_figure

pytest.importorskip("matplotlib")
FIGURES = ("attention", "components", "depth", "relevance", "rollout", "similarity")


def run(*arguments: object) -> int:
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two images of different sizes and a small model."""
    monkeypatch.chdir(tmp_path)
    Path("photos").mkdir()
    for name, size in (("a.png", (40, 30)), ("b.jpg", (30, 50))):
        pixels = np.random.default_rng(len(name)).integers(0, 256, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(Path("photos") / name)
    save(tiny_vit(), "m.safetensors")
    return tmp_path


@pytest.fixture(autouse=True)
def coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Render figures with few pixels, which halves the time of these tests."""
    monkeypatch.setattr(inspect_model, "render_figure", lambda figure, kind, dpi: render_figure(figure, kind, 20))


@pytest.fixture
def undrawn(coarse: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not render figures, for tests of numbers.json, the page and the folder."""
    monkeypatch.setattr(inspect_model, "render_figure", lambda figure, kind, dpi: kind.encode())


def test_all_files_are_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("inspect", "m.safetensors", "photos", "--out", "seen") == 0
    lines = ["page     seen/index.html", "figures  30 files and numbers.json, in the same folder"]
    assert capsys.readouterr().out.splitlines() == lines
    names = {f"{stem}-{kind}" for stem in "ab" for kind in FIGURES} | {"filters", "positions", "distances"}
    files = {f"{name}.{kind}" for name in names for kind in ("png", "svg")}
    assert {path.name for path in Path("seen").iterdir()} == files | {"index.html", "numbers.json"}
    for path in Path("seen").glob("*.png"):
        with Image.open(path) as picture:
            picture.load()
    page = Path("seen/index.html").read_text()
    assert "never trained" not in page
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", page)


@pytest.mark.usefixtures("undrawn")
def test_numbers_are_those_of_the_python_functions(folder: Path) -> None:
    assert run("inspect", "m.safetensors", "photos/a.png", "--out", "seen", "--size", 32, 48) == 0
    found = json.loads(Path("seen/numbers.json").read_text())
    model = load("m.safetensors")
    shown = model.preprocessing.at((32, 48))
    with Image.open("photos/a.png") as picture:
        x = shown(picture.convert("RGB"))[None]
    (one,) = found["images"]
    assert (one["name"], one["grid"]) == ("a.png", [4, 6])

    def near(values: Any) -> Any:
        return pytest.approx(np.asarray(values), abs=2e-6)

    assert np.asarray(one["attention"]) == near(inspection.attention(model, x).seen_from()[:, 0])
    assert np.asarray(one["rollout"]) == near(inspection.rollout(model, x).seen_from()[0])
    assert np.asarray(found["distances"]["pixels"]) == near(inspection.attention_distance(model, x).distance)
    with torch.no_grad():
        best = model(x).softmax(-1)[0].topk(5)
    assert [p for _, p in one["answers"]] == pytest.approx(best.values.tolist(), abs=2e-6)
    relevance = inspection.relevance(model, x, top=5)
    assert [row["class"] for row in one["relevance"]] == relevance.classes[0].tolist()
    for row, expected in zip(one["relevance"], relevance.maps[0], strict=True):
        assert np.asarray(row["map"]) == near(expected)


@pytest.mark.parametrize(
    ("changes", "lacking"),
    [
        ({"num_classes": 0}, {"depth", "relevance"}),
        ({"pool": "gap", "registers": 2}, set()),
        ({"pool": "map", "position": "relative"}, set()),
        ({"position": "none", "pool": "none"}, {"depth", "relevance", "positions"}),
        ({"patch_size": 1, "backbone": SMALL_RESNET}, set()),
        ({"channels": 1}, set()),
    ],
)
def test_vit_variants(folder: Path, changes: dict[str, Any], lacking: set[str]) -> None:
    save(tiny_vit(**changes), "other.safetensors")
    assert run("inspect", "other.safetensors", "photos/a.png", "--out", "seen") == 0
    made = {path.stem.removeprefix("a-") for path in Path("seen").glob("*.png")}
    assert made == {*FIGURES, "filters", "positions", "distances"} - lacking


def test_bit(folder: Path) -> None:
    save(draw(BiT(BiTConfig(blocks=(1, 1), width_factor=0.5, image_size=32, num_classes=7))), "bit.safetensors")
    assert run("inspect", "bit.safetensors", "photos/a.png", "--out", "seen") == 0
    assert {path.stem for path in Path("seen").glob("*.png")} == {"a-components", "a-similarity", "filters"}
    assert "no attention" in Path("seen/index.html").read_text()


def test_default_images(folder: Path) -> None:
    pytest.importorskip("sklearn")
    assert run("inspect", "random:vitreous-mini", "--size", 32) == 0
    assert json.loads(Path("inspection/numbers.json").read_text())["images"][1]["name"] == "china.jpg"
    assert "was not trained" in Path("inspection/index.html").read_text()


def test_default_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("inspect", "photos/a.png", "--size", 32) == 0
    assert "no model is given: using vitreous-mini" in capsys.readouterr().err
    assert '<h1 class="name">vitreous-mini</h1>' in Path("inspection/index.html").read_text()


@pytest.mark.usefixtures("undrawn")
def test_unreadable_images_are_skipped(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("photos/c.png").write_bytes(b"no picture")
    assert run("inspect", "m.safetensors", "photos", "--out", "seen") == 1
    assert "c.png: " in capsys.readouterr().err
    found = json.loads(Path("seen/numbers.json").read_text())
    assert [one["name"] for one in found["images"]] == ["a.png", "b.jpg"]
    assert len(found["skipped"]) == 1


@pytest.mark.usefixtures("undrawn")
def test_many_images(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page shows the first images, attention distances use all, and equal file names get different outputs."""
    monkeypatch.setattr(inspect_model, "MAX_IMAGES", 2)
    for sub in ("x", "y"):
        Path("photos", sub).mkdir()
        Path("photos", sub, "a.png").write_bytes(Path("photos/a.png").read_bytes())
    assert run("inspect", "m.safetensors", "photos/x", "photos/y", "photos/a.png", "--out", "seen") == 0
    found = json.loads(Path("seen/numbers.json").read_text())
    assert found["distances"]["images"] == 3
    assert any("first 2 of 3 images" in note for note in found["notes"])
    assert Path("seen/a_2-rollout.png").is_file()
    assert len(found["images"]) == 2


@pytest.mark.usefixtures("undrawn")
def test_attention_too_large_for_a_page_is_pooled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect_image, "MAX_WEIGHTS", 2 * 3 * (1 + 5) ** 2)
    seen: list[Any] = []
    monkeypatch.setattr(inspect_model, "write_inspection_page", lambda path, page: seen.append(page))
    assert run("inspect", "m.safetensors", "photos/a.png", "--out", "seen") == 0
    (one,) = seen[0].images
    assert one.coarse == (2, 2)
    assert one.attention.shape == (2, 3, 5, 5)
    assert np.abs(one.attention.sum(-1) - 1).max() < 1e-5
    model = load("m.safetensors")
    with Image.open("photos/a.png") as picture:
        whole = inspection.attention(model, model.preprocessing(picture.convert("RGB"))[None]).weights[:, 0].numpy()
    corner = [1 + 4 * y + x for y in (0, 1) for x in (0, 1)]  # the patches of the first cell
    expected = whole[:, :, corner][:, :, :, corner].sum(-1).mean(-1)
    assert one.attention[:, :, 1, 1] == pytest.approx(expected, abs=1e-6)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.filterwarnings("ignore:.*the head is all zeros")
def test_a_new_head_is_not_a_random_model(folder: Path) -> None:
    save(load("m.safetensors", num_classes=5), "new.safetensors")
    assert run("inspect", "new.safetensors", "photos/a.png", "--out", "seen") == 0
    assert "never trained: what the maps show is chance" not in Path("seen/index.html").read_text()
    found = json.loads(Path("seen/numbers.json").read_text())
    assert sum("zero" in note for note in found["notes"]) == 1


@pytest.mark.usefixtures("undrawn")
def test_overwrite_replaces_an_earlier_inspection(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only if the folder contains no other files. File names may be long, hidden and non-ASCII."""
    long = Path("photos") / ("." + 50 * "\U00020000" + ".png")
    long.write_bytes(Path("photos/a.png").read_bytes())
    assert run("inspect", "m.safetensors", long, "photos/a.png", "--out", "seen") == 0
    before = {path.name: path.read_bytes() for path in Path("seen").iterdir()}
    assert len([name for name in before if name.endswith("-rollout.png")]) == 2
    again = ("inspect", "m.safetensors", "photos/b.jpg", "--out", "seen")
    capsys.readouterr()
    assert run(*again) == 2
    assert capsys.readouterr().err == (
        "vitreous: seen exists already: give another name, or replace it with --overwrite\n"
    )
    Path("seen/mine.png").touch()
    assert run(*again, "--overwrite") == 2
    assert "seen holds other files ('mine.png')" in capsys.readouterr().err
    Path("seen/mine.png").unlink()
    assert {path.name: path.read_bytes() for path in Path("seen").iterdir()} == before
    assert run(*again, "--overwrite") == 0
    assert [path.name for path in Path("seen").glob("*-rollout.png")] == ["b-rollout.png"]
    assert not list(Path().glob(".seen*"))


def test_uniform_image(folder: Path) -> None:
    save(tiny_vit(position="none"), "none.safetensors")
    Image.new("RGB", (32, 32)).save("photos/black.png")
    assert run("inspect", "none.safetensors", "photos/a.png", "photos/black.png", "--out", "seen") == 0
    assert not Path("seen/black-components.png").exists()
    assert Path("seen/black-rollout.png").exists()
    found = json.loads(Path("seen/numbers.json").read_text())
    assert any(note.startswith("black: token_pca: all tokens are equal") for note in found["notes"])


@pytest.mark.usefixtures("undrawn")
def test_batches_are_smaller_if_memory_is_low(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = 4 * (2 + 4 * 3) * 17**2 / internals.MEMORY_SHARE  # memory of one image
    monkeypatch.setattr(internals, "free_memory", lambda device: 1.2 * one)
    assert run("inspect", "m.safetensors", "photos", "--out", "seen") == 0
    assert json.loads(Path("seen/numbers.json").read_text())["distances"]["images"] == 2
    assert run("inspect", "m.safetensors", "photos", "--out", "other", "--size", 64) == 2
    assert not Path("other").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("m.safetensors", "photos/broken.png"), "none of the 1 images can be read"),
        (("m.safetensors", "gone.png"), "gone.png: there is no such file"),
        (("gone.safetensors", "photos"), "gone.safetensors: no such file"),
        (("m.safetensors", "photos", "--size", "30"), "30 x 30"),
        (("m.safetensors", "photos", "--out", "m.safetensors"), "m.safetensors is not a folder"),
        (("random:nothing", "photos"), "nothing"),
    ],
)
def test_mistakes(folder: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str) -> None:
    Path("photos/broken.png").write_bytes(b"no picture")
    assert run("inspect", *arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert not Path("inspection").exists()


def test_run_directory_is_inspected_with_its_own_images(folder: Path) -> None:
    """The report links to the page, which contains the command to create it until it exists."""
    draw_folder(folder / "data")
    options = {"width": 16, "depth": 1, "heads": 2, "image_size": 16, "duration": "2 steps", "batch_size": 8}
    train(folder / "data", **options, out="run", device="cpu", quiet=True)
    assert 'href="./inspection/index.html"' in Path("run/report.html").read_text()
    page = Path("run/inspection/index.html")
    assert "inspect run</pre>" in page.read_text()
    assert run("inspect", "run") == 0
    assert '<h1 class="name">run</h1>' in page.read_text()
    found = json.loads(Path("run/inspection/numbers.json").read_text())
    assert len(found["images"]) == 3  # one held-out image per class
    opened = open_data(folder / "data")
    assert opened.val is not None
    held_out = {Path(opened.val.name(i)).name for i in range(len(opened.val))}
    assert {one["name"] for one in found["images"]} <= held_out
    (folder / "data").rename(folder / "moved")
    assert run("inspect", "run") == 2
    assert run("inspect", "run", "photos/a.png") == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"pool": "gap", "class_token": True}, "class token"), ({"pool": "map"}, "mean of the patches")],
)
def test_title_of_the_attention_figure(folder: Path, changes: dict[str, Any], words: str) -> None:
    """The title names the token whose attention is shown, whatever the head pools."""
    save(tiny_vit(**changes), "other.safetensors")
    assert run("inspect", "other.safetensors", "photos/a.png", "--out", "seen") == 0
    assert f"<!-- attention of the {words} -->" in Path("seen/a-attention.svg").read_text()


def test_model_in_memory(tmp_path: Path) -> None:
    """A compiled model is inspected; a modified model is an error."""
    model = tiny_vit()
    inspect_model.inspect_model(torch.compile(model), [], tmp_path / "out", inspect_model.ModelDescription("compiled"))
    assert "ViT of width 48" in json.loads((tmp_path / "out" / "numbers.json").read_text())["model"]["model"]
    model.blocks[0].register_forward_hook(lambda module, inputs, output: 2 * output)
    with pytest.raises(VitreousError, match=r"inspect: the model differs from its config.*blocks\.0 has hooks"):
        inspect_model.inspect_model(model, [], tmp_path / "none", inspect_model.ModelDescription("changed"))
    assert not (tmp_path / "none").exists()
