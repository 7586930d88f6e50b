"""The inspection page in a real browser: it shows the values of the arrays."""

import base64
import io
import json
import re
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vitreous.errors import VitreousError
from vitreous.reports.inspection_page import (
    ImageText,
    InspectedImage,
    InspectionPage,
    PageFigure,
    render_inspection_page,
    write_inspection_page,
)

HARM = "document.title = 'broken'"
EVIL = f'<script>{HARM}</script>"><img src=x onerror="{HARM}"> \u202eabc \udcff\x00'
CLASSES = ("cat", "dog", "boat")


def stochastic(rng: np.random.Generator, *shape: int) -> Any:
    values = rng.random(shape).astype(np.float32) ** 4
    return values / values.sum(-1, keepdims=True)


def shown(
    seed: int = 0,
    grid: tuple[int, int] = (4, 6),
    prefix: int = 1,
    layers: int = 3,
    heads: int = 2,
    coarse: tuple[int, int] | None = None,
    classes: tuple[str, ...] = CLASSES,
    **changes: Any,
) -> InspectedImage:
    rng = np.random.default_rng(seed)
    count, few = grid[0] * grid[1], int(np.prod(coarse or grid))
    vectors = rng.standard_normal((count, 5))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    made = InspectedImage(
        name=f"picture {seed}.png",
        pixels=rng.integers(0, 256, (grid[0] * 20, grid[1] * 20, 3), dtype=np.uint8),
        grid=grid,
        answers=tuple((name, 0.5 / (i + 1)) for i, name in enumerate(classes)),
        answer_shares=(*(f"{50 / (i + 1):.1f}%" for i in range(len(classes))), "8.3%")[: len(classes) + 1],
        attention=stochastic(rng, layers, heads, prefix + few, prefix + few),
        coarse=coarse,
        rollout=stochastic(rng, prefix + count, prefix + count),
        relevance=rng.random((len(classes), *grid)).astype(np.float32),
        similarity=(vectors @ vectors.T).astype(np.float32),
        components=rng.random((*grid, 3)).astype(np.float32),
        depth=rng.random((layers + 1, len(classes))).astype(np.float32),
        depth_top=tuple((f"top {i}", 0.1 * i) for i in range(layers + 1)),
        depth_shares=tuple(tuple(f"{10 * i + k}.5%" for k in range(len(classes) + 1)) for i in range(layers + 1)),
        opening=layers - 1,
        text=ImageText(
            opening=["Opens here."],
            attention=[[f"About layer {i + 1}."] for i in range(layers)],
            rollout=["About rollout."],
            relevance=[[f"About {name}."] for name in classes],
            similarity=["About similarity.", "And more."],
            components=["About components."],
            depth=["About depth."],
        ),
    )
    return replace(made, **changes)


def png(side: int = 8) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (side, side), "red").save(file, "PNG")
    return file.getvalue()


def inspection(*images: InspectedImage, **changes: Any) -> InspectionPage:
    made = InspectionPage(
        title="tiny", facts=(("parameters", "5.7 M"),), notes=("maps were pooled",), random=False, prefix=("class",),
        source="class token", query="class token", layers=3, heads=2, images=images,
        figures=(PageFigure("Filters", ["What it sees."], png()),),
        command="vitreous inspect tiny",
    )  # fmt: skip
    return replace(made, **changes)


CONVOLUTIONAL: dict[str, Any] = {"attention": None, "rollout": None, "relevance": np.zeros((0, 4, 6), np.float32),
                                 "depth": np.zeros((0, 0), np.float32), "depth_top": ()}  # fmt: skip


# ---------------------------------------------------------------- as a file


def unpacked(html: str, name: str) -> bytes:
    found = re.search(f'<script type="text/plain" id="{name}">([^<]*)</script>', html)
    assert found is not None
    return zlib.decompress(base64.b64decode(found[1]))


