"""What heads attend to in a text and over a file, and which of them a run needs."""

from bertkit.workflows.attention.heads import measure
from bertkit.workflows.attention.importance import ImportantHeads, rank_by_importance
from bertkit.workflows.attention.show import ShownAttention, show

__all__ = ["ImportantHeads", "ShownAttention", "measure", "rank_by_importance", "show"]
