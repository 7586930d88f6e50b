"""`vitreous explain`: every number of the page is recomputed from the model with plain tensor operations."""

import html
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from helpers import SMALL_RESNET, draw, images, tiny_vit
from vitreous import VitreousError, explain, save
from vitreous.cli import main
from vitreous.inspection.forward_steps import forward_steps
from vitreous.models.resnet import BiT, BiTConfig
from vitreous.models.vit import VisionTransformer
from vitreous.reports.percentages import percentages
from vitreous.weights.model_info import preprocessing_of

MODELS: dict[str, dict[str, Any]] = {
    "class token": {},
    "gap": {"pool": "gap"},
    "gap, norm after pooling": {"pool": "gap", "final_norm": "after-pool"},
    "registers, LayerScale, qk-norm, rectangular": {
        "registers": 2,
        "layer_scale": 0.5,
        "qk_norm": True,
        "image_size": (32, 48),
    },
    "relative": {"position": "relative"},
    "hybrid": {"backbone": SMALL_RESNET, "patch_size": 1},
    "axial": {"attention": "axial", "image_size": (48, 32)},
    "axial, few patches": {"attention": "axial", "pool": "gap", "image_size": (16, 24)},
}
PATCH, LAYER, HEAD = (1, 2), 1, 2  # from 0


def norm_of(x: Tensor, layer: Any) -> Tensor:
    """LayerNorm in plain operations."""
    mean, variance = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
    return (x - mean) / (variance + layer.eps).sqrt() * layer.weight + layer.bias


def attention_of(model: VisionTransformer, layer: int, x: Tensor, grid: tuple[int, int]) -> dict[str, Tensor]:
    """Queries, keys, scores and so on of one block, with all heads: (heads, T, ...)."""
    c, attn = model.config, model.blocks[layer].attn
    size = c.width // c.heads
    q, k, v = ((x @ attn.qkv.weight.T + attn.qkv.bias).chunk(3, -1)[i].unflatten(-1, (c.heads, size)) for i in range(3))
    q, k, v = q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)
    if c.qk_norm:
        q, k = norm_of(q, attn.q_norm), norm_of(k, attn.k_norm)
    bias = torch.zeros(c.heads, len(x), len(x))
    if model.rel_pos_embed is not None:
        rows, cols = grid
        for i in range(rows * cols):
            for j in range(rows * cols):
                down, right = i // cols - j // cols + rows - 1, i % cols - j % cols + cols - 1
                offset = model.rel_pos_embed[layer, down * (2 * cols - 1) + right].unflatten(0, (c.heads, size))
                bias[:, c.prefix + i, c.prefix + j] = (q[:, c.prefix + i] * offset).sum(-1) / size**0.5
    scores = q @ k.transpose(1, 2) / size**0.5 + bias
    if c.attention == "axial":
        for i in range(grid[0] * grid[1]):
            for j in range(grid[0] * grid[1]):
                same = i % grid[1] == j % grid[1] if layer % 2 else i // grid[1] == j // grid[1]
                if not same:
                    scores[:, c.prefix + i, c.prefix + j] = -torch.inf
    weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
    output = weights @ v
    branch = output.transpose(0, 1).flatten(1) @ attn.proj.weight.T + attn.proj.bias
    return {"query": q, "keys": k, "values": v, "bias": bias, "scores": scores, "weights": weights, "output": output,
            "branch": branch}  # fmt: skip


def readout(model: VisionTransformer, x: Tensor) -> tuple[Tensor, Tensor]:
    """The input of the head, and the logits, for tokens (T, D)."""
    c = model.config
    before = c.final_norm == "before-pool"
    x = norm_of(x, model.norm) if before else x
    y = x[0] if c.pool == "token" else x[c.prefix :].mean(0)
    y = y if before else norm_of(y, model.fc_norm)
    return y, y @ model.head.weight.T + model.head.bias


