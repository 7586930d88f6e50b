"""`vitreous info`: what is in a checkpoint."""

import json as json_format
import sys
from dataclasses import asdict
from typing import Annotated, Any

import tyro

from vitreous.cli.parts import Preset, Size

# Of the config, what is told even where it is the usual.
ALWAYS = {
    "image_size",
    "patch_size",
    "width",
    "depth",
    "heads",
    "mlp_dim",
    "pool",
    "num_classes",
    "position",
    "resample",
}
ALWAYS |= {"gelu", "norm_eps", "blocks", "width_factor", "activation"}


def info(
    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")],
    /,
    *,
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    image_size: Size = None,
    heads: int | None = None,
    strict: bool = True,
    preprocessing: Preset | None = None,
) -> None:
    """Say what is in a checkpoint: dialect, config, cost, preprocessing, labels, and what became of every tensor.

    Args:
        source: a file, a folder or hf://owner/name, in any dialect.
        json: one JSON object instead of a table.
        image_size: lay it out for another size, in pixels: one number, or height and width.
        heads: the number of heads, where the file cannot tell.
        strict: stop at tensors that are missing or have no place, rather than listing them.
        preprocessing: what it was trained to see, where the file does not tell.
    """
    from vitreous.models.cost import cost
    from vitreous.weights.load import read

    checkpoint = read(source, image_size=image_size, heads=heads, strict=strict, preprocessing=preprocessing)
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
        "notes": list(report.notes),
    }
    if json:
        print(json_format.dumps(facts))
    else:
        show(facts)


def show(facts: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    config, tensors = facts["config"], facts["tensors"]
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("file", facts["source"])
    table.add_row("dialect", f"{facts['dialect']} ({facts['container']}, {', '.join(facts['dtypes'])})")
    table.add_row("model", facts["model"] or "no name in the zoo has this shape")
    usual = asdict(type_of(config)())
    shown = {k: v for k, v in config.items() if k in ALWAYS or (k not in ("kind", "backbone") and v != usual[k])}
    table.add_row("config", ", ".join(f"{key} {plain(value)}" for key, value in shown.items()))
    if config.get("backbone"):
        table.add_row("backbone", ", ".join(f"{key} {plain(value)}" for key, value in config["backbone"].items()))
    tokens = f", {facts['tokens']:,} patches" if facts["tokens"] else ""
    size = plain(config["image_size"])
    table.add_row("cost", f"{facts['parameters']:,} parameters; {facts['flops'] / 1e9:,.1f} GFLOPs at {size}{tokens}")
    table.add_row("preprocessing", described(facts["preprocessing"]))
    table.add_row("labels", labels(facts["labels"], config["num_classes"]))
    if facts["origin"].get("dialect") != facts["dialect"]:
        table.add_row("origin", ", ".join(f"{key} {value}" for key, value in facts["origin"].items()) or "-")
    table.add_row("tensors", f"{len(tensors['used'])} used, {len(tensors['ignored'])} ignored by rule")
    for name, rule in tensors["ignored"].items():
        table.add_row("  ignored", f"{name}: {rule}")
    for kind in ("unexpected", "missing"):
        for name in tensors[kind]:
            table.add_row(f"  {kind}", name)
    for note in facts["notes"]:
        table.add_row("note", note)
    Console(highlight=False, width=None if sys.stdout.isatty() else 120).print(table)


def type_of(config: dict[str, Any]) -> Any:
    from vitreous.models import BiTConfig, ViTConfig

    return ViTConfig if config["kind"] == "vit" else BiTConfig


def plain(value: Any) -> str:
    if isinstance(value, tuple | list) and len(value) == 2:
        return f"{value[0]} x {value[1]}"
    return "-".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


def described(p: dict[str, Any]) -> str:
    size, resize = plain(p["size"]), p["resize"]
    steps = f"squash to {size}" if resize is None else f"centre {size} of {plain(resize)}"
    if isinstance(resize, int):
        steps = f"short side to {resize}, centre {size}"
    how = f"{p['interpolation']}{'' if p['antialias'] else ' without antialiasing'}"
    numbers = "; ".join(f"{key} {', '.join(f'{x:g}' for x in p[key])}" for key in ("mean", "std"))
    return f"{steps}, {how}; {numbers}"


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
