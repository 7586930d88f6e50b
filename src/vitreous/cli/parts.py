"""What several commands share."""

from typing import Annotated, Literal

import tyro

Size = Annotated[int | tuple[int, int] | None, tyro.conf.arg(metavar="PX [PX]")]  # one number is a square
Preset = Literal["google", "augreg", "deit", "torchvision", "dino"]
