"""Weights by depth: what is frozen, drawn anew, or trained through adapters."""
