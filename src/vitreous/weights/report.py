"""What `load` found in a file: nothing is dropped without a line here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vitreous.models.resnet import BiTConfig
from vitreous.models.vit import ViTConfig


@dataclass
class LoadReport:
    """Dialect, inferred config, and what became of every tensor. `print(model.report)` is for people."""

    source: str
    container: str
    dialect: str
    config: ViTConfig | BiTConfig
    used: tuple[str, ...] = ()
    ignored: Mapping[str, str] = field(default_factory=dict)  # tensor -> the rule it was ignored by
    unexpected: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()  # by our names
    notes: tuple[str, ...] = ()  # guesses, and what else one should know
    origin: Mapping[str, Any] = field(default_factory=dict)  # where the weights came from before they were ours

    @property
    def guesses(self) -> list[str]:
        """The notes that are still true of the model when it has been trained or written: what it is made of."""
        return [note for note in self.notes if note.startswith(("heads:", "GELU", "pool:", "preprocessing:"))]

    def add_note(self, note: str) -> None:
        self.notes = (*self.notes, note)

    def drop_notes(self, start: str) -> None:
        self.notes = tuple(note for note in self.notes if not note.startswith(start))

    def __str__(self) -> str:
        lines = [f"{self.source}: {self.dialect} ({self.container}), {len(self.used)} tensors used"]
        rules: dict[str, list[str]] = {}
        for name, rule in self.ignored.items():
            rules.setdefault(rule, []).append(name)
        lines += [f"  ignored, {rule}: {listed(names)}" for rule, names in rules.items()]
        if self.unexpected:
            lines.append(f"  unexpected: {listed(self.unexpected)}")
        if self.missing:
            lines.append(f"  missing, drawn at random: {listed(self.missing)}")
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)


def listed(names: Sequence[str], most: int = 8) -> str:
    """The first few of many names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
