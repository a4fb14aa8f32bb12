"""bertkit beside its peers; run a module from the root of the checkout: `python -m benchmarks.speed --help`."""
