"""`vitreous info`: the contents of a checkpoint."""

from dataclasses import asdict
from typing import Annotated, Any

import tyro

from vitreous.cli.options import ImageSize, OptionalInt, PreprocessingName, Switch
from vitreous.cli.output import print_facts, print_json

# Fields of the config that are always printed; others are printed if they differ from their default.
VIT_FIELDS = ("width", "depth", "heads", "mlp_dim", "pool", "position", "resample", "gelu", "norm_eps")
ALWAYS_PRINTED = ("image_size", "patch_size", "num_classes", *VIT_FIELDS, "blocks", "width_factor", "activation")


def info_command(
    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")],
    /,
    *,
    json: Switch = False,
    image_size: ImageSize = None,
    heads: OptionalInt = None,
    strict: bool = True,
    preprocessing: PreprocessingName = None,
) -> None:
    """Describe a checkpoint: format, config, cost, preprocessing, labels, and the use of each tensor.

    Args:
        source: Checkpoint of any supported format: a file, a folder or hf://owner/name; a name of `vitreous models
            --weights`, which is downloaded; or vitreous-mini, which comes with the package.
        json: Print one JSON object instead of a table.
        image_size: Image size in pixels for which positions are resampled: one number, or height and width. Default:
            the size of the checkpoint.
        heads: Number of attention heads, if the checkpoint does not contain it. Default: the usual number
            for its width.
        strict: Fail if tensors are missing or unexpected. --no-strict lists them.
        preprocessing: Preprocessing that the model was trained with, if the checkpoint does not contain it. Default:
            the usual one of its format.
    """
    from vitreous.weights.info import info

    found = info(source, image_size=image_size, heads=heads, strict=strict, preprocessing=preprocessing)
    facts = found.to_json()
    if json:
        print_json(facts)
    else:
        print_checkpoint(facts, str(found.preprocessing))


def print_checkpoint(facts: dict[str, Any], preprocessing: str) -> None:
    config, tensors = facts["config"], facts["tensors"]
    defaults = asdict(_config_class(config)())
    shown = {
        name: value
        for name, value in config.items()
        if name in ALWAYS_PRINTED or (name not in ("kind", "backbone") and value != defaults[name])
    }
    rows = [
        ("file", facts["source"]),
        ("format", f"{facts['dialect']} ({facts['container']}, {', '.join(facts['dtypes'])})"),
        ("model", facts["model"] or "none of `vitreous models` has this architecture"),
        ("config", _config_text(shown)),
    ]
    if config.get("backbone"):
        rows.append(("backbone", _config_text(config["backbone"])))
    tokens = f", {facts['tokens']:,} patches" if facts["tokens"] else ""
    flops = f"{facts['flops'] / 1e9:,.3g} GFLOPs at {_config_value(config['image_size'])}"
    rows += [
        ("cost", f"{facts['parameters']:,} parameters; {flops}{tokens}"),
        ("preprocessing", preprocessing),
        ("labels", _labels(facts["labels"], config["num_classes"])),
    ]
    if facts["calibration"] is not None:
        rows.append(("calibration", facts["calibration"]["description"]))
    if (
        facts["origin"].keys() - {"source", "dialect"}
        or facts["origin"].get("dialect", facts["dialect"]) != facts["dialect"]
    ):
        rows.append(("origin", _origin_text(facts["origin"])))
    rows.append(("tensors", f"{len(tensors['used']):,} used, {len(tensors['ignored']):,} ignored"))
    rules: dict[str, list[str]] = {}
    for name, rule in tensors["ignored"].items():
        rules.setdefault(rule, []).append(name)
    rows += [("ignored", f"{', '.join(names)}: {rule}") for rule, names in rules.items()]
    rows += [(kind, ", ".join(tensors[kind])) for kind in ("unexpected", "missing") if tensors[kind]]
    rows += [("note", note) for note in facts["notes"]]
    # A native file states its settings. Its guesses were made when it was converted, and are shown as its history.
    label = "conversion guess" if facts["dialect"] == "native" else "guess"
    rows += [(label, guess) for guess in facts["guesses"]]
    print_facts(rows)


def _origin_text(origin: dict[str, Any]) -> str:
    """Return where weights come from. For those of a run, that is where its initial weights come from."""
    initial = origin.get("initial_weights")
    if isinstance(initial, dict):
        return f"trained from initial weights: {_origin_text(initial)}"
    return "; ".join(f"{key.replace('_', ' ')}: {value}" for key, value in origin.items())


def _config_class(config: dict[str, Any]) -> Any:
    from vitreous.models import BiTConfig, ViTConfig

    return ViTConfig if config["kind"] == "vit" else BiTConfig


def _config_text(values: dict[str, Any]) -> str:
    return ", ".join(f"{key} {_config_value(value)}" for key, value in values.items())


def _config_value(value: Any) -> str:
    if isinstance(value, tuple | list) and len(value) == 2:
        return f"{value[0]} x {value[1]}"
    return "-".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def _labels(names: list[str] | None, classes: int) -> str:
    if not classes:
        return "none: the model has no head and returns features"
    if names is not None:
        return ", ".join(names[:5]) + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")
    if classes == 1000:
        return "not in the file; 1,000 classes, assumed to be ImageNet-1k's"
    return f"not in the file; {classes:,} classes"
