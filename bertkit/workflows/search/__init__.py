"""Search by meaning: build an index of texts, change it, query it."""

from bertkit.workflows.search.build import IndexOptions, IndexReport, add, build, delete
from bertkit.workflows.search.evaluate import SearchScores, evaluate
from bertkit.workflows.search.query import query, query_to_file

__all__ = [
    "IndexOptions",
    "IndexReport",
    "SearchScores",
    "add",
    "build",
    "delete",
    "evaluate",
    "query",
    "query_to_file",
]
