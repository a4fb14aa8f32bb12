"""Named shapes of new models, and what they are made of."""
