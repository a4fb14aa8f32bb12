"""Spans of tokens: the n best as a plain loop finds them, and answers of whole words that are never lost."""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from bertkit.recipe import load_recipe
from bertkit.tasks import question_answering as task
from bertkit.tokens import answer_spans as spans
from bertkit.tokens.features import TaskContext, tokenize_texts
from tests.conftest import make_tokenizer


def loop(starts, ends, rows, n_best: int, longest: int) -> dict[int, list[tuple]]:
    """The usual loop: (score, start logit, end logit, window, start, end) of each row, best first."""
    spans_of_rows: dict[int, list[tuple]] = {int(row): [] for row in rows}
    for window, row in enumerate(rows):
        for start in np.argsort(-starts[window], kind="stable")[:n_best]:
            for end in np.argsort(-ends[window], kind="stable")[:n_best]:
                if start <= end and end - start + 1 <= longest:
                    first, last = starts[window][start], ends[window][end]
                    spans_of_rows[int(row)].append((first + last, first, last, window, int(start), int(end)))
    return {row: sorted(candidates, key=lambda span: -span[0])[:n_best] for row, candidates in spans_of_rows.items()}


def random_logits(rng, lengths):
    """Logits whose sums are all different, so that there is one right order."""
    values = rng.permutation(4 * sum(lengths)).astype(np.float32)
    starts = values[: sum(lengths)] * 2.0**-6
    ends = values[sum(lengths) : 2 * sum(lengths)] * (1 + 2.0**-13)
    edges = np.cumsum(lengths)[:-1]
    return np.split(starts.astype(np.float32), edges), np.split(ends.astype(np.float32), edges)


@given(
    windows=st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=4), min_size=1, max_size=6),
    n_best=st.integers(1, 30),
    longest=st.integers(1, 45),
    seed=st.integers(0, 10_000),
)
@settings(deadline=None)
@example(windows=[[1]], n_best=20, longest=30, seed=0)
@example(windows=[[3, 40, 7], [1], [40, 40]], n_best=20, longest=30, seed=1)
def test_the_best_spans_are_those_of_a_plain_loop(windows, n_best, longest, seed):
    lengths = [length for row in windows for length in row]
    rows = np.repeat(np.arange(len(windows)), [len(row) for row in windows])
    starts, ends = random_logits(np.random.default_rng(seed), lengths)
    best = spans.find_n_best(starts, ends, rows, n_best=n_best, max_tokens=longest)
    expected = loop(starts, ends, rows, n_best, longest)
    scores = [span[0] for row_spans in expected.values() for span in row_spans]
    assume(len(set(scores)) == len(scores))
    ours: dict[int, list[tuple]] = {number: [] for number in expected}
    names = ("score", "start_logit", "end_logit", "window", "start", "end")
    for row, *span in zip(best["row"], *(best[name] for name in names), strict=True):
        ours[int(row)].append(tuple(span))
    assert ours == expected
    assert list(best["row"]) == sorted(best["row"])


def test_batches_of_windows_leave_no_seam(monkeypatch):
    rng = np.random.default_rng(2)
    lengths, rows = rng.integers(1, 30, 50), np.sort(rng.integers(0, 9, 50))
    starts, ends = random_logits(rng, lengths)
    whole = spans.find_n_best(starts, ends, rows, n_best=20, max_tokens=30)
    monkeypatch.setattr(spans, "_WINDOWS_AT_ONCE", 7)
    batched = spans.find_n_best(starts, ends, rows, n_best=20, max_tokens=30)
    assert {name: values.tolist() for name, values in batched.items()} == {
        name: values.tolist() for name, values in whole.items()
    }


def test_a_row_without_any_valid_span_has_none():
    starts, ends = [np.array([0.0, 9.0])] * 2, [np.array([9.0, 0.0]), np.array([0.0, 9.0])]
    best = spans.find_n_best(starts, ends, np.array([0, 1]), n_best=1, max_tokens=5)
    assert (best["row"].tolist(), best["start"].tolist(), best["end"].tolist()) == ([1], [1], [1])


# --- windows


@given(tokens=st.integers(0, 200), max_tokens=st.integers(1, 60), overlap=st.integers(0, 59))
def test_windows_cover_everything_and_overlap_as_question_words(tokens, max_tokens, overlap):
    assume(overlap < max_tokens)
    windows = [list(range(tokens))[window] for window in spans.window_slices(tokens, max_tokens, overlap)]
    assert all(len(window) == max_tokens for window in windows[:-1])
    assert len(windows[-1]) <= max_tokens
    assert all(left[len(left) - overlap :] == right[:overlap] for left, right in pairwise(windows))
    assert windows[0] + [token for window in windows[1:] for token in window[overlap:]] == list(range(tokens))


# --- offsets


