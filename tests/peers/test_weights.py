"""Random weights of timm, torchvision and transformers models, converted to ours and back, at all supported sizes."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torchvision
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import vitreous
from helpers import draw, images, relative_error

TOLERANCE = 1e-5
transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()


def compare(
    model: nn.Module, theirs: Callable[[Tensor], Tensor], sizes: list[tuple[int, int]], channels: int = 3
) -> None:
    for size in sizes:
        x = images(2, channels, *size)
        with torch.no_grad():
            assert relative_error(model(x), theirs(x)) <= TOLERANCE, size


def identical(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    for name, tensor in a.items():
        assert tensor.dtype == b[name].dtype
        assert torch.equal(tensor, b[name]), name


# ---------------------------------------------------------------- timm

SMALL: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 4, "num_classes": 7}
TIMM: dict[str, dict[str, Any]] = {
    "token": {},
    "gap-fc-norm": {"global_pool": "avg"},
    "gap-norm-first": {"global_pool": "avg", "fc_norm": False, "class_token": False},
    "map": {"global_pool": "map", "class_token": False, "act_layer": "gelu_tanh"},
    "registers": {"reg_tokens": 4, "no_embed_class": True, "init_values": 1e-5, "global_pool": "avg"},
    "registers-with-positions": {"reg_tokens": 3},
    "features": {"num_classes": 0, "init_values": 1e-5},
    "qk-norm": {"qk_norm": True, "qkv_bias": False},
    "all-tokens": {"global_pool": ""},
    "no-positions": {"pos_embed": "none"},
    "grey": {"in_chans": 1},
    "four-channels": {"in_chans": 4},
    "rectangle": {"img_size": (16, 64)},
    "odd-mlp": {"mlp_ratio": 2.7},
}
SIZES = [(32, 32), (48, 48), (16, 16), (24, 56), (16, 64)]


def timm_folder(folder: Path, model: nn.Module, arguments: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    model.pretrained_cfg = {**model.pretrained_cfg, "architecture": "vit_base_patch16_224", "crop_pct": 0.9}
    timm.models.save_for_hf(model, folder, model_args=arguments, safe_serialization=True)
    return folder


@pytest.mark.parametrize("kind", TIMM)
def test_timm_in_and_out(kind: str, tmp_path: Path) -> None:
    arguments = {**SMALL, **TIMM[kind]}
    peer = draw(timm.create_model("vit_base_patch16_224", dynamic_img_size=True, **arguments))
    folder = timm_folder(tmp_path / "in", peer, arguments)
    ours = vitreous.load(folder)
    assert ours.report.dialect == "timm"
    channels = arguments.get("in_chans", 3)
    sizes = [(16, 64), (32, 32), (24, 40)] if kind == "rectangle" else SIZES
    compare(ours, peer, sizes, channels)

    vitreous.save(ours, tmp_path / "out", to="timm")
    identical(load_file(folder / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors"))
    back = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True, dynamic_img_size=True).eval()
    compare(ours, back, sizes, channels)


def test_timm_swiglu_of_dinov2(tmp_path: Path) -> None:
    arguments = {**SMALL, "mlp_ratio": 3.0, "num_classes": 0}
    peer = draw(timm.create_model("vit_giant_patch14_reg4_dinov2", dynamic_img_size=True, **arguments))
    save_file(peer.state_dict(), tmp_path / "bare.safetensors")
    ours = vitreous.load(tmp_path / "bare.safetensors", heads=4)
    assert (ours.config.mlp, ours.config.mlp_dim, ours.config.registers) == ("swiglu", 96, 4)
    compare(ours, peer, SIZES)
    vitreous.save(ours, tmp_path / "out", to="timm")
    back = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True, dynamic_img_size=True).eval()
    compare(ours, back, SIZES)


@pytest.mark.parametrize(
    "name", ["vit_base_patch32_224", "vit_base_patch16_gap_224", "vit_base_patch16_siglip_gap_224"]
)
def test_timm_at_full_size_without_config_json(name: str, tmp_path: Path) -> None:
    peer = draw(timm.create_model(name, dynamic_img_size=True, depth=2, num_classes=9))
    save_file(peer.state_dict(), tmp_path / "x.safetensors")
    ours = vitreous.load(tmp_path / "x.safetensors", heads=16 if "16_gap" in name else None)
    assert ("heads" in ours.report.guesses) == ("16_gap" not in name)
    compare(ours, peer, [(224, 224), (160, 256)])


@pytest.mark.parametrize(
    ("grid", "registers", "positions_for_all"),
    [
        (grid, registers, positions_for_all)
        for grid in (2, 3, 4)
        for registers in (0, 4, 6)
        for positions_for_all in (False, True)
        # otherwise it is the count of a larger grid without positions for registers, as in all published timm models
        if not (registers and positions_for_all and math.isqrt(grid**2 + 1 + registers) ** 2 == grid**2 + 1 + registers)
    ],
)
def test_timm_positions_without_config_json(grid: int, registers: int, positions_for_all: bool, tmp_path: Path) -> None:
    arguments = {**SMALL, "img_size": 8 * grid, "reg_tokens": registers, "no_embed_class": not positions_for_all}
    peer = draw(timm.create_model("vit_base_patch16_224", dynamic_img_size=True, **arguments))
    save_file(peer.state_dict(), tmp_path / "x.safetensors")
    compare(vitreous.load(tmp_path / "x.safetensors", heads=4), peer, [(8 * grid, 8 * grid), (40, 24)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"global_pool": "max"}, "global_pool = 'max'"),
        ({"global_pool": "avgmax"}, "global_pool = 'avgmax'"),
        ({"act_layer": "silu"}, "an MLP with silu"),
        ({"act_layer": "relu"}, "act_layer = 'relu'"),
        ({"pre_norm": True}, "pre_norm"),
    ],
)
def test_unsupported_timm_models(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    arguments = {**SMALL, **change}
    peer = draw(timm.create_model("vit_base_patch16_224", **arguments))
    with pytest.raises(vitreous.VitreousError, match=message):
        vitreous.load(timm_folder(tmp_path / "in", peer, arguments))


def test_timm_does_not_resample_positions_of_equal_count_but_we_do(tmp_path: Path) -> None:
    """timm 1.0: a 4 x 4 grid is loaded unchanged into a 2 x 8 model, which has the same number of tokens."""
    peer = draw(timm.create_model("vit_base_patch16_224", dynamic_img_size=True, **SMALL))
    folder = timm_folder(tmp_path / "in", peer, SMALL)
    wide = timm.create_model("vit_base_patch16_224", **{**SMALL, "img_size": (16, 64)}).eval()
    wide.load_state_dict(timm.models.vision_transformer.checkpoint_filter_fn(peer.state_dict(), wide))
    assert torch.equal(wide.pos_embed, peer.pos_embed)  # the bug in timm
    ours = vitreous.load(folder, image_size=(16, 64))
    assert not torch.equal(ours.pos_embed, peer.pos_embed)
    compare(ours, peer, [(16, 64)])  # timm is correct when it resamples in the forward pass


def test_timm_reads_its_own_preprocessing_and_labels(tmp_path: Path) -> None:
    model = draw(vitreous.create("Ti/16", depth=1, num_classes=3, gelu="erf", resample="timm"))
    model.labels = ("ant", "bee", "cat")
    model.preprocessing = vitreous.Preprocessing(224, 248, "bicubic", mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    vitreous.save(model, tmp_path / "out", to="timm")
    peer = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True)
    data = timm.data.resolve_model_data_config(peer)
    assert (data["mean"], data["std"], data["interpolation"]) == ([0.1, 0.2, 0.3], [0.4, 0.5, 0.6], "bicubic")
    assert int(data["input_size"][1] / data["crop_pct"]) == 248
    assert peer.pretrained_cfg["label_names"] == ["ant", "bee", "cat"]
    back = vitreous.load(tmp_path / "out")
    assert (back.preprocessing, back.labels) == (model.preprocessing, model.labels)


# ---------------------------------------------------------------- torchvision


def tv_outputs(peer: nn.Module, x: Tensor) -> Tensor:
    """Outputs of torchvision, which resizes positions before it builds the model (`interpolate_embeddings`)."""
    size = x.shape[-1]
    if size == peer.image_size:
        return peer(x)
    state = torchvision.models.vision_transformer.interpolate_embeddings(size, peer.patch_size, peer.state_dict())
    kwargs = {"num_layers": len(peer.encoder.layers), "num_heads": 12, "hidden_dim": 768, "mlp_dim": 3072}
    other = torchvision.models.VisionTransformer(image_size=size, patch_size=peer.patch_size, num_classes=9, **kwargs)
    other.load_state_dict(state)
    return other.eval()(x)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
def test_wrapped_models_of_every_peer(prefix: str, tmp_path: Path) -> None:
    peers = {
        "timm": draw(timm.create_model("vit_base_patch16_224", **SMALL)),
        "huggingface": draw(PEERS["classifier"]()),
        "torchvision": draw(torchvision.models.VisionTransformer(32, 8, 2, 4, 64, 96, num_classes=7)),
    }
    for dialect, peer in peers.items():
        state = {f"{prefix}{name}": tensor for name, tensor in peer.state_dict().items()}
        content = {
            "state_dict": state | {"n_averaged": torch.tensor(3)},
            "best": torch.tensor(1.0),
            "acc": np.float64(3),
        }
        torch.save(content, tmp_path / "x.pth")
        ours = vitreous.load(tmp_path / "x.pth", heads=4)
        assert ours.report.dialect == dialect
        compare(ours, hf_outputs(peer) if dialect == "huggingface" else peer, [(32, 32)])


def test_torchvision_swag_at_384(tmp_path: Path) -> None:
    peer = torchvision.models.VisionTransformer(384, 16, 1, 12, 768, 3072)
    torch.save(peer.state_dict(), tmp_path / "x.pth")
    with pytest.warns(vitreous.VitreousWarning, match="all zeros"):  # its initial head is zero
        ours = vitreous.load(tmp_path / "x.pth")
    transforms = torchvision.models.ViT_B_16_Weights.IMAGENET1K_SWAG_E2E_V1.transforms()
    assert (ours.preprocessing.resize, ours.preprocessing.size) == (transforms.resize_size[0], (384, 384))
    assert ours.preprocessing.interpolation == transforms.interpolation.value
    assert ours.preprocessing.mean == tuple(transforms.mean)


@pytest.mark.parametrize("old_names", [False, True])
def test_torchvision_in_and_out(old_names: bool, tmp_path: Path) -> None:
    peer = torchvision.models.VisionTransformer(
        image_size=224, patch_size=32, num_layers=2, num_heads=12, hidden_dim=768, mlp_dim=3072, num_classes=9
    )
    draw(peer)
    state = peer.state_dict()
    if old_names:
        state = {k.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2."): v for k, v in state.items()}
    torch.save(state, tmp_path / "in.pth")
    ours = vitreous.load(tmp_path / "in.pth")
    assert (ours.report.dialect, ours.config.resample) == ("torchvision", "torchvision")
    compare(ours, lambda x: tv_outputs(peer, x), [(224, 224), (288, 288), (160, 160)])
    assert ours.preprocessing.resize == 256

    vitreous.save(ours, tmp_path / "out.pth", to="torchvision")
    written = torch.load(tmp_path / "out.pth", weights_only=True)
    identical(peer.state_dict(), written)
    peer.load_state_dict(written)
    compare(ours, peer, [(224, 224)])


def test_torchvision_vit_b_32_whole(tmp_path: Path) -> None:
    peer = draw(torchvision.models.vit_b_32())
    torch.save(peer.state_dict(), tmp_path / "in.pth")
    compare(vitreous.load(tmp_path / "in.pth"), peer, [(224, 224)])


# ---------------------------------------------------------------- Hugging Face

HF: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}


def hf_vit(**changes: Any) -> transformers.ViTConfig:
    return transformers.ViTConfig(**{**HF, "intermediate_size": 96, **changes})


PEERS: dict[str, Callable[[], nn.Module]] = {
    "classifier": lambda: transformers.ViTForImageClassification(hf_vit(num_labels=7)),
    "pooler": lambda: transformers.ViTModel(hf_vit(pooler_output_size=40)),
    "no-pooler": lambda: transformers.ViTModel(hf_vit(layer_norm_eps=1e-6), add_pooling_layer=False),
    "tanh": lambda: transformers.ViTForImageClassification(hf_vit(num_labels=7, hidden_act="gelu_new", qkv_bias=False)),
    "dinov2": lambda: transformers.Dinov2Model(transformers.Dinov2Config(**HF)),
    "dinov2-swiglu": lambda: transformers.Dinov2Model(transformers.Dinov2Config(**HF, use_swiglu_ffn=True)),
    "registers": lambda: transformers.Dinov2WithRegistersModel(transformers.Dinov2WithRegistersConfig(**HF)),
    "registers-swiglu": lambda: transformers.Dinov2WithRegistersModel(
        transformers.Dinov2WithRegistersConfig(**HF, num_register_tokens=2, use_swiglu_ffn=True)
    ),
}


def hf_outputs(peer: nn.Module) -> Callable[[Tensor], Tensor]:
    vit = peer.config.model_type in ("vit", "vit_msn")

    def outputs(x: Tensor) -> Tensor:
        native = x.shape[-2:] == (32, 32)
        out = peer(x, interpolate_pos_encoding=True) if vit and not native else peer(x)
        if "logits" in out:
            return out.logits
        return out.pooler_output if vit and peer.pooler is not None else out.last_hidden_state[:, 0]

    return outputs


@pytest.mark.parametrize("layout", ["file", "memory"])
@pytest.mark.parametrize("kind", PEERS)
def test_huggingface_in_and_out(kind: str, layout: str, tmp_path: Path) -> None:
    peer = draw(PEERS[kind]())
    peer.save_pretrained(tmp_path / "in")
    if layout == "memory":
        save_file(peer.state_dict(), tmp_path / "in" / "model.safetensors")
    ours = vitreous.load(tmp_path / "in")
    assert ours.report.dialect == "huggingface"
    assert (set(ours.report.guesses), ours.report.facts) == (
        {"preprocessing"},
        (),
    )  # all keys are known
    compare(ours, hf_outputs(peer), SIZES)

    vitreous.convert(tmp_path / "in", tmp_path / "out", "huggingface")
    peer.save_pretrained(tmp_path / "again")
    identical(load_file(tmp_path / "again" / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors"))
    options = {"add_pooling_layer": False} if kind == "no-pooler" else {}
    back, info = type(peer).from_pretrained(tmp_path / "out", output_loading_info=True, **options)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    compare(ours, hf_outputs(back.eval()), SIZES)


def test_huggingface_msn(tmp_path: Path) -> None:
    """MSN is a plain ViT. With a classifier, transformers 5 writes its layers without the prefix of the other names."""
    config = transformers.ViTMSNConfig(**HF, intermediate_size=96, num_labels=7)
    peer = draw(transformers.ViTMSNForImageClassification(config))
    peer.save_pretrained(tmp_path / "in")
    ours = vitreous.load(tmp_path / "in")
    compare(ours, hf_outputs(peer), SIZES)
    vitreous.convert(tmp_path / "in", tmp_path / "out", "huggingface")
    back = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "out")
    compare(ours, hf_outputs(back.eval()), SIZES)


def change_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("classifier", {"hidden_act": "quick_gelu"}, "hidden_act = 'quick_gelu'"),
        ("classifier", {"model_type": "rotary_vit"}, "'rotary_vit' is not supported"),
        ("classifier", {"model_type": None}, "None is not supported"),
        ("classifier", {"hidden_size": 32}, "hidden_size = 32, the tensors in the file 64"),
        ("classifier", {"intermediate_size": 32}, "intermediate_size = 32"),
        ("classifier", {"patch_size": 4}, "patch_size = 4"),
        ("classifier", {"qkv_bias": False}, "qkv_bias = False"),
        ("classifier", {"head_dim": 8}, "head_dim = 8"),
        ("classifier", {"quantization_config": {"bits": 8}}, "quantization_config"),
        ("pooler", {"pooler_act": "relu"}, "pooler_act = 'relu'"),
        ("registers", {"num_register_tokens": 2}, "num_register_tokens = 2"),
        ("registers", {"interpolate_antialias": False}, "interpolate_antialias = False"),
        ("dinov2", {"use_swiglu_ffn": True}, "use_swiglu_ffn = True"),
    ],
)
def test_unsupported_huggingface_settings(kind: str, change: dict[str, Any], message: str, tmp_path: Path) -> None:
    PEERS[kind]().save_pretrained(tmp_path)
    change_json(tmp_path / "config.json", **change)
    with pytest.raises(vitreous.VitreousError, match=message):
        vitreous.load(tmp_path)


def test_unknown_huggingface_settings_are_named(tmp_path: Path) -> None:
    draw(PEERS["classifier"]()).save_pretrained(tmp_path)
    change_json(tmp_path / "config.json", rope_theta=1e4, finetuning_task="image-classification")
    (tmp_path / "preprocessor_config.json").write_text('{"image_processor_type": "DPTImageProcessor", "do_pad": true}')
    notes = vitreous.load(tmp_path).report.facts
    assert any("unknown settings, which were not used: rope_theta = 10000.0" in note for note in notes)
    assert any("DPTImageProcessor is unknown" in note for note in notes)
    assert any("do_pad = True" in note for note in notes)
    assert len(notes) == 3
    assert not any("preprocessing" in n for n in vitreous.load(tmp_path, preprocessing="deit").report.notes)


def test_default_huggingface_epsilon_of_each_model_type(tmp_path: Path) -> None:
    for number, kind in enumerate((transformers.ViTMSNModel, transformers.ViTMAEModel, transformers.ViTModel)):
        config = kind.config_class(**HF, intermediate_size=96)
        folder = tmp_path / str(number)
        draw(kind(config)).save_pretrained(folder)
        settings = json.loads((folder / "config.json").read_text())
        del settings["layer_norm_eps"]
        (folder / "config.json").write_text(json.dumps(settings))
        assert vitreous.load(folder).config.norm_eps == config.layer_norm_eps


def test_huggingface_multi_label(tmp_path: Path) -> None:
    """`problem_type` decides between softmax and sigmoid."""
    config = hf_vit(num_labels=7, problem_type="multi_label_classification")
    draw(transformers.ViTForImageClassification(config)).save_pretrained(tmp_path / "in")
    ours = vitreous.load(tmp_path / "in")
    assert ours.multi_label
    vitreous.save(ours, tmp_path / "out", to="huggingface")
    back = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "out")
    assert back.config.problem_type == "multi_label_classification"
    assert vitreous.load(tmp_path / "out").multi_label


@pytest.mark.parametrize(("processor", "resize"), [("CLIPFeatureExtractor", 48), ("ViTFeatureExtractor", (48, 48))])
def test_huggingface_size_as_one_number(processor: str, resize: Any, tmp_path: Path) -> None:
    """One number means the short side for some image processors and a square for others."""
    draw(PEERS["classifier"]()).save_pretrained(tmp_path)
    settings = {"feature_extractor_type": processor, "size": 48, "do_center_crop": True, "crop_size": 32}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    assert vitreous.load(tmp_path).preprocessing.resize == resize


def test_huggingface_preprocessing_and_labels(tmp_path: Path) -> None:
    model = draw(vitreous.create("Ti/16", depth=1, num_classes=3, gelu="erf", norm_eps=1e-12, resample="hf"))
    model.labels = ("ant", "bee", "cat")
    for preprocessing in (
        vitreous.Preprocessing(224, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6)),
        vitreous.Preprocessing(224, 256, "bicubic", crop="down"),
        vitreous.Preprocessing(224, (250, 260), "lanczos", crop="down"),
    ):
        model.preprocessing = preprocessing
        vitreous.save(model, tmp_path / "out", to="huggingface")
        back = vitreous.load(tmp_path / "out")
        assert (back.preprocessing, back.labels) == (preprocessing, model.labels)
        peer = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "out")
        assert peer.config.id2label == {0: "ant", 1: "bee", 2: "cat"}
        processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "out")
        picture = images(3, 300, 401).mul(60).add(128).clamp(0, 255).to(torch.uint8)
        theirs = processor(picture, return_tensors="pt").pixel_values[0]
        ours = back.preprocessing(torchvision.transforms.functional.to_pil_image(picture))
        assert ours.shape == theirs.shape
        assert (ours - theirs).abs().mean() < 2 / 255  # torchvision rounds differently from Pillow


def test_huggingface_dinov2_classifier_is_refused_and_its_features_are_not(tmp_path: Path) -> None:
    peer = draw(transformers.Dinov2ForImageClassification(transformers.Dinov2Config(**HF, num_labels=5)))
    peer.save_pretrained(tmp_path)
    with pytest.raises(vitreous.VitreousError, match="num_classes=0"):
        vitreous.load(tmp_path)
    features = vitreous.load(tmp_path, num_classes=0)
    compare(features, lambda x: peer.dinov2(x).last_hidden_state[:, 0], SIZES)
    assert features.report.ignored["classifier.weight"]
    assert vitreous.load(tmp_path, num_classes=2).config.num_classes == 2


def test_huggingface_cannot_interpolate_a_rectangular_grid_but_we_can(tmp_path: Path) -> None:
    """transformers 5 fails on a rectangular native grid, even at its own size, and with rectangular patches."""
    peer = draw(transformers.ViTForImageClassification(hf_vit(image_size=[16, 40], num_labels=7)))
    peer.save_pretrained(tmp_path / "wide")
    for size in ((16, 40), (32, 64)):
        with pytest.raises(RuntimeError):
            peer(images(1, 3, *size), interpolate_pos_encoding=True)
    ours = vitreous.load(tmp_path / "wide")
    assert ours.config.grid == (2, 5)
    compare(ours, lambda x: peer(x).logits, [(16, 40)])
    assert ours(images(1, 3, 32, 64)).shape == (1, 7)

    tall = draw(transformers.ViTForImageClassification(hf_vit(patch_size=(8, 16), num_labels=7)))
    tall.save_pretrained(tmp_path / "tall")
    with pytest.raises(TypeError):
        tall(images(1, 3, 48, 48), interpolate_pos_encoding=True)
    ours = vitreous.load(tmp_path / "tall")
    assert ours.config.grid == (4, 2)
    compare(ours, lambda x: tall(x).logits, [(32, 32)])
    assert ours(images(1, 3, 48, 48)).shape == (1, 7)


def test_huggingface_masked_autoencoder_without_its_decoder(tmp_path: Path) -> None:
    config = transformers.ViTMAEConfig(
        **HF,
        intermediate_size=96,
        mask_ratio=0.0,
        decoder_num_hidden_layers=1,
        decoder_hidden_size=32,
        decoder_intermediate_size=32,
        decoder_num_attention_heads=2,
    )
    peer = draw(transformers.ViTMAEForPreTraining(config))
    peer.save_pretrained(tmp_path)
    ours = vitreous.load(tmp_path)
    assert any("decoder" in name for name in ours.report.ignored)
    noise = torch.arange(16.0).expand(2, -1)  # keep the order of the patches
    compare(ours, lambda x: peer.vit(x, noise=noise).last_hidden_state[:, 0], [(32, 32)])


# ---------------------------------------------------------------- DINOv2's own names


def dinov2_state(peer: nn.Module) -> dict[str, Tensor]:
    """Return the state dict of a Hugging Face DINOv2 under the names of its authors."""
    mine = peer.state_dict()
    state = {
        "cls_token": mine["embeddings.cls_token"],
        "pos_embed": mine["embeddings.position_embeddings"],
        "mask_token": mine["embeddings.mask_token"],
        "patch_embed.proj.weight": mine["embeddings.patch_embeddings.projection.weight"],
        "patch_embed.proj.bias": mine["embeddings.patch_embeddings.projection.bias"],
        "norm.weight": mine["layernorm.weight"],
        "norm.bias": mine["layernorm.bias"],
    }
    if "embeddings.register_tokens" in mine:
        state["register_tokens"] = mine["embeddings.register_tokens"]
    for i in range(2):
        theirs, block = f"encoder.layer.{i}", f"blocks.{i}"
        for part in ("weight", "bias"):
            state[f"{block}.norm1.{part}"] = mine[f"{theirs}.norm1.{part}"]
            state[f"{block}.norm2.{part}"] = mine[f"{theirs}.norm2.{part}"]
            state[f"{block}.attn.qkv.{part}"] = torch.cat([mine[f"{theirs}.attention.{n}_proj.{part}"] for n in "qkv"])
            state[f"{block}.attn.proj.{part}"] = mine[f"{theirs}.attention.o_proj.{part}"]
            if f"{theirs}.mlp.gate_proj.{part}" in mine:
                gated = [mine[f"{theirs}.mlp.{n}_proj.{part}"] for n in ("gate", "up")]
                state[f"{block}.mlp.w12.{part}"] = torch.cat(gated)
                state[f"{block}.mlp.w3.{part}"] = mine[f"{theirs}.mlp.down_proj.{part}"]
            else:
                state[f"{block}.mlp.fc1.{part}"] = mine[f"{theirs}.mlp.fc1.{part}"]
                state[f"{block}.mlp.fc2.{part}"] = mine[f"{theirs}.mlp.fc2.{part}"]
        for n in "12":
            state[f"{block}.ls{n}.gamma"] = mine[f"{theirs}.layer_scale{n}.lambda1"]
    return state


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("kind", ["dinov2", "dinov2-swiglu", "registers", "registers-swiglu"])
def test_dinov2_in_and_out(kind: str, chunked: bool, tmp_path: Path) -> None:
    peer = draw(PEERS[kind]())
    state = dinov2_state(peer)
    saved = state
    if chunked:
        inner = {k.replace("blocks.0.", "blocks.0.0.").replace("blocks.1.", "blocks.1.1."): v for k, v in state.items()}
        heads = {"dino_head.mlp.0.weight": torch.zeros(3, 3), "ibot_head.last_layer.weight": torch.zeros(3)}
        saved = {"teacher": {f"backbone.{k}": v for k, v in inner.items()} | heads, "epoch": 3}
    torch.save(saved, tmp_path / "in.pth")
    ours = vitreous.load(tmp_path / "in.pth", heads=4)
    assert ours.report.dialect == "dinov2"
    sizes = SIZES if "registers" in kind else [(32, 32)]  # without registers, its resampling policy differs
    compare(ours, lambda x: peer(x).last_hidden_state[:, 0], sizes)
    vitreous.convert(tmp_path / "in.pth", tmp_path / "out.pth", "dinov2", heads=4)
    identical(state, torch.load(tmp_path / "out.pth", weights_only=True))
    vitreous.convert(tmp_path / "in.pth", tmp_path / "native.safetensors", "native", heads=4)
    vitreous.convert(tmp_path / "native.safetensors", tmp_path / "again.pth", "dinov2")
    identical(state, torch.load(tmp_path / "again.pth", weights_only=True))


# ---------------------------------------------------------------- what the peers do not show


def test_attention_maps_with_fused_attention_compared_with_huggingface(tmp_path: Path) -> None:
    """transformers 5 returns no maps with fused attention; its eager attention is the reference."""
    fused = draw(transformers.ViTModel(hf_vit(), add_pooling_layer=False))
    fused.save_pretrained(tmp_path)
    x = images(2, 3, 32, 32)
    with torch.no_grad():
        assert not fused(x, output_attentions=True).attentions
        slow = transformers.ViTModel.from_pretrained(tmp_path, add_pooling_layer=False, attn_implementation="eager")
        theirs = slow.eval()(x, output_attentions=True).attentions
        ours = vitreous.load(tmp_path).attention(x, [0, 1])
    for mine, reference in zip(ours, theirs, strict=True):
        assert relative_error(mine, reference) <= TOLERANCE


def test_attention_maps_with_fused_attention_compared_with_timm(tmp_path: Path) -> None:
    peer = draw(timm.create_model("vit_base_patch16_224", **SMALL))
    x = images(2, 3, 32, 32)
    assert peer.blocks[0].attn.fused_attn
    with torch.no_grad(), pytest.raises((RuntimeError, KeyError, AssertionError, StopIteration)):
        timm.utils.AttentionExtract(peer)(x)["blocks.0.attn.softmax"]
    for block in peer.blocks:
        block.attn.fused_attn = False
    with torch.no_grad():
        theirs = timm.utils.AttentionExtract(peer)(x)
        ours = vitreous.load(timm_folder(tmp_path / "in", peer, SMALL)).attention(x, [0, 1])
    for mine, reference in zip(ours, theirs.values(), strict=True):
        assert relative_error(mine, reference) <= TOLERANCE


def test_dinov2_with_a_rectangular_grid(tmp_path: Path) -> None:
    """DINOv2's own code fails here. Hugging Face resamples the square in the forward pass, with our policy."""
    peer = draw(PEERS["registers"]())
    peer.save_pretrained(tmp_path)
    ours = vitreous.load(tmp_path, image_size=(24, 56))
    assert ours.config.grid == (3, 7)
    compare(ours, lambda x: peer(x).last_hidden_state[:, 0], [(24, 56)])
