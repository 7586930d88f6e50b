"""Every command and every Python block of README.md, CONTRIBUTING.md, docs/ and the model card runs as pasted.

The tag of a fenced block says what is done with it:

- `sh`: commands. They run one after the other, and each has to succeed.
- `console`: `$ command`, followed by what it prints. The lines shown have to be printed, in this order; `...` stands
  for others. Numbers may differ by 2%, and by anything if the command reads a stand-in (below).
- `python`: runs. The blocks of a page share their names. A comment behind an expression is compared with its value if
  it is a literal (`# 1600, 1279200`), and with the shapes of tensors if there are shapes in it (`# logits (2, 10)`).
- `text`, `toml`, `json` ...: shown, not run. A `text` block after the line `<!-- output -->` is what the Python block
  before it prints, compared as for `console`; `<!-- output: within 10% -->` allows numbers to differ by more.

`<!-- not run: REASON -->` in the line before a block leaves it out, for one of the REASONS in docs_blocks.py; its
flags are checked all the same. `make TARGET` is not run either: the target has to exist.

A page runs in a folder with small stand-ins for the files that it names: images, checkpoints, run directories, a cache
of the Hugging Face hub. Training and measurements are short, by flags that are added to the command (SHORTEN).
The chapters of the course run in an empty folder, and unchanged.
"""

import importlib
import importlib.util
import re
import shutil
import tomllib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import command
import vitreous
from docs_blocks import Block, Session, check_block, check_output, find_blocks, run_console, run_python, run_shell
from helpers import draw
from vitreous import VitreousWarning
from vitreous.models import VisionTransformer, ViTConfig
from vitreous.weights.labels import imagenet1k

ROOT = Path(__file__).parents[1]
COURSE = ROOT / "docs" / "learn"
CARD = ROOT / "src" / "vitreous" / "weights" / "shipped" / "vitreous-mini.md"
PAGES = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md")), *sorted((ROOT / "docs").rglob("*.md")), CARD]
PAGES = [page for page in PAGES if page.exists()]
MOST_NOT_RUN = 12  # blocks; more need a better reason than "not run"
CLASSES = ("daisy", "dandelion", "rose")
IMAGENET_CLASSES = ("n01440764", "n02102040", "n02979186")
SMALL = {"image_size": 224, "patch_size": 32, "width": 64, "depth": 2, "heads": 1}
PREDICTED = ("hen-of-the-woods", "mushroom", "honeycomb", "agaric", "daisy")  # by the stand-in of DeiT-Ti
STEPS = ("--duration", "2 steps", "--warmup", "0 steps", "--batch-size", "4", "--workers", "0")
PYTHON_STEPS: dict[str, Any] = {"duration": "2 steps", "warmup": "0 steps", "batch_size": 4, "workers": 0}
SHORTEN = {"train": STEPS, "finetune": STEPS, "sweep": STEPS, "bench": ("--seconds", "0.2", "--batch-size", "2")}


# ---------------------------------------------------------------- stand-ins


def write_image(path: Path, seed: int, side: int = 24) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def small_vit(**changes: Any) -> VisionTransformer:
    return draw(VisionTransformer(ViTConfig(**{**SMALL, **changes})))


def write_images(folder: Path) -> None:
    for place, name in enumerate(CLASSES):
        for number in range(36):  # enough for a test split and 25 shots
            write_image(folder / "photos" / name / f"{number:04}.jpg", 100 * place + number)
        for number in range(10):
            write_image(folder / "unsorted" / f"{name}-{number}.jpg", 5000 + 100 * place + number)
    shutil.copytree(folder / "photos", folder / "flowers")
    for place, name in enumerate(IMAGENET_CLASSES):
        for split in ("train", "val"):
            write_image(folder / "imagenet" / split / name / "0.jpg", 1000 + place + (split == "val") * 10)
    for place, name in enumerate(("photo.jpg", "new.jpg", "more/1.jpg", "and/others/2.png")):
        write_image(folder / name, 2000 + place)
    photographs = importlib.import_module("vitreous.data.builtin").photographs()
    for name, image in photographs:
        image.save(folder / name, quality=95)


