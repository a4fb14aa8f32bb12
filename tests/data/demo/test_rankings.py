"""One of five passages answers a query, and neither its position nor its length tells which."""

from __future__ import annotations

from tests.data.demo.common import rows_of


def test_one_passage_of_each_query_is_relevant_at_any_position():
    positions = [0] * 5
    lengths = [0] * 5
    train = rows_of("rerank", "train", None)
    for rows in (train[start : start + 5] for start in range(0, len(train), 5)):
        assert len({row["query"] for row in rows}) == 1 and len({row["passage"] for row in rows}) == 5
        (relevant,) = [number for number, row in enumerate(rows) if row["relevance"]]
        positions[relevant] += 1
        lengths[sorted(range(5), key=lambda number: len(rows[number]["passage"])).index(relevant)] += 1
    assert min(positions) > 0.7 * 120 and min(lengths) > 0.5 * 120
