"""One step of training: prepare the images, forward, backward, and change the weights."""

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
from vitreous.fast.accelerate import no_kernels
from vitreous.fast.eligibility import TRAINING, why_not
from vitreous.models.checks import pair
from vitreous.models.cost import cost
from vitreous.models.drop import keyed_drops
from vitreous.models.standard import Structure, differences, hooked, is_compiled
from vitreous.models.vit import VisionTransformer
from vitreous.training.distributed import World
from vitreous.training.graphs import RecordedPass
from vitreous.training.optim.ema import Ema
from vitreous.training.optim.losses import Loss
from vitreous.training.optim.optimisers import Optimisers, clip_gradients_

SKIPPED, LONG = 0.2, 5e12  # stochastic depth, and FLOPs of a pass, from which dropped branches are left out
MIN_PIXELS_TO_COMPILE = (
    2**22
)  # pixels of a pass, of all channels: with fewer, fusing augmentation saves less than compiling it takes


@dataclass(frozen=True)
class BatchPreparation:
    """From what the loader gives to what the model is trained on."""

    cut: BatchCropper
    options: Augmentation
    mean: Tensor  # of the preprocessing, (channels, 1, 1) on the device
    std: Tensor
    loss: Loss

    @property
    def only_normalises(self) -> bool:
        """Whether there is nothing to do to images but to normalise them: they come cropped, and nothing is drawn."""
        o = self.options
        drawn = (o.shift, o.randaugment, o.three_augment, o.jitter, o.erase, o.mixup, o.cutmix)
        return self.cut.cached is None and not any(drawn)

    def __call__(
        self, rows: Tensor, labels: Tensor, keys: Tensor, size: tuple[int, int] | None = None
    ) -> tuple[Tensor, Tensor]:
        """`size`: of the images, where it is not the model's."""
        images = augment(self.cut(rows, keys, size), keys, self.options)
        if self.options.mixup or self.options.cutmix:
            images, labels = mix(images, self.loss.prepared(labels), keys, self.options)
        return images.div(255).sub_(self.mean).div_(self.std), labels


@dataclass(frozen=True)
class StepResult:
    """What a step tells, on the device: nobody waits for it until it is read."""

    loss: Tensor  # summed over the images of this process
    right: Tensor  # how many were right, of those with one label
    grad_norm: Tensor


