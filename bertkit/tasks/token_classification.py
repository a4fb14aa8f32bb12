"""Tag every word of a text: named entities (Devlin et al. 2019, section 5.3), parts of speech, or custom tags.

A word's tag is read off its first token. A text that does not fit is read in overlapping windows, in training, scoring
and predicting alike, so every word has a tag at any length.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.checks import format_fraction
from bertkit.data.columns import ColumnSpec
from bertkit.data.labels import get_label_name, label_to_str
from bertkit.data.rows import check_texts, is_missing
from bertkit.data.spans import COUNTINGS, TextSpan, read_spans
from bertkit.errors import DataError, RecipeError
from bertkit.metrics import calibration
from bertkit.metrics import tags as entities
from bertkit.metrics.intervals import Metric
from bertkit.metrics.probabilities import choose_tags, mean_probabilities, tag_probabilities
from bertkit.modeling.checkpoint import fingerprint
from bertkit.modeling.heads.targets import build_tag_targets
from bertkit.modeling.info import Model
from bertkit.modeling.layers import LAYER_CHOICES, TAGGERS
from bertkit.modeling.load import load_tagger
from bertkit.modeling.tokenizer import load_tokenizer
from bertkit.recipe.records import Option, Recipe, read_option
from bertkit.recipe.sections import Row
from bertkit.storage import hub
from bertkit.storage.run_sets import list_members, read_seeds
from bertkit.tasks import Answer, Outputs, Prediction, Predictions, RowScores, RunModule, TaskReport, score_table
from bertkit.tokens.fast_tokenizer import configure_for_plain_text, read_fast_tokenizer
from bertkit.tokens.features import (
    IGNORE_INDEX,
    Collator,
    Feature,
    Features,
    Rows,
    TaskContext,
    find_template,
    padding_collator,
    token_budget,
)
from bertkit.tokens.truncation import find_unread_words
from bertkit.tokens.words import (
    WORD_SPLITS,
    check_offsets,
    fits_words,
    read_list,
    read_words,
    split_subwords,
    split_text,
    split_windows,
    tokenize_subwords,
    tokenize_words,
)

_ALWAYS = ("word_probabilities",)
COLUMNS = ColumnSpec(
    inputs=("tokens",),
    gold="tags",
    lists=("tokens",),
    fallback_columns={"tokens": "text"},
    spans="spans",
    predicted=_ALWAYS,
)
HAS_LABEL_NAMES: bool = True
TYPES: Mapping[str, Any] = {"prediction": list[str]}
METRICS: Mapping[str, Metric] = entities.METRICS
OPTIONS: Mapping[str, object] = {
    "scheme": Option("auto", choices=("auto", "none", *entities.SCHEMES)),
    "decoding": Option("repair", choices=("greedy", "repair", "constrained")),
    "offsets": Option("code_points", choices=tuple(COUNTINGS)),
    "overlapping": Option("error", choices=("error", "longest")),
    "word_split": Option("punctuation", choices=WORD_SPLITS),
    "overlap": 64,
    "layers": Option(None, choices=(None, *LAYER_CHOICES)),
    "tagger": Option("bilstm", choices=TAGGERS),
    "tagger_size": Option(256, minimum=2),
    "temperature": calibration.OPTIONS["temperature"],
}

_option = partial(read_option, OPTIONS)

targets, combine, find_truncated_answers = build_tag_targets, mean_probabilities, find_unread_words
count_errors = entities.count_errors
_BASELINES = ("most frequent tag", "most frequent tag of each word")


def read(row: Row, recipe: Recipe) -> Row | None:
    """Check the words and their tags, and rewrite entity tags in IOB2; plain ``text`` is split into words.

    Labeled ``spans`` of a text become tags of the words that they share characters with.

    A tag of -100 (or -1, or null) means an unlabeled word, which is neither learned nor scored. A row without any
    labeled word is left out.

    Raises:
        DataError: If the numbers of tags and words differ, a tag is unknown, or tags break their scheme.
    """
    if "tokens" not in row:
        check_texts(row, "text")
        return _read_spans(row, recipe) if "spans" in row else _split(row, recipe)
    words = read_words(row["tokens"])
    if "tags" not in row:
        return {**row, "tokens": words}
    raw = read_list(row["tags"], "tags")
    if len(raw) != len(words):
        raise DataError(f"{len(words)} words but {len(raw)} tags", "write one tag per word", column="tags")
    if not words:
        raise DataError("no words", "leave the row out", column="tokens")
    # Tags are checked before they are rewritten in IOB2, so that an error names the tag that is in the file.
    texts = [_tag_text(tag, word, words, recipe) for word, tag in enumerate(raw)]
    if not any(texts):
        return None
    tags = entities.normalize_tags(texts, words, _scheme(recipe))
    return {**row, "tokens": words, "tags": [_in_labels(tag, word, words, recipe) for word, tag in enumerate(tags)]}


def _read_spans(row: Row, recipe: Recipe) -> Row | None:
    """Return a text as words with tags, and its gold spans in characters, or None if it is not annotated."""
    value = row["spans"]
    if is_missing(value):
        return None
    offsets, overlapping, left_out = _option(recipe, "offsets"), _option(recipe, "overlapping"), list[TextSpan]()
    spans = read_spans(value, row["text"], offsets=offsets, overlapping=overlapping, left_out=left_out)
    # Words come from the text alone. Splitting at gold spans would make the words of training and of prediction differ.
    split_row = _split(row, recipe)
    tags = entities.tag_spans(split_row["offsets"], spans)
    split_row["tags"] = [_in_labels(tag, word, split_row["tokens"], recipe) for word, tag in enumerate(tags)]
    return {**split_row, "spans": [list(span) for span in spans], "left_out_spans": len(left_out)}


def _split(row: Row, recipe: Recipe) -> Row:
    """Return a row with the words of its text, which never depend on gold spans: a text to predict has none."""
    word_split = _option(recipe, "word_split")
    if word_split == "subwords":
        offsets = split_subwords(_load_splitter(recipe.model), row["text"])
    else:
        offsets = split_text(row["text"], at_punctuation=word_split == "punctuation")
    return {**row, "tokens": [row["text"][start:end] for start, end in offsets], "offsets": offsets}


@cache
def _load_splitter(model: str) -> Any:
    """Load the tokenizer of a model, of the first one for a folder of seeds, to split texts into its tokens."""
    folder = Path(model) if Path(model).is_dir() else hub.find_model(model)
    if (summary := read_seeds(folder)) is not None:
        folder = Path(folder, list_members(summary)[0])
    return read_fast_tokenizer(folder) or configure_for_plain_text(load_tokenizer(folder).backend_tokenizer)


def find_row_warnings(rows: Rows, recipe: Recipe) -> list[str]:
    """Count the gold spans that are left out, and those that begin or end inside a word, which no tags can mark.

    Raises:
        DataError: If nearly all such spans would fit words if their offsets were counted in another unit.
    """
    total = misfits = left_out = 0
    for row in rows:
        spans = row.get("spans", ())
        total, left_out = total + len(spans), left_out + row.get("left_out_spans", 0)
        misfits += sum(not fits_words(row["offsets"], span) for span in spans)
    warnings = []
    if left_out:
        warnings.append(f"{format_fraction(left_out, total + left_out)} spans overlap a longer one and are left out.")
    if misfits:
        check_offsets(rows, misfits, total)
        finer = WORD_SPLITS[WORD_SPLITS.index(str(_option(recipe, "word_split"))) + 1 :]
        remedy = f"; --set options.word_split={' or '.join(finer)} splits words further" if finer else ""
        problem = (
            f"{format_fraction(misfits, total)} gold spans begin or end inside a word, so no prediction can match them"
        )
        warnings.append(f"{problem}{remedy}.")
    return warnings


def load_model(folder: Path, context: TaskContext, *, new_head: bool) -> Model:
    """Load an encoder with a linear layer over each token; with ``layers``, a frozen one with a tagger over these."""
    layers, tagger, size = (_option(context.recipe, name) for name in ("layers", "tagger", "tagger_size"))
    head = None if layers is None else {"layers": layers, "tagger": tagger, "size": size}
    return load_tagger(folder, context, head, new_head=new_head)


def encode(rows: Rows, context: TaskContext) -> list[Feature]:
    """Encode words in windows; a text that fits has one, as in Devlin et al. (2019, section 5.3).

    ``words`` are the words whose tags are read in a window, and ``positions`` their first tokens. ``labels`` is
    `IGNORE_INDEX` at all other tokens.
    """
    template = find_template(context.tokenizer, pair=False)
    budget = token_budget(context, template)
    # With a budget of 8 tokens and an overlap of 2, a text of 12 words of one token has the windows 0 to 7 and 6 to 11.
    # Word 6 is read in the first and word 7 in the second, with one word before it and four after it. An overlap of
    # more than half would make a window repeat most of the window before it.
    overlap = min(int(_option(context.recipe, "overlap")), budget // 2)
    label_ids = context.label_ids
    features = []
    if _option(context.recipe, "word_split") == "subwords" and rows and "offsets" in rows[0]:
        tokenized = tokenize_subwords(context.tokenizer, rows)
    else:
        tokenized = tokenize_words(context.tokenizer, [row["tokens"] for row in rows], max_tokens=budget // 2)
    for index, tokens in enumerate(tokenized):
        # A word without tokens would be tagged O; if that tag does not exist, the word needs a token.
        if "O" not in label_ids:
            tokens = [word or [context.tokenizer.unk_token_id] for word in tokens]
        for window in split_windows(tokens, budget, overlap):
            feature = {"row": index, **template.fill(window.tokens)}
            positions = [len(template.before) + first for first in window.positions]
            if "tags" in rows[index]:
                feature["labels"] = [IGNORE_INDEX] * len(feature["input_ids"])
                for word, position in zip(window.words, positions, strict=True):
                    tag = rows[index]["tags"][word]
                    feature["labels"][position] = IGNORE_INDEX if tag is None else label_ids[tag]
            features.append({**feature, "words": window.words, "positions": positions})
    return features


def collator(context: TaskContext) -> Collator:
    """Build the padding collator, which also batches the hidden states of a frozen encoder if they are precomputed."""
    if context.inference:  # Only training keeps hidden states.
        return padding_collator(context, label_per_token=True)
    from bertkit.modeling.heads.taggers import make_state_collator

    return make_state_collator(padding_collator(context, label_per_token=True))


def precompute(model: Model, features: Mapping[str, Features], context: TaskContext, run: RunModule) -> bool:
    """Compute the hidden states of a frozen encoder once, and keep them on disk."""
    if _option(context.recipe, "layers") is not None:
        from bertkit.modeling.heads.taggers import cache_states

        # The same encoder in another precision has other states.
        content = fingerprint(hub.find_model(context.recipe.model)) + context.recipe.training.precision
        for split_features in features.values():
            cache_states(model, split_features, run, content)
    return False


def decode(outputs: Outputs, features: Features, rows: Rows, context: TaskContext) -> list[Prediction]:
    """Choose each word's tag and, if tags are entity tags, list the entities.

    An entity has ``type``, ``text``, ``start`` and ``end`` (characters of the text, or of the words joined by one
    space), and ``probability``, the mean of its words' probabilities. For a text, entities are also its ``spans``.
    """
    # NaN marks words without tokens, which no window reads.
    # Logits of shape (words, tags) per row, gathered from its windows by their positions; each word is in one window.
    scores = [np.full((len(row["tokens"]), len(context.labels)), np.nan) for row in rows]
    for output, feature in zip(outputs, features, strict=True):
        scores[feature["row"]][feature["words"]] = output["logits"][feature["positions"]]
    return [_decode_row(row, logits, context) for row, logits in zip(rows, scores, strict=True)]


def gold_probabilities(predictions: Predictions, rows: Rows, context: TaskContext) -> calibration.Decisions:
    """Return the probabilities and the gold tags of all words that have tokens and a tag."""
    ids = context.label_ids
    decisions = [
        (record["_probabilities"][word], ids[tag], row_index)
        for row_index, (row, record) in enumerate(zip(rows, predictions, strict=True))
        for word, tag in enumerate(row["tags"])
        if tag is not None and record["word_probabilities"][word] is not None
    ]
    probabilities, gold, row_indices = (np.array([decision[column] for decision in decisions]) for column in range(3))
    return calibration.Decisions(probabilities, gold, row_indices, per="word")


def compare(predictions: Predictions, rows: Rows, context: TaskContext) -> dict[str, Any]:
    """Count what is right, gold and predicted: ``tags`` (rows, tags, 3), ``entities``, ``strict`` (rows, types, 3)."""
    pairs = _labelled_tags(predictions, rows)
    # Tags of words are counted as spans of one word, so that one function counts both.
    as_words = [(entities.word_spans(gold), entities.word_spans(predicted)) for gold, predicted in pairs]
    counts = {"tags": entities.count_spans(as_words, context.labels)}
    if _has_entities(context):
        types = _find_types(rows, context)
        for name, find in (("entities", entities.find_spans), ("strict", entities.find_strict_spans)):
            counts[name] = entities.count_spans(_pair_spans(pairs, rows, find), types)
    return counts


def _pair_spans(
    pairs: Sequence[entities.TagPair], rows: Rows, find: Callable[[Sequence[str]], list[entities.Span]]
) -> list[tuple[list[entities.Span], list[entities.Span]]]:
    """Return the gold and the predicted spans of each row: characters if its gold spans are characters, else words."""
    return [
        (_gold_spans(row), entities.locate_spans(find(predicted), row["offsets"]))
        if "spans" in row
        else (entities.find_spans(gold), find(predicted))
        for (gold, predicted), row in zip(pairs, rows, strict=True)
    ]


def _gold_spans(row: Row) -> list[entities.Span]:
    """Return the gold spans of a row in characters of its text, or of its words joined by one space."""
    # Gold spans of characters are not derived from tags, because tags lose spans that begin or end inside a word.
    if "spans" in row:
        return [(label, start, end) for start, end, label in row["spans"]]
    spans = entities.find_spans([tag or "O" for tag in row["tags"]])
    return entities.locate_spans(spans, _get_text(row)[1])


def _find_types(rows: Rows, context: TaskContext) -> list[str]:
    """Return the entity types of the labels and of gold spans, which may share their words with other spans."""
    span_types = (label for row in rows for *_, label in row.get("spans", ()))
    return list(dict.fromkeys([*entities.entity_types(context.labels), *span_types]))


def score(row_scores: RowScores, context: TaskContext) -> dict[str, float]:
    """Compute the metrics; ``precision``, ``recall`` and ``f1`` are conlleval's (and seqeval's) over all entities.

    The ``_strict`` ones count only predicted entities that are valid IOB2, ``accuracy`` is the fraction of right words,
    ``f1_macro`` the mean over entity types (or tags).
    """
    marked_entities = [name for name in context.recipe.metrics if name in entities.ENTITY_METRICS]
    if marked_entities and "entities" not in row_scores:
        message = f"for entity tags (B-PER, I-PER, O) alone: {', '.join(marked_entities)}"
        raise RecipeError(message, "use accuracy or f1_macro")
    return score_table(METRICS, row_scores, context)


def fit_baselines(training: Rows, context: TaskContext) -> dict[str, Any]:
    """Learn the most frequent tag overall and per word."""
    return dict(zip(_BASELINES, entities.count_tags(training, context.labels), strict=True))


def baselines(learned: Mapping[str, Any], rows: Rows, context: TaskContext) -> dict[str, list[Prediction]]:
    """Tag every word with the most frequent tag, or with the word's most frequent one; a new word gets the former."""
    frequent, tag_scores = (learned[name] for name in _BASELINES)
    return {
        name: [{"prediction": [context.labels[tags.get(word, frequent)] for word in row["tokens"]]} for row in rows]
        for name, tags in zip(_BASELINES, ({}, tag_scores), strict=True)
    }


