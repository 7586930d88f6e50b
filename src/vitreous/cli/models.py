"""`vitreous models`: the zoo as a table."""

from typing import Annotated

import tyro


def models(
    pattern: Annotated[str, tyro.conf.Positional] = "*",
    /,
    *,
    size: int | None = None,
) -> None:
    """List the models there are: parameters, arithmetic, tokens, shape.

    Args:
        pattern: names to list, as a shell pattern: "R50*", "*/16".
        size: image size in pixels for GFLOPs and tokens; each model's own if not given.
    """
    from rich.console import Console
    from rich.table import Table

    from vitreous.errors import VitreousError
    from vitreous.models import cost, zoo

    found = zoo.names(pattern)
    if not found:
        raise VitreousError(f"no model matches {pattern!r}; `vitreous models` lists all {len(zoo.ZOO)}")

    table = Table(
        "model", "parameters", "GFLOPs", "tokens", "px", "width x depth x heads", box=None, header_style="bold"
    )
    for column in table.columns[1:5]:
        column.justify = "right"
    refusals = []
    for name in found:
        config = zoo.config(name)
        row = cost(config)
        parameters, own = f"{row.parameters:,}", max(row.size)
        try:
            row = cost(config, size)
        except VitreousError as error:
            refusals.append(error)
            table.add_row(name, parameters, "-", "-", str(size), shape(config))
            continue
        tokens = f"{row.tokens:,}" if row.tokens else "-"
        table.add_row(name, parameters, f"{row.flops.total / 1e9:,.1f}", tokens, str(size or own), shape(config))
    if len(refusals) == len(found):
        raise refusals[0]

    console = Console(highlight=False)
    console.print(table)
    note = "GFLOPs: 2 per multiply-add, one forward pass of one image."
    if refusals:
        note += f" -: {size} px is not made of whole patches."
    console.print(note, style="dim")


def shape(config: object) -> str:
    from vitreous.models import ViTConfig
    from vitreous.models.resnet import ResNetConfig

    if isinstance(config, ViTConfig):
        return f"{config.width} x {config.depth} x {config.heads}"
    assert isinstance(config, ResNetConfig)
    return f"x{config.width_factor:g}, {'-'.join(map(str, config.blocks))} units"
