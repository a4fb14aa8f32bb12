"""`bertkit runs`: list, show, tabulate and delete run folders."""

from __future__ import annotations

ORDER = 62
HELP = "List, show, tabulate and delete run folders."
