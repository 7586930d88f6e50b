"""A model's weights, laid out for another image size."""

from dataclasses import replace

import torch
from torch import Tensor

from vitreous.models.checks import Size
from vitreous.models.embed import resample
from vitreous.models.resnet import BiTConfig
from vitreous.models.vit import ViTConfig

State = dict[str, Tensor]


def resize(config: ViTConfig | BiTConfig, state: State, image_size: Size) -> tuple[ViTConfig | BiTConfig, State]:
    """The same weights with `image_size` as their native size: learned positions go to its grid, by the model's policy.

    What the model would do at that size on every call, done once; further training starts from there.
    """
    resized = replace(config, image_size=image_size)
    if not isinstance(config, ViTConfig) or not isinstance(resized, ViTConfig) or config.grid == resized.grid:
        return resized, state
    (rows, cols), (new_rows, new_cols) = config.grid, resized.grid
    state = dict(state)
    if config.position == "learned-1d":
        slots, places = state["pos_embed"][:, : config.slots], state["pos_embed"][:, config.slots :]
        state["pos_embed"] = torch.cat([slots, resample(places, config.grid, resized.grid, config.resample)], dim=1)
    elif config.position == "learned-2d":  # one axis is the other with a single cell across
        state["pos_embed_x"] = resample(state["pos_embed_x"], (1, cols), (1, new_cols), config.resample)
        state["pos_embed_y"] = resample(state["pos_embed_y"], (rows, 1), (new_rows, 1), config.resample)
    elif config.position == "relative":
        old, new = (2 * rows - 1, 2 * cols - 1), (2 * new_rows - 1, 2 * new_cols - 1)
        state["rel_pos_embed"] = resample(state["rel_pos_embed"], old, new, config.resample)
    return resized, state
