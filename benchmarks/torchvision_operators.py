"""Make torchvision importable with a build of torch that its wheel was not compiled for.

The wheel on PyPI is compiled for CUDA. With a CPU build of torch its C++ library cannot be loaded, and
`import torchvision` fails because two operators are not defined. timm and transformers import torchvision too. Call
`define_missing` before any of the three is imported. tests/peers uses it as well.
"""

from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path

import torch

SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
OPERATORS = ("nms", "qnms")


def define_missing() -> None:
    """Define the operators that `import torchvision` needs, unless torchvision can load its own.

    An operator that is already defined when torchvision's C++ library is loaded aborts Python.
    """
    spec = find_spec("torchvision")  # does not import it
    if spec is None or not spec.submodule_search_locations:
        return
    if load_operators(Path(spec.submodule_search_locations[0])):
        return
    for operator in OPERATORS:
        if not hasattr(torch.ops.torchvision, operator):
            torch.library.define(f"torchvision::{operator}", SCHEMA)


def load_operators(package: Path) -> bool:
    """Load the C++ operators of a torchvision package, as its import does. Return False if they cannot be loaded.

    torchvision loads the library again when it is imported, which has no effect.
    """
    for suffix in EXTENSION_SUFFIXES:
        if (library := package / f"_C{suffix}").is_file():
            try:
                torch.ops.load_library(library)
            except OSError:
                return False
            return True
    return False
