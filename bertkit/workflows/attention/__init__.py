"""Attention of an encoder in one text, or measured over a file."""

from bertkit.workflows.attention.heads import measure as measure
from bertkit.workflows.attention.show import ShownAttention as ShownAttention
from bertkit.workflows.attention.show import check_output as check_output
from bertkit.workflows.attention.show import show as show
