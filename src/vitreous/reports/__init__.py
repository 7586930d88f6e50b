"""The HTML pages people look at: the training report and the inspection page."""
