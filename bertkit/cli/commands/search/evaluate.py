"""`bertkit search eval`."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Annotated

from bertkit.cli.commands.search.add import IndexArgument, MovedModelOption
from bertkit.cli.commands.search.query import CandidatesOption, RerankOption
from bertkit.cli.options import argument, option
from bertkit.cli.output import format_signed, print_result, print_table, print_text

if TYPE_CHECKING:
    from bertkit.workflows.search import SearchScores

NAME = "eval"
ORDER = 5
EXAMPLE = "bertkit search eval index questions.jsonl"

_SCORE = "ndcg@10"
"""The metric whose gains are shown."""


def command(
    index: IndexArgument,
    file: Annotated[
        str,
        argument(
            "Rows with the columns `query`, `relevant` (id of a row or document, or a list) and, if ids differ in "
            "relevance, `grade`.",
            "FILE",
        ),
    ],
    rerank: RerankOption = None,
    candidates: CandidatesOption = 100,
    limit: Annotated[int | None, option("Use only the first N queries.", "N", "all", min=1)] = None,
    model: MovedModelOption = None,
) -> None:
    """Score the rankings of an index: by words, by vectors, by both, and reranked.

    nDCG@10, MRR@10, MAP@100 and recall, with 95% intervals over queries.
    """
    from bertkit.vectors.reranker import Reranker
    from bertkit.workflows.search import evaluate

    scores = evaluate(
        index, file, reranker=Reranker(rerank) if rerank else None, candidates=candidates, limit=limit, model=model
    )
    print_result(scores, print_scores)


def print_scores(result: SearchScores) -> None:
    """Print the scores of each ranking, and their intervals."""
    rows = "passages; documents are ranked by their best" if result.by_document else "rows"
    print_text(f"{result.index}: {result.queries:,} queries, {result.rows:,} {rows}")
    print_table("scores", [{"ranking": of.ranking, **of.scores} for of in result.rankings])
    print_table("95% intervals over queries", [{"ranking": of.ranking, **of.intervals} for of in result.rankings])
    gains = [
        {
            "ranking": of.ranking,
            "over": before.ranking,
            _SCORE: format_signed(of.gains[_SCORE]),
            "95% interval": of.gain_intervals[_SCORE],
        }
        for before, of in pairwise(result.rankings)
    ]
    print_table("gains, query by query", gains)
