"""Class names and WordNet ids of ImageNet-1k, for checkpoints without labels."""

from functools import cache
from importlib.resources import files

# Classes whose first synonym is also that of another class.
DISAMBIGUATED = {
    "n02012849": "crane (bird)",
    "n03126707": "crane (machine)",
    "n03710637": "maillot",
    "n03710721": "maillot, tank suit",
}


@cache
def imagenet1k() -> tuple[str, ...]:
    """Return a unique name for each class: the first of its synonyms, disambiguated."""
    return tuple(DISAMBIGUATED.get(wordnet_id, synonyms.split(",")[0]) for wordnet_id, synonyms in _lines())


@cache
def imagenet1k_wordnet_ids() -> tuple[str, ...]:
    """Return the WordNet id of each class, such as "n01440764": the name of its folder in ImageNet."""
    return tuple(wordnet_id for wordnet_id, _ in _lines())


@cache
def imagenet1k_synonyms() -> tuple[str, ...]:
    """Return all synonyms of each class in one string, such as "tench, Tinca tinca"."""
    return tuple(synonyms for _, synonyms in _lines())


def _lines() -> list[tuple[str, str]]:
    text = files("vitreous.weights").joinpath("imagenet1k.txt").read_text(encoding="utf-8")
    return [(line[:9], line[10:]) for line in text.splitlines()]