def details(predictions: Predictions, rows: Rows, context: TaskContext) -> TaskReport:
    """Report the scores of each entity type (or tag), and how entities were recognized or missed."""
    if not _has_entities(context):
        row_scores = compare(predictions, rows, context)
        answers = _answers(predictions, rows, are_entities=False)
        table = _score_tags(context.labels, row_scores["tags"].sum(axis=0))
        return TaskReport({"tags": table}, answers=answers, entity_verdicts=[])
    # 1. Count how entities were recognized or missed.
    errors: Counter[str] = Counter()
    pairs = _pair_spans(_labelled_tags(predictions, rows), rows, entities.find_spans)
    for gold, predicted in pairs:
        errors += entities.count_outcomes(gold, predicted)
    tables = {
        "entity types": entities.score_types(pairs),
        "outcomes of the entities": [{"outcome": name, "entities": errors[name]} for name in entities.OUTCOMES],
    }
    # 2. Warn of a model that has not learned to tag: most words are O, so its accuracy looks high.
    finds_any = any(entities.find_spans(record["prediction"]) for record in predictions)
    warnings = [] if finds_any or not rows else ["The model finds no entity at all: it has learned nothing yet."]
    answers = _answers(predictions, rows, are_entities=True)
    # 3. List the predicted entities with their probabilities, by which their calibration is judged.
    entity_verdicts = [
        (entity["probability"], span in gold)
        for answer, record in zip(answers, predictions, strict=True)
        for _, gold, predicted in ([answer.marked] if answer.marked else ())
        for entity in record.get("entities", ())
        if (span := (entity["start"], entity["end"], entity["type"])) in predicted and entity["probability"] is not None
    ]
    return TaskReport(tables, answers=answers, warnings=warnings, entity_verdicts=entity_verdicts)


