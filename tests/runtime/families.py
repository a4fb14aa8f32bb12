"""A recipe of every task family whose exported folder predicts without torch, and rows to predict."""

from __future__ import annotations

import json
from pathlib import Path

from bertkit.data.demo import read_demo_rows
from bertkit.recipe import load_recipe

LONG = "The old baker carried a heavy basket of red apples along the river to the busy market before the rain. "
FAMILIES = {
    "classes": ("classify", []),
    "pairs": ("mnli", []),
    "labels": ("classify", ["options.multi_label=true", "metrics=[f1_micro]"]),
    "tail": ("classify", ["options.long_text=tail"]),
    "windows": ("classify", ["options.long_text=windows_mean", "options.overlap=4"]),
    "votes": ("classify", ["options.long_text=windows_vote", "options.overlap=4"]),
    "hierarchical": ("classify", ["options.long_text=hierarchical", "options.overlap=4"]),
    "regression": ("regress", []),
    "choices": ("choose", []),
    "tags": ("ner", []),
    "tags of subwords": ("ner", ["options.word_split=subwords"]),
    "valid tags": ("ner", ["options.decoding=constrained"]),
    "parts of speech": ("pos", []),
    "questions": ("squad2", []),
    "typed questions": ("decide", []),
    "senses": ("wsd", []),
    "similarity": ("similarity", []),
    "pairs to find": ("similarity-pairs", []),
    "few-shot": ("few-shot", []),
    "rerank": ("rerank", []),
    "late": ("late-interaction", []),
}
"""Name -> recipe, changes of it."""


def rows_to_predict(recipe: str, changes: list[str], file: Path, count: int = 12) -> list[dict[str, object]]:
    """Write rows of a recipe with canonical columns, some of them long, without gold values."""
    from bertkit.recipe import parse_changes
    from bertkit.tasks import load_task

    loaded = load_recipe(recipe, {**parse_changes(changes), "model": "demo", "data.source": "demo"})
    columns = load_task(loaded).COLUMNS
    names = [*columns.inputs, *columns.optional]  # a second text is read wherever it stands
    rows = [{name: row[name] for name in names if name in row} for row in read_demo_rows(loaded, "test", count)]
    for number, row in enumerate(rows):
        for name in ("text", "context", "passage", "positive"):
            if name in row and number % 3 == 1:
                row[name] = f"{row[name]} {LONG * 4}"
        if "tokens" in row and number % 3 == 1:
            row["tokens"] = [*row["tokens"], *(LONG * 4).split()]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows


def canonical_columns(rows: list[dict[str, object]]) -> list[str]:
    """Return the options by which `predict` reads rows whose columns are canonical."""
    return [part for name in rows[0] for part in ("--set", f"data.columns.{name}={name}")]


def same(one: object, other: object, tolerance: float = 1e-5) -> bool:
    """Tell whether two values from JSON are alike, numbers up to a tolerance."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name], tolerance) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(same(*pair, tolerance) for pair in zip(one, other, strict=True))
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= tolerance * max(1.0, abs(one))
    return one == other
