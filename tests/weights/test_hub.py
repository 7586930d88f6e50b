"""Load `hf://owner/name` with the real huggingface_hub library, from a prepared cache and from a local test server.

The library reads its settings when it is imported, so each test starts new processes.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitreous
from helpers import oracle, tiny_vit
from hub_server import SHA, Hub, cached, running_hub
from vitreous import VitreousError

OTHER = "fedcba9876543210fedcba9876543210fedcba98"
SCRIPT = """
import json, sys, vitreous
from concurrent.futures import ThreadPoolExecutor

def load(source):
    try:
        model = vitreous.load(source)
        return json.dumps([model.report.dialect, model.config.heads, model.head.weight.detach().sum().item()])
    except vitreous.VitreousError as error:
        return json.dumps(str(error))

with ThreadPoolExecutor(int(sys.argv[1])) as pool:
    print(*pool.map(load, sys.argv[2:]), sep="\\n")
"""


def loads(cache: Path, *sources: str, threads: int = 1, **environment: str) -> list[Any]:
    """Return the result of `vitreous.load` for each source: dialect, heads and a sum of weights, or the error.

    `threads`: how many are loaded at the same time.
    """
    settings = {"HF_HUB_CACHE": str(cache), "HF_HOME": str(cache.parent / "home"), "HF_HUB_OFFLINE": "1"}
    quiet = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "127.0.0.1"}
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(threads), *sources],
        env={k: v for k, v in os.environ.items() if not k.startswith("HF_")} | settings | quiet | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def timm_repository(folder: Path, seed: float = 0) -> list[Any]:
    """Return the files of a timm repository, and the expected result of `loads`."""
    model = tiny_vit(gelu="erf", resample="timm")
    with torch.no_grad():
        model.head.weight.add_(seed)
    vitreous.save(model, folder, to="timm")
    return ["timm", 3, pytest.approx(model.head.weight.detach().sum().item(), rel=1e-5)]


def how_to_fetch(name: str, cache: Path, revision: str = "") -> str:
    """Return the end of an error message about owner/`name`."""
    return (
        f". On a machine with internet access run `hf download owner/{name}{revision} --local-dir {name}`, then copy"
        f" the folder {name} to this machine and give its path instead; or, without --local-dir, copy the folder"
        f" models--owner--{name} of its cache to {cache}"
    )


def into_blobs(snapshot: Path) -> None:
    """Replace files by links to blobs that are named after their hash, as the library does."""
    blobs = snapshot.parents[1] / "blobs"
    blobs.mkdir(exist_ok=True)
    for file in list(snapshot.iterdir()):
        blob = blobs / sha256(file.read_bytes()).hexdigest()
        file.replace(blob)
        file.symlink_to(Path("../../blobs") / blob.name)


def test_from_the_cache(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    main, tagged = cached(cache, "owner/name"), cached(cache, "owner/name", OTHER, "v1.0")
    expected, other = timm_repository(main), timm_repository(tagged, seed=0.5)
    for snapshot in (main, tagged):
        into_blobs(snapshot)
    state = {name: p.detach() for name, p in tiny_vit().named_parameters()}
    torch.save(state, cached(cache, "owner/bin") / "pytorch_model.bin")
    config = {"architecture": "vit_base_patch16_224", "model_args": {"num_heads": 3}}
    (cache / f"models--owner--bin/snapshots/{SHA}/config.json").write_text(json.dumps(config))
    parameters, _ = oracle("google_vit_token_prelogits")
    np.savez(cached(cache, "google/vit.ti_16-x") / "Ti_16.npz", **parameters)
    (cached(cache, "owner/empty") / "README.md").write_text("# Soon")
    (cached(cache, "owner/pointer") / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    found = loads(
        cache,
        "hf://owner/name",
        "hf://owner/name@main",
        "hf://owner/name@v1.0",
        f"hf://owner/name@{OTHER}",
        "hf://owner/bin",
        "hf://google/vit.ti_16-x",
        "hf://owner/absent",
        "hf://owner/name@v2",
        "hf://owner/empty",
        "hf://owner/pointer",
    )
    assert found[:4] == [expected, expected, other, other]
    assert found[4][:2] == ["timm", 3]
    assert found[5][:2] == ["google", 3]
    offline = "and HF_HUB_OFFLINE is set"
    tagged_fetch = how_to_fetch("name", cache, " --revision v2")
    assert found[6:] == [
        f"hf://owner/absent: not in the cache, or not all of it, {offline}{how_to_fetch('absent', cache)}",
        f"hf://owner/name@v2: not in the cache, or not all of it, {offline}{tagged_fetch}",
        f"hf://owner/empty: no weights in a supported format in the cache, {offline}{how_to_fetch('empty', cache)}",
        "hf://owner/pointer: a Git LFS pointer, not the file itself: download it with `git lfs pull`",
    ]


@pytest.mark.parametrize(
    "source", ["hf://", "hf://name", "hf://a/b/c", "hf://a/b@", "hf:///b", "hf://a/ b", "hf://a/b#x", "hf://a/b@x y"]
)
def test_invalid_repository_names(source: str) -> None:
    with pytest.raises(VitreousError) as caught:
        vitreous.load(source)
    assert str(caught.value) == f"{source}: expected hf://owner/name or hf://owner/name@revision"


# ---------------------------------------------------------------- a hub of our own


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as server:
        yield server


def test_from_a_hub(tmp_path: Path, hub: Hub) -> None:
    online = {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HUB_OFFLINE": "0"}
    cache = tmp_path / "cache"
    expected = timm_repository(tmp_path / "timm")
    files = {file.name: file.read_bytes() for file in (tmp_path / "timm").iterdir()}
    others = {"pytorch_model.bin": b"other", "onnx/model.safetensors": b"other", "onnx/config.json": b"other"}
    parameters, _ = oracle("google_vit_token_prelogits")
    np.savez(tmp_path / "x.npz", **parameters)
    hub.repositories = {
        "owner/name": files | others,
        "google/vit": {"README.md": b"# ViT", "ViT.npz": (tmp_path / "x.npz").read_bytes()},
        "owner/words": {"README.md": b"# Words"},
    }
    hub.failures = {"owner/secret": 401, "owner/gated": 403, "owner/down": 500}
    name, google, words, absent, revision, secret, gated, down = loads(
        cache,
        "hf://owner/name",
        "hf://google/vit",
        "hf://owner/words",
        "hf://owner/absent",
        "hf://owner/name@v9",
        "hf://owner/secret",
        "hf://owner/gated",
        "hf://owner/down",
        **online,
    )
    assert name == expected
    assert not [path for path in hub.asked if "onnx" in path or ".bin" in path]  # unneeded files are not downloaded
    assert google[:2] == ["google", 3]
    assert words == "hf://owner/words: the repository has no weights in a supported format"
    for status, said in (404, absent), (401, secret), (403, gated):
        assert f": the hub answers {status}: there is no such repository, or it needs permission" in said
    assert revision == "hf://owner/name@v9: the repository has no such revision"
    assert down == "hf://owner/down: the hub answers 500: try again later"
    assert loads(cache, "hf://owner/name") == [expected]  # from here on offline


def test_a_hub_that_cannot_be_reached(tmp_path: Path, hub: Hub) -> None:
    nowhere = {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HUB_OFFLINE": "0"}
    hub.shutdown()
    hub.server_close()
    expected = timm_repository(cached(tmp_path / "cache", "owner/name"))
    assert loads(tmp_path / "cache", "hf://owner/name", "hf://owner/absent", **nowhere) == [
        expected,
        "hf://owner/absent: the hub cannot be reached, or closed the connection, and it is not in the cache"
        + how_to_fetch("absent", tmp_path / "cache"),
    ]


# ---------------------------------------------------------------- a hub that misbehaves


def online(hub: Hub) -> dict[str, str]:
    """Return environment variables for this server, with timeouts of one second."""
    limits = {"HF_HUB_ETAG_TIMEOUT": "1", "HF_HUB_DOWNLOAD_TIMEOUT": "1"}
    return {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HUB_OFFLINE": "0"} | limits


def published(hub: Hub, folder: Path, *names: str) -> list[Any]:
    """Publish a timm repository under several names. Return the expected result of `loads`."""
    expected = timm_repository(folder)
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    hub.repositories |= dict.fromkeys(names, files)
    return expected


def test_a_hub_that_does_not_answer(tmp_path: Path, hub: Hub) -> None:
    """Each error takes seconds and is reported; cached files are used; slow downloads are completed."""
    cache = tmp_path / "cache"
    names = ("owner/mute", "owner/kept", "owner/half", "owner/stalls", "owner/slow", "owner/trickles")
    expected = published(hub, tmp_path / "timm", *names)
    timm_repository(cached(cache, "owner/kept"))
    hub.silent = {"owner/mute", "owner/kept", "HEAD owner/half"}
    hub.stalls["owner/stalls/model.safetensors"] = 1000
    hub.pauses["owner/slow"] = 0.6
    hub.trickles.add("owner/trickles/model.safetensors")
    start = time.monotonic()
    mute, kept, half, stalls, slow, trickles = loads(
        cache, *(f"hf://{name}" for name in names), threads=len(names), **online(hub)
    )
    assert time.monotonic() - start < 60
    late = (
        "the hub did not answer within 1 s (HF_HUB_ETAG_TIMEOUT and HF_HUB_DOWNLOAD_TIMEOUT, in seconds, change that)"
    )
    assert mute == f"hf://owner/mute: {late}, and it is not in the cache{how_to_fetch('mute', cache)}"
    assert half == f"hf://owner/half: {late}, and it is not in the cache{how_to_fetch('half', cache)}"
    assert stalls == f"hf://owner/stalls: model.safetensors: {late}; run the same command again to repeat the download"
    assert kept == expected
    assert slow == expected
    assert trickles.startswith("hf://owner/trickles: model.safetensors: the hub sends it too slowly")


def test_content_with_a_wrong_hash(tmp_path: Path, hub: Hub) -> None:
    cache, names = tmp_path / "cache", ("owner/weights", "owner/settings", "owner/sound")
    expected = published(hub, tmp_path / "timm", *names)
    for name, file in zip(names, ("model.safetensors", "config.json"), strict=False):
        content = hub.repositories[name][file]
        hub.sent[f"{name}/{file}"] = content[:-20] + bytes(byte ^ 1 for byte in content[-20:])
    sources = [f"hf://{name}" for name in names]
    weights, settings, sound = loads(cache, *sources, **online(hub))
    assert weights.startswith("hf://owner/weights: model.safetensors has the wrong hash")
    assert settings.startswith("hf://owner/settings: config.json has the wrong hash")
    assert sound == expected
    hub.sent.clear()  # the file was removed from the cache
    damage(cache / "models--owner--sound")
    weights, settings, sound = loads(cache, *sources, **online(hub))
    assert (weights, settings) == (expected, expected)
    assert sound.startswith("hf://owner/sound: model.safetensors has the wrong hash")
    damage(cache / "models--owner--weights")
    weights, settings = loads(cache, *sources[:2])  # offline
    assert weights.startswith("hf://owner/weights: model.safetensors has the wrong hash")
    assert settings == expected


def damage(repository: Path) -> None:
    """Flip one bit of the cached weights."""
    (weights,) = repository.glob("snapshots/*/model.safetensors")
    content = bytearray(weights.read_bytes())
    content[-20] ^= 1
    weights.write_bytes(content)
