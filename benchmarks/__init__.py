"""Measurements of bertkit and its peers; run them in the root of the checkout: `python -m benchmarks.speed --help`."""
