"""Entity tags: schemes, spans, counts and metrics.

Inside bertkit all entity tags are IOB2: ``B-`` begins an entity, ``I-`` continues it, ``O`` is outside (Ramshaw &
Marcus 1995; Tjong Kim Sang & Veenstra 1999). IOB1 and BIOES are rewritten. A span is (type, first word, last word + 1),
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

OUTCOMES = ("right", "wrong type", "wrong boundary", "wrong both", "missed", "spurious")


def find_spans(tags: Sequence[str]) -> list[Span]:
    """Find the entities of IOB2 tags as conlleval and seqeval do: an ``I-`` that continues no entity begins one.

    >>> find_spans(["B-PER", "I-PER", "O", "I-LOC", "B-LOC"])
    [('PER', 0, 2), ('LOC', 3, 4), ('LOC', 4, 5)]
    """
    spans: list[Span] = []
    for word, tag in enumerate(tags):
        entity_type = tag[2:]
        if tag == "O":
            continue
        if tag[0] == "I" and spans and spans[-1][0] == entity_type and spans[-1][2] == word:
            spans[-1] = (entity_type, spans[-1][1], word + 1)
        else:
            spans.append((entity_type, word, word + 1))
    return spans


def find_strict_spans(tags: Sequence[str]) -> list[Span]:
    """Find only the entities that begin with ``B-``, as IOB2 requires and seqeval's strict mode does.

    >>> find_strict_spans(["B-PER", "I-PER", "O", "I-LOC", "B-LOC"])
    [('PER', 0, 2), ('LOC', 4, 5)]
    """
    return [(entity_type, start, end) for entity_type, start, end in find_spans(tags) if tags[start][0] == "B"]


def list_entity_types(labels: Sequence[str]) -> list[str]:
    """List the types of the entity tags among labels.

    >>> list_entity_types(["O", "B-PER", "I-PER", "B-LOC"])
    ['PER', 'LOC']
    """
    return list(dict.fromkeys(label[2:] for label in labels if label != "O"))


def count_tags(rows: Iterable[Mapping[str, Any]], labels: Sequence[str]) -> tuple[int, dict[str, int]]:
    """Find the most frequent tag, overall and per word, in rows of words, ``tokens``, and ``tags``, as label ids.

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
    """Return every word as a separate span, so that tags which mark no entities are counted in the same way.

    >>> find_word_spans(["DET", "NOUN"])
    [('DET', 0, 1), ('NOUN', 1, 2)]
    """
    return [(tag, word, word + 1) for word, tag in enumerate(tags)]


def drop_unlabeled(gold: Sequence[str | None], predicted: Sequence[str]) -> TagPair:
    """Return gold and predicted tags of the labeled words, whose gold tag is not None.

    >>> drop_unlabeled(["B-PER", None], ["O", "O"])
    (['B-PER'], ['O'])
    """
    pairs = [(gold_tag, tag) for gold_tag, tag in zip(gold, predicted, strict=True) if gold_tag is not None]
    return [gold_tag for gold_tag, _ in pairs], [tag for _, tag in pairs]


def find_word_offsets(words: Sequence[str]) -> list[tuple[int, int]]:
    """Return the first and last + 1 character of each word in the text that joins them by one space.

    >>> find_word_offsets(["a", "bcd"])
    [(0, 1), (2, 5)]
    """
    # Count every word with the space after it; the word itself ends one character earlier.
    ends = np.cumsum([len(word) + 1 for word in words]) - 1
    return [(int(end) - len(word), int(end)) for end, word in zip(ends, words, strict=True)]


def describe_entities(
    tags: Sequence[str], text: str, offsets: Sequence[tuple[int, int]], probabilities: Sequence[float | None]
) -> list[dict[str, Any]]:
    """Return type, text, characters and probability of each entity of IOB2 tags.

    The probability is the mean of its words' probabilities, or None if no word has one.
    """
    entities = []
    spans = find_spans(tags)
    for (_, first, last), (entity_type, start, end) in zip(spans, locate_spans(spans, offsets), strict=True):
        word_probabilities = [value for value in probabilities[first:last] if value is not None]
        mean = float(np.mean(word_probabilities)) if word_probabilities else None
        entity = {"type": entity_type, "text": text[start:end], "start": start, "end": end, "probability": mean}
        entities.append(entity)
    return entities


