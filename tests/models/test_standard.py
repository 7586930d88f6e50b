"""How a model differs from the one that its config describes."""

import functools
from collections.abc import Callable
from dataclasses import replace
from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitreous
from helpers import SMALL_RESNET, draw, tiny_vit
from vitreous import BiTConfig, ViTConfig, VitreousError, accelerate, cost
from vitreous.models import BiT
from vitreous.models.standard import difference, differences, unwrapped
from vitreous.models.vit import Attention, Mlp, VisionTransformer

STANDARD: dict[str, Callable[[], nn.Module]] = {
    "plain": tiny_vit,
    "everything": lambda: tiny_vit(layer_scale=0.1, pool="map", representation_size=6, registers=2, qk_norm=True),
    "hybrid": lambda: tiny_vit(backbone=SMALL_RESNET, patch_size=1, stochastic_depth=0.2),
    "BiT": lambda: draw(BiT(BiTConfig((1, 1), width_factor=0.5, num_classes=3))),
}


@pytest.mark.parametrize("made", STANDARD.values(), ids=STANDARD)
def test_a_model_as_it_was_built_has_none(made: Callable[[], nn.Module]) -> None:
    model = made()
    assert list(differences(model)) == []
    model.to(torch.float64).train().requires_grad_(False)
    model.labels, model.checkpoint_activations, model.note = ("a",), True, "something else"
    assert list(differences(model)) == []


def own_forward(self: Any, x: Any) -> Any:
    return x


class Wrapper(nn.Module):
    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, *arguments: Any) -> Any:
        return self.inner(*arguments)


def hide(model: Any) -> None:
    vars(model.blocks[0])["mlp"] = lambda x: x  # found before the module of that name


def reorder(model: Any) -> None:
    model.blocks._modules = dict(reversed(model.blocks._modules.items()))


def set_(path: str, value: Any) -> Callable[[Any], None]:
    """`value` is made of what was there, if it is a function."""

    def change(model: Any) -> None:
        *above, last = path.split(".")
        parent = model.get_submodule(".".join(above))
        made = value(getattr(parent, last)) if callable(value) and not isinstance(value, nn.Module) else value
        setattr(parent, last, made)

    return change


CHANGES: dict[str, tuple[Callable[[Any], object], str, str]] = {
    "hook": (lambda m: m.blocks[0].register_forward_hook(lambda *a: None), "hook", "blocks.0 has hooks"),
    "hook on the model": (lambda m: m.register_forward_pre_hook(lambda *a: None), "hook", "the model has hooks"),
    "wrapped block": (set_("blocks.1", Wrapper), "type", "blocks.1 is of type Wrapper, not Block"),
    "compiled block": (set_("blocks.1", torch.compile), "type", "OptimizedModule"),
    "compiled in place": (lambda m: m.blocks[1].compile(), "compiled", "blocks.1 is compiled"),
    "no block": (lambda m: m.blocks.pop(1), "module", "blocks.1 is missing"),
    "one more": (lambda m: m.blocks.append(nn.Identity()), "module", "blocks.2 is not part"),
    "another order": (reorder, "module", "blocks are in another order"),
    "head of another size": (set_("head", nn.Linear(48, 3)), "attribute", "head.out_features is 3, not 7"),
    "no head": (set_("head", None), "module", "head is missing"),
    "eps": (set_("norm.eps", 0.1), "attribute", "norm.eps is 0.1, not 1e-06"),
    "heads": (set_("blocks.0.attn.heads", 2), "attribute", "blocks.0.attn.heads is 2, not 3"),
    "own forward": (lambda m: set_("norm.forward", MethodType(own_forward, m.norm))(m), "override", "norm.forward"),
    "hidden module": (hide, "override", "blocks.0.mlp is replaced"),
    "no bias": (set_("blocks.0.attn.proj.bias", None), "parameter", "blocks.0.attn.proj.bias is missing"),
    "buffer": (lambda m: m.norm.register_buffer("b", torch.ones(1)), "parameter", "norm has buffers: b"),
    "another config": (lambda m: setattr(m, "config", replace(m.config, gelu="erf")), "attribute", "approximate"),
}


@pytest.mark.parametrize(("change", "kind", "words"), CHANGES.values(), ids=CHANGES)
def test_a_change_is_named(change: Callable[[Any], object], kind: str, words: str) -> None:
    model = tiny_vit()
    change(model)
    found = list(differences(model))
    assert any(one.kind == kind and words in str(one) for one in found), found
    assert words in str(difference(model)) or len(found) > 1
    assert difference(model, allowed=[one.kind for one in found]) is None


def test_shared_parameters() -> None:
    model: Any = tiny_vit()
    model.blocks[1].norm1.weight = model.blocks[0].norm1.weight
    assert difference(model) == "blocks.1.norm1.weight is shared with blocks.0.norm1.weight"
    model = tiny_vit()
    model.blocks[1] = model.blocks[0]
    assert "shared" in str(difference(model))


def test_global_hooks() -> None:
    handle = nn.modules.module.register_module_forward_hook(lambda *a: None)
    try:
        assert difference(tiny_vit()) == "torch has global module hooks"
    finally:
        handle.remove()
    assert difference(tiny_vit()) is None


def wrapped(function: Any) -> Any:
    """A decorated method, which keeps the name and the module of the original."""

    @functools.wraps(function)
    def double(*arguments: Any, **options: Any) -> Any:
        return 2 * function(*arguments, **options)

    return double


class CallableObject:
    def __call__(self, x: Tensor) -> Tensor:
        return x


PATCHES: dict[str, Any] = {
    "another function": lambda old: own_forward,
    "functools.wraps": wrapped,
    "callable object": lambda old: CallableObject(),
    "partialmethod": functools.partialmethod,
}
METHODS = (
    *((Mlp, "forward"), (Attention, "split"), (VisionTransformer, "pool"), (nn.Linear, "forward")),
    *((nn.Linear, "__call__"), (nn.Module, "__call__"), (nn.Module, "_call_impl")),
)


@pytest.mark.parametrize("patch", PATCHES)
@pytest.mark.parametrize(("kind", "name"), METHODS)
def test_a_method_replaced_on_the_class(kind: Any, name: str, patch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which every model then has, freshly built ones too."""
    model = tiny_vit()
    assert difference(model) is None
    monkeypatch.setattr(kind, name, PATCHES[patch](getattr(kind, name)))
    assert difference(model) == f"{kind.__name__}.{name} is replaced"


def test_a_wrapper_with_a_forward_of_its_own() -> None:
    wrapper = nn.DataParallel(tiny_vit())
    assert unwrapped(wrapper) is wrapper.module
    wrapper.forward = lambda images: images  # type: ignore[method-assign]
    for use in (accelerate, cost, lambda model: vitreous.save(model, "never.safetensors")):
        with pytest.raises(VitreousError, match="DataParallel has hooks or a forward of its own"):
            use(wrapper)


def test_a_subclass_and_what_is_no_model() -> None:
    class Mine(type(tiny_vit())):  # type: ignore[misc]
        pass

    assert "type Mine" in str(difference(Mine(ViTConfig(depth=1))))
    assert "type Linear" in str(difference(nn.Linear(2, 2)))


def test_what_torch_puts_around_a_model() -> None:
    model = tiny_vit()
    assert unwrapped(model) is model
    assert unwrapped(torch.compile(nn.DataParallel(model))) is model
    wrapper = Wrapper(model)
    wrapper.module = model
    assert unwrapped(wrapper) is wrapper  # nobody knows what it does
    hooked = torch.compile(model)
    hooked.register_forward_hook(lambda *a: None)
    assert unwrapped(hooked) is hooked
