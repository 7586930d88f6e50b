"""One training step: prepare the images, forward, backward, and update the weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from vitreous.data.augmentation import augment
from vitreous.data.loading import Batch, BatchCropper
from vitreous.data.mixup import mix
from vitreous.data.options import Augmentation
from vitreous.errors import VitreousError
from vitreous.fast.accelerate import kernels_unavailable_reason
from vitreous.fast.eligibility import TRAINING, ineligibility_reason
from vitreous.models.cost import cost
from vitreous.models.custom import CustomModel
from vitreous.models.drop import keyed_drops
from vitreous.models.masked import keyed_corruption
from vitreous.models.standard import Structure, differences, hooked, is_compiled
from vitreous.models.vit import VisionTransformer
from vitreous.training.captured_pass import CapturedPass
from vitreous.training.distributed import World
from vitreous.training.optim.ema import Ema
from vitreous.training.optim.losses import Loss
from vitreous.training.optim.optimisers import Optimisers, clip_gradients_
from vitreous.training.optim.patch_targets import PatchTargets
from vitreous.training.optim.user_loss import UserLoss
from vitreous.training.user_augment import UserAugment
from vitreous.utils.sizes import pair

# Branches that stochastic depth drops are skipped from this rate on, and for passes of at least this many FLOPs.
MIN_RATE_TO_SKIP, MIN_FLOPS_TO_SKIP = 0.2, 5e12
MIN_PIXELS_TO_COMPILE = 2**22  # per pass, over all channels: with fewer, compiled augmentation does not save its time


@dataclass(frozen=True)
class BatchPreparation:
    """From the output of the loader to the input of the model: crop, augment, mix and normalise, on the device."""

    cropper: BatchCropper
    options: Augmentation
    mean: Tensor  # of the preprocessing, (channels, 1, 1) on the device
    std: Tensor
    loss: Loss
    user_augment: UserAugment | None = None
    patch_targets: PatchTargets | None = None  # of masked-patch prediction; they take the place of the labels

    @property
    def only_normalises(self) -> bool:
        """Whether images are only normalised: workers have cropped them, and no other augmentation is on."""
        o = self.options
        augmentations = (o.shift, o.randaugment, o.three_augment, o.jitter, o.erase, o.mixup, o.cutmix)
        return self.cropper.cached is None and not any((*augmentations, self.user_augment, self.patch_targets))

    def __call__(
        self, rows: Tensor, labels: Tensor, keys: Tensor, size: tuple[int, int] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Images (B, C, H, W) and targets. `size`: image size, if it is not that of the model."""
        images = augment(self.cropper(rows, keys, size), keys, self.options)
        if self.user_augment is not None:
            images = self.user_augment(images, keys)
        if self.options.mixup or self.options.cutmix:
            images, labels = mix(images, self.loss.dense_targets(labels), keys, self.options)
        if self.patch_targets is not None:
            labels = self.patch_targets(images, keys)
        return images.div(255).sub_(self.mean).div_(self.std), labels


@dataclass(frozen=True)
class StepResult:
    """Numbers of a step, as tensors on the device: the host does not wait for them until they are read."""

    loss: Tensor  # summed over the images of this process
    right: Tensor  # number of correct predictions; 0 for several labels
    grad_norm: Tensor


