"""Training: batches, one Trainer, checkpoints that survive anything, and forward passes without gradients."""
