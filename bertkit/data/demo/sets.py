"""The demo sets: small tasks written by a grammar, so that every recipe runs with nothing but the package.

Which rows a recipe gets follows from its task family, columns, labels and options, not its name. A text belongs to one
split by its checksum, so no text of training can occur in validation or test.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from random import Random
from typing import Any

from bertkit.data.demo import texts
from bertkit.data.demo.rows import (
    NAME_TAGS,
    NAME_TYPES,
    WORD_CLASSES,
    one_row_per_passage,
    write_choice,
    write_continuation,
    write_named,
    write_question,
    write_ranking,
    write_sense,
    write_word_classes,
)
from bertkit.errors import DataError, closest
from bertkit.recipe import Recipe, Row


def split_of(text: str) -> str:
    """Return the split of a text: three in five are for training.

    >>> split_of("The dog slept."), split_of("The dogs slept.")
    ('train', 'test')
    """
    return ("validation", "test", "train", "train", "train")[zlib.crc32(text.encode()) % 5]


Write = Callable[[Random, str], Row]
_WriteTexts = Callable[[Random, str], texts.Texts]
"""Writes one or two texts for a label."""


@dataclass(frozen=True)
class DemoSet:
    """Rows of the grammar, and the recipe that they are meant for."""

    name: str
    """Seeds the rows: sets of two names have different rows."""
    task: str
    columns: str
    """The canonical columns that the recipe maps; rows may have more."""
    write: Write
    mismatched: Write | None = None
    """Writes the rows of a second validation or test split about other subjects, where the set has one."""
    labels: tuple[str, ...] | None = None
    """The labels of its rows; None where the labels of a recipe do not matter."""
    names_labels: bool = True
    """Whether the recipe names these labels, or leaves them to be read off the rows."""
    config: str | None = None
    """The recipe's ``data.config``, which tells sets with the same columns and labels apart."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options that the recipe must have."""
    unfold: Callable[[Row], list[Row]] | None = None
    """Makes several rows of what `write` returns, such as one per passage of a query."""

    def fits(self, recipe: Recipe) -> bool:
        """Tell whether the recipe could be trained on these rows."""
        same_labels = None in (recipe.labels, self.labels) or set(recipe.labels or ()) == set(self.labels or ())
        has_options = all(recipe.options.get(key) == value for key, value in self.options.items())
        return _rows_of(recipe) == self.task and same_labels and has_options

    def distance(self, recipe: Recipe) -> tuple[int, bool, bool, int]:
        """Measure how far a recipe that fits is from the set's own: columns first, then config, labels, options."""
        named = self.labels if self.names_labels else None
        return (
            len(set(self.columns.split()) ^ set(recipe.data.columns)),
            self.config is None or self.config != recipe.data.config,
            set(named or ()) != set(recipe.labels or ()),
            -len(self.options),
        )


def demo_set_for(recipe: Recipe) -> DemoSet:
    """Choose the demo set of a recipe: of those that fit, the one whose own recipe is closest.

    Texts or words with labels that no set has get a set of their own, whose rows have these labels.

    Raises:
        DataError: the demo has no rows for the recipe's task family.
    """
    fitting = [demo_set for demo_set in (*DEMO_SETS.values(), *_sets_with_labels(recipe)) if demo_set.fits(recipe)]
    if not fitting:
        raise DataError(f"no demo data for the task family {recipe.task!r}", "--data FILE, or a directory")
    return min(fitting, key=lambda demo_set: demo_set.distance(recipe))


def _rows_of(recipe: Recipe) -> str:
    """Return the task family whose rows those of a recipe are like."""
    return "text_classification" if recipe.task in ("few_shot", "zero_shot") else recipe.task


def _sets_with_labels(recipe: Recipe) -> list[DemoSet]:
    """Build sets of texts, of pairs or of words with the labels of a recipe."""
    labels = tuple(recipe.labels or ())
    task = _rows_of(recipe)
    if task == "text_classification" and labels:
        write = _labeled(dict.fromkeys(labels, 1.0), partial(texts.write_topic, labels=labels))
        return [
            DemoSet("topics", task, "text label", lambda rng, split: _without_pair(write(rng, split)), labels=labels),
            DemoSet("topic-pairs", task, "text text_pair label", write, labels=labels),
        ]
    if recipe.task == "token_classification" and labels:
        return [_tags("tags", _retagged(labels), labels)]
    return []


