"""Smaller models: students that learn from teachers, and models pruned by measured importance."""
