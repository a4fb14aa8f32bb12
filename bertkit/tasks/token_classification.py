"""Tag every word of a text: named entities (Devlin et al. 2019, section 5.3), parts of speech, or tags of one's own.

A word's tag is read off its first token. A text longer than the window is read in windows that overlap, in training,
scoring and predicting alike, so every word has a tag at any length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertkit import hub
from bertkit.data.labels import name_of, spelled
from bertkit.data.rows import Columns
from bertkit.errors import DataError, RecipeError
from bertkit.metrics import entities
from bertkit.modeling import load as models
from bertkit.modeling.layers import LAYER_CHOICES, TAGGERS
from bertkit.recipe import Recipe, Row
from bertkit.recipe.options import Option, read_option
from bertkit.tasks import Answer, Details, Run, no_tuning
from bertkit.tokens.features import IGNORED, Collator, Feature, Setup, find_template, padding_collator, token_budget
from bertkit.tokens.words import read_list, read_words, split_text, split_windows, tokenize_words

COLUMNS = Columns(given=("tokens",), gold="tags", lists=("tokens",), text_instead={"tokens": "text"})
NAMED: bool = True
_ENTITY_METRICS = ("f1", "precision", "recall", "f1_strict", "precision_strict", "recall_strict")
METRICS: tuple[str, ...] = (*_ENTITY_METRICS, "accuracy", "f1_macro")
OPTIONS: Mapping[str, Any] = {
    "scheme": Option("auto", choices=("auto", "none", *entities.SCHEMES)),
    "decoding": Option("repair", choices=("greedy", "repair", "constrained")),
    "overlap": 64,
    "layers": Option(None, choices=(None, *LAYER_CHOICES)),
    "tagger": Option("bilstm", choices=TAGGERS),
    "tagger_size": Option(256, least=2),
}

tune = no_tuning


def read(row: Row, recipe: Recipe) -> Row | None:
    """Check the words and their tags, and rewrite entity tags in IOB2; plain ``text`` to predict is cut into words.

    A tag of -100 (or -1, or null) is one that nobody gave: it is neither learned nor scored. A row of nothing else is
    left out.

    Raises:
        DataError: not as many tags as words, an unknown tag, or tags that break their scheme.
    """
    if "tokens" not in row:
        if not isinstance(row["text"], str):
            raise DataError(f"{row['text']!r} is not text", "texts must be strings", column="text")
        spans = split_text(row["text"])
        return {**row, "tokens": [row["text"][start:end] for start, end in spans], "offsets": spans}
    tokens = read_words(row["tokens"])
    if "tags" not in row:
        return {**row, "tokens": tokens}
    raw = read_list(row["tags"], "tags")
    if len(raw) != len(tokens):
        what = f"{len(tokens)} words but {len(raw)} tags"
        raise DataError(what, "give every word one tag", column="tags")
    if not tokens:
        raise DataError("no words", "leave the row out", column="tokens")
    spelled_out = [_spell_tag(tag, place, tokens, recipe) for place, tag in enumerate(raw)]
    if not any(spelled_out):
        return None
    tags = entities.read_tags(spelled_out, tokens, _scheme(recipe))
    return {**row, "tokens": tokens, "tags": [_in_labels(tag, place, tokens, recipe) for place, tag in enumerate(tags)]}


def load_model(folder: Path, setup: Setup, *, new_head: bool) -> Any:
    """Load an encoder with a linear layer over every token; with ``layers``, a frozen one with a tagger over these."""
    from bertkit.modeling.taggers import load_tagger

    layers, tagger, size = (_option(setup.recipe, name) for name in ("layers", "tagger", "tagger_size"))
    head = None if layers is None else {"layers": layers, "tagger": tagger, "size": size}
    return load_tagger(folder, setup.labels, head, new_head=new_head)


def encode(rows: Sequence[Row], setup: Setup) -> list[Feature]:
    """Encode words in windows; ``words`` are those read off in a window, ``places`` where, ``labels`` their tags."""
    texts = [row["tokens"] for row in rows]
    frame = find_template(setup.tokenizer, pair=False)
    room = token_budget(setup, frame)
    overlap = min(int(_option(setup.recipe, "overlap")), room // 2)
    numbers = {name: number for number, name in enumerate(setup.labels)}
    features = []
    for number, tokens in enumerate(tokenize_words(setup.tokenizer, texts, longest=room // 2)):
        if "O" not in numbers:  # a word without tokens must be read off somewhere: here it cannot be outside
            tokens = [word or [setup.tokenizer.unk_token_id] for word in tokens]
        for part in split_windows(tokens, room, overlap):
            feature = {"row": number, **frame.fill(part.tokens)}
            places = [len(frame.before) + place for place in part.places]
            if "tags" in rows[number]:
                feature["labels"] = [IGNORED] * len(feature["input_ids"])
                for word, place in zip(part.words, places, strict=True):
                    tag = rows[number]["tags"][word]
                    feature["labels"][place] = IGNORED if tag is None else numbers[tag]
            features.append({**feature, "words": part.words, "places": places})
    return features


def collator(setup: Setup) -> Collator:
    """Make the padding collator, which takes hidden states along where they are known."""
    from bertkit.modeling.taggers import state_collator

    return state_collator(padding_collator(setup, label_per_token=True))


def precompute(model: Any, features: Mapping[str, Sequence[Feature]], setup: Setup, run: Run) -> bool:
    """Keep the hidden states of a frozen encoder on disk."""
    if _option(setup.recipe, "layers") is not None:
        from bertkit.modeling.taggers import cache_states

        content = models.fingerprint(hub.find_model(setup.recipe.model)) + setup.recipe.training.precision
        for each in features.values():
            cache_states(model, each, run, content)
    return False


def decode(
    outputs: Sequence[Mapping[str, Any]], features: Sequence[Feature], rows: Sequence[Row], setup: Setup
) -> list[dict[str, Any]]:
    """Give each word its tag, and where tags are entity tags, the entities.

    An entity has ``type``, ``text``, ``start`` and ``end`` (characters of the text, or of the words joined by one
    blank), and ``probability``, the mean of its words' probabilities.
    """
    scores = [np.full((len(row["tokens"]), len(setup.labels)), np.nan) for row in rows]
    for output, feature in zip(outputs, features, strict=True):
        scores[feature["row"]][feature["words"]] = output["logits"][feature["places"]]
    return [_decode_row(row, each, setup) for row, each in zip(rows, scores, strict=True)]


def compare(predictions: Sequence[Mapping[str, Any]], rows: Sequence[Row], setup: Setup) -> dict[str, Any]:
    """Count, a row, what was right, what there was and what was predicted.

    Returns:
        ``tags`` of shape (rows, tags, 3), and for entity tags ``entities`` and ``strict`` of shape (rows, types, 3).
    """
    pairs = [
        entities.leave_out_unknown(row["tags"], each["prediction"]) for row, each in zip(rows, predictions, strict=True)
    ]
    as_words = [(entities.word_spans(gold), entities.word_spans(found)) for gold, found in pairs]
    if not _has_entities(setup):
        return {"tags": entities.count_spans(as_words, setup.labels)}
    types = entity_types(setup)
    gold = [entities.find_spans(tags) for tags, _ in pairs]
    found = [entities.find_spans(tags) for _, tags in pairs]
    strict = [entities.find_strict_spans(tags) for _, tags in pairs]
    return {
        "tags": entities.count_spans(as_words, setup.labels),
        "entities": entities.count_spans(list(zip(gold, found, strict=True)), types),
        "strict": entities.count_spans(list(zip(gold, strict, strict=True)), types),
    }


def score(compared: Mapping[str, Any], setup: Setup) -> dict[str, float]:
    """Give the metrics; ``precision``, ``recall`` and ``f1`` are conlleval's (and seqeval's) over all entities.

    The ``_strict`` ones count only predicted entities that are valid IOB2, ``accuracy`` is the share of words,
    ``f1_macro`` the mean over entity types (or tags).
    """
    if set(_ENTITY_METRICS) & set(setup.recipe.metrics) and "entities" not in compared:
        raise RecipeError("f1, precision and recall are for entity tags (B-PER, I-PER, O)", "use accuracy or f1_macro")
    return {name: entities.measure(name, compared) for name in setup.recipe.metrics}


def baseline(training: Sequence[Row], rows: Sequence[Row], setup: Setup) -> list[dict[str, Any]]:
    """Predict the most frequent tag of the training rows for every word."""
    frequent = Counter(tag for row in training for tag in row["tags"] if tag).most_common(1)[0][0]
    return [{"prediction": [frequent] * len(row["tokens"])} for row in rows]


def details(predictions: Sequence[Mapping[str, Any]], rows: Sequence[Row], setup: Setup) -> Details:
    """Tell the scores of each entity type (or tag), and what became of the entities."""
    compared = compare(predictions, rows, setup)
    pairs = [
        entities.leave_out_unknown(row["tags"], each["prediction"]) for row, each in zip(rows, predictions, strict=True)
    ]
    if not _has_entities(setup):
        answers = [_answer_by_word(row, each) for row, each in zip(rows, predictions, strict=True)]
        return Details({"tags": entities.score_table("tag", setup.labels, compared["tags"])}, answers=answers)
    errors: Counter[str] = Counter()
    for gold, found in pairs:
        errors += entities.sort_errors(entities.find_spans(gold), entities.find_spans(found))
    tables = {
        "entity types": entities.score_table("type", entity_types(setup), compared["entities"]),
        "what became of the entities": [{"outcome": name, "entities": errors[name]} for name in entities.ERRORS],
    }
    silent = not any(entities.find_spans(each["prediction"]) for each in predictions)
    warnings = ["The model finds no entity at all: it has learned nothing yet."] if silent and rows else []
    answers = [_answer_by_entity(row, each) for row, each in zip(rows, predictions, strict=True)]
    return Details(tables, answers=answers, warnings=warnings)


def entity_types(setup: Setup) -> list[str]:
    """Give the types of the entity tags among the labels."""
    return list(dict.fromkeys(label[2:] for label in setup.labels if label != "O"))


def _option(recipe: Recipe, name: str) -> Any:
    return read_option(OPTIONS, recipe, name)


def _scheme(recipe: Recipe) -> str:
    """Give the recipe's scheme; the metrics of entities want entity tags."""
    scheme = str(_option(recipe, "scheme"))
    return "iob2" if scheme == "auto" and set(_ENTITY_METRICS) & set(recipe.metrics) else scheme


