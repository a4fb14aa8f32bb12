"""Heads of models: those that transformers lacks for a model type, and changes to those that it has."""
