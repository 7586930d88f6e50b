"""A saved model loads and computes the same outputs; otherwise nothing is written, and the error names the reason."""

import copy
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import vitreous
from helpers import draw, images, outputs, tiny_vit
from vitreous import BiTConfig, Preprocessing, VitreousError, VitreousWarning
from vitreous.models import BiT, VisionTransformer
from vitreous.models.zoo import build_model
from vitreous.training.config import Finetuning
from vitreous.training.lora import add_adapters_

Model = VisionTransformer | BiT
LABELS = ("ant", "bee", "cat", "dog", "elk", "fox", "gnu")


def tiny_bit(**changes: Any) -> BiT:
    fields = {"blocks": (1,), "width_factor": 0.5, "num_classes": 7, "image_size": 32, **changes}
    return draw(build_model(BiTConfig(**fields)))


def round_trip(model: nn.Module, folder: Path, **options: Any) -> Model:
    vitreous.save(model, folder / "x.safetensors", **options)
    return vitreous.load(folder / "x.safetensors", dtype=None)


def refuse(model: nn.Module, folder: Path, message: str, *, force: bool = False, to: Any = "native") -> None:
    with pytest.raises(VitreousError, match=message):
        vitreous.save(model, folder / ("x" if to == "timm" else "x.safetensors"), force=force, to=to)
    assert not list(folder.iterdir())


# ---------------------------------------------------------------- heads


@pytest.mark.parametrize("make", [tiny_vit, tiny_bit])
@pytest.mark.parametrize("classes", [7, 3, 1])
def test_a_new_linear_head_is_saved(make: Callable[[], Model], classes: int, tmp_path: Path) -> None:
    model = make()
    model.head = nn.Linear(model.head.in_features, classes)
    back = round_trip(model, tmp_path)
    assert back.config == replace(model.config, num_classes=classes)
    x = images(2, 3, 32, 32)
    assert torch.equal(outputs(back, x), outputs(model, x))
    assert model.config.num_classes == 7  # saving does not change the model in memory


def test_a_head_may_be_removed_or_added(tmp_path: Path) -> None:
    x = images(2, 3, 32, 32)
    bare = tiny_vit()
    bare.head = nn.Identity()
    back = round_trip(bare, tmp_path)
    assert back.config.num_classes == 0
    assert torch.equal(outputs(back, x), outputs(bare, x))
    features = tiny_vit(num_classes=0, representation_size=10)
    features.head = nn.Linear(10, 4)
    assert torch.equal(outputs(round_trip(features, tmp_path), x), outputs(features, x))


def test_labels_of_other_classes_are_refused(tmp_path: Path) -> None:
    model = tiny_vit()
    model.labels = LABELS[:5]
    model.head = nn.Linear(48, 3)
    refuse(model, tmp_path, "5 labels for 3 classes: set model.labels to .*or to None")
    model.labels = ["ant", "bee", "cat"]
    assert round_trip(model, tmp_path).labels == ("ant", "bee", "cat")


def test_a_replaced_head_of_a_model_with_class_names(tmp_path: Path) -> None:
    """The names belong to the old head: they are dropped with a warning, and names of the new classes are kept."""
    path = tmp_path / "new.safetensors"
    model: Any = vitreous.load("vitreous-mini")
    model.head = nn.Linear(192, 7)
    with pytest.warns(vitreous.VitreousWarning, match="for 7 classes: the old class names are not saved"):
        vitreous.save(model, path)
    again = vitreous.load(path)
    assert again.config.num_classes == 7
    assert again.labels is None
    assert len(model.labels) == 20  # the model in memory is not changed
    model.labels = tuple("abcdefg")
    vitreous.save(model, path)
    assert vitreous.load(path).labels == tuple("abcdefg")


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (nn.Linear(40, 7), r"head.in_features is 40, not 48"),
        (nn.Linear(48, 7, bias=False), "head.bias is missing"),
        (nn.Sequential(nn.Linear(48, 8), nn.Linear(8, 7)), "head is of type Sequential, not Linear"),
    ],
)
def test_other_heads_are_refused_even_by_force(head: nn.Module, message: str, tmp_path: Path) -> None:
    model = tiny_vit()
    model.head = head
    for force in (False, True):
        refuse(model, tmp_path, f"it cannot be saved: {message}.*model.reset_head", force=force)


