"""From a model to its scores."""