def write_checkpoints(folder: Path) -> None:
    vitreous.save(small_vit(), folder / "B_16.npz", to="google")
    deit = small_vit(gelu="erf", resample="timm")
    deit.labels = imagenet1k()
    with torch.no_grad():  # predicts the same classes for every image
        deit.head.weight.zero_()
        deit.head.bias.zero_()
        for rank, name in enumerate(PREDICTED):
            deit.head.bias[deit.labels.index(name)] = 9.0 - rank
    vitreous.save(deit, folder / "deit-tiny.safetensors")
    vitreous.save(deit, folder / "timm", to="timm")
    (folder / "timm" / "model.safetensors").replace(folder / "deit_tiny_patch16_224.safetensors")
    shutil.rmtree(folder / "timm")
    vitreous.save(deit, folder / "path" / "to" / "a" / "folder", to="timm")


def write_hub(cache: Path) -> None:
    """What the library of the hub leaves behind when it has downloaded these."""
    plain = small_vit(gelu="erf", resample="hf", norm_eps=1e-12)
    dino = small_vit(gelu="erf", resample="hf", layer_scale=1.0, num_classes=0)
    for name, model in (
        ("google/vit-base-patch16-224", plain),
        ("google/vit-base-patch16-224-in21k", plain),
        ("facebook/dinov2-small", dino),
    ):
        repository = cache / f"models--{name.replace('/', '--')}"
        (repository / "refs").mkdir(parents=True)
        (repository / "refs" / "main").write_text("0" * 40)
        (repository / "snapshots").mkdir()
        vitreous.save(model, repository / "snapshots" / ("0" * 40), to="huggingface")


def write_rest(folder: Path) -> None:
    """A run, features to read, and files with settings."""
    done = command.vitreous("train", "photos", *STEPS, "--out", "runs/photos-DATE", cwd=folder)
    assert done.returncode == 0, done.stderr
    for name in ("flowers-DATE", "photos-20261116-101500"):
        shutil.copytree(folder / "runs" / "photos-DATE", folder / "runs" / name)
    for part in ("examples", "docs/paper/table8-small"):
        shutil.copytree(ROOT / part, folder / part)
    (folder / "suite.toml").write_text('[[group]]\nname = "all"\n[[group.data]]\nsource = "photos"\n')


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("matplotlib")
    pytest.importorskip("sklearn")
    folder = tmp_path_factory.mktemp("stand-ins")
    (folder / "path" / "to" / "a").mkdir(parents=True)
    write_images(folder)
    write_checkpoints(folder)
    write_rest(folder)
    write_hub(folder / "hub")
    return folder


