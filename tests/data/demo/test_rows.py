"""Demo rows are well formed, splits share no text, and no shortcut finds the labels."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from functools import cache
from itertools import chain, pairwise
from operator import eq
from statistics import fmean

import pytest

from bertkit.data.demo import find_demo_set, read_demo_rows
from bertkit.recipe import load_recipe
from tests.kills import slow_unless

SIZES = {"train": 3000, "validation": 500, "test": 500}
TEXTS = ("cola", "mnli", "mrpc", "qnli", "qqp", "rte", "sst2", "stsb", "wnli")
PAIRS = tuple(name for name in TEXTS if name not in ("cola", "sst2"))
OTHERS = (
    *("choose", "decide", "ner", "pos", "rerank", "similarity-pairs", "similarity-texts", "similarity-triples"),
    *("squad", "squad2", "swag", "wsd"),
)
QUESTIONS, CHOICES = ("squad", "squad2"), ("choose", "swag")


@cache
def rows_of(name, split, limit=400):
    """Return the first rows of a split, or all of them if the limit is None."""
    return read_demo_rows(load_recipe(name), split, limit)


def all_text(row):
    """Return all texts of a row as one."""
    texts = [row.get(name, "") for name in ("text", "context", "question", "state")]
    texts += [row.get(name, "") for name in ("query", "passage", "anchor", "positive", "negative")]
    return " ".join([*texts, *row.get("choices", []), *row.get("tokens", [])])


# --- All rows ---


@pytest.mark.parametrize("name", slow_unless(["sst2", "rerank"], [*TEXTS, *OTHERS]))
def test_splits_share_no_text(name):
    first = {
        split: [row.get("text") or row.get("context") or all_text(row) for row in rows_of(name, split, None)]
        for split in SIZES
    }
    assert {split: len(set(texts)) for split, texts in first.items()} == SIZES
    everything = [all_text(row) for split in SIZES for row in rows_of(name, split, None)]
    assert len(set(everything)) == sum(SIZES.values())
    assert not set(first["train"]) & {*first["validation"], *first["test"]}
    assert not set(first["validation"]) & set(first["test"])


def test_the_mismatched_split_is_about_something_else():
    matched, mismatched = (rows_of("mnli", f"validation{suffix}", 300) for suffix in ("", "_mismatched"))
    assert not {row["text"] for row in matched} & {row["text"] for row in mismatched}


@pytest.mark.slow
def test_the_demo_learns_to_tell_good_sentences_from_broken_ones(run):
    ended = run("finetune", "cola", "--model", "demo", "--data", "demo", "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["results"][0]["scores"]["matthews_correlation"] > 0.6


# --- Texts and pairs of texts ---


@pytest.mark.parametrize("name", TEXTS)
def test_the_splits_hold_every_label(name):
    if labels := find_demo_set(load_recipe(name)).labels:
        counts = Counter(row["label"] for row in rows_of(name, "train", 600))
        assert set(counts) == set(labels)
        assert min(counts.values()) > 0.25 * 600


def learned(features, name):
    """Train a linear model on features of the rows; return its score on validation, and the most frequent label's."""
    from scipy.stats import spearmanr
    from sklearn.feature_extraction import DictVectorizer
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MaxAbsScaler

    train, held_out = rows_of(name, "train"), rows_of(name, "validation")
    gold, held_out_gold = ([row["label"] for row in rows] for rows in (train, held_out))
    is_graded = isinstance(gold[0], float)
    linear = Ridge() if is_graded else LogisticRegression(max_iter=1000)
    model = make_pipeline(DictVectorizer(), MaxAbsScaler(), linear).fit(list(map(features, train)), gold)
    predicted = model.predict(list(map(features, held_out)))
    if is_graded:
        return spearmanr(predicted, held_out_gold).statistic, 0.0
    most_frequent = Counter(gold).most_common(1)[0][0]
    return tuple(fmean(map(eq, guess, held_out_gold)) for guess in (predicted, [most_frequent] * len(held_out)))


def lengths(row):
    first, second = row["text"], row.get("text_pair", "")
    return {
        "first": len(first),
        "second": len(second),
        "words of first": len(first.split()),
        "words of second": len(second.split()),
        "difference": len(second) - len(first),
        "distance": abs(len(second) - len(first)),
    }


def words(row):
    texts = {"first": row["text"], "second": row.get("text_pair", "")}
    return {f"{which} {word}": 1 for which, text in texts.items() for word in re.findall(r"\w+", text.lower())}


@pytest.mark.parametrize("name", slow_unless(["cola", "rte"], TEXTS))
def test_lengths_do_not_tell_the_label(name):
    score, most_frequent = learned(lengths, name)
    assert score < most_frequent + (0.3 if name == "stsb" else 0.12)


@pytest.mark.parametrize("name", slow_unless(["rte", "mrpc"], PAIRS))
def test_the_words_of_a_pair_do_not_tell_how_its_texts_are_related(name):
    score, most_frequent = learned(words, name)
    assert score < most_frequent + 0.25


def test_the_subject_tells_the_topic():
    recipe = load_recipe("cola", {"labels": ["alive", "not alive"]})
    subjects = {"alive": set(), "not alive": set()}
    for row in read_demo_rows(recipe, "train", 400):
        subjects[row["label"]].update(row["text"].lower().split()[1:3])
    assert {"king", "queen", "nurse"} <= subjects["alive"]
    assert {"piano", "kite"} <= subjects["not alive"]
    assert not subjects["not alive"] & {"king", "queen", "nurse"}