def array(*pairs):
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


@pytest.mark.parametrize(
    ("text", "offsets", "expected"),
    [
        ("good film", array((0, 4), (5, 9)), array((0, 4), (5, 9))),
        ("\u200bgood\u200b film\u0301", array((1, 5), (7, 11)), array((0, 6), (7, 12))),
        ("go\u200bod", array((0, 2), (3, 5)), array((0, 3), (3, 5))),
        ("good \u200b film", array((0, 4), (7, 11)), array((0, 4), (7, 11))),
        ("good\u200b \u200bfilm", array((0, 4), (7, 11)), array((0, 5), (6, 11))),
        (" good ", array((1, 5)), array((1, 5))),
        ("good", array((0, 4)), array((0, 4))),
    ],
)
def test_tokens_cover_characters_without_a_token(text, offsets, expected):
    before = offsets.copy()
    assert spans.extend_offsets(text, offsets).tolist() == expected.tolist()
    assert offsets.tolist() == before.tolist()


@given(st.text(st.sampled_from("ab \t\u200b\u0301"), max_size=12), st.data())
def test_extended_tokens_keep_their_order_and_cover_no_spaces(text, data):
    """Whatever letters have tokens, every visible character is covered once, unless its whole word has no token."""
    letters = [index for index, character in enumerate(text) if character in "ab"]
    kept = [index for index in letters if data.draw(st.booleans())]
    assume(kept)
    extended = spans.extend_offsets(text, array(*((index, index + 1) for index in kept)))
    covered = [index for start, end in extended for index in range(start, end)]
    assert covered == sorted(set(covered))
    assert not any(text[index].isspace() for index in covered)
    words = [match.span() for match in re.finditer(r"\S+", text)]
    expected = [
        index for begin, end in words if any(begin <= token < end for token in kept) for index in range(begin, end)
    ]
    assert covered == expected


def test_answers_are_found_whole_or_not_at_all():
    offsets = array((0, 4), (5, 6), (5, 6), (6, 9), (10, 12))

    def find(start, end, window=slice(None)):
        return spans.find_answer_tokens({"text": ["x" * (end - start)], "answer_start": [start]}, offsets[window])

    assert find(0, 4) == (0, 0)
    assert find(5, 6) == (1, 2)
    assert find(5, 9) == (1, 3)
    assert find(7, 8) == (3, 3)
    assert find(2, 11) == (0, 4)
    assert find(0, 4, slice(1, None)) == (-1, -1)
    assert find(10, 12, slice(0, 4)) == (-1, -1)
    assert find(10, 12, slice(0, 0)) == (-1, -1)
    assert spans.find_answer_tokens({"text": [], "answer_start": []}, offsets) == (-1, -1)


# --- from characters to tokens and back


