"""Names of the dialects that `vitreous.convert` writes. This module does not import torch, so the CLI parses fast."""

from typing import Literal

DialectName = Literal["google", "big-vision", "bit", "timm", "huggingface", "torchvision", "dino", "dinov2", "native"]
