"""Modified models: every function that runs, saves, inspects or counts a model agrees with what the modified model
computes, or refuses it with an error.

A case is a random config and one modification. The tests do not list which modifications a function accepts; the
reference is the output of the modified model.
"""

import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, Phase, assume, example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import orthogonal, weight_norm
from torch.utils.flop_counter import FlopCounterMode

import vitreous
from configs import bits, repaired, vits
from helpers import draw, images
from vitreous import BiTConfig, VisionTransformer, ViTConfig, VitreousError, inspection
from vitreous.benchmark.synthetic import synthetic_batch, synthetic_engine
from vitreous.fast import accelerate
from vitreous.fast.eligibility import BF16, CPU, FP8, TRAINING, ineligibility_reason
from vitreous.models import vit
from vitreous.models.drop import keyed_drops
from vitreous.models.standard import unwrapped
from vitreous.models.vit import Attention, Mlp
from vitreous.models.zoo import build_model
from vitreous.training.config import Finetuning
from vitreous.training.distributed import World
from vitreous.training.engine import choose_training_path
from vitreous.training.lora import add_adapters_

# ---------------------------------------------------------------- modifications


class Wrapper(nn.Module):
    def __init__(self, module: nn.Module, scale: float = 1.0):
        super().__init__()
        self.module, self.scale = module, scale

    def forward(self, x: Tensor, *rest: Any) -> Tensor:
        output: Tensor = self.scale * self.module(x, *rest)
        return output


class Louder(Mlp):
    def forward(self, x: Tensor) -> Tensor:
        return 1.5 * super().forward(x)


class Sharper(Attention):
    def forward(self, x: Tensor, *rest: Any) -> Tensor:
        return super().forward(2 * x, *rest)


class Averaging(nn.Module):
    """Averages all tokens, with the interface of attention."""

    def forward(self, x: Tensor, *rest: Any) -> Tensor:
        return x.mean(1, keepdim=True).expand_as(x)


def layers(model: Any) -> Any:
    """Return the list of blocks of a ViT, or of units of a BiT stage."""
    return model.blocks if isinstance(model, VisionTransformer) else model.backbone.stages[0]


def a_linear(model: Any) -> nn.Module:
    return model.blocks[-1].mlp.fc1 if isinstance(model, VisionTransformer) else model.head


def a_norm(model: Any) -> Any:
    return model.blocks[0].norm1 if isinstance(model, VisionTransformer) else layers(model)[0].norm1


def replaced(model: Any, name: str, made: Callable[[Any], nn.Module]) -> None:
    model.set_submodule(name, made(model.get_submodule(name)))


def first_layer(model: Any, made: Callable[[Any], Any]) -> None:
    layers(model)[0] = made(layers(model)[0])


def of_class(module: nn.Module, kind: type) -> None:
    module.__class__ = kind


def frozen(model: Any) -> None:
    for p in list(model.parameters())[::2]:
        p.requires_grad_(False)


def one_weight(model: Any) -> None:
    """Share one weight between two layers."""
    if isinstance(model, VisionTransformer):
        model.blocks[-1].norm2.weight = model.blocks[0].norm1.weight
    else:
        layers(model)[0].norm2.weight = layers(model)[0].norm1.weight


def one_block(model: Any) -> None:
    model.blocks = nn.ModuleList([model.blocks[0]] * len(model.blocks))


def adapted(model: Any) -> None:
    add_adapters_(model, Finetuning(lora=2))
    draw(model)


def other_head(model: Any, made: Callable[[int], nn.Module]) -> None:
    width = model.head.in_features if isinstance(model.head, nn.Linear) else a_width(model)
    model.head = made(width)


def a_width(model: Any) -> int:
    config = model.config
    return (config.representation_size or config.width) if isinstance(config, ViTConfig) else config.out_width


def strided(model: Any) -> None:
    norm = a_norm(model)
    norm.weight = nn.Parameter(norm.weight.detach().repeat_interleave(2)[::2])


def activation(model: Any) -> None:
    mlp = model.blocks[0].mlp
    mlp.approximate = "none" if mlp.approximate == "tanh" else "tanh"


def own_forward(model: Any) -> None:
    norm, own = a_norm(model), a_norm(model).forward
    norm.forward = lambda x: 2 * own(x)


def hidden(model: Any) -> None:
    vars(model.blocks[0])["mlp"] = torch.zeros_like


def another_config(model: Any) -> None:
    model.config = replace(model.config, num_classes=model.config.num_classes + 1)


