"""What `bertkit dedup` prints; what it finds is in tests/workflows."""

from __future__ import annotations

from bertkit.cli.commands.dedup import print_duplicates
from bertkit.workflows.dedup import DedupResult

COUNTS = {"exact": 0, "near": 0, "meaning": 2}


def test_curves_come_before_the_counts(capsys):
    steps = [{"threshold": 0.8, "precision": 0.5, "low": 0.1, "recall": 1.0, "pairs": 4}]
    print_duplicates(DedupResult(9, 7, COUNTS, {"a": 2}, 0.8, steps, recall=0.995))
    assert capsys.readouterr().out.splitlines() == [
        "  labeled pairs whose cosine is at least the threshold",
        "    threshold  precision  recall  pairs",
        "    0.8000        0.5000  1.0000      4",
        "9 rows: 2 repeat others, 7 stay",
        "  2: the same meaning (cosine 0.8 and more)",
        "  the search was approximate: it finds 99.5% of the pairs of a sample",
    ]


def test_without_a_threshold_neighbors_are_shown(capsys):
    curve = [{"threshold": 0.9, "share": 0.25, "text": "a\nb", "text_pair": "c" * 100}, {"threshold": 0.5, "share": 1}]
    result = DedupResult(9, 9, dict.fromkeys(COUNTS, 0), {"a": 0}, curve=curve)
    print_duplicates(result)
    assert capsys.readouterr().out.splitlines() == [
        "  cosine 0.90: 25.0% of the rows have a neighbor as near",
        "      a b",
        f"      {'c' * 77}...",
        "  cosine 0.50: 100.0% of the rows have a neighbor as near",
        "9 rows: 0 repeat others, 9 stay",
    ]
