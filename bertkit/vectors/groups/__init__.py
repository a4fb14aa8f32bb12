"""Groups of similar texts: clusters with their topics, and rows that repeat others."""
