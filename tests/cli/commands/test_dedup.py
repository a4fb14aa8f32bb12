"""What `bertkit dedup` prints; what it finds is in tests/workflows."""

from __future__ import annotations

from bertkit.cli.commands.dedup import print_duplicates
from bertkit.workflows.dedup import DedupResult

COUNTS = {"exact": 0, "near": 0, "meaning": 2}


def test_the_threshold_is_printed_with_the_counts(capsys):
    print_duplicates(DedupResult(9, 7, COUNTS, {"a": 2}, 0.8))
    assert capsys.readouterr().out.splitlines() == [
        "9 rows: 2 duplicates, 7 remaining",
        "  in meaning: 2 (cosine 0.8 or more)",
    ]


def test_without_a_threshold_neighbors_are_shown(capsys):
    curve = [{"threshold": 0.9, "share": 0.25, "text": "a\nb", "text_pair": "c" * 100}, {"threshold": 0.5, "share": 1}]
    result = DedupResult(9, 9, dict.fromkeys(COUNTS, 0), {"a": 0}, curve=curve)
    print_duplicates(result)
    assert capsys.readouterr().out.splitlines() == [
        "  cosine 0.90: 25.0% of the rows have such a neighbor",
        "      a b",
        f"      {'c' * 77}...",
        "  cosine 0.50: 100.0% of the rows have such a neighbor",
        "9 rows: 0 duplicates, 9 remaining",
    ]
