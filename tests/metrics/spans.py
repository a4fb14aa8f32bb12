"""Tags and spans for tests: drawn at random, and written in any scheme."""

from __future__ import annotations

from hypothesis import strategies as st

TYPES = ["PER", "LOC", "X-Y"]
TAGS = ["O", *(prefix + kind for prefix in ("B-", "I-") for kind in TYPES)]

any_tags = st.lists(st.sampled_from(TAGS), max_size=12)


def write_tags(spans, count, first, inside, last, single):
    """Write spans with the prefixes of a scheme."""
    tags = ["O"] * count
    for kind, start, end in spans:
        prefixes = [single] if end - start == 1 else [first, *[inside] * (end - start - 2), last]
        tags[start:end] = [f"{prefix}-{kind}" for prefix in prefixes]
    return tags


def write_iob2(spans, count):
    return write_tags(spans, count, "B", "I", "I", "B")


def write_iob1(spans, count):
    """Write ``B-`` only where an entity touches one of its own type."""
    tags = write_tags(spans, count, "I", "I", "I", "I")
    ends = {(kind, end) for kind, _, end in spans}
    for kind, start, _ in spans:
        if (kind, start) in ends:
            tags[start] = f"B-{kind}"
    return tags


@st.composite
def rows_of_spans(draw):
    spans, position = [], 0
    for kind, gap, size in draw(st.lists(st.tuples(st.sampled_from(TYPES), st.integers(0, 2), st.integers(1, 4)))):
        spans.append((kind, position + gap, position + gap + size))
        position += gap + size
    return spans, position + draw(st.integers(0, 2))
