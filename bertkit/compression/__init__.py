"""Smaller models: students that learn from teachers, and models pruned by what matters least, measured on rows."""
