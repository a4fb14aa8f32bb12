"""Rows and attention that are made up."""

from __future__ import annotations

import torch

from bertkit.analysis.attention import EncodedRow


def make_row(ids, spans=(), heads=(), relations=()):
    """Return a row of [CLS] 2, some ids, and [SEP] 3; spans count from the first of these ids."""
    return EncodedRow(
        feature={"input_ids": [2, *ids, 3]},
        text=slice(1, 1 + len(ids)),
        word_spans=[(start + 1, end + 1) for start, end in spans],
        heads=list(heads),
        relations=list(relations),
    )


def draw_attention(rows, layers=2, heads=3, seed=0):
    """Return weights per layer, (rows, heads, tokens, tokens): of each row over its own tokens, zeros for padding."""
    random = torch.Generator().manual_seed(seed)
    lengths = list(map(len, rows))
    width = max(lengths)
    weights = []
    for _ in range(layers):
        scores = 3 * torch.randn(len(rows), heads, width, width, generator=random)
        for index, length in enumerate(lengths):
            scores[index, :, :, length:] = -torch.inf
        weights.append(scores.softmax(-1))
    return weights