def twice(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    return 2 * output


def scaled(module: nn.Module, inputs: Any) -> Any:
    return (1.5 * inputs[0], *inputs[1:])


def looks(module: nn.Module, inputs: Any, output: Tensor) -> None:
    return None


def eager(module: nn.Module) -> nn.Module:
    compiled: nn.Module = torch.compile(module, backend="eager")  # type: ignore[assignment]
    return compiled


# Names that begin with a part of a ViT are for ViTs only. A returned value replaces the model.
MODIFICATIONS: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda m: None,
    "hook on a layer": lambda m: layers(m)[0].register_forward_hook(twice) and None,
    "hook before a layer": lambda m: layers(m)[0].register_forward_pre_hook(scaled) and None,
    "hook on the model": lambda m: m.register_forward_hook(twice) and None,
    "hook before the model": lambda m: m.register_forward_pre_hook(scaled) and None,
    "hook that looks": lambda m: layers(m)[0].register_forward_hook(looks) and None,
    "attention: hook before": lambda m: m.blocks[0].attn.register_forward_pre_hook(scaled) and None,
    "attention: hook on qkv": lambda m: m.blocks[0].attn.qkv.register_forward_hook(twice) and None,
    "patches: hook": lambda m: m.patch_embed.register_forward_hook(twice) and None,
    "wrapped layer": lambda m: first_layer(m, lambda layer: Wrapper(layer, 1.5)),
    "wrapped model": lambda m: Wrapper(m, 2.0),
    "compiled layer": lambda m: first_layer(m, eager),
    "layer compiled in place": lambda m: layers(m)[0].compile(backend="eager"),
    "compiled model": eager,
    "MLP: subclass": lambda m: of_class(m.blocks[0].mlp, Louder),
    "MLP: nothing": lambda m: replaced(m, "blocks.0.mlp", lambda mlp: nn.Identity()),
    "MLP: another": lambda m: replaced(
        m, "blocks.0.mlp", lambda mlp: nn.Sequential(nn.Linear(mlp.fc2.out_features, mlp.fc2.out_features), nn.ReLU())
    ),
    "MLP: other activation": activation,
    "MLP: hidden by an attribute": hidden,
    "attention: subclass": lambda m: of_class(m.blocks[0].attn, Sharper),
    "attention: another": lambda m: replaced(m, "blocks.0.attn", lambda attn: Averaging()),
    "attention: other heads": lambda m: setattr(m.blocks[0].attn, "heads", 1 if m.config.heads > 1 else 2),
    "attention: no bias": lambda m: setattr(m.blocks[0].attn.proj, "bias", None),
    "other eps": lambda m: setattr(a_norm(m), "eps", 0.5),
    "own forward": own_forward,
    "head of other classes": lambda m: other_head(m, lambda width: nn.Linear(width, 9)),
    "head of two layers": lambda m: other_head(m, lambda width: nn.Sequential(nn.ReLU(), nn.Linear(width, 4))),
    "no head": lambda m: other_head(m, lambda width: nn.Identity()),
    "float64": lambda m: m.double(),
    "float16": lambda m: m.half(),
    "bfloat16": lambda m: m.bfloat16(),
    "blocks: adapters": adapted,
    "frozen": frozen,
    "one weight twice": one_weight,
    "blocks: all the same": one_block,
    "blocks: one less": lambda m: m.blocks.pop(0) and None,
    "blocks: one more": lambda m: m.blocks.append(deepcopy(m.blocks[0])) and None,
    "weight norm": lambda m: weight_norm(a_linear(m)) and None,
    "orthogonal": lambda m: orthogonal(a_linear(m)) and None,
    "pruned": lambda m: prune.l1_unstructured(a_linear(m), "weight", 0.5) and None,
    "strided weight": strided,
    "another config": another_config,
}
FOR_VITS = ("attention", "blocks", "MLP", "patches")
NOT_TRAINED = ("wrapped model", "compiled model", "float64", "float16", "bfloat16")
NARROW = {"float16": torch.float16, "bfloat16": torch.bfloat16}


def possible(config: ViTConfig | BiTConfig, name: str) -> bool:
    """Whether a model of this config can run after the modification."""
    if isinstance(config, BiTConfig):
        return not name.startswith(FOR_VITS)
    return name != "attention: other heads" or not config.qk_norm


def modified(config: ViTConfig | BiTConfig, name: str) -> Any:
    model = draw(build_model(config))
    changed = MODIFICATIONS[name](model)
    return (model if changed is None else changed).eval()


