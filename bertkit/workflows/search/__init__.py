"""Search by meaning: build an index of texts, change it, query it, score it."""

from bertkit.workflows.search.build import IndexReport as IndexReport
from bertkit.workflows.search.build import add as add
from bertkit.workflows.search.build import build as build
from bertkit.workflows.search.build import delete as delete
from bertkit.workflows.search.build import split_passages as split_passages
from bertkit.workflows.search.evaluate import SearchScores as SearchScores
from bertkit.workflows.search.evaluate import evaluate as evaluate
from bertkit.workflows.search.query import query as query