def _spell_tag(tag: Any, place: int, tokens: Sequence[str], recipe: Recipe) -> str | None:
    """Give a tag as text, None where there is none; a number is one of the recipe's labels, if it has any."""
    if isinstance(tag, (list, dict)):
        raise DataError(f"word {place + 1} {tokens[place]!r}: {tag!r} is not one tag", "give one", column="tags")
    spelling = spelled(tag)
    if spelling in (None, "-100", "-1"):
        return None
    return _in_labels(spelling, place, tokens, recipe) if str(spelling).isdigit() else spelling


def _in_labels(tag: str | None, place: int, tokens: Sequence[str], recipe: Recipe) -> str | None:
    """Refuse a tag that is none of the recipe's labels, if it has any."""
    if tag is None or not recipe.labels:
        return tag
    try:
        return str(name_of(tag, recipe.labels))
    except DataError as error:
        raise DataError(f"word {place + 1} {tokens[place]!r}: {error.what}", error.remedy, column="tags") from None


def _has_entities(setup: Setup) -> bool:
    scheme = _scheme(setup.recipe)
    return scheme in entities.SCHEMES or (
        scheme == "auto" and "O" in setup.labels and all(map(entities.is_entity_tag, setup.labels))
    )


def _decode_row(row: Row, scores: np.ndarray[Any, Any], setup: Setup) -> dict[str, Any]:
    """Choose the tags of one row; `scores` are logits of shape (words, tags), NaN for a word without tokens."""
    is_read = ~np.isnan(scores).any(axis=1)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    chances = weights / weights.sum(axis=1, keepdims=True)
    chances[~is_read] = np.array([label == "O" for label in setup.labels], dtype=float)
    decoding = _option(setup.recipe, "decoding")
    has_entities = _has_entities(setup)
    if has_entities and decoding == "constrained":
        chosen = entities.most_probable_valid(chances, setup.labels)
    else:
        chosen = chances.argmax(axis=1).tolist() if len(chances) else []
    tags = [setup.labels[number] for number in chosen]
    if has_entities and decoding == "repair":
        tags = entities.repair(tags)
    certain = [float(chances[word, number]) if is_read[word] else None for word, number in enumerate(chosen)]
    record: dict[str, Any] = {"prediction": tags}
    if "offsets" in row:
        record["words"] = row["tokens"]
    if has_entities:
        record["entities"] = _entities_of(row, tags, certain)
    return {**record, "word_probabilities": certain}


