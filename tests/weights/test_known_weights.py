"""Names that download: `vitreous.load("deit-tiny")`. tests/peers/test_known_weights.py checks the architectures.

huggingface_hub reads its settings when it is imported, so downloads run in new processes.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import vitreous
from command import vitreous as cli
from helpers import tiny_vit
from hub_server import SHA, Hub, cached, running_hub
from runs import draw_folder
from vitreous import TrainConfig, VitreousError
from vitreous.preprocessing import Preprocessing, preset
from vitreous.training.initial_weights import load_initial_weights
from vitreous.weights.known_weights import KNOWN_WEIGHTS, similar_names

DEIT, DINOV2 = KNOWN_WEIGHTS["deit-tiny"], KNOWN_WEIGHTS["dinov2-small"]
SCRIPT = """
import json, sys, vitreous
for source in sys.argv[1:]:
    if source == "no huggingface_hub":
        for name in [name for name in sys.modules if name.startswith("huggingface_hub")]:
            del sys.modules[name]
        sys.modules["huggingface_hub"] = None
        continue
    try:
        report = (model := vitreous.load(source)).report
        facts = {"notes": report.notes, "origin": report.origin, "preprocessing": str(model.preprocessing)}
        print(json.dumps({**facts, "heads": model.config.heads}))
    except vitreous.VitreousError as error:
        print(json.dumps(str(error)))
