"""What must hold for every model, not for the ones somebody thought of."""

from typing import Any

import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save

from helpers import SMALL_RESNET, draw, images, outputs
from vitreous import ResNetConfig, VisionTransformer, ViTConfig, VitreousError

anything: dict[str, st.SearchStrategy[Any]] = {
    "image_size": st.sampled_from([16, 32, (16, 24), (40, 16)]),
    "patch_size": st.sampled_from([8, 4, (8, 4), (4, 8)]),
    "channels": st.integers(1, 4),
    "width": st.sampled_from([12, 16, 24, 30]),
    "depth": st.integers(1, 3),
    "heads": st.sampled_from([1, 2, 3]),
    "mlp_dim": st.sampled_from([None, 8, 20]),
    "pool": st.sampled_from(["token", "gap", "map", "none"]),
    "class_token": st.sampled_from([None, True, False]),
    "registers": st.integers(0, 2),
    "final_norm": st.sampled_from(["before-pool", "after-pool"]),
    "representation_size": st.sampled_from([None, 6]),
    "num_classes": st.sampled_from([0, 5]),
    "head_bias": st.sampled_from([0.0, -10.0]),
    "position": st.sampled_from(["learned-1d", "learned-2d", "relative", "sincos-1d", "sincos-2d", "none"]),
    "position_at": st.sampled_from([None, "stem", "every-layer", "every-layer-shared"]),
    "position_slots": st.sampled_from([None, "patches", "class", "all"]),
    "resample": st.sampled_from(["google", "timm", "hf", "torchvision", "dino", "dinov2", "dinov2-registers"]),
    "mlp": st.sampled_from(["gelu", "swiglu"]),
    "gelu": st.sampled_from(["tanh", "erf"]),
    "norm_eps": st.sampled_from([1e-6, 1e-12]),
    "qkv_bias": st.booleans(),
    "qk_norm": st.booleans(),
    "layer_scale": st.sampled_from([None, 0.1]),
    "dropout": st.sampled_from([0.0, 0.1]),
    "attention_dropout": st.sampled_from([0.0, 0.1]),
    "stochastic_depth": st.sampled_from([0.0, 0.1]),
    "backbone": st.sampled_from([None, None, SMALL_RESNET, ResNetConfig((), 0.5, "post", "small")]),
    "remainder": st.sampled_from(["error", "crop"]),
}
fields = st.fixed_dictionaries(anything)
few = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
many = settings(few, max_examples=150)


def sensible(settings: dict[str, Any]) -> ViTConfig:
    """The config, or another draw where there is none."""
    try:
        return ViTConfig(**settings)
    except VitreousError:
        assume(False)
        raise


@given(fields)
@many
def test_a_config_works_or_is_refused_by_name(settings: dict[str, Any]) -> None:
    """Whatever the combination: a state dict that survives saving and loading, or a message that names a field."""
    try:
        config = ViTConfig(**settings)
    except VitreousError as error:
        named = str(error).split(" = ")[0]
        assert named.removeprefix("ViTConfig.") in settings
        return
    model = draw(VisionTransformer(config))
    copy = VisionTransformer(config).eval()
    copy.load_state_dict(load(save(model.state_dict())))
    x = images(2, config.channels, *config.image_size)
    expected = outputs(model, x)
    assert expected.isfinite().all()
    assert torch.equal(outputs(copy, x), expected)
    rows, cols = config.grid
    assert model.intermediates(x, [-1])[0].shape == (2, config.width, rows, cols)
    model.train()(x).sum().backward()


@given(fields, st.integers(2, 4))
@few
def test_images_in_a_batch_do_not_influence_each_other(settings: dict[str, Any], batch: int) -> None:
    config = sensible(settings)
    model = draw(VisionTransformer(config))
    x = images(batch, config.channels, *config.image_size)
    together = outputs(model, x)
    apart = torch.cat([outputs(model, image[None]) for image in x])
    torch.testing.assert_close(together, apart, rtol=1e-4, atol=1e-4)
    x[0] += 1
    torch.testing.assert_close(outputs(model, x)[1:], together[1:], rtol=1e-4, atol=1e-4)


@given(fields, st.randoms(use_true_random=False))
@few
def test_without_positions_the_order_of_patches_is_lost(settings: dict[str, Any], random: Any) -> None:
    """position="none" and GAP: shuffling the patches of the image leaves the logits."""
    changes = {"position": "none", "pool": "gap", "backbone": None, "position_at": None, "position_slots": None}
    config = sensible(settings | changes)
    model = draw(VisionTransformer(config))
    (rows, cols), (h, w) = config.grid, config.patch_size
    x = images(2, config.channels, rows * h, cols * w)
    patches = x.unflatten(2, (rows, h)).unflatten(4, (cols, w)).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
    order = list(range(rows * cols))
    random.shuffle(order)
    shuffled = patches[:, order].unflatten(1, (rows, cols)).permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)
    torch.testing.assert_close(outputs(model, shuffled), outputs(model, x), rtol=1e-4, atol=1e-4)


@given(fields, st.integers(1, 5), st.integers(1, 5))
@few
def test_any_size_at_call_time(settings: dict[str, Any], rows: int, cols: int) -> None:
    config = sensible(settings)
    model = draw(VisionTransformer(config))
    stride = config.backbone.stride if config.backbone else 1
    h, w = (p * stride for p in config.patch_size)
    x = images(1, config.channels, rows * h, cols * w)
    tokens, grid = model.tokens(x)
    assert (grid, tokens.shape[1]) == ((rows, cols), config.prefix + rows * cols)
    assert outputs(model, x).isfinite().all()
