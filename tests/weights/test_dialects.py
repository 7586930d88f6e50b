"""Every dialect, read and written: the same outputs, bit-identical weights, and a note on everything that is lost."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import Tensor

import vitreous
from helpers import FIXTURES, SMALL_RESNET, draw, images, oracle, outputs, relative_error, tiny_vit
from vitreous import BiTConfig, VitreousError, VitreousWarning
from vitreous.models.zoo import build_model
from vitreous.weights.containers import open_tensors
from vitreous.weights.dialect_names import DialectName
from vitreous.weights.dialects import DIALECTS
from vitreous.weights.load import read_checkpoint

DIALECT_NAMES = get_args(DialectName)
ORACLES = {  # and the dialects that can represent them without a change
    "google_vit_token_prelogits": {"google", "big-vision"},
    "google_vit_gap_linen": {"google", "big-vision"},
    "google_hybrid_r": {"google"},
    "google_hybrid_stem_only": {"google"},
    "bv_gap_sincos": {"big-vision"},
    "bv_map_learn": {"big-vision"},
    "bit_v2_small": {"bit"},
    "dino_vit": {"dino", "dinov2"},
}


def target(folder: Path, dialect: str) -> Path:
    return folder / f"as-{dialect}{''.join(DIALECTS[dialect].suffixes[:1])}"


def tensors(path: Path) -> dict[str, Tensor]:
    opened = open_tensors(path / "model.safetensors" if path.is_dir() else path)
    return {name: opened[name] for name in opened}


def identical(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    for name, tensor in a.items():
        assert (tensor.dtype, tensor.shape) == (b[name].dtype, b[name].shape), name
        assert torch.equal(tensor, b[name]), name


def reference(folder: Path, name: str) -> tuple[Path, dict[str, Any]]:
    """Write an oracle's weights as its own program would, and return the options to load them."""
    parameters, _ = oracle(name)
    if name == "dino_vit":
        torch.save({key: torch.from_numpy(array) for key, array in parameters.items()}, folder / "reference.pth")
        return folder / "reference.pth", {"heads": 3}
    np.savez(folder / "reference.npz", **parameters)
    return folder / "reference.npz", {}


def agrees(path: Path, name: str, **options: Any) -> None:
    """Check that a file gives the oracle's outputs at all of its sizes."""
    _, facts = oracle(name)
    model = vitreous.load(path, **options)
    sizes = [key.removeprefix("input_") for key in facts if key.startswith("input_")]
    for size in sizes:
        x = torch.from_numpy(facts[f"input_{size}"])
        x, expected = (
            (x, facts[f"cls_{size}"])
            if name == "dino_vit"
            else (
                x.permute(0, 3, 1, 2),
                facts[f"logits_{size}"],
            )
        )
        assert relative_error(outputs(model, x), expected) <= 1e-5


@pytest.mark.parametrize("name", ORACLES)
def test_an_oracle_through_every_dialect_that_can_represent_it(name: str, tmp_path: Path) -> None:
    source, options = reference(tmp_path, name)
    agrees(source, name, **options)
    carried = set()
    for dialect in DIALECT_NAMES:
        try:
            vitreous.convert(source, target(tmp_path, dialect), dialect, **options)
        except VitreousError:  # another test checks the message
            assert not target(tmp_path, dialect).exists()
            continue
        carried.add(dialect)
        read_back = options if dialect in ("dino", "dinov2") else {}
        agrees(target(tmp_path, dialect), name, **read_back)
        again = target(tmp_path / "again", dialect)
        again.parent.mkdir(exist_ok=True)
        vitreous.convert(target(tmp_path, dialect), again, dialect, **read_back)
        identical(tensors(target(tmp_path, dialect)), tensors(again))
    assert carried == ORACLES[name] | {"native"}


