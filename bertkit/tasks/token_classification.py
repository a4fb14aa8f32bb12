"""Tag every word of a text: named entities (Devlin et al. 2019, section 5.3), parts of speech, or tags of your own.

A word's tag is read off its first token. A text that does not fit is read in overlapping windows, in training, scoring
and predicting alike, so every word has a tag at any length.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.columns import Columns
from bertkit.data.labels import name_of, spelled
from bertkit.data.rows import NOTE, SPAN_COUNTS, is_missing
from bertkit.data.spans import COUNTINGS, TextSpan, read_spans
from bertkit.errors import DataError, RecipeError
from bertkit.metrics import LabeledSpan, Numbers, calibration, decisions, ensembles, entities, tag_schemes
from bertkit.modeling import load as models
from bertkit.modeling.heads.targets import tag_targets
from bertkit.modeling.info import Model
from bertkit.modeling.layers import LAYER_CHOICES, TAGGERS
from bertkit.recipe import Recipe, Row
from bertkit.recipe.options import Option, read_option
from bertkit.storage import hub
from bertkit.tasks import Answer, Details, Outputs, Prediction, Predictions, RunModule, check_texts
from bertkit.tokens.features import (
    IGNORED,
    Collator,
    Feature,
    Features,
    Rows,
    Setup,
    find_template,
    padding_collator,
    token_budget,
)
from bertkit.tokens.lost import find_unread_words
from bertkit.tokens.words import read_list, read_words, split_at, split_text, split_windows, tokenize_words

_ALWAYS = ("word_probabilities",)
COLUMNS = Columns(
    given=("tokens",),
    gold="tags",
    lists=("tokens",),
    text_instead={"tokens": "text"},
    spans="spans",
    predicted=_ALWAYS,
)
NAMED: bool = True
TYPES: Mapping[str, Any] = {
    "prediction": list[str],
    "words": list[str],
    "entities": list[dict[str, Any]],
    "spans": list[dict[str, Any]],
}
METRICS: tuple[str, ...] = tuple(entities.METRICS)
OPTIONS: Mapping[str, object] = {
    "scheme": Option("auto", choices=("auto", "none", *tag_schemes.SCHEMES)),
    "decoding": Option("repair", choices=("greedy", "repair", "constrained")),
    "offsets": Option("code_points", choices=tuple(COUNTINGS)),
    "overlapping": Option("refuse", choices=("refuse", "longest")),
    "overlap": 64,
    "layers": Option(None, choices=(None, *LAYER_CHOICES)),
    "tagger": Option("bilstm", choices=TAGGERS),
    "tagger_size": Option(256, least=2),
    "temperature": calibration.OPTIONS["temperature"],
}

_option = partial(read_option, OPTIONS)

targets, combine, find_lost_gold = tag_targets, ensembles.mean_probabilities, find_unread_words
count_errors = entities.count_errors
_BASELINES = ("most frequent tag", "most frequent tag of each word")


def read(row: Row, recipe: Recipe) -> Row | None:
    """Check the words and their tags, and rewrite entity tags in IOB2; plain ``text`` is split into words.

    Labeled ``spans`` of a text become tags. Where one begins or ends inside a word, the word is split.

    A tag of -100 (or -1, or null) means an unlabelled word, which is neither learned nor scored. A row without any
    labelled word is left out.

    Raises:
        DataError: not as many tags as words, an unknown tag, or tags that break their scheme.
    """
    if "tokens" not in row:
        check_texts(row, "text")
        return _read_spans(row, recipe) if "spans" in row else _with_words(row, split_text(row["text"]))
    words = read_words(row["tokens"])
    if "tags" not in row:
        return {**row, "tokens": words}
    raw = read_list(row["tags"], "tags")
    if len(raw) != len(words):
        raise DataError(f"{len(words)} words but {len(raw)} tags", "write one tag per word", column="tags")
    if not words:
        raise DataError("no words", "leave the row out", column="tokens")
    texts = [_tag_text(tag, word, words, recipe) for word, tag in enumerate(raw)]
    if not any(texts):
        return None
    tags = tag_schemes.normalize_tags(texts, words, _scheme(recipe))
    return {**row, "tokens": words, "tags": [_in_labels(tag, word, words, recipe) for word, tag in enumerate(tags)]}


def _with_words(row: Row, offsets: list[tuple[int, int]]) -> Row:
    return {**row, "tokens": [row["text"][start:end] for start, end in offsets], "offsets": offsets}


def _read_spans(row: Row, recipe: Recipe) -> Row | None:
    """Return a text as words with the tags of its spans, whose ends are those of words; None without annotation."""
    text, value = row["text"], row["spans"]
    if is_missing(value):
        return None
    offsets, overlapping, left_out = _option(recipe, "offsets"), _option(recipe, "overlapping"), list[TextSpan]()
    spans = read_spans(value, text, offsets=offsets, overlapping=overlapping, left_out=left_out)
    whole, ends = split_text(text), {end for span in spans for end in span[:2]}
    offsets = split_at(whole, ends)
    read = _with_words({name: value for name, value in row.items() if name != "spans"}, offsets)
    read[SPAN_COUNTS] = {"read": len(spans), "left out": len(left_out)}
    tags = entities.tag_spans(offsets, spans)
    read["tags"] = [_in_labels(tag, word, read["tokens"], recipe) for word, tag in enumerate(tags)]
    split = sorted(set(whole) - set(offsets))
    if split:
        cut = [(span, word) for span in spans for word in split if any(word[0] < end < word[1] for end in span[:2])]
        (span, (start, end)), count = cut[0], len(cut)
        more = f", as {count - 1:,} more ends are" if count > 1 else ""
        read[NOTE] = (
            f"the span {span.show(text)} ends inside the word {text[start:end]!r}, which is split here{more}; "
            "in a text to predict it is one word, with one tag"
        )
    return read


def load_model(folder: Path, setup: Setup, *, new_head: bool) -> Model:
    """Load an encoder with a linear layer over each token; with ``layers``, a frozen one with a tagger over these."""
    from bertkit.modeling.inference import load_tagger

    layers, tagger, size = (_option(setup.recipe, name) for name in ("layers", "tagger", "tagger_size"))
    head = None if layers is None else {"layers": layers, "tagger": tagger, "size": size}
    return load_tagger(folder, setup, head, new_head=new_head)


def encode(rows: Rows, setup: Setup) -> list[Feature]:
    """Encode words in windows; ``words`` are those read off in a window, ``positions`` their first tokens.

    ``labels`` is `IGNORED` at all other tokens.
    """
    texts = [row["tokens"] for row in rows]
    template = find_template(setup.tokenizer, pair=False)
    budget = token_budget(setup, template)
    # More than half would make a window repeat most of the one before.
    overlap = min(int(_option(setup.recipe, "overlap")), budget // 2)
    numbers = setup.label_ids
    features = []
    for number, tokens in enumerate(tokenize_words(setup.tokenizer, texts, max_tokens=budget // 2)):
        # a word without tokens would be tagged O; without that tag it needs a token
        if "O" not in numbers:
            tokens = [word or [setup.tokenizer.unk_token_id] for word in tokens]
        for window in split_windows(tokens, budget, overlap):
            feature = {"row": number, **template.fill(window.tokens)}
            positions = [len(template.before) + first for first in window.positions]
            if "tags" in rows[number]:
                feature["labels"] = [IGNORED] * len(feature["input_ids"])
                for word, position in zip(window.words, positions, strict=True):
                    tag = rows[number]["tags"][word]
                    feature["labels"][position] = IGNORED if tag is None else numbers[tag]
            features.append({**feature, "words": window.words, "positions": positions})
    return features


def collator(setup: Setup) -> Collator:
    """Build the padding collator, which also batches the hidden states of a frozen encoder where they are computed."""
    if setup.inference:  # hidden states are kept in training alone
        return padding_collator(setup, label_per_token=True)
    from bertkit.modeling.heads.taggers import state_collator

    return state_collator(padding_collator(setup, label_per_token=True))


def precompute(model: Model, features: Mapping[str, Features], setup: Setup, run: RunModule) -> bool:
    """Compute the hidden states of a frozen encoder once, and keep them on disk."""
    if _option(setup.recipe, "layers") is not None:
        from bertkit.modeling.heads.taggers import cache_states

        # The same encoder in another precision has other states.
        content = models.fingerprint(hub.find_model(setup.recipe.model)) + setup.recipe.training.precision
        for of_split in features.values():
            cache_states(model, of_split, run, content)
    return False


def decode(outputs: Outputs, features: Features, rows: Rows, setup: Setup) -> list[Prediction]:
    """Choose each word's tag and, where tags are entity tags, list the entities.

    An entity has ``type``, ``text``, ``start`` and ``end`` (characters of the text, or of the words joined by one
    space), and ``probability``, the mean of its words' probabilities. Of a text, they are also its ``spans``.
    """
    # Logits of shape (words, tags) per row, gathered from its windows by their positions; each word is in one window.
    scores = [np.full((len(row["tokens"]), len(setup.labels)), np.nan) for row in rows]
    for output, feature in zip(outputs, features, strict=True):
        scores[feature["row"]][feature["words"]] = output["logits"][feature["positions"]]
    return [_decode_row(row, logits, setup) for row, logits in zip(rows, scores, strict=True)]


def gold_probabilities(predictions: Predictions, rows: Rows, setup: Setup) -> calibration.Decisions:
    """Return the probabilities and the gold tags of all words that have tokens and a tag."""
    ids = setup.label_ids
    decisions = [
        (record["_probabilities"][word], ids[tag], number)
        for number, (row, record) in enumerate(zip(rows, predictions, strict=True))
        for word, tag in enumerate(row["tags"])
        if tag is not None and record["word_probabilities"][word] is not None
    ]
    probabilities, gold, numbers = (np.array([one[column] for one in decisions]) for column in range(3))
    return calibration.Decisions(probabilities, gold, numbers, per="word")


def compare(predictions: Predictions, rows: Rows, setup: Setup) -> dict[str, Any]:
    """Count what is right, gold and predicted: ``tags`` (rows, tags, 3), ``entities``, ``strict`` (rows, types, 3)."""
    pairs = _labelled_tags(predictions, rows)
    # Tags of words are counted as spans of one word, so that one function counts both.
    as_words = [(entities.word_spans(gold), entities.word_spans(predicted)) for gold, predicted in pairs]
    if not _has_entities(setup):
        return {"tags": entities.count_spans(as_words, setup.labels)}
    types = entities.entity_types(setup.labels)
    gold, predicted = ([entities.find_spans(pair[side]) for pair in pairs] for side in (0, 1))
    strict = [entities.find_strict_spans(tags) for _, tags in pairs]
    return {
        "tags": entities.count_spans(as_words, setup.labels),
        "entities": entities.count_spans(list(zip(gold, predicted, strict=True)), types),
        "strict": entities.count_spans(list(zip(gold, strict, strict=True)), types),
    }


def score(compared: Mapping[str, Any], setup: Setup) -> dict[str, float]:
    """Compute the metrics; ``precision``, ``recall`` and ``f1`` are conlleval's (and seqeval's) over all entities.

    The ``_strict`` ones count only predicted entities that are valid IOB2, ``accuracy`` is the share of words,
    ``f1_macro`` the mean over entity types (or tags).
    """
    of_entities = [name for name in setup.recipe.metrics if name in entities.ENTITY_METRICS]
    if of_entities and "entities" not in compared:
        what = f"for entity tags (B-PER, I-PER, O) alone: {', '.join(of_entities)}"
        raise RecipeError(what, "use accuracy or f1_macro")
    return {name: entities.METRICS[name].compute(compared) for name in setup.recipe.metrics}


def fit_baselines(training: Rows, setup: Setup) -> dict[str, Any]:
    """Learn the most frequent tag, and that of each word."""
    return dict(zip(_BASELINES, entities.count_tags(training, setup.labels), strict=True))


def baselines(learned: Mapping[str, Any], rows: Rows, setup: Setup) -> dict[str, list[Prediction]]:
    """Tag every word with the most frequent tag, or each with its own; a new word gets the most frequent one."""
    frequent, of_words = (learned[name] for name in _BASELINES)
    return {
        name: [{"prediction": [setup.labels[tags.get(word, frequent)] for word in row["tokens"]]} for row in rows]
        for name, tags in zip(_BASELINES, ({}, of_words), strict=True)
    }


def details(predictions: Predictions, rows: Rows, setup: Setup) -> Details:
    """Report the scores of each entity type (or tag), and what became of the entities."""
    compared = compare(predictions, rows, setup)
    if not _has_entities(setup):
        answers = _answers(predictions, rows, are_entities=False)
        return Details({"tags": entities.score_table("tag", setup.labels, compared["tags"])}, answers=answers)
    errors: Counter[str] = Counter()
    for gold, predicted in _labelled_tags(predictions, rows):
        errors += entities.count_outcomes(entities.find_spans(gold), entities.find_spans(predicted))
    tables = {
        "entity types": entities.score_table("type", entities.entity_types(setup.labels), compared["entities"]),
        "what became of the entities": [{"outcome": name, "entities": errors[name]} for name in entities.OUTCOMES],
    }
    finds_any = any(entities.find_spans(record["prediction"]) for record in predictions)
    warnings = [] if finds_any or not rows else ["The model finds no entity at all: it has learned nothing yet."]
    answers = _answers(predictions, rows, are_entities=True)
    return Details(tables, answers=answers, warnings=warnings)


def _scheme(recipe: Recipe) -> str:
    """Return the recipe's scheme; ``auto`` means IOB2 where the recipe has metrics of entities."""
    scheme = str(_option(recipe, "scheme"))
    return "iob2" if scheme == "auto" and set(entities.ENTITY_METRICS) & set(recipe.metrics) else scheme


