"""`bertkit attention`: what the heads of an encoder attend to."""

from __future__ import annotations

ORDER = 33
WARNING = "Attention says what heads read, and is no explanation of an answer: for that, see `bertkit explain`."
HELP = (
    "Show and measure what the heads of an encoder attend to.\n\n"
    'Start with: bertkit attention show "The cat sat on the mat." --model demo --output page.html'
)
