"""The shape of a model: its layers, heads, feed-forward neurons and tokens, of which some can be kept."""