@torch.no_grad()
def recompute(model: VisionTransformer, x: Tensor) -> dict[str, Any]:
    """The steps for the patch PATCH, the block LAYER and the head HEAD."""
    c = model.config
    source = x if model.backbone is None else model.backbone(x)
    projection, (row, col) = model.patch_embed.proj, PATCH
    p = projection.weight.shape[-1]
    grid = source.shape[2] // p, source.shape[3] // p
    cuts = [
        source[0, :, i * p : i * p + p, j * p : j * p + p].flatten() for i in range(grid[0]) for j in range(grid[1])
    ]
    patches = torch.stack(cuts) @ projection.weight.flatten(1).T + projection.bias
    prefix = [t[0] for t in (model.cls_token, model.reg_token) if t is not None]
    tokens = torch.cat([*prefix, patches])
    number = row * grid[1] + col
    token = c.prefix + number
    positions = torch.zeros_like(tokens)
    if model.pos_embed is not None:
        table = model.pos_embed.reshape(-1, c.width)
        positions[c.prefix :] = table[len(table) - grid[0] * grid[1] :]
        if c.class_token:
            positions[0] = table[0]
    result: dict[str, Any] = {"grid": grid, "flat": cuts[number], "projected": patches[number], "token": token}
    result["position"], result["embedded"] = positions[token], tokens + positions
    z = tokens + positions
    stream, norms, predictions = [], [], []

    def read() -> None:
        stream.append(z[0] if c.pool == "token" else z[c.prefix :].mean(0))
        predictions.append(readout(model, z)[1].softmax(-1))

    read()
    for layer, block in enumerate(model.blocks):
        found = attention_of(model, layer, norm_of(z, block.norm1), grid)
        if layer == LAYER:
            result["attention"] = found
        scale = (lambda s, v: v) if c.layer_scale is None else (lambda s, v: v * s.gamma)
        branch = scale(block.ls1, found["branch"])
        middle = z + branch
        hidden = F.gelu(norm_of(middle, block.norm2) @ block.mlp.fc1.weight.T + block.mlp.fc1.bias, approximate="tanh")
        mlp = scale(block.ls2, hidden @ block.mlp.fc2.weight.T + block.mlp.fc2.bias)
        norms.append([float(v[token].square().sum().sqrt()) for v in (z, branch, middle, mlp, middle + mlp)])
        z = middle + mlp
        read()
    result["norms"], result["stream"] = torch.tensor(norms), torch.stack(stream)
    result["probabilities"] = torch.stack(predictions)
    result["representation"], result["logits"] = readout(model, z)
    return result


