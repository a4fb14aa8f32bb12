"""Tag each word of a text: named entities (Devlin et al. 2019, section 5.3), parts of speech, or custom tags.

A word's tag is predicted at its first token. A long text is read in overlapping windows, in training, scoring and
predicting, so each word of a text of any length has a tag.
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
from bertkit.data.spans import OFFSET_RULES, TextSpan, read_spans
from bertkit.errors import DataError, RecipeError
from bertkit.metrics import calibration
from bertkit.metrics import tags as entities
from bertkit.metrics.intervals import Metric
from bertkit.metrics.probabilities import choose_tags, compute_tag_probabilities, mean_probabilities
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

COLUMNS = ColumnSpec(
    inputs=("tokens",),
    gold="tags",
    lists=("tokens",),
    fallback_columns={"tokens": "text"},
    spans="spans",
    predicted=("word_probabilities",),
)
HAS_LABEL_NAMES: bool = True
TYPES: Mapping[str, Any] = {"prediction": list[str]}
METRICS: Mapping[str, Metric] = entities.METRICS
OPTIONS: Mapping[str, object] = {
    "scheme": Option("auto", choices=("auto", "none", *entities.SCHEMES)),
    "decoding": Option("repair", choices=("greedy", "repair", "constrained")),
    "offsets": Option("code_points", choices=tuple(OFFSET_RULES)),
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

    Labeled ``spans`` of a text are converted to tags of all words that they share characters with. A tag of -100 (or
    -1, or null) means an unlabeled word, which is neither learned nor scored. A row without labeled words is left out.

    Raises:
        DataError: If the numbers of tags and words differ, a tag is unknown, or the scheme does not allow a tag.
    """
    if "tokens" not in row:
        check_texts(row, "text")
        return _read_spans(row, recipe) if "spans" in row else _split_words(row, recipe)
    words = read_words(row["tokens"])
    if "tags" not in row:
        return {**row, "tokens": words}
    raw_tags = read_list(row["tags"], "tags")
    if len(raw_tags) != len(words):
        raise DataError(f"{len(words)} words but {len(raw_tags)} tags", "write one tag per word", column="tags")
    if not words:
        raise DataError("no words", "leave the row out", column="tokens")
    # Check tags before rewriting them in IOB2, so that an error names the tag in the file.
    texts = [_read_tag(tag, word, words, recipe) for word, tag in enumerate(raw_tags)]
    if not any(texts):
        return None
    tags = entities.normalize_tags(texts, words, _get_scheme(recipe))
    return {**row, "tokens": words, "tags": [_check_tag(tag, word, words, recipe) for word, tag in enumerate(tags)]}


def _read_spans(row: Row, recipe: Recipe) -> Row | None:
    """Return a text as words with tags, and its gold spans in characters, or None if it is not annotated."""
    value = row["spans"]
    if is_missing(value):
        return None
    offsets, overlapping = _option(recipe, "offsets"), _option(recipe, "overlapping")
    skipped_spans = list[TextSpan]()
    spans = read_spans(value, row["text"], offsets=offsets, overlapping=overlapping, dropped_spans=skipped_spans)
    # Do not split at gold spans: texts to predict have none, so they would be split differently.
    split_row = _split_words(row, recipe)
    tags = entities.tag_spans(split_row["offsets"], spans)
    split_row["tags"] = [_check_tag(tag, word, split_row["tokens"], recipe) for word, tag in enumerate(tags)]
    return {**split_row, "spans": [list(span) for span in spans], "left_out_spans": len(skipped_spans)}


def _split_words(row: Row, recipe: Recipe) -> Row:
    """Return a row with the words of its text, ``tokens``, and their ``offsets``."""
    word_split = _option(recipe, "word_split")
    if word_split == "subwords":
        offsets = split_subwords(_load_splitter(recipe.model), row["text"])
    else:
        offsets = split_text(row["text"], at_punctuation=word_split == "punctuation")
    return {**row, "tokens": [row["text"][start:end] for start, end in offsets], "offsets": offsets}


