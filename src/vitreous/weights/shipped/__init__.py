"""Checkpoints that come with the package, each with its model card."""

from pathlib import Path

from vitreous.errors import VitreousError

NAMES = ("vitreous-mini",)  # the zoo has the same names for the architectures alone
FOLDER = Path(__file__).parent


def path_of(name: str) -> Path:
    """Return the path of a shipped checkpoint."""
    path = FOLDER / f"{name}.safetensors"
    if not path.is_file():
        raise VitreousError(f"its weights are missing from this installation ({path}): reinstall vitreous")
    return path
