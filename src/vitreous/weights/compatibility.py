"""Check whether a dialect can represent a model, and adapt parameters to the layout that it requires."""

from dataclasses import replace
from typing import Any

import torch

from vitreous.models.embed import RESAMPLING, Policy
from vitreous.models.vit import ViTConfig
from vitreous.utils.sizes import pair
from vitreous.weights.checkpoint import Checkpoint, Config
from vitreous.weights.dialect import WritePlan

TRAINING_FIELDS = ("dropout", "attention_dropout", "stochastic_depth")  # of ViTConfig: no effect at inference


class CompatibilityCheck:
    """Collects the settings of a config that a dialect cannot represent."""

    def __init__(self, config: ViTConfig):
        self.config = config
        self.incompatibilities: list[str] = []

    def reject(self, field: str, reason: str) -> None:
        self.incompatibilities.append(f"{field} = {getattr(self.config, field)!r}: {reason}")

    def require(self, field: str, *allowed: Any, reason: str) -> None:
        """Reject the field unless it has one of the allowed values."""
        if getattr(self.config, field) not in allowed:
            self.reject(field, reason)

    def require_resampling(self, policy: Policy) -> None:
        """Reject other resampling policies for learned positions. Policies of different names may be the same."""
        if self.config.position.startswith("learned") and RESAMPLING[self.config.resample] != RESAMPLING[policy]:
            self.reject("resample", f"its own library resamples positions with {policy!r} at other image sizes")

    def require_class_token_vit(self) -> None:
        """Require what most dialects have in common: pooling by class token, and learned positions added once."""
        self.require("backbone", None, reason="it has no hybrids")
        self.require("pool", "token", reason="it pools with the class token")
        self.require("final_norm", "before-pool", reason="its final norm comes before pooling")
        self.require("position", "learned-1d", reason="it has learned 1-D positions")
        self.require("position_at", "stem", reason="it adds positions once")
        self.require("position_slots", "class", "patches", reason="its registers have no positions")
        self.require("attention", "full", reason="every token attends to all tokens")
        self.require("qk_norm", False, reason="it has no q/k norm")

    def require_square(self, *fields: str) -> None:
        for field in fields:
            height, width = pair(getattr(self.config, field))
            if height != width:
                self.reject(field, "it supports squares only")


def lost_settings(config: Config, *stored: str) -> list[str]:
    """Return notes on settings that a dialect does not store and that do not affect inference. `stored`: training
    settings that the dialect does store."""
    names = [name for name in TRAINING_FIELDS if getattr(config, name, 0) and name not in stored]
    lost = [f"{name} = {getattr(config, name)}" for name in names]
    notes = [f"not stored, for training only: {', '.join(lost)}"] if lost else []
    if getattr(config, "remainder", "error") == "crop":
        notes.append("not stored: remainder = 'crop', which crops images to whole patches")
    return notes


def fit_class_position(plan: WritePlan, checkpoint: Checkpoint, config: ViTConfig, required: bool) -> None:
    """Add a zero position for the class token, or add its position to the token, as the dialect requires. The outputs
    stay the same."""
    if config.position != "learned-1d" or not config.class_token or config.position_slots == "all":
        return
    token, positions = checkpoint.state["cls_token"], checkpoint.state["pos_embed"]
    if required and config.position_slots == "patches":
        plan.state["pos_embed"] = torch.cat([torch.zeros_like(positions[:, :1]), positions], dim=1)
        plan.notes.append("the class token has no position: zeros are written for it")
    elif not required and config.position_slots == "class":
        plan.state["cls_token"] = (token.double() + positions[:, :1].double()).to(token.dtype)
        plan.state["pos_embed"] = positions[:, 1:]
        plan.notes.append("the class token's position is added to the token: converting back does not separate them")


def add_zero_qkv_biases(plan: WritePlan, checkpoint: Checkpoint, config: ViTConfig) -> ViTConfig:
    """Add zero biases for q, k and v if the model has none and the dialect always has them. Returns the new config."""
    if config.qkv_bias:
        return config
    weights = {name: t for name, t in checkpoint.state.items() if name.endswith("attn.qkv.weight")}
    plan.state |= {name.replace("weight", "bias"): t.new_zeros(len(t)) for name, t in weights.items()}
    plan.notes.append("q, k and v have no biases: zeros are written for them")
    return replace(config, qkv_bias=True)
