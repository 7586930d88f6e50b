"""`vitreous models`: the list of model names, or of trained weights, with size and cost."""

from typing import TYPE_CHECKING, Annotated, Any

import tyro

from vitreous.cli.options import Switch
from vitreous.cli.output import print_json, print_table
from vitreous.utils.console import STDOUT, console, print_line

if TYPE_CHECKING:
    from rich.table import Table

NUMBERS = ("parameters", "GFLOPs", "patches", "px")  # columns that are aligned to the right


def models_command(
    pattern: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PATTERN")] = "*",
    /,
    *,
    size: Annotated[int | None, tyro.conf.arg(metavar="PX", help_behavior_hint="")] = None,
    weights: Switch = False,
    json: Switch = False,
) -> None:
    """List the available models with their parameters, GFLOPs, number of patches and dimensions.

    Args:
        pattern: Names to list, as a shell pattern: "R50*", "*/16"; with --weights "dinov2-*".
        size: Image size in pixels for GFLOPs and patches. Default: the size of each model.
        weights: List trained weights instead: names that --from and --model download from the Hugging Face hub, with
            input size, pre-training data, licence and address.
        json: Print one JSON object instead of a table.
    """
    from vitreous.errors import VitreousError

    if weights and size is not None:
        raise VitreousError("--size has no effect with --weights: the weights are listed with their own input size")
    if weights:
        _list_weights(pattern, json)
    else:
        _list_models(pattern, size, json)


def _list_models(pattern: str, size: int | None, json: bool) -> None:
    from vitreous.errors import VitreousError
    from vitreous.models import zoo
    from vitreous.models.cost import cost
    from vitreous.weights.known_weights import known_names

    found = zoo.names(pattern)
    if not found:
        known = "; trained weights match: add --weights" if list(known_names(pattern)) else ""
        raise VitreousError(f"no model matches {pattern!r}; `vitreous models` lists all {len(zoo.ZOO)}{known}")

    table = _table("model", "parameters", "GFLOPs", "patches", "px", "width x depth x heads")  # fits 79 columns
    facts: list[dict[str, Any]] = []
    errors = []
    for name in found:
        config = zoo.config(name)
        row = cost(config)
        parameters, own = f"{row.parameters:,}", max(row.size)
        pixels = own if size is None else size
        fact = {"name": name, "parameters": row.parameters, "image_size": pixels, "flops": None, "patches": None}
        facts.append(fact)
        try:
            row = cost(config, size)
        except VitreousError as error:
            errors.append(error)
            table.add_row(name, parameters, "-", "-", str(size), _dimensions(config))
            continue
        fact |= {"flops": row.flops.total, "patches": row.tokens or None}
        tokens = f"{row.tokens:,}" if row.tokens else "-"
        table.add_row(name, parameters, f"{row.flops.total / 1e9:,.1f}", tokens, str(pixels), _dimensions(config))
    if len(errors) == len(found):
        raise errors[0]
    if json:
        print_json({"models": facts})
        return

    print_table(table)
    note = "GFLOPs: forward pass of one image; a multiply-add counts as 2 operations."
    if errors:
        note += f" -: {size} px cannot be divided into patches."
    console().print(note, style="dim", soft_wrap=True)


def _list_weights(pattern: str, json: bool) -> None:
    from vitreous.errors import VitreousError
    from vitreous.models.cost import cost
    from vitreous.weights.known_weights import KNOWN_WEIGHTS, known_names

    found = [KNOWN_WEIGHTS[name] for name in known_names(pattern)]
    if not found:
        total = len(KNOWN_WEIGHTS)
        raise VitreousError(f"no weights match {pattern!r}; `vitreous models --weights` lists all {total}")
    facts = [
        {
            "name": entry.name,
            "model": entry.architecture,
            "parameters": cost(entry.config).parameters,
            "image_size": entry.size,
            "classes": entry.classes,
            **entry.provenance,
            "preprocessing": entry.preprocessing.to_json(),
        }
        for entry in found
    ]
    if json:
        print_json({"weights": facts})
        return
    _print_weights(facts)
    note = "Use them by name: `vitreous train DATA --from NAME`, `vitreous predict IMAGES --model NAME`."
    note += " They are downloaded once. One more, vitreous-mini, is in the package."
    console().print(note, style="dim", soft_wrap=True)


def _print_weights(facts: list[dict[str, Any]]) -> None:
    """Print a table. In a narrow terminal, licence and address are on a second line."""
    titles = ("name", "model", "parameters", "px", "pre-training data")
    rows = [(f["name"], f["model"], f"{f['parameters']:,}", str(f["image_size"]), f["pretraining_data"]) for f in facts]
    table = _table(*titles, "licence", "address")
    for row, fact in zip(rows, facts, strict=True):
        table.add_row(*row, fact["licence"], fact["address"])
    terminal = console(STDOUT)
    needed = console(STDOUT, width=10_000).measure(table).maximum
    if not STDOUT.isatty() or needed <= terminal.width:
        print_table(table, fold=False)
        return
    table = _table(*titles)
    for row in rows:
        table.add_row(*row)
    with terminal.capture() as captured:
        terminal.print(table)
    header, *lines = captured.get().splitlines()
    print_line(header.rstrip())
    for line, fact in zip(lines, facts, strict=True):
        print_line(line.rstrip())
        terminal.print(f"  {fact['licence']}, {fact['address']}", style="dim", soft_wrap=True)


def _table(*titles: str) -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        table.add_column(title, no_wrap=True, justify="right" if title in NUMBERS else "left")
    return table


def _dimensions(config: object) -> str:
    from vitreous.models.resnet import ResNetConfig
    from vitreous.models.vit import ViTConfig

    if isinstance(config, ViTConfig):
        return f"{config.width} x {config.depth} x {config.heads}"
    assert isinstance(config, ResNetConfig)
    return f"x{config.width_factor:g}, {'-'.join(map(str, config.blocks))} units"
