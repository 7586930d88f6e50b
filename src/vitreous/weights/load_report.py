"""The report of `vitreous.load`: which tensors were used, ignored, unexpected or missing, and what was assumed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vitreous.errors import summarize_names
from vitreous.models.resnet import BiTConfig
from vitreous.models.vit import ViTConfig

# Topics of guesses, the most important first: a wrong preprocessing costs accuracy without any error.
TOPICS = ("preprocessing", "heads", "pool", "GELU", "positions", "origin")


@dataclass
class Remarks:
    """Notes of a reader about a file, and by topic what the file does not contain and the reader assumed."""

    notes: list[str] = field(default_factory=list)
    guesses: dict[str, str] = field(default_factory=dict)


@dataclass(repr=False)
class LoadReport:
    """What `vitreous.load` did with a file: `model.report`. Its repr is a text of a few lines.

    >>> report = vitreous.load("vitreous-mini").report
    >>> print(report)
    vitreous-mini: native (safetensors), 90 tensors used
    >>> report.missing, report.guessed
    ((), '')
    """

    source: str  # the file, folder or name
    container: str  # safetensors, npz, PyTorch ...
    dialect: str  # the library whose tensor names and layout the file has; native: our own
    config: ViTConfig | BiTConfig  # config in the file, or inferred from its tensors
    used: tuple[str, ...] = ()  # names of tensors
    ignored: Mapping[str, str] = field(default_factory=dict)  # tensors that are known and not needed, with the reason
    unexpected: tuple[str, ...] = ()  # tensors that were not used, with strict=False
    missing: tuple[str, ...] = ()  # parameters that were initialised at random, with strict=False
    facts: tuple[str, ...] = ()  # notes that are not guesses
    guesses: Mapping[str, str] = field(default_factory=dict)  # what the file does not contain and was assumed, by topic
    origin: Mapping[str, Any] = field(default_factory=dict)  # file and dialect that the weights were converted from

    @property
    def notes(self) -> tuple[str, ...]:
        """All notes. The first one lists the guesses, if there are any."""
        return (self.guessed, *self.facts) if self.guessed else self.facts

    @property
    def guessed(self) -> str:
        """All guesses in one sentence, the most important first. Empty for a native file: its guesses were reported
        when it was converted."""
        lines = [] if self.dialect == "native" else guess_lines(self.guesses)
        return f"guessed, because the file does not contain it: {'; '.join(lines)}" if lines else ""

    def add_note(self, note: str) -> None:
        """Add a note that is not a guess."""
        self.facts = (*self.facts, note)

    def about(self, *topics: str) -> list[str]:
        """Return the notes on some topics, without the topic."""
        parts = (note.partition(": ") for note in self.facts)
        return [text for topic, _, text in parts if topic in topics]

    def drop(self, topic: str) -> None:
        """Remove the notes and the guess about a topic."""
        self.facts = tuple(note for note in self.facts if not note.startswith(f"{topic}:"))
        self.guesses = {name: guess for name, guess in self.guesses.items() if name != topic}

    def __repr__(self) -> str:
        lines = [f"{self.source}: {self.dialect} ({self.container}), {len(self.used)} tensors used"]
        reasons: dict[str, list[str]] = {}
        for name, reason in self.ignored.items():
            reasons.setdefault(reason, []).append(name)
        lines += [f"  ignored, {reason}: {summarize_names(names)}" for reason, names in reasons.items()]
        if self.unexpected:
            lines.append(f"  unexpected: {summarize_names(self.unexpected)}")
        if self.missing:
            lines.append(f"  missing, initialised at random: {summarize_names(self.missing)}")
        lines += [f"  note: {note}" for note in self.facts]
        lines += [f"  guess: {guess}" for guess in guess_lines(self.guesses)]
        return "\n".join(lines)


def guess_lines(guesses: Mapping[str, str]) -> list[str]:
    """Return "topic: guess" for each guess, in the order of TOPICS."""
    known = [topic for topic in TOPICS if topic in guesses]
    return [f"{topic}: {guesses[topic]}" for topic in (*known, *(t for t in guesses if t not in TOPICS))]


def read_guesses(lines: Sequence[Any]) -> dict[str, str]:
    """Return the guesses by topic. The inverse of `guess_lines`."""
    return {topic: text for topic, _, text in (str(line).partition(": ") for line in lines)}