@pytest.mark.parametrize("classes", [0, 3])
@pytest.mark.parametrize(
    "make", [tiny_vit, tiny_bit, lambda: tiny_vit(representation_size=10), lambda: tiny_bit(head_bias=-4.0)]
)
def test_reset_head_equals_loading_with_num_classes(make: Callable[[], Model], classes: int, tmp_path: Path) -> None:
    model = make().double()
    model.labels, model.multi_label = LABELS, True
    vitreous.save(model, tmp_path / "x.safetensors")
    loaded = vitreous.load(tmp_path / "x.safetensors", num_classes=classes, dtype=torch.float64)
    assert model.reset_head(classes) is model
    assert model.config == loaded.config
    assert (model.labels, model.multi_label) == (None, False)
    assert not model.head.training
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    mine, theirs = model.state_dict(), loaded.state_dict()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    x = images(2, 3, 32, 32).double()
    assert torch.equal(outputs(model, x), outputs(loaded, x))
    vitreous.save(model, tmp_path / "y.safetensors")
    with pytest.warns(VitreousWarning, match="all zeros") if classes else nullcontext():
        assert vitreous.load(tmp_path / "y.safetensors").config == model.config


def test_reset_head_adds_a_head_and_refuses_invalid_arguments(tmp_path: Path) -> None:
    model = tiny_vit(num_classes=0).reset_head(4)
    assert model(images(1, 3, 32, 32)).shape == (1, 4)
    assert model.head.weight.requires_grad
    for wrong in (-1, 2.0, True, "3"):
        with pytest.raises(VitreousError, match="expected 0 or more"):
            model.reset_head(wrong)
    assert model.config.num_classes == 4


# ---------------------------------------------------------------- changes a user can make


def wrap_block(model: Model) -> None:
    model.blocks[0] = torch.compile(model.blocks[0], backend="eager")


def wrap_twice(model: Model) -> None:
    wrap_block(model)
    model.blocks[0]._orig_mod.mlp = torch.compile(model.blocks[0]._orig_mod.mlp, backend="eager")


def compile_in_place(model: Model) -> None:
    model.blocks[0].compile(backend="eager")


def share_parameter(model: Model) -> None:
    model.blocks[1].norm1.weight = model.blocks[0].norm1.weight


def share_block(model: Model) -> None:
    model.blocks[1] = model.blocks[0]


def freeze(model: Model) -> None:
    model.patch_embed.requires_grad_(False)


def make_noncontiguous(model: Model) -> None:
    weight = model.blocks[0].mlp.fc1.weight
    model.blocks[0].mlp.fc1.weight = nn.Parameter(weight.detach().t().contiguous().t())


def mix_dtypes(model: Model) -> None:
    for name, parameter in model.named_parameters():
        parameter.data = parameter.data.double().to(torch.float64 if "norm" in name else torch.float32)


def replace_norm(model: Model) -> None:
    model.blocks[0].norm1 = copy.deepcopy(model.blocks[0].norm2)


def train_mode(model: Model) -> None:
    model.train()
    model.checkpoint_activations = True


def add_attribute(model: Model) -> None:
    model.note = "mine"


HARMLESS = (
    *(wrap_block, wrap_twice, compile_in_place, share_parameter, share_block, freeze, make_noncontiguous, mix_dtypes),
    *(replace_norm, train_mode, add_attribute),
)


@pytest.mark.parametrize("change", HARMLESS, ids=lambda change: change.__name__)
def test_changes_that_a_file_can_represent(change: Callable[[Model], None], tmp_path: Path) -> None:
    model = tiny_vit()
    change(model)
    before = dict(model.named_modules())
    back = round_trip(model, tmp_path).float()
    assert dict(model.named_modules()) == before  # the model itself is unchanged
    assert "_orig_mod" not in "".join(back.state_dict())
    x = images(2, 3, 32, 32)
    assert torch.allclose(outputs(back, x), outputs(model.float().eval(), x), atol=1e-5)


def test_a_compiled_model_is_saved_as_the_plain_one(tmp_path: Path) -> None:
    model = tiny_vit()
    model.labels = LABELS
    back = round_trip(torch.compile(model, backend="eager"), tmp_path)
    assert back.labels == LABELS
    assert torch.equal(back.pos_embed, model.pos_embed)


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def hook(model: Model) -> None:
    model.blocks[0].register_forward_hook(lambda module, inputs, output: 2 * output)


def hook_on_a_wrapper(model: Model) -> None:
    wrap_block(model)
    hook(model)


def replace_forward(model: Model) -> None:
    model.blocks[0].mlp.forward = lambda x: 0 * x


def subclass(model: Model) -> None:
    linear = model.blocks[0].mlp.fc1
    model.blocks[0].mlp.fc1 = Doubled(linear.in_features, linear.out_features)


