"""Looking into a model: who attends to what, how far, what the first layer and the positions have learnt, and what
becomes of the tokens.

Each function takes a model that `vitreous.load` opened and, where it needs them, a batch of images as the model is
shown them. It returns plain tensors with the grid they lie on, which draw themselves with `figure()`.
"""

from vitreous.inspection.attention_maps import Attention, Rollout, attention, rollout
from vitreous.inspection.distance import Distances, attention_distance
from vitreous.inspection.embeddings import Filters, Positions, embedding_filters, position_similarity
from vitreous.inspection.relevance_maps import Relevance, relevance
from vitreous.inspection.tokens import (
    Components,
    Readout,
    Similarity,
    depth_readout,
    patch_similarity,
    token_pca,
)

__all__ = [
    "Attention",
    "Components",
    "Distances",
    "Filters",
    "Positions",
    "Readout",
    "Relevance",
    "Rollout",
    "Similarity",
    "attention",
    "attention_distance",
    "depth_readout",
    "embedding_filters",
    "patch_similarity",
    "position_similarity",
    "relevance",
    "rollout",
    "token_pca",
]
