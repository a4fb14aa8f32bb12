"""`bertkit search eval`."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated

import typer

from bertkit.cli.commands.search.add import IndexArgument, MovedModelOption
from bertkit.cli.commands.search.query import CandidatesOption, RerankOption
from bertkit.cli.options import JsonOption
from bertkit.cli.output import format_interval, print_json, print_table, print_text
from bertkit.cli.progress import TerminalProgress

if TYPE_CHECKING:
    from bertkit.workflows.search import SearchScores

NAME = "eval"
ORDER = 5
EXAMPLE = "bertkit search eval index questions.jsonl"

_SCORE = "ndcg@10"
"""Of which gains are shown."""


def command(
    index: IndexArgument,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="Rows with the columns `query`, `relevant` (id of a row or document, or a list) and, if ids differ in "
            "relevance, `grade`.",
            show_default=False,
        ),
    ],
    rerank: RerankOption = None,
    candidates: CandidatesOption = 100,
    limit: Annotated[
        int | None,
        typer.Option("--limit", help="Use only the first N queries.", metavar="N", min=1, show_default="all"),
    ] = None,
    model: MovedModelOption = None,
    json: JsonOption = False,
) -> None:
    """Score the rankings of an index: by words, by vectors, by both, and reranked.

    nDCG@10, MRR@10, MAP and recall, with 95% intervals over queries.
    """
    from bertkit.vectors.reranker import Reranker
    from bertkit.workflows.search import evaluate

    scores = evaluate(
        index,
        file,
        reranker=Reranker(rerank) if rerank else None,
        candidates=candidates,
        limit=limit,
        model=model,
        progress=TerminalProgress(),
    )
    print_scores(scores, as_json=json)


def print_scores(result: SearchScores, *, as_json: bool) -> None:
    """Print the scores of each ranking, and their intervals."""
    if as_json:
        print_json({**dataclasses.asdict(result), "index": str(result.index)})
        return
    rows = "passages; documents are ranked by their best" if result.by_document else "rows"
    print_text(f"{result.index}: {result.queries:,} queries, {result.rows:,} {rows}")
    print_table("scores", [{"ranking": of.ranking, **of.scores} for of in result.rankings])
    intervals = [
        {"ranking": of.ranking, **{name: format_interval(ends) for name, ends in of.intervals.items()}}
        for of in result.rankings
    ]
    print_table("95% intervals over queries", intervals)
    gains = [
        {
            "ranking": of.ranking,
            "over": before.ranking,
            _SCORE: f"{of.gains[_SCORE]:+.4f}",
            "95% interval": format_interval(of.gain_intervals[_SCORE]),
        }
        for before, of in pairwise(result.rankings)
    ]
    print_table("gains, query by query", gains)
