"""Attention of a text is what plain transformers computes; patterns and relations are what plain loops count."""

from __future__ import annotations

import math
import random
from collections import Counter

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from bertkit.analysis import attention
from bertkit.analysis.attention import (
    ALL,
    DIRECTIONS,
    PATTERNS,
    AttendedText,
    PatternCounter,
    RelationCounter,
    attend,
    describe_head,
    encode_rows,
    find_correct_heads,
    get_word_attention,
    load_attention_model,
    measure_heads,
    roll_out,
)
from bertkit.analysis.syntax import ParsedRow, parse_row
from bertkit.data.files import read_records
from bertkit.errors import DataError, UsageError
from bertkit.recipe import DataConfig
from tests.analysis.made_up_heads import draw_attention, make_row
from tests.conftest import make_tokenizer


@pytest.fixture(scope="module")
def loaded(tiny_model):
    return load_attention_model(tiny_model, "tiny")


def test_a_pair_has_the_weights_of_plain_transformers(loaded, tiny_model):
    found = attend(loaded, "A great film!", "so lovely", max_tokens=64)
    model = AutoModel.from_pretrained(tiny_model, attn_implementation="eager").eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    with torch.no_grad():
        batch = tokenizer("A great film!", "so lovely", return_tensors="pt")
        expected = model(**batch, output_attentions=True).attentions
    assert np.array_equal(found.weights, torch.cat(expected).numpy())
    assert np.allclose(found.weights.sum(-1), 1, atol=1e-6)
    assert [token.token for token in found.tokens] == tokenizer.convert_ids_to_tokens(batch["input_ids"][0])
    assert [token.segment for token in found.tokens] == [None, 0, 0, 0, 0, None, 1, 1, None]
    assert [token.text for token in found.tokens] == [
        *("[CLS]", "A", "great", "film", "!", "[SEP]", "so", "lovely", "[SEP]")
    ]


def test_tokens_keep_the_spelling_of_the_text(loaded):
    found = attend(loaded, "Goods [SEP]", max_tokens=64)
    assert [(token.token, token.text, token.segment) for token in found.tokens][1:3] == [
        *(("good", "Good", 0), ("##s", "##s", 0))
    ]
    assert [token.segment for token in found.tokens].count(None) == 2  # a text spells no special token


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ((" ",), "a text without tokens"),
        (("a", ""), "a text without tokens"),
        (("a film is good",), "6 tokens, more than --max-length 5"),
        (("a " * 70,), "72 tokens, and the model reads 64"),
    ],
)
def test_texts_that_cannot_be_shown_are_refused(loaded, texts, message):
    with pytest.raises(UsageError, match=message):
        attend(loaded, *texts, max_tokens=5)


def draw_weights(shape):
    return np.random.default_rng(0).dirichlet(np.ones(shape[-1]), size=shape[:-1]).astype(np.float32)


def test_rollout_multiplies_halves_of_attention_and_identity():
    weights = draw_weights((3, 2, 4, 4))
    found = roll_out(weights)
    expected = [[float(i == j) for j in range(4)] for i in range(4)]
    for layer in range(3):
        mixed = [[(weights[layer, :, i, j].astype(float).mean() + (i == j)) / 2 for j in range(4)] for i in range(4)]
        expected = [[sum(mixed[i][k] * expected[k][j] for k in range(4)) for j in range(4)] for i in range(4)]
        assert np.allclose(found[layer], expected, atol=1e-6)
    assert found.sum(axis=-1) == pytest.approx(1)


def test_entropies_are_means_over_tokens():
    weights = draw_weights((2, 2, 3, 3))
    weights[0, 0, 0] = [0, 1, 0]
    found = AttendedText("tiny", [], weights).entropy
    for layer, head in np.ndindex(2, 2):
        rows = [-sum(w * math.log(w) for w in row if w > 0) for row in weights[layer, head].tolist()]
        assert found[layer, head] == pytest.approx(sum(rows) / 3, abs=1e-5)


# --- Rows ---

CONLLU = "1\tGoods\t_\tNOUN\t_\t_\t2\tnsubj\t_\t_\n2\tis\t_\tAUX\t_\t_\t0\troot\t_\t_\n\n"


def test_words_of_conllu_have_heads_and_relations(tmp_path):
    (tmp_path / "a.conllu").write_text(CONLLU)
    (record,) = read_records(tmp_path / "a.conllu", DataConfig())
    row = parse_row(record, "text", "a.conllu")
    assert row == ParsedRow(["Goods", "is"], [2, 0], ["nsubj", "root"])
    (encoded,) = encode_rows([row], make_tokenizer(), 12)
    assert encoded.word_spans == [(1, 3), (3, 4)]  # good ##s, is
    assert (encoded.text, len(encoded)) == (slice(1, 4), 5)
    assert (encoded.heads, encoded.relations) == ([2, 0], ["nsubj", "root"])


