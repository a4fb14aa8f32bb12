"""Find rows that repeat other rows, exactly or nearly, in one split or in two, with the same label or another."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from bertkit.checks import Finding, Level, digest_inputs, digest_other_columns, get_severity, locate_pairs, read_texts
from bertkit.data.checks import find_contradictions, format_fraction
from bertkit.data.columns import ColumnSpec
from bertkit.data.rows import Digests, Split
from bertkit.data.text import normalize
from bertkit.progress import SILENT, use_progress
from bertkit.vectors.minhash import Shingles, cut_shingles, find_near, find_repeated, sign

_WARN_REPEATED = 0.01  # fraction of the rows of a split
_FAIL_LEAKED = 0.1  # fraction of the rows of a split, as in `bertkit eval`
_MIN_SIMILARITY = 0.9  # Jaccard similarity of the five-character shingles of two long texts


@dataclass
class Repeats:
    """Findings about repeated rows, and the training rows that can be removed."""

    findings: list[Finding] = field(default_factory=list)
    repeated_rows: list[int] = field(default_factory=list)
    """Indices of the training rows that repeat an earlier row with the same gold value."""
    leaked_rows: list[int] = field(default_factory=list)
    """Indices of the training rows whose texts are also in another split."""


def find_repeats(splits: Mapping[str, Split], columns: ColumnSpec) -> Repeats:
    """Compare all rows with each other; differences in case, whitespace and final punctuation are ignored."""
    digests = {name: digest_inputs(split.rows, columns) for name, split in splits.items()}
    repeats = Repeats()
    for name, split in splits.items():
        _find_within(split, digests[name], columns.gold, repeats)
    train, train_digests = splits["train"], digests["train"]
    known_digests, first_rows = np.unique(train_digests, return_index=True)
    for name, split in splits.items():
        if name != "train":
            rows = np.flatnonzero(np.isin(digests[name], known_digests))
            train_rows = first_rows[np.searchsorted(known_digests, digests[name][rows])]
            pairs = list(zip(rows.tolist(), train_rows.tolist(), strict=True))
            repeats.findings.append(_describe_leak(split, train, pairs, columns.gold))
    other_digests = [digests[name] for name in splits if name != "train"]
    if other_digests:
        repeats.leaked_rows = np.flatnonzero(np.isin(train_digests, np.concatenate(other_digests))).tolist()
    # Exact repeats are not checked for near repeats.
    exact_rows = {*find_repeated(train_digests, np.arange(len(train_digests))), *repeats.leaked_rows}
    repeats.findings += _find_near(splits, columns, exact_rows)
    return repeats


def _find_within(split: Split, digests: Digests, gold: str, result: Repeats) -> None:
    """Describe the rows that repeat or contradict an earlier row of their split."""
    repeat_items = sorted(find_repeated(digests, np.arange(len(digests))).items())
    repeats, contradictions = find_contradictions(split, [(earlier, row) for row, (earlier, _) in repeat_items], gold)
    count = len(split.rows)
    for pairs, name, predicate, min_share in (
        (repeats, "repeated_rows", "repeat an earlier row", _WARN_REPEATED),
        (contradictions, "contradictory_labels", "have the text of an earlier row, but another label", 0.0),
    ):
        text = f"{split.name}: {format_fraction(len(pairs), count) if pairs else 'no'} rows {predicate}"
        level = get_severity(len(pairs) / count, warn=min_share) if pairs else "good"
        places = locate_pairs([(split.locate(row), split.locate(earlier)) for earlier, row in pairs])
        if pairs or (name == "repeated_rows" and split.name == "train"):
            result.findings.append(Finding(level, "repeats", name, text, places, len(pairs)))
    if split.name == "train":
        result.repeated_rows = [row for _, row in repeats]


def _describe_leak(split: Split, train: Split, pairs: Sequence[tuple[int, int]], gold: str) -> Finding:
    if not pairs:
        return Finding("good", "repeats", "leaked_rows", f"{split.name}: no row is a training row too")
    contradictions = sum(split.rows[row].get(gold) != train.rows[twin].get(gold) for row, twin in pairs) if gold else 0
    text = f"{split.name}: {format_fraction(len(pairs), len(split.rows))} rows are training rows too"
    text += f", {contradictions:,} of them with another label" if contradictions and gold in split.rows[0] else ""
    places = locate_pairs([(split.locate(row), train.locate(twin)) for row, twin in pairs])
    level = get_severity(len(pairs) / len(split.rows), warn=0.0, fail=_FAIL_LEAKED)
    return Finding(level, "repeats", "leaked_rows", text, places, len(pairs))


def _find_near(splits: Mapping[str, Split], columns: ColumnSpec, exact_rows: set[int]) -> list[Finding]:
    """Find training rows that nearly repeat another row: a long text is similar, and all other columns are equal."""
    ordered_splits = [*(split for name, split in splits.items() if name != "train"), splits["train"]]
    other_rows = sum(len(split.rows) for split in ordered_splits[:-1])
    # 1. Choose the column with the most text in the first rows.
    column_lengths = Counter[str]()
    for early_row in splits["train"].rows[:1000]:
        column_lengths.update({name: len(text) for name, text in read_texts(early_row, columns).items()})
    column = max(column_lengths, key=lambda name: column_lengths[name], default="")
    groups: dict[int, array[int]] = {}
    # 2. Group the rows by their other columns, because only such rows can be near repeats. Positions count the rows of
    # all splits, the training rows last. With 3 validation and 5 training rows, `stops` is 3, 8, and position 4 is
    # training row 1.
    stops = list(accumulate(len(split.rows) for split in ordered_splits))

    def locate(position: int) -> tuple[Split, int]:
        split = bisect_right(stops, position)
        return ordered_splits[split], position - stops[split] + len(ordered_splits[split].rows)

    def read_text(position: int) -> str:
        split, row = locate(position)
        return normalize(read_texts(split.rows[row], columns).get(column, ""))

    for position in range(stops[-1]) if column else ():
        split, row = locate(position)
        if position < other_rows or row not in exact_rows:
            groups.setdefault(digest_other_columns(split.rows[row], columns, column), array("q")).append(position)
    # 3. Compare the texts of each group by their MinHash signatures.
    earlier_by_repeat: dict[int, int] = {}
    for positions in groups.values():
        # A pair needs a training row. Positions ascend, so the last one shows whether the group has a training row.
        if len(positions) > 1 and positions[-1] >= other_rows:
            named_signatures = ((position, sign(read_text(position))) for position in positions)
            signatures = {position: signature for position, signature in named_signatures if signature is not None}

            def read_shingles(selected: Collection[int]) -> dict[int, Shingles]:
                return {position: cut_shingles(read_text(position)) for position in sorted(selected)}

            other_split_rows = sum(position < other_rows for position in signatures)
            with use_progress(None if len(groups) == 1 else SILENT):
                matches = find_near(signatures, _MIN_SIMILARITY, read_shingles, other_split_rows)
            earlier_by_repeat |= {position: earlier for position, (earlier, _) in matches.items()}
    pairs = [(locate(repeat), locate(earlier)) for repeat, earlier in sorted(earlier_by_repeat.items())]
    return [
        _describe_near(split, splits["train"], pairs_of_split)
        for split in ordered_splits
        if (pairs_of_split := [pair for pair in pairs if pair[1][0] is split])
    ]


def _describe_near(split: Split, train: Split, pairs: Sequence[tuple[tuple[Split, int], tuple[Split, int]]]) -> Finding:
    """Describe the training rows that nearly repeat a row of a split."""
    level: Level = "warn"
    name, predicate = "near_leaks", f"are nearly {split.name} rows"
    if split is train:
        level = get_severity(len(pairs) / len(train.rows), warn=_WARN_REPEATED)
        name, predicate = "near_repeats", "nearly repeat an earlier row"
    text = f"train: {format_fraction(len(pairs), len(train.rows))} rows {predicate}"
    places = locate_pairs([(Split.locate(*row), Split.locate(*twin)) for row, twin in pairs])
    return Finding(level, "repeats", name, text, places, len(pairs))
