"""Files that are complete or absent: runs, checkpoints, caches, and models from the Hub."""
