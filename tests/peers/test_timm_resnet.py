"""timm's BiT with the same weights: a pre-activation ResNet whose max-pool is padded with zeros."""

import re
from functools import partial

import pytest
import torch

from helpers import draw, images, outputs, relative_error
from vitreous.models import BiT, BiTConfig

layers = pytest.importorskip("timm.layers")
resnetv2 = pytest.importorskip("timm.models.resnetv2")


def their_name(ours: str) -> str:
    name = re.sub(r"^stages\.(\d+)\.(\d+)\.", r"stages.\1.blocks.\2.", ours.removeprefix("backbone."))
    return name.replace("conv_proj", "downsample.conv").replace("head.", "head.fc.")


def test_bit_at_every_size() -> None:
    model = draw(BiT(BiTConfig(blocks=(2, 1, 2, 1), num_classes=7, pool_border="zeros")))
    peer = resnetv2.ResNetV2(
        layers=(2, 1, 2, 1),
        num_classes=7,
        stem_type="fixed",
        conv_layer=partial(layers.StdConv2d, eps=1e-10),
        norm_layer=partial(layers.GroupNormAct, num_groups=32),
    ).eval()
    state = {their_name(name): tensor for name, tensor in model.state_dict().items()}
    state["head.fc.weight"] = state["head.fc.weight"][..., None, None]  # a 1 x 1 convolution there
    peer.load_state_dict(state)
    for size in ((64, 64), (63, 97), (17, 40)):
        x = images(2, 3, *size)
        with torch.no_grad():
            reference = peer(x)
        assert relative_error(outputs(model, x), reference) <= 1e-5