def test_packed_values_are_accurate() -> None:
    one = shown()
    assert one.attention is not None
    data = unpacked(render_inspection_page(inspection(one)), "attention-data-0")
    rows = one.attention[..., 0].size
    largest = np.frombuffer(data[: 4 * rows], "<f4").reshape(*one.attention.shape[:3], 1)
    codes = np.frombuffer(data[4 * rows :], np.uint8).reshape(one.attention.shape)
    np.testing.assert_array_equal(largest, one.attention.max(-1, keepdims=True))
    assert (abs(largest * (codes / 255.0) ** 2 - one.attention) <= largest / 250).all()


def test_the_page_is_deterministic(tmp_path: Path) -> None:
    page = inspection(shown(0), shown(1))
    write_inspection_page(tmp_path / "index.html", page)
    assert (tmp_path / "index.html").read_text("utf-8") == render_inspection_page(page)
    assert list(tmp_path.iterdir()) == [tmp_path / "index.html"]


@pytest.mark.parametrize("side", [32, 100])
def test_images_are_embedded_unchanged(side: int) -> None:
    ramp = np.linspace(0, 255, side).astype(np.uint8)
    pixels = np.stack(np.broadcast_arrays(ramp[:, None], ramp[None], np.uint8(90)), -1)
    html = render_inspection_page(inspection(shown(pixels=pixels)))
    table = json.loads(re.search(r'id="data">(.*?)</script>', html)[1])  # type: ignore[index]
    image = Image.open(io.BytesIO(base64.b64decode(table["images"][0]["source"].split(",")[1])))
    assert image.format == ("PNG" if side == 32 else "JPEG")
    np.testing.assert_allclose(np.asarray(image).astype(int), pixels, atol=0 if side == 32 else 8)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attention": np.zeros((3, 2, 9, 9), np.float32)}, r"attention of shape .* expected \(3, 2, 25, 25\)"),
        (
            {"rollout": np.full((25, 25), np.nan, np.float32)},
            "rollout cannot be shown: it has values that are not finite",
        ),
        ({"relevance": np.full((3, 4, 6), -1, np.float32)}, "relevance cannot be shown: .* below 0"),
        ({"similarity": np.zeros((24, 23), np.float32)}, "similarity of shape"),
        ({"pixels": np.zeros((0, 4, 3), np.uint8)}, "pixels of shape"),
        ({"depth": np.zeros((3, 3), np.float32)}, r"depth of shape \(3, 3\) cannot be shown; expected \(4, 3\)"),
    ],
)
def test_inconsistent_arrays_are_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(VitreousError, match=r"picture 0\.png: " + words):
        write_inspection_page(tmp_path / "index.html", inspection(shown(**changes)))
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------- in a browser


