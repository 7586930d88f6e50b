"""Masked-patch prediction, appendix B.1.2 of the ViT paper: the model, and which patches are corrupted.

    x'_i = [mask], x_j E or x_i E      for each corrupted patch i: 80%, 10% with j another patch of the image, 10%
    y_i  = W LN(z_L^i) + b             the prediction, from the output token of the same patch

The embeddings are replaced before positions are added. The encoder is a `VisionTransformer` without a head.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vitreous.errors import VitreousError
from vitreous.models.init import reset_head_
from vitreous.models.vit import VisionTransformer, ViTConfig
from vitreous.utils import random_keys

MASKED, MOVED = 0.8, 0.1  # shares of the corrupted patches: the mask token, the embedding of another patch
MASK_STD = 0.02  # of the initial mask token


class Corruption(NamedTuple):
    """The corrupted patches of a batch."""

    patches: Tensor  # (B, M) int64: the corrupted patches of each image, in order
    sources: Tensor  # (B, N) int64: for each patch, the patch whose embedding it gets; N: the mask token


def corrupted_count(patches: int, ratio: float) -> int:
    """Number of corrupted patches of an image: `ratio` of them, rounded, at least one."""
    return max(1, round(ratio * patches))


def draw_corruption(keys: Tensor, patches: int, ratio: float) -> Corruption:
    """Draw the corruption of each image from its key (B,). It does not depend on the other images of the batch.

    The patches with the smallest draws are corrupted. Each of them is independently replaced by the mask token with
    probability 0.8, by another patch of the same image with probability 0.1 (all others are equally likely, corrupted
    or not), or kept.
    """
    if patches < 2:
        raise VitreousError(f"masked patches: the image has {patches} patch, and at least two are needed")
    order = random_keys.uniform(keys, "corrupted patches", patches).argsort(dim=1, stable=True)
    corrupted = order[:, : corrupted_count(patches, ratio)].sort(dim=1).values
    action = random_keys.uniform(keys, "corruption", patches)
    place = torch.arange(patches, device=keys.device)
    other = (random_keys.uniform(keys, "other patch", patches) * (patches - 1)).long().clamp(max=patches - 2)
    other = other + (other >= place)  # any patch but the own one
    drawn = torch.where(action < MASKED, patches, torch.where(action < MASKED + MOVED, other, place))
    sources = place.expand(len(keys), -1).scatter(1, corrupted, drawn.gather(1, corrupted))
    return Corruption(corrupted, sources)


class MaskedPatchModel(VisionTransformer):
    """An encoder without a head, with a mask token and a linear layer that predicts the corrupted patches.

    `model(images)` returns predictions (B, M, outputs), within `keyed_corruption`. The parameters of the encoder have
    the names that they have in a `VisionTransformer`.
    """

    keys: Tensor | None = None  # one per image of the batch, within `keyed_corruption`

    def __init__(self, config: ViTConfig, outputs: int, ratio: float):
        check_maskable(config)
        super().__init__(config)
        self.ratio = ratio
        self.mask_token = nn.Parameter(torch.empty(1, config.width))
        self.patch_head = nn.Linear(config.width, outputs)
        if not self.mask_token.is_meta:
            nn.init.normal_(self.mask_token, std=MASK_STD)
            reset_head_(self.patch_head, 0.0)

    def corruption(self, images: Tensor) -> Corruption:
        """Return the corrupted patches of these images, on their device."""
        if self.keys is None or len(self.keys) != len(images):
            raise VitreousError(f"masked patches: {len(images)} images need one key each: use `keyed_corruption`")
        rows, cols = self.config.grid_at((images.shape[2], images.shape[3]))
        drawn = draw_corruption(self.keys, rows * cols, self.ratio)  # for a model on MPS, keys are on the CPU
        return Corruption(*(indices.to(images.device) for indices in drawn))

    def forward(self, images: Tensor) -> Tensor:
        """Predictions (B, M, outputs) of the corrupted patches."""
        patches, sources = self.corruption(images)
        width = self.config.width

        def corrupt(x: Tensor) -> Tensor:
            embeddings = torch.cat([x, self.mask_token.to(x.dtype).expand(len(x), 1, -1)], dim=1)
            return embeddings.gather(1, sources[..., None].expand(-1, -1, width))

        x, _ = self.encode(images, corrupt=corrupt)
        x = x[:, self.config.prefix :].gather(1, patches[..., None].expand(-1, -1, width))
        predictions: Tensor = self.patch_head(self.fc_norm(self.norm(x)))  # one of the norms is the identity
        return predictions

    def encoder(self) -> VisionTransformer:
        """The encoder as a model of its own that shares the parameters. The other parameters are its `extras`."""
        with torch.device("meta"):
            encoder = VisionTransformer(self.config)
        state = self.state_dict()
        encoder.extras = {name: state.pop(name) for name in patch_tensors(state)}
        encoder.load_state_dict(state, assign=True)
        encoder.preprocessing, encoder.report = self.preprocessing, self.report
        return encoder


def patch_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that only a `MaskedPatchModel` has."""
    return {name: tensor for name, tensor in tensors.items() if name.startswith(("mask_token", "patch_head."))}


def from_encoder(encoder: VisionTransformer, ratio: float) -> MaskedPatchModel:
    """The model whose `encoder()` this is, with copies of its parameters."""
    tensors = {**encoder.state_dict(), **patch_tensors(encoder.extras or {})}
    if "patch_head.bias" not in tensors or "mask_token" not in tensors:
        raise VitreousError("the checkpoint has no mask token or no layer that predicts patches")
    model = MaskedPatchModel(encoder.config, len(tensors["patch_head.bias"]), ratio)
    model.load_state_dict(tensors)
    model.preprocessing = encoder.preprocessing
    return model.to(encoder.patch_embed.proj.weight.device).eval()


@contextmanager
def keyed_corruption(model: nn.Module, keys: Tensor) -> Iterator[None]:
    """Draw the corrupted patches of a `MaskedPatchModel` from `keys`, one per image of the batch, until the context
    ends. Other models are not changed."""
    if not isinstance(model, MaskedPatchModel):
        yield
        return
    before, model.keys = model.keys, keys
    try:
        yield
    finally:
        model.keys = before


def check_maskable(config: object) -> None:
    """Raise unless masking the patch embeddings of this model hides the pixels of these patches, and all of its
    parameters are trained."""
    if not isinstance(config, ViTConfig):
        raise VitreousError("masked patches: the model has no patches; use a ViT")
    for is_wrong, problem in (
        (config.backbone is not None, "a hybrid: the backbone sees pixels of neighbouring patches; use a ViT"),
        (config.pool not in ("token", "gap"), f"pool = {config.pool!r}: it would not be trained; use token or gap"),
        (config.representation_size is not None, "representation_size: it would not be trained; leave it out"),
        (config.grid == (1, 1), "the image has 1 patch, and at least two are needed"),
        (config.num_classes != 0, "num_classes: the model has no head during this pre-training"),
    ):
        if is_wrong:
            raise VitreousError(f"masked patches: {problem}")
