"""Rows that repeat others: word for word, nearly so, or in meaning."""