class Engine:
    """A model in training, and all that changes it."""

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
        self.paired = bool(prepare.options.mixup or prepare.options.cutmix)
        self.only_normalises = prepare.only_normalises
        self.prepare: Callable[..., tuple[Tensor, Tensor]] = prepare
        self.pixels = micro_batch * len(prepare.mean) * math.prod(prepare.cut.crop.size)  # of a pass
        self.size: tuple[int, int] | None = None  # of the images that are shown; None: the model's
        self.clip, self.micro_batch, self.precision = clip, micro_batch, precision
        self.device = next(model.parameters()).device
        self.forward: Callable[[Tensor], Tensor] = model  # in training: `plain`, or something faster
        self.plain: Callable[[Tensor], Tensor] = model  # never compiled
        self.captured: RecordedPass | None = None
        self.captures = False
        self.structure: Structure | None = None  # of the model, as it was compiled
        self.path = "plain"  # which way passes go, in words
        self.notes: list[str] = []  # what happened on the way, for the loop to tell
        self.updating = False  # weights, moments and EMA are being changed: they are not those of any step

    def compile(self) -> None:
        """Run forward, backward and preparation as fused kernels: our own for the encoder of a standard ViT in bf16,
        the compiler's for everything else. Where that fails, training goes on without, and a note says so. Afterwards
        no module of the model may be replaced, and no hook registered."""
        unknown = find_unknown_code(self.model)
        self.captures = self.device.type == "cuda" and unknown is None
        self.path = choose_training_path(self.model, self.precision)
        if self.path == FUSED:
            from vitreous.fast.fused_training import TrainingViT

            skips = self._skips()
            self.forward = TrainingViT(cast(VisionTransformer, self.model), skips)
            if skips:  # no two passes are of the same sizes
                self.path, self.captures = f"{FUSED}, dropped branches skipped", False
        elif unknown is not None:
            self.path = f"plain; not compiled: {unknown}"
        else:
            self.plain = run_eagerly(self.model)
            self.forward = compile_blocks(self.model)
        self.structure = Structure(self.model)
        if not self.only_normalises and not (
            self.captures and self.pixels < MIN_PIXELS_TO_COMPILE
        ):  # what is recorded is launched as one anyway
            self.prepare = self._guarded(torch.compile(self.prepare, dynamic=False), self.prepare)

    def _skips(self) -> bool:
        """Whether it pays to leave out what stochastic depth drops: where enough is dropped, and a pass is long enough
        that nobody notices the host waiting for it."""
        config = cast(VisionTransformer, self.model).config
        flops = 3 * self.micro_batch * cost(config, self.size or pair(config.image_size)).flops.total
        return config.stochastic_depth >= SKIPPED and flops >= LONG

    def set_image_size(self, size: tuple[int, int] | None) -> None:
        """From now on the model is trained on images of this size; None: its own."""
        if size != self.size:
            self.size, self.captured = size, None

    def _guarded(self, compiled: Any, plain: Any) -> Any:
        """Compiled augmentation; should it fail, the plain one from then on."""
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
                self.notes.append(f"augmentation could not be compiled ({reason}): going on without, which is slower")
                return plain(*arguments)

        return call

    def autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16")

    def predict(self, images: Tensor) -> Tensor:
        """For evaluation: not compiled, since a second graph would take longer to make than it would save."""
        with self.autocast():
            return self.plain(images)

    def step(self, batch: Batch, number: int, batch_size: int, world: World) -> StepResult:
        """One change of the weights. Where memory runs out, the passes are halved and the step is done again."""
        if self.structure is not None and self.structure.changed():
            raise VitreousError(
                "modules, parameters or hooks of the model were changed after it was compiled for training, which the"
                " compiled code would ignore: change the model first"
            )
        while True:
            try:
                loss, right = self._gradients(batch, batch_size)
                break
            except torch.OutOfMemoryError as error:
                self._halve(error)
        world.all_reduce([p.grad for p in self.optimisers.parameters if p.grad is not None])
        norm = clip_gradients_(self.optimisers.parameters, self.clip)
        self.updating = True  # until whoever counts the steps has counted this one
        self.optimisers.step()
        if self.ema is not None:
            self.ema.update(number)
        return StepResult(loss, right, norm)

    def _gradients(self, batch: Batch, batch_size: int) -> tuple[Tensor, Tensor]:
        """Added up over passes of the micro-batch, so that they are those of the whole batch."""
        parameters = self.optimisers.parameters
        if not len(batch):  # those of the step before are not this one's
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
                found = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
                if sums:
                    torch._foreach_add_(sums, found)
                else:
                    sums = [gradient.clone() for gradient in found]
        for p, gradient in zip(parameters, sums, strict=False):
            p.grad = gradient
        return total, right

    def _pass(self, rows: Tensor, labels: Tensor, keys: Tensor, batch_size: int) -> tuple[Tensor, Tensor]:
        """Forward and backward of a micro-batch; recorded, if that can be done, for those of the usual size."""

        def run(rows: Tensor, labels: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
            return self._forward_backward(rows, labels, keys, batch_size)

        if self.captured is None and self.captures and len(keys) == self.micro_batch:
            try:
                self.captured = RecordedPass(run, (rows, labels, keys), self.optimisers.parameters)
            except (torch.OutOfMemoryError, VitreousError):
                raise
            except RuntimeError as error:
                self.captures = False
                reason = _first_line(error)
                self.notes.append(f"the pass could not be recorded ({reason}): going on without, which may be slower")
                self.optimisers.zero_grad()
        if self.captured is not None and len(keys) == self.micro_batch:
            return self.captured(rows, labels, keys)
        return run(rows, labels, keys)

    def _forward_backward(self, rows: Tensor, labels: Tensor, keys: Tensor, batch_size: int) -> tuple[Tensor, Tensor]:
        images, targets = self.prepare(rows, labels, keys, self.size)
        with keyed_drops(self.model, keys):
            logits, losses = self._differentiated(images, targets, batch_size)
        if targets.dtype == torch.bool:  # several labels have no one answer
            return losses.sum(), torch.zeros((), device=self.device)
        truth = targets if targets.ndim == 1 else targets.argmax(1)
        return losses.sum(), (logits.argmax(1) == truth).sum()

    def _differentiated(self, images: Tensor, targets: Tensor, batch_size: int) -> tuple[Tensor, Tensor]:
        """Logits and losses, with their gradients left in the parameters. Should the fast way fail, forward or
        backward, both are done again by the plain model, now and from then on."""
        try:
            return self._differentiated_by(self.forward, images, targets, batch_size)
        except (torch.OutOfMemoryError, VitreousError):
            raise
        except Exception as error:
            # While a CUDA graph is recorded nothing can be tried again: the pass is then done without one.
            recording = self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
            if self.forward is self.plain or recording:
                raise
            failed = "the fused kernels failed" if self.path.startswith(FUSED) else "the model could not be compiled"
            reason = _first_line(error)
            self.notes.append(f"{failed} ({reason}): going on without, which is slower")
            self.forward, self.path = self.plain, f"plain; {failed}: {reason}"
        self.optimisers.zero_grad()  # of what the failed backward has left
        return self._differentiated_by(self.plain, images, targets, batch_size)

    def _differentiated_by(
        self, forward: Callable[[Tensor], Tensor], images: Tensor, targets: Tensor, batch_size: int
    ) -> tuple[Tensor, Tensor]:
        # Activation checkpointing calls the model again in backward, which then must not be compiled either.
        with force_eager() if forward is self.plain and self.plain is not self.model else nullcontext():
            with self.autocast():
                logits = forward(images)
            losses = self.loss(logits, targets)
            (losses.sum() / batch_size).backward()
        return logits.detach(), losses.detach()

    def _halve(self, error: BaseException) -> None:
        self.optimisers.zero_grad()
        self.captured = None
        least = 2 if self.paired else 1  # pairs stay together
        if self.micro_batch // 2 < least:
            raise VitreousError(
                f"out of memory on {self.device} with {self.micro_batch} images at a time: take a smaller model or"
                " image_size"
            ) from error
        self.micro_batch //= 2
        self.micro_batch += self.micro_batch % 2 if least == 2 else 0
        torch.cuda.empty_cache()
        self.notes.append(
            f"out of memory: passes of {self.micro_batch} images from now on, more of them for each step; the results"
            " are the same to rounding"
        )


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


FUSED = "fused kernels"


def choose_training_path(model: nn.Module, precision: str) -> str:
    """FUSED, where a model can be trained by our own kernels; or else "compiled", and why."""
    device = next(model.parameters()).device
    reason = "they are for bf16" if precision != "bf16" else no_kernels(device)
    if reason is None:
        reason = why_not(model, TRAINING)
    return FUSED if reason is None else f"compiled; no fused kernels: {reason}"


def compile_blocks(model: nn.Module) -> nn.Module:
    """The model with its blocks compiled, once for all of them: they differ in their weights alone. What is between
    them is too little to wait for. A network without blocks is compiled whole."""
    blocks = getattr(model, "blocks", None)
    if blocks is None:
        return cast(nn.Module, torch.compile(model, dynamic=False))
    backbone = getattr(model, "backbone", None)
    for part in [*blocks, *([] if backbone is None else [backbone])]:
        if not is_compiled(part):
            part.compile(dynamic=False)
    return model


def find_unknown_code(model: nn.Module) -> str | None:
    """Where a model runs code that is neither torch's nor ours, in words; None: nowhere. Such a model is not compiled
    and not recorded: a compiler may overlook what was replaced or hooked, and a CUDA graph runs no Python at all."""
    for name, module in model.named_modules():
        if not type(module).__module__.startswith(("torch.nn.", "torch._dynamo.", "vitreous.")):
            return f"{name or 'the model'} is of type {type(module).__name__}"
    for name, p in model.named_parameters():
        if p._backward_hooks or p._post_accumulate_grad_hooks:
            return f"{name} has hooks"
    overrides = (str(found) for found in differences(model) if found.kind == "override")
    return hooked(model) or next(overrides, None)


def force_eager() -> AbstractContextManager[Any]:
    """Within this, what is compiled runs as if it was not."""
    return cast(AbstractContextManager[Any], torch.compiler.set_stance("force_eager"))


def run_eagerly(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """The model without what was compiled of it."""

    def call(images: Tensor) -> Tensor:
        with force_eager():
            output: Tensor = model(images)
            return output

    return call