@pytest.mark.parametrize("name", ["google_vit_token_prelogits", "google_hybrid_r", "bv_map_learn", "bit_v2_small"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_round_trip_through_the_native_dialect_is_bit_identical(name: str, dtype: str, tmp_path: Path) -> None:
    parameters, _ = oracle(name)
    if dtype == "bfloat16":
        parameters = {k: (a.view(np.uint32) >> 16).astype(np.uint16).view("V2") for k, a in parameters.items()}
    else:
        parameters = {k: a.astype(dtype) for k, a in parameters.items()}
    np.savez(tmp_path / "in.npz", **parameters)
    own = "big-vision" if name.startswith("bv") else "bit" if name.startswith("bit") else "google"
    vitreous.convert(tmp_path / "in.npz", tmp_path / "ours.safetensors", "native")
    vitreous.convert(tmp_path / "ours.safetensors", tmp_path / "out.npz", own)
    with np.load(tmp_path / "in.npz") as before, np.load(tmp_path / "out.npz") as after:
        assert set(before.files) == set(after.files)
        for key in before.files:
            assert before[key].dtype == after[key].dtype
            assert before[key].tobytes() == after[key].tobytes()
            assert before[key].shape == after[key].shape


PLAIN = {"gelu": "erf", "norm_eps": 1e-6}
OURS = {  # a model that each dialect can represent, with the special features of the dialect
    "google": {"representation_size": 24},
    "big-vision": {"pool": "map"},
    "timm": {**PLAIN, "resample": "timm", "pool": "gap", "final_norm": "after-pool", "registers": 2, "layer_scale": 0.1,
             "class_token": True, "position_slots": "all"},
    "huggingface": {"gelu": "tanh", "norm_eps": 1e-5, "resample": "hf", "qkv_bias": False},
    "torchvision": {**PLAIN, "resample": "torchvision", "representation_size": 24},
    "dino": {**PLAIN, "resample": "dino", "num_classes": 0},
    "dinov2": {**PLAIN, "resample": "dinov2-registers", "num_classes": 0, "registers": 3, "mlp": "swiglu",
               "layer_scale": 1e-5},
    "native": {"position": "relative", "qk_norm": True, "backbone": SMALL_RESNET, "patch_size": 1, "image_size": 64},
}  # fmt: skip


@pytest.mark.parametrize("dialect", OURS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_our_models_survive_every_dialect(dialect: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = tiny_vit(**OURS[dialect]).to(dtype)
    path = target(tmp_path, dialect)
    vitreous.save(model, path, to=dialect)
    back = vitreous.load(path, heads=3 if dialect in ("torchvision", "dino", "dinov2") else None, dtype=None)
    assert back.report.dialect == dialect
    identical(dict(model.state_dict()), dict(back.state_dict()))
    scale = replace(back.config, layer_scale=model.config.layer_scale)  # its initial value is not stored
    assert scale == model.config


@pytest.mark.parametrize(
    ("stem", "activation", "border"),
    [
        *((stem, activation, "nothing") for stem in ("small", "imagenet") for activation in ("pre", "post")),
        ("imagenet", "pre", "zeros"),  # the one max-pool whose border matters
    ],
)
def test_bit_survives_its_dialects(stem: str, activation: str, border: str, tmp_path: Path) -> None:
    config = BiTConfig(
        blocks=(2, 1), width_factor=0.5, stem=stem, activation=activation, pool_border=border, num_classes=5
    )
    model = draw(build_model(config))
    for dialect in ("bit", "native"):
        vitreous.save(model, target(tmp_path, dialect), to=dialect)
        back = vitreous.load(target(tmp_path, dialect))
        assert back.config == config
        identical(dict(model.state_dict()), dict(back.state_dict()))
    with pytest.raises(VitreousError, match="timm cannot represent a BiT: write it as bit or native"):
        vitreous.save(model, tmp_path / "x", to="timm")


CANNOT = [
    ("timm", {"norm_eps": 1e-12}, "norm_eps = 1e-12"),
    ("timm", {"representation_size": 8}, "representation_size = 8"),
    ("timm", {"resample": "google"}, "resample = 'google'"),
    ("timm", {"position": "sincos-2d"}, "position = 'sincos-2d'"),
    ("huggingface", {"pool": "gap", "class_token": True}, "pool = 'gap'"),
    ("huggingface", {"resample": "timm"}, "resample = 'timm'"),
    ("torchvision", {"gelu": "tanh"}, "gelu = 'tanh'"),
    ("torchvision", {"norm_eps": 1e-5}, "norm_eps = 1e-05"),
    ("torchvision", {"image_size": (32, 64)}, "image_size = (32, 64)"),
    ("dino", {"num_classes": 3}, "num_classes = 3"),
    ("google", {"gelu": "erf"}, "gelu = 'erf'"),
    ("google", {"pool": "map", "class_token": False}, "pool = 'map'"),
    ("google", {"final_norm": "after-pool", "pool": "gap", "class_token": False}, "final_norm = 'after-pool'"),
    ("google", {"registers": 1}, "registers = 1"),
    ("big-vision", {"class_token": True, "pool": "gap"}, "class_token = True"),
    ("timm", {"position_at": "every-layer"}, "position_at = 'every-layer'"),
    ("dinov2", {"qk_norm": True}, "qk_norm = True"),
    *(
        (dialect, {"attention": "axial"}, "attention = 'axial'")
        for dialect in ("timm", "huggingface", "torchvision", "dino", "dinov2", "google", "big-vision")
    ),
]
UNREADABLE = ("representation_size = 8", "position_at = 'every-layer'")  # the remaining tensors have the wrong shapes
BASE: dict[str, dict[str, Any]] = {
    "timm": {**PLAIN, "resample": "timm"},
    "huggingface": {**PLAIN, "resample": "hf"},
    "torchvision": {**PLAIN, "resample": "torchvision"},
    "dino": {**PLAIN, "resample": "dino", "num_classes": 0},
    "dinov2": {**PLAIN, "resample": "dinov2", "num_classes": 0},
    "google": {},
    "big-vision": {"position_slots": "patches"},
}


@pytest.mark.parametrize(("dialect", "change", "named"), CANNOT)
def test_unsupported_settings_are_named(dialect: str, change: dict[str, Any], named: str, tmp_path: Path) -> None:
    path = target(tmp_path, dialect)
    vitreous.save(tiny_vit(**BASE[dialect]), path, to=dialect)  # without the change it is supported
    before = tensors(path)
    model = tiny_vit(**{**BASE[dialect], **change})
    with pytest.raises(VitreousError, match="cannot represent") as error:
        vitreous.save(model, path, to=dialect)
    lines = [line.strip() for line in str(error.value).splitlines()[1:]]
    assert any(line.startswith(named) for line in lines)
    assert len([line for line in lines if " = " in line]) == 1, lines
    identical(before, tensors(path))  # nothing was written
    if named in UNREADABLE:
        with pytest.raises(VitreousError, match="cannot represent this model, and the rest of it could not be loaded"):
            vitreous.save(model, path, to=dialect, force=True)
        identical(before, tensors(path))
        return
    with pytest.warns(VitreousWarning, match="cannot represent"):
        vitreous.save(model, path, to=dialect, force=True)
    vitreous.load(path, heads=3, image_size=model.config.image_size)


@pytest.mark.parametrize(
    ("dialect", "fields", "note"),
    [
        ("big-vision", {"position_slots": "class"}, "position is added to the token"),
        ("timm", {**BASE["timm"], "registers": 2, "position_slots": "class"}, "position is added to the token"),
        ("google", {"position_slots": "patches"}, "zeros are written for it"),
        ("torchvision", {**BASE["torchvision"], "position_slots": "patches"}, "zeros are written for it"),
        ("huggingface", {**BASE["huggingface"], "position_slots": "patches"}, "zeros are written for it"),
        ("dinov2", {**BASE["dinov2"], "position_slots": "patches"}, "zeros are written for it"),
        ("google", {"qkv_bias": False}, "no biases: zeros"),
        ("torchvision", {**BASE["torchvision"], "qkv_bias": False}, "no biases: zeros"),
    ],
)
def test_equivalent_settings_are_accepted(dialect: str, fields: dict[str, Any], note: str, tmp_path: Path) -> None:
    model = tiny_vit(**fields)
    notes = vitreous.save(model, target(tmp_path, dialect), to=dialect)
    assert any(note in line for line in notes)
    back = vitreous.load(target(tmp_path, dialect), heads=3)
    for size in (32, 48):
        x = images(1, 3, size, size)
        torch.testing.assert_close(outputs(back, x), outputs(model, x))


def test_the_native_dialect_stores_everything(tmp_path: Path) -> None:
    model = tiny_vit(
        dropout=0.1, stochastic_depth=0.2, head_bias=-10.0, remainder="crop", position="learned-2d",
        backbone=SMALL_RESNET, patch_size=1, image_size=(64, 96), channels=1,
    )  # fmt: skip
    model.labels = ("één", "två", "三", "4", "5", "6", "7")
    model.preprocessing = vitreous.Preprocessing((64, 96), 70, "lanczos", mean=(0.1,), std=(0.2,))
    vitreous.save(model, tmp_path / "x.safetensors")
    back = vitreous.load(tmp_path / "x.safetensors")
    assert (back.config, back.labels, back.preprocessing) == (model.config, model.labels, model.preprocessing)
    x = images(2, 1, 65, 97)
    torch.testing.assert_close(outputs(back, x), outputs(model, x))
    vitreous.save(back, tmp_path / "y.safetensors")
    assert (tmp_path / "x.safetensors").read_bytes() == (tmp_path / "y.safetensors").read_bytes()


def test_the_origin_is_stored(tmp_path: Path) -> None:
    vitreous.convert(FIXTURES / "bit_v2_small.npz", tmp_path / "a.safetensors", "native")
    vitreous.convert(tmp_path / "a.safetensors", tmp_path / "b.safetensors", "native")
    origin = vitreous.load(tmp_path / "b.safetensors").report.origin
    assert origin == {"source": "bit_v2_small.npz", "dialect": "bit"}


def test_guesses_are_stored(tmp_path: Path) -> None:
    model = draw(vitreous.create("Ti/16", depth=1, image_size=32, num_classes=3, **PLAIN, resample="timm"))
    torch.save(model.state_dict(), tmp_path / "x.pth")
    notes = vitreous.convert(tmp_path / "x.pth", tmp_path / "x.safetensors", "native")
    assert len(notes) == 1  # one sentence; guesses that can cost accuracy come first
    places = [notes[0].index(word) for word in ("preprocessing:", "heads: 3", "pool:", "GELU:")]
    assert places == sorted(places)
    native = vitreous.load(tmp_path / "x.safetensors").report
    assert native.notes == ()  # it was reported when the file was converted
    assert "guess: heads: 3" in str(native)
    assert native.guesses == vitreous.load(tmp_path / "x.pth").report.guesses
    vitreous.convert(tmp_path / "x.safetensors", tmp_path / "again.safetensors", "native")
    assert vitreous.load(tmp_path / "again.safetensors").report.guesses == native.guesses
    assert "preprocessing" not in vitreous.load(tmp_path / "x.safetensors", preprocessing="deit").report.guesses


def test_a_config_json_of_another_program_is_reported(tmp_path: Path) -> None:
    """Tensors with timm's names, and a config.json of another program in the same folder."""
    model = tiny_vit(**PLAIN, resample="timm", width=64, heads=1)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text('{"model_type": "rotary_vit"}')
    with pytest.raises(VitreousError, match="model_type = 'rotary_vit', but these are not the tensor names"):
        vitreous.load(tmp_path)
    (tmp_path / "config.json").write_text('{"learning_rate": 3}')
    assert any("config.json" in note and "not used" in note for note in vitreous.load(tmp_path).report.notes)


def test_the_mask_token_is_kept(tmp_path: Path) -> None:
    model = tiny_vit(**BASE["dinov2"], layer_scale=0.1)
    state = {**model.state_dict(), "mask_token": images(1, 48)}
    torch.save(state, tmp_path / "in.pth")
    vitreous.save(vitreous.load(tmp_path / "in.pth", heads=3), tmp_path / "ours.safetensors")
    vitreous.save(vitreous.load(tmp_path / "ours.safetensors"), tmp_path / "out.pth", to="dinov2")
    identical(state, tensors(tmp_path / "out.pth"))


def test_labels_that_do_not_fit_are_not_written(tmp_path: Path) -> None:
    model = tiny_vit()
    model.labels = ("ant", "bee")
    with pytest.raises(VitreousError, match="2 labels for 7 classes"):
        vitreous.save(model, tmp_path / "x.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_bit_has_no_heads() -> None:
    with pytest.raises(VitreousError, match="heads = 3: this is a BiT"):
        vitreous.load(FIXTURES / "bit_v2_small.npz", heads=3)


@pytest.mark.parametrize(
    "option",
    [
        {"device": "foo"},
        {"device": 3.5},
        {"device": "cuda:77"},
        {"dtype": "float16"},
        {"dtype": torch.int8},
        {"num_classes": "3"},
        {"num_classes": -1},
        {"preprocessing": 3},
        {"image_size": "x"},
        {"heads": "x"},
    ],
)
def test_invalid_options(option: dict[str, Any]) -> None:
    with pytest.raises(VitreousError, match=next(iter(option))):
        vitreous.load(FIXTURES / "google_vit_gap_linen.npz", **option)


# ---------------------------------------------------------------- what load can be asked for

PRELOGITS = FIXTURES / "google_vit_token_prelogits.npz"


def test_a_new_head_is_zero_and_drops_the_pre_logits_layer() -> None:
    model = vitreous.load(PRELOGITS, num_classes=5)
    assert (model.config.num_classes, model.config.representation_size) == (5, None)
    assert model.head.weight.shape == (5, 48)
    assert not model.head.weight.any()
    assert not model.head.bias.any()
    rule = "dropped by num_classes=5"
    dropped = ("head/kernel", "head/bias", "pre_logits/kernel", "pre_logits/bias")
    assert all(model.report.ignored[f"params/{name}"] == rule for name in dropped)
    same = vitreous.load(PRELOGITS, num_classes=7)
    assert not same.head.weight.any()  # also if the number of classes is the same


def test_zero_classes_give_features() -> None:
    _, facts = oracle("bv_map_learn")
    model = vitreous.load(FIXTURES / "bv_map_learn.npz", num_classes=0)
    x = torch.from_numpy(facts["input_32x32"]).permute(0, 3, 1, 2)
    assert relative_error(outputs(model, x), facts["pre_logits_32x32"]) <= 1e-5
    kept = vitreous.load(PRELOGITS, num_classes=0)
    assert outputs(kept, images(1, 3, 32, 32)).shape == (1, 40)
    bit = vitreous.load(FIXTURES / "bit_v2_small.npz", num_classes=0)
    assert outputs(bit, images(1, 3, 64, 64)).shape == (1, 256)


def test_device_and_dtype() -> None:
    assert {p.dtype for p in vitreous.load(PRELOGITS).parameters()} == {torch.float32}
    assert {p.dtype for p in vitreous.load(PRELOGITS, dtype=torch.bfloat16).parameters()} == {torch.bfloat16}
    assert all(p.is_meta for p in vitreous.load(PRELOGITS, device="meta").parameters())
    model = vitreous.load(PRELOGITS)
    assert not model.training
    assert all(p.requires_grad for p in model.parameters())


def test_strict_or_not(tmp_path: Path) -> None:
    model = tiny_vit(**PLAIN, resample="timm")
    state = model.state_dict()
    lost = state.pop("blocks.1.norm2.weight")
    state["surprise.weight"] = torch.ones(3)
    torch.save(state, tmp_path / "x.pth")
    with pytest.raises(VitreousError, match=r"(?s)- blocks.1.norm2.weight.*\+ surprise.weight \(3,\)"):
        vitreous.load(tmp_path / "x.pth", heads=3)
    with pytest.warns(VitreousWarning, match="lacks 1 tensors"):
        back = vitreous.load(tmp_path / "x.pth", heads=3, strict=False)
    assert (back.report.missing, back.report.unexpected) == (("blocks.1.norm2.weight",), ("surprise.weight",))
    assert torch.equal(back.blocks[1].norm2.weight, torch.ones_like(lost))  # the initial value of a norm
    assert "missing, initialised at random: 'blocks.1.norm2.weight'" in str(back.report)


def test_heads(tmp_path: Path) -> None:
    model = draw(vitreous.create("Ti/16", depth=1, heads=6, image_size=32, num_classes=3, **PLAIN, resample="timm"))
    torch.save(model.state_dict(), tmp_path / "x.pth")
    guessed = vitreous.load(tmp_path / "x.pth")
    assert guessed.config.heads == 3
    assert "heads: 3, the usual number" in guessed.report.notes[0]
    told = vitreous.load(tmp_path / "x.pth", heads=6)
    assert "heads" not in told.report.guesses
    x = images(1, 3, 32, 32)
    assert torch.equal(outputs(told, x), outputs(model, x))
    assert not torch.equal(outputs(guessed, x), outputs(model, x))
    with pytest.raises(VitreousError, match="must divide the width"):
        vitreous.load(tmp_path / "x.pth", heads=5)
    torch.save(tiny_vit(**PLAIN).state_dict(), tmp_path / "y.pth")
    with pytest.raises(VitreousError, match="the number of heads, and 48 is not a usual width: set heads="):
        vitreous.load(tmp_path / "y.pth")
    with pytest.raises(VitreousError, match="heads = 2, but the file has 3"):
        vitreous.load(PRELOGITS, heads=2)


@pytest.mark.parametrize("prefix", ["", "module.", "backbone.", "module.backbone.", "_orig_mod."])
@pytest.mark.parametrize("wrapper", [(), ("teacher",), ("model",), ("state_dict",)])
def test_dino_under_wrappers_and_prefixes(prefix: str, wrapper: tuple[str, ...], tmp_path: Path) -> None:
    parameters, _ = oracle("dino_vit")
    content: dict[str, Any] = {f"{prefix}{name}": torch.from_numpy(array) for name, array in parameters.items()}
    if "backbone" in prefix:
        content[f"{prefix.replace('backbone.', '')}head.mlp.0.weight"] = torch.zeros(4, 48)
    for key in wrapper:
        content = {key: content, "epoch": 3, "student": {"x": torch.zeros(1)}}
    torch.save(content, tmp_path / "x.pth")
    agrees(tmp_path / "x.pth", "dino_vit", heads=3)
    report = read_checkpoint(tmp_path / "x.pth", heads=3).report
    assert report.dialect == "dino"
    if "backbone" in prefix:
        assert "the projection head of self-supervised training" in report.ignored.values()
    if wrapper:
        assert report.ignored["epoch"] == f"not under {wrapper[0]!r}"


def test_a_requested_size_also_changes_the_preprocessing(tmp_path: Path) -> None:
    model = vitreous.load(PRELOGITS, image_size=(48, 24))
    assert model.config.grid == (6, 3)
    assert model.preprocessing.size == (48, 24)
    vitreous.save(model, tmp_path / "x.safetensors")
    back = vitreous.load(tmp_path / "x.safetensors")
    identical(dict(model.state_dict()), dict(back.state_dict()))
    assert (back.config, back.preprocessing) == (model.config, model.preprocessing)


def test_dinov2_at_a_requested_size(tmp_path: Path) -> None:
    model = draw(vitreous.create("DINOv2-S/14", depth=1))
    vitreous.save(model, tmp_path / "x.pth", to="dinov2")
    for asked, shown in ((None, 224), (518, 518), (504, 504)):
        assert vitreous.load(tmp_path / "x.pth", image_size=asked).preprocessing.size == (shown, shown)


def test_assumed_preprocessing_is_that_of_the_reader(tmp_path: Path) -> None:
    bit = draw(build_model(BiTConfig(blocks=(1,), width_factor=0.5, image_size=128, num_classes=2)))
    waves = tiny_vit(position="sincos-2d", pool="gap")
    cropped = tiny_vit(image_size=35, remainder="crop", pool="gap")
    for model, dialect in ((bit, "bit"), (waves, "big-vision"), (cropped, "google")):
        notes = vitreous.save(model, target(tmp_path, dialect), to=dialect)
        back = vitreous.load(target(tmp_path, dialect))
        assert any(note.endswith(f"will assume {back.preprocessing}") for note in notes)
    assert any("remainder = 'crop'" in note for note in notes)


def test_preprocessing_by_name(tmp_path: Path) -> None:
    model = vitreous.load(PRELOGITS, preprocessing="deit")
    assert (model.preprocessing.size, model.preprocessing.resize) == ((32, 32), 37)
    assert model.preprocessing.mean == (0.485, 0.456, 0.406)
    with pytest.raises(VitreousError, match="no preprocessing is called 'dait': expected one of google, augreg, deit"):
        vitreous.load(PRELOGITS, preprocessing="dait")
    own = vitreous.Preprocessing(32, 40)
    assert vitreous.load(PRELOGITS, preprocessing=own).preprocessing == own


def test_no_notes_without_a_reason() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = vitreous.load(PRELOGITS).report
    assert (report.missing, report.unexpected, report.notes) == ((), (), ())
    assert len(report.used) == len(oracle("google_vit_token_prelogits")[0])
