"""The page of `vitreous data --check` in a real browser, and the script it exports, run by a real shell."""

import csv
import io
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from vitreous.data.open_data import open_data
from vitreous.data.options import Reading
from vitreous.evaluation.class_separation import ClassPair, ClassSeparation
from vitreous.evaluation.data_check import CheckedImages, CopyGroup, DataCheck, OddImage
from vitreous.evaluation.data_check_labels import LabelSuspect
from vitreous.evaluation.learning_curve import ClassNeed, CurvePoint, LearningCurve
from vitreous.reports.data_check_page import render_data_check_page
from vitreous.reports.data_check_text import check_to_json, finding_rows

HARM = "document.title = 'broken'"
CLASSES = ["-dash $(touch harmed)", f"<script>{HARM}<|script>", "it's `touch harmed`", 'new\nline "x"']
FILES = [
    "a.png",
    "--help.png",
    "$(touch harmed).png",
    "two\nlines '\".png",
    b"not utf-8 \xff.png".decode("utf-8", "surrogateescape"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "my 'photos'"
    for number, name in enumerate(CLASSES):
        (root / name).mkdir(parents=True)
        for place, file in enumerate(FILES):
            Image.new("RGB", (40, 30), (60 * number, 50 * place, 90)).save(root / name / file)
    return root


def check_of(root: Path) -> DataCheck:
    """A check with one finding of each kind. Images 0 to 4 belong to the first class, 5 to 9 to the second ..."""
    images = CheckedImages(open_data(root, Reading(val_fraction=0)))
    suspects = tuple(LabelSuspect(i, i // 5, (i // 5 + 1) % 4, 0.9, 0.01, 0.95) for i in (0, 6, 12, 18))
    pair = ClassPair((0, 1), (5, 5), (2, 3), 0.5, (0.2, 0.7))
    need = ClassNeed(1, 5, 0.6, (0.2, 0.9), 0.2, (0.01, 0.4), "more")
    points = tuple(CurvePoint(share, (5 * share,) * 4, share / 2, (share / 2,) * 4) for share in (0.5, 1.0))
    return DataCheck(
        images=images,
        model="<b>model",
        suspects=suspects,
        error_rate=0.1,
        copies=(CopyGroup((1, 8), False, 0.98, True, ("train",)),),
        odd=(OddImage("outlier", 2, "distance 0.9"), OddImage("tiny", 3, "<b>"), OddImage("unreadable", 4, "text")),
        separation=ClassSeparation((pair,), 6, 0),
        curve=LearningCurve(points, 0.1, (0.05, 0.15), (need,), (0, 1, 2, 3)),
        accuracy=0.8,
        judged=20,
        method=("Features: of a model",),
        warnings=(f"<script>{HARM}</script>",),
        notes=("a note",),
    )


def test_rows_and_json(folder: Path) -> None:
    check = check_of(folder)
    rows = list(finding_rows(check))
    assert [row["kind"] for row in rows] == ["label"] * 4 + ["copy"] * 2 + ["outlier", "tiny", "unreadable"]
    names = sorted(CLASSES)
    assert (rows[0]["label"], rows[0]["suggested_label"]) == (names[0], names[1])
    found = json.loads(json.dumps(check_to_json(check)))
    assert found["class_pairs"]["indistinct"][0]["classes"] == names[:2]
    assert found["learning_curve"]["classes"][0]["index"] == names[1]
    assert "most for" in found["learning_curve"]["summary"]
    assert len(found["findings"]) == len(rows)


Open = Callable[..., Any]


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Open a page. Afterwards there must be no console message, error or network request."""
    said: list[str] = []
    contexts: list[Any] = []

    def open_page(check: DataCheck, width: int = 1280, scheme: str = "light") -> Any:
        path = tmp_path / "index.html"
        path.write_text(render_data_check_page(check, class_folders=True), encoding="utf-8")
        size = {"width": width, "height": 800}
        context = browser.new_context(viewport=size, color_scheme=scheme, accept_downloads=True)
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.on("request", lambda request: said.append(request.url) if request.url.startswith("http") else None)
        tab.goto(path.as_uri())
        return tab

    yield open_page
    for context in contexts:
        context.close()
    assert said == []


def downloaded(tab: Any, button: str) -> bytes:
    with tab.expect_download() as waiting:
        tab.focus(button)
        tab.keyboard.press("Enter")
    return Path(waiting.value.path()).read_bytes()


def test_marks_by_keyboard_and_the_script(opened: Open, folder: Path, tmp_path: Path) -> None:
    check = check_of(folder)
    tab = opened(check)
    assert "broken" not in tab.title()
    assert tab.is_disabled("#script")
    tab.keyboard.press("ArrowRight")  # the first image
    for key in ("2", "3", "1", "2"):  # the next image is selected after each
        tab.keyboard.press(key)
    assert tab.inner_text("#count") == "1 keep, 2 new label, 1 remove"
    tab.keyboard.press("ArrowRight")  # from the first copy, image 1, to the second, image 8
    tab.keyboard.press("l")
    tab.keyboard.press("End")  # the last class
    tab.keyboard.press("Enter")
    assert tab.inner_text("#count") == "1 keep, 3 new label, 1 remove"
    names = sorted(CLASSES)
    files = {number: Path(check.images.name(number)) for number in (0, 6, 8, 12, 18)}

    text = downloaded(tab, "#csv").decode("utf-8", "surrogateescape")
    rows = {row["file"]: row for row in csv.DictReader(io.StringIO(text, newline=""))}
    assert {row["action"] for row in rows.values()} == {"keep", "relabel", "remove"}
    assert rows[str(files[6])]["action"] == "remove"
    assert rows[str(files[0])]["new_label"].removeprefix("'") == names[1]

    script = tmp_path / "fixes.sh"
    script.write_bytes(downloaded(tab, "#script"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    before = {os.fsencode(path) for path in folder.rglob("*.png")}
    done = subprocess.run(["sh", str(script)], cwd=elsewhere, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "moved 4, not moved 0\n", "")
    after = {os.fsencode(path) for path in folder.parent.rglob("*.png")}
    quarantine = folder.with_name(f"{folder.name}-quarantine")
    moved = {
        quarantine / folder.name / names[1] / files[6].name,
        folder / names[1] / f"{names[0]}-{files[0].name}",  # this name exists there
        folder / names[3] / f"{names[1]}-{files[8].name}",
        folder / names[0] / f"{names[3]}-{files[18].name}",
    }
    assert after == before - {os.fsencode(files[i]) for i in (0, 6, 8, 18)} | {os.fsencode(path) for path in moved}
    assert not list(tmp_path.rglob("harmed"))
    again = subprocess.run(["sh", str(script)], cwd=elsewhere, capture_output=True, text=True, check=False)
    assert again.returncode == 1  # nothing is found, and nothing is moved
    assert again.stdout == "moved 0, not moved 4\n"
    assert after == {os.fsencode(path) for path in folder.parent.rglob("*.png")}


def test_buttons_clear_and_reload(opened: Open, folder: Path) -> None:
    tab = opened(check_of(folder))
    tab.click("#copies [data-image='1'] [data-mark=remove]")
    tab.click("#labels [data-image='0'] [data-mark=relabel]")
    tab.reload()
    assert tab.inner_text("#count") == "0 keep, 1 new label, 1 remove"
    assert tab.get_attribute("#labels [data-image='0'] [data-mark=relabel]", "aria-pressed") == "true"
    tab.click("#labels [data-image='0'] [data-mark=relabel]")  # a second click removes the mark
    assert tab.inner_text("#count") == "0 keep, 0 new label, 1 remove"
    tab.click("#clear")
    assert tab.inner_text("#count") == "no marks"


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_widths(opened: Open, folder: Path, width: int, scheme: str) -> None:
    tab = opened(check_of(folder), width, scheme)
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    dark = tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 21, 24)"
    assert dark == (scheme == "dark")
    assert tab.locator(".chart").count() == 1


def test_data_that_is_not_in_files(opened: Open) -> None:
    """Marks of arrays are exported as CSV; the script moves nothing."""
    data = open_data("digits")
    suspect = LabelSuspect(3, int(data.train.labels[3]), 9, 0.9, 0.01, 0.95)
    check = DataCheck(CheckedImages(data), "m", (suspect,), 0.1, (), (), None, None, 0.9, 10, (), (), ())
    tab = opened(check)
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("2")
    script = downloaded(tab, "#script").decode()
    assert "\nmove '" not in script
    assert "Not in this script but in the CSV: 1 of the marks" in script
    assert subprocess.run(["sh", "-c", script], check=False).returncode == 0
