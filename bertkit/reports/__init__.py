"""Reports for readers: report.html, the model card and the pages of other commands."""
