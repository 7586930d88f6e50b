"""The forward pass of a ViT for one image, step by step: the values behind equations 1 to 4 of the paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.errors import VitreousError, brief
from vitreous.inspection.internals import (
    check_attention_memory,
    class_probabilities,
    eval_mode,
    head_logits,
    prepare_batch,
    require_unmodified,
)
from vitreous.models.axial import compared_tokens
from vitreous.models.base import Model
from vitreous.models.checks import Grid
from vitreous.models.resnet import BiT
from vitreous.models.standard import vitreous_model
from vitreous.models.vit import VisionTransformer
from vitreous.utils.sizes import pair


@dataclass(frozen=True)
class AttentionStep:
    """Attention of one query token in one block and head."""

    layer: int  # from 0
    head: int
    query: Tensor  # (d,), after qk-norm if the model has it
    keys: Tensor  # (T, d)
    bias: Tensor | None  # (T,): the relative position bias
    scores: Tensor  # (T,): q k / sqrt(d), plus the bias; -inf for tokens that axial attention does not compare
    weights: Tensor  # (T,): softmax of the scores
    values: Tensor  # (T, d)
    output: Tensor  # (d,): sum of values times weights

    @property
    def compared_scores(self) -> Tensor:
        """The scores of the tokens that the query is compared with."""
        return self.scores[self.scores != -torch.inf]


@dataclass(frozen=True)
class ForwardSteps:
    """All values of the forward pass of one image that the explanation shows, in float32 on the CPU."""

    grid: Grid
    token: int  # index of the chosen patch in the sequence
    patch: tuple[int, int]  # (row, column) of the chosen patch, from 0
    flat: Tensor  # the chosen patch as a vector: channels, rows, columns of what the patches are cut from
    projected: Tensor  # (D,): flat E, with the bias of the projection
    prefix: Tensor  # (prefix, D): class token and registers
    position: Tensor | None  # (D,): position embedding of the patch at the input; None if nothing is added there
    embedded: Tensor  # (T, D): z_0
    attention: AttentionStep
    norms: Tensor  # (depth, 5), of the chosen patch: input, attention branch, after it, MLP branch, output of the block
    stream: Tensor  # (depth + 1, D): the class token, or the mean of the patches, before block 1 and after each block
    probabilities: Tensor | None  # (depth + 1, classes): the head applied at each of these depths
    normed: Tensor  # (D,): the last of `stream` after the final norm, if that comes before pooling
    representation: Tensor  # the input of the head; all tokens if the model does not pool
    logits: Tensor | None  # (classes,)

    @property
    def similarity_to_final(self) -> Tensor:
        """Cosine similarity of each row of `stream` to the last one."""
        return F.cosine_similarity(self.stream, self.stream[-1:], dim=-1)


def forward_steps(
    model: Model, image: Tensor, patch: tuple[int, int], layer: int | None = None, head: int | None = None
) -> ForwardSteps:
    """Run the model on one preprocessed image (1, C, H, W) and record the steps of the forward pass.

    `patch`: (row, column) from (0, 0). `layer` and `head` count from 0; defaults: the middle block, and the head whose
    largest attention weight for this patch is the highest.
    """
    model = require_tokens(model)
    images, config = prepare_batch(model, image)[:1], model.config
    grid = config.grid_at((images.shape[2], images.shape[3]))
    layer = config.depth // 2 if layer is None else _in_range(layer, config.depth, "layer")
    if head is not None:
        head = _in_range(head, config.heads, "head")
    for number, count, name in zip(patch, grid, ("row", "column"), strict=True):
        _in_range(number, count, name)
    check_attention_memory(model, images, 1, 4 * config.heads)
    with eval_mode(model), torch.no_grad():
        return _Recorder(model, images, grid, patch, layer, head).record()


def require_tokens(model: Any) -> VisionTransformer:
    """Return the model without torch's wrappers. Raise an error if it has no tokens or was modified."""
    if isinstance(vitreous_model(model, "explain"), BiT):
        raise VitreousError(
            "explain: a BiT is a convolutional network without patches and tokens, so equations 1 to 4 of the ViT paper"
            " do not apply to it; `vitreous inspect` shows its features"
        )
    found = require_unmodified(model, "explain")
    assert isinstance(found, VisionTransformer)
    return found


def _in_range(number: int, count: int, name: str) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < count:
        shown = number + 1 if isinstance(number, int) else brief(number)
        raise VitreousError(f"{name} {shown}: expected 1 to {count}")
    return number


