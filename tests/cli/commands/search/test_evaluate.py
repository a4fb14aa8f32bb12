"""What `bertkit search eval` prints; the scores are tested in tests/workflows."""

from __future__ import annotations

import json
from pathlib import Path

from bertkit.cli.commands.search.evaluate import print_scores
from bertkit.cli.output import json_output, print_result
from bertkit.workflows.search import SearchScores
from bertkit.workflows.search.evaluate import RankingScores

RANKINGS = [
    RankingScores("vectors", {"ndcg@10": 0.5, "map": 0.4}, {"ndcg@10": (0.4, 0.6), "map": None}),
    RankingScores(
        "hybrid",
        {"ndcg@10": 0.75, "map": 0.5},
        {"ndcg@10": (0.7, 0.8), "map": None},
        {"ndcg@10": 0.25, "map": 0.1},
        {"ndcg@10": (0.2, 0.3), "map": None},
    ),
]


def test_each_ranking_has_its_scores_intervals_and_gain(capsys):
    result = SearchScores(Path("index"), 1200, 50, True, RANKINGS)
    print_scores(result)
    assert capsys.readouterr().out.splitlines() == [
        "index: 1,200 queries, 50 passages; documents are ranked by their best",
        "  scores",
        "    ranking  ndcg@10     map",
        "    vectors   0.5000  0.4000",
        "    hybrid    0.7500  0.5000",
        "  95% intervals over queries",
        "    ranking           ndcg@10  map",
        "    vectors  0.4000 to 0.6000  n/a",
        "    hybrid   0.7000 to 0.8000  n/a",
        "  gains, query by query",
        "    ranking     over  ndcg@10      95% interval",
        "    hybrid   vectors  +0.2500  0.2000 to 0.3000",
    ]
    with json_output():
        print_result(result, print_scores)
    printed = json.loads(capsys.readouterr().out)
    assert printed["rankings"][1]["gain_intervals"] == {"ndcg@10": [0.2, 0.3], "map": None}
    assert printed["index"] == "index"
