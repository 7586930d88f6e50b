"""The reader of Google's files: every generation of names, and damaged or misnamed files."""

import re
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import vitreous
from helpers import images, oracle, outputs, relative_error, tiny_vit
from vitreous import BiT, VitreousError
from vitreous.models import embed
from vitreous.models.zoo import build_model
from vitreous.weights.checkpoint import Checkpoint
from vitreous.weights.load import read_checkpoint
from vitreous.weights.resize import resize
from vitreous.weights.tensor_map import State

Arrays = dict[str, np.ndarray]


def opened(parameters: Arrays, **options: object) -> Checkpoint:
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "x.npz", **parameters)
        return read_checkpoint(Path(folder) / "x.npz", **options)


def read(parameters: Arrays, **options: object) -> tuple[vitreous.ViTConfig, State]:
    checkpoint = opened(parameters, **options)
    return checkpoint.config, checkpoint.state


def logits(parameters: Arrays, facts: Arrays) -> float:
    config, state = read(parameters)
    model = build_model(config).eval()
    model.load_state_dict(state)
    size = next(key for key in facts if key.startswith("input_")).removeprefix("input_")
    x = torch.from_numpy(facts[f"input_{size}"]).permute(0, 3, 1, 2)
    return relative_error(outputs(model, x), facts[f"logits_{size}"])


def rename(parameters: Arrays, *rules: tuple[str, str]) -> Arrays:
    for pattern, replacement in rules:
        parameters = {re.sub(pattern, replacement, name): array for name, array in parameters.items()}
    return parameters


@pytest.mark.parametrize("prefix", ["", "opt/target/", "params/", "params/img/"])
@pytest.mark.parametrize("name", ["google_vit_token_prelogits", "bit_v2_small", "google_hybrid_r"])
def test_prefixes(prefix: str, name: str) -> None:
    parameters, facts = oracle(name)
    assert logits({prefix + key: array for key, array in parameters.items()}, facts) <= 1e-5


def test_both_numberings_of_one_file() -> None:
    parameters, facts = oracle("google_vit_token_prelogits")
    linen = rename(parameters, ("LayerNorm_2", "LayerNorm_1"), ("Attention_1", "Attention_0"), ("Block_3", "Block_0"))
    assert linen.keys() != parameters.keys()
    assert logits(linen, facts) <= 1e-5


@pytest.mark.parametrize("name", ["bv_gap_sincos", "bv_map_learn"])
def test_scanned_layers(name: str) -> None:
    """One `encoderblock` whose tensors have a leading axis of layers."""
    parameters, facts = oracle(name)
    scanned = {key: array for key, array in parameters.items() if "encoderblock" not in key}
    for key in parameters:
        if "encoderblock_0" in key:
            layers = [parameters[key.replace("_0/", f"_{i}/", 1)] for i in range(2)]
            scanned[key.replace("encoderblock_0", "encoderblock")] = np.stack(layers)
    assert logits(scanned, facts) <= 1e-5


@pytest.mark.parametrize("place", ["Transformer/posembed_input/pos_embedding", "Transformer/pos_embedding"])
def test_older_names_of_positions(place: str) -> None:
    parameters, facts = oracle("bv_map_learn")
    assert logits(rename(parameters, ("^pos_embedding$", place)), facts) <= 1e-5


def test_a_map_head_that_is_not_a_module() -> None:
    parameters, facts = oracle("bv_map_learn")
    assert logits(rename(parameters, ("^MAPHead_0/", "")), facts) <= 1e-5