def to_annotations(described: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return described entities as annotation tools read them: start, end, label and score of each."""
    return [
        {"start": entity["start"], "end": entity["end"], "label": entity["type"], "score": entity["probability"]}
        for entity in described
    ]


def tag_spans(words: Sequence[tuple[int, int]], spans: Iterable[tuple[int, int, str]]) -> list[str]:
    """Return the IOB2 tags of words for spans of a text; both are characters, in order.

    A word that is partly inside a span has its tag, so that a model learns about where the entity is. If two spans
    share a word, the first one has it.

    >>> tag_spans([(0, 3), (4, 8), (8, 9)], [(0, 6, "LOC")])
    ['B-LOC', 'I-LOC', 'O']
    """
    tags, starts, ends = (["O"] * len(words), *([word[side] for word in words] for side in (0, 1)))
    free = 0  # The first word that no earlier span has.
    for start, end, label in spans:
        # In the example, the words start at [0, 4, 8] and end at [3, 8, 9]. The first word that ends after character 0
        # is word 0, and the first that starts at or after character 6 is word 2, so words 0 and 1 have the tag.
        first, last = max(free, bisect_right(ends, start)), bisect_left(starts, end)
        if first < last:
            tags[first:last] = [f"B-{label}"] + [f"I-{label}"] * (last - first - 1)
            free = last
    return tags


def locate_spans(spans: Iterable[Span], offsets: Sequence[tuple[int, int]]) -> list[Span]:
    """Return spans of words as spans of characters, given the first and last + 1 character of each word.

    >>> locate_spans([("LOC", 1, 3)], [(0, 3), (4, 8), (8, 9)])
    [('LOC', 4, 9)]
    """
    return [(entity_type, offsets[first][0], offsets[last - 1][1]) for entity_type, first, last in spans]


def format_spans(spans: Iterable[Span], text: str) -> str:
    """Write spans of characters as text, each with its type.

    >>> format_spans([("PER", 0, 12)], "Ada Lovelace wrote"), format_spans([], "a")
    ('Ada Lovelace (PER)', 'none')
    """
    return ", ".join(f"{text[start:end]} ({entity_type})" for entity_type, start, end in spans) or "none"


def count_errors(row_scores: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Count the errors and the decisions of each row; the fraction of errors is 1 - F1 of entities, or 1 - accuracy.

    The decisions about entities are the gold and the predicted entities; each that is not both is an error.

    Args:
        row_scores: ``entities`` (rows, types, 3), or else ``tags`` (rows, tags, 3): what is right, gold and predicted.
    """
    if "entities" in row_scores:
        right, gold, predicted = row_scores["entities"].sum(axis=1).T
        return gold + predicted - 2 * right, gold + predicted
    right, gold, _ = row_scores["tags"].sum(axis=1).T
    return gold - right, gold


def describe_wrong_words(
    words: Sequence[str], gold: Sequence[str | None], tags: Sequence[str], probabilities: Sequence[float | None]
) -> tuple[str, str, bool, float | None]:
    """Return wrongly tagged words with gold and with predicted tags, whether all tags are right, and the confidence.

    The confidence is the highest probability of a wrong tag, or None if no probability is known.
    """
    tagged = zip(words, gold, tags, probabilities, strict=True)
    wrong = [(word, right, tag, value or 0.0) for word, right, tag, value in tagged if right not in (None, tag)]
    with_gold, with_tags = (" ".join(f"{entry[0]}/{entry[side]}" for entry in wrong) for side in (1, 2))
    return with_gold, with_tags, not wrong, max((entry[3] for entry in wrong), default=None) or None


def find_labeled_spans(gold: Sequence[str | None], tags: Sequence[str]) -> list[Span]:
    """Return the spans of predicted tags without those that have a word without a gold tag.

    >>> find_labeled_spans(["B-PER", None], ["B-LOC", "B-PER"])
    [('LOC', 0, 1)]
    """
    return [span for span in find_spans(tags) if None not in gold[span[1] : span[2]]]


def count_outcomes(gold: Iterable[Span], predicted: Iterable[Span]) -> Counter[str]:
    """Count entities by outcome; every gold and every predicted one counts once.

    A predicted entity that is not right is paired with the first unpaired gold one that it overlaps: ``wrong type``
    has its words, ``wrong boundary`` its type, ``wrong both`` neither. Unpaired gold entities are ``missed``, unpaired
    predicted ones ``spurious``.

    >>> sorted(count_outcomes([("PER", 0, 2), ("LOC", 5, 6)], [("PER", 0, 1), ("ORG", 8, 9)]).items())
    [('missed', 1), ('spurious', 1), ('wrong boundary', 1)]
    """
    gold_spans, predicted_spans = set(gold), set(predicted)
    right = gold_spans & predicted_spans
    counts: Counter[str] = Counter()
    # Sort by words, because the order of a set of texts differs between processes. Among overlapping gold entities,
    # an entity with the same words comes first, then one with the same type.
    unpaired = sorted(gold_spans - right, key=lambda span: span[1:])
    if right:
        counts["right"] = len(right)
    for entity_type, start, end in sorted(predicted_spans - right, key=lambda span: span[1:]):
        overlapping = [span for span in unpaired if span[1] < end and start < span[2]]
        same_words = [span for span in overlapping if span[1:] == (start, end)]
        candidates = same_words or [span for span in overlapping if span[0] == entity_type] or overlapping
        if not candidates:
            counts["spurious"] += 1
            continue
        partner = candidates[0]
        unpaired.remove(partner)
        if partner[1:] == (start, end):
            counts["wrong type"] += 1
        else:
            counts["wrong boundary" if partner[0] == entity_type else "wrong both"] += 1
    if unpaired:
        counts["missed"] = len(unpaired)
    return counts


def count_spans(pairs: Sequence[tuple[Sequence[Span], Sequence[Span]]], types: Sequence[str]) -> np.ndarray:
    """Count right, gold and predicted spans of each type, shape (rows, types, 3), for pairs of (gold, predicted).

    Precision, recall and F1 of resampled rows are then sums over this array: no span is compared twice.
    """
    # One row with the gold spans PER (0, 2) and LOC (4, 5), and the predicted spans PER (0, 2) and LOC (4, 6), has
    # [[[1, 1, 1], [0, 1, 1]]]: the person is right, and the location has the wrong end.
    counts = np.zeros((len(pairs), len(types), 3), dtype=np.int32)
    indexes = {entity_type: index for index, entity_type in enumerate(types)}
    for row, (gold, predicted) in enumerate(pairs):
        for column, spans in enumerate((set(gold) & set(predicted), gold, predicted)):
            for entity_type, _, _ in spans:
                counts[row, indexes[entity_type], column] += 1
    return counts


def compute_ratios(counts: np.ndarray) -> dict[str, np.ndarray]:
    """Compute precision, recall and F1 of (right, gold, predicted) in the last axis; 0 where undefined."""
    right, gold, predicted = np.moveaxis(counts, -1, 0)
    return {
        "precision": right / np.maximum(predicted, 1),
        "recall": right / np.maximum(gold, 1),
        "f1": 2 * right / np.maximum(gold + predicted, 1),
    }


def _ratio(name: str, key: str, counts: RowScores) -> float:
    """Compute precision, recall or F1 over the spans of all rows and types."""
    return float(compute_ratios(counts[key].sum(axis=(0, 1)))[name])


def _f1_macro(counts: RowScores) -> float:
    # (types, 3) over all rows. A type that is neither gold nor predicted has no F1, and as 0 it would lower the mean.
    by_type = counts["entities" if "entities" in counts else "tags"].sum(axis=0)
    occurring = by_type[by_type[:, 1:].any(axis=1)]
    return float(compute_ratios(occurring)["f1"].mean()) if len(occurring) else 0.0


METRICS: Mapping[str, Metric] = {
    **{
        f"{name}{suffix}": Metric(partial(_ratio, name, key), needs="entities")
        for suffix, key in (("", "entities"), ("_strict", "strict"))
        for name in ("f1", "precision", "recall")
    },
    # Every word is a separate span here, so recall over all tags is the fraction of right words.
    "accuracy": Metric(partial(_ratio, "recall", "tags")),
    "f1_macro": Metric(_f1_macro),
}
"""Name -> metric; all that a recipe can list for tags. A new metric is one entry here.

`compute` takes counts of shape (rows, types, 3), as `count_spans` makes them: ``tags`` (of words) and, for entity tags,
``entities`` and ``strict``. A metric that needs ``entities`` makes tags entity tags.
"""

ENTITY_METRICS = tuple(name for name, metric in METRICS.items() if metric.needs)


def score_types(pairs: Iterable[tuple[Sequence[Span], Sequence[Span]]]) -> list[dict[str, Any]]:
    """Compute precision, recall, F1 and number of each type with seqeval, the most frequent type first.

    Args:
        pairs: Gold and predicted spans of each row, which do not overlap on either side.
    """
    from seqeval.metrics import classification_report

    tagged = [_tag_both(*pair) for pair in pairs if any(pair)]
    if not tagged:
        return []
    report = classification_report(*map(list, zip(*tagged, strict=True)), output_dict=True, zero_division=0)
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
    """Return IOB2 tags of gold and predicted spans over the parts into which both of them cut a text.

    The characters 0, 3, 12, 16 and 22 cut the text into four parts:

    >>> _tag_both([("PER", 0, 12)], [("PER", 0, 3), ("LOC", 16, 22)])
    (['B-PER', 'I-PER', 'O', 'O'], ['B-PER', 'O', 'O', 'B-LOC'])
    """
    # seqeval takes tags of words, but gold spans of characters need not fit the words.
    cuts = sorted({end for _, *ends in (*gold, *predicted) for end in ends})
    parts = list(pairwise(cuts))
    gold_tags, predicted_tags = (
        tag_spans(parts, sorted((start, end, label) for label, start, end in spans)) for spans in (gold, predicted)
    )
    return gold_tags, predicted_tags


SCHEMES = ("iob2", "iob1", "bioes")

ENTITY = "ENTITY"
"""Type of the tags ``B`` and ``I``, which name none; seqeval counts them as one type too."""

_SPELLINGS = {r"([BIESLU])[_/: ](.+)": r"\1-\2", r"(.+)[-_/: ]([BIESLU])": r"\2-\1"}
"""Pattern of tags that other tools write -> the tag of IOB2 or BIOES."""


def is_entity_tag(tag: str) -> bool:
    """Return whether a tag is ``O`` or a prefix of IOB2 with a type.

    >>> is_entity_tag("O"), is_entity_tag("B-PER"), is_entity_tag("NOUN"), is_entity_tag("I-")
    (True, True, False, False)
    """
    return tag == "O" or (tag[:2] in ("B-", "I-") and len(tag) > 2)


def find_invalid_tag(tags: Sequence[str | None], scheme: str = "iob2") -> int | None:
    """Return the index of the first tag that the scheme does not allow after the tag before it, or None.

    An ``I-`` (``E-``, ``L-``) must continue an entity of its type, and in BIOES a ``B-`` or ``I-`` must be continued.
    Before and after an unlabeled word (None) any tag is allowed.

    >>> find_invalid_tag(["B-PER", "I-LOC"]), find_invalid_tag(["B-X", "O"], "bioes"), find_invalid_tag(["B-X", None])
    (1, 1, None)
    """
    before: str | None = "O"
    # In BIOES an entity must be closed at the end, which an O after the last tag checks.
    for index, tag in enumerate([*tags, "O"] if scheme == "bioes" else tags):
        if tag is not None and before is not None:
            continues = tag[:2] in ("I-", "E-", "L-")
            is_open = before[:2] in (("B-", "I-") if scheme == "bioes" else ("B-", "I-", "S-", "U-"))
            if continues and not (is_open and before[2:] == tag[2:]):
                return index
            if scheme == "bioes" and is_open and not continues:
                return min(index, len(tags) - 1)
        before = tag
    return None


def repair_tags(tags: Sequence[str]) -> list[str]:
    """Make tags valid IOB2: an ``I-`` that continues no entity begins one. The spans stay the same.

    >>> repair_tags(["I-PER", "I-PER", "I-LOC", "O"])
    ['B-PER', 'I-PER', 'B-LOC', 'O']
    """
    repaired: list[str] = []
    for tag in tags:
        before = repaired[-1] if repaired else "O"
        repaired.append(f"B-{tag[2:]}" if tag.startswith("I-") and before[2:] != tag[2:] else tag)
    return repaired


def to_iob2(tags: Sequence[str], scheme: str) -> list[str]:
    """Rewrite tags of any of the SCHEMES in IOB2.

    IOB1 begins an entity with ``B-`` only if it touches another of its type. BIOES (or BILOU) also marks last
    (``E-``, ``L-``) and single (``S-``, ``U-``) words.

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
    """Check the tags of a text and rewrite entity tags in IOB2; None (an unlabeled word) stays None.

    Args:
        tags: Tags, one per word.
        words: Words, for messages.
        scheme: One of SCHEMES, ``none`` for tags that mark no entities, or ``auto``: IOB2 if all tags look like it.

    Raises:
        DataError: If the scheme does not allow a tag; the word is named.
    """
    if scheme == "none":
        return list(tags)
    if scheme != "auto":
        tags = [f"{tag}-{ENTITY}" if tag and len(tag) == 1 and tag in "BIESLU" else tag for tag in tags]
    for index, tag in enumerate(tags):
        fault = _find_fault(tag or "O", scheme)
        if fault:
            raise DataError(f"word {index + 1} {words[index]!r}: the tag {tag!r} {fault[0]}", fault[1], column="tags")
    filled_tags = [tag or "O" for tag in tags]
    if scheme == "auto" and not all(map(is_entity_tag, filled_tags)):
        return list(tags)
    invalid = None if scheme == "iob1" else find_invalid_tag(tags, scheme)
    if invalid is not None:
        position = f"after {filled_tags[invalid - 1]}" if invalid else "at the beginning"
        if scheme == "bioes" and invalid == len(tags) - 1 and filled_tags[-1][0] in "BI":
            position = "at the end"
        fault_text = f"word {invalid + 1} {words[invalid]!r}: {filled_tags[invalid]} {position}"
        name, remedy = ("IOB2", "--set options.scheme=iob1 reads such tags")
        if scheme == "bioes":
            name, remedy = "BIOES", "correct it, or --set options.scheme=iob2 if that is what the tags are"
        raise DataError(f"{fault_text} is not {name}", remedy, column="tags")
    return [None if tag is None else new for tag, new in zip(tags, to_iob2(filled_tags, scheme), strict=True)]


def decode_viterbi(probabilities: np.ndarray, labels: Sequence[str]) -> list[int]:
    """Return the label ids of the most probable sequence of tags that is valid IOB2 (Viterbi 1967).

    Args:
        probabilities: Probabilities of the labels, (words, labels).
        labels: Label names; without ``O`` or a ``B-`` among them the first word may have any.

    The best tag of each word separately would be ``I-PER`` twice, which is not valid. The best valid path is ``B-PER
    I-PER``, with the probability 0.3 * 0.7:

    >>> decode_viterbi(np.array([[0.3, 0.3, 0.4], [0.2, 0.1, 0.7]]), ["O", "B-PER", "I-PER"])
    [1, 2]
    """
    if not len(probabilities):
        return []
    starts, transitions = _transitions(tuple(labels))
    with np.errstate(divide="ignore"):
        log_probabilities = np.log(probabilities)
    # total[j] is the best log probability of a valid sequence so far that ends in label j; origins[word][j] is the
    # label before it on that path. Each word costs one (labels, labels) sum instead of a search over all sequences.
    total = log_probabilities[0] + starts
    origins = []
    for word_scores in log_probabilities[1:]:
        paths = total[:, None] + transitions
        origins.append(paths.argmax(axis=0))
        total = paths.max(axis=0) + word_scores
    # In the example, the totals are [0.3, 0.3, 0] after the first word and [0.06, 0.03, 0.21] after the second (as
    # probabilities), and the origins of the second word are [0, 0, 1]. So the path ends in label 2, which came from 1.
    path = [int(total.argmax())]
    for origin in reversed(origins):
        path.append(int(origin[path[-1]]))
    return path[::-1]


@functools.cache
def _transitions(labels: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return 0 if a label may start a text, shape (labels,), or follow another, (before, after), else -inf."""
    # An I- only follows tags of its type. The type of O is the empty text, which the last comparison excludes.
    begins = [not label.startswith("I-") for label in labels]
    follows = [[not new.startswith("I-") or old[2:] == new[2:] != "" for new in labels] for old in labels]
    starts = np.where(np.array(begins) | (not any(begins)), 0.0, -np.inf)
    return starts, np.where(np.array(follows), 0.0, -np.inf)


def _find_fault(tag: str, scheme: str) -> tuple[str, str] | None:
    """Return the fault of a tag without its context, and the remedy, or None."""
    if len(tag) == 2 and tag[1] == "-" and tag[0] in "BIESLU":
        return "has no type", "correct the row"
    if scheme != "bioes" and tag[:2] in ("E-", "S-", "L-", "U-"):
        name = "IOB2" if scheme == "auto" else scheme.upper()
        return f"is not {name}", "--set options.scheme=bioes if they are BIOES"
    if scheme != "auto" and not is_entity_tag(*to_iob2([tag], scheme)):
        if tag.isdigit():
            return "is a number", "name the tags in the order of their numbers: --set 'labels=[O, B-PER, I-PER]'"
        matches = ((re.fullmatch(pattern, tag), form) for pattern, form in _SPELLINGS.items())
        if spelled := next((match.expand(form) for match, form in matches if match), ""):
            return "is not an entity tag", f"write {spelled}: the prefix belongs before the type"
        remedy = "for tags that mark no entities --set options.scheme=none --set metrics=[accuracy,f1_macro]"
        return "is not an entity tag", remedy
    return None
