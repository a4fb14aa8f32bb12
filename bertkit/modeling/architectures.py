"""What bertkit knows of each architecture."""

from __future__ import annotations

KEEP_APART = ("albert", "bert", "camembert", "distilbert", "electra", "roberta", "xlm-roberta")
"""Types of models whose attention and positions can be given for each document of a block."""
