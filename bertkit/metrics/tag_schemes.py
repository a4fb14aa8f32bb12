"""Schemes of entity tags: IOB2, IOB1 and BIOES; which tags are valid, and how to rewrite or repair them.

Inside bertkit all entity tags are IOB2: ``B-`` begins an entity, ``I-`` continues it, ``O`` is outside (Ramshaw &
Marcus 1995; Tjong Kim Sang & Veenstra 1999).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

import numpy as np

from bertkit.errors import DataError
from bertkit.metrics import Numbers

SCHEMES = ("iob2", "iob1", "bioes")

ENTITY = "ENTITY"
"""The type of tags that are ``B``, ``I`` or ``O`` alone; seqeval counts them as one type too."""

_SPELLINGS = {r"([BIESLU])[_/: ](.+)": r"\1-\2", r"(.+)[-_/: ]([BIESLU])": r"\2-\1"}
"""Pattern of tags that other tools write -> the tag of IOB2 or BIOES."""


def is_entity_tag(tag: str) -> bool:
    """Tell whether a tag is ``O`` or a prefix of IOB2 with a type.

    >>> is_entity_tag("O"), is_entity_tag("B-PER"), is_entity_tag("NOUN"), is_entity_tag("I-")
    (True, True, False, False)
    """
    return tag == "O" or (tag[:2] in ("B-", "I-") and len(tag) > 2)


def find_invalid_tag(tags: Sequence[str | None], scheme: str = "iob2") -> int | None:
    """Return the index of the first tag that the scheme does not allow after the tag before it, None in valid tags.

    An ``I-`` (``E-``, ``L-``) must continue an entity of its type, and in BIOES a ``B-`` or ``I-`` must be continued.
    Before and after an unlabelled word (None) any tag is allowed.
    """
    before: str | None = "O"
    # in BIOES an entity must not be open at the end, which an O after the last tag reveals
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


def repair(tags: Sequence[str]) -> list[str]:
    """Make tags valid IOB2: an ``I-`` that continues no entity begins one. The spans stay the same.

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

    IOB1 begins an entity with ``B-`` only where it touches another of its type. BIOES (or BILOU) also marks last
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


def normalize_tags(tags: Sequence[str | None], words: Sequence[str], scheme: str) -> list[str | None]:
    """Check the tags of a text and rewrite entity tags in IOB2; None (an unlabelled word) stays None.

    Args:
        tags: one per word.
        words: to name one in a message.
        scheme: one of SCHEMES, ``none`` for tags that mark no entities, or ``auto``: IOB2 if all tags look like it.

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
    filled = [tag or "O" for tag in tags]
    if scheme == "auto" and not all(map(is_entity_tag, filled)):
        return list(tags)
    invalid = None if scheme == "iob1" else find_invalid_tag(tags, scheme)
    if invalid is not None:
        where = f"after {filled[invalid - 1]}" if invalid else "at the beginning"
        if scheme == "bioes" and invalid == len(tags) - 1 and filled[-1][0] in "BI":
            where = "at the end"
        what = f"word {invalid + 1} {words[invalid]!r}: {filled[invalid]} {where}"
        name, remedy = ("IOB2", "--set options.scheme=iob1 reads such tags")
        if scheme == "bioes":
            name, remedy = "BIOES", "correct it, or --set options.scheme=iob2 if that is what the tags are"
        raise DataError(f"{what} is not {name}", remedy, column="tags")
    return [None if tag is None else new for tag, new in zip(tags, to_iob2(filled, scheme), strict=True)]


def most_probable_valid(probabilities: Numbers, labels: Sequence[str]) -> list[int]:
    """Return the label ids of the most probable sequence of tags that is valid IOB2 (Viterbi 1967).

    Args:
        probabilities: of shape (words, labels).
        labels: their names; without ``O`` or a ``B-`` among them the first word may have any.
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
    for of_word in log_probabilities[1:]:
        paths = total[:, None] + transitions
        origins.append(paths.argmax(axis=0))
        total = paths.max(axis=0) + of_word
    path = [int(total.argmax())]
    for origin in reversed(origins):
        path.append(int(origin[path[-1]]))
    return path[::-1]


@functools.cache
def _transitions(labels: tuple[str, ...]) -> tuple[Numbers, Numbers]:
    """Return 0 where a label may begin a text, shape (labels,), or follow another, (before, after), else -inf."""
    # An I- only follows tags of its own type. The type of O is the empty text, which the last comparison excludes.
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
