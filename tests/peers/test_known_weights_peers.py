"""The table of well-known weights, compared with timm's own table and with models that timm and transformers build.

Most models are on the meta device: tensors without values, written in the layout of the hub's files.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import transformers
from timm.models import get_pretrained_cfg

from helpers import draw, images, relative_error
from hub_server import running_hub
from vitreous.models.cost import cost
from vitreous.weights.detect import detect_and_read
from vitreous.weights.dialect import Hints
from vitreous.weights.known_weights import KNOWN_WEIGHTS, KnownWeights
from vitreous.weights.load import check_loadable
from vitreous.weights.tensors import InMemoryTensors

TIMM = [name for name, entry in KNOWN_WEIGHTS.items() if entry.repository.startswith("timm/")]
OTHERS = [name for name in KNOWN_WEIGHTS if name not in TIMM]
# The settings in config.json and preprocessor_config.json of the repositories.
GOOGLE = {"do_normalize": True, "do_resize": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
DINOV2 = {
    "crop_size": {"height": 224, "width": 224},
    "do_center_crop": True,
    "do_convert_rgb": True,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_processor_type": "BitImageProcessor",
    "image_std": [0.229, 0.224, 0.225],
    "resample": 3,
    "rescale_factor": 0.00392156862745098,
    "size": {"shortest_edge": 256},
}
# Width, depth, heads.
SIZES = {
    "small": (384, 12, 6),
    "base": (768, 12, 12),
    "large": (1024, 24, 16),
    "huge": (1280, 32, 16),
    "giant": (1536, 40, 24),
}


def check(entry: KnownWeights, state: dict[str, torch.Tensor], hints: Hints) -> None:
    """Check that `load` accepts the tensors, and finds the architecture and preprocessing of the table."""
    tensors = InMemoryTensors(state, "memory")
    check_loadable(tensors, hints)
    parsed = detect_and_read(tensors, hints)
    assert parsed.preprocessing == entry.preprocessing
    assert not parsed.remarks.guesses
    assert cost(parsed.config).parameters == cost(entry.config).parameters
    fields = (
        "patch_size",
        "width",
        "depth",
        "heads",
        "mlp_dim",
        "mlp",
        "pool",
        "registers",
        "image_size",
        "num_classes",
    )
    for field in fields:
        assert getattr(parsed.config, field) == getattr(entry.config, field), field


@pytest.mark.parametrize("name", TIMM)
def test_entries_of_timm(name: str, tmp_path: Path) -> None:
    entry = KNOWN_WEIGHTS[name]
    theirs = get_pretrained_cfg(entry.repository.removeprefix("timm/"))
    assert (theirs.hf_hub_id, theirs.license) == (entry.repository, entry.licence)
    with torch.device("meta"):
        model = timm.create_model(entry.repository.removeprefix("timm/"), pretrained=False)
    timm.models._hub.save_config_for_hf(model, str(tmp_path / "config.json"))
    hints = Hints(json.loads((tmp_path / "config.json").read_text()))
    check(entry, model.state_dict(), hints)


@pytest.mark.parametrize("name", OTHERS)
def test_entries_of_transformers(name: str) -> None:
    entry = KNOWN_WEIGHTS[name]
    dinov2 = "dinov2" in entry.repository
    (size,) = (size for size in SIZES if f"-{size}" in entry.repository)
    width, depth, heads = SIZES[size]
    settings: dict[str, Any] = {
        "hidden_size": width,
        "num_hidden_layers": depth,
        "num_attention_heads": heads,
        "image_size": 518 if dinov2 else entry.size,
        "patch_size": int(entry.architecture.removesuffix("-reg").partition("/")[2]),
    }
    if dinov2:
        kind = "Dinov2WithRegisters" if name.endswith("-reg") else "Dinov2"
        settings |= {"use_swiglu_ffn": size == "giant"}
        preprocessor = DINOV2
    else:
        kind = "ViT"
        settings |= {"intermediate_size": 4 * width, "num_labels": 1000}
        preprocessor = GOOGLE | {"size": entry.size}
    config = getattr(transformers, f"{kind}Config")(**settings)
    model_class = f"{kind}ForImageClassification" if entry.classes else f"{kind}Model"
    with torch.device("meta"):
        model = getattr(transformers, model_class)(config)
    check(entry, model.state_dict(), Hints(json.loads(config.to_json_string()), preprocessor))


# ---------------------------------------------------------------- small models, with values, from a hub

SCRIPT = """
import json, sys, torch, vitreous
for name in sys.argv[1:]:
    model = vitreous.load(name)
    torch.save(model(torch.load("images.pt")), f"{name}.pt")
    print(json.dumps([model.report.notes, model.report.origin["address"], str(model.preprocessing)]))
"""


def publish(folder: Path) -> tuple[dict[str, dict[str, bytes]], dict[str, torch.nn.Module]]:
    """Return repositories that timm and transformers wrote, with random weights, and their models."""
    peers: dict[str, torch.nn.Module] = {}
    for name in ("deit-tiny", "augreg-ti16"):
        entry = KNOWN_WEIGHTS[name]
        peers[name] = draw(timm.create_model(entry.repository.removeprefix("timm/"), pretrained=False)).eval()
        timm.models.save_for_hf(peers[name], folder / name, safe_serialization=True)
    config = transformers.Dinov2Config(hidden_size=384, num_hidden_layers=12, num_attention_heads=6, image_size=518)
    config.patch_size = 14
    peers["dinov2-small"] = draw(transformers.Dinov2Model(config)).eval()
    peers["dinov2-small"].save_pretrained(folder / "dinov2-small")
    (folder / "dinov2-small" / "preprocessor_config.json").write_text(json.dumps(DINOV2))
    files = {name: {f.name: f.read_bytes() for f in (folder / name).iterdir()} for name in peers}
    return {KNOWN_WEIGHTS[name].repository: content for name, content in files.items()}, peers


def test_small_models_by_name_from_a_hub(tmp_path: Path) -> None:
    repositories, peers = publish(tmp_path)
    pictures = images(2, 3, 224, 224)
    torch.save(pictures, tmp_path / "images.pt")
    with running_hub() as hub:
        hub.repositories = repositories
        ours = {"HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}"}
        environment = (
            {k: v for k, v in os.environ.items() if not k.startswith("HF_")} | ours | {"NO_PROXY": "127.0.0.1"}
        )
        typed = [sys.executable, "-c", SCRIPT, *peers]
        (tmp_path / "elsewhere").mkdir()
        shutil.copy(tmp_path / "images.pt", tmp_path / "elsewhere")
        done = subprocess.run(
            typed, cwd=tmp_path / "elsewhere", env=environment, capture_output=True, text=True, check=False, timeout=120
        )
    assert done.returncode == 0, done.stderr
    for (name, peer), line in zip(peers.items(), done.stdout.splitlines(), strict=True):
        entry = KNOWN_WEIGHTS[name]
        assert json.loads(line) == [[], entry.address, str(entry.preprocessing)], name
        with torch.no_grad():
            expected = peer(pictures)
        expected = expected if isinstance(expected, torch.Tensor) else expected.last_hidden_state[:, 0]
        found = torch.load(tmp_path / "elsewhere" / f"{name}.pt")
        assert relative_error(found, expected) <= 1e-5, name
