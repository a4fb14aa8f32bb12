"""Attention between words, and the heads that follow relations, are what plain loops find."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from bertkit.insight.attention.relations import ALL, DIRECTIONS, RelationCounter, find_hits, words_attention
from tests.insight.attention.made_up import draw_attention, make_row


def test_a_word_attends_by_the_mean_and_is_attended_to_by_the_sum_of_its_tokens():
    row = make_row([7, 8, 9, 10], spans=[(0, 1), (1, 3), (3, 4)])
    weights = draw_attention([row], layers=1, heads=2)[0][0]
    found = words_attention(weights, row.spans)
    for head in range(2):
        for one, (start, end) in enumerate(row.spans):
            for two, (first, last) in enumerate(row.spans):
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
    attention = words_attention(weights, row.spans).tolist()
    others = [other for other in range(len(row.spans)) if other != word]
    if direction == DIRECTIONS[0]:
        return max(others, key=lambda other: attention[word][other])
    return max(others, key=lambda other: attention[other][word])


def test_accuracies_are_those_of_a_plain_loop_over_the_other_half(monkeypatch):
    monkeypatch.setattr("bertkit.insight.attention.relations._LEAST", 5)
    rows = make_rows(40)
    weights = draw_attention(rows)
    # one head looks at the syntactic head of each obj
    for number, row in enumerate(rows):
        for word, (start, end) in enumerate(row.spans):
            if row.relations[word] == "obj":
                weights[1][number, 2, start:end] = 0
                weights[1][number, 2, start:end, row.spans[row.heads[word] - 1][0]] = 1
    counter = RelationCounter()
    counter.add(list(range(40)), rows, weights)
    found = {score.relation: score for score in counter.scores(seed=3)}
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
    assert counter.scores() == []  # too few


def test_a_word_is_no_candidate_for_itself():
    attention = torch.tensor([[[[0.9, 0.1, 0.0], [0.0, 0.9, 0.1], [0.2, 0.0, 0.8]]]])
    assert find_hits(attention, [0, 1], [1, 2])[:, 0, 0].tolist() == [[True, False], [True, False]]
    assert find_hits(attention, [0], [2])[:, 0, 0].tolist() == [[False, True]]
