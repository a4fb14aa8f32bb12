"""What models do, and why: mistakes, explanations, attention, probes, maps."""
