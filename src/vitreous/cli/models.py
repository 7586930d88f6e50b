"""`vitreous models`: the list of model names, with size and cost."""

from typing import Annotated

import tyro

from vitreous.cli.output import print_table
from vitreous.utils.console import console


def models_command(
    pattern: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PATTERN")] = "*",
    /,
    *,
    size: Annotated[int | None, tyro.conf.arg(metavar="PX", help_behavior_hint="")] = None,
) -> None:
    """List the available models with their parameters, GFLOPs, number of patches and dimensions.

    Args:
        pattern: Names to list, as a shell pattern: "R50*", "*/16".
        size: Image size in pixels for GFLOPs and patches. Default: the size of each model.
    """
    from rich.table import Table

    from vitreous.errors import VitreousError
    from vitreous.models import zoo
    from vitreous.models.cost import cost

    found = zoo.names(pattern)
    if not found:
        raise VitreousError(f"no model matches {pattern!r}; `vitreous models` lists all {len(zoo.ZOO)}")

    table = Table(box=None, pad_edge=False, header_style="bold")  # 79 columns: it fits a plain terminal
    for title in ("model", "parameters", "GFLOPs", "patches", "px", "width x depth x heads"):
        number = title in ("parameters", "GFLOPs", "patches", "px")
        table.add_column(title, no_wrap=True, justify="right" if number else "left")
    errors = []
    for name in found:
        config = zoo.config(name)
        row = cost(config)
        parameters, own = f"{row.parameters:,}", max(row.size)
        try:
            row = cost(config, size)
        except VitreousError as error:
            errors.append(error)
            table.add_row(name, parameters, "-", "-", str(size), _dimensions(config))
            continue
        tokens = f"{row.tokens:,}" if row.tokens else "-"
        pixels = str(own if size is None else size)
        table.add_row(name, parameters, f"{row.flops.total / 1e9:,.1f}", tokens, pixels, _dimensions(config))
    if len(errors) == len(found):
        raise errors[0]

    print_table(table)
    note = "GFLOPs: forward pass of one image; a multiply-add counts as 2 operations."
    if errors:
        note += f" -: {size} px cannot be divided into patches."
    console().print(note, style="dim", soft_wrap=True)


def _dimensions(config: object) -> str:
    from vitreous.models.resnet import ResNetConfig
    from vitreous.models.vit import ViTConfig

    if isinstance(config, ViTConfig):
        return f"{config.width} x {config.depth} x {config.heads}"
    assert isinstance(config, ResNetConfig)
    return f"x{config.width_factor:g}, {'-'.join(map(str, config.blocks))} units"
