"""Pairs of segments, for objectives that predict whether two segments belong together or which one comes first.

Type ``next`` (Devlin et al. 2019, section 3.1): half of the second segments follow the first ones. The other half are
random: the second segment of another pair, from another document and of about the same length. Type ``order`` (Lan et
al. 2020, section 3.1): the segments follow each other, and half of the pairs are swapped.

A pair is stored as offsets in the corpus, so millions of pairs need little memory. It begins at a sentence, and ends
with the sentence that fills it. If it is too long, the longer segment is truncated at random at its start or end.
Truncating only the outer ends would reveal the order: a segment that begins inside a sentence would be the first.
Lengths must not reveal the order either: see `_equalize_lengths`.

A document of one sentence has no pairs. If the last sentence of a document remains, it forms a pair with the sentence
before it.

Each of these two pairs has segments of two tokens, as bounds and label; the second pair is swapped. Both pairs exceed
a budget of three tokens:

>>> swapped = _swap_segments(np.array([[0, 2, 2, 4, NEXT], [4, 6, 6, 8, SWAPPED]]))
>>> swapped.tolist()
[[0, 2, 2, 4, 0], [6, 8, 4, 6, 1]]
>>> _truncate_pairs(swapped, 3, np.random.default_rng(0)).tolist()
[[0, 2, 3, 4, 0], [6, 8, 4, 5, 1]]
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from bertkit.errors import DataError, RecipeError
from bertkit.modeling.masked_head import add_label_positions
from bertkit.pretraining.masking import Random
from bertkit.pretraining.packing import TokenizedText
from bertkit.pretraining.tokenized import TokenizedCorpus
from bertkit.tokens.features import (
    IGNORE_INDEX,
    Collator,
    Features,
    SpecialTokenTemplate,
    Tensors,
    Tokenizer,
    pad_features,
)

# Labels of BertForPreTraining (next, random) and AlbertForPreTraining (next, swapped).
NEXT, RANDOM, SWAPPED = 0, 1, 1

PairType = Literal["next", "order"]

_MIN_BUDGET = 4
# Fraction of pairs with a random smaller length, so that the model also sees short texts (BERT's `short_seq_prob`).
_SHORT_SHARE = 0.1
_AT_ONCE = 2**20  # sentences processed together, which limits memory
_NEAR_PAIRS = 1024  # consecutive pairs, whose texts are similar because they are near each other in the corpus
_SIMILAR_PAIRS = 128  # pairs with similar lengths among `_NEAR_PAIRS`
_TRIES = 16  # pairs of about the same length that are tried for a random segment


@dataclass(frozen=True)
class Pair:
    """Two segments without special tokens: token ids, and whether each token begins a word."""

    first: np.ndarray
    second: np.ndarray
    first_word_starts: np.ndarray
    second_word_starts: np.ndarray
    label: int


class Pairs:
    """Pairs of one epoch as offsets in a corpus; tokens are read when a pair is used.

    ``bounds``, of shape (pairs, 5), has the start and end of the first segment, the start and end of the second
    segment, and the label. ``lengths``, of shape (pairs,), counts the tokens of a pair, special tokens included.
    """

    def __init__(self, corpus: TokenizedCorpus, bounds: np.ndarray, num_special: int) -> None:
        self.corpus, self.bounds = corpus, bounds
        self.lengths = bounds[:, 1] - bounds[:, 0] + bounds[:, 3] - bounds[:, 2] + num_special

    def __len__(self) -> int:
        return len(self.bounds)

    def __getitem__(self, index: int) -> Pair:
        first, first_end, second, second_end, label = self.bounds[range(len(self))[index]].tolist()
        segments = slice(first, first_end), slice(second, second_end)
        ids = [self.corpus.tokens[segment].astype(np.int64) for segment in segments]
        starts = [np.asarray(self.corpus.word_starts[segment], dtype=bool) for segment in segments]
        return Pair(ids[0], ids[1], starts[0], starts[1], label)


def build_pairs(
    corpus: TokenizedCorpus, length: int, num_special: int, pair_type: PairType, seed: int, epoch: int
) -> Pairs:
    """Split a corpus into pairs of at most `length` tokens; the same seed and epoch give the same pairs.

    Args:
        corpus: Documents.
        length: Size of a pair, special tokens included.
        num_special: Number of special tokens of a pair.
        pair_type: Meaning of the label, ``next`` or ``order``.
        seed: Seed of the run.
        epoch: Epoch; each has other pairs.

    Raises:
        RecipeError: If a pair has room for fewer than four tokens.
        DataError: If no document has two sentences, or if for type ``next`` only one document has.
    """
    if length - num_special < _MIN_BUDGET:
        message = f"a length of {length} leaves {max(length - num_special, 0)} tokens for a pair of segments"
        raise RecipeError(message, f"set training.max_length to at least {num_special + _MIN_BUDGET}")
    documents = np.asarray(corpus.documents)
    sizes = np.diff(documents)
    if not (sizes > 1).any():
        raise DataError("no document has two sentences, so there are no pairs", "see data.documents, or use mlm")
    if pair_type == "next" and np.count_nonzero(sizes > 1) < 2:
        message = "random segments need a second document of two sentences, and there is only one"
        raise DataError(message, "see data.documents, or use sop")
    # The spawn key separates this generator from the generators of examples, seeded by (seed, epoch, index).
    random = np.random.default_rng(np.random.SeedSequence((seed, epoch), spawn_key=(length,)))
    edges = np.searchsorted(documents, np.arange(0, documents[-1] + _AT_ONCE, _AT_ONCE))
    budget = length - num_special
    pairs = np.concatenate(
        [
            _pair_neighbors(corpus.sentences, documents[start : end + 1], budget, random, pair_type)
            for start, end in pairwise(edges.tolist())
        ]
    )
    if pair_type == "next":
        pairs = _truncate_pairs(_draw_random_seconds(pairs, corpus, random), budget, random)
    else:
        pairs = _equalize_lengths(_truncate_pairs(_swap_segments(pairs), budget, random), random)
    return Pairs(corpus, pairs, num_special)


def _pair_neighbors(
    sentences: np.ndarray, documents: np.ndarray, budget: int, random: Random, pair_type: PairType
) -> np.ndarray:
    """Split documents into pairs of consecutive segments, and return their `Pairs.bounds`. Shape: (pairs, 5)."""
    # Draw length, label and boundaries of the pair that would begin at each sentence for all sentences at once, which
    # is far faster than pair by pair. Then `_follow_indices` finds the sentences at which pairs begin: each pair begins
    # after the last one, or at the second segment of the last one if a random segment will replace it.
    low, high = int(documents[0]), int(documents[-1])
    count, indices = high - low, np.arange(low, high)
    edges = np.repeat(np.stack([documents[:-1], documents[1:]], 1), np.diff(documents), axis=0)
    length = np.where(random.random(count) < _SHORT_SHARE, random.integers(2, budget + 1, count), budget)
    label = random.integers(2, size=count)
    end = low + np.searchsorted(sentences[low : high + 1], sentences[low:high] + length)
    # A pair has at least two sentences, and stays in its document. The second segment starts at any sentence except the
    # first.
    end = np.clip(end, indices + 2, None)
    end = np.minimum(end, edges[:, 1])
    second = indices + 1 + (random.random(count) * (end - indices - 1)).astype(np.int64)
    begins = _follow_indices(np.where(label == RANDOM, second, end) - low if pair_type == "next" else end - low)
    # Join a remaining last sentence with the sentence before it, if there is one.
    is_last = edges[begins, 1] == indices[begins] + 1
    start = indices[begins] - is_last
    middle = np.where(is_last, indices[begins], second[begins])
    has_first = start >= edges[begins, 0]
    begins = begins[has_first]
    starts, middles = start[has_first], middle[has_first]
    bounds = (sentences[offsets] for offsets in (starts, middles, middles, end[begins]))
    return np.stack([*bounds, label[begins]], 1)


def _follow_indices(following: np.ndarray) -> np.ndarray:
    """Go from index 0 to `following[0]` and so on, to the end of the array, and return the visited indices.

    >>> _follow_indices(np.array([2, 2, 3, 5, 5])).tolist()
    [0, 2, 3]
    """
    steps, index, visited = following.tolist(), 0, []
    while index < len(steps):
        visited.append(index)
        index = steps[index]
    return np.array(visited, dtype=np.int64)


def _draw_random_seconds(bounds: np.ndarray, corpus: TokenizedCorpus, random: Random) -> np.ndarray:
    """Replace the second segments of random pairs by second segments of other pairs, from other documents."""
    # A random segment of any length, from anywhere, would reveal the label: by its length, or as the beginning of a
    # document. The second segment of another pair with the same length reveals only that it does not follow. So sort
    # the pairs by this length, and take the nearest pair of another document in a random direction.
    length, count = bounds[:, 3] - bounds[:, 2], len(bounds)
    document = np.searchsorted(np.asarray(corpus.sentences)[np.asarray(corpus.documents)], bounds[:, 0], side="right")
    # Pairs of equal length are in random order.
    order = np.lexsort((random.random(count), length))
    rank = np.empty(count, dtype=np.int64)
    rank[order] = np.arange(count)
    unresolved = np.flatnonzero(bounds[:, 4] == RANDOM)
    direction = random.choice([-1, 1], len(unresolved))
    source = np.arange(count)
    for distance in range(1, _TRIES + 1):
        nearest = rank[unresolved] + direction * distance
        # Beyond an end of the order, take the neighbor in the other direction.
        is_outside = (nearest < 0) | (nearest >= count)
        nearest = np.clip(np.where(is_outside, rank[unresolved] - direction * distance, nearest), 0, count - 1)
        source[unresolved] = order[nearest]
        is_same = document[source[unresolved]] == document[unresolved]
        unresolved, direction = unresolved[is_same], direction[is_same]
    # If one document has nearly all the text, all near pairs can be from that document. Then take any pair of another
    # document: pairs of a document are consecutive, so draw among the other pairs, and skip this range.
    document_start = np.searchsorted(document, document[unresolved], side="left")
    document_pairs = np.searchsorted(document, document[unresolved], side="right") - document_start
    anywhere = random.integers(count - document_pairs)
    source[unresolved] = anywhere + (anywhere >= document_start) * document_pairs
    return np.column_stack([bounds[:, :2], bounds[source, 2:4], bounds[:, 4]])


def _swap_segments(bounds: np.ndarray) -> np.ndarray:
    """Swap the segments of the pairs that are labeled as swapped."""
    return np.where(bounds[:, 4:] == SWAPPED, bounds[:, [2, 3, 0, 1, 4]], bounds)


def _truncate_pairs(bounds: np.ndarray, budget: int, random: Random) -> np.ndarray:
    """Truncate pairs to the budget, in place, by shortening the longer segment."""
    # The second segment may have the tokens that the first leaves, or half of the budget; the first gets the rest.
    first_lengths, second_lengths = bounds[:, 1] - bounds[:, 0], bounds[:, 3] - bounds[:, 2]
    second_lengths = np.minimum(second_lengths, np.maximum(budget // 2, budget - first_lengths))
    return _shorten_segments(bounds, np.minimum(first_lengths, budget - second_lengths), second_lengths, random)


def _equalize_lengths(bounds: np.ndarray, random: Random) -> np.ndarray:
    """Shorten the longer segment of some pairs, in place, so that lengths do not reveal whether a pair is swapped."""
    # In a text, the earlier and the later segment differ in length: documents have typical openings and endings, and
    # the sentence that fills a pair is longer than most. So among pairs of similar lengths, the longer segment must be
    # first in the text as often as last. The surplus pairs of the more frequent kind get segments of equal length.
    lengths = bounds[:, [1, 3]] - bounds[:, [0, 2]]  # (pairs, 2), in the order of the pair
    # In swapped pairs, the difference in the order of the text has the other sign.
    total, difference = lengths.sum(axis=1), (lengths[:, 1] - lengths[:, 0]) * (1 - 2 * bounds[:, 4])
    for near_pairs in np.array_split(np.arange(len(bounds)), max(1, len(bounds) // _NEAR_PAIRS)):
        parts = max(1, round((len(near_pairs) / _SIMILAR_PAIRS) ** 0.5))
        for similar_pairs in np.array_split(near_pairs[np.argsort(total[near_pairs], kind="stable")], parts):
            by_difference = np.argsort(np.abs(difference[similar_pairs]), kind="stable")
            for group in np.array_split(similar_pairs[by_difference], parts):
                first_longer, last_longer = group[difference[group] < 0], group[difference[group] > 0]
                surplus = abs(len(first_longer) - len(last_longer))
                excess = random.permutation(max(first_longer, last_longer, key=len))[:surplus]
                lengths[excess] = lengths[excess].min(axis=1, keepdims=True)
    return _shorten_segments(bounds, lengths[:, 0], lengths[:, 1], random)


def _shorten_segments(
    bounds: np.ndarray, first_lengths: np.ndarray, second_lengths: np.ndarray, random: Random
) -> np.ndarray:
    """Shorten segments to these numbers of tokens, in place, by removing tokens from random ends."""
    # Removing n tokens one by one, each from a random end, is one binomial draw.
    for column, lengths in ((0, first_lengths), (2, second_lengths)):
        excess = bounds[:, column + 1] - bounds[:, column] - lengths
        front = random.binomial(excess, 0.5)
        bounds[:, column] += front
        bounds[:, column + 1] -= excess - front
    return bounds


def join_pair(pair: Pair, template: SpecialTokenTemplate) -> TokenizedText:
    """Put the special tokens around a pair: [CLS] first [SEP] second [SEP]; `segment_ids` are 0 and 1."""
    specials = (template.before, template.between, template.after)
    before, between, after = (np.array(ids, dtype=np.int64) for ids in specials)
    tokens = [before, pair.first, between, pair.second, after]
    opens, parts, closes = (np.ones(len(ids), dtype=bool) for ids in specials)
    starts = [opens, pair.first_word_starts, parts, pair.second_word_starts, closes]
    sizes = [len(ids) for ids in tokens]
    return TokenizedText(
        np.concatenate(tokens),
        np.repeat([False, True, False, True, False], sizes),
        np.concatenate(starts),
        np.repeat([0, 0, 0, 1, 1], sizes),
    )


def pair_collator(tokenizer: Tokenizer) -> Collator:
    """Build the collator of features with ``input_ids``, ``labels``, ``token_type_ids`` and ``pair_labels``.

    A batch is padded on the right. The arrays and ``attention_mask`` have the shape (rows, tokens), ``pair_labels`` has
    the shape (rows,).
    """
    import torch

    padding = {"input_ids": tokenizer.pad_token_id, "labels": IGNORE_INDEX, "token_type_ids": 0}

    def collate(features: Features) -> Tensors:
        batch = pad_features(features, padding)
        batch["pair_labels"] = np.array([feature["pair_labels"] for feature in features])
        return add_label_positions({name: torch.from_numpy(values) for name, values in batch.items()})

    return collate
