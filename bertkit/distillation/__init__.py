"""What a student learns from its teachers."""
