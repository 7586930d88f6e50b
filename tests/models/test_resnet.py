"""BiT, both orders."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from helpers import draw, images, outputs
from vitreous import BiT, BiTConfig, ResNetConfig, VitreousError
from vitreous.models.resnet import StdConv, same_pad

SMALL: dict[str, Any] = {"blocks": (1, 2), "width_factor": 0.5, "num_classes": 7}


@pytest.mark.parametrize("activation", ["pre", "post"])
@pytest.mark.parametrize("stem", ["imagenet", "small"])
def test_the_contracts(activation: str, stem: str) -> None:
    model = draw(BiT(BiTConfig(**SMALL, activation=activation, stem=stem)))
    x = images(2, 3, 40, 52)
    with torch.no_grad():
        assert model(x).shape == (2, 7)
        assert model.features(x).shape == (2, 256)
        first, last = model.intermediates(x, [0, -1])
        cells = (10, 13) if stem == "imagenet" else (40, 52)
        assert first.shape == (2, 128, *cells)
        assert last.shape == (2, 256, -(-cells[0] // 2), -(-cells[1] // 2))
        assert last.shape[2:] == model.config.grid_at((40, 52))
        torch.testing.assert_close(last.mean((2, 3)), model.features(x))
        assert (last >= 0).all()  # behind a ReLU in both orders
    with pytest.raises(VitreousError, match="use -2 to 1"):
        model.intermediates(x, [2])


@pytest.mark.parametrize("activation", ["pre", "post"])
@pytest.mark.parametrize("size", [(33, 47), (64, 65), (31, 30), (5, 2)])
def test_any_size(activation: str, size: tuple[int, int]) -> None:
    config = BiTConfig(**SMALL, activation=activation)
    model = draw(BiT(config))
    (last,) = model.intermediates(images(1, 3, *size), [-1])
    assert last.shape[2:] == config.grid_at(size)


@pytest.mark.parametrize(("n", "kernel", "stride"), [(224, 7, 2), (57, 7, 2), (56, 3, 2), (55, 3, 2), (14, 1, 2)])
def test_same_padding_is_tensorflows(n: int, kernel: int, stride: int) -> None:
    """Output ceil(n / stride); the total padding split with the odd pixel behind."""
    padded = same_pad(torch.ones(1, 1, n, n), kernel, stride)
    out = -(-n // stride)
    total = max((out - 1) * stride + kernel - n, 0)
    assert padded.shape[-1] == n + total
    front = int((padded[0, 0, padded.shape[2] // 2] == 0).long().argmin())
    assert front == total // 2
    assert F.conv2d(padded, torch.ones(1, 1, kernel, kernel), stride=stride).shape[-1] == out


@pytest.mark.parametrize("activation", ["pre", "post"])
def test_kernels_are_standardised(activation: str) -> None:
    """Scale and shift of a kernel change nothing, so its outputs have the variance of a standard one."""
    config = ResNetConfig(activation=activation)
    conv = StdConv(config, 6, 4, 3)
    x = images(1, 6, 9, 9)
    before = conv(x)
    with torch.no_grad():
        conv.weight.mul_(7).add_(3)
    torch.testing.assert_close(conv(x), before, rtol=1e-2 if activation == "post" else 1e-3, atol=1e-3)


def test_a_post_activation_unit_starts_as_its_shortcut() -> None:
    model = BiT(BiTConfig(**SMALL, activation="post"))
    unit = model.backbone.stages[1][1]  # no projection
    x = images(1, 256, 4, 4).relu()
    torch.testing.assert_close(unit(x), x)
    assert not model.head.weight.any()


def test_activation_checkpointing_gives_the_same_gradients() -> None:
    model = draw(BiT(BiTConfig(**SMALL))).train()
    x = images(2, 3, 64, 64)
    gradients = []
    for flag in (False, True):
        model.checkpoint_activations = flag
        model.zero_grad()
        model(x).square().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, recomputed)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"blocks": (1, 0)}, "BiTConfig.blocks"),
        ({"blocks": (1,) * 5}, "at most 4"),
        ({"width_factor": 0.3}, "BiTConfig.width_factor = 0.3: .* multiple of 0.5"),
        ({"width_factor": 1.001}, "BiTConfig.width_factor"),
        ({"width_factor": float("inf")}, "BiTConfig.width_factor = inf: expected a finite number"),
        ({"blocks": 3}, "BiTConfig.blocks = 3: expected a tuple in which each item is an integer"),
        ({"pool_border": "zeros", "activation": "post"}, "BiTConfig.pool_border"),
        ({"activation": "none"}, "BiTConfig.activation = 'none': expected one of 'pre', 'post'"),
        ({"num_classes": -1}, "BiTConfig.num_classes"),
        ({"channels": 0}, "BiTConfig.channels"),
    ],
)
def test_a_wrong_config_names_the_field(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(VitreousError, match=message):
        BiTConfig(**{**SMALL, **changes})


def test_features_without_a_head() -> None:
    assert outputs(draw(BiT(BiTConfig(**{**SMALL, "num_classes": 0}))), images(1, 3, 32, 32)).shape == (1, 256)


def test_what_the_max_pool_sees_beyond_the_border() -> None:
    """Where the stem's values are negative at the border, padding with zeros wins over them."""
    models = [draw(BiT(BiTConfig(**SMALL, pool_border=border))) for border in ("nothing", "zeros")]
    maps = []
    for model in models:
        stem = model.backbone.stem
        stem.conv.forward = lambda x: -torch.ones(1, 32, 8, 8)
        maps.append(stem(images(1, 3, 16, 16)))
    nothing, zeros = maps
    assert (nothing == -1).all()
    assert (zeros[..., 0, :] == 0).all()
    assert (zeros[..., 1:, 1:] == -1).all()
