"""What a dialect can say of a model, and what it cannot."""

from dataclasses import replace
from typing import Any

import torch

from vitreous.models.checks import pair
from vitreous.models.embed import RESAMPLING, Policy
from vitreous.models.vit import ViTConfig
from vitreous.weights.checkpoint import Checkpoint, Config, Form

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

    def token_vit(self) -> None:
        """What most of them have in common: a class token that is read, and learned positions added once."""
        self.only("backbone", None, why="it has no hybrids")
        self.only("pool", "token", why="it reads the class token")
        self.only("final_norm", "before-pool", why="its last norm comes before the class token is read")
        self.only("position", "learned-1d", why="its positions are learned")
        self.only("position_at", "stem", why="it adds positions once")
        self.only("position_slots", "class", "patches", why="its registers have no positions")
        self.only("qk_norm", False, why="it has none")

    def squares(self, *fields: str) -> None:
        for field in fields:
            height, width = pair(getattr(self.config, field))
            if height != width:
                self.object(field, "it takes squares alone")


def unsaid(config: Config, *said: str) -> list[str]:
    """Settings that a dialect has no word for (but for those it `said`), and that no inference sees."""
    lost = [f"{name} = {getattr(config, name)}" for name in TRAINING if getattr(config, name, 0) and name not in said]
    notes = [f"not carried, for training only: {', '.join(lost)}"] if lost else []
    if getattr(config, "remainder", "error") == "crop":
        notes.append("not carried: that images which are not made of whole patches are cropped")
    return notes


def fit_class_slot(form: Form, checkpoint: Checkpoint, config: ViTConfig, wanted: bool) -> None:
    """Give the class token a position of zeros, or add its own to it: the same numbers, as the dialect wants them."""
    if config.position != "learned-1d" or not config.class_token or config.position_slots == "all":
        return
    token, positions = checkpoint.state["cls_token"], checkpoint.state["pos_embed"]
    if wanted and config.position_slots == "patches":
        form.state["pos_embed"] = torch.cat([torch.zeros_like(positions[:, :1]), positions], dim=1)
        form.notes.append("the class token has no position of its own: zeros are written for it")
    elif not wanted and config.position_slots == "class":
        form.state["cls_token"] = (token.double() + positions[:, :1].double()).to(token.dtype)
        form.state["pos_embed"] = positions[:, 1:]
        form.notes.append("the class token's position is added to the token: on the way back the two stay one")


def fit_biases(form: Form, checkpoint: Checkpoint, config: ViTConfig) -> ViTConfig:
    """Zeros for the biases of q, k and v, where the model has none and the dialect always."""
    if config.qkv_bias:
        return config
    weights = {ours: t for ours, t in checkpoint.state.items() if ours.endswith("attn.qkv.weight")}
    form.state |= {ours.replace("weight", "bias"): t.new_zeros(len(t)) for ours, t in weights.items()}
    form.notes.append("q, k and v have no biases: zeros are written for them")
    return replace(config, qkv_bias=True)
