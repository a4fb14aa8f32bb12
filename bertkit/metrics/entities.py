"""Named entities as tags: schemes, repair, spans, and what is wrong with those that are not right.

A span is (type, first word, last word + 1). Inside bertkit all tags are IOB2: ``B-`` begins an entity, ``I-`` goes
on with one, ``O`` is outside (Ramshaw & Marcus 1995; Tjong Kim Sang & Veenstra 1999).
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bertkit.errors import DataError

Counts = np.ndarray[Any, Any]
Span = tuple[str, int, int]

SCHEMES = ("iob2", "iob1", "bioes")
ERRORS = ("right", "wrong type", "wrong boundary", "wrong both", "missed", "invented")


def is_entity_tag(tag: str) -> bool:
    """Tell whether a tag is ``O`` or a prefix of IOB2 with a type.

    >>> is_entity_tag("O"), is_entity_tag("B-PER"), is_entity_tag("NOUN"), is_entity_tag("I-")
    (True, True, False, False)
    """
    return tag == "O" or (tag[:2] in ("B-", "I-") and len(tag) > 2)


def find_spans(tags: Sequence[str]) -> list[Span]:
    """Find the entities of IOB2 tags as conlleval and seqeval do: an ``I-`` that nothing precedes begins one.

    >>> find_spans(["B-PER", "I-PER", "O", "I-LOC", "B-LOC"])
    [('PER', 0, 2), ('LOC', 3, 4), ('LOC', 4, 5)]
    """
    spans: list[Span] = []
    for place, tag in enumerate(tags):
        kind = tag[2:]
        if tag == "O":
            continue
        if tag[0] == "I" and spans and spans[-1][0] == kind and spans[-1][2] == place:
            spans[-1] = (kind, spans[-1][1], place + 1)
        else:
            spans.append((kind, place, place + 1))
    return spans


def find_strict_spans(tags: Sequence[str]) -> list[Span]:
    """Find only the entities that are written as IOB2 wants: begun by ``B-``, as seqeval's strict mode does.

    >>> find_strict_spans(["B-PER", "I-PER", "O", "I-LOC", "B-LOC"])
    [('PER', 0, 2), ('LOC', 4, 5)]
    """
    return [(kind, start, end) for kind, start, end in find_spans(tags) if tags[start][0] == "B"]


def leave_out_unknown(gold: Sequence[str | None], found: Sequence[str]) -> tuple[list[str], list[str]]:
    """Give the tags of the words whose gold tag is known."""
    pairs = [(one, other) for one, other in zip(gold, found, strict=True) if one is not None]
    return [one for one, _ in pairs], [other for _, other in pairs]


def word_spans(tags: Sequence[str]) -> list[Span]:
    """Take every word for a span of its own, which serves to count tags that are no entities.

    >>> word_spans(["DET", "NOUN"])
    [('DET', 0, 1), ('NOUN', 1, 2)]
    """
    return [(tag, place, place + 1) for place, tag in enumerate(tags)]


def describe(
    tags: Sequence[str], text: str, offsets: Sequence[tuple[int, int]], chances: Sequence[float | None]
) -> list[dict[str, Any]]:
    """Give the entities of IOB2 tags with their characters in the text, and the mean probability of their words."""
    described = []
    for kind, first, last in find_spans(tags):
        start, end = offsets[first][0], offsets[last - 1][1]
        known = [chance for chance in chances[first:last] if chance is not None]
        mean = float(np.mean(known)) if known else None
        described.append({"type": kind, "text": text[start:end], "start": start, "end": end, "probability": mean})
    return described


def first_fault(tags: Sequence[str | None], scheme: str = "iob2") -> int | None:
    """Give the place of the first tag that may not stand where it does, None in valid tags.

    An ``I-`` (``E-``, ``L-``) has to go on with an entity of its type, and in BIOES a ``B-`` or ``I-`` has to be gone
    on with. Beside an unknown tag (None) all may stand.
    """
    before: str | None = "O"
    for place, tag in enumerate([*tags, "O"] if scheme == "bioes" else tags):
        if tag is not None and before is not None:
            goes_on = tag[:2] in ("I-", "E-", "L-")
            is_open = before[:2] in (("B-", "I-") if scheme == "bioes" else ("B-", "I-", "S-", "U-"))
            if goes_on and not (is_open and before[2:] == tag[2:]):
                return place
            if scheme == "bioes" and is_open and not goes_on:
                return min(place, len(tags) - 1)
        before = tag
    return None


def repair(tags: Sequence[str]) -> list[str]:
    """Make valid IOB2: an ``I-`` that does not go on with an entity begins one. Spans stay what they were.

    >>> repair(["I-PER", "I-PER", "I-LOC", "O"])
    ['B-PER', 'I-PER', 'B-LOC', 'O']
    """
    repaired: list[str] = []
    for tag in tags:
        before = repaired[-1] if repaired else "O"
        repaired.append(f"B-{tag[2:]}" if tag.startswith("I-") and before[2:] != tag[2:] else tag)
    return repaired


def to_iob2(tags: Sequence[str], scheme: str) -> list[str]:
    """Rewrite tags of one of the SCHEMES in IOB2.

    IOB1 begins an entity by ``B-`` only where it touches another of its type. BIOES (or BILOU) also marks last
    (``E-``, ``L-``) and single (``S-``, ``U-``) words.

    >>> to_iob2(["I-PER", "I-PER", "B-PER", "O"], "iob1"), to_iob2(["B-X", "E-X", "S-X"], "bioes")
    (['B-PER', 'I-PER', 'B-PER', 'O'], ['B-X', 'I-X', 'B-X'])
    """
    if scheme == "iob1":
        return repair(tags)
    if scheme == "bioes":
        prefixes = {"S": "B", "U": "B", "E": "I", "L": "I"}
        return [tag if tag == "O" else prefixes.get(tag[0], tag[0]) + tag[1:] for tag in tags]
    return list(tags)


def sort_errors(gold: Iterable[Span], predicted: Iterable[Span]) -> Counter[str]:
    """Count entities by what became of them; every gold and every predicted one counts once.

    A predicted entity that is not right is set against the first gold one that it overlaps and that is still free:
    ``wrong type`` has its words, ``wrong boundary`` its type, ``wrong both`` neither. Gold entities left over are
    ``missed``, predicted ones ``invented``.

    >>> sorted(sort_errors([("PER", 0, 2), ("LOC", 5, 6)], [("PER", 0, 1), ("ORG", 8, 9)]).items())
    [('invented', 1), ('missed', 1), ('wrong boundary', 1)]
    """
    found, wanted = set(predicted), set(gold)
    counts: Counter[str] = Counter()
    right = found & wanted
    free = sorted(wanted - right, key=lambda span: span[1:])
    if right:
        counts["right"] = len(right)
    for kind, start, end in sorted(found - right, key=lambda span: span[1:]):
        touched = [span for span in free if span[1] < end and start < span[2]]
        same = [span for span in touched if span[1:] == (start, end)] or [s for s in touched if s[0] == kind] or touched
        if not same:
            counts["invented"] += 1
            continue
        other = same[0]
        free.remove(other)
        if other[1:] == (start, end):
            counts["wrong type"] += 1
        else:
            counts["wrong boundary" if other[0] == kind else "wrong both"] += 1
    if free:
        counts["missed"] = len(free)
    return counts


def read_tags(tags: Sequence[str | None], words: Sequence[str], scheme: str) -> list[str | None]:
    """Check the tags of a text and give entity tags as IOB2; None (no tag known) stays.

    Args:
        tags: one a word.
        words: to name one in a message.
        scheme: one of SCHEMES, ``none`` for tags that are no entities, or ``auto``: IOB2 where all tags look like it.

    Raises:
        DataError: a tag that breaks the scheme; the word is named.
    """
    if scheme == "none":
        return list(tags)
    for place, tag in enumerate(tags):
        fault = _fault_of(tag or "O", scheme)
        if fault:
            raise DataError(f"word {place + 1} {words[place]!r}: the tag {tag!r} {fault[0]}", fault[1], column="tags")
    known = [tag or "O" for tag in tags]
    if scheme == "auto" and not all(map(is_entity_tag, known)):
        return list(tags)
    place_of_fault = None if scheme == "iob1" else first_fault(tags, scheme)
    if place_of_fault is not None:
        before = f"after {known[place_of_fault - 1]}" if place_of_fault else "at the beginning"
        if scheme == "bioes" and place_of_fault == len(tags) - 1 and known[-1][0] in "BI":
            before = "at the end"
        what = f"word {place_of_fault + 1} {words[place_of_fault]!r}: {known[place_of_fault]} {before}"
        name, remedy = ("IOB2", "--set options.scheme=iob1 reads such tags")
        if scheme == "bioes":
            name, remedy = "BIOES", "correct it, or --set options.scheme=iob2 if that is what the tags are"
        raise DataError(f"{what} is not {name}", remedy, column="tags")
    found = to_iob2(known, scheme)
    return [None if tag is None else new for tag, new in zip(tags, found, strict=True)]


def most_probable_valid(chances: Counts, labels: Sequence[str]) -> list[int]:
    """Give the numbers of the most probable tags of which none breaks IOB2 (Viterbi 1967).

    Args:
        chances: probabilities of shape (words, labels).
        labels: their names; without ``O`` or a ``B-`` among them the first word may be any.
    """
    if not len(chances):
        return []
    starts, follows = _transitions(tuple(labels))
    with np.errstate(divide="ignore"):
        logs = np.log(chances)
    total = logs[0] + starts
    origins = []
    for word in logs[1:]:
        ways = total[:, None] + follows
        origins.append(ways.argmax(axis=0))
        total = ways.max(axis=0) + word
    path = [int(total.argmax())]
    for origin in reversed(origins):
        path.append(int(origin[path[-1]]))
    return path[::-1]


def count_spans(pairs: Sequence[tuple[Sequence[Span], Sequence[Span]]], types: Sequence[str]) -> Counts:
    """Count right, gold and predicted spans of each type, shape (rows, types, 3), for pairs of (gold, predicted)."""
    counts = np.zeros((len(pairs), len(types), 3), dtype=np.int32)
    numbers = {kind: number for number, kind in enumerate(types)}
    for row, (gold, predicted) in enumerate(pairs):
        for column, spans in enumerate((set(gold) & set(predicted), gold, predicted)):
            for kind, _, _ in spans:
                counts[row, numbers[kind], column] += 1
    return counts


def ratios(counts: Counts) -> dict[str, Counts]:
    """Give precision, recall and F1 of (right, gold, predicted) in the last axis; 0 where undefined."""
    right, gold, predicted = np.moveaxis(counts, -1, 0)
    return {
        "precision": right / np.maximum(predicted, 1),
        "recall": right / np.maximum(gold, 1),
        "f1": 2 * right / np.maximum(gold + predicted, 1),
    }


def measure(name: str, counts: Mapping[str, Counts]) -> float:
    """Give a metric of counts of shape (rows, types, 3): ``tags`` (words), and of entities ``entities``, ``strict``."""
    if name == "accuracy":
        return float(ratios(counts["tags"].sum(axis=(0, 1)))["recall"])
    of_spans = counts["strict" if name.endswith("_strict") else "entities" if "entities" in counts else "tags"]
    if name == "f1_macro":
        by_type = of_spans.sum(axis=0)
        seen = by_type[by_type[:, 1:].any(axis=1)]
        return float(ratios(seen)["f1"].mean()) if len(seen) else 0.0
    return float(ratios(of_spans.sum(axis=(0, 1)))[name.removesuffix("_strict")])


def score_table(head: str, types: Sequence[str], counts: Counts) -> list[dict[str, Any]]:
    """Give precision, recall, F1 and number of each type that occurs or is predicted, the most frequent first."""
    summed = counts.sum(axis=0)
    found = ratios(summed)
    order = sorted(range(len(types)), key=lambda number: (-summed[number, 1], types[number]))
    return [
        {head: types[n], **{name: float(values[n]) for name, values in found.items()}, "gold": int(summed[n, 1])}
        for n in order
        if summed[n, 1:].any()
    ]


def _fault_of(tag: str, scheme: str) -> tuple[str, str] | None:
    """Say what is wrong with a tag by itself and what may help; None where nothing is."""
    if len(tag) == 2 and tag[1] == "-" and tag[0] in "BIESLU":
        return "has no type", "correct the row"
    if scheme != "bioes" and tag[:2] in ("E-", "S-", "L-", "U-"):
        return (
            f"is not {'IOB2' if scheme == 'auto' else scheme.upper()}",
            "--set options.scheme=bioes if they are BIOES",
        )
    if scheme != "auto" and not is_entity_tag(*to_iob2([tag], scheme)):
        remedy = "for tags that are no entities --set options.scheme=none --set metrics=[accuracy,f1_macro]"
        return "is no entity tag", remedy
    return None


@functools.cache
def _transitions(labels: tuple[str, ...]) -> tuple[Counts, Counts]:
    """Give 0 for what may begin a text and what may follow what, shape (labels,) and (before, after), else -inf."""
    begins = [not label.startswith("I-") for label in labels]
    follows = [[not new.startswith("I-") or old[2:] == new[2:] != "" for new in labels] for old in labels]
    starts = np.where(np.array(begins) | (not any(begins)), 0.0, -np.inf)
    return starts, np.where(np.array(follows), 0.0, -np.inf)
