"""Features and measures that were computed before, found again by what they depend on."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path

from vitreous.data.dataset import Source
from vitreous.errors import VitreousError
from vitreous.evaluation.features import HEAD
from vitreous.evaluation.measures import VERSION, Bank, Measure, Method, Settings, check, measure
from vitreous.evaluation.store import Features, Origin, read_features, write_features
from vitreous.evaluation.subject import Loading, Parts, Subject
from vitreous.preprocessing import Preprocessing
from vitreous.utils.atomic import atomic_file
from vitreous.utils.json_files import dump_json
from vitreous.utils.regular_files import read_text


def usual_place() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vitreous"


@dataclass(frozen=True)
class Taken:
    """Measures, and the images that were left out of them, with the reason for each."""

    measures: tuple[Measure, ...]
    train_unreadable: tuple[str, ...] = ()
    test_unreadable: tuple[str, ...] = ()

    def told(self, parts: Parts) -> str:
        """How many images were learnt from and measured on."""
        learnt, measured = len(parts.train) - len(self.train_unreadable), len(parts.test) - len(self.test_unreadable)
        return f"{learnt:,} images to learn from; measured on {measured:,}: {parts.told}"


@dataclass(frozen=True)
class Cache:
    folder: Path

    def features(
        self,
        subject: Subject,
        source: Source,
        preprocessing: Preprocessing,
        loading: Loading,
        tick: Callable[[int], None],
    ) -> Features:
        """Read back, after making what is missing of them."""
        place = self.folder / "features" / Origin.of(subject, source, preprocessing, loading).key
        write_features(subject, source, place, preprocessing, loading, HEAD, tick=tick)
        return read_features(place)

    def measures(
        self,
        subject: Subject,
        parts: Parts,
        methods: Sequence[Method],
        settings: Settings,
        preprocessing: Preprocessing,
        loading: Loading,
        tick: Callable[[int], None] = lambda images: None,
    ) -> Taken:
        """All measures of a model on some images, each taken once: what was measured before is read."""
        sources = (parts.train, parts.test)
        origins = [Origin.of(subject, source, preprocessing, loading).key for source in sources]
        kept = {method: self._place(origins, method, settings) for method in methods}
        found = {method: taken for method in methods if (taken := _read(kept[method])) is not None}
        if len(found) < len(methods):
            held = [self.features(subject, source, preprocessing, loading, tick) for source in sources]
            bank = Bank(held[0].features, held[0].labels, held[1].features, held[1].labels)
            for method in methods:
                if method not in found:
                    check(methods, bank.train_labels, bank.test_labels, parts.classes, settings, parts.name)
                    measures = measure(method, bank, settings, loading.device)
                    found[method] = Taken(tuple(measures), *(tuple(one.unreadable.values()) for one in held))
                    _write(kept[method], found[method])
        measures = [one for method in methods for one in found[method].measures]
        return replace(found[methods[0]], measures=tuple(measures))

    def _place(self, origins: list[str], method: str, settings: Settings) -> Path:
        text = json.dumps([VERSION, origins, method, asdict(settings)], sort_keys=True)
        return self.folder / "measures" / f"{blake2b(text.encode(), digest_size=16).hexdigest()}.json"


def _read(path: Path) -> Taken | None:
    try:
        held = json.loads(read_text(path))
        measures = tuple(Measure.from_json(values) for values in held["measures"])
        return Taken(measures, tuple(held["train_unreadable"]), tuple(held["test_unreadable"]))
    except (
        VitreousError,
        OSError,
        ValueError,
        KeyError,
        TypeError,
        RecursionError,
    ):
        return None  # whatever is wrong with it: it is made anew


def _write(path: Path, taken: Taken) -> None:
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as temporary:
        dump_json(
            temporary,
            {
                "measures": [one.to_json() for one in taken.measures],
                "train_unreadable": taken.train_unreadable,
                "test_unreadable": taken.test_unreadable,
            },
        )
