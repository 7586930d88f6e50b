"""Resample the positional embeddings of a state dict for another image size."""

import math
from dataclasses import replace

import torch

from vitreous.models.embed import position_shapes, resample
from vitreous.models.resnet import BiTConfig
from vitreous.models.vit import ViTConfig
from vitreous.utils.memory import require_memory
from vitreous.utils.sizes import Size, pair
from vitreous.weights.tensor_map import State

RESAMPLING_COPIES = 4  # copies of the table that are in memory at the same time


def resize(config: ViTConfig | BiTConfig, state: State, image_size: Size) -> tuple[ViTConfig | BiTConfig, State]:
    """Return config and state dict with `image_size` as native size. Learned positions are resampled with the model's
    policy: the model would do the same at every call with images of that size.
    """
    resized = replace(config, image_size=image_size)
    if not isinstance(config, ViTConfig) or not isinstance(resized, ViTConfig) or config.grid == resized.grid:
        return resized, state
    entries = sum(math.prod(shape) for shape in position_shapes(resized).values())
    require_memory(
        RESAMPLING_COPIES * 4 * entries,
        f"the table of positions for images of {' x '.join(map(str, pair(image_size)))} px",
    )
    (rows, cols), (new_rows, new_cols) = config.grid, resized.grid
    state = dict(state)
    if config.position == "learned-1d":
        slots, patches = state["pos_embed"][:, : config.slots], state["pos_embed"][:, config.slots :]
        state["pos_embed"] = torch.cat([slots, resample(patches, config.grid, resized.grid, config.resample)], dim=1)
    elif config.position == "learned-2d":  # each axis is resampled as a grid of one row or one column
        state["pos_embed_x"] = resample(state["pos_embed_x"], (1, cols), (1, new_cols), config.resample)
        state["pos_embed_y"] = resample(state["pos_embed_y"], (rows, 1), (new_rows, 1), config.resample)
    elif config.position == "relative":
        old, new = (2 * rows - 1, 2 * cols - 1), (2 * new_rows - 1, 2 * new_cols - 1)
        state["rel_pos_embed"] = resample(state["rel_pos_embed"], old, new, config.resample)
    return resized, state
