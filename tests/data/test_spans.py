"""Spans of texts: offsets to the letter, and what cannot be read as it is meant."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertkit.data.spans import TextSpan, read_spans
from bertkit.errors import DataError

TEXT = "😀 Zoe\u0301 met A\u0301da in New York 👩\u200d👧."
PEOPLE = [TextSpan(2, 6, "PER"), TextSpan(11, 15, "PER"), TextSpan(19, 27, "LOC"), TextSpan(28, 31, "EMO")]


def utf16(text, offset):
    return len(text[:offset].encode("utf-16-le")) // 2


def as_objects(*names):
    return [dict(zip(names, span, strict=True)) for span in PEOPLE]


def test_offsets_are_code_points_to_the_letter():
    texts = ["Zoe\u0301", "A\u0301da", "New York", "👩\u200d👧"]
    assert [TEXT[span.start : span.end] for span in read_spans(as_objects("start", "end", "label"), TEXT)] == texts


@pytest.mark.parametrize(
    "value",
    [
        as_objects("start", "end", "label"),
        as_objects("start_offset", "end_offset", "label"),
        as_objects("start", "end", "type"),
        [list(span) for span in reversed(PEOPLE)],
        json.dumps(PEOPLE),
        [{"start": start, "end": end, "labels": [label]} for start, end, label in [*PEOPLE, *PEOPLE]],
        [{"start": 1, "end": 7, "label": "PER"}, *PEOPLE[1:]],  # with the spaces around it
    ],
)
def test_ways_to_write_spans(value):
    assert read_spans(value, TEXT) == PEOPLE


def test_utf16_units_are_read_where_asked_for_or_where_all_texts_prove_them():
    units = [(utf16(TEXT, start), utf16(TEXT, end), label) for start, end, label in PEOPLE]
    assert read_spans(units, TEXT, offsets="utf16") == PEOPLE
    proven = [
        {"start": start, "end": end, "label": label, "text": TEXT[span.start : span.end]}
        for span, (start, end, label) in zip(PEOPLE, units, strict=True)
    ]
    assert read_spans(proven, TEXT) == PEOPLE
    with pytest.raises(DataError, match=r"not in the text, .* - if the offsets count UTF-16 units: --set options.off"):
        read_spans([units[-1]], TEXT[: PEOPLE[-1].end])


@pytest.mark.parametrize("counting", ["utf8", "lf", "crlf", "inclusive", "one_based", "one_based_inclusive"])
def test_offsets_are_counted_as_the_quoted_texts_prove_or_as_an_option_says(counting):
    text = "Ä, Zoé: yes.\r\n(To Oslo.)" if counting != "crlf" else "Ä, Zoé: yes.\n(To Oslo.)"
    expected = [TextSpan(text.index(name), text.index(name) + len(name), "X") for name in ("Zoé", "Oslo")]
    shifts = {"inclusive": (0, -1), "one_based": (1, 1), "one_based_inclusive": (1, 0)}
    sizes = {"utf8": lambda part: len(part.encode()), "lf": lambda part: len(part.replace("\r\n", "\n"))}
    sizes["crlf"] = lambda part: len(part.replace("\n", "\r\n"))
    count, (start, end) = sizes.get(counting, len), shifts.get(counting, (0, 0))
    given = [(count(text[: span.start]) + start, count(text[: span.end]) + end) for span in expected]
    quoted = [
        {"start": start, "end": end, "label": "X", "text": text[span.start : span.end]}
        for (start, end), span in zip(given, expected, strict=True)
    ]
    assert read_spans(quoted, text) == expected
    assert read_spans([(*ends, "X") for ends in given], text, offsets=counting) == expected


@pytest.mark.parametrize(
    ("span", "counting"), [((5, 5), "inclusive"), ((4, 9), "one_based"), ((4, 10), "utf8"), ((0, 99), None)]
)
def test_without_quoted_texts_the_way_of_counting_is_only_suggested(span, counting):
    remedy = f"if the offsets count .*: --set options.offsets={counting}" if counting else "correct it: offsets count"
    with pytest.raises(DataError, match=f"not in the text.* - {remedy}"):
        read_spans([[*span, "A"]], "ÄÄh, Oslo" if counting == "utf8" else "Ah, Oslo")


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ([{"start": 19, "end": 27, "label": "A", "text": "New York", "parts": [[19, 22], [23, 27]]}], "has 2 parts"),
        ("positive", "'positive' is not a list of spans"),
        ([3], "span 1, 3, is not a start, an end and a label"),
        ([[0, 1, ""]], "span 1, .* is not a start"),
        ([[0, True, "A"]], "span 1, .* is not a start"),
        ([{"start": "/p[1]", "end": "/p[1]", "label": "A"}], "span 1, .* is not a start"),
        ([[5, 5, "A"]], r"the span 5:5 \(A\) is not in the text"),
        ([[0, 99, "A"]], "the span 0:99 .* which has 32 characters"),
        ([[1, 2, "A"]], "the span 1:2 ' ' .* is blank"),
        (
            [{"start": 19, "end": 22, "label": "A", "text": "York"}],
            "the span 19:22 'New' .* quotes another text: 'York'",
        ),
        (
            [[19, 27, "LOC"], [23, 27, "PER"]],
            r"19:27 'New York' \(LOC\) and 23:27 'York' \(PER\) overlap .* - .*longest",
        ),
        ([[19, 27, "LOC"], [19, 27, "PER"]], "overlap"),
    ],
)
def test_faults(value, what):
    with pytest.raises(DataError, match=what) as caught:
        read_spans(value, TEXT)
    assert "\n" not in str(caught.value)
    assert caught.value.column == "spans"


def test_the_longest_of_overlapping_spans():
    spans = [[23, 27, "PER"], [19, 27, "LOC"], [2, 6, "PER"], [19, 22, "LOC"]]
    left_out = []
    assert read_spans(spans, TEXT, overlapping="longest") == [TextSpan(2, 6, "PER"), TextSpan(19, 27, "LOC")]
    assert len(read_spans(spans, TEXT, overlapping="longest", dropped_spans=left_out)) == 2
    assert sorted(left_out) == [TextSpan(19, 22, "LOC"), TextSpan(23, 27, "PER")]


@given(st.data())
def test_any_spans_that_do_not_overlap_come_back(data):
    text = data.draw(st.text(st.sampled_from("ab. é\u0301😀👩\u200d\n"), min_size=1, max_size=30))
    ends = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=6)))
    given_spans = [TextSpan(*pair, "X") for pair in zip(ends[::2], ends[1::2], strict=False)]
    spans = [span for span in given_spans if text[span.start : span.end].strip()]
    read = read_spans(spans, text)
    assert [text[a:b] for a, b, _ in read] == [text[a:b].strip() for a, b, _ in spans]
    units = [(utf16(text, a), utf16(text, b), label) for a, b, label in spans]
    assert read_spans(units, text, offsets="utf16") == read
