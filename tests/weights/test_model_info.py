"""What a model says of itself, after somebody has changed it."""

import pytest
import torch
from torch import nn

from helpers import tiny_vit
from vitreous import VitreousError
from vitreous.weights.model_info import content_hash, labels_of


def test_names_are_those_of_the_head_that_the_model_has() -> None:
    """A model of ImageNet with a head of three classes does not answer with the first three of ImageNet."""
    model = tiny_vit(num_classes=1000)
    assert len(labels_of(model) or ()) == 1000
    model.head = nn.Linear(48, 3)
    assert labels_of(model) is None
    model.labels = ("ant", "bee", "cat")
    assert labels_of(model) == model.labels
    model.head = nn.Linear(48, 4)
    with pytest.raises(VitreousError, match="4 classes and 3 names"):
        labels_of(model)


def test_a_changed_model_has_another_hash() -> None:
    """Features are cached by it: those of the plain model are not the answer for one with a hook."""
    model = tiny_vit()
    plain = content_hash(model)
    assert content_hash(tiny_vit()) == plain
    model.blocks[0].compile(backend="eager")
    assert content_hash(model) == plain
    handle = model.blocks[0].register_forward_hook(lambda module, inputs, output: 2 * output)
    assert len({plain, content_hash(model), content_hash(model)}) == 3
    handle.remove()
    assert content_hash(model) == plain
    with torch.no_grad():
        model.pos_embed[0, 0, 0] += 1
    assert content_hash(model) != plain
