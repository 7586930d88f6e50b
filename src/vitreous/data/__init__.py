"""Images: where they lie, and what is in them."""
