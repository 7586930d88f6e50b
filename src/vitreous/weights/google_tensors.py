"""Tensor names and layouts of Google's checkpoints.

There are several generations of names. On reading, all are renamed to those of the current big_vision:

    embedding, cls, pos_embedding, Transformer/encoderblock_0/{LayerNorm_0, MultiHeadDotProductAttention_0, LayerNorm_1,
    MlpBlock_0}, Transformer/encoder_norm, MAPHead_0, pre_logits, head; conv_root, gn_root, block1/unit1/{conv1, gn1}

Kernels are stored with inputs first: (in, out), (height, width, in, out), and (in, heads, head width) for q, k and v.
"""

import re
from dataclasses import replace

from torch import Tensor

from vitreous.models.vit import ViTConfig
from vitreous.weights.checkpoint import Config, parameter_shapes
from vitreous.weights.tensor_map import SAME, DialectTensor, Layout, TensorMap

PREFIXES = ("opt/target/", "params/img/", "img/", "params/")  # all tensors of the model have one of these, or none
ROOTS = (  # the first layer of a model
    "embedding/kernel",
    "conv_root/kernel",
    "root_block/conv_root/kernel",
    "resnet/root_block/standardized_conv2d/kernel",
)
TO_BIG_VISION = (  # from all older generations; applied in this order
    (r"^Transformer/(?:posembed_input/)?pos_embedding$", "pos_embedding"),
    (r"^(Transformer/encoderblock(?:_\d+)?)/LayerNorm_2/", r"\1/LayerNorm_1/"),
    (r"^(Transformer/encoderblock(?:_\d+)?)/MultiHeadDotProductAttention_1/", r"\1/MultiHeadDotProductAttention_0/"),
    (r"^(Transformer/encoderblock(?:_\d+)?)/MlpBlock_3/", r"\1/MlpBlock_0/"),
    (r"^(probe$|MlpBlock_0/|MultiHeadDotProductAttention_0/|LayerNorm_0/)", r"MAPHead_0/\1"),
    # BiT in TensorFlow: a, b, c are the three convolutions of a unit
    (r"/standardized_conv2d(?:_\d+)?/", "/"),
    (r"^resnet/root_block/kernel$", "root_block/conv_root/kernel"),
    (r"^resnet/group_norm/", "norm-pre-head/"),
    (r"^resnet/head/conv2d/", "head/"),
    (r"^resnet/(block\d+/unit\d+)/a/proj/", r"\1/conv_proj/"),
    *((rf"^resnet/(block\d+/unit\d+)/{letter}/group_norm/", rf"\1/gn{i}/") for i, letter in enumerate("abc", 1)),
    *((rf"^resnet/(block\d+/unit\d+)/{letter}/kernel$", rf"\1/conv{i}/kernel") for i, letter in enumerate("abc", 1)),
    (r"/gamma$", "/scale"),
    (r"/beta$", "/bias"),
    (r"^(block\d+/unit)0+(\d+/)", r"\1\2"),
)
FROM_BIG_VISION_TO_RELEASED = (  # names of a ViT in the files that Google released
    (r"^pos_embedding$", "Transformer/posembed_input/pos_embedding"),
    (r"^(Transformer/encoderblock_\d+)/LayerNorm_1/", r"\1/LayerNorm_2/"),
    (r"^(Transformer/encoderblock_\d+)/MultiHeadDotProductAttention_0/", r"\1/MultiHeadDotProductAttention_1/"),
    (r"^(Transformer/encoderblock_\d+)/MlpBlock_0/", r"\1/MlpBlock_3/"),
)
FROM_BIG_VISION_TO_TENSORFLOW = (  # names of a BiT in TensorFlow
    (r"^root_block/conv_root/", "resnet/root_block/standardized_conv2d/"),
    (r"^norm-pre-head/", "resnet/group_norm/"),
    (r"^head/", "resnet/head/conv2d/"),
    (r"^(block\d+/unit\d+)/conv_proj/", r"resnet/\1/a/proj/standardized_conv2d/"),
    *((rf"^(block\d+/unit\d+)/gn{i}/", rf"resnet/\1/{letter}/group_norm/") for i, letter in enumerate("abc", 1)),
    *(
        (rf"^(block\d+/unit\d+)/conv{i}/", rf"resnet/\1/{letter}/standardized_conv2d/")
        for i, letter in enumerate("abc", 1)
    ),
    (r"^(.*group_norm)/scale$", r"\1/gamma"),
    (r"^(.*group_norm)/bias$", r"\1/beta"),
)


