"""`bertkit runs`: list, show, tabulate, trim and delete run folders."""

from __future__ import annotations

ORDER = 8
HELP = "List, show, tabulate, trim and delete run folders."
