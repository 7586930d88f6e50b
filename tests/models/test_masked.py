"""Masked-patch model: which patches are corrupted, and what the encoder gets, against loops in Python."""

import pytest
import torch
from torch import Tensor

from helpers import draw, images, tiny_vit
from vitreous import VitreousError
from vitreous.models import VisionTransformer, ViTConfig
from vitreous.models.masked import (
    Corruption,
    MaskedPatchModel,
    check_maskable,
    draw_corruption,
    from_encoder,
    keyed_corruption,
)
from vitreous.models.resnet import BiTConfig
from vitreous.models.zoo import config as named_config
from vitreous.utils import random_keys

KEYS = random_keys.keys(3, torch.arange(400))


def masked_model(**changes: object) -> MaskedPatchModel:
    fields = {"image_size": 32, "patch_size": 8, "width": 48, "depth": 2, "heads": 3, "num_classes": 0, **changes}
    return draw(MaskedPatchModel(ViTConfig(**fields), 512, 0.5))  # type: ignore[arg-type]


def by_loops(key: Tensor, patches: int, ratio: float) -> tuple[list[int], list[int]]:
    """Corrupted patches of one image and the source of each patch, from its uniform draws."""
    numbers = {
        purpose: random_keys.uniform(key[None], purpose, patches)[0].tolist()
        for purpose in ("corrupted patches", "corruption", "other patch")
    }
    by_draw = sorted(range(patches), key=lambda i: (numbers["corrupted patches"][i], i))
    corrupted = sorted(by_draw[: round(ratio * patches)])
    sources = list(range(patches))
    for i in corrupted:
        if numbers["corruption"][i] < 0.8:
            sources[i] = patches
        elif numbers["corruption"][i] < 0.9:
            others = [j for j in range(patches) if j != i]
            sources[i] = others[int(numbers["other patch"][i] * len(others))]
    return corrupted, sources


@pytest.mark.parametrize(("patches", "ratio"), [(2, 0.5), (9, 0.15), (49, 0.5), (196, 0.5)])
def test_corruption_equals_that_of_loops(patches: int, ratio: float) -> None:
    drawn = draw_corruption(KEYS[:20], patches, ratio)
    for image, key in enumerate(KEYS[:20]):
        assert (drawn.patches[image].tolist(), drawn.sources[image].tolist()) == by_loops(key, patches, ratio)


def test_proportions() -> None:
    """50% are corrupted, exactly; of these 80% are masked, 10% are another patch and 10% are kept."""
    patches = 64
    drawn = draw_corruption(KEYS, patches, 0.5)
    assert drawn.patches.shape == (400, 32)
    sources = drawn.sources.gather(1, drawn.patches)
    kept = (sources == drawn.patches).double().mean().item()
    masked = (sources == patches).double().mean().item()
    assert masked == pytest.approx(0.8, abs=0.015)
    assert kept == pytest.approx(0.1, abs=0.012)
    corrupted = torch.zeros(400, patches, dtype=torch.bool).scatter(1, drawn.patches, True)
    assert corrupted.double().mean(0).sub(0.5).abs().max() < 0.12  # every place is equally likely
    unchanged = torch.arange(patches).expand(400, -1)[~corrupted]
    assert torch.equal(drawn.sources[~corrupted], unchanged)
    moved = (sources != drawn.patches) & (sources != patches)
    offsets = (sources[moved] - drawn.patches[moved]) % patches
    assert offsets.unique().numel() == patches - 1  # any other patch
    assert offsets.double().mean().item() == pytest.approx(patches / 2, abs=2)


def test_corruption_depends_on_the_key_only() -> None:
    together, apart = draw_corruption(KEYS[:6], 16, 0.5), [draw_corruption(key[None], 16, 0.5) for key in KEYS[:6]]
    assert torch.equal(together.sources, torch.cat([one.sources for one in apart]))
    assert together.sources.unique(dim=0).shape[0] == 6