def _score_tags(labels: Sequence[str], counts: np.ndarray) -> list[dict[str, Any]]:
    """Return precision, recall, F1 and number of each tag, the most frequent first, from counts (tags, 3)."""
    scores = entities.ratios(counts)
    occurring = np.flatnonzero(counts[:, 1:].any(axis=1)).tolist()
    order = sorted(occurring, key=lambda index: (-counts[index, 1], labels[index]))
    return [
        {"tag": labels[i], **{name: float(values[i]) for name, values in scores.items()}, "gold": int(counts[i, 1])}
        for i in order
    ]


def _scheme(recipe: Recipe) -> str:
    """Return the recipe's scheme; ``auto`` means IOB2 if the recipe has metrics of entities."""
    scheme = str(_option(recipe, "scheme"))
    return "iob2" if scheme == "auto" and set(entities.ENTITY_METRICS) & set(recipe.metrics) else scheme


def _labelled_tags(predictions: Predictions, rows: Rows) -> list[entities.TagPair]:
    """Return each row's gold and predicted tags, only for labeled words; DataError if their number differs."""
    pairs = [(row["tags"], record["prediction"]) for row, record in zip(rows, predictions, strict=True)]
    for row_number, (gold, predicted) in enumerate(pairs, start=1):
        # Predictions of another program can be shorter, if it truncated a long text.
        if len(gold) != len(predicted):
            message = f"{len(predicted)} tags are predicted for {len(gold)} words"
            raise DataError(message, "predict one for each word", row=row_number)
    return [entities.drop_unlabelled(gold, predicted) for gold, predicted in pairs]