@pytest.fixture
def session(stand_ins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """A copy of the stand-ins, and training that is short, on the command line and in Python."""
    folder = shutil.copytree(stand_ins, tmp_path / "page", copy_function=shutil.copyfile)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder / "hub"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("train", "finetune"):
        monkeypatch.setattr(vitreous, name, shortened(getattr(vitreous, name)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", VitreousWarning)  # guesses about the stand-ins
        names = {path.name for path in stand_ins.iterdir()} - {"flower.jpg", "china.jpg"}
        yield Session(folder, ROOT, tuple(names), SHORTEN)


def shortened(train: Callable[..., Any]) -> Callable[..., Any]:
    numbers = count()

    def short(*arguments: Any, **fields: Any) -> Any:
        return train(*arguments, **{"out": f"runs/python-{next(numbers)}", **fields, **PYTHON_STEPS})

    return short


# ---------------------------------------------------------------- the pages


def blocks_of(page: Path) -> list[Block]:
    return find_blocks(page.relative_to(ROOT).as_posix(), page.read_text())


def run_blocks(blocks: list[Block], session: Session) -> dict[str, Any]:
    """Run the blocks of a page that are to be run. Returns the variables of its Python blocks."""
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = ""
    for block in blocks:
        check_block(block)
        if block.tolerance is not None:
            check_output(block, printed)
        elif block.reason is None and block.language == "python":
            printed = run_python(block, names, session.folder)
        elif block.reason is None and block.language == "console":
            run_console(block, session)
        elif block.reason is None and block.language == "sh":
            run_shell(block, session)
    return names


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks_of(page) and page.parent != COURSE], ids=lambda page: page.name
)
def test_the_page_runs(page: Path, session: Session) -> None:
    with torch.enable_grad():  # restores the mode if a page turns gradients off
        run_blocks(blocks_of(page), session)


# ---------------------------------------------------------------- the course


@pytest.fixture(scope="module")
def pictures() -> ModuleType:
    """docs/learn/pictures.py"""
    for name in ("matplotlib", "sklearn"):
        pytest.importorskip(name)
    spec = importlib.util.spec_from_file_location("pictures", COURSE / "pictures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", sorted(COURSE.glob("*.md")), ids=lambda page: page.name)
def test_a_chapter_runs_and_its_pictures_are_drawn(page: Path, pictures: ModuleType, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    with torch.enable_grad():
        names = run_blocks(blocks_of(page), Session(tmp_path, ROOT))
        drawn = {name: pictures.render(draw, names) for name, draw in pictures.PICTURES[page.stem].items()}
    torch.set_num_threads(threads)  # a chapter sets it
    text = page.read_text()
    for name, content in drawn.items():
        assert len(content) <= pictures.MOST_BYTES
        assert f"]({name}.png)" in text


def test_pictures_of_the_course_are_small_and_used(pictures: ModuleType) -> None:
    files = {path.stem: path.stat().st_size for path in COURSE.glob("*.png")}
    assert set(files) == {"deit", *(name for drawn in pictures.PICTURES.values() for name in drawn)}
    assert max(files.values()) <= pictures.MOST_BYTES


def test_the_picture_of_the_last_layer_is_drawn(pictures: ModuleType) -> None:
    model = small_vit().eval()
    model.preprocessing = vitreous.load("vitreous-mini").preprocessing.at((224, 224))
    assert pictures.render(pictures.draw_last_layer, model)


def test_few_blocks_are_not_run() -> None:
    blocks = [block for page in PAGES for block in blocks_of(page)]
    not_run = [f"{block.place}: {block.reason}" for block in blocks if block.reason is not None]
    run = Counter(block.language for block in blocks if block.reason is None)
    assert len(not_run) <= MOST_NOT_RUN, not_run
    assert run["sh"] >= 20, run
    assert run["python"] >= 8, run


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```sh\nvitreous models --sise 384\n```", "--sise"),
        ("```sh\nvitreous models 'R50*'\nvitreous modles\n```", "modles"),
        ("```sh\nvitreous info absent.npz\n```", "absent.npz"),
        ("```sh\nrm photo.jpg\n```", "rm: "),
        ("```sh\nmake tests\n```", "no target tests"),
        ("```console\n$ vitreous models Ti/16\n...\nTi/17\n```", "not printed: Ti/17"),
        ("```console\n$ vitreous models R50+B/16\nR50+B/16 88,659,112 52.3 196 224 768 x 12 x 12\n```", "not printed"),
        ("```console\n$ vitreous info absent.npz\nformat\n```", "absent.npz"),
        ("```python\nimport vitreous\n```\n```python\nvitreous.creat('Ti/16')\n```", "creat"),
        ("```python\nlen('four')  # 5\n```", "it is 4"),
        ("```python\nimport torch\ntorch.ones(2, 3)  # logits (3, 2)\n```", r"\[\(2, 3\)\]"),
        ("```python\nprint('loss 2.0')\n```\n<!-- output -->\n```text\nloss 3.0\n```", "not printed: loss 3.0"),
        ("```\nvitreous models\n```", "no tag"),
        ("<!-- not run: it fails -->\n```sh\nvitreous modles\n```", "unknown reason"),
        ("```sh\nvitreous models\n", "no end"),
    ],
)
def test_a_wrong_block_is_found(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises((AssertionError, AttributeError), match=message):
        run_blocks(find_blocks("page.md", text), Session(tmp_path, ROOT))


RIGHT = """
```console
$ vitreous models 'R50*' --size 384   # a comment
model      parameters  GFLOPs  patches   px  width x depth x heads
...
R50+L/32  328,994,856   114.3      144  384  1024 x 24 x 16
```

```console
$ vitreous info absent.npz
vitreous: absent.npz: no such file or folder
```

```python
import torch
```

```python
torch.ones(2, 3), (4, 5)  # ones (2, 3) on a grid of (4, 5)
```
"""


def test_a_right_block_passes(tmp_path: Path) -> None:
    blocks = find_blocks("page.md", RIGHT)
    assert [block.line for block in blocks] == [3, 10, 15, 19]
    run_blocks(blocks, Session(tmp_path, ROOT))


# ---------------------------------------------------------------- names in the text


def code_spans() -> Iterator[tuple[str, str]]:
    """The page and the text of every piece of inline code, and the commands of blocks that are not run."""
    for page in PAGES:
        text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        for span in re.findall(r"`([^`]+)`", text):
            yield page.name, " ".join(span.split())
        for block in blocks_of(page):
            if block.reason is not None and block.language in ("sh", "console"):
                yield from ((page.name, line.partition("#")[0]) for line in block.code.splitlines())


@pytest.fixture(scope="module")
def flags() -> dict[str, set[str]]:
    """The flags of every command, by its help."""
    listed = command.vitreous("--help").stdout
    commands = re.findall(r"• (\w+) ", listed)
    assert len(commands) >= 13
    return {name: set(re.findall(r"--[a-z][\w-]*", command.vitreous(name, "--help").stdout)) for name in commands}


OTHER_FLAGS = {"--gelu", "--growth", "--local-dir"}  # of benchmarks/peers.py and of `hf download`


def test_commands_and_flags_in_the_text_exist(flags: dict[str, set[str]]) -> None:
    unknown, checked = [], 0
    for page, span in code_spans():
        words = span.split()
        own = words[1] if words[:1] == ["vitreous"] and words[1:] and not words[1].startswith("-") else None
        if own is not None or span.startswith("--"):
            used = set(re.findall(r"(?:^|\s)(--[a-z][\w-]*)", span))
            known = flags.get(own, set()) if own else set().union(*flags.values(), OTHER_FLAGS)
            checked += len(used)
            unknown += [f"{page}: {span}"] if used - known or (own and own not in flags) else []
    assert not unknown, "\n".join(unknown)
    assert checked >= 60


NOT_THERE = {"inspection/", "candidates/", "state/", "before_cooldown/"}  # commands write them
NOT_THERE |= {"selected.toml", "run.toml"}
NOT_THERE |= {"opt/target/", "params/", "params/img/"}  # prefixes of tensor names
NOT_THERE |= {
    "src/vitreous/data/hdf5.py",
    "src/vitreous/weights/acme.py",
    "tests/data/test_hdf5.py",
}  # examples to follow


def test_files_and_names_in_the_text_exist() -> None:
    folders = ("src", "tests", "docs", "benchmarks", "examples")
    found = [path for folder in folders for path in (ROOT / folder).rglob("*")] + list(ROOT.glob("*.*"))
    files = [f"/{path.relative_to(ROOT).as_posix()}" for path in found]
    missing, checked = [], 0
    for page, span in code_spans():
        if re.fullmatch(r"[\w/]+\.(py|md|toml)|(\w+/)+", span) and "NAME" not in span:
            known = span in NOT_THERE or any(f"/{span}" in path for path in files)
        elif re.fullmatch(r"vitreous(\.\w+)+", span):
            known = exists(span)
        elif script := re.match(r"python ((?:benchmarks|examples|docs)/\w+\.py)", span):
            known = (ROOT / script[1]).exists()
        else:
            continue
        checked += 1
        missing += [] if known else [f"{page}: {span}"]
    assert not missing, "\n".join(missing)
    assert checked >= 30


def exists(name: str) -> bool:
    """A dotted name is a module, or an attribute of one."""
    parts = name.split(".")
    value: Any = vitreous
    for depth, part in enumerate(parts[1:], 2):
        try:
            value = importlib.import_module(".".join(parts[:depth]))
        except ImportError:
            if not hasattr(value, part):
                return False
            value = getattr(value, part)
    return True


def test_the_suite_of_the_docs_is_one(tmp_path: Path) -> None:
    from vitreous.experiments.suite import read_suite

    (block,) = [block for block in blocks_of(ROOT / "docs" / "transfer.md") if block.language == "toml"]
    assert tomllib.loads(block.code)["group"]
    (tmp_path / "suite.toml").write_text(block.code)
    assert read_suite(tmp_path / "suite.toml")