def _labelled_tags(predictions: Predictions, rows: Rows) -> list[entities.TagPair]:
    """Return each row's gold and predicted tags, of the labelled words only; DataError where their number differs."""
    pairs = [(row["tags"], record["prediction"]) for row, record in zip(rows, predictions, strict=True)]
    for number, (gold, predicted) in enumerate(pairs, start=1):
        # those of another program, which may have cut a long text
        if len(gold) != len(predicted):
            what = f"{len(predicted)} tags are predicted for {len(gold)} words"
            raise DataError(what, "predict one for each word", row=number)
    return [entities.drop_unlabelled(gold, predicted) for gold, predicted in pairs]


def _tag_text(tag: object, word: int, words: Sequence[str], recipe: Recipe) -> str | None:
    """Return a raw tag as text, None for an unlabelled word; a number counts the recipe's labels, if it has any."""
    if isinstance(tag, (list, dict)):
        raise DataError(f"word {word + 1} {words[word]!r}: {tag!r} is not one tag", "write one", column="tags")
    spelling = spelled(tag)
    if spelling in (None, "-100", "-1"):
        return None
    return _in_labels(spelling, word, words, recipe) if str(spelling).isdigit() else spelling


def _in_labels(tag: str | None, word: int, words: Sequence[str], recipe: Recipe) -> str | None:
    """Return the label name that a tag means; refuse one that is none of the recipe's labels, if it has any."""
    if tag is None or not recipe.labels:
        return tag
    try:
        return str(name_of(tag, recipe.labels))
    except DataError as error:
        remedy = error.remedy
        if tag[1:2] == "-":
            remedy += f"; the recipe `tag` takes the types of your rows, which {recipe.name} does not"
        raise DataError(f"word {word + 1} {words[word]!r}: {error.what}", remedy, column="tags") from None


