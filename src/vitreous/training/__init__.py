"""From data to a model: the loop, what drives it, and what it leaves behind."""
