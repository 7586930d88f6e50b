"""Inspection of models: attention maps, rollout, relevance, attention distance, filters, positions and tokens.

Each function takes a model from `vitreous.load` and, if needed, a batch of preprocessed images. It returns plain
tensors with the patch grid; `figure()` draws them.
"""

from vitreous.inspection.attention_maps import AttentionMaps, Rollout, attention, rollout
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
    "AttentionMaps",
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
