"""What a run gets wrong: its mistakes, the slices of rows where they crowd, and answers that small changes flip."""
