"""What must hold for every model, not for the ones somebody thought of."""

from typing import Any

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save

from configs import fields, sensible
from helpers import draw, images, outputs
from vitreous import VisionTransformer, ViTConfig, VitreousError

few = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
many = settings(few, max_examples=150)


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
    changes["attention"] = "full"
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