def _retagged(labels: tuple[str, ...]) -> Write:
    """Build a writer of names where the labels are IOB2 tags, else of word classes, with these labels for its tags."""
    types = [label[2:] for label in labels if label.startswith("B-")]
    if types and set(labels) == {"O", *(f"{prefix}-{name}" for name in types for prefix in "BI")}:
        write, new_types = write_named, dict(zip(NAME_TYPES, cycle(types), strict=False))
        new_tags = {tag: tag if tag == "O" else tag[:2] + new_types[tag[2:]] for tag in NAME_TAGS}
    else:
        write, new_tags = write_word_classes, dict(zip(WORD_CLASSES, cycle(labels), strict=False))

    def write_retagged(rng: Random, split: str) -> Row:
        row = write(rng, split)
        return row | {"tags": [new_tags[tag] for tag in row["tags"]]}

    return write_retagged


def _without_pair(row: Row) -> Row:
    return {column: value for column, value in row.items() if column != "text_pair"}


def _labeled(shares: Mapping[str, float], write_texts: _WriteTexts, numeric: bool = False) -> Write:
    """Build a writer of rows from a writer of the texts of one label.

    Args:
        shares: label -> its share of the rows.
        write_texts: writes the texts.
        numeric: whether labels are numbers in the rows.
    """

    def write(rng: Random, _split: str) -> Row:
        (label,) = rng.choices(list(shares), list(shares.values()))
        row: Row = dict(zip(("text", "text_pair"), write_texts(rng, label), strict=False))
        return row | {"label": float(label) if numeric else label}

    return write


def _classes(
    name: str, shares: Mapping[str, float], write: _WriteTexts, pair: bool = True, mismatched: _WriteTexts | None = None
) -> DemoSet:
    """Build the demo set of a recipe of GLUE."""
    return DemoSet(
        name,
        "text_classification",
        "text text_pair label" if pair else "text label",
        _labeled(shares, write),
        mismatched=_labeled(shares, mismatched) if mismatched else None,
        labels=tuple(shares),
        config=name,
    )


def _tags(name: str, write: Write, labels: Sequence[str], **more: Any) -> DemoSet:
    return DemoSet(name, "token_classification", "tokens tags", write, labels=tuple(labels), **more)


def _answers(name: str, columns: str, write: Write, **options: Any) -> DemoSet:
    return DemoSet(name, "question_answering", columns, write, options=options)


_SENTIMENT = {"negative": 0.45, "positive": 0.55}
_THREE_WAYS = {"entailment": 1.0, "neutral": 1.0, "contradiction": 1.0}
_write_review = _labeled(_SENTIMENT, texts.write_review)
_write_similarity = _labeled({str(half / 2): 1.0 for half in range(11)}, texts.write_similarity, numeric=True)
_ASKED = {
    "liked": {"type": "yes_no", "instructions": "Did the first viewer like it?"},
    "opinion": {"type": "choice", "criteria": ["positive", "negative", "mixed"]},
    "praise": {"type": "score", "criteria": ["no viewer liked it", "one viewer did", "both viewers did"]},
}


def _write_decisions(rng: Random, _split: str) -> Row:
    """Write two reviews, with a question of each type about them."""
    labels = rng.choices(list(_SENTIMENT), k=2)
    praise = labels.count("positive")
    answers = {"liked": labels[0] == "positive", "opinion": ["negative", "mixed", "positive"][praise], "praise": praise}
    reviews = [texts.write_review(rng, label)[0] for label in labels]
    return {"state": " ".join(reviews), "questions": _ASKED, "answers": answers}


_write_about_animals = partial(texts.write_inference, categories=("animal",))
_write_unanswerable = partial(write_question, unanswerable=1 / 3)