Open = Callable[..., Any]


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Open a page. Afterwards there must be no console message, error or network request."""
    said: list[str] = []
    contexts: list[Any] = []

    def open_page(page: InspectionPage, width: int = 1280, scheme: str = "light", **options: Any) -> Any:
        path = tmp_path / "index.html"
        write_inspection_page(path, page)
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **options)
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.on("dialog", lambda dialog: (said.append("dialog"), dialog.dismiss()))

        def route(request: Any) -> None:
            if request.request.url == path.as_uri() or request.request.url.startswith("data:"):
                return request.continue_()
            said.append(request.request.url)
            return request.abort()

        tab.route("**/*", route)
        tab.goto(path.as_uri())
        if options.get("java_script_enabled", True):
            tab.wait_for_selector("body[data-ready=true]")
        return tab

    yield open_page
    for context in contexts:
        context.close()
    assert said == []


def drawn(tab: Any, name: str) -> str:
    """Return the pixels of a canvas as a data URL, scaled down so that comparisons are fast."""
    return str(
        tab.evaluate(f"""() => {{
            const canvas = Object.assign(document.createElement("canvas"), {{ width: 120, height: 120 }});
            canvas.getContext("2d").drawImage(document.getElementById("{name}"), 0, 0, 120, 120);
            return canvas.toDataURL();
        }}""")
    )


def all_drawn(tab: Any) -> dict[str, str]:
    return {
        name: drawn(tab, f"{name}-map") for name in ("attention", "rollout", "relevance", "similarity", "components")
    }


def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name in before if before[name] != after[name]}


def at(tab: Any, canvas: str, cell: tuple[int, int], grid: tuple[int, int] = (4, 6)) -> dict[str, float]:
    box = tab.locator(canvas).bounding_box()
    return {"x": (cell[1] + 0.5) * box["width"] / grid[1], "y": (cell[0] + 0.5) * box["height"] / grid[0]}


def click(tab: Any, canvas: str, cell: tuple[int, int], grid: tuple[int, int] = (4, 6)) -> None:
    tab.locator(canvas).scroll_into_view_if_needed()
    tab.click(canvas, position=at(tab, canvas, cell, grid))


def read(tab: Any, canvas: str, cell: tuple[int, int], told: str, grid: tuple[int, int] = (4, 6)) -> str:
    tab.locator(canvas).scroll_into_view_if_needed()
    tab.hover(canvas, position=at(tab, canvas, cell, grid))
    return str(tab.inner_text(told))


def percentage(words: str) -> float:
    found = re.search(r"([\d.]+)%", words)
    assert found is not None, words
    return float(found[1]) / 100


def near(read_value: float, value: float, largest: float) -> bool:
    """Whether a value is equal up to the precision of the encoding and two digits."""
    return bool(abs(read_value - value) <= largest / 250 + 0.05 * value + 1e-5)


def test_clicking_a_patch_changes_maps_and_text(opened: Open) -> None:
    one = shown()
    assert one.attention is not None
    tab = opened(inspection(one))
    assert "Layer 3 of 3, mean of 2 heads, from the class token." in tab.inner_text("#reading")
    before, picture = all_drawn(tab), drawn(tab, "picture")
    click(tab, "#picture", (1, 4))
    assert changed(before, all_drawn(tab)) >= {"attention", "rollout", "similarity"}
    assert drawn(tab, "picture") != picture
    words = tab.inner_text("#reading")
    assert "from the patch at row 2, column 5." in words
    row = one.attention[2, :, 1 + 1 * 6 + 4].mean(0)
    shares = [float(number) / 100 for number in re.findall(r"([\d.]+)%", words)]
    assert shares == pytest.approx([row[1:].sum(), row[0]], abs=0.01)
    click(tab, "#similarity-map", (3, 0))  # the maps below also select a patch
    assert "from the patch at row 4, column 1." in tab.inner_text("#reading")


@pytest.mark.parametrize("cell", [(0, 0), (3, 5), (2, 3)])
def test_values_under_the_pointer_equal_the_arrays(opened: Open, cell: tuple[int, int]) -> None:
    one = shown()
    assert one.attention is not None
    assert one.rollout is not None
    tab = opened(inspection(one))
    click(tab, "#picture", (2, 2))
    tab.click("#heads [data-head='1']")
    tab.click("#layers [data-layer='0']")
    place, query, key = f"row {cell[0] + 1}, column {cell[1] + 1}: ", 1 + 2 * 6 + 2, 1 + cell[0] * 6 + cell[1]
    row = one.attention[0, 1, query]
    for canvas in ("#attention-map", "#picture"):
        words = read(tab, canvas, cell, "#value")
        assert words.startswith(place)
        assert words.endswith("% of the attention")
        assert near(percentage(words), row[key], row.max())
    assert near(percentage(read(tab, "#rollout-map", cell, "#rollout-value")), one.rollout[query, key],
                one.rollout[query].max())  # fmt: skip
    strongest = one.relevance[0] / one.relevance[0].max()
    assert near(percentage(read(tab, "#relevance-map", cell, "#relevance-value")), strongest[cell], 1)
    words = read(tab, "#similarity-map", cell, "#similarity-value")
    assert words.startswith(place)
    assert float(words.split()[-1].replace("\u2212", "-")) == pytest.approx(
        one.similarity[2 * 6 + 2, key - 1], abs=0.01
    )


def test_colours_follow_the_values(opened: Open) -> None:
    one = shown()
    assert one.attention is not None
    tab = opened(inspection(one))
    row = one.attention[2].mean(0)[0, 1:]
    light = tab.evaluate("""() => {
        const small = Object.assign(document.createElement("canvas"), { width: 6, height: 4 }).getContext("2d");
        small.imageSmoothingEnabled = false;
        small.drawImage(document.getElementById("attention-map"), 0, 0, 6, 4);
        const pixels = small.getImageData(0, 0, 6, 4).data;
        const weights = [0.2126, 0.7152, 0.0722];
        return [...Array(24).keys()].map((i) => weights.reduce((sum, w, c) => sum + w * pixels[4 * i + c], 0));
    }""")
    ordered = np.asarray(light)[np.argsort(row)]
    assert (np.diff(ordered) >= -1.5).all()  # lightness increases monotonically
    assert ordered[0] < 20
    assert ordered[-1] > 200
    assert percentage(tab.locator("#attention-scale span").last.inner_text()) == pytest.approx(row.max(), rel=0.06)


def test_layer_head_token_image_and_class(opened: Open) -> None:
    page = inspection(shown(0, prefix=2), shown(1, prefix=2), prefix=("class", "register 1"))
    tab = opened(page)
    before = all_drawn(tab)

    def step(expected: set[str], *words: str) -> None:
        nonlocal before
        after = all_drawn(tab)
        assert changed(before, after) == expected
        assert all(word in tab.inner_text("#reading") for word in words)
        before = after

    tab.fill("#layer", "2")
    step({"attention"}, "Layer 2 of 3")
    assert tab.inner_text("#layer-name") == "layer 2 of 3"
    tab.click("#layers [data-layer='0']")
    step({"attention"}, "Layer 1 of 3")
    assert tab.input_value("#layer") == "1"
    tab.click("#heads [data-head='1']")
    step({"attention"}, "head 2 of 2")
    tab.click("#tokens [data-token='1']")
    step({"attention", "rollout"}, "from register 1")
    tab.click("#tokens [data-token='patch']")
    step({"attention", "rollout", "relevance"}, "from the patch at row 3, column 4")  # the outline on the relevance map
    tab.click("#tokens [data-token='0']")
    step({"attention", "rollout", "relevance"}, "from the class token")
    tab.click("#classes button >> nth=2")
    step({"relevance"})
    assert tab.inner_text("#relevance-title") == "Relevance for boat"
    depth = tab.inner_html("#depth")
    tab.click("#images button >> nth=1")
    tab.wait_for_selector("body[data-ready=true]")
    step(set(before), "Layer 1 of 3", "head 2 of 2", "from the class token")
    assert "picture 1.png" in tab.inner_text("#caption")
    assert tab.inner_html("#depth") != depth


def test_overlay_and_brighten_change_the_maps(opened: Open) -> None:
    tab = opened(inspection(shown()))
    picture, attention = drawn(tab, "picture"), drawn(tab, "attention-map")
    tab.fill("#strength", "20")
    assert drawn(tab, "picture") != picture
    assert drawn(tab, "attention-map") == attention
    middle = percentage(tab.locator("#attention-scale span").nth(1).inner_text())
    tab.check("#lift")
    assert drawn(tab, "attention-map") != attention
    assert percentage(tab.locator("#attention-scale span").nth(1).inner_text()) == pytest.approx(middle / 2, rel=0.1)


def test_keyboard_control(opened: Open) -> None:
    one = shown()
    assert one.attention is not None
    tab = opened(inspection(one, shown(1)))
    reached = set()
    for _ in range(60):
        tab.keyboard.press("Tab")
        reached.add(tab.evaluate("document.activeElement.id || document.activeElement.parentElement.id"))
    assert reached >= {"images", "picture", "strength", "lift", "attention-map", "tokens", "layer", "heads", "classes"}
    tab.focus("#picture")
    assert tab.evaluate("parseFloat(getComputedStyle(document.activeElement).outlineWidth)") >= 2
    for key in ("ArrowUp", "ArrowLeft", "ArrowLeft"):  # from the centre: row 3, column 4
        tab.keyboard.press(key)
    assert "from the patch at row 2, column 2." in tab.inner_text("#reading")
    for _ in range(9):
        tab.keyboard.press("ArrowDown")
    assert "row 4, column 2." in tab.inner_text("#reading")  # stops at the last row
    for keys, words in [("L", "Layer 2 of 3"), ("l", "Layer 3 of 3"), ("h", "head 1 of 2"), ("H", "mean of 2 heads"),
                        ("t", "from the class token"), ("T", "from the patch at")]:  # fmt: skip
        tab.keyboard.press(f"Shift+{keys}" if keys.isupper() else keys)
        assert words in tab.inner_text("#reading")
    tab.keyboard.press("c")
    assert tab.inner_text("#relevance-title") == "Relevance for dog"
    tab.focus("#attention-map")
    for key in ("ArrowRight", "ArrowRight", "ArrowDown"):
        tab.keyboard.press(key)
    words, row = tab.inner_text("#value"), one.attention[2].mean(0)[1 + 3 * 6 + 1]
    assert words.startswith("row 2, column 2: ")
    assert near(percentage(words), row[1 + 6 + 1], row.max())
    tab.focus("#heads [data-head='mean']")
    tab.keyboard.press("ArrowRight")
    assert "head 1 of 2" in tab.inner_text("#reading")
    tab.keyboard.press("i")
    tab.wait_for_selector("body[data-ready=true]")
    assert "picture 1.png" in tab.inner_text("#caption")


def test_prediction_by_depth(opened: Open) -> None:
    one = shown()
    tab = opened(inspection(one))
    assert tab.locator("#depth path.line").count() == len(CLASSES)
    assert tab.locator("#depth circle").count() == one.depth.size
    rows = [row.split("\t") for row in tab.inner_text("#depth-table tbody").strip().split("\n")]
    assert [row[:2] for row in rows] == [["embeddings", "top 0"], *([str(i), f"top {i}"] for i in (1, 2, 3))]
    assert [tuple(row[3:]) for row in rows] == list(one.depth_shares)
    assert tab.inner_text("#depth-table thead th:last-child") == "all others"


@pytest.mark.parametrize("width", [390, 1280])
def test_every_row_of_the_depth_table_is_visible(opened: Open, width: int) -> None:
    tab = opened(inspection(shown(layers=24), layers=24), width)
    row, box = (tab.locator(name).last.bounding_box() for name in ("#depth-table tr", ".depth-layout .scroll"))
    assert row["y"] >= box["y"]
    assert row["y"] + row["height"] <= box["y"] + box["height"] + 1
    assert tab.inner_text("#depth-table tbody tr:last-child th") == "24"
    assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_each_image_opens_on_its_own_layer_until_one_is_selected(opened: Open) -> None:
    tab = opened(inspection(shown(0, opening=1), shown(1, opening=0)))
    assert tab.inner_text("#layer-name") == "layer 2 of 3"
    assert tab.inner_text("#opening") == "Opens here."
    tab.keyboard.press("i")
    tab.wait_for_selector("body[data-ready=true]")
    assert tab.inner_text("#layer-name") == "layer 1 of 3"
    tab.click("#layers [data-layer='2']")
    tab.keyboard.press("i")
    tab.wait_for_selector("body[data-ready=true]")
    assert tab.inner_text("#layer-name") == "layer 3 of 3"


def test_sentences_follow_the_layer_and_the_class(opened: Open) -> None:
    changed = ImageText(rollout=["Other."])
    tab = opened(inspection(shown(0), shown(1, text=changed)))
    names = ("attention", "rollout", "relevance", "similarity", "components", "depth")

    def words() -> list[str]:
        return [str(tab.inner_text(f"#{name}-words")) for name in names]

    about = ["About layer 3.", "About rollout.", "About cat.", "About similarity. And more.", "About components.",
             "About depth."]  # fmt: skip
    assert words() == about
    tab.click("#layers [data-layer='0']")
    tab.keyboard.press("c")
    assert words() == ["About layer 1.", about[1], "About dog.", *about[3:]]
    tab.keyboard.press("i")
    tab.wait_for_selector("body[data-ready=true]")
    assert words() == ["", "Other.", "", "", "", ""]
    assert "What it sees." in tab.inner_text(".figures")
    assert tab.locator("text=docs/learn/3-attention.md").count() >= 3


@pytest.mark.parametrize("patch", [(0, 0), (2, 3)])
def test_sentences_about_one_patch_and_one_head(opened: Open, patch: tuple[int, int]) -> None:
    one = shown()
    assert one.attention is not None
    tab = opened(inspection(one))
    tab.click("#heads [data-head='1']")
    click(tab, "#picture", patch)
    row = one.attention[2, 1, 1 + patch[0] * 6 + patch[1], 1:].astype(float)
    row /= row.sum()
    near = sum(row[6 * y + x] for y in range(4) for x in range(6) if abs(y - patch[0]) <= 1 and abs(x - patch[1]) <= 1)
    words = tab.inner_text("#attention-words")
    spread = re.match(r"This attention is spread over (\d+) of 24 patches ", words)
    assert spread is not None
    assert int(spread[1]) == pytest.approx(np.exp(-(row * np.log(row)).sum()), abs=0.6)
    assert percentage(words) == pytest.approx(near, abs=0.01)
    assert words.endswith("select the class token and the mean of the heads.")


@pytest.mark.parametrize("seed", range(3))
def test_shares_of_the_attention_add_up_to_100(opened: Open, seed: int) -> None:
    """With tokens that receive almost nothing, and some that receive much."""
    one = shown(seed, prefix=4)
    assert one.attention is not None
    weights = one.attention * np.asarray([1, 1e-4, 3, 20] + [1] * 24, np.float32)
    weights /= weights.sum(-1, keepdims=True)
    names = ("class", *(f"register {k}" for k in (1, 2, 3)))
    tab = opened(inspection(replace(one, attention=weights), prefix=names))
    stated = [float(share) for share in re.findall(r"([\d.]+)%", tab.inner_text("#reading"))]
    row = weights[2, :, 0].mean(0)
    assert stated == pytest.approx([100 * row[4:].sum(), *(100 * row[:4])], abs=0.8)
    assert round(10 * sum(stated)) == 1000


def test_attention_pooling_without_a_class_token(opened: Open) -> None:
    """Maps are from the mean of the patches, and relevance starts from attention pooling."""
    one = shown(prefix=0)
    tab = opened(inspection(one, prefix=(), source="attention pooling", query="mean of the patches"))
    assert "from the mean of the patches." in tab.inner_text("#reading")
    assert tab.inner_text("#rollout-title") == "Rollout from the mean of the patches"
    assert tab.inner_text("#relevance-value").endswith("It starts from attention pooling.")


def test_resizing_the_window(opened: Open) -> None:
    tab = opened(inspection(shown()))
    wide = tab.locator("#depth svg").bounding_box()["width"]
    click(tab, "#picture", (1, 1))
    before = drawn(tab, "picture")
    tab.set_viewport_size({"width": 400, "height": 800})
    tab.wait_for_function(f"document.querySelector('#depth svg').clientWidth < {wide - 50}")
    deadline = time.monotonic() + 20
    while drawn(tab, "picture") == before:  # redrawn: the outline keeps its width in screen pixels
        assert time.monotonic() < deadline
    assert tab.evaluate("document.documentElement.scrollWidth") <= 400


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_it_fits_the_screen_and_escapes_names(opened: Open, width: int, scheme: str) -> None:
    evil = shown(name=EVIL, classes=(EVIL, "x" * 300, "b"), depth_top=((EVIL, 0.5),) * 4)
    page = inspection(
        evil, replace(evil, name="y" * 300), title=EVIL, facts=((EVIL, "0" * 64),), notes=(EVIL,), command=EVIL,
        figures=(PageFigure(EVIL, [EVIL], png(1500)),),
    )  # fmt: skip
    tab = opened(page, width, scheme)
    click(tab, "#picture", (0, 5))
    assert "row 1, column 6" in tab.inner_text("#reading")
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.title().startswith("Inside <script>")
    assert "<script>" in tab.inner_text("#images")
    assert "<script>" in tab.inner_text("#classes")
    assert "<script>" in tab.inner_text("#depth-table")
    background = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", background))) > 600) == (scheme == "light")


@pytest.mark.parametrize(("grid", "coarse"), [((1, 1), None), ((3, 9), None), ((9, 2), None), ((11, 11), (4, 4))])
def test_grids_of_all_shapes(opened: Open, grid: tuple[int, int], coarse: tuple[int, int] | None) -> None:
    registers = ("class", "register 1", "register 2")
    one = shown(grid=grid, coarse=coarse, prefix=3)
    assert one.attention is not None
    tab = opened(inspection(one, prefix=registers), width=360)
    last = (grid[0] - 1, grid[1] - 1)
    click(tab, "#picture", last, grid)
    assert f"from the patch at row {grid[0]}, column {grid[1]}." in tab.inner_text("#reading")
    cells = coarse or grid
    words = read(tab, "#attention-map", (cells[0] - 1, 0), "#value", cells)
    assert words.startswith(f"row {cells[0]}, column 1")
    assert ("of 4 × 4 cells" in words) == (coarse is not None)
    row = one.attention[2].mean(0)[-1]
    assert near(percentage(words), row[3 + (cells[0] - 1) * cells[1]], row.max())
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360
    box = tab.locator("#picture").bounding_box()
    assert box["width"] / box["height"] == pytest.approx(grid[1] / grid[0], rel=0.02)


def test_without_a_class_token_the_query_is_the_mean(opened: Open) -> None:
    one = shown(prefix=0, heads=1)
    assert one.attention is not None
    tab = opened(inspection(one, prefix=(), heads=1, source="mean of the patches", query="mean of the patches"))
    assert "its only head, from the mean of the patches." in tab.inner_text("#reading")
    row = one.attention[2, 0].mean(0)
    words = read(tab, "#attention-map", (1, 1), "#value")
    assert near(percentage(words), row[7], one.attention[2, 0].max())
    assert tab.locator("#heads button").count() == 1
    assert tab.is_hidden("#source-figure")
    click(tab, "#picture", (0, 0))
    assert tab.is_visible("#source-figure")


def test_a_network_without_attention(opened: Open) -> None:
    page = inspection(shown(prefix=0, **CONVOLUTIONAL), prefix=(), layers=0, heads=0, source="", query="")
    tab = opened(page)
    said = tab.inner_text("#instead")
    assert said.startswith("This network has no attention. Shown instead: its predictions, similarity between")
    assert tab.locator("#attention-map, #layer, #heads, #rollout-map, #depth").count() == 0
    before = drawn(tab, "similarity-map")
    click(tab, "#picture", (3, 1))
    assert drawn(tab, "similarity-map") != before
    assert tab.inner_text("#reading") == "Selected: the patch at row 4, column 2."
    assert "cat\n50.0%" in tab.inner_text("#answers")


def test_without_a_head(opened: Open) -> None:
    nothing: dict[str, Any] = {"relevance": np.zeros((0, 4, 6), np.float32), "depth": np.zeros((0, 0), np.float32)}
    tab = opened(inspection(shown(classes=(), depth_top=(), **nothing)))
    assert tab.is_visible("#rollout-map")
    assert tab.is_hidden("#relevance-figure")
    assert tab.locator("#depth").count() == 0


def test_random_weights_give_a_warning(opened: Open) -> None:
    assert opened(inspection(shown())).locator("#random").count() == 0
    tab = opened(inspection(shown(), random=True))
    assert "These weights are random." in tab.inner_text("#random")
    assert tab.locator("#random").bounding_box()["y"] < 300


def test_no_images(opened: Open) -> None:
    tab = opened(inspection(random=True))
    assert tab.locator("canvas").count() == 0
    assert tab.locator(".figures img").count() == 1
    assert "5.7 M" in tab.inner_text("header")
    assert "maps were pooled" in tab.inner_text("header")


def test_without_scripts_it_shows_a_note_and_the_figures(opened: Open) -> None:
    tab = opened(inspection(shown()), java_script_enabled=False)
    assert "need JavaScript" in tab.inner_text("body")
    assert tab.is_visible(".figures img")
    assert tab.is_hidden("#picture")


def test_an_old_browser_gets_an_error_message(browser: Any, tmp_path: Path) -> None:
    write_inspection_page(tmp_path / "index.html", inspection(shown()))
    tab = browser.new_page()
    tab.add_init_script("delete window.DecompressionStream")
    tab.goto((tmp_path / "index.html").as_uri())
    tab.wait_for_selector("#problem:not([hidden])")
    assert "too old for the maps" in tab.inner_text("#problem")
    tab.close()
