"""The demo rows with a query and a passage, of which some answer it."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from bertkit.data.demo.grammar import pick_clause, pick_location, sentence
from bertkit.data.demo.texts import changed, in_other_words
from bertkit.recipe import Row

_PASSAGES = 5


def write_ranking(rng: Random, _split: str) -> Row:
    """Write a question and five passages, one of which answers it (like MS MARCO, Nguyen et al. 2016)."""
    it = replace(pick_clause(rng), location=pick_location(rng))
    missing, *others = rng.sample(["subject", "object", "location"], 3)
    relevant, wrong = in_other_words(rng, it), set[str]()
    while len(wrong) < _PASSAGES - 1:
        passage = in_other_words(rng, changed(rng, it, rng.choice(["verb", *others])))
        wrong |= {passage} - {relevant}
    passages = sorted(wrong)
    rng.shuffle(passages)
    passages.insert(rng.randrange(_PASSAGES), relevant)
    return {
        "query": sentence(it.question_about(missing)),
        "passages": passages,
        "relevance": [int(passage == relevant) for passage in passages],
    }


def one_row_per_passage(row: Row) -> list[Row]:
    """List the rows of a query: each has one passage and its relevance."""
    return [
        {"query": row["query"], "passage": passage, "relevance": relevance}
        for passage, relevance in zip(row["passages"], row["relevance"], strict=True)
    ]
