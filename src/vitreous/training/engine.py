"""One step of training: prepare the images, forward, backward, and change the weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from vitreous.data.augmentation import augment
from vitreous.data.loading import Batch, Cut
from vitreous.data.mixing import mix
from vitreous.data.options import Augmentation
from vitreous.errors import VitreousError
from vitreous.fast.running import no_kernels
from vitreous.models.checks import pair
from vitreous.models.cost import cost
from vitreous.models.drop import key_drops
from vitreous.models.vit import VisionTransformer
from vitreous.training.ema import Ema
from vitreous.training.graphs import RecordedPass
from vitreous.training.losses import Loss
from vitreous.training.optimisers import Optimisers, clip_
from vitreous.training.world import World

VERSIONS = 64  # of one compiled function: models and image sizes that one process may train
SKIPPED, LONG = 0.2, 5e12  # stochastic depth, and FLOPs of a pass, from which dropped branches are left out
SMALL = 2**22  # pixels of a pass, of all channels: with fewer, fusing augmentation saves less than compiling it takes


@dataclass(frozen=True)
class Preparation:
    """From what the loader gives to what the model is trained on."""

    cut: Cut
    options: Augmentation
    mean: Tensor  # of the preprocessing, (channels, 1, 1) on the device
    std: Tensor
    loss: Loss

    @property
    def bare(self) -> bool:
        """Whether there is nothing to do to images but to normalise them: they come cropped, and nothing is drawn."""
        o = self.options
        drawn = (o.shift, o.randaugment, o.three_augment, o.jitter, o.erase, o.mixup, o.cutmix)
        return self.cut.held is None and not any(drawn)

    def __call__(
        self, rows: Tensor, labels: Tensor, keys: Tensor, size: tuple[int, int] | None = None
    ) -> tuple[Tensor, Tensor]:
        """`size`: of the images, where it is not the model's."""
        images = augment(self.cut(rows, keys, size), keys, self.options)
        if self.options.mixup or self.options.cutmix:
            images, labels = mix(images, self.loss.prepared(labels), keys, self.options)
        return images.div(255).sub_(self.mean).div_(self.std), labels


