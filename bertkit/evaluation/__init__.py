"""From a model to its scores, and how runs compare."""
