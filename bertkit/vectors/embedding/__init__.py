"""What `bertkit embed` does with an embedder: read rows, compute vectors part by part, and write them."""
