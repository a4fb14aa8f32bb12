"""Documents packed into blocks of tokens, so that hardly anything that is computed is padding."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from bertkit.corpus.tokenized import Numbers, TokenizedCorpus
from bertkit.tokens.features import IGNORED, Collator, Feature, SpecialTokenTemplate

if TYPE_CHECKING:
    import torch

_AT_ONCE = 4096  # ends of documents that are packed together


@dataclass(frozen=True)
class Block:
    """Stretches of a corpus that stand in one block, each of one document, without special tokens."""

    tokens: list[Numbers]
    """Ids of each stretch."""
    word_starts: list[Numbers]
    """Whether each token begins a word."""


class Blocks(Sequence[Block]):
    """The blocks of a corpus, as places only: no token is read before a block is used.

    ``lengths`` are the tokens of each block, special ones included.
    """

    def __init__(self, corpus: TokenizedCorpus, stretches: Numbers, edges: Numbers, special: int) -> None:
        self.corpus, self.stretches, self.edges = corpus, stretches, edges
        sizes = np.concatenate([[0], np.cumsum(stretches[:, 1] - stretches[:, 0])])
        self.lengths = sizes[edges[1:]] - sizes[edges[:-1]] + special * np.diff(edges)

    def __len__(self) -> int:
        return len(self.edges) - 1

    @overload
    def __getitem__(self, place: int) -> Block: ...
    @overload
    def __getitem__(self, place: slice) -> list[Block]: ...
    def __getitem__(self, place: int | slice) -> Block | list[Block]:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        place = range(len(self))[place]
        stretches = self.stretches[self.edges[place] : self.edges[place + 1]].tolist()
        return Block(
            [self.corpus.tokens[start:end].astype(np.int64) for start, end in stretches],
            [np.asarray(self.corpus.word_starts[start:end], dtype=bool) for start, end in stretches],
        )


def pack_blocks(corpus: TokenizedCorpus, length: int, special: int, packing: str) -> Blocks:
    """Split a corpus into blocks of at most `length` tokens, `special` of which stand around each stretch.

    Args:
        corpus: what is cut.
        length: tokens of a block, special ones included.
        special: tokens around each stretch, such as [CLS] and [SEP].
        packing: ``none``: each block holds one stretch of one document. ``apart`` and ``joined``: the ends of several
            documents share a block; those that fit best into each other, not those that follow each other.
    """
    room = length - special
    starts, ends = _chunk_documents(corpus.document_edges(), room)
    if packing == "none":
        return Blocks(corpus, np.stack([starts, ends], 1), np.arange(len(starts) + 1), special)
    sizes = ends - starts
    blocks = np.arange(len(starts))  # a block is named by its first stretch; a full stretch is one
    rest = np.flatnonzero(sizes < room)
    for first in range(0, len(rest), _AT_ONCE):
        some = rest[first : first + _AT_ONCE]
        for group in pack((sizes[some] + special).tolist(), length):
            blocks[some[group]] = some[group[0]]
    order = np.argsort(blocks, kind="stable")
    edges = np.flatnonzero(np.diff(blocks[order], prepend=-1, append=-1))
    return Blocks(corpus, np.stack([starts[order], ends[order]], 1), edges, special)


def pack(sizes: Sequence[int], room: int) -> Iterator[list[int]]:
    """Pack things into boxes, the largest first, each into the fullest box that has room for it.

    >>> list(pack([5, 4, 2, 3, 6], room=8))
    [[2, 4], [0, 3], [1]]
    """
    boxes: list[list[int]] = []
    left: list[tuple[int, int]] = []  # room left and number of each box, the least first
    for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        place = bisect_left(left, (sizes[number], 0))
        if place == len(left):
            rest, box = room, len(boxes)
            boxes.append([])
        else:
            rest, box = left.pop(place)
        boxes[box].append(number)
        insort(left, (rest - sizes[number], box))
    yield from (sorted(box) for box in boxes)


def _chunk_documents(edges: Numbers, room: int) -> tuple[Numbers, Numbers]:
    """Give the first token and the one after the last of each stretch; a document has one every `room` tokens."""
    counts = -(-np.diff(edges) // room)
    first = np.repeat(edges[:-1], counts)
    number = np.arange(len(first)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = first + number * room
    return starts, np.minimum(starts + room, np.repeat(edges[1:], counts))


@dataclass(frozen=True)
class Text:
    """A block with its special tokens: arrays of shape (tokens,)."""

    tokens: Numbers
    maskable: Numbers
    """False for special tokens."""
    word_starts: Numbers
    parts: Numbers
    """Which stretch a token belongs to, counted from 0."""


def join_block(block: Block, frame: SpecialTokenTemplate) -> Text:
    """Put the special tokens around each stretch of a block."""
    tokens, maskable, starts, parts = [], [], [], []
    around = len(frame.before), len(frame.after)
    for number, (ids, begins) in enumerate(zip(block.tokens, block.word_starts, strict=True)):
        tokens.append(np.concatenate([frame.before, ids, frame.after]))
        maskable.append(np.pad(np.ones(len(ids), dtype=bool), around))
        starts.append(np.pad(begins, around, constant_values=True))
        parts.append(np.full(len(ids) + sum(around), number))
    joined = [np.concatenate(each) for each in (tokens, maskable, starts, parts)]
    return Text(joined[0].astype(np.int64), *joined[1:])


def block_collator(tokenizer: Any, *, apart: bool, first_position: int = 0) -> Collator:
    """Make the collator of features with ``input_ids``, ``labels`` and ``parts``.

    It gives ``input_ids`` and ``labels`` of shape (rows, tokens) and ``attention_mask`` of the same shape. Where
    several parts share a block and are kept apart, the mask is of shape (rows, 1, tokens, tokens), and
    ``position_ids`` begin anew with each part: what the model computes of a part is what it would compute of it alone.
    """
    import torch

    def collate(features: Sequence[Feature]) -> dict[str, torch.Tensor]:
        shape = len(features), max(len(feature["input_ids"]) for feature in features)
        ids, labels = np.full(shape, tokenizer.pad_token_id), np.full(shape, IGNORED)
        parts = np.full(shape, -1)
        for line, feature in enumerate(features):
            size = len(feature["input_ids"])
            ids[line, :size], labels[line, :size] = feature["input_ids"], feature["labels"]
            parts[line, :size] = feature["parts"]
        batch = {"input_ids": ids, "labels": labels}
        if apart and parts.max() > 0:
            # padding attends to itself, so that no row of the mask is empty
            batch["attention_mask"] = parts[:, None, :, None] == parts[:, None, None, :]
            batch["position_ids"] = first_position + _positions(parts)
        else:
            batch["attention_mask"] = (parts >= 0).astype(np.int64)
        return {name: torch.from_numpy(values) for name, values in batch.items()}

    return collate


def _positions(parts: Numbers) -> Numbers:
    """Count the places in each row from 0 on, anew where a part begins.

    >>> _positions(np.array([[0, 0, 1, 1, 1, -1]])).tolist()
    [[0, 1, 0, 1, 2, 0]]
    """
    places = np.broadcast_to(np.arange(parts.shape[1]), parts.shape)
    begins = np.diff(parts, axis=1, prepend=parts[:, :1] - 1) != 0
    return places - np.maximum.accumulate(np.where(begins, places, 0), axis=1)
