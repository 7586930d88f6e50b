"""A trained model at work: prediction."""
