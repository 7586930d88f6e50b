"""`vitreous bench`: throughput of a model on this machine, compared with the peak of the machine."""