def _entities_of(row: Row, tags: Sequence[str], certain: Sequence[float | None]) -> list[dict[str, Any]]:
    if "offsets" in row:
        return entities.describe(tags, row["text"], row["offsets"], certain)
    ends = np.cumsum([len(word) + 1 for word in row["tokens"]]) - 1
    offsets = [(int(end) - len(word), int(end)) for end, word in zip(ends, row["tokens"], strict=True)]
    return entities.describe(tags, " ".join(row["tokens"]), offsets, certain)


def _answer_by_word(row: Row, prediction: Mapping[str, Any]) -> Answer:
    """Tell the words whose tag is wrong."""
    words = zip(row["tokens"], row["tags"], prediction["prediction"], prediction["word_probabilities"], strict=True)
    wrong = [(word, gold, found, chance) for word, gold, found, chance in words if gold not in (None, found)]
    gold, found = (" ".join(f"{each[0]}/{each[side]}" for each in wrong) for side in (1, 2))
    return Answer(gold, found, not wrong, max((each[3] or 0.0 for each in wrong), default=None))


def _answer_by_entity(row: Row, prediction: Mapping[str, Any]) -> Answer:
    """Tell the entities; the confidence is that of the surest wrong one."""
    known = [tag is not None for tag in row["tags"]]
    gold = entities.find_spans([tag or "O" for tag in row["tags"]])
    found = [span for span in entities.find_spans(prediction["prediction"]) if all(known[span[1] : span[2]])]
    wanted, named = [
        ", ".join(f"{' '.join(row['tokens'][start:end])} ({kind})" for kind, start, end in spans) or "none"
        for spans in (gold, found)
    ]
    chances = prediction["word_probabilities"]
    wrong = [min(chance or 0.0 for chance in chances[span[1] : span[2]]) for span in found if span not in gold]
    return Answer(wanted, named, set(gold) == set(found), max(wrong, default=None))
