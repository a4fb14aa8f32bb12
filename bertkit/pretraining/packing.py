"""Documents packed into blocks of tokens, so that batches have almost no padding.

Example: documents of 7, 1 and 2 tokens, in blocks of 7 with two special tokens around each chunk. The first five tokens
fill a block. The other two tokens of their document need four positions, and share a block with the second document:

>>> offsets = [np.array(edges) for edges in ([0, 7, 8, 10], [0, 1, 2, 3])]
>>> corpus = TokenizedCorpus(np.arange(10), np.ones(10, bool), *offsets, counts={})
>>> blocks = pack_blocks(corpus, length=7, num_special=2, packing="documents")
>>> [[chunk.tolist() for chunk in block.tokens] for block in (blocks[index] for index in range(len(blocks)))]
[[[0, 1, 2, 3, 4]], [[5, 6], [7]], [[8, 9]]]
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from bertkit.modeling.masked_head import add_label_positions
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

NO_PADDING: Mapping[str, float] = MappingProxyType({})
_AT_ONCE = 4096  # consecutive partial chunks that are packed together


@dataclass(frozen=True)
class Block:
    """The chunks of documents that share a block, without special tokens."""

    tokens: list[np.ndarray]
    word_starts: list[np.ndarray]
    """Whether each token begins a word, one array per chunk."""


class Blocks:
    """Blocks of a corpus as offsets; tokens are read when a block is used.

    ``chunks``, of shape (chunks, 2), has the first and last + 1 token of each chunk in the corpus. Block b has the
    chunks ``edges[b]`` to ``edges[b + 1] - 1``. ``lengths``, of shape (blocks,), counts tokens with special tokens.
    """

    def __init__(self, corpus: TokenizedCorpus, chunks: np.ndarray, edges: np.ndarray, num_special: int) -> None:
        self.corpus, self.chunks, self.edges = corpus, chunks, edges
        sizes = np.concatenate([[0], np.cumsum(chunks[:, 1] - chunks[:, 0])])
        self.lengths = sizes[edges[1:]] - sizes[edges[:-1]] + num_special * np.diff(edges)

    def __len__(self) -> int:
        return len(self.edges) - 1

    def __getitem__(self, index: int) -> Block:
        index = range(len(self))[index]
        chunks = self.chunks[self.edges[index] : self.edges[index + 1]].tolist()
        return Block(
            [self.corpus.tokens[start:end].astype(np.int64) for start, end in chunks],
            [np.asarray(self.corpus.word_starts[start:end], dtype=bool) for start, end in chunks],
        )


def pack_blocks(corpus: TokenizedCorpus, length: int, num_special: int, packing: str) -> Blocks:
    """Split a corpus into blocks of at most `length` tokens.

    Args:
        corpus: Documents.
        length: Size of a block, special tokens included.
        num_special: Number of special tokens around each chunk, such as [CLS] and [SEP].
        packing: ``none``: a block has one chunk of one document. ``documents`` and ``joined``: chunks shorter than a
            block, from the ends of documents, share blocks; they are combined by size.
    """
    budget = length - num_special
    starts, ends = _chunk_documents(corpus.document_edges(), budget)
    if packing == "none":
        return Blocks(corpus, np.stack([starts, ends], 1), np.arange(len(starts) + 1), num_special)
    # `blocks`, of shape (chunks,), has the block of each chunk; the id of a block is its first chunk. A stable sort
    # puts the chunks of a block next to each other, so two arrays of offsets describe millions of blocks.
    sizes = ends - starts
    blocks = np.arange(len(starts))
    partial = np.flatnonzero(sizes < budget)
    for offset in range(0, len(partial), _AT_ONCE):
        batch = partial[offset : offset + _AT_ONCE]
        for group in pack((sizes[batch] + num_special).tolist(), length):
            blocks[batch[group]] = batch[group[0]]
    order = np.argsort(blocks, kind="stable")
    edges = np.flatnonzero(np.diff(blocks[order], prepend=-1, append=-1))
    return Blocks(corpus, np.stack([starts[order], ends[order]], 1), edges, num_special)


def pack(sizes: Sequence[int], capacity: int) -> Iterator[list[int]]:
    """Pack items into bins by best fit decreasing: largest item first, each into the fullest bin with enough space.

    Yields:
        Indices of the items in a bin, ascending.

    >>> list(pack([5, 4, 2, 3, 6], capacity=8))
    [[2, 4], [0, 3], [1]]
    """
    bins: list[list[int]] = []
    # Free space and index of each bin, sorted, so that a binary search finds the best fit.
    free: list[tuple[int, int]] = []
    for item in sorted(range(len(sizes)), key=lambda item: -sizes[item]):
        index = bisect_left(free, (sizes[item], 0))
        if index == len(free):
            space, target = capacity, len(bins)
            bins.append([])
        else:
            space, target = free.pop(index)
        bins[target].append(item)
        insort(free, (space - sizes[item], target))
    yield from map(sorted, bins)


def _chunk_documents(edges: np.ndarray, budget: int) -> tuple[np.ndarray, np.ndarray]:
    """Split each document into chunks of `budget` tokens; its last chunk can be shorter.

    Args:
        edges: First token of each document, and the number of all tokens. Shape: (documents + 1,).
        budget: Size of a chunk.

    Returns:
        First and last + 1 token of each chunk, both of shape (chunks,).

    Examples:
        Documents of 7, 1 and 2 tokens; only the first has two chunks.

        >>> [bounds.tolist() for bounds in _chunk_documents(np.array([0, 7, 8, 10]), budget=5)]
        [[0, 5, 7, 8], [5, 7, 8, 10]]
    """
    # Repeat each document once per chunk; `index` counts the chunks of each document from 0.
    counts = -(-np.diff(edges) // budget)
    document_starts = np.repeat(edges[:-1], counts)
    index = np.arange(len(document_starts)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = document_starts + index * budget
    return starts, np.minimum(starts + budget, np.repeat(edges[1:], counts))


@dataclass(frozen=True)
class TokenizedText:
    """Example with special tokens. All arrays have the shape (tokens,)."""

    tokens: np.ndarray
    maskable: np.ndarray
    """False for special tokens."""
    word_starts: np.ndarray
    """Whether a token begins a word."""
    segment_ids: np.ndarray
    """Index of the chunk in the block, or of the segment in the pair, that a token belongs to."""


def join_block(block: Block, template: SpecialTokenTemplate) -> TokenizedText:
    """Put the special tokens around each chunk of a block, and join the chunks.

    In this example, the second token continues a word:

    >>> block = Block([np.array([7, 8]), np.array([9])], [np.array([True, False]), np.array([True])])
    >>> text = join_block(block, SpecialTokenTemplate([101], [], [102], None))
    >>> text.tokens.tolist(), text.segment_ids.tolist()
    ([101, 7, 8, 102, 101, 9, 102], [0, 0, 0, 0, 1, 1, 1])
    >>> text.maskable.astype(int).tolist(), text.word_starts.astype(int).tolist()
    ([0, 1, 1, 0, 0, 1, 0], [1, 1, 0, 1, 1, 1, 1])
    """
    sizes = [(len(template.before), len(ids), len(template.after)) for ids in block.tokens]
    ids = np.concatenate([part for ids in block.tokens for part in (template.before, ids, template.after)])
    is_text = np.concatenate([np.repeat([False, True, False], part) for part in sizes])
    starts = np.ones(len(ids), bool)
    starts[is_text] = np.concatenate(block.word_starts)
    return TokenizedText(ids.astype(np.int64), is_text, starts, np.repeat(np.arange(len(sizes)), list(map(sum, sizes))))


def block_collator(
    tokenizer: Tokenizer, extra_padding: Mapping[str, float] = NO_PADDING, first_position: int | None = None
) -> Collator:
    """Build the collator of features with ``input_ids``, ``labels`` and ``segment_ids``.

    A batch has ``input_ids``, ``labels`` and ``attention_mask`` of shape (rows, tokens). If attention stays within
    documents and a block has several segments, the mask has the shape (rows, 1, tokens, tokens), and ``position_ids``
    restart with each segment. So the model computes the same for a segment as for a block with only this segment.

    Args:
        tokenizer: Tokenizer whose padding token is used.
        extra_padding: Other key with a number per token -> number at padding.
        first_position: Position id of a text's first token (not 0 in RoBERTa) if tokens attend only to their segment,
            or None if they attend to all tokens.
    """
    import torch

    padding = {"input_ids": tokenizer.pad_token_id, "labels": IGNORE_INDEX, "segment_ids": -1, **extra_padding}

    def collate(features: Features) -> Tensors:
        batch = pad_features(features, padding)
        segment_ids = batch.pop("segment_ids")
        if first_position is not None and segment_ids.max() > 0:
            # Compare all pairs of tokens. Padding is segment -1 and attends to itself, because the softmax of a token
            # that attends to nothing would be NaN.
            batch["attention_mask"] = segment_ids[:, None, :, None] == segment_ids[:, None, None, :]
            batch["position_ids"] = first_position + _number_positions(segment_ids)
        return add_label_positions({name: torch.from_numpy(values) for name, values in batch.items()})

    return collate


def _number_positions(segment_ids: np.ndarray) -> np.ndarray:
    """Number the tokens of each segment from 0. Shape: (rows, tokens).

    >>> _number_positions(np.array([[0, 0, 1, 1, 1, -1]])).tolist()
    [[0, 1, 0, 1, 2, 0]]
    """
    # Subtract the first column of a segment from its columns; a running maximum repeats it to the right.
    columns = np.broadcast_to(np.arange(segment_ids.shape[1]), segment_ids.shape)
    is_start = np.diff(segment_ids, axis=1, prepend=segment_ids[:, :1] - 1) != 0
    return columns - np.maximum.accumulate(np.where(is_start, columns, 0), axis=1)
