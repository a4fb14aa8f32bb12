"""`bertkit search`: build an index of texts, change it, and find what is nearest to a query."""

from __future__ import annotations

ORDER = 42
HELP = (
    "Search texts by meaning.\n\n"
    "Start with: bertkit search build texts.txt --model MODEL --output index, then "
    'bertkit search query index "how to open a file"'
)
