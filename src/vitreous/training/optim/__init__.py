"""Optimisers, learning-rate schedules, losses, EMA, and parameters by name."""