# ---------------------------------------------------------------- layouts


def _flat(t: Tensor) -> Tensor:
    """Flatten the arrays of old group norms, which are (1, 1, 1, C)."""
    return t[0, 0, 0] if t.shape[:-1] == (1, 1, 1) else t


def _matrix(t: Tensor) -> Tensor:
    """Transpose a kernel. BiT's head may be a 1 x 1 convolution."""
    return t[0, 0].t() if t.ndim == 4 and t.shape[:2] == (1, 1) else t.t()


_DENSE = Layout(_matrix, lambda t: t.t())
_POINTWISE = Layout(_matrix, lambda t: t.t()[None, None])
_CONV = Layout(lambda t: t.permute(3, 2, 0, 1), lambda t: t.permute(2, 3, 1, 0), rank=4)
_VECTOR = Layout(_flat, lambda t: t)
_MAP_VECTOR = Layout(_flat, lambda t: t[None, None, None])
_TABLE = Layout(lambda t: t, lambda t: t, rank=3)


def _qkv_kernel(n: int) -> Layout:
    """Layout (in, heads, head width)."""
    return Layout(lambda t: t.flatten(1).t(), lambda t: t.t().unflatten(1, (n, -1)), rank=3, axis=1, size=n)


def _qkv_bias(n: int) -> Layout:
    """Layout (heads, head width)."""
    return Layout(lambda t: t.flatten(), lambda t: t.unflatten(0, (n, -1)), rank=2, axis=0, size=n)


def _projection_kernel(n: int) -> Layout:
    """Layout (heads, head width, out)."""
    return Layout(lambda t: t.flatten(0, 1).t(), lambda t: t.t().unflatten(0, (n, -1)), rank=3, axis=0, size=n)


# ---------------------------------------------------------------- tensor map, by big_vision's names


def big_vision_tensor_map(config: Config) -> TensorMap:
    """Return big_vision's name and layout for each parameter. Parameters without a name in big_vision are omitted."""
    tensor_map: TensorMap = {}
    for parameter in parameter_shapes(config):
        if tensor := _dialect_tensor(config, parameter):
            tensor_map[parameter] = tensor
    return tensor_map


_SINGLE = {
    "cls_token": DialectTensor(("cls",), _TABLE),
    "pos_embed": DialectTensor(("pos_embedding",), _TABLE),
    "attn_pool.latent": DialectTensor(("MAPHead_0/probe",), _TABLE),
    "patch_embed.proj.weight": DialectTensor(("embedding/kernel",), _CONV),
    "patch_embed.proj.bias": DialectTensor(("embedding/bias",)),
    "pre_logits.weight": DialectTensor(("pre_logits/kernel",), _DENSE),
    "pre_logits.bias": DialectTensor(("pre_logits/bias",)),
    "head.weight": DialectTensor(("head/kernel",), _DENSE),
    "head.bias": DialectTensor(("head/bias",)),
} | {
    f"{norm}.{part}": DialectTensor((f"Transformer/encoder_norm/{google_part}",))
    for norm in ("norm", "fc_norm")
    for part, google_part in (("weight", "scale"), ("bias", "bias"))
}


def _dialect_tensor(config: Config, parameter: str) -> DialectTensor | None:
    if parameter in _SINGLE:
        return _SINGLE[parameter]
    module, _, rest = parameter.partition(".")
    if module == "backbone":
        return _resnet_tensor(config, *rest.rsplit(".", 1))
    if module == "blocks":
        layer, _, rest = rest.partition(".")
        return _block_tensor(config, f"Transformer/encoderblock_{layer}", *rest.rsplit(".", 1))
    if module == "attn_pool":
        return _block_tensor(config, "MAPHead_0", *rest.rsplit(".", 1))
    return None


