"""The demo: a tiny model and made-up rows, so that every recipe runs with nothing but the package."""
