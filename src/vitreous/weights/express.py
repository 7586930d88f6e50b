"""What a dialect can say of a model, and what it cannot."""

from typing import Any

from vitreous.models.vit import ViTConfig
from vitreous.weights.checkpoint import Config

TRAINING = ("dropout", "attention_dropout", "stochastic_depth")


class Expression:
    """Collects a dialect's objections to a config."""

    def __init__(self, config: ViTConfig):
        self.config = config
        self.objections: list[str] = []

    def object(self, field: str, why: str) -> None:
        self.objections.append(f"{field} = {getattr(self.config, field)!r}: {why}")

    def only(self, field: str, *allowed: Any, why: str) -> None:
        """Object unless the field has one of these values."""
        if getattr(self.config, field) not in allowed:
            self.object(field, why)

    def resampling(self, policy: str) -> None:
        """The dialect's program resamples positions by a policy of its own."""
        if self.config.position.startswith("learned"):
            self.only(
                "resample", policy, why=f"at other sizes than its own, its program resamples positions by {policy!r}"
            )


def training_notes(config: Config) -> list[str]:
    """Settings that no inference sees."""
    lost = [f"{name} = {getattr(config, name)}" for name in TRAINING if getattr(config, name, 0)]
    return [f"not carried, for training only: {', '.join(lost)}"] if lost else []