def _block_tensor(config: Config, block: str, name: str, part: str) -> DialectTensor | None:
    heads = getattr(config, "heads", 1)
    is_weight = part == "weight"
    google_part = "kernel" if is_weight else "bias"
    attention = f"{block}/MultiHeadDotProductAttention_0"
    if norm := {"norm1": "LayerNorm_0", "norm2": "LayerNorm_1", "norm": "LayerNorm_0"}.get(name):
        return DialectTensor((f"{block}/{norm}/{'scale' if is_weight else 'bias'}",))
    if dense := {"mlp.fc1": "Dense_0", "mlp.fc2": "Dense_1"}.get(name):
        return DialectTensor((f"{block}/MlpBlock_0/{dense}/{google_part}",), _DENSE if is_weight else SAME)
    if inputs := {"attn.qkv": ("query", "key", "value"), "q": ("query",), "kv": ("key", "value")}.get(name):
        layout = _qkv_kernel(heads) if is_weight else _qkv_bias(heads)
        return DialectTensor(tuple(f"{attention}/{input_name}/{google_part}" for input_name in inputs), layout)
    if name in ("attn.proj", "proj"):
        return DialectTensor((f"{attention}/out/{google_part}",), _projection_kernel(heads) if is_weight else SAME)
    return None


def _resnet_tensor(config: Config, name: str, part: str) -> DialectTensor:
    if name == "stem.conv":
        post = (config.backbone if isinstance(config, ViTConfig) else config).activation == "post"  # type: ignore[union-attr]
        return DialectTensor(("conv_root/kernel" if post else "root_block/conv_root/kernel",), _CONV)
    if name in ("stem.norm", "norm"):
        google_name = {"stem.norm": "gn_root", "norm": "norm-pre-head"}[name]
    else:
        _, stage, unit, layer = name.split(".")
        google_name = f"block{int(stage) + 1}/unit{int(unit) + 1}/{layer.replace('norm', 'gn')}"
        if layer.startswith("conv"):
            return DialectTensor((f"{google_name}/kernel",), _CONV)
    return DialectTensor((f"{google_name}/{'scale' if part == 'weight' else 'bias'}",), _MAP_VECTOR)


# ---------------------------------------------------------------- other generations of names


def to_big_vision_name(name: str) -> str:
    return _substitute(name, TO_BIG_VISION)


def released_vit_tensor_map(config: ViTConfig) -> TensorMap:
    """Return the tensor map of the ViTs that Google released."""
    return _rename_tensors(big_vision_tensor_map(config), FROM_BIG_VISION_TO_RELEASED)


def bit_tensor_map(config: Config, *, tensorflow: bool, two_digit_units: bool) -> TensorMap:
    """Return the tensor map of a BiT. `tensorflow`: with the names and layouts of the TensorFlow code."""
    tensor_map = big_vision_tensor_map(config)
    if tensorflow:
        layouts = {_MAP_VECTOR: _VECTOR, _DENSE: _POINTWISE}
        tensor_map = {
            parameter: replace(tensor, layout=layouts.get(tensor.layout, tensor.layout))
            for parameter, tensor in tensor_map.items()
        }
    two_digits = ((r"^(block\d+/unit)(\d/)", r"\g<1>0\2"),) if two_digit_units else ()
    return _rename_tensors(tensor_map, (*two_digits, *(FROM_BIG_VISION_TO_TENSORFLOW if tensorflow else ())))


def _rename_tensors(tensor_map: TensorMap, names: tuple[tuple[str, str], ...]) -> TensorMap:
    return {
        parameter: replace(tensor, names=tuple(_substitute(name, names) for name in tensor.names))
        for parameter, tensor in tensor_map.items()
    }


def _substitute(name: str, patterns: tuple[tuple[str, str], ...]) -> str:
    for pattern, replacement in patterns:
        name = re.sub(pattern, replacement, name)
    return name
