"""The Trainer: its batches, losses and callbacks, and a clean stop at a signal."""