def test_texts_and_words_without_relations():
    assert parse_row((1, {"text": "a film"}), "text", "f") == ParsedRow("a film")
    assert parse_row((1, {"words": ["a", "film"]}), "words", "f") == ParsedRow(["a", "film"])
    assert parse_row((1, {"tokens": ["a"], "head": [None], "deprel": ["_"]}), "text", "f").heads == [0]
    contracted = {
        "tokens": ["I", "don't", "do", "n't", "go"],
        "head": ["4", "None", "4", "4", "0"],
        "deprel": ["x"] * 5,
    }
    assert parse_row((1, contracted), "text", "f").heads == [5, 0, 5, 5, 0]
    rows = [ParsedRow("a film"), ParsedRow(""), ParsedRow(["a"]), ParsedRow("a " * 9)]
    tokenizer = make_tokenizer()
    found = encode_rows(rows, tokenizer, 10)  # the second is empty, the last too long
    assert [tokenizer.convert_ids_to_tokens(row.feature["input_ids"]) for row in found] == [
        ["[CLS]", "a", "film", "[SEP]"],
        ["[CLS]", "a", "[SEP]"],
    ]
    assert found[1].word_spans == [(1, 2)]


# --- Patterns ---

ROWS = [make_row([10, 11, 10, 5]), make_row([12, 5]), make_row([10, 13, 11, 11, 10])]
NAMES = {2: "[CLS]", 3: "[SEP]", 5: ".", 10: "the", 11: "##s", 12: "cat", 13: "Ġa"}


class Names:
    def convert_ids_to_tokens(self, token):
        return NAMES[token]


def recount(rows, weights, layer, head):
    """Count all patterns token by token; return means over the tokens that attend, and those of uniform attention."""
    counts = Counter(token for row in rows for token in row.feature["input_ids"][1:-1])
    sums, uniform, tokens = Counter(), Counter(), 0
    for number, row in enumerate(rows):
        ids = row.feature["input_ids"]
        last = len(ids) - 1
        rarest = min(counts[token] for token in ids[1:-1])
        for i in range(1, last):
            tokens += 1
            own = weights[layer][number, head, i].tolist()[: len(ids)]
            entropy = -sum(w * math.log(w) for w in own if w > 0)
            sums["entropy"] += entropy
            sums["normalized"] += entropy / math.log(len(ids))
            for j, token in enumerate(ids):
                is_text = 0 < j < last
                names = {
                    "itself": i == j,
                    "previous": is_text and j == i - 1,
                    "next": is_text and j == i + 1,
                    "same": is_text and i != j and token == ids[i],
                    "first": j == 0,
                    "separator": j == last,
                    "punctuation": token == 5,
                    "rare": is_text and counts[token] == rarest,
                }
                for name, applies in names.items():
                    sums[name] += own[j] * applies
                    uniform[name] += applies / len(ids)
    return {name: value / tokens for name, value in sums.items()}, {n: v / tokens for n, v in uniform.items()}, tokens


def test_patterns_are_those_of_a_plain_loop():
    weights = draw_attention(ROWS)
    counter = PatternCounter(ROWS, Names())
    counter.add(ROWS, weights)
    for measured in counter.measure_heads():
        expected, uniform, tokens = recount(ROWS, weights, measured.layer, measured.head)
        assert counter.token_count == tokens
        assert measured.shares == pytest.approx({name: expected[name] for name in PATTERNS}, abs=1e-6)
        assert counter.compute_uniform() == pytest.approx({name: uniform[name] for name in PATTERNS})
        assert measured.entropy == pytest.approx(expected["entropy"], abs=1e-5)
        assert measured.normalized_entropy == pytest.approx(expected["normalized"], abs=1e-5)
    parts = PatternCounter(ROWS, Names())
    for number, row in enumerate(ROWS):
        parts.add([row], [layer[number : number + 1] for layer in weights])
    for part, whole in zip(parts.measure_heads(), counter.measure_heads(), strict=True):
        assert part.shares == pytest.approx(whole.shares)


def test_a_head_is_described_by_what_gets_half_of_its_attention():
    shares = dict.fromkeys(PATTERNS, 0.0)
    assert describe_head({**shares, "next": 0.5}, 0.95) == "next"
    assert [describe_head(shares, entropy) for entropy in (0.95, 0.5)] == ["broad", "mixed"]


# --- Relations ---


def test_a_word_attends_by_the_mean_and_is_attended_to_by_the_sum_of_its_tokens():
    row = make_row([7, 8, 9, 10], spans=[(0, 1), (1, 3), (3, 4)])
    weights = draw_attention([row], layers=1, heads=2)[0][0]
    found = get_word_attention(weights, row.word_spans)
    for head in range(2):
        for one, (start, end) in enumerate(row.word_spans):
            for two, (first, last) in enumerate(row.word_spans):
                sums = [sum(weights[head, i, j].item() for j in range(first, last)) for i in range(start, end)]
                assert found[head, one, two].item() == pytest.approx(sum(sums) / len(sums), abs=1e-6)


