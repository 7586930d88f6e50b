"""The table of well-known weights, compared with timm's own table and with models that timm and transformers build.

The models are on the meta device: tensors without values, written in the layout of the hub's files.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import transformers
from timm.models import get_pretrained_cfg

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
