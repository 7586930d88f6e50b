"""Serving a trained model: prediction."""
