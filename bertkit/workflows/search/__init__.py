"""Search by meaning: build an index of texts, change it, query it, score it."""

from bertkit.workflows.search.build import IndexOptions, IndexReport, add, build, delete
from bertkit.workflows.search.evaluate import SearchScores, evaluate
from bertkit.workflows.search.passages import passages, passages_to_file
from bertkit.workflows.search.query import query, query_to_file

__all__ = [
    "IndexOptions",
    "IndexReport",
    "SearchScores",
    "add",
    "build",
    "delete",
    "evaluate",
    "passages",
    "passages_to_file",
    "query",
    "query_to_file",
]