"""


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as server:
        yield server


def environment(cache: Path, hub: Hub | None = None) -> dict[str, str]:
    """Return environment variables for a cache, and a hub if there is one."""
    ours = {"HF_HUB_CACHE": str(cache), "HF_HOME": str(cache.parent / "home"), "NO_PROXY": "127.0.0.1"}
    ours["HF_HUB_OFFLINE"] = "0" if hub else "1"
    if hub is not None:
        ours["HF_ENDPOINT"] = f"http://127.0.0.1:{hub.server_port}"
    return {k: v for k, v in os.environ.items() if not k.startswith("HF_")} | ours


def loads(cwd: Path, cache: Path, *sources: str, hub: Hub | None = None) -> list[Any]:
    """Return what `vitreous.load` reports about each source, or the error."""
    typed = [sys.executable, "-c", SCRIPT, *sources]
    result = subprocess.run(
        typed, cwd=cwd, env=environment(cache, hub), capture_output=True, text=True, check=False, timeout=120
    )
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def save_as(model: Any, folder: Path, to: Any, preprocessing: Preprocessing) -> dict[str, bytes]:
    """Write a model as another library would. Returns its files."""
    model.preprocessing = preprocessing
    vitreous.save(model, folder, to=to)
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def timm_files(folder: Path, preprocessing: Preprocessing) -> dict[str, bytes]:
    return save_as(tiny_vit(image_size=32, patch_size=16, gelu="erf", resample="timm"), folder, "timm", preprocessing)


def test_a_name_is_downloaded(tmp_path: Path, hub: Hub) -> None:
    """Address, licence and revision are recorded; the preprocessing is that of the files, if they state it."""
    small = DEIT.preprocessing.at(32)
    files = timm_files(tmp_path / "timm", small)
    dino = tiny_vit(gelu="erf", resample="hf", layer_scale=1.0, num_classes=0)
    without = save_as(dino, tmp_path / "dino", "huggingface", preset("dino", 32))
    del without["preprocessor_config.json"]
    other = timm_files(tmp_path / "other", preset("augreg", 32))
    hub.repositories = {
        DEIT.repository: files,
        DINOV2.repository: without,
        KNOWN_WEIGHTS["deit-base"].repository: other,
        "owner/name": files,
    }
    cache = tmp_path / "cache"
    named, bare, differs, by_address = loads(
        tmp_path, cache, "deit-tiny", "dinov2-small", "deit-base", "hf://owner/name", hub=hub
    )
    assert named["origin"] == {
        "source": "deit-tiny",
        "dialect": "timm",
        "address": "hf://timm/deit_tiny_patch16_224.fb_in1k",
        "licence": "apache-2.0",
        "pretraining_data": "ImageNet-1k",
        "revision": SHA,
    }
    assert bare["preprocessing"] == str(DINOV2.preprocessing)
    assert "preprocessing: not in the files; that of dinov2-small is used" in bare["notes"]
    assert not [note for note in bare["notes"] if "guessed" in note and "preprocessing" in note]
    assert differs["preprocessing"] == str(preset("augreg", 32))
    (note,) = (note for note in differs["notes"] if note.startswith("preprocessing:"))
    assert note.startswith(f"preprocessing: the files say {preset('augreg', 32)}; this is used, although deit-base is")
    assert (by_address["origin"]["address"], by_address["origin"]["revision"]) == ("hf://owner/name", SHA)
    assert "licence" not in by_address["origin"]

    # From the cache, without a connection; and a folder of that name in the current folder.
    (offline,) = loads(tmp_path, cache, "deit-tiny")
    assert offline == named
    (tmp_path / "deit-tiny").mkdir()
    vitreous.save(tiny_vit(heads=2, width=32), tmp_path / "deit-tiny" / "model.safetensors")
    local, explicit = loads(tmp_path, cache, "deit-tiny", "./deit-tiny")
    assert (local["heads"], explicit["heads"]) == (2, 2)
    assert local["notes"] == [
        f"source: ./deit-tiny of the current folder; the weights of that name on the hub are {DEIT.address}"
    ]
    assert not explicit["notes"]
    assert "licence" not in local["origin"]


def test_without_a_connection(tmp_path: Path) -> None:
    """The error names the files, the command and the two places in which they are found."""
    cache = tmp_path / "cache"
    partial = cached(cache, KNOWN_WEIGHTS["deit-small"].repository)  # without the weights
    (partial / "config.json").write_text("{}")
    deit, dino, incomplete, absent = loads(
        tmp_path, cache, "deit-tiny", "dinov2-small", "deit-small", "no huggingface_hub", "deit-tiny"
    )
    command = "hf download timm/deit_tiny_patch16_224.fb_in1k config.json model.safetensors --local-dir deit-tiny"
    place = f"copy the folder models--timm--deit_tiny_patch16_224.fb_in1k of its cache to {cache}"
    assert deit == (
        "deit-tiny: not in the cache, or not all of it, and HF_HUB_OFFLINE is set. On a machine with internet access"
        f" run `{command}`, then copy the folder deit-tiny to the current folder on this machine; or, without"
        f" --local-dir, {place}"
    )
    assert "`hf download facebook/dinov2-small config.json preprocessor_config.json model.safetensors --local" in dino
    assert incomplete.startswith(
        "deit-small: no weights in a supported format in the cache, and HF_HUB_OFFLINE is set."
    )
    assert absent.startswith("deit-tiny: downloads need huggingface_hub, which is not installed (pip install hugg")
    assert f"run `{command}`, then copy" in absent


def test_an_interrupted_download_leaves_nothing_behind(tmp_path: Path, hub: Hub) -> None:
    hub.repositories[DEIT.repository] = timm_files(tmp_path / "timm", DEIT.preprocessing.at(32))
    hub.stalls[f"{DEIT.repository}/model.safetensors"] = 1000
    cache = tmp_path / "cache"
    typed = [sys.executable, "-m", "vitreous", "info", "deit-tiny"]
    process = subprocess.Popen(typed, cwd=tmp_path, env=environment(cache, hub), stderr=subprocess.PIPE, text=True)
    limit = time.monotonic() + 60
    while not list(cache.rglob("*.incomplete")) and time.monotonic() < limit:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert re.fullmatch(
        r"vitreous: downloading hf://timm/deit_tiny_patch16_224.fb_in1k \(licence apache-2.0\) to \S+, \d+\.\d MB\n"
        r"vitreous: stopped\n",
        said,
    )
    assert not list(cache.rglob("*.incomplete"))
    hub.stalls.clear()
    (again,) = loads(tmp_path, cache, "deit-tiny", hub=hub)
    assert again["origin"]["licence"] == "apache-2.0"


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("deit-tini", "did you mean the weights deit-tiny?"),
        ("DeiT_Tiny", "did you mean the weights deit-tiny?"),
        ("dinov2", "did you mean the weights dinov2-small, dinov2-small-reg, dinov2-base or dinov2-base-reg?"),
        ("vit_base_patch16_224.augreg_in21k", "augreg-b16-in21k"),
        ("B/32", "weights with this architecture: augreg-b32, augreg-b32-in21k, vit-b32-384, vit-b32-in21k"),
        ("facebook/dinov2-small", "for weights of the Hugging Face hub: hf://facebook/dinov2-small"),
        ("vitreous-mimi", "did you mean vitreous-mini, which comes with the package?"),
        ("no-weights-at-all", "no such file or folder"),
    ],
)
def test_misspelt_names(typed: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(VitreousError) as caught:
        vitreous.load(typed)
    assert str(caught.value).startswith(f"{typed}: no such file or folder")
    assert expected in str(caught.value)


def test_a_path_is_never_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for source in (Path("deit-tiny"), "./deit-tiny"):
        with pytest.raises(VitreousError, match="no such file or folder"):
            vitreous.load(source)


def test_names_are_different_from_those_of_models() -> None:
    """In `train --model` a name is an architecture; the two lists must not be confused."""
    assert not set(KNOWN_WEIGHTS) & set(vitreous.models.zoo.ZOO)
    assert all(similar_names(name)[0] == name for name in KNOWN_WEIGHTS)
    for name, entry in KNOWN_WEIGHTS.items():
        with pytest.raises(VitreousError) as caught:
            vitreous.create(name)
        assert f'its name here is "{entry.architecture}": create(' in str(caught.value)
        assert f'vitreous.load("{name}") (--from {name}) loads trained weights' in str(caught.value)


# ---------------------------------------------------------------- the list


def test_the_list_of_weights() -> None:
    listed = cli("models", "--weights").stdout.splitlines()
    assert [line.split()[0] for line in listed[1:-1]] == list(KNOWN_WEIGHTS)
    assert re.split(r"  +", listed[1]) == [
        *("deit-tiny", "Ti/16", "5,717,416", "224", "ImageNet-1k", "apache-2.0"),
        "hf://timm/deit_tiny_patch16_224.fb_in1k",
    ]
    found = json.loads(cli("models", "--weights", "dinov2-*-reg", "--json").stdout)["weights"]
    assert [entry["name"] for entry in found] == [f"dinov2-{size}-reg" for size in ("small", "base", "large", "giant")]
    assert (found[0]["licence"], found[0]["image_size"]) == ("apache-2.0", 224)
    assert Preprocessing.from_json(found[0]["preprocessing"]) == KNOWN_WEIGHTS["dinov2-small-reg"].preprocessing
    assert "no weights match 'x*'" in cli("models", "x*", "--weights").stderr
    assert "--size has no effect with --weights" in cli("models", "--weights", "--size", "384").stderr


# ---------------------------------------------------------------- training


@pytest.fixture
def fetched(tmp_path: Path) -> Path:
    """A native file with the origin that a download records, and positions for more pixels than it is used at."""
    model = tiny_vit(image_size=32, patch_size=4, width=32, heads=2)
    model.preprocessing = Preprocessing(16, 16)
    vitreous.save(model, tmp_path / "plain.safetensors")
    model = vitreous.load(tmp_path / "plain.safetensors")
    model.report = replace(model.report, origin={"source": "deit-tiny", **DEIT.provenance})
    vitreous.save(model, tmp_path / "fetched.safetensors")
    return tmp_path / "fetched.safetensors"


def test_training_at_the_size_of_the_preprocessing(fetched: Path) -> None:
    """DINOv2 has positions for 518 px and is used at 224 px."""
    used, _ = load_initial_weights(TrainConfig().with_(start=str(fetched)), 3)
    given, _ = load_initial_weights(TrainConfig().with_(start=str(fetched), image_size=32), 3)
    assert (used.model.image_size, given.model.image_size) == ((16, 16), (32, 32))
    whole = vitreous.load(fetched, num_classes=3)
    smaller = vitreous.load(fetched, num_classes=3, image_size=16)
    _, state = load_initial_weights(TrainConfig().with_(start=str(fetched)), 3)
    assert torch.equal(state["pos_embed"], smaller.pos_embed)
    assert state["pos_embed"].shape != whole.pos_embed.shape


def test_a_run_records_the_licence_of_its_initial_weights(fetched: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = {"batch_size": 16, "duration": "2 steps", "evaluate_every": "2 steps", "device": "cpu"}
    config = TrainConfig().with_(start=str(fetched), out=str(run), **settings)
    vitreous.train(draw_folder(tmp_path / "photos", images=8), config, quiet=True)
    origin = {"source": "fetched.safetensors", **DEIT.provenance}
    for name in ("best.safetensors", "last.safetensors"):
        assert vitreous.load(run / name).report.origin == {"initial_weights": origin}
    shown = cli("info", run / "best.safetensors").stdout
    assert "licence: apache-2.0" in " ".join(shown.split())
