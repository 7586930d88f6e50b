"""Random configs of small models, for hypothesis."""

from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from helpers import SMALL_RESNET
from vitreous import BiTConfig, ResNetConfig, ViTConfig, VitreousError

anything: dict[str, st.SearchStrategy[Any]] = {
    "image_size": st.sampled_from([16, 32, (16, 24), (40, 16)]),
    "patch_size": st.sampled_from([8, 4, (8, 4), (4, 8)]),
    "channels": st.integers(1, 4),
    "width": st.sampled_from([12, 16, 24, 30]),
    "depth": st.integers(1, 3),
    "heads": st.sampled_from([1, 2, 3]),
    "mlp_dim": st.sampled_from([None, 8, 20]),
    "pool": st.sampled_from(["token", "gap", "map", "none"]),
    "class_token": st.sampled_from([None, True, False]),
    "registers": st.integers(0, 2),
    "final_norm": st.sampled_from(["before-pool", "after-pool"]),
    "representation_size": st.sampled_from([None, 6]),
    "num_classes": st.sampled_from([0, 5]),
    "head_bias": st.sampled_from([0.0, -10.0]),
    "position": st.sampled_from(["learned-1d", "learned-2d", "relative", "sincos-1d", "sincos-2d", "none"]),
    "position_at": st.sampled_from([None, "stem", "every-layer", "every-layer-shared"]),
    "position_slots": st.sampled_from([None, "patches", "class", "all"]),
    "resample": st.sampled_from(["google", "timm", "hf", "torchvision", "dino", "dinov2", "dinov2-registers"]),
    "attention": st.sampled_from(["full", "axial"]),
    "mlp": st.sampled_from(["gelu", "swiglu"]),
    "gelu": st.sampled_from(["tanh", "erf"]),
    "norm_eps": st.sampled_from([1e-6, 1e-12]),
    "qkv_bias": st.booleans(),
    "qk_norm": st.booleans(),
    "layer_scale": st.sampled_from([None, 0.1]),
    "dropout": st.sampled_from([0.0, 0.1]),
    "attention_dropout": st.sampled_from([0.0, 0.1]),
    "stochastic_depth": st.sampled_from([0.0, 0.1]),
    "backbone": st.sampled_from([None, None, SMALL_RESNET, ResNetConfig((), 0.5, "post", "small")]),
    "remainder": st.sampled_from(["error", "crop"]),
}
fields = st.fixed_dictionaries(anything)


def sensible(settings: dict[str, Any]) -> ViTConfig:
    """Return the config; reject the draw if it is invalid."""
    try:
        return ViTConfig(**settings)
    except VitreousError:
        assume(False)
        raise


def repaired(settings: dict[str, Any]) -> ViTConfig:
    """Return a valid config close to these settings: conflicting settings are dropped."""
    settings = dict(settings)
    while True:
        try:
            return ViTConfig(**{**SMALL, **settings})
        except VitreousError as error:
            name = str(error).split(" = ")[0].removeprefix("ViTConfig.")
            also = {"image_size": ("backbone", "patch_size"), "pool": ("class_token",)}.get(name, ())
            if not (wrong := {name, *also} & settings.keys()):
                raise
            for one in wrong:
                settings.pop(one)


SMALL: dict[str, Any] = {"image_size": 16, "patch_size": 8, "width": 24, "depth": 2, "heads": 2}
vits = fields.map(repaired)
bits = st.builds(
    BiTConfig,
    blocks=st.sampled_from([(1,), (1, 1)]),
    width_factor=st.just(0.5),
    activation=st.sampled_from(["pre", "post"]),
    stem=st.just("small"),
    image_size=st.just(16),
    num_classes=st.just(5),
)