@cache
def _load_splitter(model: str) -> Any:
    """Load the tokenizer of a model, to split texts into its tokens; for a folder of seeds, load the first model's."""
    folder = Path(model) if Path(model).is_dir() else hub.find_model(model)
    if (summary := read_seeds(folder)) is not None:
        folder = Path(folder, list_members(summary)[0])
    return read_fast_tokenizer(folder) or configure_for_plain_text(load_tokenizer(folder).backend_tokenizer)


def find_row_warnings(rows: Rows, recipe: Recipe) -> list[str]:
    """Warn of gold spans that overlap longer ones, or start or end inside a word, so that no tags can represent them.

    Raises:
        DataError: If nearly all misfits would fit words with offsets in another unit, such as bytes.
    """
    total = misfits = skipped = 0
    for row in rows:
        spans = row.get("spans", ())
        total, skipped = total + len(spans), skipped + row.get("left_out_spans", 0)
        misfits += sum(not fits_words(row["offsets"], span) for span in spans)
    warnings = []
    if skipped:
        warnings.append(f"{format_fraction(skipped, total + skipped)} spans overlap a longer one and are left out.")
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
    """Load an encoder with a linear layer over each token or, with ``layers``, a frozen encoder with a tagger."""
    layers, tagger, size = (_option(context.recipe, name) for name in ("layers", "tagger", "tagger_size"))
    head = None if layers is None else {"layers": layers, "tagger": tagger, "size": size}
    return load_tagger(folder, context, head, new_head=new_head)


