"""Masked-patch pre-training in a run: its model, targets, options and evaluation, and the pictures of the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vitreous.data.loading import EvalLoader
from vitreous.errors import VitreousError
from vitreous.evaluation.metrics import Result
from vitreous.evaluation.progress_bar import Tick
from vitreous.models.masked import (
    Corruption,
    MaskedPatchModel,
    check_maskable,
    corrupted_count,
    draw_corruption,
    keyed_corruption,
)
from vitreous.models.vit import ViTConfig
from vitreous.reports.masked_pictures import MaskedPicture
from vitreous.training.config import TrainConfig
from vitreous.training.distributed import World
from vitreous.training.optim.patch_targets import PatchLoss, PatchTargets, class_colours, cut_patches
from vitreous.utils import random_keys
from vitreous.utils.device import float64_device
from vitreous.utils.import_path import is_user_code
from vitreous.utils.sizes import pair

EVALUATION_SEED = 0  # an image has the same mask in every evaluation, also in other runs
PICTURES = 8  # images in the report
PREDICTION_COPIES = 3  # fp32 tensors of the size of the predictions in a pass: logits, their softmax, gradients
GREY = 127  # of masked patches in the pictures

# Options without effect, or with another objective only; and the values that mean "off".
UNUSED: dict[str, tuple[Any, ...]] = {
    "loss": (None,),
    "label_smoothing": (None, 0.0),
    "class_weights": (None, "none"),
    "mixup": (None, 0.0),
    "cutmix": (None, 0.0),
    "balanced": (False,),
    "head_bias": (None, 0.0),
    "representation_size": (None,),
    "rules": ("ours",),
    "lr_candidates": (None,),
    "lora": (0,),
}


def check_options(config: TrainConfig) -> None:
    """Raise an error for an option that has no effect on the objective of the run."""
    values = config.flat()
    if not config.masks_patches:
        for name in ("patch_target", "mask_ratio"):
            if values[name] != TrainConfig().flat()[name]:
                raise VitreousError(f"{name} = {values[name]}: has no effect without objective = 'masked-patches'")
        return
    for name, off in UNUSED.items():
        if values[name] not in off:
            raise VitreousError(f"{name} = {values[name]}: has no effect with objective = 'masked-patches'")
    if is_user_code(config.architecture.model):
        raise VitreousError(
            f"model = {config.architecture.model}: masked-patches trains a ViT, not a model of your own"
        )
    if config.run.best_by not in (None, "loss"):
        raise VitreousError(f"best_by = {config.run.best_by!r}: masked-patches is selected by loss")


def patch_targets(config: TrainConfig, model: object) -> PatchTargets:
    """The targets of a run. `model`: its config."""
    check_maskable(model)
    assert isinstance(model, ViTConfig)
    objective = config.objective
    return PatchTargets(objective.patch_target, model.channels, pair(model.patch_size), objective.mask_ratio)


def build_masked_model(config: TrainConfig, model: object) -> MaskedPatchModel:
    targets = patch_targets(config, model)
    assert isinstance(model, ViTConfig)
    return MaskedPatchModel(model, targets.outputs, targets.ratio)


def fitting_patch_tensors(extras: Mapping[str, Tensor], targets: PatchTargets, model: object) -> dict[str, Tensor]:
    """The mask token, and the layer that predicts patches, of a checkpoint, as far as they fit the model and targets.
    DINOv2 has a mask token, too."""
    assert isinstance(model, ViTConfig)
    shapes = {
        "mask_token": (1, model.width),
        "patch_head.weight": (targets.outputs, model.width),
        "patch_head.bias": (targets.outputs,),
    }
    found = {name: tensor.float() for name, tensor in extras.items() if tuple(tensor.shape) == shapes.get(name)}
    complete = {"patch_head.weight", "patch_head.bias"} <= found.keys()
    return found if complete else {name: tensor for name, tensor in found.items() if name == "mask_token"}


def patch_loss(config: TrainConfig) -> PatchLoss:
    return PatchLoss(sigmoid=False, classes=0, classifies=config.objective.patch_target != "pixels")


def prediction_bytes(config: TrainConfig, model: object) -> int:
    """Memory of the predictions of one image in a pass; 0 for other objectives."""
    if not config.masks_patches or not isinstance(model, ViTConfig):
        return 0
    targets = patch_targets(config, model)
    rows, cols = model.grid
    return 4 * PREDICTION_COPIES * corrupted_count(rows * cols, targets.ratio) * targets.outputs


@torch.no_grad()
def evaluate_patches(
    predict: Callable[[Tensor], Tensor],
    model: MaskedPatchModel,
    loader: EvalLoader,
    targets: PatchTargets,
    loss: PatchLoss,
    world: World,
    tick: Tick = lambda images: None,
) -> Result:
    """Loss and accuracy of the predictions of corrupted patches. `predict` runs `model`, which is in eval mode. The
    mask of an image depends on its index only."""
    sums = torch.zeros(3, dtype=torch.float64, device=float64_device(loader.device))
    normalise = loader.transform.preprocessing.normalise
    for pixels, _, indices in loader:
        keys = random_keys.keys(EVALUATION_SEED, indices)
        truth = targets(pixels.to(keys.device), keys)
        with keyed_corruption(model, keys):
            predictions = predict(normalise(pixels)).float().to(keys.device)
        losses, right = loss(predictions, truth), loss.right(predictions, truth)
        sums += torch.stack([losses.double().sum(), right.double().sum(), losses.new_tensor(len(losses)).double()])
        tick(len(pixels))
    world.all_reduce([sums])
    total, hits, images = sums.tolist()
    accuracy = hits / max(1, images) if loss.classifies else None
    return Result(round(images), total / max(1, images), None, None, None, None, (), None, patch_accuracy=accuracy)


# ---------------------------------------------------------------- pictures


@torch.no_grad()
def masked_pictures(model: MaskedPatchModel, loader: EvalLoader, targets: PatchTargets) -> list[MaskedPicture]:
    """Input, masked input, prediction and truth of a few images, spread over those of the loader."""
    usable = loader.indices
    chosen = usable[torch.linspace(0, len(usable) - 1, min(PICTURES, len(usable))).long()].unique()
    keep = torch.zeros(len(loader.source), dtype=torch.bool)
    keep[chosen] = True
    normalise = loader.transform.preprocessing.normalise
    pictures = []
    for pixels, _, indices in replace(loader, keep=keep, workers=0):
        keys = random_keys.keys(EVALUATION_SEED, indices)
        with keyed_corruption(model, keys):
            predictions = model(normalise(pixels)).float().cpu()
        images, truth = pixels.float().cpu(), targets(pixels.to(keys.device), keys).cpu()
        classes = not truth.is_floating_point()
        predicted = predictions.reshape(*truth.shape, -1).argmax(-1) if classes else predictions
        count = cut_patches(images, targets.patch).shape[1]
        corruption = Corruption(*(x.cpu() for x in draw_corruption(keys, count, targets.ratio)))
        drawn = (
            images,
            _masked_input(images, corruption, targets),
            _with_patches(images, corruption, _pixels(predicted, targets), targets),
            _with_patches(images, corruption, _pixels(truth, targets), targets),
        )
        bytes_ = [_to_bytes(image) for image in drawn]
        names = [loader.source.name(int(index)) for index in indices]
        pictures += [MaskedPicture(name, *(part[i] for part in bytes_)) for i, name in enumerate(names)]
    return pictures


def _masked_input(images: Tensor, corruption: Corruption, targets: PatchTargets) -> Tensor:
    """The images with their patches replaced as the embeddings are; masked patches are grey."""
    patches = cut_patches(images, targets.patch)
    table = torch.cat([patches, torch.full_like(patches[:, :1], GREY)], dim=1)
    sources = corruption.sources.view(*corruption.sources.shape, 1, 1, 1)
    return _join(images, table.gather(1, sources.expand(-1, -1, *patches.shape[2:])), targets.patch)


def _with_patches(images: Tensor, corruption: Corruption, shown: Tensor, targets: PatchTargets) -> Tensor:
    """The images with `shown`, (B, M, C, h, w), in the places of the corrupted patches."""
    patches = cut_patches(images, targets.patch)
    places = corruption.patches.view(*corruption.patches.shape, 1, 1, 1).expand(-1, -1, *patches.shape[2:])
    return _join(images, patches.scatter(1, places, shown), targets.patch)


def _pixels(values: Tensor, targets: PatchTargets) -> Tensor:
    """Pixels of patches (B, M, C, h, w) from targets, or from predictions of the same shape."""
    (h, w), channels = targets.patch, targets.channels
    pixels: Tensor
    if values.is_floating_point():
        pixels = (values * 255).unflatten(2, (channels, h, w))
        return pixels
    colours = class_colours(values, channels)  # (B, M, C), or (B, M, 16, C)
    side = 1 if targets.kind == "colour" else round(values.shape[2] ** 0.5)
    cells = colours.view(*values.shape[:2], side, side, channels).permute(0, 1, 4, 2, 3)
    pixels = cells.repeat_interleave(h // side, 3).repeat_interleave(w // side, 4)
    return pixels


def _join(images: Tensor, patches: Tensor, patch: tuple[int, int]) -> Tensor:
    """Images from their patches; the inverse of `cut_patches`. A remainder that is no patch keeps its pixels."""
    rows, cols = images.shape[2] // patch[0], images.shape[3] // patch[1]
    joined = images.clone()
    whole = patches.unflatten(1, (rows, cols)).permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)
    joined[:, :, : rows * patch[0], : cols * patch[1]] = whole
    return joined


def _to_bytes(images: Tensor) -> Any:
    """uint8 arrays (B, H, W, C)."""
    return images.round().clamp(0, 255).byte().permute(0, 2, 3, 1).contiguous().numpy()
