"""Checkpoints that come with the package, each with its model card beside it."""

from pathlib import Path

from vitreous.errors import VitreousError

NAMES = ("vitreous-mini",)  # of the zoo, too: there it is the architecture alone
FOLDER = Path(__file__).parent


def path_of(name: str) -> Path:
    """The file of a shipped checkpoint."""
    path = FOLDER / f"{name}.safetensors"
    if not path.is_file():
        raise VitreousError(f"its weights are missing from this installation ({path}): install vitreous anew")
    return path
