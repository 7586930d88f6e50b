"""Names of well-known open weights on the Hugging Face hub: `vitreous.load("deit-tiny")`, `--from dinov2-small`.

Addresses, licences and preprocessing are those of timm and of the model cards. tests/peers/test_known_weights.py
compares the table with timm, and reads the architecture of every entry as timm and transformers build it.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # torch is imported only when a config or a Preprocessing is made
    from vitreous.models.resnet import BiTConfig
    from vitreous.models.vit import ViTConfig
    from vitreous.preprocessing import Preprocessing

APACHE, NON_COMMERCIAL = "apache-2.0", "cc-by-nc-4.0"
IN1K, IN21K, IN21K_IN1K = "ImageNet-1k", "ImageNet-21k", "ImageNet-21k, -1k"  # the last: fine-tuned on ImageNet-1k


@dataclass(frozen=True)
class KnownWeights:
    """An entry of the table."""

    name: str
    repository: str  # on the hub: owner/name
    architecture: str  # name in `vitreous models`
    data: str  # pre-training images
    licence: str = APACHE  # as an SPDX identifier, in lower case
    size: int = 224  # input, in pixels
    classes: int = 0  # 0: the weights have no head
    transform: dict[str, Any] = field(default_factory=dict)  # fields of Preprocessing, without `size`
    fields: dict[str, Any] = field(default_factory=dict)  # fields of the config that differ from the architecture's

    @property
    def address(self) -> str:
        return f"hf://{self.repository}"

    @property
    def files(self) -> tuple[str, ...]:
        """The files to download. timm states the preprocessing in config.json."""
        preprocessor = () if self.repository.startswith("timm/") else ("preprocessor_config.json",)
        return ("config.json", *preprocessor, "model.safetensors")

    @property
    def preprocessing(self) -> "Preprocessing":
        from vitreous.preprocessing import Preprocessing

        return Preprocessing.from_json({"size": self.size, **self.transform})

    @property
    def config(self) -> "ViTConfig | BiTConfig":
        """The config as far as it determines the parameters. The files determine epsilon, GELU and resampling."""
        from vitreous.models import zoo

        return zoo.config(self.architecture, **{"image_size": self.size, "num_classes": self.classes} | self.fields)

    @property
    def provenance(self) -> dict[str, str]:
        """What a checkpoint records about the weights."""
        return {"address": self.address, "licence": self.licence, "pretraining_data": self.data}


IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
HALF = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}


def _timm(name: str, model: str, architecture: str, data: str, classes: int = 0, **given: Any) -> KnownWeights:
    """An entry for a repository of timm. Its transform resizes the short side to size / crop and crops the centre."""
    size, crop, pixels = given.pop("size", 224), given.pop("crop", 0.9), given.pop("pixels", IMAGENET)
    transform = {"resize": int(size / crop), "interpolation": "bicubic", **pixels}
    return KnownWeights(
        name, f"timm/{model}", architecture, data, size=size, classes=classes, transform=transform, **given
    )


def _deit() -> Iterator[KnownWeights]:
    for name, letter in (("tiny", "Ti"), ("small", "S"), ("base", "B")):
        yield _timm(f"deit-{name}", f"deit_{name}_patch16_224.fb_in1k", f"{letter}/16", IN1K, 1000)
    yield _timm("deit-base-384", "deit_base_patch16_384.fb_in1k", "B/16", IN1K, 1000, size=384, crop=1.0)
    fields = {"layer_scale": 1e-6, "position_slots": "patches"}
    for name, architecture in (("small", "S/16"), ("base", "B/16"), ("large", "L/16"), ("huge", "H/14")):
        model = f"deit3_{name}_patch{architecture[2:]}_224.fb_in22k_ft_in1k"
        yield _timm(f"deit3-{name}", model, architecture, IN21K_IN1K, 1000, crop=1.0, fields=fields)


def _self_supervised() -> Iterator[KnownWeights]:
    for name, model in (
        ("s16", "small_patch16"),
        ("s8", "small_patch8"),
        ("b16", "base_patch16"),
        ("b8", "base_patch8"),
    ):
        yield _timm(f"dino-{name}", f"vit_{model}_224.dino", f"{name[0].upper()}/{name[1:]}", IN1K)
    for name, model in (("b16", "base_patch16"), ("l16", "large_patch16"), ("h14", "huge_patch14")):
        architecture = f"{name[0].upper()}/{name[1:]}"
        yield _timm(f"mae-{name}", f"vit_{model}_224.mae", architecture, IN1K, licence=NON_COMMERCIAL)
    transform = {"resize": 256, "interpolation": "bicubic", "crop": "down", **IMAGENET}
    for name, variant in (("small", "S"), ("base", "B"), ("large", "L"), ("giant", "giant")):
        for suffix, infix in (("", ""), ("-reg", "with-registers-")):
            repository, architecture = f"facebook/dinov2-{infix}{name}", f"DINOv2-{variant}/14{suffix}"
            # Pre-trained at 518 px; evaluated at 224 px by its authors.
            yield KnownWeights(
                f"dinov2-{name}{suffix}",
                repository,
                architecture,
                "LVD-142M",
                transform=transform,
                fields={"image_size": 518},
            )


def _supervised() -> Iterator[KnownWeights]:
    names = {"ti": "tiny", "s": "small", "b": "base", "l": "large", "h": "huge"}
    for letter, patch in (("ti", 16), ("s", 16), ("s", 32), ("b", 8), ("b", 16), ("b", 32), ("l", 16)):
        name, architecture = f"augreg-{letter}{patch}", f"{letter.title()}/{patch}"
        model = f"vit_{names[letter]}_patch{patch}_224.augreg_in21k"
        yield _timm(name, f"{model}_ft_in1k", architecture, IN21K_IN1K, 1000, pixels=HALF)
        yield _timm(f"{name}-in21k", model, architecture, IN21K, 21843, pixels=HALF)
    for patch, size in ((16, 224), (16, 384), (32, 384)):
        suffix = "" if size == 224 else f"-{size}"
        yield KnownWeights(
            f"vit-b{patch}{suffix}",
            f"google/vit-base-patch{patch}-{size}",
            f"B/{patch}",
            IN21K_IN1K,
            size=size,
            classes=1000,
            transform=HALF,
        )
    for letter, patch in (("b", 16), ("b", 32), ("l", 16), ("h", 14)):
        width = {"b": 768, "l": 1024, "h": 1280}[letter]
        yield KnownWeights(
            f"vit-{letter}{patch}-in21k",
            f"google/vit-{names[letter]}-patch{patch}-224-in21k",
            f"{letter.upper()}/{patch}",
            IN21K,
            transform=HALF,
            fields={"representation_size": width},
        )


def _siglip() -> Iterator[KnownWeights]:
    fields = {"pool": "map"}
    for version, tag in (("siglip", "webli"), ("siglip2", "v2_webli")):
        for name, model, architecture, size in (
            ("b16", "base_patch16_siglip_224", "B/16", 224),
            ("l16-256", "large_patch16_siglip_256", "L/16", 256),
            ("so400m14", "so400m_patch14_siglip_224", "So400m/14", 224),
        ):
            repository = f"vit_{model}.{tag}"
            yield _timm(f"{version}-{name}", repository, architecture, "WebLI", size=size, pixels=HALF, fields=fields)


KNOWN_WEIGHTS = {entry.name: entry for entry in (*_deit(), *_supervised(), *_self_supervised(), *_siglip())}


def find_known_weights(source: str | os.PathLike[str]) -> KnownWeights | None:
    """Return the entry that `source` names; None for anything else. An existing file or folder of that name takes
    precedence, and a Path is always a file."""
    if not isinstance(source, str) or source not in KNOWN_WEIGHTS or os.path.lexists(source):
        return None
    return KNOWN_WEIGHTS[source]


def known_names(pattern: str = "*") -> list[str]:
    """Return the names that match a shell pattern."""
    return [name for name in KNOWN_WEIGHTS if fnmatchcase(name, pattern)]


def names_for_architecture(architecture: str) -> list[str]:
    """Return the names of weights for a name in `vitreous models`."""
    return [entry.name for entry in KNOWN_WEIGHTS.values() if entry.architecture == architecture]


def similar_names(text: str) -> list[str]:
    """Return the names that an incomplete or misspelt name, or a name of the hub, may stand for, the best first."""
    plain = text.lower().replace("_", "-")
    if len(plain) > 2 and (longer := [name for name in KNOWN_WEIGHTS if name.startswith(plain)]):
        return longer[:4]
    spellings = {_hub_name(entry): entry.name for entry in KNOWN_WEIGHTS.values()}
    spellings |= {name: name for name in KNOWN_WEIGHTS}
    return list(dict.fromkeys(spellings[match] for match in get_close_matches(plain, spellings, n=3, cutoff=0.7)))


def _hub_name(entry: KnownWeights) -> str:
    return entry.repository.partition("/")[2].lower().replace("_", "-")
