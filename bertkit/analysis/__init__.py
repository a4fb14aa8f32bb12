"""Analysis of models: mistakes, behavior, explanations, attention, probes, tokens and maps."""
