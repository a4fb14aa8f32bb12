"""`bertkit runs`: list, show, tabulate, trim and delete run folders."""

from __future__ import annotations

ORDER = 62
HELP = "List, show, tabulate, trim and delete run folders."
