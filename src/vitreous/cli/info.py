"""`vitreous info`: what is in a checkpoint."""

from dataclasses import asdict
from typing import Annotated, Any

import tyro

from vitreous.cli.parts import Json, Number, Preset, Size, print_json, show_facts

# Of the config, what is told even where it is the usual.
VIT = ("width", "depth", "heads", "mlp_dim", "pool", "position", "resample", "gelu", "norm_eps")
ALWAYS = ("image_size", "patch_size", "num_classes", *VIT, "blocks", "width_factor", "activation")


def info(
    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")],
    /,
    *,
    json: Json = False,
    image_size: Size = None,
    heads: Number = None,
    strict: bool = True,
    preprocessing: Preset = None,
) -> None:
    """Say what is in a checkpoint: dialect, config, cost, preprocessing, labels, and what became of every tensor.

    Args:
        source: a file, a folder or hf://owner/name, in any dialect; or vitreous-mini, which comes with the package.
        json: one JSON object instead of a table.
        image_size: lay it out for another size, in pixels: one number, or height and width.
        heads: the number of heads, where the file cannot tell.
        strict: stop at tensors that are missing or have no place, rather than listing them.
        preprocessing: what it was trained to see, where the file does not tell: google, augreg, deit, torchvision
            or dino.
    """
    from vitreous.models.cost import cost
    from vitreous.weights.load import read_checkpoint
    from vitreous.weights.load_report import guess_lines

    checkpoint = read_checkpoint(source, image_size=image_size, heads=heads, strict=strict, preprocessing=preprocessing)
    report, config = checkpoint.report, checkpoint.config
    spent = cost(config)
    types = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in checkpoint.state.values()})
    facts: dict[str, Any] = {
        "source": report.source,
        "dialect": report.dialect,
        "container": report.container,
        "model": name_of(config),
        "config": {"kind": "vit" if hasattr(config, "heads") else "bit", **asdict(config)},
        "parameters": spent.parameters,
        "flops": spent.flops.total,
        "tokens": spent.tokens,
        "dtypes": types,
        "preprocessing": checkpoint.preprocessing.to_json(),
        "labels": None if checkpoint.labels is None else list(checkpoint.labels),
        "origin": dict(report.origin),
        "tensors": {
            "used": list(report.used),
            "ignored": dict(report.ignored),
            "unexpected": list(report.unexpected),
            "missing": list(report.missing),
        },
        "notes": list(report.facts),
        "guesses": guess_lines(report.guesses),
    }
    if json:
        print_json(facts)
    else:
        show(facts, str(checkpoint.preprocessing))


def show(facts: dict[str, Any], preprocessing: str) -> None:
    config, tensors = facts["config"], facts["tensors"]
    usual = asdict(type_of(config)())
    shown = {k: v for k, v in config.items() if k in ALWAYS or (k not in ("kind", "backbone") and v != usual[k])}
    rows = [
        ("file", facts["source"]),
        ("dialect", f"{facts['dialect']} ({facts['container']}, {', '.join(facts['dtypes'])})"),
        ("model", facts["model"] or "no name in the zoo has this shape"),
        ("config", ", ".join(f"{key} {plain(value)}" for key, value in shown.items())),
    ]
    if config.get("backbone"):
        rows.append(("backbone", ", ".join(f"{key} {plain(value)}" for key, value in config["backbone"].items())))
    tokens = f", {facts['tokens']:,} patches" if facts["tokens"] else ""
    flops = f"{facts['flops'] / 1e9:,.3g} GFLOPs at {plain(config['image_size'])}"
    rows += [
        ("cost", f"{facts['parameters']:,} parameters; {flops}{tokens}"),
        ("preprocessing", preprocessing),
        ("labels", labels(facts["labels"], config["num_classes"])),
    ]
    if facts["origin"] and facts["origin"].get("dialect") != facts["dialect"]:
        rows.append(("origin", ", ".join(f"{key} {value}" for key, value in facts["origin"].items())))
    rows.append(("tensors", f"{len(tensors['used']):,} used, {len(tensors['ignored']):,} ignored by rule"))
    rules: dict[str, list[str]] = {}
    for name, rule in tensors["ignored"].items():
        rules.setdefault(rule, []).append(name)
    rows += [("ignored", f"{', '.join(names)}: {rule}") for rule, names in rules.items()]
    rows += [(kind, ", ".join(tensors[kind])) for kind in ("unexpected", "missing") if tensors[kind]]
    rows += [("note", note) for note in facts["notes"]]
    rows += [("guess", guess) for guess in facts["guesses"]]
    show_facts(rows)


def type_of(config: dict[str, Any]) -> Any:
    from vitreous.models import BiTConfig, ViTConfig

    return ViTConfig if config["kind"] == "vit" else BiTConfig


def plain(value: Any) -> str:
    if isinstance(value, tuple | list) and len(value) == 2:
        return f"{value[0]} x {value[1]}"
    return "-".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def labels(names: list[str] | None, classes: int) -> str:
    if not classes:
        return "no head: features come out"
    if names is not None:
        return ", ".join(names[:5]) + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")
    if classes == 1000:
        return "not in the file; 1,000 classes: taken as ImageNet-1k's"
    return f"not in the file; {classes:,} classes"


def name_of(config: Any) -> str | None:
    """The zoo's name for a shape."""
    from vitreous.models import zoo

    keys = ("width", "depth", "heads", "mlp_dim", "patch_size", "backbone", "registers", "blocks", "width_factor")
    for name in zoo.names():
        other = zoo.config(name)
        if type(other) is type(config) and all(getattr(other, k, None) == getattr(config, k, None) for k in keys):
            return name
    return None
