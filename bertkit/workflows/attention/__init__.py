"""What heads attend to in a text and over a file, and which of them a run needs."""

from bertkit.workflows.attention.heads import measure as measure
from bertkit.workflows.attention.importance import ImportantHeads as ImportantHeads
from bertkit.workflows.attention.importance import rank_by_importance as rank_by_importance
from bertkit.workflows.attention.show import ShownAttention as ShownAttention
from bertkit.workflows.attention.show import check_output as check_output
from bertkit.workflows.attention.show import show as show
