"""What a run leaves for people to read: report.html and the model card."""
