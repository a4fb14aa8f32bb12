"""`bertkit recipes`: list, show, copy and check recipes."""

from __future__ import annotations

ORDER = 60
HELP = "List, show, copy and check recipes."
