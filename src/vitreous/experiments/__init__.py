"""Models and papers held against each other."""