# ---------------------------------------------------------------- the truth


@contextmanager
def attention_in_the_open(calls: list[Tensor]) -> Iterator[None]:
    """Compute attention without the fused kernel, and record its weights."""
    fused = F.scaled_dot_product_attention

    def spelled_out(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
        logits = q @ k.mT / math.sqrt(q.shape[-1])
        weights = (logits if attn_mask is None else logits + attn_mask).softmax(-1)
        if not weights.requires_grad:
            weights.requires_grad_()
        calls.append(weights)
        return weights @ v

    def axial(q: Tensor, k: Tensor, v: Tensor, grid: tuple[int, int], axis: str, dropout: float) -> Tensor:
        places = [(None, None)] * (q.shape[2] - grid[0] * grid[1]) + list(np.ndindex(grid))
        part = 0 if axis == "row" else 1
        mask = [
            [0.0 if None in (i[part], j[part]) or i[part] == j[part] else -math.inf for j in places] for i in places
        ]
        return spelled_out(q, k, v, q.new_tensor(mask))

    regrouped = vit.axial_attention
    vit.axial_attention = axial
    F.scaled_dot_product_attention = spelled_out  # type: ignore[assignment]
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        F.scaled_dot_product_attention = fused
        vit.axial_attention = regrouped


class Truth:
    """Reference outputs of a model for some images, with attention weights."""

    def __init__(self, model: Any, config: ViTConfig | BiTConfig):
        self.config, self.narrow = config, next(model.parameters()).dtype in NARROW.values()
        # Not every CPU supports half precision: such a model runs with the same weights in float32.
        self.plain = deepcopy(model).float() if self.narrow else model
        self.dtype = next(self.plain.parameters()).dtype
        self.x = images(2, config.channels, *vitreous.models.checks.pair(config.image_size))
        with torch.no_grad():
            self.logits = self.plain(self.x.to(self.dtype)).float()

    def attention(self) -> tuple[list[Tensor], Tensor]:
        """Return the attention weights of all layers, with a graph to the logits."""
        calls: list[Tensor] = []
        with attention_in_the_open(calls):
            logits = self.plain(self.x.to(self.dtype))
        return calls, logits


def near(ours: Tensor, truth: Tensor, most: float = 1e-4) -> None:
    assert ours.shape == truth.shape
    scale = truth.abs().max().clamp(min=1e-6)
    assert ((ours.float() - truth.float()).abs().max() / scale).item() < most


def agrees(check: Callable[[], None]) -> bool:
    """Check the result of a function. Return False if it refused the model."""
    try:
        check()
    except VitreousError:
        return False
    return True


# ---------------------------------------------------------------- who has to agree


def runs_fast(model: Any, truth: Truth) -> None:
    run = accelerate(model)
    near(run(truth.x), truth.logits)
    whole: Any = unwrapped(truth.plain)
    with torch.no_grad():
        near(run.features(truth.x), whole.features(truth.x.to(truth.dtype)).float())
        before = [p.clone() for p in model.parameters()]
        for p in model.parameters():
            p.mul_(-2)
        near(run(truth.x), truth.logits)  # it works on a copy
        for p, value in zip(model.parameters(), before, strict=True):
            p.copy_(value)


def is_eligible_only_as_built(model: Any, truth: Truth) -> None:
    """A fast path uses only config and parameters of a model. It must refuse a model that computes something else than
    a new model with these, also in training."""
    if all(ineligibility_reason(model, path) is not None for path in (CPU, BF16, FP8, TRAINING)):
        return
    new = build_model(model.config).to(truth.dtype)
    new.load_state_dict(model.state_dict())
    with torch.no_grad():
        near(new.eval()(truth.x.to(truth.dtype)).float(), truth.logits)
    found = []
    keys = torch.arange(2)
    for one in (truth.plain, new):
        one.train().zero_grad()
        torch.manual_seed(0)  # attention dropout is not keyed
        with keyed_drops(one, keys):
            one(truth.x.to(truth.dtype)).square().sum().backward()
        found.append({name: p.grad for name, p in one.named_parameters(remove_duplicate=False) if p.requires_grad})
    truth.plain.eval()
    for name, gradient in found[0].items():
        near(found[1][name], gradient)


def is_saved(model: Any, truth: Truth) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        try:
            vitreous.save(model, path)
        except VitreousError:
            assert list(Path(folder).iterdir()) == []
            raise
        loaded = vitreous.load(path).float().eval()
        with torch.no_grad():
            near(loaded(truth.x), truth.logits)


def is_counted(model: Any, truth: Truth) -> None:
    found = vitreous.cost(model)
    assert found.parameters == sum(p.numel() for p in model.parameters())
    try:
        meta = deepcopy(unwrapped(model)).float().to("meta")
    except RuntimeError:  # a pruned weight cannot be copied
        return
    with FlopCounterMode(display=False) as counter:
        meta(truth.x[:1].to("meta"))
    assert counter.get_total_flops() == found.flops.total


def shows_attention(model: Any, truth: Truth) -> None:
    found = inspection.attention(model, truth.x)
    calls, _ = truth.attention()
    calls = calls[: len(calls) - (truth.config.pool == "map")]
    near(found.weights, torch.stack([call.detach() for call in calls]))


def shows_rollout(model: Any, truth: Truth) -> None:
    found = inspection.rollout(model, truth.x)
    calls, _ = truth.attention()
    rolled = torch.eye(calls[0].shape[-1], dtype=truth.dtype)
    for weights in calls[: truth.config.depth]:
        rolled = 0.5 * (weights.detach().mean(1) + torch.eye(weights.shape[-1])) @ rolled
    near(found.weights, rolled)
    near(found.pooling, taken(truth, calls))


def taken(truth: Truth, calls: list[Tensor]) -> Tensor:
    """Return the weight of each token in the pooling of the head."""
    config, tokens = truth.config, calls[0].shape[-1]
    share = torch.zeros(2, tokens)
    if config.pool == "map":
        share[:, config.prefix :] = calls[-1].detach().mean(1)[:, 0]
    elif config.pool == "token" or (config.pool == "none" and config.class_token):
        share[:, 0] = 1
    else:
        share[:, config.prefix :] = 1 / (tokens - config.prefix)
    return share


def shows_relevance(model: Any, truth: Truth) -> None:
    try:
        found = inspection.relevance(model, truth.x, top=2)
    except VitreousError as error:
        if "does not depend on the image" not in str(error):
            raise
        found = None
    calls, logits = truth.attention()
    classes = logits.topk(2).indices
    expected = torch.stack([relevance_of(truth, calls, logits, classes[:, place]) for place in range(2)], 1)
    if found is None:
        assert expected.amax(-1).min() < 1e-6  # all contributions are negative
        return
    near(found.probabilities, logits.softmax(-1).gather(1, found.classes).detach())
    assert torch.equal(found.classes, classes)
    for place in range(2):
        near(found.maps[:, place].flatten(1), expected[:, place])


def relevance_of(truth: Truth, calls: list[Tensor], logits: Tensor, classes: Tensor) -> Tensor:
    """Return the relevance of the patches for one class of each image, (B, N)."""
    gradients = torch.autograd.grad(
        logits.gather(1, classes[:, None]).sum(), calls, retain_graph=True, allow_unused=True
    )
    rolled = torch.eye(calls[0].shape[-1], dtype=truth.dtype).expand(2, -1, -1)
    for weights, gradient in list(zip(calls, gradients, strict=True))[: truth.config.depth]:
        if gradient is not None:
            rolled = rolled + (weights.detach() * gradient).clamp(min=0).mean(1) @ rolled
    rolled = rolled - torch.eye(rolled.shape[-1])
    return torch.einsum("bt,btk->bk", taken(truth, calls).to(truth.dtype), rolled)[:, truth.config.prefix :]


def shows_depth(model: Any, truth: Truth) -> None:
    near(inspection.depth_readout(model, truth.x).probabilities[-1], truth.logits.softmax(-1))


def shows_tokens(model: Any, truth: Truth) -> None:
    """The tokens after the last block equal its output, recorded by a hook."""
    found = inspection.tokens.patch_tokens(model, truth.x, -1)
    kept: list[Tensor] = []
    whole: Any = unwrapped(truth.plain)
    last = whole.blocks[-1] if isinstance(whole, VisionTransformer) else whole.backbone
    handle = last.register_forward_hook(lambda module, inputs, output: kept.append(output))
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        truth.plain(truth.x.to(truth.dtype))
    handle.remove()
    out = kept[-1]
    if isinstance(whole, VisionTransformer):
        near(found.flatten(1, 2), out[:, truth.config.prefix :])
    else:
        near(found, out.permute(0, 2, 3, 1))


def shows_filters(model: Any, truth: Truth) -> None:
    """Compared with the response of the patch embedding to single pixels."""
    found = inspection.embedding_filters(model, 4)
    whole: Any = unwrapped(truth.plain)
    height, width = whole.config.patch_size
    pixels = torch.eye(whole.config.channels * height * width, dtype=truth.dtype)
    pixels = pixels.view(-1, whole.config.channels, height, width)
    with torch.no_grad():
        rows = (whole.patch_embed(pixels) - whole.patch_embed(torch.zeros_like(pixels[:1])))[:, 0].T
    power = torch.linalg.svdvals((rows - rows.mean(0)).double()).square()
    near(found.share, (power / power.sum())[:4])


def tools(config: ViTConfig | BiTConfig, narrow: bool) -> dict[str, Callable[[Any, Truth], None]]:
    found: dict[str, Callable[[Any, Truth], None]] = {
        "accelerate": runs_fast,
        "eligibility": is_eligible_only_as_built,
        "save": is_saved,
        "cost": is_counted,
    }
    if narrow:  # functions that run the model itself would run it in half precision
        return found
    found["tokens"] = shows_tokens
    if isinstance(config, ViTConfig):
        found |= {"attention": shows_attention, "rollout": shows_rollout}
        if config.num_classes and config.pool != "none":
            found |= {"relevance": shows_relevance, "depth": shows_depth}
        if config.backbone is None:
            found |= {"filters": shows_filters}
    return found


# ---------------------------------------------------------------- the tests

PLAIN = repaired({"width": 32, "heads": 2, "depth": 2, "num_classes": 5, "channels": 3})
few = settings(
    max_examples=4,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],  # show a failing example without shrinking it
    suppress_health_check=list(HealthCheck),
)