def test_bit_as_tensorflow_wrote_it() -> None:
    parameters, _ = oracle("bit_v2_small")
    conv = "standardized_conv2d"
    released = rename(
        parameters,
        ("^root_block/conv_root/", f"resnet/root_block/{conv}/"),
        ("^norm-pre-head/", "resnet/group_norm/"),
        (r"^(block\d/unit\d+)/conv_proj/", rf"resnet/\1/a/proj/{conv}/"),
        *((rf"^(block\d/unit\d+)/gn{i}/", rf"resnet/\1/{letter}/group_norm/") for i, letter in enumerate("abc", 1)),
        *((rf"^(block\d/unit\d+)/conv{i}/", rf"resnet/\1/{letter}/{conv}_{i}/") for i, letter in enumerate("abc", 1)),
        ("/group_norm/scale$", "/group_norm/gamma"),
        ("/group_norm/bias$", "/group_norm/beta"),
        ("^head/", "resnet/head/conv2d/"),
    )
    released["resnet/head/conv2d/kernel"] = released["resnet/head/conv2d/kernel"][None, None]
    released = {k: a.reshape(-1) if "group_norm" in k else a for k, a in released.items()}
    assert all(name.startswith("resnet/") for name in released)
    config, state = read(released)
    modern_config, modern_state = read(parameters)
    # The TensorFlow code pads its max-pool with zeros; the oracle is from big_vision, which does not.
    assert (config.pool_border, modern_config.pool_border) == ("zeros", "nothing")
    assert replace(config, pool_border="nothing") == modern_config
    assert all(torch.equal(state[name], modern_state[name]) for name in modern_state)


def test_bit_v1_is_the_hybrids_backbone_with_a_head() -> None:
    parameters, _ = oracle("google_hybrid_r")
    bit = {k: a for k, a in parameters.items() if k.startswith(("conv_root", "gn_root", "block"))}
    bit |= {"head/kernel": np.ones((256, 5), np.float32) / 256, "head/bias": np.zeros(5, np.float32)}
    config, state = read(bit)
    model = build_model(config).eval()
    model.load_state_dict(state)
    assert isinstance(model, BiT)
    assert (config.activation, config.blocks, config.width_factor) == ("post", (1, 1), 0.5)
    hybrid_config, hybrid_state = read(parameters)
    hybrid = build_model(hybrid_config).eval()
    hybrid.load_state_dict(hybrid_state)
    x = images(2, 3, 70, 64)
    with torch.no_grad():
        torch.testing.assert_close(model.features(x), hybrid.backbone(x).mean((2, 3)))
        torch.testing.assert_close(model(x)[:, 0], model.features(x).mean(1))


def test_config_inferred_from_shapes() -> None:
    config, _ = read(oracle("google_vit_token_prelogits")[0])
    assert (config.width, config.depth, config.heads, config.mlp_dim) == (48, 2, 3, 96)
    assert (config.image_size, config.patch_size, config.pool) == ((32, 32), (8, 8), "token")
    assert (config.representation_size, config.num_classes, config.gelu, config.resample) == (40, 7, "tanh", "google")
    config, _ = read(oracle("bv_gap_sincos")[0], image_size=64)
    assert (config.position, config.pool, config.image_size) == ("sincos-2d", "gap", (64, 64))
    config, _ = read(oracle("google_hybrid_stem_only")[0])
    assert config.backbone is not None
    assert (config.backbone.blocks, config.patch_size, config.image_size) == ((), (4, 4), (64, 64))


def test_a_class_token_without_a_position_slot() -> None:
    """big_vision adds positions before the class token."""
    parameters, _ = oracle("google_vit_token_prelogits")
    place = "Transformer/posembed_input/pos_embedding"
    folded = parameters | {"cls": parameters["cls"] + parameters[place][:, :1], place: parameters[place][:, 1:]}
    config, state = read(folded)
    assert (config.position_slots, config.class_token) == ("patches", True)
    model, old = build_model(config).eval(), build_model(read(parameters)[0]).eval()
    model.load_state_dict(state)
    old.load_state_dict(read(parameters)[1])
    x = images(1, 3, 32, 32)
    torch.testing.assert_close(outputs(model, x), outputs(old, x))


def test_a_rectangular_native_grid_needs_image_size() -> None:
    parameters, _ = oracle("google_vit_gap_linen")
    place = "Transformer/posembed_input/pos_embedding"
    oblong = parameters | {place: parameters[place][:, :8]}
    with pytest.raises(VitreousError, match="8 positions are not a square grid"):
        read(oblong)
    with pytest.raises(VitreousError, match="8 positions are not a square grid"):
        read(oblong, image_size=32)
    checkpoint = opened(oblong, image_size=(16, 32))
    assert checkpoint.config.grid == (2, 4)
    assert any("2 x 4" in note for note in checkpoint.report.notes)