class _Recorder:
    """Runs the model once and keeps what `ForwardSteps` needs."""

    def __init__(
        self, model: VisionTransformer, images: Tensor, grid: Grid, patch: tuple[int, int], layer: int, head: int | None
    ):
        self.model, self.images, self.grid, self.patch = model, images, grid, patch
        self.layer, self.head = layer, head
        self.token = model.config.prefix + patch[0] * grid[1] + patch[1]
        self.norms: list[list[float]] = []
        self.stream: list[Tensor] = []
        self.probabilities: list[Tensor] = []
        self.attention: AttentionStep | None = None

    def record(self) -> ForwardSteps:
        model, config = self.model, self.model.config
        embedded, _ = model.embed(self.images)
        flat, projected = self._embedding()
        tokens, _ = model.encode(self.images, self._visit)
        normed = model.norm(tokens)
        representation = model.representation(normed)
        classifies = config.num_classes > 0 and config.pool != "none"
        positions = model.positions(self.grid) if config.position_at == "stem" else None
        prefix = [token[0] for token in (model.cls_token, model.reg_token) if token is not None]
        assert self.attention is not None
        return ForwardSteps(
            grid=self.grid,
            token=self.token,
            patch=self.patch,
            flat=_plain(flat),
            projected=_plain(projected),
            prefix=_plain(torch.cat(prefix) if prefix else projected.new_zeros(0, config.width)),
            position=None if positions is None else _plain(positions[0, self.token]),
            embedded=_plain(embedded[0]),
            attention=self.attention,
            norms=torch.tensor(self.norms),
            stream=torch.stack(self.stream),
            probabilities=torch.stack(self.probabilities) if classifies else None,
            normed=_plain(self._followed(normed)),
            representation=_plain(representation[0]),
            logits=_plain(model.head(representation)[0]) if classifies else None,
        )

    def _embedding(self) -> tuple[Tensor, Tensor]:
        """The chosen patch as a vector, and its projection. A hybrid cuts patches from the feature map."""
        model = self.model
        source = self.images if model.backbone is None else model.backbone(self.images)
        (height, width), (row, col) = pair(model.config.patch_size), self.patch
        cut = source[0, :, row * height : (row + 1) * height, col * width : (col + 1) * width]
        return cut.flatten(), model.patch_embed(source)[0, self.token - model.config.prefix]

    def _followed(self, tokens: Tensor) -> Tensor:
        """The vector that is followed through depth: the class token, or the mean of the patches."""
        config = self.model.config
        if follows_class_token(self.model):
            return tokens[0, 0]
        return tokens[0, config.prefix :].mean(0)

    def _read(self, tokens: Tensor) -> None:
        config = self.model.config
        self.stream.append(_plain(self._followed(tokens)))
        if config.num_classes and config.pool != "none":
            self.probabilities.append(_plain(class_probabilities(self.model, head_logits(self.model, tokens))[0]))

    def _visit(self, layer: int, block: Any, before: Tensor, after: Tensor, *rest: Any) -> None:
        if layer == 0:
            self._read(before)
        self._read(after)
        x = block.norm1(before)
        branch = block.ls1(block.attn(x, *rest))
        middle = branch + before
        mlp = block.ls2(block.mlp(block.norm2(middle)))
        vectors = (before, branch, middle, mlp, after)
        self.norms.append([float(_plain(one[0, self.token]).norm()) for one in vectors])
        if layer == self.layer:
            self.attention = self._attend(block.attn, x, *rest)

    def _attend(self, attn: Any, x: Tensor, bias: Any, *grid: Grid) -> AttentionStep:
        q, k, v = attn.split(x)
        weights = attn.weights(x, bias, *grid)[0, :, self.token]
        head = int(weights.amax(-1).argmax()) if self.head is None else self.head
        added = None if bias is None else _plain(bias(q)[0, head, self.token])
        query, keys, values = (_plain(part[0, head]) for part in (q, k, v))
        query, shares = query[self.token], _plain(weights[head])
        scores = keys @ query * query.shape[-1] ** -0.5
        scores = scores if added is None else scores + added
        if attn.axis is not None:
            compared = compared_tokens(self.grid, attn.axis, len(scores), scores.device)[self.token]
            scores = scores.masked_fill(~compared, -torch.inf)
        return AttentionStep(self.layer, head, query, keys, added, scores, shares, values, shares @ values)


def follows_class_token(model: VisionTransformer) -> bool:
    """Whether the page follows the class token through depth; otherwise it follows the mean of the patches."""
    return model.config.class_token and model.config.pool in ("token", "none")


def _plain(values: Tensor) -> Tensor:
    return values.detach().float().cpu()
