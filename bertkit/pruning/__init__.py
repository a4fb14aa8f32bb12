"""What of a trained model matters least: the importance of its layers, heads and neurons, measured on rows."""