def _has_entities(setup: Setup) -> bool:
    scheme = _scheme(setup.recipe)
    look_like_iob2 = "O" in setup.labels and all(map(tag_schemes.is_entity_tag, setup.labels))
    return scheme in tag_schemes.SCHEMES or (scheme == "auto" and look_like_iob2)


def _decode_row(row: Row, scores: Numbers, setup: Setup) -> dict[str, Any]:
    """Choose the tags of one row; `scores` are logits of shape (words, tags), NaN for a word without tokens."""
    has_entities = _has_entities(setup)
    probabilities = decisions.tag_probabilities(scores, setup.labels, _option(setup.recipe, "temperature"))
    decoding = str(_option(setup.recipe, "decoding")) if has_entities else "greedy"
    tags, likely = decisions.choose_tags(probabilities, setup.labels, decoding)
    confidence = [None if math.isnan(scores[word, 0]) else value for word, value in enumerate(likely)]
    record: dict[str, Any] = {"prediction": tags}
    if "offsets" in row:
        record["words"] = row["tokens"]
    if has_entities:
        record["entities"] = entities.describe_entities(tags, *_text_of(row), confidence)
        if "offsets" in row:
            record["spans"] = entities.as_spans(record["entities"])
    return {**record, "word_probabilities": confidence, "_probabilities": probabilities}


def _text_of(row: Row) -> tuple[str, list[tuple[int, int]]]:
    """Return the text of a row, or its words joined by one space, and the characters of each word."""
    if "offsets" in row:
        return row["text"], row["offsets"]
    return " ".join(row["tokens"]), entities.word_offsets(row["tokens"])


def _mark(row: Row, tags: list[str]) -> tuple[str, list[LabeledSpan], list[LabeledSpan]]:
    """Return the text of a row with its gold and its predicted entities."""
    text, words = _text_of(row)
    spans = entities.comparable_spans(row["tags"], tags)
    gold, predicted = ([(words[first][0], words[end - 1][1], name) for name, first, end in side] for side in spans)
    return text, gold, predicted


def _answers(predictions: Predictions, rows: Rows, *, are_entities: bool) -> list[Answer]:
    """Show gold and predicted tags: the entities, or else the wrong words."""
    show = entities.show_entities if are_entities else entities.show_wrong_words
    return [
        Answer(
            *show(row["tokens"], row["tags"], tags, one.get("word_probabilities") or [None] * len(tags)),
            _mark(row, tags) if are_entities else None,
        )
        for row, one in zip(rows, predictions, strict=True)
        for tags in [one["prediction"]]
    ]