def other_activation(model: Model) -> None:
    model.blocks[0].mlp.approximate = "none"


def other_epsilon(model: Model) -> None:
    model.norm.eps = 0.1


def other_heads(model: Model) -> None:
    model.blocks[0].attn.heads = 4


def other_config(model: Model) -> None:
    model.config = replace(model.config, pool="gap")


FORCIBLE: dict[Callable[[Model], None], str] = {
    hook: "blocks.0 has hooks",
    replace_forward: "blocks.0.mlp.forward is replaced on the instance",
    subclass: "blocks.0.mlp.fc1 is of type Doubled, not Linear",
    other_activation: "blocks.0.mlp.approximate is 'none', not 'tanh'",
    other_epsilon: "norm.eps is 0.1, not 1e-06",
    other_heads: "blocks.0.attn.heads is 4, not 3",
}


@pytest.mark.parametrize("change", FORCIBLE, ids=lambda change: change.__name__)
@pytest.mark.parametrize("to", ["native", "google"])
def test_changes_that_a_file_cannot_represent_are_named(
    change: Callable[[Model], None], to: Any, tmp_path: Path
) -> None:
    model = tiny_vit()
    change(model)
    path = tmp_path / ("x.npz" if to == "google" else "x.safetensors")
    with pytest.raises(
        VitreousError, match=f"is not the one that its config describes.*{FORCIBLE[change]}.*force=True"
    ):
        vitreous.save(model, path, to=to)
    assert not list(tmp_path.iterdir())
    with pytest.warns(VitreousWarning, match=FORCIBLE[change]):
        vitreous.save(model, path, to=to, force=True)
    vitreous.load(path)


def adapter(model: Model) -> None:
    add_adapters_(model, Finetuning(lora=2))


def parametrize(model: Model) -> None:
    parametrizations.weight_norm(model.blocks[0].mlp.fc1)


def drop_block(model: Model) -> None:
    del model.blocks[1]


def other_block(model: Model) -> None:
    model.blocks[0] = nn.Linear(48, 48)


def buffer(model: Model) -> None:
    model.blocks[0].register_buffer("scale", torch.ones(1))


def more_parameters(model: Model) -> None:
    model.blocks[0].scale = nn.Parameter(torch.ones(1))


def meta(model: Model) -> None:
    model.to("meta")


def integers(model: Model) -> None:
    weight = model.norm.weight.detach().to(torch.int32)
    model.norm.weight = nn.Parameter(weight, requires_grad=False)


def not_a_number(model: Model) -> None:
    with torch.no_grad():
        model.blocks[1].mlp.fc1.weight[0, 0] = float("nan")


def infinite_in_eight_bits(model: Model) -> None:
    model.norm.weight = nn.Parameter(torch.full((48,), float("inf")).to(torch.float8_e5m2), requires_grad=False)


def sparse(model: Model) -> None:
    model.norm.weight = nn.Parameter(model.norm.weight.detach().to_sparse())


IMPOSSIBLE: dict[Callable[[Model], None], str] = {
    adapter: r"blocks.0.attn.qkv is of type LoraLinear, not Linear",
    parametrize: "it cannot be saved",
    hook_on_a_wrapper: "blocks.0 is of type OptimizedModule, not Block",
    drop_block: "blocks.1 is missing",
    other_block: "blocks.0 is of type Linear, not Block",
    more_parameters: "blocks.0.scale is not part of a model with its config",
    meta: "is on the meta device",
    integers: "norm.weight holds int32",
    not_a_number: r"blocks.1.mlp.fc1.weight holds 1 of 9,216 values that are not numbers",
    infinite_in_eight_bits: "norm.weight holds 48 of 48 values that are not numbers",
    sparse: "norm.weight is a torch.sparse_coo, not a plain tensor",
}


@pytest.mark.parametrize("change", IMPOSSIBLE, ids=lambda change: change.__name__)
@pytest.mark.parametrize("force", [False, True])
def test_unsavable_models_are_refused_even_with_force(
    change: Callable[[Model], None], force: bool, tmp_path: Path
) -> None:
    model = tiny_vit()
    change(model)
    refuse(model, tmp_path, IMPOSSIBLE[change], force=force)
    refuse(model, tmp_path, IMPOSSIBLE[change], force=force, to="timm")


