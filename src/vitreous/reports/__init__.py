"""HTML pages: the training report and the inspection page."""