def make_byte_tokenizer():
    """Bytes and a few merges, special tokens and offsets as RoBERTa has them."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=290,
        special_tokens=["<s>", "<pad>", "</s>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the film is good and the book was bad"] * 3, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False
    )
    special = {"bos_token": "<s>", "cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=512, **special)


MAKERS = {"wordpiece": make_tokenizer, "bytes": make_byte_tokenizer}


@cache
def setup_of(tokenizer: str, max_length: int, overlap: int) -> TaskContext:
    changes = {"training.max_length": max_length, "options.overlap": overlap, "options.max_answer_length": 1000}
    return TaskContext(load_recipe("qa", changes), tokenizer_of(tokenizer), ())


@cache
def tokenizer_of(name: str):
    return MAKERS[name]()


WORDS = (
    "film good, 'bad' [SEP] [MASK] unheard-of 3.50€ naïve nai\u0308ve go\u200bod \u200bfilm film\u200d \ufefffilm "
    "so\u00adng 🎬film film👩‍👩‍👧 é🇫🇷 עברית שָׁלוֹם\u200f العربية "
    "\u202efilm\u202c 東京film 東京 한국어 film\ufe0f ｆｉｌｍ ﬁlm İstanbul ß "
    "e\u0301\u0302\u0323 film\u0301 \u0301film दिल्ली ไทย \u2060film\u2060 x\ue000"
)
STRANGE = WORDS.split(" ")
UNSEEN = ["\u200b", "\ufeff", "\u0301", "\ue000", "👩‍👩‍👧", "...", "\u200d\u200b"]
SPACES = [" ", " ", " ", "  ", "\t", "\u3000", "\u00a0", "\n", "\r\n"]
# a word with a Latin letter always has a token
odd_text = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"]), max_size=4)
lettered = st.tuples(odd_text, st.sampled_from("abxyz"), odd_text).map("".join)
answer_words = st.lists(st.sampled_from(STRANGE) | lettered, min_size=1, max_size=4)
other_words = st.lists(st.sampled_from(STRANGE + UNSEEN) | odd_text.filter(bool), max_size=25)


def spaced(draw, words: list[str]) -> str:
    """Join words with spaces; a line break never follows a character without a token."""
    text = words[0] if words else ""
    for word in words[1:]:
        space = draw(st.sampled_from(SPACES))
        ends_plainly = text[-1:].isascii() and text[-1:].isprintable()
        text += (space if ends_plainly or space not in ("\n", "\r\n") else " ") + word
    return text


@st.composite
def answered(draw):
    before, answer, after = (draw(words) for words in (other_words, answer_words, other_words))
    text = spaced(draw, answer)
    opening = spaced(draw, before) + draw(st.sampled_from(["  ", " ", "\t"])) if before else ""
    closing = draw(st.sampled_from(["  ", " ", "\t"])) + spaced(draw, after) if after else ""
    answers = {"text": [text], "answer_start": [len(opening)]}
    return {"question": "good film?", "context": opening + text + closing, "answers": answers}


def planted(feature, name: str):
    logits = np.zeros(len(feature["input_ids"]), dtype=np.float32)
    logits[feature[name]] = 20.0
    return logits


@pytest.mark.parametrize("name", MAKERS)
@given(row=answered(), max_length=st.sampled_from([24, 40, 64, 500]), overlap=st.sampled_from([0, 4, 8, 128]))
@settings(deadline=None)
def test_an_answer_in_whole_words_comes_back_as_it_was(name, row, max_length, overlap):
    context = setup_of(name, max_length, overlap)
    row = task.read(row, context.recipe)
    features = task.encode([row], context)
    text = row["context"]
    for feature in features:
        offsets = feature["offsets"]
        assert (offsets >= 0).all()
        assert (offsets <= len(text)).all()
        assert (offsets[:, 0] <= offsets[:, 1]).all()
        assert (np.diff(offsets[:, 0]) >= 0).all()
        assert (np.diff(offsets[:, 1]) >= 0).all()
    holding = [feature for feature in features if feature["end_positions"]]
    assert holding or len(features) > 1
    assume(holding)
    outputs = [
        {"start_logits": planted(feature, "start_positions"), "end_logits": planted(feature, "end_positions")}
        for feature in features
    ]
    (answer,) = task.decode(outputs, features, [row], context)
    assert answer["prediction"] == row["answers"]["text"][0]
    assert text[answer["start"] : answer["end"]] == answer["prediction"]
    assert text.split() == [word for word in re.split(r"\s+", text) if word]  # both know the same spaces


@pytest.mark.parametrize("name", MAKERS)
@given(
    row=answered(),
    question_words=st.lists(st.sampled_from(STRANGE), max_size=30),
    max_length=st.sampled_from([8, 24, 64]),
)
@settings(deadline=None)
def test_every_token_is_in_a_window_and_no_window_is_too_long(name, row, question_words, max_length):
    context = setup_of(name, max_length, 4)
    row["question"] = " ".join(question_words) or "?"
    features = task.encode([row], context)
    (whole,) = tokenize_texts(context.tokenizer, [row["context"]])
    seen: list[int] = []
    for feature in features:
        size = len(feature["offsets"])
        ids = feature["input_ids"][feature["context"] : feature["context"] + size]
        assert len(feature["input_ids"]) <= max_length
        assert size > 0
        overlap = min(4, (max_length - (len(feature["input_ids"]) - size)) // 2) if seen else 0
        assert seen[len(seen) - overlap :] == ids[:overlap]
        seen += ids[overlap:]
    assert seen == whole.ids
    assert all(len(feature["input_ids"]) == max_length for feature in features[:-1])


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("max_length", [9, 16])
def test_a_question_longer_than_the_window_is_truncated(name, max_length):
    context = setup_of(name, max_length, 128)
    row = {"question": "good film " * 100, "context": "the book is bad"}
    features = task.encode([row], context)
    (whole,) = tokenize_texts(context.tokenizer, [row["context"]])
    assert all(len(feature["input_ids"]) <= max_length for feature in features)
    seen = {tuple(pair) for feature in features for pair in feature["offsets"].tolist()}
    assert seen == set(whole.offsets)
    question = (max_length - (3 if name == "wordpiece" else 4)) // 2
    assert {feature["context"] for feature in features} == {question + (2 if name == "wordpiece" else 3)}


def test_line_breaks_and_spaces_stay_outside():
    assert spans.extend_offsets("film\u200b\nbook", np.array([[0, 4], [6, 10]])).tolist() == [[0, 5], [6, 10]]
    assert spans.extend_offsets("the film ", np.array([[0, 3], [3, 9]])).tolist() == [[0, 3], [4, 8]]
    assert spans.extend_offsets("\u200b", np.zeros((0, 2), dtype=int)).tolist() == []