def test_dtypes_are_kept() -> None:
    parameters, _ = oracle("google_vit_gap_linen")
    half = {name: array.astype(np.float16) for name, array in parameters.items()}
    assert {t.dtype for t in read(half)[1].values()} == {torch.float16}
    bits = {name: (array.view(np.uint32) >> 16).astype(np.uint16).view("V2") for name, array in parameters.items()}
    state = read(bits)[1]  # bfloat16, as numpy saves it
    assert {t.dtype for t in state.values()} == {torch.bfloat16}
    torch.testing.assert_close(
        state["head.weight"].float(), torch.from_numpy(parameters["head/kernel"].T), rtol=8e-3, atol=0
    )


def test_load_from_a_file(tmp_path: Path) -> None:
    parameters, facts = oracle("google_vit_token_prelogits")
    path = tmp_path / "any name"
    with path.open("wb") as file:
        np.savez(file, **parameters)
    model = vitreous.load(path).eval()
    assert all(p.requires_grad and not p.is_meta for p in model.parameters())
    x = torch.from_numpy(facts["input_48x48"]).permute(0, 3, 1, 2)
    assert relative_error(outputs(model, x), facts["logits_48x48"]) <= 1e-5


QUERY = "Transformer/encoderblock_1/MultiHeadDotProductAttention_1/query"


def test_loading_at_another_size_resamples_the_positions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parameters, facts = oracle("google_vit_token_prelogits")
    model = vitreous.load(broken(tmp_path, parameters), image_size=48).eval()
    assert model.config.image_size == (48, 48)
    monkeypatch.setattr(embed, "resample", lambda *_: pytest.fail("resampled again"))
    x = torch.from_numpy(facts["input_48x48"]).permute(0, 3, 1, 2)
    assert relative_error(outputs(model, x), facts["logits_48x48"]) <= 1e-5


@pytest.mark.parametrize("position", ["learned-1d", "learned-2d", "relative", "sincos-2d"])
@pytest.mark.parametrize("policy", ["google", "timm", "dino"])
def test_resizing_equals_a_call_at_that_size(position: str, policy: str) -> None:
    model = tiny_vit(position=position, resample=policy, registers=1)
    config, state = resize(model.config, model.state_dict(), (48, 24))
    resized = build_model(config).eval()
    resized.load_state_dict(state)
    assert resized.config.grid == (6, 3)
    x = images(2, 3, 48, 24)
    torch.testing.assert_close(outputs(resized, x), outputs(model, x), rtol=1e-4, atol=1e-4)


def test_a_head_of_zeros_is_reported(tmp_path: Path) -> None:
    parameters, _ = oracle("google_vit_token_prelogits")
    parameters["head/kernel"][:] = 0
    with pytest.warns(UserWarning, match="the head is all zeros"):
        vitreous.load(broken(tmp_path, parameters))


def test_mixed_dtypes() -> None:
    parameters, facts = oracle("google_vit_token_prelogits")
    parameters["head/kernel"] = parameters["head/kernel"].astype(np.float64)
    _, state = read(parameters)
    assert state["head.weight"].dtype == torch.float64
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "x.npz", **parameters)
        model = vitreous.load(Path(folder) / "x.npz")
    x = torch.from_numpy(facts["input_32x32"]).permute(0, 3, 1, 2)
    assert relative_error(outputs(model, x), facts["logits_32x32"]) <= 1e-5


def test_the_image_tower_of_a_two_tower_model() -> None:
    parameters, facts = oracle("bv_map_learn")
    towers = {f"params/img/{name}": array for name, array in parameters.items()}
    towers |= {"params/txt/Embed_0/embedding": np.ones((9, 4), np.float32), "params/t": np.ones(1, np.float32)}
    assert logits(towers, facts) <= 1e-5
    report = opened(towers | {"params/b": np.ones(1, np.float32), "opt/step": np.ones(1, np.int64)}).report
    assert set(report.ignored) == {"params/txt/Embed_0/embedding", "params/t", "params/b", "opt/step"}
    assert set(report.ignored.values()) == {"not under params/img/, where the model is"}