def answers(config: ViTConfig | BiTConfig, name: str) -> set[str]:
    """Return the functions that accepted a modified model. All their results are checked."""
    model = modified(config, name)
    truth = Truth(model, config)
    checks = tools(config, truth.narrow)
    return {tool for tool, check in checks.items() if agrees(lambda check=check: check(model, truth))}


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # a warning of torch.compile
@pytest.mark.parametrize("name", MODIFICATIONS)
@given(st.one_of(vits, vits, vits, bits))
@example(PLAIN)
@few
def test_every_function_agrees_with_the_model_or_refuses_it(name: str, config: ViTConfig | BiTConfig) -> None:
    assume(possible(config, name))
    found = answers(config, name)
    if name in ("nothing", "frozen", "hook that looks", "layer compiled in place", "compiled model"):
        assert "accelerate" in found
        assert "cost" in found
    if name in ("nothing", "frozen"):
        assert found == tools(config, narrow=False).keys()


@given(vits)
@example(PLAIN)
@settings(few, max_examples=20)
def test_unmodified_models_take_the_fast_path(config: ViTConfig) -> None:
    """Otherwise the test above would prove nothing, since the plain path always agrees."""
    possible = config.position != "relative" and not config.qk_norm and config.backbone is None
    possible = possible and config.attention == "full"
    assert possible or config != PLAIN
    assert (accelerate(modified(config, "nothing")).path == "packed weights") == possible