def _tag_text(tag: object, word: int, words: Sequence[str], recipe: Recipe) -> str | None:
    """Return a raw tag as text, or None for an unlabeled word; a number is an index into the recipe's labels."""
    if isinstance(tag, (list, dict)):
        raise DataError(f"word {word + 1} {words[word]!r}: {tag!r} is not one tag", "write one", column="tags")
    spelling = label_to_str(tag)
    if spelling in (None, "-100", "-1"):
        return None
    return _in_labels(spelling, word, words, recipe) if str(spelling).isdigit() else spelling


def _in_labels(tag: str | None, word: int, words: Sequence[str], recipe: Recipe) -> str | None:
    """Return the label name for a tag; raise an error if the recipe has labels and the tag is not among them."""
    if tag is None or not recipe.labels:
        return tag
    try:
        return str(get_label_name(tag, recipe.labels))
    except DataError as error:
        remedy = error.remedy
        if tag[1:2] == "-":
            remedy += f"; the recipe `tag` takes the types of your rows, which {recipe.name} does not"
        raise DataError(f"word {word + 1} {words[word]!r}: {error.message}", remedy, column="tags") from None


def _has_entities(context: TaskContext) -> bool:
    scheme = _scheme(context.recipe)
    look_like_iob2 = "O" in context.labels and all(map(entities.is_entity_tag, context.labels))
    return scheme in entities.SCHEMES or (scheme == "auto" and look_like_iob2)