_SETS = [
    DemoSet(
        "classify", "text_classification", "text label", _write_review, labels=tuple(_SENTIMENT), names_labels=False
    ),
    _classes("cola", {"unacceptable": 0.35, "acceptable": 0.65}, texts.write_acceptability, pair=False),
    _classes("mnli", _THREE_WAYS, texts.write_inference, mismatched=_write_about_animals),
    _classes("mrpc", {"not_equivalent": 0.4, "equivalent": 0.6}, texts.write_paraphrase),
    _classes("qnli", {"entailment": 0.5, "not_entailment": 0.5}, texts.write_answer),
    _classes("qqp", {"not_duplicate": 0.6, "duplicate": 0.4}, texts.write_duplicate),
    _classes("rte", {"entailment": 0.5, "not_entailment": 0.5}, texts.write_entailment),
    _classes("sst2", _SENTIMENT, texts.write_review, pair=False),
    _classes("wnli", {"not_entailment": 0.5, "entailment": 0.5}, texts.write_pronoun),
    DemoSet("similarity", "similarity", "text text_pair label", _write_similarity, config="stsb"),
    DemoSet("similarity-pairs", "contrastive", "anchor positive", texts.write_pair),
    DemoSet("similarity-texts", "unlabeled_texts", "text", texts.write_two_ways),
    DemoSet("similarity-triples", "contrastive", "anchor positive negative", texts.write_triple, config="triplet"),
    DemoSet("sparse", "sparse", "anchor positive", texts.write_pair),
    DemoSet("late-interaction", "late_interaction", "anchor positive", texts.write_pair),
    DemoSet("regress", "text_regression", "text label", _write_similarity),
    DemoSet("stsb", "text_regression", "text text_pair label", _write_similarity, config="stsb"),
    _tags("ner", write_named, NAME_TAGS),
    _tags("ner-features", write_named, NAME_TAGS, options={"layers": "concat_last_four"}),
    _tags("tag", write_named, NAME_TAGS, names_labels=False),
    _tags("pos", write_word_classes, WORD_CLASSES, config="en_ewt", names_labels=False),
    _answers("qa", "question context answers", write_question),
    _answers("squad", "id question context answers", write_question),
    _answers("squad2", "id question context answers", _write_unanswerable, no_answer=True),
    DemoSet("rerank", "reranking", "query passage relevance", write_ranking, unfold=one_row_per_passage),
    DemoSet("choose", "multiple_choice", "context choices label", write_choice),
    DemoSet("swag", "multiple_choice", "context stem choices label", write_continuation, config="regular"),
    DemoSet("decide", "typed_questions", "state questions answers", _write_decisions),
    DemoSet("wsd", "word_sense", "tokens target word sense", write_sense),
    DemoSet("wsd-nearest", "word_sense", "tokens target word sense", write_sense, options={"method": "nearest"}),
]
DEMO_SETS = {demo_set.name: demo_set for demo_set in _SETS}


SIZES = {"train": 3000, "validation": 500, "test": 500}


def demo_rows(demo_set: DemoSet, split: str, limit: int | None = None) -> list[Row]:
    """Write the rows of a split, the same ones every time.

    Args:
        demo_set: what to write; `demo_set_for` chooses it for a recipe.
        split: train, validation or test; also e.g. validation_mismatched, of mismatched rows if the set has them.
        limit: how many rows at most, the first of the split; as many as `SIZES` has when absent.

    Raises:
        DataError: an unknown split.
    """
    base, _, variant = split.partition("_")
    write = (demo_set.mismatched or demo_set.write) if variant else demo_set.write
    if base not in SIZES or (base == "train" and variant):
        raise DataError(f"the demo data of {demo_set.name!r} has no split {split!r}", closest(split, SIZES))
    rng, rows, texts = Random(f"{demo_set.name}/{split}"), list[Row](), set[str]()
    count = min(SIZES[base], limit or SIZES[base])
    columns = ("text", "anchor", "context", "query", "state")
    while len(rows) < count:
        row = write(rng, base)
        # the text that no other row of any split may have: a row's first one, without its question
        text = str(next((row[name] for name in columns if row.get(name)), None) or " ".join(row["tokens"]))
        if split_of(text) == base and text not in texts and text != row.get("text_pair"):
            texts.add(text)
            rows += [row] if demo_set.unfold is None else demo_set.unfold(row)
    return rows[:count]
