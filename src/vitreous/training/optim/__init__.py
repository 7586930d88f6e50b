"""Optimisers, learning-rate schedules, losses, weight averages, and which parameters get which settings."""