def test_predictions_equal_those_of_loops() -> None:
    """The embeddings are replaced before positions are added; a patch is predicted from its own output token."""
    model, x, keys = masked_model(pool="token", registers=1), images(3, 3, 32, 32), KEYS[:3]
    with torch.no_grad(), keyed_corruption(model, keys):
        found = model(x)
    with torch.no_grad():
        for image in range(3):
            corrupted, sources = by_loops(keys[image], 16, 0.5)
            embeddings = model.patch_embed(x[image : image + 1])[0]
            replaced = [model.mask_token[0] if j == 16 else embeddings[j] for j in sources]
            tokens = torch.stack([model.cls_token[0, 0], model.reg_token[0, 0], *replaced])
            tokens = tokens[None] + model.positions((4, 4))[0]
            for block in model.blocks:
                tokens = block(tokens)
            expected = torch.stack([model.patch_head(model.norm(tokens[0, 2 + i])) for i in corrupted])
            assert torch.allclose(found[image], expected, atol=1e-5)


def test_other_sizes_and_norms_and_positions() -> None:
    for fields in (
        {"pool": "gap", "final_norm": "after-pool"},
        {"position": "relative"},
        {"position_at": "every-layer"},
        {"attention": "axial"},
    ):
        model = masked_model(**fields)
        with torch.no_grad(), keyed_corruption(model, KEYS[:2]):
            assert model(images(2, 3, 32, 48)).shape == (2, 12, 512)


def test_without_keys() -> None:
    model = masked_model()
    with pytest.raises(VitreousError, match="2 images need one key each"):
        model(images(2, 3, 32, 32))
    with keyed_corruption(model, KEYS[:3]), pytest.raises(VitreousError, match="2 images need one key each"):
        model(images(2, 3, 32, 32))
    assert model.keys is None


def test_encoder_and_back() -> None:
    """The encoder is an ordinary ViT with the same parameters, and the model can be made of it again."""
    model, x = masked_model(), images(2, 3, 32, 32)
    encoder = model.encoder()
    assert type(encoder) is VisionTransformer
    assert set(encoder.extras or {}) == {"mask_token", "patch_head.weight", "patch_head.bias"}
    with torch.no_grad():
        assert torch.equal(encoder(x), model.features(x))
        again = from_encoder(encoder, 0.5)
        with keyed_corruption(model, KEYS[:2]), keyed_corruption(again, KEYS[:2]):
            assert torch.equal(again(x), model(x))
    with pytest.raises(VitreousError, match="no mask token"):
        from_encoder(tiny_vit(num_classes=0), 0.5)


def test_hook_of_the_encoder() -> None:
    """`corrupt` gets the patch embeddings without class token and positions."""
    model, seen = tiny_vit(), list[Tensor]()

    def corrupt(x: Tensor) -> Tensor:
        seen.append(x)
        return x

    x = images(2, 3, 32, 32)
    with torch.no_grad():
        changed, _ = model.encode(x, corrupt=corrupt)
        assert torch.equal(changed, model.encode(x)[0])
        assert torch.equal(seen[0], model.patch_embed(x))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (named_config("R26+S/32", num_classes=0), "a hybrid: the backbone sees pixels of neighbouring patches"),
        (BiTConfig(), "the model has no patches; use a ViT"),
        (ViTConfig(pool="map", num_classes=0), "pool = 'map': it would not be trained"),
        (ViTConfig(representation_size=5, num_classes=0), "representation_size: it would not be trained"),
        (ViTConfig(num_classes=3), "no head during this pre-training"),
    ],
)
def test_refused_models(config: object, message: str) -> None:
    with pytest.raises(VitreousError, match=message):
        check_maskable(config)


def test_a_single_patch_is_refused() -> None:
    with pytest.raises(VitreousError, match="the image has 1 patch, and at least two are needed"):
        draw_corruption(KEYS, 1, 0.5)
    assert isinstance(draw_corruption(KEYS[:1], 2, 0.01), Corruption)
    assert draw_corruption(KEYS[:1], 30, 0.01).patches.shape == (1, 1)  # at least one
