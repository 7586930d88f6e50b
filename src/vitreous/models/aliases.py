"""Names of the models in other libraries: timm, Hugging Face, torchvision, DINO and Google's code; and names of trained
weights, such as deit-tiny.

They are used in error messages only. `create` does not accept them: in those libraries the name stands for trained
weights, and some settings differ (timm uses the erf GELU).
"""

import re
from collections.abc import Container
from typing import Any

HUB = r"(hf://|hf-hub:)?(?P<owner>[\w.-]+/)(?=[\w.-]*[a-zA-Z][\w.-]*$)(?!\d)"  # owner/name, but not B/16

SIZES = {
    **{"tiny": "Ti", "small": "S", "base": "B", "large": "L", "huge": "H", "giant": "g", "gigantic": "G"},
    **{"ti": "Ti", "t": "Ti", "s": "S", "b": "B", "l": "L", "h": "H", "g": "g", "so400m": "So400m"},
}
SIZE = r"(?P<size>tiny|small|base|large|huge|giant|gigantic|so400m)"
LETTER = r"(?P<size>ti|t|s|b|l|h|g|so400m)"
# Suffixes of timm names: image size, training data and method.
TAIL = r"(_(?P<px>\d{3}))?((_ft)?_(in21k|in22k|in12k|in1k|augreg|miil|dino|sam))*"

# Names of `vitreous models --weights`, which `load` accepts.
WEIGHTS = (
    r"(deit3?|dinov2)-(tiny|small|base|large|huge|giant)(-reg|-384)?"
    r"|(augreg|vit|dino|mae|siglip2?)-(ti|s|b|l|h|so400m)\d+(-in21k|-\d{3})?"
)

PATTERNS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    # timm, and its names with hyphens on Hugging Face's hub
    (rf"(vit|deit)_{SIZE}_patch(?P<patch>\d+){TAIL}", "{size}/{patch}", {}),
    (
        rf"deit3_{SIZE}_patch(?P<patch>\d+){TAIL}(_in21ft1k)?",
        "{size}/{patch}",
        {"layer_scale": 1e-6, "position_slots": "patches"},
    ),
    (rf"vit_{SIZE}_patch14_dinov2|dinov2_{SIZE.replace('size', 'other')}", "DINOv2-{size}/14", {}),
    (
        rf"vit_{SIZE}_patch14_reg4_dinov2|dinov2_with_registers_{SIZE.replace('size', 'other')}",
        "DINOv2-{size}/14-reg",
        {},
    ),
    (rf"vit_{SIZE}_r(?P<layers>\d+)_s(?P<patch>\d+){TAIL}", "R{layers}+{size}/{patch}", {}),
    (rf"vit_tiny_r_s16_p8{TAIL}", "R+Ti/16", {}),
    (r"resnetv2_(?P<layers>\d+)x(?P<factor>\d)_bit\w*", "BiT-R{layers}x{factor}", {}),
    (r"vit_mae_(?P<size>base|large)", "{size}/16", {}),
    (r"vit_mae_(?P<size>huge)", "{size}/14", {}),
    # DINO and DINOv2
    (rf"dino_vit{LETTER}(?P<patch>\d+)", "{size}/{patch}", {"num_classes": 0}),
    (rf"dinov2_vit{LETTER}14", "DINOv2-{size}/14", {}),
    (rf"dinov2_vit{LETTER}14_reg", "DINOv2-{size}/14-reg", {}),
    # trained weights by the names of `vitreous models --weights`
    (r"deit_(?P<size>tiny|small|base)(_384)?|deit3_(?P<other>small|base|large)", "{size}/16", {}),
    (r"deit3_(?P<size>huge)", "{size}/14", {}),
    (rf"dinov2_{SIZE}_reg", "DINOv2-{size}/14-reg", {}),
    (rf"(augreg|vit|dino|mae|siglip2?)_{LETTER}(?P<patch>\d+)(_in21k|_\d{{3}})?", "{size}/{patch}", {}),
    # torchvision's vit_b_16, Google's ViT-B_16, R50+ViT-B_16 and BiT-M-R50x1, CLIP's and others' ViT-B/16, vit-b16
    (rf"(vit_?)?{LETTER}_?(?P<patch>\d+)", "{size}/{patch}", {}),
    (rf"r(?P<layers>\d+)_?vit_?{LETTER}_?(?P<patch>\d+)", "R{layers}+{size}/{patch}", {}),
    (r"bit_([sm]_)?r?(?P<layers>\d+)(x(?P<factor>\d))?", "BiT-R{layers}x{factor}", {}),
)


def known_elsewhere(name: str, zoo: Container[str]) -> tuple[str, dict[str, Any]] | None:
    """Return the name here of a model that other libraries call `name`, and the config fields to change."""
    bare = re.sub(rf"^{HUB}", "", name).partition(".")[0]
    plain = re.sub(r"[-/+\s]+", "_", bare)
    for pattern, target, changes in PATTERNS:
        if match := re.fullmatch(pattern, plain, re.IGNORECASE):
            parts = {key: value for key, value in match.groupdict().items() if value is not None}
            size = parts.get("size", parts.get("other", ""))
            # g and G differ by case only; DINOv2's giant is neither.
            parts["size"] = "G" if size == "G" else SIZES.get(size.lower(), "")
            if target.startswith("DINOv2") and parts["size"] == "g":
                parts["size"] = "giant"
            found = target.format_map({"factor": "1", **parts})
            pixels = {"image_size": int(parts["px"])} if "px" in parts else {}
            return (found, {**pixels, **changes}) if found in zoo else None
    return None


def alias_hint(name: str, zoo: Container[str]) -> str | None:
    """Return a hint for an error message: the name here, and how to load the trained weights; None if unknown."""
    found = known_elsewhere(name, zoo)
    if found is None:
        return None
    here, changes = found
    fields = "".join(f", {field}={value!r}" for field, value in changes.items())
    trained, option = "FILE", ""
    if re.fullmatch(WEIGHTS, name):
        trained, option = name, f" (--from {name})"
    elif hub := re.match(HUB, name):
        trained = f"hf://{hub['owner']}{name[hub.end() :]}"
    elif re.match(r"(vit|deit3?)_[a-z0-9]+_patch", name):
        trained = f"hf://timm/{name}" + ("" if "." in name else ".TAG")
    return (
        f'its name here is "{here}": create("{here}"{fields}) makes it with initial weights, and'
        f' vitreous.load("{trained}"){option} loads trained weights'
    )