def test_a_changed_config_is_refused(tmp_path: Path) -> None:
    model = tiny_vit()
    other_config(model)
    with pytest.raises(VitreousError):
        vitreous.save(model, tmp_path / "x.safetensors", to="timm")
    model = tiny_vit()
    model.config = replace(model.config, norm_eps=0.1)
    refuse(model, tmp_path, r"norm1.eps is 1e-06, not 0.1")
    model.config = replace(tiny_vit().config, image_size=64)
    refuse(model, tmp_path, r"pos_embed is \(1, 17, 48\), not \(1, 65, 48\)", force=True)


def test_a_buffer_is_refused_and_dropped_with_force(tmp_path: Path) -> None:
    model = tiny_vit()
    buffer(model)
    refuse(model, tmp_path, "blocks.0 has buffers: scale")
    with pytest.warns(VitreousWarning, match="buffers"):
        round_trip(model, tmp_path, force=True)


@pytest.mark.parametrize(("model", "name"), [(nn.Linear(3, 3), "Linear"), ("B/16", "'B/16'")])
def test_other_objects_are_refused(model: Any, name: str, tmp_path: Path) -> None:
    refuse(model, tmp_path, f"save: expected a model from vitreous.load or vitreous.create, got {name}")


def test_a_model_in_data_parallel_is_saved_as_the_plain_one(tmp_path: Path) -> None:
    model = tiny_vit()
    model.labels = LABELS
    back = round_trip(nn.DataParallel(model), tmp_path)
    assert back.labels == LABELS
    assert torch.equal(back.pos_embed, model.pos_embed)


# ---------------------------------------------------------------- what travels with a model


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("labels", "abcdefg", "model.labels: expected a list of names"),
        ("labels", tuple(range(7)), "model.labels: expected a list of names"),
        ("labels", {str(i): i for i in range(7)}, "model.labels: expected a list of names"),
        ("labels", LABELS[:3], "3 labels for 7 classes"),
        ("preprocessing", {"size": 32}, "model.preprocessing: expected a Preprocessing, got dict"),
        ("preprocessing", Preprocessing(32, mean=(0.5,), std=(0.5,)), "is for 1 channels, the model takes 3"),
        ("preprocessing", Preprocessing(33), "a size that the model does not take.*33 x 33"),
        ("multi_label", np.bool_(True), "model.multi_label = .*expected True or False"),
        ("multi_label", None, "model.multi_label = None"),
        ("extras", {"other": torch.ones(3)}, "no other names than mask_token"),
        ("extras", {"mask_token": 3}, "mask_token is a int, not a tensor"),
        ("extras", {"mask_token": torch.ones(3, dtype=torch.int64)}, "mask_token holds int64"),
    ],
)
def test_metadata_must_fit_the_model(name: str, value: Any, message: str, tmp_path: Path) -> None:
    model = tiny_vit()
    setattr(model, name, value)
    refuse(model, tmp_path, message, force=True)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_combinations_of_changes(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """If the model is saved, the file computes the same outputs; if it is refused, there is no file."""
    folder = tmp_path_factory.mktemp("mixture")
    fields = {
        "pool": data.draw(st.sampled_from(["token", "gap", "map"])),
        "registers": data.draw(st.sampled_from([0, 2])),
        "layer_scale": data.draw(st.sampled_from([None, 0.1])),
        "representation_size": data.draw(st.sampled_from([None, 10])),
        "num_classes": data.draw(st.sampled_from([0, 7])),
    }
    model = tiny_vit(**fields)
    changes = data.draw(
        st.lists(st.sampled_from([*HARMLESS, *FORCIBLE, *IMPOSSIBLE, other_config, buffer]), max_size=3)
    )
    classes = data.draw(st.sampled_from([None, 0, 4]))
    try:
        for change in changes:
            change(model)
        if classes is not None:
            model.reset_head(classes)
        expected = outputs(model, images(1, 3, 32, 32))
    except Exception:  # two changes with different shapes or types
        return
    path = folder / "x.safetensors"
    try:
        vitreous.save(model, path)
    except VitreousError:
        assert not list(folder.iterdir())
        return
    with pytest.warns(VitreousWarning, match="all zeros") if classes else nullcontext():
        back = vitreous.load(path, dtype=None)
    if {p.dtype for p in model.parameters()} == {torch.float32} and not model.training:
        assert torch.allclose(outputs(back, images(1, 3, 32, 32)), expected, atol=1e-5)


def test_shared_parameters_are_saved_under_all_their_names(tmp_path: Path) -> None:
    model = tiny_vit()
    share_block(model)
    back = round_trip(model, tmp_path)
    assert torch.equal(back.blocks[1].mlp.fc1.weight, model.blocks[0].mlp.fc1.weight)
    x = images(1, 3, 32, 32)
    assert torch.equal(outputs(back, x), outputs(model, x))