@dataclass(frozen=True)
class Stepped:
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
        prepare: Preparation,
        optimisers: Optimisers,
        ema: Ema | None,
        clip: float | None,
        micro_batch: int,
        precision: str,
    ):
        self.model, self.loss, self.optimisers, self.ema = model, loss, optimisers, ema
        self.paired = bool(prepare.options.mixup or prepare.options.cutmix)
        self.bare = prepare.bare
        self.prepare: Callable[..., tuple[Tensor, Tensor]] = prepare
        self.pixels = micro_batch * len(prepare.mean) * math.prod(prepare.cut.crop.size)  # of a pass
        self.size: tuple[int, int] | None = None  # of the images that are shown; None: the model's
        self.clip, self.micro_batch, self.precision = clip, micro_batch, precision
        self.device = next(model.parameters()).device
        self.forward: Callable[[Tensor], Tensor] = model
        self.plain: Callable[[Tensor], Tensor] = model  # never compiled
        self.recorded: RecordedPass | None = None
        self.records = False
        self.path = "plain"  # which way passes go, in words
        self.notes: list[str] = []  # what happened on the way, for the loop to tell

    def compile(self) -> None:
        """Forward, backward and preparation as fused kernels: our own for the encoder of a plain ViT in bf16, the
        compiler's for everything else. Where that fails, eager goes on, with a word."""
        # All ViTs of a process share the code of a block: more than the usual 8 versions of it are no mistake.
        limit = torch._dynamo.config.recompile_limit
        torch._dynamo.config.recompile_limit = max(limit, VERSIONS)
        self.records = self.device.type == "cuda"
        self.path = fused_training(self.model, self.precision)
        if self.path == FUSED:
            from vitreous.fast.encoder import TrainingViT

            skips = self._skips()
            fused = TrainingViT(cast(VisionTransformer, self.model), skips)
            self.forward = self._guarded(fused, self.plain, "the model")
            if skips:  # no two passes are of the same sizes
                self.path, self.records = f"{FUSED}, dropped branches skipped", False
        else:
            self.plain = eagerly(self.model)
            self.forward = self._guarded(compiled_by_parts(self.model), self.plain, "the model")
        if not self.bare and not (self.records and self.pixels < SMALL):  # what is recorded is launched as one anyway
            self.prepare = self._guarded(torch.compile(self.prepare, dynamic=False), self.prepare, "augmentation")

    def _skips(self) -> bool:
        """Whether it pays to leave out what stochastic depth drops: where enough is dropped, and a pass is long enough
        that nobody notices the host waiting for it."""
        config = cast(VisionTransformer, self.model).config
        flops = 3 * self.micro_batch * cost(config, self.size or pair(config.image_size)).flops.total
        return config.stochastic_depth >= SKIPPED and flops >= LONG

    def show(self, size: tuple[int, int] | None) -> None:
        """From now on the model is trained on images of this size; None: its own."""
        if size != self.size:
            self.size, self.recorded = size, None

    def _guarded(self, compiled: Any, plain: Any, what: str) -> Any:
        """The compiled function; should it fail, the plain one from then on."""
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
                reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
                self.notes.append(f"{what} could not be compiled ({reason}): going on without, which is slower")
                return plain(*arguments)

        return call

    def autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16")

    def predict(self, images: Tensor) -> Tensor:
        """For evaluation: not compiled, since a second graph would take longer to make than it would save."""
        with self.autocast():
            return self.plain(images)

    def step(self, batch: Batch, number: int, batch_size: int, world: World) -> Stepped:
        """One change of the weights. Where memory runs out, the passes are halved and the step is done again."""
        while True:
            try:
                loss, right = self._gradients(batch, batch_size)
                break
            except torch.OutOfMemoryError as error:
                self._halve(error)
        world.add_up([p.grad for p in self.optimisers.parameters if p.grad is not None])
        norm = clip_(self.optimisers.parameters, self.clip)
        self.optimisers.step()
        if self.ema is not None:
            self.ema.update(number)
        return Stepped(loss, right, norm)

    def _gradients(self, batch: Batch, batch_size: int) -> tuple[Tensor, Tensor]:
        """Added up over passes of the micro-batch, so that they are those of the whole batch."""
        parameters = self.optimisers.parameters
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

        if self.recorded is None and self.records and len(keys) == self.micro_batch:
            try:
                self.recorded = RecordedPass(run, (rows, labels, keys), self.optimisers.parameters)
            except (torch.OutOfMemoryError, VitreousError):
                raise
            except RuntimeError as error:
                self.records = False
                reason = (str(error).strip().splitlines() or [""])[0][:200]
                self.notes.append(f"the pass could not be recorded ({reason}): going on without, which may be slower")
                self.optimisers.zero_grad()
        if self.recorded is not None and len(keys) == self.micro_batch:
            return self.recorded(rows, labels, keys)
        return run(rows, labels, keys)

    def _forward_backward(self, rows: Tensor, labels: Tensor, keys: Tensor, batch_size: int) -> tuple[Tensor, Tensor]:
        images, targets = self.prepare(rows, labels, keys, self.size)
        key_drops(self.model, keys)
        with self.autocast():
            logits = self.forward(images)
        losses = self.loss(logits, targets)
        (losses.sum() / batch_size).backward()
        with torch.no_grad():
            if targets.dtype == torch.bool:  # several labels have no one answer
                return losses.sum(), torch.zeros((), device=self.device)
            truth = targets if targets.ndim == 1 else targets.argmax(1)
            return losses.sum(), (logits.argmax(1) == truth).sum()

    def _halve(self, error: BaseException) -> None:
        self.optimisers.zero_grad()
        self.recorded = None
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


FUSED = "fused kernels"


def fused_training(model: nn.Module, precision: str) -> str:
    """FUSED, where a model can be trained by our own kernels; or else "compiled", and why."""
    device = next(model.parameters()).device
    reason = "they are for bf16" if precision != "bf16" else no_kernels(device)
    if reason is None:
        from vitreous.fast.encoder import why_not

        reason = why_not(model)
    return FUSED if reason is None else f"compiled; no fused kernels: {reason}"


def compiled_by_parts(model: nn.Module) -> nn.Module:
    """The model with its blocks compiled, once for all of them: they differ in their weights alone. What is between
    them is too little to wait for. A network without blocks is compiled whole."""
    blocks = getattr(model, "blocks", None)
    if blocks is None:
        return cast(nn.Module, torch.compile(model, dynamic=False))
    backbone = getattr(model, "backbone", None)
    for part in [*blocks, *([] if backbone is None else [backbone])]:
        part.compile(dynamic=False)
    return model


def eagerly(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """The model without what was compiled of it."""

    def call(images: Tensor) -> Tensor:
        with torch.compiler.set_stance("force_eager"):
            output: Tensor = model(images)
            return output

    return call