def _decode_row(row: Row, scores: np.ndarray, context: TaskContext) -> dict[str, Any]:
    """Choose the tags of one row; `scores` are logits of shape (words, tags), NaN for a word without tokens."""
    has_entities = _has_entities(context)
    probabilities = tag_probabilities(scores, context.labels, _option(context.recipe, "temperature"))
    decoding = str(_option(context.recipe, "decoding")) if has_entities else "greedy"
    tags, likely = choose_tags(probabilities, context.labels, decoding)
    confidence = [None if math.isnan(scores[word, 0]) else value for word, value in enumerate(likely)]
    record: dict[str, Any] = {"prediction": tags}
    if "offsets" in row:
        record["words"] = row["tokens"]
    if has_entities:
        record["entities"] = entities.describe_entities(tags, *_get_text(row), confidence)
        if "offsets" in row:
            record["spans"] = entities.as_spans(record["entities"])
    return {**record, "word_probabilities": confidence, "_probabilities": probabilities}


def _get_text(row: Row) -> tuple[str, list[tuple[int, int]]]:
    """Return the text of a row, or its words joined by one space, and the characters of each word."""
    if "offsets" in row:
        return row["text"], row["offsets"]
    return " ".join(row["tokens"]), entities.word_offsets(row["tokens"])


