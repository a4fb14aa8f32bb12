"""The head of a masked language model, computed only where something is masked."""