def test_the_other_byte_order() -> None:
    parameters, facts = oracle("google_vit_gap_linen")
    assert logits({name: array.astype(">f4") for name, array in parameters.items()}, facts) <= 1e-5


NORM = "Transformer/encoderblock_1/LayerNorm_0"


def six_heads(parameters: Arrays) -> list[tuple[str, tuple[int, ...]]]:
    """Return a state whose second layer has twice as many heads: the same values in another shape."""
    shapes = {(48, 3, 16): (48, 6, 8), (3, 16): (6, 8), (3, 16, 48): (6, 8, 48)}
    return [(k, shapes[a.shape]) for k, a in parameters.items() if "block_1/Multi" in k and a.shape in shapes]


def broken(tmp_path: Path, parameters: Arrays) -> Path:
    path = tmp_path / "broken.npz"
    np.savez(path, **parameters)
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.pop("head/bias"), r"(?s)lacks 1 tensors.*- head/bias"),
        (lambda p: p.pop(f"{NORM}/scale"), r"(?s)lacks 1 tensors.*- Transformer/encoderblock_1/LayerNorm_0/scale"),
        (
            lambda p: p.update({"extra/kernel": np.ones(3, np.float32)}),
            r"(?s)1 of its tensors are unexpected.*\+ extra/kernel \(3,\)",
        ),
        (
            lambda p: p.update({"head/bias": np.ones(9, np.float32)}),
            r"(?s)do not fit.*- head.bias \(7,\).*\+ head/bias",
        ),
        (lambda p: p.update({"embedding/kernel": np.ones((8, 8), np.float32)}), "embedding/kernel has shape"),
        (lambda p: p.update({"cls": np.ones((1, 1, 48), np.int64)}), "cls holds int64"),
        (lambda p: p.update({"pos_embedding": p["cls"]}), "are both pos_embedding"),
        (lambda p: [p.pop(k) for k in list(p) if "encoderblock_0" in k], "have a gap"),
        (
            lambda p: p.update({f"{QUERY}/kernel": np.ones((48, 3, 8), np.float32)}),
            "query/kernel, .* have different",
        ),
        (lambda p: p.pop(f"{QUERY}/kernel"), r"(?s)lacks 1 tensors.*query/kernel"),
        (lambda p: [p.update({k: p[k].reshape(s)}) for k, s in six_heads(p)], "has 6 heads, the first layer 3"),
        (lambda p: p.update({f"{NORM}/scale": np.ones((6, 8), np.float32)}), "do not fit"),
        (lambda p: p.update({"cls": p["cls"].astype(np.longdouble)}), "cls holds float128"),
        (lambda p: p["head/kernel"].__setitem__((0, 0), np.nan), "head/kernel holds 1 of 280 values that are not numb"),
        (lambda p: p["cls"].__setitem__((0, 0, 0), -np.inf), "cls holds 1 of 48 values that are not numbers"),
        (lambda p: p.clear(), "not a checkpoint of any supported format: it contains nothing at all"),
        (
            lambda p: [p.clear(), p.update({"a.weight": np.ones(2)})],
            "of any supported format.* 'a.weight'",
        ),
    ],
)
def test_wrong_contents(change: object, message: str, tmp_path: Path) -> None:
    parameters, _ = oracle("google_vit_token_prelogits")
    change(parameters)
    with pytest.raises(VitreousError, match=message):
        vitreous.load(broken(tmp_path, parameters))


def test_files_of_other_formats(tmp_path: Path) -> None:
    text = tmp_path / "text.npz"
    text.write_text("not a zip")
    single = tmp_path / "single.npz"
    with single.open("wb") as file:
        np.save(file, np.ones(3))
    code = tmp_path / "code.npz"
    np.savez(code, **{"embedding/kernel": np.array([print], dtype=object)})
    for path in (text, single, code, tmp_path, tmp_path / "absent.npz"):
        with pytest.raises(VitreousError, match=re.escape(str(path))):
            vitreous.load(path)
