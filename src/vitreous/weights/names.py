"""The dialects that can be written. Apart from the rest, so that a command line can be parsed without torch."""

from typing import Literal

Dialect = Literal["google", "big-vision", "bit", "timm", "huggingface", "torchvision", "dino", "dinov2", "native"]
