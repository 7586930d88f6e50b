"""`vitreous sweep`: runs over a grid or random draws of settings, built on the cells of `vitreous.experiments.grid`."""
