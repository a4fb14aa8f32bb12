"""What is inside an encoder, looked at without training it."""
