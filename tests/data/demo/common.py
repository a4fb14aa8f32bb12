"""What the tests of the demo share: the rows of a recipe, written once, and all texts of a row."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import cache

from bertkit.data.demo.sets import DEMO_SETS, demo_rows

PAIRS_OR_TEXTS = tuple(
    name for name, one in DEMO_SETS.items() if one.task in ("text_classification", "text_regression")
)
OTHERS = tuple(name for name in DEMO_SETS if name not in PAIRS_OR_TEXTS)


def one_per_writer(names):
    """Keep one set of those whose rows the same function writes: to write thousands more of them shows nothing new."""
    return tuple({(DEMO_SETS[name].write, DEMO_SETS[name].unfold): name for name in reversed(names)}.values())


def sets_of(task):
    return one_per_writer([name for name, demo_set in DEMO_SETS.items() if demo_set.task == task])


@cache
def rows_of(name, split, limit=400):
    """Return the first rows of a split; all of it where the limit is None."""
    return demo_rows(DEMO_SETS[name], split, limit)


def all_text(row):
    """Return all texts of a row as one."""
    texts = [row.get(name, "") for name in ("text", "context", "question", "state")]
    texts += [row.get(name, "") for name in ("query", "passage", "anchor", "positive", "negative")]
    return " ".join([*texts, *row.get("choices", []), *row.get("tokens", [])])


def most_frequent_tags(name):
    """Tag each word of validation as training does most often; return (gold, tagged)."""
    counts = defaultdict(Counter)
    for row in rows_of(name, "train"):
        for word, tag in zip(row["tokens"], row["tags"], strict=True):
            counts[word.lower()][tag] += 1
    rows = rows_of(name, "validation")
    tagged = [[max(counts[w.lower()] or ["O"], key=counts[w.lower()].get) for w in row["tokens"]] for row in rows]
    return [row["tags"] for row in rows], tagged
