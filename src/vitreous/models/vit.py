"""The Vision Transformer of "An Image is Worth 16x16 Words", in the order of its equations.

    z_0  = [x_class; x_1 E; ...; x_N E] + E_pos     (1)  VisionTransformer.embed
    z'_l = MSA(LN(z_l-1)) + z_l-1                   (2)  Block.forward
    z_l  = MLP(LN(z'_l)) + z'_l                     (3)  Block.forward
    y    = LN(z_L^0)                                (4)  VisionTransformer.tokens, .pool

Shapes: B batch, D width, N = rows x cols patches, T = N plus the class and register tokens in front of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.errors import VitreousError
from vitreous.models.axial import axial_attention, axis_of, compared_tokens, require_grid
from vitreous.models.base import Model
from vitreous.models.checks import Grid, check_fields, check_images, pick_layers, require, settle
from vitreous.models.drop import Drop
from vitreous.models.embed import Bias, PatchEmbed, Policy, patch_grid, position_biases, position_shapes, position_table
from vitreous.models.init import lecun_normal_, reset_head_, xavier_
from vitreous.models.resnet import ResNet, ResNetConfig, recompute
from vitreous.utils.sizes import Size, pair

Corrupt = Callable[[Tensor], Tensor]  # from patch embeddings (B, N, D) to those that the encoder gets
AUTO: Any = None  # the value follows from other fields: ViTConfig.__post_init__
# Upper limits, far above any known ViT. Larger values are mistakes and would overflow.
LIMITS = {"depth": 10_000, "width": 2**20, "mlp_dim": 2**22, "registers": 2**20, "representation_size": 2**20}


@dataclass(frozen=True)
class ViTConfig:
    """Architecture of a ViT. The default is B/16 at 224 px.

    Fields whose default is AUTO (None) get their value when the config is made. `dataclasses.replace` keeps that value
    unless it is given None again. `representation_size`, `layer_scale` and `backbone` may stay None.

    >>> config = vitreous.ViTConfig(image_size=96, patch_size=8, width=192, depth=7, heads=3, pool="gap")
    >>> config.grid, config.mlp_dim, config.class_token
    ((12, 12), 768, False)
    """

    image_size: Size = 224  # size of the position embeddings; the model accepts other sizes
    patch_size: Size = 16  # size of patches in pixels, or in cells of the backbone's feature map
    channels: int = 3  # channels of the images
    width: int = 768  # dimension of the tokens, D in the paper
    depth: int = 12  # number of blocks, L in the paper
    heads: int = 12  # number of attention heads in each block; must divide the width
    mlp_dim: int = AUTO  # hidden dimension of the MLP; default: 4 x width. With swiglu: the dimension after gating

    pool: Literal["token", "gap", "map", "none"] = "token"  # gap: mean; map: attention pooling; none: return all tokens
    class_token: bool = AUTO  # whether there is a class token; default: if pool="token"
    registers: int = 0  # learned tokens without a position, after the class token
    final_norm: Literal["before-pool", "after-pool"] = "before-pool"  # where the last LayerNorm is
    representation_size: int | None = None  # pre-logits: linear + tanh before the head, for pre-training
    num_classes: int = 1000  # number of outputs; 0: no head, the model returns features
    head_bias: float = 0.0  # initial bias of the head; its weights start at zero

    position: Literal["learned-1d", "learned-2d", "relative", "sincos-1d", "sincos-2d", "none"] = "learned-1d"
    """Position embedding: learned or fixed (sine-cosine), for each patch (1d) or for rows and columns (2d), or learned
    for pairs of patches (relative)."""
    position_at: Literal["stem", "every-layer", "every-layer-shared"] = AUTO
    """Where positions are added; default: stem, and every-layer for relative."""
    position_slots: Literal["patches", "class", "all"] = AUTO
    """Tokens with a position; default: also the class token if it can have one."""
    resample: Policy = "google"  # how learned positions are resampled to another grid

    attention: Literal["full", "axial"] = "full"  # axial: even blocks attend within rows, odd blocks within columns
    mlp: Literal["gelu", "swiglu"] = "gelu"  # activation, or gated hidden layer, of the MLP in each block
    gelu: Literal["tanh", "erf"] = "tanh"  # approximate or exact GELU, for mlp="gelu" and pool="map"
    norm_eps: float = 1e-6  # epsilon of the LayerNorms
    qkv_bias: bool = True  # biases of queries, keys and values
    qk_norm: bool = False  # LayerNorm of q and k; like qkv_bias and the dropout rates, not in the pooling of pool="map"
    layer_scale: float | None = None  # initial value; None: no LayerScale
    dropout: float = 0.0  # dropout rate on the embeddings, the output of attention, and inside and after the MLP
    attention_dropout: float = 0.0  # dropout rate on the attention weights
    stochastic_depth: float = 0.0  # rate of the last block; it grows linearly from 0 at the first block

    backbone: ResNetConfig | None = None  # hybrids: patches are cut from its feature map
    remainder: Literal["error", "crop"] = "error"  # if the patch size does not divide the image: an error, or crop it

    def __post_init__(self) -> None:
        check_fields(self)
        can_slot = self.position in ("learned-1d", "learned-2d", "sincos-1d")  # the class token can have a position
        settle(self, mlp_dim=4 * self.width, class_token=self.pool == "token")
        settle(self, position_at="every-layer" if self.position == "relative" else "stem")
        settle(self, position_slots="class" if can_slot and self.class_token else "patches")
        self._check(can_slot)

    def _check(self, can_slot: bool) -> None:
        """Raise if a value is out of range or a combination of fields makes no sense."""
        for name in ("channels", "width", "depth", "heads", "mlp_dim", "norm_eps"):
            require(getattr(self, name) > 0, self, name, "must be positive")
        for name in ("registers", "num_classes"):
            require(getattr(self, name) >= 0, self, name, "must be 0 or more")
        for name, limit in LIMITS.items():
            require((getattr(self, name) or 0) <= limit, self, name, f"must be {limit:,} or less")
        for name in ("dropout", "attention_dropout", "stochastic_depth"):
            require(0 <= getattr(self, name) < 1, self, name, "must be at least 0 and below 1")
        for name in ("representation_size", "layer_scale"):
            require(getattr(self, name) is None or getattr(self, name) > 0, self, name, "must be None or positive")
        require(self.width % self.heads == 0, self, "heads", f"must divide the width, {self.width}")
        parts = {"learned-2d": 2, "sincos-1d": 2, "sincos-2d": 4}.get(self.position, 1)
        relative, fixed = self.position == "relative", self.position.startswith("sincos")
        at, slots = self.position_at, self.position_slots
        backbone_ok = self.backbone is None or type(self.backbone) is ResNetConfig
        for ok, name, problem in (
            (self.width % parts == 0, "position", f"needs a width divisible by {parts}, not {self.width}"),
            (self.pool != "token" or self.class_token, "pool", "needs class_token=True; or 'gap', 'map', 'none'"),
            (self.pool != "none" or self.final_norm == "before-pool", "final_norm", "'before-pool' with pool='none'"),
            (not relative or self.attention == "full", "attention", "position='relative' needs 'full'"),
            (not relative or at != "stem", "position_at", "relative: 'every-layer' or 'every-layer-shared'"),
            (self.position != "none" or at == "stem", "position_at", "with position='none' nothing but 'stem'"),
            (not fixed or at != "every-layer", "position_at", f"{self.position}: 'stem' or 'every-layer-shared'"),
            (can_slot or slots == "patches", "position_slots", f"{self.position}: nothing but 'patches'"),
            (slots != "class" or self.class_token, "position_slots", "needs class_token=True; or 'patches'"),
            (slots != "all" or self.registers, "position_slots", "needs registers; or 'class', 'patches'"),
            (backbone_ok, "backbone", "expected a ResNetConfig (a BiTConfig has a head) or None"),
        ):
            require(ok, self, name, problem)
        try:
            self.grid_at(pair(self.image_size))
        except VitreousError as error:
            require(False, self, "image_size", str(error))

    @property
    def prefix(self) -> int:
        """Number of tokens in front of the patches: class, then registers."""
        return int(self.class_token) + self.registers

    @property
    def slots(self) -> int:
        """Number of those tokens that have a position embedding."""
        return {"patches": 0, "class": 1, "all": self.prefix}[self.position_slots]

    @property
    def head_width(self) -> int:
        """Input dimension of the head."""
        return self.representation_size or self.width

    @property
    def tables(self) -> int:
        """Number of position tables: one, or one per layer."""
        return self.depth if self.position_at == "every-layer" else 1

    @property
    def grid(self) -> Grid:
        """(rows, cols) of patches at `image_size`."""
        return self.grid_at(pair(self.image_size))

    def grid_at(self, size: tuple[int, int]) -> Grid:
        """(rows, cols) of patches for an image of (height, width)."""
        stride = 1 if self.backbone is None else self.backbone.stride
        return patch_grid(size, stride, pair(self.patch_size), crop=self.remainder == "crop")


class Attention(nn.Module):
    """Multi-head self-attention: MSA in equation 2. Axial attention needs the grid of the patches."""

    def __init__(self, config: ViTConfig, layer: int):
        super().__init__()
        self.heads = config.heads
        self.axis = axis_of(layer) if config.attention == "axial" else None
        self.dropout = config.attention_dropout
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=config.qkv_bias)
        self.proj = nn.Linear(config.width, config.width)
        size = config.width // config.heads
        self.q_norm = nn.LayerNorm(size, eps=config.norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm = nn.LayerNorm(size, eps=config.norm_eps) if config.qk_norm else nn.Identity()

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, (B, heads, T, d) each."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.q_norm(q), self.k_norm(k), v

    def forward(self, x: Tensor, bias: Bias | None = None, grid: Grid | None = None) -> Tensor:
        q, k, v = self.split(x)
        dropout = self.dropout if self.training else 0.0
        if self.axis is not None:
            x = axial_attention(q, k, v, require_grid(grid, bias), self.axis, dropout)
        else:
            mask = None if bias is None else bias(q)
            x = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
        x = self.proj(x.transpose(1, 2).flatten(2))
        return x

    def weights(self, x: Tensor, bias: Bias | None = None, grid: Grid | None = None) -> Tensor:
        """Attention weights (B, heads, T, T), from a second q k product: `forward` uses fused attention. Axial
        attention has zeros for tokens that are not compared."""
        q, k, _ = self.split(x)
        logits: Tensor = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
        if self.axis is not None:
            compared = compared_tokens(require_grid(grid, bias), self.axis, x.shape[1], x.device)
            logits = logits.masked_fill(~compared, -torch.inf)
        return (logits if bias is None else logits + bias(q)).softmax(-1)


class Mlp(nn.Module):
    """Linear, GELU, linear; or SwiGLU: silu(gate) x value, where one linear layer computes gate and value."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        hidden = config.mlp_dim
        self.swiglu = config.mlp == "swiglu"
        self.approximate = "tanh" if config.gelu == "tanh" else "none"
        self.fc1 = nn.Linear(config.width, 2 * hidden if self.swiglu else hidden)
        self.fc2 = nn.Linear(hidden, config.width)
        self.drop = Drop(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        if self.swiglu:
            gate, x = x.chunk(2, dim=-1)
            x = F.silu(gate) * x
        else:
            x = F.gelu(x, approximate=self.approximate)
        x = self.fc2(self.drop(x))
        return x


class LayerScale(nn.Module):
    def __init__(self, width: int, value: float):
        super().__init__()
        self.value = value
        self.gamma = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Block(nn.Module):
    """One layer of the encoder: equations 2 and 3."""

    def __init__(self, config: ViTConfig, layer: int):
        super().__init__()
        scale = config.layer_scale
        self.norm1 = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.attn = Attention(config, layer)
        self.ls1 = nn.Identity() if scale is None else LayerScale(config.width, scale)
        self.norm2 = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.mlp = Mlp(config)
        self.ls2 = nn.Identity() if scale is None else LayerScale(config.width, scale)
        depth = config.stochastic_depth * layer / max(config.depth - 1, 1)
        self.drop1 = Drop(config.dropout, depth)
        self.drop2 = Drop(config.dropout, depth)

    def forward(self, x: Tensor, bias: Bias | None = None, *grid: Grid) -> Tensor:
        x = self.drop1(self.ls1(self.attn(self.norm1(x), bias, *grid))) + x
        x = self.drop2(self.ls2(self.mlp(self.norm2(x)))) + x
        return x


class AttentionPool(nn.Module):
    """Attention pooling with a learned query and a residual MLP: the MAP head of big_vision."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.heads = config.heads
        self.latent = nn.Parameter(torch.empty(1, 1, config.width))
        self.q = nn.Linear(config.width, config.width)
        self.kv = nn.Linear(config.width, 2 * config.width)
        self.proj = nn.Linear(config.width, config.width)
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.mlp = Mlp(replace(config, mlp="gelu", dropout=0.0))

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(self.latent).expand(x.shape[0], -1, -1).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.kv(x).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)  # (B, heads, N, d)
        x = self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        x = self.mlp(self.norm(x)) + x
        return x[:, 0]


class VisionTransformer(Model):
    """A Vision Transformer. `model(images)` returns logits.

    Images are (B, C, H, W), of any size that the patch size divides. `vitreous.create` and `vitreous.load` return a
    model; `VisionTransformer(config)` builds one of a `ViTConfig`.

    >>> import torch
    >>> model = vitreous.load("vitreous-mini")
    >>> images = torch.randn(2, 3, 96, 128)
    >>> model(images).shape, model.features(images).shape
    (torch.Size([2, 20]), torch.Size([2, 192]))
    >>> model.intermediates(images, [-1])[0].shape, model.attention(images, [0])[0].shape
    (torch.Size([2, 192, 12, 16]), torch.Size([2, 3, 192, 192]))
    """

    config: ViTConfig  # architecture

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.config = c = config
        inputs = c.channels if c.backbone is None else c.backbone.out_width
        self.backbone = None if c.backbone is None else ResNet(c.backbone, c.channels)
        self.patch_embed = PatchEmbed(inputs, c.width, pair(c.patch_size))
        self.cls_token = nn.Parameter(torch.empty(1, 1, c.width)) if c.class_token else None
        self.reg_token = nn.Parameter(torch.empty(1, c.registers, c.width)) if c.registers else None
        positions = {name: nn.Parameter(torch.empty(shape)) for name, shape in position_shapes(c).items()}
        self.pos_embed = positions.get("pos_embed")  # learned-1d
        self.pos_embed_x, self.pos_embed_y = positions.get("pos_embed_x"), positions.get("pos_embed_y")  # learned-2d
        self.pos_embed_slots = positions.get("pos_embed_slots")  # learned-2d: class and register tokens
        self.rel_pos_embed = positions.get("rel_pos_embed")  # relative
        self.drop = Drop(c.dropout)
        self.blocks = nn.ModuleList(Block(c, layer) for layer in range(c.depth))
        before = c.final_norm == "before-pool"
        self.norm = nn.LayerNorm(c.width, eps=c.norm_eps) if before else nn.Identity()
        self.fc_norm = nn.Identity() if before else nn.LayerNorm(c.width, eps=c.norm_eps)
        self.attn_pool = AttentionPool(c) if c.pool == "map" else None
        self.pre_logits = nn.Linear(c.width, c.representation_size) if c.representation_size else None
        self.head = nn.Linear(c.head_width, c.num_classes) if c.num_classes else nn.Identity()
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialise the weights as the official code does."""
        if self.patch_embed.proj.weight.is_meta:
            return
        for module in self.modules():
            match module:
                case Attention():
                    xavier_(module.qkv, parts=3)
                    xavier_(module.proj)
                case Mlp():
                    xavier_(module.fc1, parts=2 if module.swiglu else 1, bias_std=1e-6)
                    xavier_(module.fc2, bias_std=1e-6)
                case AttentionPool():
                    nn.init.xavier_uniform_(module.latent[0])
                    xavier_(module.q)
                    xavier_(module.kv, parts=2)
                    xavier_(module.proj)
                case LayerScale():
                    nn.init.constant_(module.gamma, module.value)
                case nn.LayerNorm() | ResNet():
                    module.reset_parameters()
        lecun_normal_(self.patch_embed.proj)
        if self.cls_token is not None:
            nn.init.zeros_(self.cls_token)
        if self.reg_token is not None:
            nn.init.normal_(self.reg_token, std=1e-6)
        for name in position_shapes(self.config):
            nn.init.normal_(self.get_parameter(name), std=0.02)
        if isinstance(self.pre_logits, nn.Linear):
            lecun_normal_(self.pre_logits)
        reset_head_(self.head, self.config.head_bias)

    def positions(self, grid: Grid) -> Tensor | None:
        """E_pos for a grid, (1 or depth, T, D); None if the model adds no position embeddings."""
        tables = {name: getattr(self, name) for name in position_shapes(self.config)}
        return position_table(self.config, tables, grid, like=self.patch_embed.proj.weight)

    def embed(self, images: Tensor, corrupt: Corrupt | None = None) -> tuple[Tensor, Grid]:
        """Equation 1: tokens (B, T, D) in the order class, registers, patches; and the grid (rows, cols) of patches.
        `corrupt` is applied to the patch embeddings, before positions are added."""
        first = self.patch_embed.proj if self.backbone is None else self.backbone.stem.conv
        check_images(images, self.config.channels, weight=first.weight)
        grid = self.config.grid_at((index(images.shape[2]), index(images.shape[3])))  # constants of a compiled graph
        if self.backbone is not None:
            images = self.backbone(images, self.checkpoint_activations)
        x = self.patch_embed(images)
        x = x if corrupt is None else corrupt(x)
        prefix = [token.expand(x.shape[0], -1, -1) for token in (self.cls_token, self.reg_token) if token is not None]
        x = torch.cat([*prefix, x], dim=1)
        if self.config.position_at == "stem" and (positions := self.positions(grid)) is not None:
            x = x + positions[0]
        return self.drop(x), grid

    def encode(
        self, images: Tensor, visit: Callable[..., None] | None = None, last: int = -1, corrupt: Corrupt | None = None
    ) -> tuple[Tensor, Grid]:
        """Equations 1 to 3, up to the layer `last`. `visit` is called with (layer, block, input, output, bias), and
        for axial attention also with the grid, which the blocks get then too. `corrupt`: as in `embed`."""
        c = self.config
        x, grid = self.embed(images, corrupt)
        positions = None if c.position_at == "stem" else self.positions(grid)
        biases = None if self.rel_pos_embed is None else position_biases(c, self.rel_pos_embed, grid)
        lines = (grid,) if c.attention == "axial" else ()
        for layer, block in enumerate(self.blocks):
            if positions is not None:
                x = x + positions[layer % c.tables]
            bias = None if biases is None else biases[layer % c.tables]
            before = x
            x = recompute(block, x, bias, *lines) if self.checkpoint_activations else block(x, bias, *lines)
            if visit is not None:
                visit(layer, block, before, x, bias, *lines)
            if layer == last:
                break
        return x, grid

    def tokens(self, images: Tensor) -> tuple[Tensor, Grid]:
        """Tokens (B, T, D) after the final norm, and the grid (rows, cols) of patches. The first `config.prefix` tokens
        are class and registers."""
        x, grid = self.encode(images)
        return self.norm(x), grid

    def pool(self, x: Tensor) -> Tensor:
        """Pool tokens to one vector per image: the class token, the mean of the patches or attention pooling. With
        pool="none", return all tokens."""
        if self.config.pool in ("token", "none"):
            return x[:, 0] if self.config.pool == "token" else x
        x = x[:, self.config.prefix :]
        x = x.mean(1) if self.attn_pool is None else self.attn_pool(x)
        return x

    def representation(self, tokens: Tensor) -> Tensor:
        """From the tokens after the final norm (B, T, D) to the input of the head: pooling, and pre-logits if any."""
        x = self.fc_norm(self.pool(tokens))
        return x if self.pre_logits is None else torch.tanh(self.pre_logits(x))

    def features(self, images: Tensor) -> Tensor:
        """The input of the head: (B, D), or (B, representation_size)."""
        return self.representation(self.tokens(images)[0])

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, num_classes) of images (B, C, H, W); without a head, the features."""
        logits: Tensor = self.head(self.features(images))
        return logits

    def intermediates(self, images: Tensor, layers: Sequence[int], norm: bool = False) -> list[Tensor]:
        """Feature maps (B, D, rows, cols) after the given layers (-1: the last), with the final norm if `norm`."""
        if norm and self.config.final_norm == "after-pool":
            raise VitreousError("intermediates: norm=True, but this model applies its final norm after pooling")
        maps, grid = self._collect(images, layers, lambda _, before, x, *rest: self.norm(x) if norm else x)
        return [x[:, self.config.prefix :].transpose(1, 2).unflatten(2, grid) for x in maps]

    def attention(self, images: Tensor, layers: Sequence[int]) -> list[Tensor]:
        """Attention weights (B, heads, queries, keys) of the given layers."""
        return self._collect(images, layers, lambda block, x, _, *rest: block.attn.weights(block.norm1(x), *rest))[0]

    def _collect(
        self, images: Tensor, layers: Sequence[int], compute: Callable[..., Tensor]
    ) -> tuple[list[Tensor], Grid]:
        """Call `compute(block, input, output, bias, ...)` at the given layers and return the results."""
        wanted = pick_layers(layers, self.config.depth)
        results: dict[int, Tensor] = {}

        def visit(layer: int, *arguments: object) -> None:
            if layer in wanted:
                results[layer] = compute(*arguments)

        _, grid = self.encode(images, visit, max(wanted, default=0))
        return [results[layer] for layer in wanted], grid
