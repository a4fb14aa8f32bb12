"""Rows that repeat others: word for word or nearly so, within a split and across splits, with one label or two."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from bertkit.checks import Finding, Level, digest_inputs, digest_others, get_pair_places, get_severity, read_texts
from bertkit.data.checks import find_contradictions, format_fraction
from bertkit.data.columns import ColumnSpec
from bertkit.data.rows import Digests, Split
from bertkit.data.text import normalize
from bertkit.progress import SILENT, use_progress
from bertkit.vectors.minhash import Shingles, cut_shingles, find_near, find_repeated, sign

_REPEATED = 0.01  # fraction of the rows of a split; fewer do no harm
_LEAKED = 0.1  # `eval` accepts this fraction of training rows among the rows to score
_NEAR = 0.9  # fraction of runs of five characters that two long texts share


@dataclass
class Repeats:
    """Findings about repeated rows, and the training rows that can be removed."""

    findings: list[Finding] = field(default_factory=list)
    repeated: list[int] = field(default_factory=list)
    """Training rows that repeat an earlier one with the same gold value."""
    leaked: list[int] = field(default_factory=list)
    """Training rows whose texts another split has too."""


def find_repeats(splits: Mapping[str, Split], columns: ColumnSpec) -> Repeats:
    """Compare all rows with each other; differences in case, whitespace and final punctuation are ignored."""
    digests = {name: digest_inputs(split.rows, columns) for name, split in splits.items()}
    repeats = Repeats()
    for name, split in splits.items():
        _find_within(split, digests[name], columns.gold, repeats)
    train, in_train = splits["train"], digests["train"]
    known_digests, first = np.unique(in_train, return_index=True)
    for name, split in splits.items():
        if name != "train":
            rows = np.flatnonzero(np.isin(digests[name], known_digests))
            twins = first[np.searchsorted(known_digests, digests[name][rows])]
            pairs = list(zip(rows.tolist(), twins.tolist(), strict=True))
            repeats.findings.append(_describe_leak(split, train, pairs, columns.gold))
    other_digests = [digests[name] for name in splits if name != "train"]
    if other_digests:
        repeats.leaked = np.flatnonzero(np.isin(in_train, np.concatenate(other_digests))).tolist()
    # Rows that are exact repeats are not checked for near repeats.
    exact = {*find_repeated(in_train, np.arange(len(in_train))), *repeats.leaked}
    repeats.findings += _find_near(splits, columns, exact)
    return repeats


def _find_within(split: Split, digests: Digests, gold: str, result: Repeats) -> None:
    """Add the rows that repeat or contradict an earlier row of their split."""
    repeated = sorted(find_repeated(digests, np.arange(len(digests))).items())
    repeats, contradictions = find_contradictions(split, [(earlier, row) for row, (earlier, _) in repeated], gold)
    count = len(split.rows)
    for pairs, name, predicate, min_share in (
        (repeats, "repeated_rows", "repeat an earlier one", _REPEATED),
        (contradictions, "contradictory_labels", "have the text of an earlier one, but another label", 0.0),
    ):
        text = (
            f"{split.name}: {format_fraction(len(pairs), count)} rows {predicate}"
            if pairs
            else f"{split.name}: no rows {predicate}"
        )
        level = get_severity(len(pairs) / count, warn=min_share) if pairs else "good"
        places = get_pair_places([(split.place(row), split.place(earlier)) for earlier, row in pairs])
        if pairs or (name == "repeated_rows" and split.name == "train"):
            result.findings.append(Finding(level, "repeats", name, text, places, len(pairs)))
    if split.name == "train":
        result.repeated = [row for _, row in repeats]


def _describe_leak(split: Split, train: Split, pairs: Sequence[tuple[int, int]], gold: str) -> Finding:
    if not pairs:
        return Finding("good", "repeats", "leaked_rows", f"{split.name}: no row is a training row too")
    contradictions = sum(split.rows[row].get(gold) != train.rows[twin].get(gold) for row, twin in pairs) if gold else 0
    text = f"{split.name}: {format_fraction(len(pairs), len(split.rows))} rows are training rows too"
    text += f", {contradictions:,} of them with another label" if contradictions and gold in split.rows[0] else ""
    places = get_pair_places([(split.place(row), train.place(twin)) for row, twin in pairs])
    level = get_severity(len(pairs) / len(split.rows), warn=0.0, fail=_LEAKED)
    return Finding(level, "repeats", "leaked_rows", text, places, len(pairs))


def _find_near(splits: Mapping[str, Split], columns: ColumnSpec, exact: set[int]) -> list[Finding]:
    """Find training rows that nearly repeat another row: one long text is similar, and other columns are equal."""
    ordered = [*(split for name, split in splits.items() if name != "train"), splits["train"]]
    other_rows = sum(len(split.rows) for split in ordered[:-1])
    # 1. Choose the column with the most text in the first rows.
    sizes = Counter[str]()
    for early_row in splits["train"].rows[:1000]:
        sizes.update({name: len(text) for name, text in read_texts(early_row, columns).items()})
    column = max(sizes, key=lambda name: sizes[name], default="")
    groups: dict[int, array[int]] = {}
    # 2. Group the rows. Rows of all splits have positions in one sequence, the training rows last. With 3 validation
    # rows and 5 training rows, `ends` is 3 and 8, and position 4 is training row 1.
    ends = list(accumulate(len(split.rows) for split in ordered))

    def locate(position: int) -> tuple[Split, int]:
        split = bisect_right(ends, position)
        return ordered[split], position - ends[split] + len(ordered[split].rows)

    def read_text(position: int) -> str:
        split, row = locate(position)
        return normalize(read_texts(split.rows[row], columns).get(column, ""))

    for position in range(ends[-1]) if column else ():
        split, row = locate(position)
        if position < other_rows or row not in exact:
            # Only rows that are equal in all other columns can be near repeats, so each group is compared on its own.
            groups.setdefault(digest_others(split.rows[row], columns, column), array("q")).append(position)
    # 3. Compare the texts of each group by their MinHash signatures.
    earlier_by_repeat: dict[int, int] = {}
    for positions in groups.values():
        # A pair has at least one training row. Positions ascend, so the last one shows whether the group has any.
        if len(positions) > 1 and positions[-1] >= other_rows:
            signed = ((position, sign(read_text(position))) for position in positions)
            signatures = {position: signature for position, signature in signed if signature is not None}

            def read(selected: Collection[int]) -> dict[int, Shingles]:
                return {position: cut_shingles(read_text(position)) for position in sorted(selected)}

            other_split_rows = sum(position < other_rows for position in signatures)
            with use_progress(None if len(groups) == 1 else SILENT):
                matches = find_near(signatures, _NEAR, read, other_split_rows)
            earlier_by_repeat |= {position: earlier for position, (earlier, _) in matches.items()}
    pairs = [(locate(repeat), locate(earlier)) for repeat, earlier in sorted(earlier_by_repeat.items())]
    return [
        _describe_near(split, splits["train"], pairs_of_split)
        for split in ordered
        if (pairs_of_split := [pair for pair in pairs if pair[1][0] is split])
    ]


def _describe_near(split: Split, train: Split, pairs: Sequence[tuple[tuple[Split, int], tuple[Split, int]]]) -> Finding:
    """Describe the training rows that nearly repeat a row of a split, each with that row."""
    level: Level = "warn"
    name, predicate = "near_leaks", f"are nearly {split.name} rows"
    if split is train:
        level = get_severity(len(pairs) / len(train.rows), warn=_REPEATED)
        name, predicate = "near_repeats", "nearly repeat an earlier one"
    text = f"train: {format_fraction(len(pairs), len(train.rows))} rows {predicate}"
    places = get_pair_places([(Split.place(*row), Split.place(*twin)) for row, twin in pairs])
    return Finding(level, "repeats", name, text, places, len(pairs))
