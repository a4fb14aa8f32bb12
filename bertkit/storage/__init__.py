"""What is on disk whole or not at all: runs, checkpoints, caches; models of the hub."""
