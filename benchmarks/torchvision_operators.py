"""Lets torchvision be imported on a build of torch that its wheel was not compiled for.

The wheel from PyPI is compiled for CUDA. On a CPU build of torch the library of its operators cannot be loaded, and
`import torchvision` fails, because two of the operators are not defined; timm and transformers import torchvision too.
Call `define_missing` before any of the three is imported. The tests use it as well.
"""

from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path

import torch

SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
OPERATORS = ("nms", "qnms")


def define_missing() -> None:
    """Define what `import torchvision` asks for, unless torchvision can load its own operators.

    Defining an operator before a library does so aborts Python when that library is loaded.
    """
    spec = find_spec("torchvision")  # does not import it
    if spec is None or not spec.submodule_search_locations or loads(Path(spec.submodule_search_locations[0])):
        return
    for operator in OPERATORS:
        if not hasattr(torch.ops.torchvision, operator):
            torch.library.define(f"torchvision::{operator}", SCHEMA)


def loads(package: Path) -> bool:
    """Load the operators of a torchvision package as its import will. Loading them twice does no harm."""
    for suffix in EXTENSION_SUFFIXES:
        if (library := package / f"_C{suffix}").is_file():
            try:
                torch.ops.load_library(library)
            except OSError:
                return False
            return True
    return False