def make_rows(count):
    """Return rows of words whose heads are drawn, and of two tokens now and then."""
    draw, rows = random.Random(0), []
    for _ in range(count):
        words = draw.randint(2, 6)
        spans, start = [], 0
        for _ in range(words):
            spans.append((start, start + draw.choice([1, 1, 2])))
            start = spans[-1][1]
        root = draw.randrange(words)
        heads = [
            0 if word == root else draw.choice([w for w in range(words) if w != word]) + 1 for word in range(words)
        ]
        relations = ["root" if head == 0 else draw.choice(["obj", "det", "punct"]) for head in heads]
        rows.append(make_row([7] * start, spans, heads, relations))
    return rows


def predict(weights, row, word, direction):
    """Return the other word to which a word attends most, or which attends to it most."""
    attention = get_word_attention(weights, row.word_spans).tolist()
    others = [other for other in range(len(row.word_spans)) if other != word]
    if direction == DIRECTIONS[0]:
        return max(others, key=lambda other: attention[word][other])
    return max(others, key=lambda other: attention[other][word])


def test_accuracies_are_those_of_a_plain_loop_over_the_other_half(monkeypatch):
    monkeypatch.setattr("bertkit.analysis.attention._MIN_WORDS", 5)
    rows = make_rows(40)
    weights = draw_attention(rows)
    # one head looks at the syntactic head of each obj
    for number, row in enumerate(rows):
        for word, (start, end) in enumerate(row.word_spans):
            if row.relations[word] == "obj":
                weights[1][number, 2, start:end] = 0
                weights[1][number, 2, start:end, row.word_spans[row.heads[word] - 1][0]] = 1
    counter = RelationCounter()
    counter.add(list(range(40)), rows, weights)
    found = {score.relation: score for score in counter.compute_scores(seed=3)}
    assert {ALL, "obj", "det", "punct"} == set(found)
    assert (found["obj"].layer, found["obj"].head, found["obj"].accuracy) == (1, 2, 1.0)
    assert found["obj"].direction == DIRECTIONS[0]
    chosen_on = set(np.random.default_rng(3).permutation(40)[:20].tolist())
    for name, score in found.items():
        hits = offsets = words = 0
        for number, row in enumerate(rows):
            for word, relation in enumerate(row.relations):
                applies = relation == name or (name == ALL and relation not in ("root", "punct"))
                if number in chosen_on or not applies:
                    continue
                words += 1
                gold = row.heads[word] - 1
                hits += predict(weights[score.layer][number, score.head], row, word, score.direction) == gold
                offsets += word + score.offset == gold
        assert (score.words, score.accuracy) == (words, pytest.approx(hits / words))
        assert score.offset_accuracy == pytest.approx(offsets / words)
        assert score.difference == pytest.approx(score.accuracy - score.offset_accuracy)
        assert score.interval is None or score.interval[0] <= score.accuracy <= score.interval[1]


def test_words_without_tokens_or_syntactic_heads_are_passed_over():
    row = make_row([7, 8], spans=[(0, 1), (1, 1), (1, 2)], heads=[3, 1, 0], relations=["obj", "det", "det"])
    counter = RelationCounter()
    counter.add([0], [row], draw_attention([row]))
    assert counter.relations == ["obj"] and counter.distances == [2]
    assert counter.compute_scores() == []  # too few


def test_a_word_is_no_candidate_for_itself():
    attention = torch.tensor([[[[0.9, 0.1, 0.0], [0.0, 0.9, 0.1], [0.2, 0.0, 0.8]]]])
    assert find_correct_heads(attention, [0, 1], [1, 2])[:, 0, 0].tolist() == [[True, False], [True, False]]
    assert find_correct_heads(attention, [0], [2])[:, 0, 0].tolist() == [[False, True]]


# --- All heads ---


def test_the_measures_do_not_depend_on_the_batches(loaded, monkeypatch):
    rows = [ParsedRow(text) for text in ("a film is so good", "bad!", "that book was dull and poor", "x " * 40)]
    found = measure_heads(loaded, rows, "a.txt", max_tokens=20)
    assert (found.rows, found.left_out, found.layers, found.heads, found.tokens) == (3, 1, 2, 2, 13)
    expected = np.zeros((2, 2))
    for row in rows[:3]:
        weights = attend(loaded, row.content, max_tokens=20).weights
        expected += weights[:, :, 1:-1, 0].sum(-1)
    assert [one.shares["first"] for one in found.measured] == pytest.approx((expected / 13).flatten(), abs=1e-6)
    monkeypatch.setattr(attention, "_BATCH_TOKENS", 8)
    alone = measure_heads(loaded, rows, "a.txt", max_tokens=20)
    for one, other in zip(found.measured, alone.measured, strict=True):
        assert one.shares == pytest.approx(other.shares, abs=1e-6)


def test_rows_without_text_are_refused(loaded):
    with pytest.raises(DataError, match="no row has text of up to 4 tokens"):
        measure_heads(loaded, [ParsedRow("a film is good"), ParsedRow([])], "a.txt", max_tokens=4)