def encode(rows: Rows, context: TaskContext) -> list[Feature]:
    """Encode words in windows; a short text is a single window, as in Devlin et al. (2019, section 5.3).

    ``words`` are the words whose tags are predicted in a window, and ``positions`` are their first tokens. ``labels``
    is `IGNORE_INDEX` at all other tokens.
    """
    template = find_template(context.tokenizer, pair=False)
    budget = token_budget(context, template)
    # With a budget of 8 tokens and an overlap of 2, a text of 12 words of one token has the windows 0 to 7 and 6 to 11.
    # Word 6 is tagged in the first window, and word 7 in the second, with one word before it and four after it. The
    # overlap is at most half, so that a window does not repeat most of the previous window.
    overlap = min(int(_option(context.recipe, "overlap")), budget // 2)
    label_ids = context.label_ids
    features = []
    if _option(context.recipe, "word_split") == "subwords" and rows and "offsets" in rows[0]:
        tokenized = tokenize_subwords(context.tokenizer, rows)
    else:
        tokenized = tokenize_words(context.tokenizer, [row["tokens"] for row in rows], max_tokens=budget // 2)
    for index, tokens in enumerate(tokenized):
        # A word without tokens is tagged O. Without this tag, the word needs a token.
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
    # Only training stores hidden states.
    if context.inference:
        return padding_collator(context, label_per_token=True)
    from bertkit.modeling.heads.taggers import make_state_collator

    return make_state_collator(padding_collator(context, label_per_token=True))


def precompute(model: Model, features: Mapping[str, Features], context: TaskContext, run: RunModule) -> bool:
    """Compute the hidden states of a frozen encoder once, and store them on disk."""
    if _option(context.recipe, "layers") is not None:
        from bertkit.modeling.heads.taggers import cache_states

        # States depend on the precision, so it is part of the cache key.
        content = fingerprint(hub.find_model(context.recipe.model)) + context.recipe.training.precision
        for split_features in features.values():
            cache_states(model, split_features, run, content)
    return False


def decode(outputs: Outputs, features: Features, rows: Rows, context: TaskContext) -> list[Prediction]:
    """Choose each word's tag and, if tags are entity tags, list the entities.

    An entity has ``type``, ``text``, ``start`` and ``end`` (characters of the text, or of the words joined by one
    space), and ``probability``, the mean probability of its words. If a row is a text, it also has ``spans``.
    """
    # Gather the logits of each word from the window that tags it; NaN for words without tokens. Shape: (words, tags).
    row_logits = [np.full((len(row["tokens"]), len(context.labels)), np.nan) for row in rows]
    for output, feature in zip(outputs, features, strict=True):
        row_logits[feature["row"]][feature["words"]] = output["logits"][feature["positions"]]
    return [_decode_row(row, logits, context) for row, logits in zip(rows, row_logits, strict=True)]


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
    return calibration.Decisions(probabilities, gold, row_indices, unit="word")


def compare(predictions: Predictions, rows: Rows, context: TaskContext) -> dict[str, Any]:
    """Count correct, gold and predicted ``tags`` and, for entity tags, ``entities`` and ``strict`` entities.

    Shapes: (rows, tags, 3) for tags, (rows, types, 3) for entities. Strict entities start with ``B-``.
    """
    pairs = _get_labeled_tags(predictions, rows)
    # Tags are counted as spans of one word, so that one function counts tags and entities.
    word_spans = [(entities.find_word_spans(gold), entities.find_word_spans(predicted)) for gold, predicted in pairs]
    counts = {"tags": entities.count_spans(word_spans, context.labels)}
    if _has_entities(context):
        types = _find_types(rows, context)
        for name, find in (("entities", entities.find_spans), ("strict", entities.find_strict_spans)):
            counts[name] = entities.count_spans(_pair_spans(pairs, rows, find), types)
    return counts


def _pair_spans(
    pairs: Sequence[entities.TagPair], rows: Rows, find: Callable[[Sequence[str]], list[entities.Span]]
) -> list[tuple[list[entities.Span], list[entities.Span]]]:
    """Return the gold and predicted spans of each row, in characters if its gold spans are, otherwise in words."""
    return [
        (_find_gold_spans(row), entities.locate_spans(find(predicted), row["offsets"]))
        if "spans" in row
        else (entities.find_spans(gold), find(predicted))
        for (gold, predicted), row in zip(pairs, rows, strict=True)
    ]


def _find_gold_spans(row: Row) -> list[entities.Span]:
    """Return the gold spans of a row in characters of its text, or of its words joined by one space."""
    # Do not derive spans of characters from tags, which cannot represent a start or an end inside a word.
    if "spans" in row:
        return [(label, start, end) for start, end, label in row["spans"]]
    spans = entities.find_spans([tag or "O" for tag in row["tags"]])
    return entities.locate_spans(spans, _get_text(row)[1])


def _find_types(rows: Rows, context: TaskContext) -> list[str]:
    """Return the entity types of the labels and of the gold spans, whose words can all be tagged as other spans."""
    span_types = (label for row in rows for *_, label in row.get("spans", ()))
    return list(dict.fromkeys([*entities.list_entity_types(context.labels), *span_types]))


def score(row_scores: RowScores, context: TaskContext) -> dict[str, float]:
    """Compute the recipe's metrics.

    ``precision``, ``recall`` and ``f1`` of all entities are as in conlleval and seqeval. The ``_strict`` metrics only
    count predicted entities that are valid IOB2, ``accuracy`` is the fraction of correct words, and ``f1_macro`` is the
    mean F1 of the entity types (or tags).

    Raises:
        RecipeError: If the recipe has metrics of entities, and the tags are not entity tags.
    """
    entity_metrics = [name for name in context.recipe.metrics if name in entities.ENTITY_METRICS]
    if entity_metrics and "entities" not in row_scores:
        message = f"only entity tags (B-PER, I-PER, O) have the metrics {', '.join(entity_metrics)}"
        raise RecipeError(message, "use accuracy or f1_macro")
    return score_table(METRICS, row_scores, context)


def fit_baselines(training_rows: Rows, context: TaskContext) -> dict[str, Any]:
    """Find the most frequent tag, overall and per word."""
    return dict(zip(_BASELINES, entities.count_tags(training_rows, context.labels), strict=True))


def baselines(state: Mapping[str, Any], rows: Rows, context: TaskContext) -> dict[str, list[Prediction]]:
    """Tag each word with the most frequent tag, or with the word's most frequent tag, if the word is known."""
    default, word_tags = (state[name] for name in _BASELINES)
    return {
        name: [{"prediction": [context.labels[tags.get(word, default)] for word in row["tokens"]]} for row in rows]
        for name, tags in zip(_BASELINES, ({}, word_tags), strict=True)
    }


def details(predictions: Predictions, rows: Rows, context: TaskContext) -> TaskReport:
    """Report the scores of each entity type (or tag), and the outcomes of all entities."""
    answers = _list_answers(predictions, rows, _show_entities if _has_entities(context) else _show_wrong_words)
    if not _has_entities(context):
        table = _score_tags(context.labels, compare(predictions, rows, context)["tags"].sum(axis=0))
        return TaskReport({"tags": table}, answers=answers, entity_verdicts=[])
    # 1. Count the outcomes of gold and predicted entities.
    outcomes: Counter[str] = Counter()
    pairs = _pair_spans(_get_labeled_tags(predictions, rows), rows, entities.find_spans)
    for gold, predicted in pairs:
        outcomes += entities.count_outcomes(gold, predicted)
    tables = {
        "entity types": entities.score_types(pairs),
        "outcomes of the entities": [{"outcome": name, "entities": outcomes[name]} for name in entities.OUTCOMES],
    }
    # 2. Warn if no entity is predicted. The accuracy of such a model is high, because most words are O.
    has_entity = any(entities.find_spans(record["prediction"]) for record in predictions)
    warnings = [] if has_entity or not rows else ["The model finds no entity at all: it has learned nothing yet."]
    # 3. List the predicted entities with their probabilities, for their calibration.
    entity_verdicts = [
        (entity["probability"], span in gold)
        for answer, record in zip(answers, predictions, strict=True)
        for _, gold, predicted in ([answer.highlighted] if answer.highlighted else ())
        for entity in record.get("entities", ())
        if (span := (entity["start"], entity["end"], entity["type"])) in predicted and entity["probability"] is not None
    ]
    return TaskReport(tables, answers=answers, warnings=warnings, entity_verdicts=entity_verdicts)


def _score_tags(labels: Sequence[str], counts: np.ndarray) -> list[dict[str, Any]]:
    """Return precision, recall, F1 and number of each tag, the most frequent first; counts have shape (tags, 3)."""
    scores = entities.compute_ratios(counts)
    indices = np.flatnonzero(counts[:, 1:].any(axis=1)).tolist()
    order = sorted(indices, key=lambda index: (-counts[index, 1], labels[index]))
    return [
        {"tag": labels[i], **{name: float(values[i]) for name, values in scores.items()}, "gold": int(counts[i, 1])}
        for i in order
    ]


def _get_scheme(recipe: Recipe) -> str:
    """Return the recipe's scheme, or IOB2 instead of ``auto`` if the recipe has metrics of entities."""
    scheme = str(_option(recipe, "scheme"))
    return "iob2" if scheme == "auto" and set(entities.ENTITY_METRICS) & set(recipe.metrics) else scheme


def _get_labeled_tags(predictions: Predictions, rows: Rows) -> list[entities.TagPair]:
    """Return the gold and predicted tags of each row's labeled words.

    Raises:
        DataError: If the numbers of gold and predicted tags differ.
    """
    pairs = [(row["tags"], record["prediction"]) for row, record in zip(rows, predictions, strict=True)]
    for row_number, (gold, predicted) in enumerate(pairs, start=1):
        # Predictions of other programs have fewer tags if texts were truncated.
        if len(gold) != len(predicted):
            message = f"{len(predicted)} tags are predicted for {len(gold)} words"
            raise DataError(message, "predict one for each word", row=row_number)
    return [entities.drop_unlabeled(gold, predicted) for gold, predicted in pairs]


def _read_tag(tag: object, word: int, words: Sequence[str], recipe: Recipe) -> str | None:
    """Return a raw tag as text, or None for an unlabeled word; a number is an index into the recipe's labels."""
    if isinstance(tag, (list, dict)):
        raise DataError(f"word {word + 1} {words[word]!r}: {tag!r} is not one tag", "write one", column="tags")
    text = label_to_str(tag)
    if text in (None, "-100", "-1"):
        return None
    return _check_tag(text, word, words, recipe) if str(text).isdigit() else text


def _check_tag(tag: str | None, word: int, words: Sequence[str], recipe: Recipe) -> str | None:
    """Return the label name of a tag.

    Raises:
        DataError: If the recipe has labels, and the tag is not one of them.
    """
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
    scheme = _get_scheme(context.recipe)
    look_like_iob2 = "O" in context.labels and all(map(entities.is_entity_tag, context.labels))
    return scheme in entities.SCHEMES or (scheme == "auto" and look_like_iob2)


def _decode_row(row: Row, logits: np.ndarray, context: TaskContext) -> dict[str, Any]:
    """Choose the tags of one row; `logits` have shape (words, tags), and are NaN for a word without tokens."""
    has_entities = _has_entities(context)
    probabilities = compute_tag_probabilities(logits, context.labels, _option(context.recipe, "temperature"))
    decoding = str(_option(context.recipe, "decoding")) if has_entities else "greedy"
    tags, tag_values = choose_tags(probabilities, context.labels, decoding)
    confidence = [None if math.isnan(logits[word, 0]) else value for word, value in enumerate(tag_values)]
    record: dict[str, Any] = {"prediction": tags}
    if "offsets" in row:
        record["words"] = row["tokens"]
    if has_entities:
        record["entities"] = entities.describe_entities(tags, *_get_text(row), confidence)
        if "offsets" in row:
            record["spans"] = entities.to_annotations(record["entities"])
    return {**record, "word_probabilities": confidence, "_probabilities": probabilities}


def _get_text(row: Row) -> tuple[str, list[tuple[int, int]]]:
    """Return the text of a row, or its words joined by one space, and the characters of each word."""
    if "offsets" in row:
        return row["text"], row["offsets"]
    return " ".join(row["tokens"]), entities.find_word_offsets(row["tokens"])


def _list_answers(predictions: Predictions, rows: Rows, show: Callable[..., Answer]) -> list[Answer]:
    """Return the answer of each row, given a function of the row, its predicted tags and their probabilities."""
    answers = []
    for row, record in zip(rows, predictions, strict=True):
        tags = record["prediction"]
        confidence = [value or 0.0 for value in record.get("word_probabilities") or [0.0] * len(tags)]
        answers.append(show(row, tags, confidence))
    return answers


def _show_wrong_words(row: Row, tags: list[str], confidence: Sequence[float]) -> Answer:
    return Answer(*entities.describe_wrong_words(row["tokens"], row["tags"], tags, confidence))


def _show_entities(row: Row, tags: list[str], confidence: Sequence[float]) -> Answer:
    """Return the gold and the predicted entities of a row.

    The confidence is the highest probability of a wrong entity, which is the lowest probability of its words.
    """
    text, offsets = _get_text(row)
    gold, word_spans = _find_gold_spans(row), entities.find_labeled_spans(row["tags"], tags)
    predicted = entities.locate_spans(word_spans, offsets)
    errors = [min(confidence[i:j]) for (_, i, j), span in zip(word_spans, predicted, strict=True) if span not in gold]
    gold_text, predicted_text = entities.format_spans(gold, text), entities.format_spans(predicted, text)
    in_gold, in_predicted = ([(start, end, name) for name, start, end in spans] for spans in (gold, predicted))
    highlighted = (text, in_gold, in_predicted)
    return Answer(gold_text, predicted_text, set(gold) == set(predicted), max(errors, default=0) or None, highlighted)
