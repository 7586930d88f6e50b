"""Labels and content hash of a model that was changed."""

import pytest
import torch
from torch import nn

from helpers import tiny_vit
from vitreous import VitreousError
from vitreous.weights.model_info import content_hash, labels_of


def test_labels_belong_to_the_current_head() -> None:
    """An ImageNet model with a new head of three classes does not use the first three ImageNet names."""
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
    """Features are cached by this hash: a model with a hook must not get those of the plain model."""
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
