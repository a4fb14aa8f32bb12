"""What is on disk whole or not at all: run folders, checkpoints, cached files and columns."""
