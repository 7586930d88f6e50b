"""What the thousand classes of ImageNet-1k are called, for checkpoints that do not say."""

from functools import cache
from importlib.resources import files

# WordNet knows them apart by meaning; a person needs another name.
SAME_NAME = {
    "n02012849": "crane (bird)",
    "n03126707": "crane (machine)",
    "n03710637": "maillot",
    "n03710721": "maillot, tank suit",
}


@cache
def imagenet1k() -> tuple[str, ...]:
    """The name of each class, in the order of the classes: the first of its synonyms, and no two the same."""
    return tuple(SAME_NAME.get(wordnet_id, synonyms.split(",")[0]) for wordnet_id, synonyms in _lines())


@cache
def imagenet1k_wordnet_ids() -> tuple[str, ...]:
    """The WordNet id of each class, such as "n01440764": what its folder is called in ImageNet."""
    return tuple(wordnet_id for wordnet_id, _ in _lines())


@cache
def imagenet1k_synonyms() -> tuple[str, ...]:
    """All names of each class, in one text: "tench, Tinca tinca"."""
    return tuple(synonyms for _, synonyms in _lines())


def _lines() -> list[tuple[str, str]]:
    text = files("vitreous.weights").joinpath("imagenet1k.txt").read_text(encoding="utf-8")
    return [(line[:9], line[10:]) for line in text.splitlines()]
