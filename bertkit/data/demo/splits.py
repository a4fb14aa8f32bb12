"""Which split a text of the demo belongs to: its checksum decides, so no text can be in two."""

from __future__ import annotations

import zlib


def split_of(text: str) -> str:
    """Return the split of a text: three in five are for training.

    >>> split_of("The dog slept."), split_of("The dogs slept.")
    ('train', 'test')
    """
    return ("validation", "test", "train", "train", "train")[zlib.crc32(text.encode()) % 5]
