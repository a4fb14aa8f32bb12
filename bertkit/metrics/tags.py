"""Convert and decode entity tags, find and compare spans, and compute metrics of tags and entities.

bertkit rewrites entity tags of other schemes (IOB1, BIOES) in IOB2: ``B-`` starts an entity, ``I-`` continues it, and
``O`` is outside (Ramshaw & Marcus 1995; Tjong Kim Sang & Veenstra 1999). A span is (type, first word, last word + 1),
or has characters instead of words if the text is annotated in characters.
"""

from __future__ import annotations

import functools
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from bertkit.errors import DataError
from bertkit.metrics.intervals import Metric, RowScores

Span = tuple[str, int, int]
TagPair = tuple[list[str], list[str]]
"""Gold and predicted tags of a row."""

OUTCOMES = ("right", "wrong type", "wrong boundary", "wrong both", "missed", "spurious")


def find_spans(tags: Sequence[str]) -> list[Span]:
    """Find the entities of IOB2 tags as conlleval and seqeval do: an ``I-`` without an entity to continue starts one.

    >>> find_spans(["B-PER", "I-PER", "O", "I-LOC", "B-LOC"])
    [('PER', 0, 2), ('LOC', 3, 4), ('LOC', 4, 5)]
    """
    spans: list[Span] = []
    for word, tag in enumerate(tags):
        label = tag[2:]
        if tag == "O":
            continue
        if tag[0] == "I" and spans and spans[-1][0] == label and spans[-1][2] == word:
            spans[-1] = (label, spans[-1][1], word + 1)
        else:
            spans.append((label, word, word + 1))
    return spans


def find_strict_spans(tags: Sequence[str]) -> list[Span]:
    """Find the entities that start with ``B-``, as IOB2 and the strict mode of seqeval require.

    >>> find_strict_spans(["B-PER", "I-PER", "O", "I-LOC", "B-LOC"])
    [('PER', 0, 2), ('LOC', 4, 5)]
    """
    return [(label, start, end) for label, start, end in find_spans(tags) if tags[start][0] == "B"]


def list_entity_types(labels: Sequence[str]) -> list[str]:
    """List the types of the entity tags among labels.

    >>> list_entity_types(["O", "B-PER", "I-PER", "B-LOC"])
    ['PER', 'LOC']
    """
    return list(dict.fromkeys(label[2:] for label in labels if label != "O"))


def count_tags(rows: Iterable[Mapping[str, Any]], labels: Sequence[str]) -> tuple[int, dict[str, int]]:
    """Return the label id of the most frequent tag, and of each word's most frequent tag, in ``tokens`` and ``tags``.

    >>> count_tags([{"tokens": ["a", "b", "a"], "tags": ["X", "Y", "X"]}], ["Y", "X"])
    (1, {'a': 1, 'b': 0})
    """
    tagged = (pair for row in rows for pair in zip(row["tokens"], row["tags"], strict=True))
    counts = Counter((word, tag) for word, tag in tagged if tag)
    tag_counts, word_tags = Counter[str](), dict[str, int]()
    # The most frequent pairs come first, so the first tag of a word is its most frequent one.
    for (word, tag), count in counts.most_common():
        tag_counts[tag] += count
        word_tags.setdefault(word, labels.index(tag))
    return labels.index(tag_counts.most_common(1)[0][0]), word_tags


def find_word_spans(tags: Sequence[str]) -> list[Span]:
    """Return each word as a span, so that tags that are not entity tags can be counted by the same function.

    >>> find_word_spans(["DET", "NOUN"])
    [('DET', 0, 1), ('NOUN', 1, 2)]
    """
    return [(tag, word, word + 1) for word, tag in enumerate(tags)]


def drop_unlabeled(gold: Sequence[str | None], predicted: Sequence[str]) -> TagPair:
    """Return the gold and the predicted tags of the words that have a gold tag (not None).

    >>> drop_unlabeled(["B-PER", None], ["O", "O"])
    (['B-PER'], ['O'])
    """
    pairs = [(gold_tag, tag) for gold_tag, tag in zip(gold, predicted, strict=True) if gold_tag is not None]
    return [gold_tag for gold_tag, _ in pairs], [tag for _, tag in pairs]