class Engine:
    """A model in training, with its optimisers and EMA."""

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        prepare: BatchPreparation,
        optimisers: Optimisers,
        ema: Ema | None,
        clip: float | None,
        micro_batch: int,
        precision: str,
    ):
        self.model, self.loss, self.optimisers, self.ema = model, loss, optimisers, ema
        self.mixes_pairs = bool(prepare.options.mixup or prepare.options.cutmix)
        self.only_normalises = prepare.only_normalises
        self.prepare: Callable[..., tuple[Tensor, Tensor]] = prepare
        # Code of the user in a pass, which is neither compiled nor captured: it may do anything.
        self.user_augments = prepare.user_augment is not None
        self.runs_user_code = self.user_augments or isinstance(loss, UserLoss) or isinstance(model, CustomModel)
        self.pixels = micro_batch * len(prepare.mean) * math.prod(prepare.cropper.crop.size)  # per pass
        self.size: tuple[int, int] | None = None  # image size in training; None: that of the model
        self.clip, self.micro_batch, self.precision = clip, micro_batch, precision
        self.device = next(model.parameters()).device
        self.forward: Callable[[Tensor], Tensor] = model  # in training: `plain` or a faster version
        self.plain: Callable[[Tensor], Tensor] = model  # never compiled
        self.captured: CapturedPass | None = None
        self.captures = False  # whether passes are captured as a CUDA graph
        self.structure: Structure | None = None  # of the model when it was compiled
        self.path = "plain"  # description of the code path of a pass
        self.notes: list[str] = []  # messages for the user; the loop prints and removes them
        self.updating = False  # during an update, weights, optimiser state and EMA belong to no step

    def compile(self) -> None:
        """Use fused kernels: our own for the encoder of a standard ViT in bf16, torch.compile for everything else.

        If that fails, training continues without, with a note. Afterwards no module of the model may be replaced, and
        no hook registered.
        """
        unknown = find_unknown_code(self.model)
        self.captures = self.device.type == "cuda" and unknown is None and not self.runs_user_code
        self.path = choose_training_path(self.model, self.precision)
        if self.path == FUSED:
            from vitreous.fast.fused_training import FusedTrainingViT

            skip_dropped = self._should_skip_dropped()
            self.forward = FusedTrainingViT(cast(VisionTransformer, self.model), skip_dropped)
            if skip_dropped:  # the sizes differ in every pass, so that it cannot be captured
                self.path, self.captures = f"{FUSED}, dropped branches skipped", False
        elif unknown is not None:
            self.path = f"plain; not compiled: {unknown}"
        else:
            self.plain = run_eagerly(self.model)
            self.forward = compile_blocks(self.model)
        self.structure = Structure(self.model)
        small = self.captures and self.pixels < MIN_PIXELS_TO_COMPILE  # a captured pass is one launch in any case
        if not self.only_normalises and not small and not self.user_augments:
            self.prepare = self._with_fallback(torch.compile(self.prepare, dynamic=False), self.prepare)

    def _should_skip_dropped(self) -> bool:
        """Whether skipping the branches that stochastic depth drops saves time: enough are dropped, and a pass is long
        compared with the wait of the host for the GPU."""
        config = cast(VisionTransformer, self.model).config
        flops = 3 * self.micro_batch * cost(config, self.size or pair(config.image_size)).flops.total
        return config.stochastic_depth >= MIN_RATE_TO_SKIP and flops >= MIN_FLOPS_TO_SKIP

    def set_image_size(self, size: tuple[int, int] | None) -> None:
        """Train on images of this size from now on. None: the size of the model."""
        if size != self.size:
            self.size, self.captured = size, None

    def _with_fallback(self, compiled: Any, plain: Any) -> Any:
        """Return the compiled function, which is replaced by the plain one at its first error."""
        state = {"use": compiled}

        def call(*arguments: Any) -> Any:
            try:
                return state["use"](*arguments)
            except (torch.OutOfMemoryError, VitreousError):
                raise
            except Exception as error:
                if state["use"] is plain:
                    raise
                state["use"] = plain
                reason = _first_line(error)
                self.notes.append(f"augmentation could not be compiled ({reason}): continuing without, which is slower")
                return plain(*arguments)

        return call

    def autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16")

    def predict(self, images: Tensor) -> Tensor:
        """Logits for evaluation. Not compiled: compiling a second graph would take longer than it saves."""
        with self.autocast():
            return self.plain(images)

    def step(self, batch: Batch, number: int, batch_size: int, world: World) -> StepResult:
        """Update the weights once. If memory runs out, the micro-batch is halved and the step is repeated."""
        if self.structure is not None and self.structure.changed():
            raise VitreousError(
                "modules, parameters or hooks of the model were changed after it was compiled for training, which the"
                " compiled code would ignore: change the model before training"
            )
        while True:
            try:
                loss, right = self._gradients(batch, batch_size)
                break
            except torch.OutOfMemoryError as error:
                self._halve_micro_batch(error)
        world.all_reduce([p.grad for p in self.optimisers.parameters if p.grad is not None])
        norm = clip_gradients_(self.optimisers.parameters, self.clip)
        self.updating = True  # the training loop resets it when it has counted the step
        self.optimisers.step()
        if self.ema is not None:
            self.ema.update(number)
        return StepResult(loss, right, norm)

    def _gradients(self, batch: Batch, batch_size: int) -> tuple[Tensor, Tensor]:
        """Accumulate the gradients of the whole batch over passes of the micro-batch."""
        parameters = self.optimisers.parameters
        if not len(batch):  # remove the gradients of the previous step
            for p in parameters:
                p.grad = torch.zeros_like(p)
        total, right = torch.zeros((), device=self.device), torch.zeros((), device=self.device)
        sums: list[Tensor] = []
        for start in range(0, len(batch), self.micro_batch):
            part = slice(start, start + self.micro_batch)
            self.optimisers.zero_grad()
            loss, hits = self._pass(batch.rows[part], batch.labels[part], batch.keys[part], batch_size)
            total += loss
            right += hits
            if self.micro_batch < len(batch):
                gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
                if sums:
                    torch._foreach_add_(sums, gradients)
                else:
                    sums = [gradient.clone() for gradient in gradients]
        for p, gradient in zip(parameters, sums, strict=False):
            p.grad = gradient
        return total, right

    def _pass(self, rows: Tensor, labels: Tensor, keys: Tensor, batch_size: int) -> tuple[Tensor, Tensor]:
        """Forward and backward of a micro-batch. Passes of the full micro-batch size are captured, if possible."""

        def run(rows: Tensor, labels: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
            return self._forward_backward(rows, labels, keys, batch_size)

        if self.captured is None and self.captures and len(keys) == self.micro_batch:
            try:
                self.captured = CapturedPass(run, (rows, labels, keys), self.optimisers.parameters)
            except (torch.OutOfMemoryError, VitreousError):
                raise
            except RuntimeError as error:
                self.captures = False
                reason = _first_line(error)
                self.notes.append(
                    f"the pass could not be captured as a CUDA graph ({reason}): continuing without, perhaps slower"
                )
                self.optimisers.zero_grad()
        if self.captured is not None and len(keys) == self.micro_batch:
            return self.captured(rows, labels, keys)
        return run(rows, labels, keys)

    def _forward_backward(self, rows: Tensor, labels: Tensor, keys: Tensor, batch_size: int) -> tuple[Tensor, Tensor]:
        """Return the sum of the losses and the number of correct predictions; the gradients are in the parameters."""
        images, targets = (tensor.to(self.device) for tensor in self.prepare(rows, labels, keys, self.size))
        with keyed_drops(self.model, keys), keyed_corruption(self.model, keys):
            logits, losses = self._logits_and_losses(images, targets, batch_size)
        return losses.sum(), self.loss.right(logits, targets).sum()

    def _logits_and_losses(self, images: Tensor, targets: Tensor, batch_size: int) -> tuple[Tensor, Tensor]:
        """Forward and backward by the fast path. If it fails, both are repeated by the plain model, which is used from
        then on."""
        try:
            return self._run_backward(self.forward, images, targets, batch_size)
        except (torch.OutOfMemoryError, VitreousError):
            raise
        except Exception as error:
            # While a CUDA graph is captured nothing can be repeated: `_pass` then runs without a graph.
            capturing = self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
            if self.forward is self.plain or capturing:
                raise
            failed = "the fused kernels failed" if self.path.startswith(FUSED) else "the model could not be compiled"
            reason = _first_line(error)
            self.notes.append(f"{failed} ({reason}): continuing without, which is slower")
            self.forward, self.path = self.plain, f"plain; {failed}: {reason}"
        self.optimisers.zero_grad()  # the failed backward may have written some gradients
        return self._run_backward(self.plain, images, targets, batch_size)

    def _run_backward(
        self, forward: Callable[[Tensor], Tensor], images: Tensor, targets: Tensor, batch_size: int
    ) -> tuple[Tensor, Tensor]:
        # Activation checkpointing calls the blocks again in backward, which must not be compiled then either.
        with force_eager() if forward is self.plain and self.plain is not self.model else nullcontext():
            with self.autocast():
                logits = forward(images)
            losses = self.loss(logits, targets)
            (losses.sum() / batch_size).backward()
        return logits.detach(), losses.detach()

    def _halve_micro_batch(self, error: BaseException) -> None:
        self.optimisers.zero_grad()
        self.captured = None
        least = 2 if self.mixes_pairs else 1
        if self.micro_batch // 2 < least:
            raise VitreousError(
                f"out of memory on {self.device} with {self.micro_batch} images at a time: use a smaller model or"
                " image_size"
            ) from error
        self.micro_batch //= 2
        self.micro_batch += self.micro_batch % 2 if least == 2 else 0
        torch.cuda.empty_cache()
        own = ", unless your own code depends on the batch (BatchNorm)" if self.runs_user_code else ""
        self.notes.append(
            f"out of memory: passes of {self.micro_batch} images from now on, more of them for each step; the results"
            f" are the same up to rounding{own}"
        )


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


FUSED = "fused kernels"


def choose_training_path(model: nn.Module, precision: str) -> str:
    """Return FUSED if the model can be trained with our own kernels, otherwise "compiled" with the reason."""
    device = next(model.parameters()).device
    reason = "they are for bf16" if precision != "bf16" else kernels_unavailable_reason(device)
    if reason is None:
        reason = ineligibility_reason(model, TRAINING)
    return FUSED if reason is None else f"compiled; no fused kernels: {reason}"


def compile_blocks(model: nn.Module) -> nn.Module:
    """Compile the blocks of a model, which share one graph since only their weights differ, and its backbone. The rest
    takes little time. A model without blocks is compiled as a whole."""
    blocks = getattr(model, "blocks", None)
    if blocks is None:
        return cast(nn.Module, torch.compile(model, dynamic=False))
    backbone = getattr(model, "backbone", None)
    for part in [*blocks, *([] if backbone is None else [backbone])]:
        if not is_compiled(part):
            part.compile(dynamic=False)
    return model


def find_unknown_code(model: nn.Module) -> str | None:
    """Describe the first place where a model runs code that is neither torch's nor ours. None: there is none.

    Such a model is not compiled and not captured: the compiler may miss what was replaced or hooked, and a CUDA graph
    runs no Python.
    """
    if isinstance(model, CustomModel):
        return "a model of your own"
    for name, module in model.named_modules():
        if not type(module).__module__.startswith(("torch.nn.", "torch._dynamo.", "vitreous.")):
            return f"{name or 'the model'} is of type {type(module).__name__}"
    for name, p in model.named_parameters():
        if p._backward_hooks or p._post_accumulate_grad_hooks:
            return f"{name} has hooks"
    overrides = (str(difference) for difference in differences(model) if difference.kind == "override")
    return hooked(model) or next(overrides, None)


def force_eager() -> AbstractContextManager[Any]:
    """Inside this context, compiled code runs uncompiled."""
    return cast(AbstractContextManager[Any], torch.compiler.set_stance("force_eager"))


def run_eagerly(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """Return a function that runs the model without its compiled parts."""

    def call(images: Tensor) -> Tensor:
        with force_eager():
            output: Tensor = model(images)
            return output

    return call
