"""Comparisons of models over groups of data sets."""
