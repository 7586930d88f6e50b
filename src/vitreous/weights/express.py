"""What a dialect can say of a model, and what it cannot."""

from typing import Any

from vitreous.models.embed import RESAMPLING, Policy
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

    def resampling(self, policy: Policy) -> None:
        """The dialect's program resamples positions by a policy of its own; two of them differ in name alone."""
        own = self.config.resample
        if self.config.position.startswith("learned") and RESAMPLING[own] != RESAMPLING[policy]:
            self.object("resample", f"at other sizes than its own, its program goes by {policy!r}")


def training_notes(config: Config) -> list[str]:
    """Settings that no inference sees."""
    lost = [f"{name} = {getattr(config, name)}" for name in TRAINING if getattr(config, name, 0)]
    return [f"not carried, for training only: {', '.join(lost)}"] if lost else []