def find_word_offsets(words: Sequence[str]) -> list[tuple[int, int]]:
    """Return the first and last + 1 character of each word in the words joined by one space.

    >>> find_word_offsets(["a", "bcd"])
    [(0, 1), (2, 5)]
    """
    # Each word is followed by a space, so it ends one character before the sum of the lengths.
    ends = np.cumsum([len(word) + 1 for word in words]) - 1
    return [(int(end) - len(word), int(end)) for end, word in zip(ends, words, strict=True)]


def describe_entities(
    tags: Sequence[str], text: str, offsets: Sequence[tuple[int, int]], probabilities: Sequence[float | None]
) -> list[dict[str, Any]]:
    """Return type, text, characters and probability of each entity of IOB2 tags.

    The probability is the mean probability of the entity's words, or None if no word has a probability.
    """
    entities = []
    spans = find_spans(tags)
    for (_, first, stop), (label, start, end) in zip(spans, locate_spans(spans, offsets), strict=True):
        word_probabilities = [value for value in probabilities[first:stop] if value is not None]
        mean = float(np.mean(word_probabilities)) if word_probabilities else None
        entity = {"type": label, "text": text[start:end], "start": start, "end": end, "probability": mean}
        entities.append(entity)
    return entities


def to_annotations(entities: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Convert the result of `describe_entities` to the keys of annotation tools: start, end, label and score."""
    return [
        {"start": entity["start"], "end": entity["end"], "label": entity["type"], "score": entity["probability"]}
        for entity in entities
    ]


def tag_spans(offsets: Sequence[tuple[int, int]], spans: Iterable[tuple[int, int, str]]) -> list[str]:
    """Convert sorted spans of characters to IOB2 tags of words.

    A word that is partly inside a span gets its tag, so that a model learns the approximate position of the entity. If
    two spans share a word, the first span gets the word.

    Args:
        offsets: First and last + 1 character of each word.
        spans: First and last + 1 character, and label, of each span.

    >>> tag_spans([(0, 3), (4, 8), (8, 9)], [(0, 6, "LOC")])
    ['B-LOC', 'I-LOC', 'O']
    """
    tags, starts, ends = ["O"] * len(offsets), [start for start, _ in offsets], [end for _, end in offsets]
    # First word after the words of earlier spans.
    next_word = 0
    for start, end, label in spans:
        # In the example, the words start at [0, 4, 8] and end at [3, 8, 9]. The first word that ends after character 0
        # is word 0, and the first that starts at or after character 6 is word 2, so words 0 and 1 have the tag.
        first, stop = max(next_word, bisect_right(ends, start)), bisect_left(starts, end)
        if first < stop:
            tags[first:stop] = [f"B-{label}"] + [f"I-{label}"] * (stop - first - 1)
            next_word = stop
    return tags


def locate_spans(spans: Iterable[Span], offsets: Sequence[tuple[int, int]]) -> list[Span]:
    """Convert spans of words to spans of characters, given the first and last + 1 character of each word.

    >>> locate_spans([("LOC", 1, 3)], [(0, 3), (4, 8), (8, 9)])
    [('LOC', 4, 9)]
    """
    return [(label, offsets[first][0], offsets[stop - 1][1]) for label, first, stop in spans]


def format_spans(spans: Iterable[Span], text: str) -> str:
    """Format spans of characters as their texts with their types.

    >>> format_spans([("PER", 0, 12)], "Ada Lovelace wrote"), format_spans([], "a")
    ('Ada Lovelace (PER)', 'none')
    """
    return ", ".join(f"{text[start:end]} ({label})" for label, start, end in spans) or "none"


def count_errors(row_scores: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Count the errors and the decisions of each row; their ratio is 1 - F1 of entities, or 1 - accuracy of tags.

    Each gold and each predicted entity is a decision, so a correct entity counts twice. Each entity that is only gold,
    or only predicted, is an error.

    Args:
        row_scores: Counts from `count_spans`: ``entities`` of shape (rows, types, 3), or else ``tags`` of shape (rows,
            tags, 3).

    Returns:
        Errors and decisions. Shape: (rows,).
    """
    if "entities" in row_scores:
        correct, gold, predicted = row_scores["entities"].sum(axis=1).T
        return gold + predicted - 2 * correct, gold + predicted
    correct, gold, _ = row_scores["tags"].sum(axis=1).T
    return gold - correct, gold


def describe_wrong_words(
    words: Sequence[str], gold: Sequence[str | None], tags: Sequence[str], probabilities: Sequence[float | None]
) -> tuple[str, str, bool, float | None]:
    """Return the wrong words with their gold tags, with their predicted tags, whether no word is wrong, and confidence.

    The confidence is the highest probability of a wrong tag, or None if no wrong tag has a probability.
    """
    entries = zip(words, gold, tags, probabilities, strict=True)
    wrong = [entry for entry in entries if entry[1] not in (None, entry[2])]
    gold_text = " ".join(f"{word}/{gold_tag}" for word, gold_tag, *_ in wrong)
    predicted_text = " ".join(f"{word}/{tag}" for word, _, tag, _ in wrong)
    return gold_text, predicted_text, not wrong, max((value or 0.0 for *_, value in wrong), default=None) or None


def find_labeled_spans(gold: Sequence[str | None], tags: Sequence[str]) -> list[Span]:
    """Return the spans of predicted tags, except spans with a word that has no gold tag.

    >>> find_labeled_spans(["B-PER", None], ["B-LOC", "B-PER"])
    [('LOC', 0, 1)]
    """
    return [span for span in find_spans(tags) if None not in gold[span[1] : span[2]]]


def count_outcomes(gold: Iterable[Span], predicted: Iterable[Span]) -> Counter[str]:
    """Count gold and predicted entities by outcome; each entity counts once, alone or in a pair.

    An incorrect predicted entity is paired with the first unpaired gold entity that it overlaps. The outcome is ``wrong
    type`` if both have the same words, ``wrong boundary`` if both have the same type, otherwise ``wrong both``. Other
    gold entities are ``missed``, and other predicted entities are ``spurious``.

    >>> sorted(count_outcomes([("PER", 0, 2), ("LOC", 5, 6)], [("PER", 0, 1), ("ORG", 8, 9)]).items())
    [('missed', 1), ('spurious', 1), ('wrong boundary', 1)]
    """
    gold_spans, predicted_spans = set(gold), set(predicted)
    correct = gold_spans & predicted_spans
    counts = Counter[str]({"right": len(correct)})
    # Sort by words, because the order of a set of texts differs between processes.
    unpaired = sorted(gold_spans - correct, key=lambda span: span[1:])
    for label, start, end in sorted(predicted_spans - correct, key=lambda span: span[1:]):
        overlapping = [span for span in unpaired if span[1] < end and start < span[2]]
        # Prefer an entity with the same words, then an entity with the same type.
        same_words = [span for span in overlapping if span[1:] == (start, end)]
        candidates = same_words or [span for span in overlapping if span[0] == label] or overlapping
        if not candidates:
            counts["spurious"] += 1
            continue
        partner = candidates[0]
        unpaired.remove(partner)
        if same_words:
            counts["wrong type"] += 1
        else:
            counts["wrong boundary" if partner[0] == label else "wrong both"] += 1
    counts["missed"] = len(unpaired)
    return +counts


def count_spans(pairs: Sequence[tuple[Sequence[Span], Sequence[Span]]], types: Sequence[str]) -> np.ndarray:
    """Count correct, gold and predicted spans, for (gold, predicted) spans of each row. Shape: (rows, types, 3).

    Precision, recall and F1 of resampled rows are sums over this array, so spans are compared only once.
    """
    # One row with the gold spans PER (0, 2) and LOC (4, 5), and the predicted spans PER (0, 2) and LOC (4, 6), has the
    # counts [[[1, 1, 1], [0, 1, 1]]]: the person is correct, and the location has a wrong end.
    counts = np.zeros((len(pairs), len(types), 3), dtype=np.int32)
    columns = {label: index for index, label in enumerate(types)}
    for row, (gold, predicted) in enumerate(pairs):
        for kind, spans in enumerate((set(gold) & set(predicted), gold, predicted)):
            for label, _, _ in spans:
                counts[row, columns[label], kind] += 1
    return counts


def compute_ratios(counts: np.ndarray) -> dict[str, np.ndarray]:
    """Compute precision, recall and F1; the last axis is (correct, gold, predicted) counts. A ratio of 0 / 0 is 0."""
    correct, gold, predicted = np.moveaxis(counts, -1, 0)
    return {
        "precision": correct / np.maximum(predicted, 1),
        "recall": correct / np.maximum(gold, 1),
        "f1": 2 * correct / np.maximum(gold + predicted, 1),
    }


def _ratio(name: str, key: str, counts: RowScores) -> float:
    """Compute precision, recall or F1 over the spans of all rows and types (micro average)."""
    return float(compute_ratios(counts[key].sum(axis=(0, 1)))[name])


def _f1_macro(counts: RowScores) -> float:
    """Return the mean F1 of the types that are gold or predicted, or 0 if no type is."""
    # (types, 3) over all rows
    by_type = counts["entities" if "entities" in counts else "tags"].sum(axis=0)
    occurring = by_type[by_type[:, 1:].any(axis=1)]
    return float(compute_ratios(occurring)["f1"].mean()) if len(occurring) else 0.0


METRICS: Mapping[str, Metric] = {
    **{
        f"{name}{suffix}": Metric(partial(_ratio, name, key), needs="entities")
        for suffix, key in (("", "entities"), ("_strict", "strict"))
        for name in ("f1", "precision", "recall")
    },
    # Each word is a gold span of its tag, so recall over all tags is the fraction of correct words.
    "accuracy": Metric(partial(_ratio, "recall", "tags")),
    "f1_macro": Metric(_f1_macro),
}
"""Name -> metric; all that a recipe can list for tags. A new metric is one entry here.

`compute` takes counts of shape (rows, types, 3) from `count_spans`: ``tags`` (of words) and, for entity tags,
``entities`` and ``strict``. If a recipe lists a metric that needs ``entities``, its tags are read as entity tags.
"""

ENTITY_METRICS = tuple(name for name, metric in METRICS.items() if metric.needs)


def score_types(pairs: Iterable[tuple[Sequence[Span], Sequence[Span]]]) -> list[dict[str, Any]]:
    """Compute precision, recall, F1 and number of gold spans of each type with seqeval, the most frequent type first.

    Args:
        pairs: Gold and predicted spans of each row; neither gold nor predicted spans overlap each other.
    """
    from seqeval.metrics import classification_report

    tag_pairs = [_tag_both(*pair) for pair in pairs if any(pair)]
    if not tag_pairs:
        return []
    report = classification_report(*map(list, zip(*tag_pairs, strict=True)), output_dict=True, zero_division=0)
    table = [
        {
            "type": name,
            "precision": float(scores["precision"]),
            "recall": float(scores["recall"]),
            "f1": float(scores["f1-score"]),
            "gold": int(scores["support"]),
        }
        for name, scores in report.items()
        if name not in _AVERAGES
    ]
    return sorted(table, key=lambda row: (-row["gold"], row["type"]))


_AVERAGES = ("micro avg", "macro avg", "weighted avg")


def _tag_both(gold: Sequence[Span], predicted: Sequence[Span]) -> TagPair:
    """Return the IOB2 tags of gold and predicted spans, over parts of the text that end at each start or end of a span.

    The characters 0, 3, 12, 16 and 22 divide the text into four parts:

    >>> _tag_both([("PER", 0, 12)], [("PER", 0, 3), ("LOC", 16, 22)])
    (['B-PER', 'I-PER', 'O', 'O'], ['B-PER', 'O', 'O', 'B-LOC'])
    """
    # seqeval reads tags of words, but gold spans of characters need not fit words.
    parts = list(pairwise(sorted({position for _, *bounds in (*gold, *predicted) for position in bounds})))
    gold_tags, predicted_tags = (
        tag_spans(parts, sorted((start, end, label) for label, start, end in spans)) for spans in (gold, predicted)
    )
    return gold_tags, predicted_tags


SCHEMES = ("iob2", "iob1", "bioes")

ENTITY = "ENTITY"
"""Type of the tags ``B`` and ``I``, which have no type; seqeval counts them as one type too."""

_SPELLINGS = {r"([BIESLU])[_/: ](.+)": r"\1-\2", r"(.+)[-_/: ]([BIESLU])": r"\2-\1"}
"""Pattern of tags that other tools write -> the tag in IOB2 or BIOES."""


def is_entity_tag(tag: str) -> bool:
    """Return whether a tag is valid in IOB2: ``O``, or ``B-`` or ``I-`` with a type.

    >>> is_entity_tag("O"), is_entity_tag("B-PER"), is_entity_tag("NOUN"), is_entity_tag("I-")
    (True, True, False, False)
    """
    return tag == "O" or (tag[:2] in ("B-", "I-") and len(tag) > 2)


def find_invalid_tag(tags: Sequence[str | None], scheme: str = "iob2") -> int | None:
    """Return the index of the first tag that the scheme does not allow after the previous tag, or None.

    An ``I-``, ``E-`` or ``L-`` must continue an entity of its type. In BIOES, a ``B-`` or ``I-`` must be continued.
    Next to an unlabeled word (None), any tag is allowed.

    >>> find_invalid_tag(["B-PER", "I-LOC"]), find_invalid_tag(["B-X", "O"], "bioes"), find_invalid_tag(["B-X", None])
    (1, 1, None)
    """
    previous_tag: str | None = "O"
    # In BIOES, the last entity must be complete, so check an O after the last tag.
    for index, tag in enumerate([*tags, "O"] if scheme == "bioes" else tags):
        if tag is not None and previous_tag is not None:
            continues = tag[:2] in ("I-", "E-", "L-")
            is_open = previous_tag[:2] in (("B-", "I-") if scheme == "bioes" else ("B-", "I-", "S-", "U-"))
            if continues and not (is_open and previous_tag[2:] == tag[2:]):
                return index
            if scheme == "bioes" and is_open and not continues:
                return min(index, len(tags) - 1)
        previous_tag = tag
    return None


def repair_tags(tags: Sequence[str]) -> list[str]:
    """Make tags valid IOB2 without changing their spans: an ``I-`` without an entity to continue becomes ``B-``.

    >>> repair_tags(["I-PER", "I-PER", "I-LOC", "O"])
    ['B-PER', 'I-PER', 'B-LOC', 'O']
    """
    return [
        f"B-{tag[2:]}" if tag.startswith("I-") and previous_tag[2:] != tag[2:] else tag
        for previous_tag, tag in pairwise(["O", *tags])
    ]


def to_iob2(tags: Sequence[str], scheme: str) -> list[str]:
    """Rewrite tags of a scheme in IOB2.

    In IOB1, an entity starts with ``B-`` only if it follows an entity of the same type, otherwise with ``I-``. BIOES
    (or BILOU) has other prefixes for last words (``E-``, ``L-``) and single words (``S-``, ``U-``).

    >>> to_iob2(["I-PER", "I-PER", "B-PER", "O"], "iob1"), to_iob2(["B-X", "E-X", "S-X"], "bioes")
    (['B-PER', 'I-PER', 'B-PER', 'O'], ['B-X', 'I-X', 'B-X'])
    """
    if scheme == "iob1":
        return repair_tags(tags)
    if scheme == "bioes":
        prefixes = {"S": "B", "U": "B", "E": "I", "L": "I"}
        return [tag if tag == "O" else prefixes.get(tag[0], tag[0]) + tag[1:] for tag in tags]
    return list(tags)


def normalize_tags(tags: Sequence[str | None], words: Sequence[str], scheme: str) -> list[str | None]:
    """Check the tags of a text, and rewrite entity tags in IOB2; None (an unlabeled word) stays None.

    Args:
        tags: One tag per word.
        words: Words, for messages.
        scheme: One of SCHEMES, ``none`` for tags that are not entity tags, or ``auto``: IOB2 if all tags exist in IOB2,
            otherwise ``none``.

    Raises:
        DataError: If the scheme does not allow a tag; the message names the word.
    """
    if scheme == "none":
        return list(tags)
    if scheme != "auto":
        tags = [f"{tag}-{ENTITY}" if tag and len(tag) == 1 and tag in "BIESLU" else tag for tag in tags]
    for i, tag in enumerate(tags):
        if error := _find_tag_error(tag or "O", scheme):
            raise DataError(f"word {i + 1} {words[i]!r}: the tag {tag!r} {error[0]}", error[1], column="tags")
    filled_tags = [tag or "O" for tag in tags]
    if scheme == "auto" and not all(map(is_entity_tag, filled_tags)):
        return list(tags)
    index = None if scheme == "iob1" else find_invalid_tag(tags, scheme)
    if index is not None:
        context = f"after {filled_tags[index - 1]}" if index else "at the beginning"
        if scheme == "bioes" and index == len(tags) - 1 and filled_tags[-1][0] in "BI":
            context = "at the end"
        problem = f"word {index + 1} {words[index]!r}: {filled_tags[index]} {context}"
        name, remedy = "IOB2", "add --set options.scheme=iob1"
        if scheme == "bioes":
            name, remedy = "BIOES", "correct it, or --set options.scheme=iob2 if the tags are IOB2"
        raise DataError(f"{problem} is not {name}", remedy, column="tags")
    return [None if tag is None else new for tag, new in zip(tags, to_iob2(filled_tags, scheme), strict=True)]


def decode_viterbi(probabilities: np.ndarray, labels: Sequence[str]) -> list[int]:
    """Return the label ids of the most probable sequence of tags that is valid IOB2 (Viterbi 1967).

    Args:
        probabilities: Probabilities of the labels. Shape: (words, labels).
        labels: Label names; if all labels start with ``I-``, the first word can have any of them.

    The most probable tags of the single words are ``I-PER I-PER``, which is not valid. The most probable valid sequence
    is ``B-PER I-PER``, with the probability 0.3 * 0.7:

    >>> decode_viterbi(np.array([[0.3, 0.3, 0.4], [0.2, 0.1, 0.7]]), ["O", "B-PER", "I-PER"])
    [1, 2]
    """
    if not len(probabilities):
        return []
    starts, transitions = _transitions(tuple(labels))
    with np.errstate(divide="ignore"):
        log_probabilities = np.log(probabilities)
    # total[j] is the highest log probability of a valid sequence that ends in label j at the current word, and
    # previous_labels[word][j] is the label before j in this sequence.
    total = log_probabilities[0] + starts
    previous_labels = []
    for word_scores in log_probabilities[1:]:
        sequences = total[:, None] + transitions
        previous_labels.append(sequences.argmax(axis=0))
        total = sequences.max(axis=0) + word_scores
    # In the example, the totals are [0.3, 0.3, 0] after the first word and [0.06, 0.03, 0.21] after the second (as
    # probabilities), and the previous labels of the second word are [0, 0, 1]. The sequence ends in label 2, after 1.
    label_ids = [int(total.argmax())]
    for previous in reversed(previous_labels):
        label_ids.append(int(previous[label_ids[-1]]))
    return label_ids[::-1]


@functools.cache
def _transitions(labels: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return log weights, 0 or -inf: whether a label can start a text, and whether it can follow another label.

    Shapes: (labels,) and (previous labels, labels).
    """
    # An I- can only follow tags of its type. The last comparison excludes O, whose type is empty.
    can_start = [not label.startswith("I-") for label in labels]
    can_follow = [[not new.startswith("I-") or old[2:] == new[2:] != "" for new in labels] for old in labels]
    starts = np.where(np.array(can_start) | (not any(can_start)), 0.0, -np.inf)
    return starts, np.where(np.array(can_follow), 0.0, -np.inf)


def _find_tag_error(tag: str, scheme: str) -> tuple[str, str] | None:
    """Return the problem of a single tag and its remedy, or None if the scheme has the tag."""
    if len(tag) == 2 and tag[1] == "-" and tag[0] in "BIESLU":
        return "has no type", "correct the row"
    if scheme != "bioes" and tag[:2] in ("E-", "S-", "L-", "U-"):
        name = "IOB2" if scheme == "auto" else scheme.upper()
        return f"is not {name}", "add --set options.scheme=bioes if they are BIOES"
    if scheme != "auto" and not is_entity_tag(*to_iob2([tag], scheme)):
        if tag.isdigit():
            return "is a number", "name the tags in the order of their numbers: --set 'labels=[O, B-PER, I-PER]'"
        matches = ((re.fullmatch(pattern, tag), form) for pattern, form in _SPELLINGS.items())
        if correct_tag := next((match.expand(form) for match, form in matches if match), ""):
            return "is not an entity tag", f"write {correct_tag}: the prefix belongs before the type"
        remedy = "if these are not entity tags, --set options.scheme=none --set metrics=[accuracy,f1_macro]"
        return "is not an entity tag", remedy
    return None
