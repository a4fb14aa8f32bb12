"""Maps of contextual vectors: what becomes a point, where it lies at each layer, and how well labels lie apart."""
