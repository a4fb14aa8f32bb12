"""What a model has inside, and why it answers as it does."""