def compiled_eagerly(module: nn.Module, **options: Any) -> None:
    """Compile in place with torch's tracer, but without its slow compiler."""
    module._compiled_call_impl = torch.compile(module._call_impl, backend="eager", **options)


def differentiated(model: Any, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    F.cross_entropy(model(x), labels).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # a warning of torch.compile
@pytest.mark.parametrize("name", [name for name in MODIFICATIONS if name not in NOT_TRAINED])
def test_training_gradients_equal_those_of_the_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled as in training; a standard model on a GPU would use fused kernels."""
    model = modified(PLAIN, name).train()
    torch._dynamo.reset()  # torch limits the number of compiled versions
    monkeypatch.setattr(nn.Module, "compile", compiled_eagerly)
    monkeypatch.setattr("vitreous.training.engine.kernels_unavailable_reason", lambda device: None)
    assert (choose_training_path(model, "bf16") == "fused kernels") == (name in ("nothing", "frozen"))
    engine = synthetic_engine(model, 4, (16, 16), "fp32")
    batch = synthetic_batch(model, 4, (16, 16))
    batch.labels.clamp_(max=3)  # the smallest head of these configs
    expected = differentiated(model, (batch.rows / 255 - 0.5) / 0.5, batch.labels)
    engine.compile()
    if not agrees(lambda: engine.step(batch, 0, 4, World()) and None):
        return
    for key, p in model.named_parameters():
        assert (p.grad is None) == (key not in expected)
        if p.grad is not None:
            near(p.grad, expected[key])