# --- Tagged words and senses ---


def most_frequent_tags(name):
    """Tag each word of validation as training does most often; return (gold, tagged)."""
    counts = defaultdict(Counter)
    for row in rows_of(name, "train"):
        for word, tag in zip(row["tokens"], row["tags"], strict=True):
            counts[word.lower()][tag] += 1
    rows = rows_of(name, "validation")
    tagged = [[max(counts[w.lower()] or ["O"], key=counts[w.lower()].get) for w in row["tokens"]] for row in rows]
    return [row["tags"] for row in rows], tagged


def test_names_are_tagged_in_iob2():
    counts = Counter()
    for row in rows_of("ner", "train"):
        assert len(row["tokens"]) == len(row["tags"])
        for before, tag in pairwise(["O", *row["tags"]]):
            assert re.fullmatch("O|[BI]-(PER|ORG|LOC|MISC)", tag)
            assert not tag.startswith("I-") or before[1:] == tag[1:], row
        counts[sum(tag.startswith("B-") for tag in row["tags"])] += 1
    assert sorted(counts) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", ["ner", "pos"])
def test_the_tags_are_the_labels_of_the_set(name):
    assert {tag for row in rows_of(name, "train") for tag in row["tags"]} == {*find_demo_set(load_recipe(name)).labels}
    assert all(len(row["tokens"]) == len(row["tags"]) for row in rows_of(name, "train"))


def test_a_list_of_names_does_not_solve_ner():
    from seqeval.metrics import f1_score

    assert 0.2 < f1_score(*most_frequent_tags("ner")) < 0.7


def test_a_list_of_words_does_not_solve_pos():
    gold, tagged = (list(chain(*tags)) for tags in most_frequent_tags("pos"))
    assert 0.7 < sum(map(eq, gold, tagged)) / len(gold) < 0.95


def test_targets_are_forms_of_their_word():
    senses = Counter()
    for row in rows_of("wsd", "train"):
        assert row["tokens"][row["target"]].lower() in (row["word"], row["word"] + "s")
        assert row["sense"].startswith(row["word"] + "_")
        senses[row["sense"]] += 1
    assert len(senses) == 11
    assert min(senses.values()) > 0.04 * senses.total()
    assert {row["sense"] for row in rows_of("wsd", "validation")} == set(senses)


# --- Choices and rankings ---


@pytest.mark.parametrize("name", slow_unless(["swag"], CHOICES))
def test_labels_of_choices_are_balanced(name):
    rows = rows_of(name, "train", None)
    sizes = {len(row["choices"]) for row in rows}
    assert sizes == ({4} if name == "swag" else {2, 3, 4, 5})
    assert all(len(set(row["choices"])) == len(row["choices"]) for row in rows)
    for size in sizes:
        labels = Counter(row["label"] for row in rows if len(row["choices"]) == size)
        assert sorted(labels) == list(range(size))
        assert min(labels.values()) > 0.75 * labels.total() / size


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize(
    "guess",
    [lambda choices: choices[0], lambda choices: max(choices, key=len), lambda choices: min(choices, key=len)],
    ids=["first", "longest", "shortest"],
)
def test_a_guess_at_a_choice_is_near_chance(name, guess):
    rows = rows_of(name, "train", None)
    chance = sum(1 / len(row["choices"]) for row in rows)
    right = sum(guess(row["choices"]) == row["choices"][row["label"]] for row in rows)
    assert abs(right - chance) / len(rows) < 0.06


def test_one_passage_of_each_query_is_relevant_at_any_position():
    positions = [0] * 5
    lengths = [0] * 5
    train = rows_of("rerank", "train", None)
    for rows in (train[start : start + 5] for start in range(0, len(train), 5)):
        assert len({row["query"] for row in rows}) == 1 and len({row["passage"] for row in rows}) == 5
        (relevant,) = [number for number, row in enumerate(rows) if row["relevance"]]
        positions[relevant] += 1
        lengths[sorted(range(5), key=lambda number: len(rows[number]["passage"])).index(relevant)] += 1
    assert min(positions) > 0.7 * 120 and min(lengths) > 0.5 * 120


# --- Questions ---


@pytest.mark.parametrize("split", slow_unless(["validation"], SIZES))
@pytest.mark.parametrize("name", QUESTIONS)
def test_answers_are_at_their_offsets(name, split):
    rows = rows_of(name, split)
    counts = Counter(len(row["answers"]["text"]) for row in rows)
    for row in rows:
        texts, starts = row["answers"]["text"], row["answers"]["answer_start"]
        assert len(texts) == len(starts) == len(set(texts))
        assert all(row["context"][start:].startswith(text) for text, start in zip(texts, starts, strict=True))
        assert 2 <= row["context"].count(".") <= 5
        assert row["question"].endswith("?")
    assert len({row["id"] for row in rows}) == len(rows)
    assert set(counts) - {0} == ({1} if split == "train" else {1, 2, 3})
    assert counts[0] / len(rows) == pytest.approx(1 / 3 if name == "squad2" else 0, abs=0.065)
