"""Pairs of segments, for objectives that ask whether two texts belong together or which comes first.

``next`` (Devlin et al. 2019, section 3.1): half of the second segments follow the first ones, half are strangers, taken
from another document. ``order`` (Lan et al. 2020, section 3.1): the segments follow each other, and half of the pairs
are swapped.

A pair is places in a corpus, so that millions take little memory. It begins at a sentence and ends with the sentence
that fills it; what exceeds the length is cut off, at random from the front or the back of the longer segment. Cutting
only where the segments do not meet would give the order away: a text that begins inside a sentence would be the first.

A document of one sentence has no second segment: it is never a first one; its sentence can be a stranger. The last
sentence of a document, where it is left alone, forms a pair with the one before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from bertkit.corpus.packing import Text
from bertkit.corpus.tokenized import Numbers, TokenizedCorpus
from bertkit.errors import DataError, RecipeError
from bertkit.tokens.features import IGNORED, Collator, Feature, SpecialTokenTemplate

if TYPE_CHECKING:
    import torch

NEXT, RANDOM, SWAPPED = 0, 1, 1  # the labels, as BertForPreTraining and AlbertForPreTraining have them

Kind = Literal["next", "order"]

_MIN_BUDGET = 4
_AT_ONCE = 2**20  # sentences that are planned together


@dataclass(frozen=True)
class Pair:
    """Two segments without special tokens: ids, and whether each token begins a word."""

    first: Numbers
    second: Numbers
    first_word_starts: Numbers
    second_word_starts: Numbers
    label: int


class Pairs(Sequence[Pair]):
    """The pairs of one epoch; ``places`` has first start and end, second start and end, and label: (pairs, 5)."""

    def __init__(self, corpus: TokenizedCorpus, places: Numbers, special: int) -> None:
        self.corpus, self.places = corpus, places
        self.lengths = places[:, 1] - places[:, 0] + places[:, 3] - places[:, 2] + special

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, place: int) -> Pair: ...
    @overload
    def __getitem__(self, place: slice) -> list[Pair]: ...
    def __getitem__(self, place: int | slice) -> Pair | list[Pair]:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        first, first_end, second, second_end, label = self.places[range(len(self))[place]].tolist()
        both = slice(first, first_end), slice(second, second_end)
        ids = [self.corpus.tokens[part].astype(np.int64) for part in both]
        starts = [np.asarray(self.corpus.word_starts[part], dtype=bool) for part in both]
        return Pair(ids[0], ids[1], starts[0], starts[1], label)


def build_pairs(
    corpus: TokenizedCorpus, length: int, special: int, kind: Kind, seed: int, epoch: int, short: float = 0.1
) -> Pairs:
    """Split a corpus into pairs of at most `length` tokens; the same ones for the same seed and epoch.

    Args:
        corpus: what is cut.
        length: tokens of a pair, special ones included.
        special: how many are special.
        kind: what the label tells: ``next`` or ``order``.
        seed: of the run.
        epoch: each one cuts, mixes and swaps anew.
        short: share of pairs that are cut to a shorter length, drawn evenly, so that a model meets short texts too.

    Raises:
        RecipeError: hardly any room beside the special tokens.
        DataError: no document has two sentences, or strangers are wanted and there is one document only.
    """
    if length - special < _MIN_BUDGET:
        what = f"a length of {length} leaves {max(length - special, 0)} tokens for a pair of segments"
        raise RecipeError(what, f"set training.max_length to at least {special + _MIN_BUDGET}")
    documents = np.asarray(corpus.documents)
    sizes = np.diff(documents)
    if not (sizes > 1).any():
        raise DataError("no document has two sentences, so there are no pairs", "see data.documents, or take mlm")
    if kind == "next" and np.count_nonzero(sizes) < 2:
        raise DataError("one document has no strangers for its sentences", "see data.documents, or take sop")
    # a spawn key keeps the stream apart from those that are keyed by numbers of examples
    random = np.random.default_rng(np.random.SeedSequence((seed, epoch), spawn_key=(length,)))
    edges = np.searchsorted(documents, np.arange(0, documents[-1] + _AT_ONCE, _AT_ONCE))
    parts = []
    for first, end in pairwise(edges.tolist()):
        chains = _split_chains(corpus.sentences, documents[first : end + 1], length - special, random, kind, short)
        segments = _random_segments(corpus, chains, random) if kind == "next" else _in_any_order(corpus, chains)
        parts.append(_truncate(segments, length - special, random))
    return Pairs(corpus, np.concatenate(parts), special)


@dataclass(frozen=True)
class _Chains:
    """Stretches of sentences of one document, as numbers of sentences, one entry a pair."""

    start: Numbers
    second: Numbers
    """Where the second segment begins."""
    end: Numbers
    wanted: Numbers
    """How many tokens the pair should have."""
    label: Numbers
    document: Numbers
    """First sentence of the document and the one after its last, shape (pairs, 2)."""


def _split_chains(
    sentences: Numbers, documents: Numbers, room: int, random: np.random.Generator, kind: Kind, short: float
) -> _Chains:
    """Split documents into chains of sentences.

    What a pair that begins at a sentence would be is drawn for every sentence at once. Then a walk tells where pairs
    begin: where the one before ended, or where a stranger took the place of what would have followed.
    """
    low, high = int(documents[0]), int(documents[-1])
    count, numbers = high - low, np.arange(low, high)
    edges = np.repeat(np.stack([documents[:-1], documents[1:]], 1), np.diff(documents), axis=0)
    wanted = np.where(random.random(count) < short, random.integers(2, room + 1, count), room)
    label = random.integers(2, size=count)
    end = low + np.searchsorted(sentences[low : high + 1], sentences[low:high] + wanted)
    end = np.clip(end, numbers + 2, None)
    end = np.minimum(end, edges[:, 1])
    second = numbers + 1 + (random.random(count) * (end - numbers - 1)).astype(np.int64)
    met = _walk(np.where(label == RANDOM, second, end) - low if kind == "next" else end - low)
    alone = edges[met, 1] == numbers[met] + 1  # takes the sentence before along, where there is one
    start = numbers[met] - alone
    middle = np.where(alone, numbers[met], second[met])
    kept = start >= edges[met, 0]
    met = met[kept]
    return _Chains(start[kept], middle[kept], end[met], wanted[met], label[met], edges[met])


def _walk(following: Numbers) -> Numbers:
    """Give the places that are met on the way from the first one, each telling the next.

    >>> _walk(np.array([2, 2, 3, 5, 5])).tolist()
    [0, 2, 3]
    """
    steps, place, met = following.tolist(), 0, []
    while place < len(steps):
        met.append(place)
        place = steps[place]
    return np.array(met, dtype=np.int64)


def _random_segments(corpus: TokenizedCorpus, chains: _Chains, random: np.random.Generator) -> Numbers:
    """Give the segments of chains, where labeled so with a second one that begins at any sentence of other documents.

    All sentences are equally likely, so that a long document has as many strangers as it has first segments.
    """
    sentences, documents = np.asarray(corpus.sentences), np.asarray(corpus.documents)
    first, last = chains.document.T
    begin = random.integers(documents[-1] - (last - first))
    begin += (begin >= first) * (last - first)
    missing = chains.wanted - (sentences[chains.second] - sentences[chains.start])
    end = np.searchsorted(sentences, sentences[begin] + missing)
    end = np.clip(end, begin + 1, documents[np.searchsorted(documents, begin, side="right")])
    strange = chains.label == RANDOM
    begin, end = np.where(strange, begin, chains.second), np.where(strange, end, chains.end)
    return np.stack([*(sentences[each] for each in (chains.start, chains.second, begin, end)), chains.label], 1)


def _in_any_order(corpus: TokenizedCorpus, chains: _Chains) -> Numbers:
    """Give the segments of chains, swapped where labeled so."""
    start, second, end = (np.asarray(corpus.sentences)[each] for each in (chains.start, chains.second, chains.end))
    straight, swapped = np.stack([start, second, second, end], 1), np.stack([second, end, start, second], 1)
    return np.column_stack([np.where(chains.label[:, None] == SWAPPED, swapped, straight), chains.label])


def _truncate(places: Numbers, room: int, random: np.random.Generator) -> Numbers:
    """Split the longer segment of each pair, at random in front and at the back, until both have room."""
    one, other = places[:, 1] - places[:, 0], places[:, 3] - places[:, 2]
    kept = np.minimum(other, np.maximum(room // 2, room - one))
    for column, excess in ((0, one - np.minimum(one, room - kept)), (2, other - kept)):
        front = random.binomial(excess, 0.5)
        places[:, column] += front
        places[:, column + 1] -= excess - front
    return places


def join_pair(pair: Pair, frame: SpecialTokenTemplate) -> Text:
    """Put the special tokens around a pair: [CLS] first [SEP] second [SEP]; `parts` of the text are its segments."""
    before, between, after = (np.array(each, dtype=np.int64) for each in (frame.before, frame.between, frame.after))
    tokens = [before, pair.first, between, pair.second, after]
    special = [np.ones(len(each), dtype=bool) for each in (before, between, after)]
    starts = [special[0], pair.first_word_starts, special[1], pair.second_word_starts, special[2]]
    sizes = [len(each) for each in tokens]
    return Text(
        np.concatenate(tokens),
        np.repeat([False, True, False, True, False], sizes),
        np.concatenate(starts),
        np.repeat([0, 0, 0, 1, 1], sizes),
    )


def pair_collator(tokenizer: Any) -> Collator:
    """Make the collator of features with ``input_ids``, ``labels``, ``token_type_ids`` and ``pair_labels``.

    It pads on the right: tensors of shape (rows, tokens), ``attention_mask`` among them, and ``pair_labels`` of shape
    (rows,).
    """
    import torch

    padding = {"input_ids": tokenizer.pad_token_id, "labels": IGNORED, "token_type_ids": 0, "attention_mask": 0}

    def collate(features: Sequence[Feature]) -> dict[str, torch.Tensor]:
        shape = len(features), max(len(feature["input_ids"]) for feature in features)
        batch = {name: np.full(shape, value) for name, value in padding.items()}
        for row, feature in enumerate(features):
            size = len(feature["input_ids"])
            batch["attention_mask"][row, :size] = 1
            for name in ("input_ids", "labels", "token_type_ids"):
                batch[name][row, :size] = feature[name]
        batch["pair_labels"] = np.array([feature["pair_labels"] for feature in features])
        return {name: torch.from_numpy(values) for name, values in batch.items()}

    return collate