def _answers(predictions: Predictions, rows: Rows, *, are_entities: bool) -> list[Answer]:
    """Show gold and predicted tags: the entities, or else the wrong words."""
    answers = []
    for row, record in zip(rows, predictions, strict=True):
        tags = record["prediction"]
        confidence = [value or 0.0 for value in record.get("word_probabilities") or [0.0] * len(tags)]
        if are_entities:
            answers.append(_show_entities(row, tags, confidence))
        else:
            answers.append(Answer(*entities.show_wrong_words(row["tokens"], row["tags"], tags, confidence)))
    return answers


def _show_entities(row: Row, tags: list[str], confidence: Sequence[float]) -> Answer:
    """Show the gold and the predicted entities of a row.

    The confidence is the highest probability of a wrong entity, which is the lowest of its words.
    """
    text, offsets = _get_text(row)
    gold, words = _gold_spans(row), entities.predicted_spans(row["tags"], tags)
    predicted = entities.locate_spans(words, offsets)
    errors = [min(confidence[i:j]) for (_, i, j), span in zip(words, predicted, strict=True) if span not in gold]
    gold_text, predicted_text = entities.list_spans(gold, text), entities.list_spans(predicted, text)
    in_gold, in_predicted = ([(start, end, name) for name, start, end in spans] for spans in (gold, predicted))
    marked = (text, in_gold, in_predicted)
    return Answer(gold_text, predicted_text, set(gold) == set(predicted), max(errors, default=None) or None, marked)
