"""GLUE: its tasks and averages, what its leaderboard reads, and what a model scored on all of it."""
