"""What a run writes for people to read: report.html and the model card."""
