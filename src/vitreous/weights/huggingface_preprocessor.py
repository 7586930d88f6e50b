"""Read and write Hugging Face's preprocessor_config.json."""

from dataclasses import replace
from typing import Any

from vitreous.errors import VitreousError
from vitreous.models.vit import ViTConfig
from vitreous.preprocessing import Preprocessing, default_preprocessing, preset
from vitreous.utils.sizes import pair
from vitreous.weights.huggingface_keys import PREPROCESSOR_KEYS, PREPROCESSORS
from vitreous.weights.load_report import Remarks

INTERPOLATIONS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")  # indexed by Pillow's numbers


def parse_preprocessor_json(
    settings: dict[str, Any], config: ViTConfig, dinov2: bool, remarks: Remarks
) -> Preprocessing:
    """Return the preprocessing in preprocessor_config.json, or Hugging Face's default if there is no such file."""
    size = pair(config.image_size)
    if not settings:
        usual = default_preprocessing(size, config.channels)
        if dinov2:
            usual = replace(preset("dino", 224, config.channels), crop="down")
        remarks.guesses["preprocessing"] = "Hugging Face's default; there is no preprocessor_config.json"
        return usual
    square = _check_keys(settings, remarks.notes)
    resize = _parse_size(settings.get("size", list(size)), "size", square)
    crop: Any = resize
    if settings.get("do_center_crop"):
        crop = _parse_size(settings.get("crop_size", list(size)), "crop_size", True)
    if not settings.get("do_resize", True):
        remarks.notes.append("its own library does not resize images; vitreous resizes them to the model's size")
        crop = resize = list(size)
    if isinstance(crop, int):  # a short side without a crop would give images of all shapes
        crop = [crop, crop]
    number = settings.get("resample", 2)
    if type(number) is not int or not 0 <= number < len(INTERPOLATIONS):
        raise VitreousError(f"preprocessor_config.json: resample = {number!r}: expected a number from 0 to 5")
    scale = settings.get("rescale_factor", 1 / 255) if settings.get("do_rescale", True) else 1.0
    if not isinstance(scale, int | float) or not 1e-9 <= scale <= 1e9:
        raise VitreousError(f"preprocessor_config.json: rescale_factor = {scale!r}: expected a number such as 1/255")
    normalise = settings.get("do_normalize", True)
    preprocessing = Preprocessing.from_json(
        {
            "size": crop,
            "resize": None if resize == crop else resize,
            "interpolation": INTERPOLATIONS[number],
            "crop": "round" if resize == crop else "down",  # has no effect without a crop
            "mean": settings.get("image_mean", [0.5] * config.channels) if normalise else [0.0] * config.channels,
            "std": settings.get("image_std", [0.5] * config.channels) if normalise else [1.0] * config.channels,
        }
    )
    if abs(255 * scale - 1) > 1e-6:  # mean and std in the file are for pixels * scale, in Preprocessing for 0..1
        mean, std = (tuple(x / (255 * scale) for x in values) for values in (preprocessing.mean, preprocessing.std))
        preprocessing = replace(preprocessing, mean=mean, std=std)
    return preprocessing


def _check_keys(settings: dict[str, Any], notes: list[str]) -> bool:
    """Add notes on unknown classes and keys. Returns whether a single number as size means a square."""
    name = settings.get("image_processor_type", settings.get("feature_extractor_type"))
    known = PREPROCESSORS.fullmatch(name) if isinstance(name, str) else None
    if name is not None and known is None:
        notes.append(f"preprocessing: {name} is unknown; its settings are read as those of ViTImageProcessor")
    unknown = [key for key, value in settings.items() if key not in PREPROCESSOR_KEYS and value not in (None, False)]
    if unknown:
        values = ", ".join(f"{key} = {shorten_value(settings[key])}" for key in unknown)
        notes.append(f"preprocessing: preprocessor_config.json has unknown settings, which were not used: {values}")
    return bool(settings.get("default_to_square", known is None or known["kind"] in ("ViT", "DeiT")))


def _parse_size(size: Any, name: str, square: bool) -> int | list[int]:
    """Return [height, width] or the length of the short side, from one of: {"height": .., "width": ..},
    {"shortest_edge": ..}, [.., ..], or one number."""
    if isinstance(size, dict) and "shortest_edge" in size:
        size, square = size["shortest_edge"], False
    if isinstance(size, int) and not square:
        return pair(size, f"preprocessor_config.json: {name}")[0]
    if isinstance(size, dict):
        size = [size.get("height"), size.get("width")]
    return list(pair(size, f"preprocessor_config.json: {name}"))


def shorten_value(value: Any) -> str:
    """Return the repr of a JSON value, cut to 40 characters."""
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def write_preprocessor_json(preprocessing: Preprocessing) -> tuple[dict[str, Any], list[str]]:
    """Return preprocessor_config.json, and notes on settings that it cannot represent."""
    lost = [] if preprocessing.antialias else ["resizing without antialiasing"]
    if preprocessing.crop == "round" and preprocessing.resize is not None:
        lost.append("rounding of an odd margin of the centre crop")
    height, width = pair(preprocessing.size)
    resize = pair(preprocessing.size) if preprocessing.resize is None else preprocessing.resize
    settings = {
        "image_processor_type": "ViTImageProcessor" if preprocessing.resize is None else "BitImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": resize} if isinstance(resize, int) else {"height": resize[0], "width": resize[1]},
        "resample": INTERPOLATIONS.index(preprocessing.interpolation),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocessing.mean),
        "image_std": list(preprocessing.std),
    }
    if preprocessing.resize is not None:
        settings |= {"do_center_crop": True, "crop_size": {"height": height, "width": width}, "do_convert_rgb": True}
    return settings, [f"preprocessing that its config cannot represent: {', '.join(lost)}"] if lost else []
