"""What several workflows share."""
