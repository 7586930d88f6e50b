"""A fine-tuned model, converted back, computes the same outputs in the program that its weights came from."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import transformers
from safetensors.torch import load_file

import vitreous
from helpers import draw, images, relative_error
from runs import draw_folder

SMALL: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 4, "num_classes": 7}
HF: dict[str, Any] = {"image_size": 32, "patch_size": 8, "hidden_size": 64, "num_hidden_layers": 2}
SHORT: dict[str, Any] = {"duration": "3 steps", "batch_size": 16, "device": "cpu", "quiet": True}
CLASSES = ("blau", "grün", "rot")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_folder(tmp_path_factory.mktemp("data") / "farben", images=8, side=40)


@pytest.mark.parametrize("recipe", ["fast", "lora"])
def test_timm(recipe: str, data: Path, tmp_path: Path) -> None:
    peer = draw(timm.create_model("vit_base_patch16_224", **SMALL))
    peer.pretrained_cfg = {**peer.pretrained_cfg, "architecture": "vit_base_patch16_224"}
    timm.models.save_for_hf(peer, tmp_path / "in", model_args=SMALL, safe_serialization=True)
    outcome = vitreous.finetune(data, tmp_path / "in", recipe, image_size=48, out=str(tmp_path / "run"), **SHORT)
    vitreous.convert(outcome.run, tmp_path / "out", "timm")
    back = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    assert tuple(back.pretrained_cfg["label_names"]) == CLASSES
    check(vitreous.load(outcome.run), back, 48)


def test_huggingface(data: Path, tmp_path: Path) -> None:
    config = transformers.ViTConfig(**HF, num_attention_heads=4, intermediate_size=96, num_labels=7)
    draw(transformers.ViTForImageClassification(config)).save_pretrained(tmp_path / "in")
    outcome = vitreous.finetune(data, tmp_path / "in", "lora", image_size=48, out=str(tmp_path / "run"), **SHORT)
    vitreous.convert(outcome.run, tmp_path / "out", "huggingface")
    back = transformers.ViTForImageClassification.from_pretrained(tmp_path / "out").eval()
    assert tuple(back.config.id2label[number] for number in range(3)) == CLASSES
    check(vitreous.load(outcome.run), lambda x: back(x).logits, 48)


def test_google(data: Path, tmp_path: Path) -> None:
    """Google's program is not installed; the file is read back bit-identical."""
    model = draw(vitreous.create("Ti/16", image_size=32, patch_size=8, width=64, depth=2, heads=4, mlp_dim=96))
    vitreous.save(model, tmp_path / "in.npz", to="google")
    outcome = vitreous.finetune(data, tmp_path / "in.npz", "lora", image_size=48, out=str(tmp_path / "run"), **SHORT)
    vitreous.convert(outcome.run, tmp_path / "out.npz", "google")
    ours, back = vitreous.load(outcome.run), vitreous.load(tmp_path / "out.npz", heads=4)
    assert load_file(outcome.run / "best.safetensors").keys() == dict(back.named_parameters()).keys()
    for (name, p), q in zip(ours.named_parameters(), back.parameters(), strict=True):
        assert torch.equal(p, q), name


def check(ours: Any, theirs: Any, size: int) -> None:
    x = images(2, 3, size, size)
    assert ours.labels == CLASSES
    with torch.no_grad():
        assert relative_error(ours(x), theirs(x)) <= 1e-5
