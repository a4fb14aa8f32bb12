"""Pages about what encoders know, and charts that they share."""