def close(ours: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


def input_shape(model: VisionTransformer) -> tuple[int, int]:
    size = model.config.image_size
    return (size, size) if isinstance(size, int) else size


@pytest.mark.parametrize("changes", MODELS.values(), ids=MODELS)
def test_every_recorded_value_is_that_of_the_equations(changes: dict[str, Any]) -> None:
    model = tiny_vit(**changes)
    x = images(1, 3, *input_shape(model))
    steps, expected = forward_steps(model, x, PATCH, LAYER, HEAD), recompute(model, x)
    assert (steps.grid, steps.token) == (expected["grid"], expected["token"])
    for name in ("flat", "projected", "embedded", "norms", "stream", "probabilities", "representation", "logits"):
        close(getattr(steps, name), expected[name])
    if steps.position is None:
        assert model.config.position == "relative"
    else:
        close(steps.position, expected["position"])
    a, wanted = steps.attention, expected["attention"]
    assert (a.layer, a.head) == (LAYER, HEAD)
    for name in ("query", "scores", "weights", "output"):
        close(getattr(a, name), wanted[name][HEAD, steps.token])
    for name in ("keys", "values"):
        close(getattr(a, name), wanted[name][HEAD])
    if a.bias is not None:
        close(a.bias, wanted["bias"][HEAD, steps.token])
    assert (a.bias is not None) == (model.config.position == "relative")
    last = expected["stream"][-1]
    cosines = [float(v @ last / (v.norm() * last.norm())) for v in expected["stream"]]
    close(steps.similarity_to_final, torch.tensor(cosines))
    assert steps.logits is not None
    with torch.no_grad():
        close(steps.logits, model(x)[0])


# ---------------------------------------------------------------- the page


def write_image(path: Path, shape: tuple[int, int] = (32, 32)) -> Path:
    pixels = np.random.default_rng(3).integers(0, 256, (*shape, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def section(page: str, name: str) -> str:
    start = re.search(rf'<section[^>]*id="?{name}"?[ >]', page)
    assert start
    return page[start.start() : page.index("</section>", start.start())]


def words(page: str, name: str) -> str:
    found = re.search(r'<p class="words">(.*?)</p>', section(page, name), re.S)
    assert found
    return html.unescape(found[1])


def table(page: str, name: str) -> list[list[str]]:
    rows = re.findall(r"<tr[^>]*>(<td.*?)</tr>", section(page, name), re.S)
    return [[html.unescape(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)] for row in rows]


NUMBER = r"(-?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?)"


def states(sentences: str, pattern: str, *expected: float) -> None:
    """Check the numbers that stand for # in the pattern."""
    found = re.search(re.escape(pattern).replace(r"\#", NUMBER), sentences)
    assert found, (pattern, sentences)
    assert [float(n.replace(",", "")) for n in found.groups()] == pytest.approx(expected, rel=1e-3, abs=1e-4)


def begins(vector: Tensor) -> list[float]:
    return vector[:4].tolist()


def shows(cells: list[str], expected: list[float], tolerance: float = 1e-3) -> None:
    assert [float(cell.rstrip("%")) for cell in cells] == pytest.approx(expected, rel=1e-3, abs=tolerance)


@pytest.mark.parametrize("changes", MODELS.values(), ids=MODELS)
def test_the_page_shows_the_numbers_of_the_model(tmp_path: Path, changes: dict[str, Any]) -> None:
    model = tiny_vit(**changes)
    file = write_image(tmp_path / "a.png", input_shape(model))
    chosen = (PATCH[0] + 1, PATCH[1] + 1)
    out = explain(file, model, out=tmp_path / "p.html", patch=chosen, layer=LAYER + 1, head=HEAD + 1)
    page = out.read_text("utf-8")
    preprocessing = preprocessing_of(model)
    x = preprocessing.normalise(preprocessing.pixels(file))[None]
    e = recompute(model, x)
    check_image(page, e, model, x, preprocessing.pixels(file))
    check_embedding(page, e, model)
    check_attention(page, e, model)
    check_depth(page, e, model)


def check_image(page: str, e: dict[str, Any], model: VisionTransformer, x: Tensor, pixels: Tensor) -> None:
    """The patches of the image, and one of them."""
    text, (rows, cols), backbone = words(page, "image"), e["grid"], model.config.backbone
    height, width = x.shape[2:]
    stride, cell = 1 if backbone is None else backbone.stride, width // cols
    side, flat = cell // stride, e["flat"]
    states(text, "an image of # × # pixels", height, width)
    states(text, "its values go from # to #, with mean #.", float(x.min()), float(x.max()), float(x.mean()))
    states(text, "# × # = # patches", rows, cols, rows * cols)
    if backbone is None:
        states(text, "patches of # × # pixels.", cell, cell)
    else:
        states(text, "one cell for # × # pixels", stride, stride)
        states(text, "patches is # × # cells of that map", side, side)
    states(text, "framed patch at row #, column #", PATCH[0] + 1, PATCH[1] + 1)
    inside = pixels[:, PATCH[0] * cell : (PATCH[0] + 1) * cell, PATCH[1] * cell : (PATCH[1] + 1) * cell].double()
    contrast = float((inside - inside.mean()).square().mean()) ** 0.5
    states(text, "standard deviation of its pixels is # on a scale", contrast)
    text, unit = words(page, "patch"), "pixels" if backbone is None else "cells of the feature map"
    states(text, f"# × # {unit} with # channels are # values", side, side, len(flat) // side**2, len(flat))
    states(text, "begins with #, #, #, #; its mean is #.", *begins(flat), float(flat.mean()))
    shows_strip(captions(page, "patch"), flat)


def check_embedding(page: str, e: dict[str, Any], model: VisionTransformer) -> None:
    text, projected, width = words(page, "embedding"), e["projected"], model.config.width
    states(text, "E has # × # values: the patch becomes a vector of # values", len(e["flat"]), width, width)
    states(text, "begins with #, #, #, # and has norm #.", *begins(projected), float(projected.norm()))
    states(text, "the sequence has # tokens", len(e["embedded"]))
    extra = len(e["embedded"]) - e["grid"][0] * e["grid"][1]
    if extra:
        states(text, f"# learned {'vector is' if extra == 1 else 'vectors are'} put in front", extra)
    else:
        assert "no class token" in text
    total = float(e["embedded"][e["token"]].norm())
    if model.config.position == "relative":
        states(text, "the norm stays #:", total)
    else:
        states(text, "has norm #; the sum has norm #.", float(e["position"].norm()), total)
    shows_strip(captions(page, "embedding"), projected)


def check_attention(page: str, e: dict[str, Any], model: VisionTransformer) -> None:
    c, token, a = model.config, e["token"], e["attention"]
    query, scores, weights, output = (a[name][HEAD, token] for name in ("query", "scores", "weights", "output"))
    text = words(page, "attention")
    compared = scores[scores != -torch.inf]
    states(text, "a value v of d = # numbers", c.width // c.heads)
    states(text, "query of the framed patch begins with #, #, #, #.", *begins(query))
    states(text, "scores q·k / √#", c.width // c.heads)
    states(text, " go from # to #; with itself the score is #.", float(compared.min()), float(compared.max()),
           float(scores[token]))  # fmt: skip
    states(text, "the weighted sum of the values begins with #, #, #, # and has norm #.", *begins(output),
           float(output.norm()))  # fmt: skip
    states(text, "Softmax turns the # scores into weights", len(compared))
    extra, best = len(scores) - e["grid"][0] * e["grid"][1], int(weights.argmax())
    to = "itself" if best == token else f"the {token_name(best, extra, e['grid'][1], c.class_token)};"
    assert f"the largest, {table(page, 'attention')[0][2]}, goes to {to}" in text
    if c.attention == "axial":
        also = " and the token before the patches" if extra else ""
        assert f"the patch is compared with the patches of its own column{also} only." in text
    most = re.search(rf"light yellow is {NUMBER}%\.", captions(page, "attention"))
    assert most
    assert float(most[1]) == pytest.approx(100 * float(weights[extra:].max()), abs=0.11)
    for vector in (query, output):
        shows_strip(captions(page, "attention"), vector)
    order = weights.argsort(descending=True)[: min(5, len(compared))].tolist()
    lines = table(page, "attention")
    shows([line[1] for line in lines[:5]], scores[order].tolist())
    shares = [100 * float(weights[i]) for i in order]
    others = [100 - sum(shares)] if len(compared) > 5 else []
    shows([line[2] for line in lines], [*shares, *others], tolerance=0.11)
    assert sum(round(10 * float(line[2].rstrip("%"))) for line in lines) == 1000


def captions(page: str, name: str) -> str:
    return " ".join(html.unescape(one) for one in re.findall(r"<figcaption>(.*?)</figcaption>", section(page, name)))


def shows_strip(found: str, vector: Tensor) -> None:
    """Check that a caption states the number of values and the largest of those that are drawn."""
    count = min(128, len(vector))
    drawn = "all" if count == len(vector) else f"the first {count} of"
    for part in re.findall(rf"{drawn} {len(vector):,} values, .*? full colour is {NUMBER}\.(?: |$)", found):
        if float(part) == pytest.approx(float(vector[:count].abs().max()), rel=1e-3):
            return
    raise AssertionError((float(vector[:count].abs().max()), found))


def token_name(token: int, prefix: int, cols: int, class_token: bool) -> str:
    if token < prefix:
        return "class token" if class_token and token == 0 else f"register {token + 1 - class_token}"
    return f"patch at row {(token - prefix) // cols + 1}, column {(token - prefix) % cols + 1}"


def check_depth(page: str, e: dict[str, Any], model: VisionTransformer) -> None:
    """The steps after attention."""
    c = model.config
    norms, stream, probabilities, logits = e["norms"], e["stream"], e["probabilities"], e["logits"]
    for number, (line, expected) in enumerate(zip(table(page, "residual"), norms.tolist(), strict=True)):
        shows(line, [number + 1, *expected])
    text = words(page, "residual")
    before, attention, middle, mlp, after = norms[LAYER].tolist()
    states(text, "comes in with norm #;", before)
    assert [float(n) for n in re.findall(r"add a vector of norm (\S+?)[ ,]", text)] == pytest.approx(
        [attention], rel=1e-3
    )
    states(text, "and the sum has norm #.", middle)
    assert [float(n) for n in re.findall(r"adds a vector of norm ([\d.]+\d)", text)] == pytest.approx([mlp], rel=1e-3)
    states(text, "the block returns norm #.", after)
    states(text, "The largest addition of all # blocks has norm #:", len(norms), float(norms[:, [1, 3]].max()))

    states(text, "the # heads together", c.heads)
    states(text, "The MLP, with # hidden values,", model.blocks[0].mlp.fc1.out_features)
    largest = max((float(line[kind]), block, kind) for block, line in enumerate(norms) for kind in (1, 3))
    assert f"it comes from {'the MLP' if largest[2] == 3 else 'attention'} in block {largest[1] + 1}." in text

    lengths, last = stream.norm(dim=-1).tolist(), stream[-1]
    cosines = [float(v @ last / (v.norm() * last.norm())) for v in stream]
    lines = table(page, "depth")
    assert [line[0] for line in lines] == ["embeddings", *(str(n) for n in range(1, len(stream)))]
    shows([line[1] for line in lines], lengths)
    shows([line[2] for line in lines], cosines)
    assert [line[3] for line in lines] == [f"class {int(p.argmax())}" for p in probabilities]
    shows([line[4] for line in lines], [100 * float(p.max()) for p in probabilities], tolerance=0.06)
    text = words(page, "depth")
    states(text, " goes from # to #.", lengths[0], lengths[-1])
    states(text, "its final value is # before block 1", round(cosines[0], 3))
    half = min(k for k in range(len(cosines)) if min(cosines[k:]) >= 0.5)
    assert f"at least 0.5 from {f'block {half}' if half else 'the start'} on." in text
    tops = [int(p.argmax()) for p in probabilities]
    first = min(k for k in range(len(tops)) if set(tops[k:]) == {tops[-1]})
    assert f"class {tops[-1]} is the top class {f'after block {first}' if first else 'from the start'} and" in text
    ends = [f"{100 * float(probabilities[k][tops[-1]]):.1f}%" for k in (0, -1)]
    assert f"its probability goes from {ends[0]} to {ends[1]}." in text

    text, y = words(page, "output"), e["representation"]
    states(text, "begins with #, #, #, # and has norm #.", *begins(y), float(y.norm()))
    states(text, "one logit per class, from # to #.", float(logits.min()), float(logits.max()))
    states(text, "The prediction is class #, with logit #", int(logits.argmax()), float(logits.max()))
    states(text, "the result has # values", len(y))
    states(text, "a matrix of # × # values", len(y), len(logits))
    order = logits.argsort(descending=True)[:5].tolist()
    lines = table(page, "output")
    assert f"and probability {lines[0][2]}." in text
    assert [line[0] for line in lines] == [*(f"class {k}" for k in order), "the other 2 classes"]
    shows([line[1] for line in lines[:5]], logits[order].tolist())
    final = [100 * float(probabilities[-1][k]) for k in order]
    shows([line[2] for line in lines], [*final, 100 - sum(final)], tolerance=0.11)


@pytest.mark.parametrize(
    ("changes", "patterns"),
    [
        ({"num_classes": 0}, ["no head that classifies, so there is no prediction", "this is its output"]),
        ({"pool": "map"}, ["attention pooling with a learned query combines the 16 patch tokens"]),
        ({"pool": "none"}, ["no pooling follows"]),
        ({"pool": "gap"}, ["the mean of all 16 patch tokens is taken"]),
        ({"position": "none"}, ["This model adds no positions, so the token keeps its norm of "]),
        ({"position": "sincos-2d", "position_at": "every-layer-shared"}, ["Positions are added before every block"]),
        ({"image_size": (35, 32), "remainder": "crop"}, ["3 rows and 0 columns of pixels do not fill a patch"]),
        ({"qk_norm": True}, ["a key k, normalised (qk-norm), and"]),
        ({"layer_scale": 0.5}, [" (after LayerScale)"]),
        ({"representation_size": 24}, ["then a linear layer and tanh: the result has 24 values"]),
    ],
)
def test_variants_of_the_sentences(tmp_path: Path, changes: dict[str, Any], patterns: list[str]) -> None:
    model = tiny_vit(**changes)
    file = write_image(tmp_path / "a.png", input_shape(model))
    page = html.unescape(explain(file, model, out=tmp_path / "p.html").read_text("utf-8"))
    for pattern in patterns:
        assert pattern in page


def test_percentages_that_are_shown_together_add_up_to_100() -> None:
    assert percentages([1, 1, 1]) == ["33.4%", "33.3%", "33.3%"]
    assert percentages([0.0, 0.0]) == ["0.0%", "0.0%"]


# ---------------------------------------------------------------- errors and untrusted text


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_image(tmp_path / "a.png")
    save(tiny_vit(), "m.safetensors")
    return tmp_path


def run(*arguments: object) -> int:
    try:
        main(["explain", *map(str, arguments), "--device", "cpu"])
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def test_the_command_writes_the_page_into_a_new_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("a.png", "--model", "m.safetensors", "--out", "new/pages") == 0
    page = Path("new/pages/explanation.html")
    assert str(page) in capsys.readouterr().out
    assert "a.png" in page.read_text("utf-8")


def test_an_existing_page_is_kept_without_overwrite(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("p.html").write_text("mine")
    assert run("a.png", "--model", "m.safetensors", "--out", "p.html") != 0
    assert "--overwrite" in capsys.readouterr().err
    assert Path("p.html").read_text() == "mine"
    assert run("a.png", "--model", "m.safetensors", "--out", "p.html", "--overwrite") == 0
    assert Path("p.html").read_text("utf-8") != "mine"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--patch", 5, 1), "row 5: expected 1 to 4"),
        (("--patch", 1, 9), "column 9: expected 1 to 4"),
        (("--patch", 0, 1), "row 0: expected 1 to 4"),
        (("--layer", 3), "layer 3: expected 1 to 2"),
        (("--layer", 0), "layer 0: expected 1 to 2"),
        (("--head", 4), "head 4: expected 1 to 3"),
        (("--head", -1), "head -1: expected 1 to 3"),
        (("--size", 30), "30"),
        (("--model", "missing.safetensors"), "missing.safetensors"),
    ],
)
@pytest.mark.parametrize("out", ["new/folder", "new/p.html"])
def test_a_failed_command_names_the_mistake_and_leaves_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], flags: tuple[object, ...], message: str, out: str
) -> None:
    before = sorted(folder.rglob("*"))
    assert run("a.png", "--model", "m.safetensors", "--out", out, *flags) != 0
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert sorted(folder.rglob("*")) == before


def test_an_image_that_cannot_be_read_leaves_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.png").write_bytes(b"no image")
    before = sorted(folder.rglob("*"))
    assert run("bad.png", "--model", "m.safetensors", "--out", "new") != 0
    assert "bad.png" in capsys.readouterr().err
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("heads", 3, r"model\.config\.heads"),
        ("preprocessing", "deit", r"model\.preprocessing"),
    ],
)
def test_arguments_for_files_are_refused_with_a_model_in_memory(
    tmp_path: Path, name: str, value: object, hint: str
) -> None:
    file = write_image(tmp_path / "a.png")
    with pytest.raises(VitreousError, match=rf"{name} = .*{hint}"):
        explain(file, tiny_vit(), out=tmp_path / "p.html", **{name: value})  # type: ignore[arg-type]
    assert not (tmp_path / "p.html").exists()


def test_heads_and_preprocessing_of_a_file_that_does_not_contain_them(folder: Path) -> None:
    """The page is that of the command with the same flags."""
    torch.save(tiny_vit().state_dict(), "m.pth")
    options: dict[str, Any] = {"heads": 4, "preprocessing": "deit"}
    page = explain("a.png", "m.pth", out="python.html", device="cpu", **options).read_text("utf-8")
    assert "4 heads; short side to 37, centre 32 x 32, bicubic; mean 0.485" in page
    assert (
        run(
            "a.png",
            "--model",
            "m.pth",
            "--out",
            "command.html",
            "--heads",
            4,
            "--preprocessing",
            "deit",
        )
        == 0
    )
    command = Path("command.html").read_text("utf-8")
    for name in ("image", "attention", "depth"):
        assert words(command, name) == words(page, name)


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits_the_screen(browser: Any, tmp_path: Path, width: int) -> None:
    page = explain(write_image(tmp_path / "a.png"), tiny_vit(depth=12), out=tmp_path / "p.html")
    tab = browser.new_page(viewport={"width": width, "height": 900})
    tab.goto(page.as_uri())
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    for name in ("residual", "depth", "output"):
        row, box = (
            tab.locator(f"#{name} {part}").last.bounding_box() for part in ("tr", ".scroll")
        )  # no row is hidden
        assert row["y"] + row["height"] <= box["y"] + box["height"] + 1
    assert tab.locator("text=docs/learn/3-attention.md").count() == 4
    tab.close()


def test_a_bit_is_refused(tmp_path: Path) -> None:
    bit = draw(BiT(BiTConfig(blocks=(1, 1), width_factor=0.5, num_classes=3)))
    with pytest.raises(VitreousError, match="without patches and tokens"):
        explain(write_image(tmp_path / "a.png"), bit, out=tmp_path / "p.html")
    assert not (tmp_path / "p.html").exists()


def test_class_names_and_file_names_are_escaped(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>\"><img src=x onerror='alert(2)'>"
    model = tiny_vit()
    model.labels = tuple(f"{evil}{k}" for k in range(7))
    file = write_image(tmp_path / "<b onmouseover=alert(3)>&amp;.png")
    page = explain(file, model, out=tmp_path / "p.html").read_text("utf-8")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "&lt;b onmouseover=alert(3)&gt;&amp;amp;.png" in page
    for harm in ("<script>alert", "<img src=x", "<b onmouseover"):
        assert harm not in page
