"""Tags of words: rows read, windows encoded, answers decoded and scored, and a toy task from file to prediction."""

from __future__ import annotations

import itertools
import json
import math
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from seqeval.metrics import accuracy_score, classification_report, f1_score, precision_score, recall_score
from seqeval.scheme import IOB2
from sklearn import metrics as sklearn_metrics

from bertkit.errors import DataError, RecipeError
from bertkit.evaluation.forward import forward
from bertkit.metrics import tags as entities
from bertkit.metrics.intervals import find_intervals
from bertkit.recipe import load_recipe
from bertkit.tasks import drop_private_keys, load_task
from bertkit.tasks import token_classification as task
from bertkit.tokens.features import TaskContext
from bertkit.tokens.words import split_text
from bertkit.workflows.finetune import finetune
from bertkit.workflows.finetune_data import read_finetune_data
from tests.conftest import WORDS, make_tokenizer, write_jsonl
from tests.kills import read_lines

NONE = "if these are not entity tags, --set options.scheme=none --set metrics=[accuracy,f1_macro]"
PLAIN = {"metrics": ["accuracy", "f1_macro"], "best_metric": "accuracy"}
NER = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
POS = ("ADJ", "NOUN", "VERB")
ALL_METRICS = "f1 precision recall f1_strict precision_strict recall_strict accuracy f1_macro"
TOKENIZER = make_tokenizer()
STRANGE = [
    "film",
    "unheard",
    "\u200b",
    "\ufeff",
    "\u0301",
    "",
    "東京",
    "👩‍👩‍👧",
    "עברית",
    "a b",
    "[MASK]",
    "é",
    "\ue000",
]

some_words = st.lists(
    st.sampled_from(STRANGE) | st.text(st.characters(exclude_categories=["Cs"]), max_size=6), max_size=30
)


def setup_of(labels=NER, **changes) -> TaskContext:
    options = {f"options.{name}": value for name, value in changes.items() if name in task.OPTIONS}
    others = {name: value for name, value in changes.items() if name not in task.OPTIONS}
    return TaskContext(load_recipe("tag", {**options, **others}), TOKENIZER, tuple(labels))


def reading(row, recipe="tag", **changes):
    return task.read(row, load_recipe(recipe, changes))


# --- rows


@pytest.mark.parametrize(
    ("tokens", "tags"),
    [
        (["EU", "rejects"], ["B-ORG", "O"]),
        ('["EU", "rejects"]', '["B-ORG", "O"]'),
        ("EU rejects", "B-ORG  O"),
        (("EU", "rejects"), ("B-ORG", "O")),
    ],
)
def test_words_and_tags_are_lists_json_or_split_by_spaces(tokens, tags):
    assert reading({"tokens": tokens, "tags": tags}) == {"tokens": ["EU", "rejects"], "tags": ["B-ORG", "O"]}


def test_numbers_count_the_labels_of_the_recipe():
    row = {"tokens": ["EU", "rejects", "German", "New", "York"], "tags": [3, 0, 7, 5, 6]}
    assert reading(row, "ner")["tags"] == ["B-ORG", "O", "B-MISC", "B-LOC", "I-LOC"]
    with pytest.raises(DataError) as caught:
        reading({"tokens": ["EU", "rejects"], "tags": [3, 9]}, "ner")
    assert str(caught.value).startswith("word 2 'rejects': label '9' is not one of the 9 labels (0 O, 1 B-PER, ")
    assert reading({"tokens": ["one", "two"], "tags": [1, 2]}, **PLAIN)["tags"] == ["1", "2"]


@pytest.mark.parametrize("tags", [[2, 0], "[2, 0]", "2 0", ["2", "0"], [2.0, 0.0]])
def test_numbers_are_named_and_then_checked(tags):
    row = {"tokens": ["EU", "rejects"], "tags": tags}
    message = "word 1 'EU': I-PER at the beginning is not IOB2 (column 'tags') - add --set options.scheme=iob1"
    with pytest.raises(DataError) as caught:
        reading(row, "ner")
    assert str(caught.value) == message
    assert reading(row, "ner", **{"options.scheme": "iob1"})["tags"] == ["B-PER", "O"]


@pytest.mark.parametrize("tags", [[1, 0], "[1, 0]", "1 0"])
def test_numbers_that_name_entity_tags(tags):
    assert reading({"tokens": ["EU", "rejects"], "tags": tags}, "ner")["tags"] == ["B-PER", "O"]


@pytest.mark.parametrize("metric", sorted(task.entities.ENTITY_METRICS))
@pytest.mark.parametrize("tag", ["b-per", "NOUN", "PER", "X-PER"])
def test_entity_metrics_want_entity_tags(metric, tag):
    row = {"tokens": ["a", "b"], "tags": ["O", tag]}
    with pytest.raises(DataError) as caught:
        reading(row, metrics=["accuracy", metric], best_metric="accuracy")
    assert str(caught.value) == f"word 2 'b': the tag {tag!r} is not an entity tag (column 'tags') - {NONE}"
    assert reading(row, **PLAIN)["tags"] == ["O", tag]


@pytest.mark.parametrize(("overlapping", "count"), [("error", 0), ("longest", 3)])
def test_spans_that_overlap_a_longer_one_are_counted(overlapping, count):
    spans = [[0, 4, "LOC"], [5, 8, "PER"], *([[0, 2, "LOC"], [1, 3, "LOC"]] if count else [])]
    rows = [{"text": "Oslo Zoe", "spans": spans}, {"text": "Oslo", "spans": [[0, 4, "LOC"], *spans[2:3]]}]
    recipe = load_recipe("tag", {"options.overlapping": overlapping})
    warnings = task.find_row_warnings([task.read(row, recipe) for row in rows], recipe)
    assert warnings == (["3 of 6 (50.0%) spans overlap a longer one and are left out."] if count else [])


@pytest.mark.parametrize("text", [None, 3, ["a"]])
def test_what_is_no_text_is_refused(text):
    with pytest.raises(DataError) as caught:
        reading({"text": text})
    assert str(caught.value) == f"{text!r} is not text (column 'text') - texts must be strings"


@pytest.mark.parametrize("tokens", [[1, 2], ["a", None], "[1]"])
def test_what_is_no_list_of_words_is_refused(tokens):
    with pytest.raises(DataError, match=r" is not a list of words \(column 'tokens'\) - give a list of strings"):
        reading({"tokens": tokens})


def test_a_tag_that_is_a_list_is_refused():
    with pytest.raises(DataError) as caught:
        reading({"tokens": ["a", "b"], "tags": ["O", ["B-X"]]})
    assert str(caught.value) == "word 2 'b': ['B-X'] is not one tag (column 'tags') - write one"


@pytest.mark.parametrize("unknown", [-100, -1, None, float("nan"), "-100", ""])
def test_a_tag_that_nobody_gave_is_none(unknown):
    assert reading({"tokens": ["a", "b"], "tags": [unknown, "B-PER"]})["tags"] == [None, "B-PER"]
    assert reading({"tokens": ["a", "b"], "tags": [unknown, unknown]}) is None
    assert reading({"tokens": ["a", "b"], "tags": [3, unknown]}, "ner")["tags"] == ["B-ORG", None]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"tokens": ["a", "b", "c"], "tags": ["O"]}, "3 words but 1 tags (column 'tags') - write one tag per word"),
        ({"tokens": "a b", "tags": "O O O"}, "2 words but 3 tags (column 'tags') - write one tag per word"),
        ({"tokens": [], "tags": []}, "no words (column 'tokens') - leave the row out"),
        (
            {"tokens": ["a", "b"], "tags": ["O", "I-PER"]},
            "word 2 'b': I-PER after O is not IOB2 (column 'tags') - add --set options.scheme=iob1",
        ),
    ],
)
def test_rows_that_are_refused(row, message):
    with pytest.raises(DataError) as caught:
        reading(row)
    assert str(caught.value) == message


def test_schemes_are_named_by_the_recipe():
    row = {"tokens": ["a", "b", "c"], "tags": ["I-PER", "I-PER", "B-PER"]}
    assert reading(row, **{"options.scheme": "iob1"})["tags"] == ["B-PER", "I-PER", "B-PER"]
    assert reading(row, **{"options.scheme": "none"})["tags"] == row["tags"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("scheme", "bilou"),
        ("decoding", "beam"),
        ("overlap", "many"),
        ("overlap", -1),
        ("overlap", math.inf),
        ("overlap", 1.5),
        ("layers", "first"),
        ("tagger", "crf"),
        ("tagger_size", 1),
    ],
)
def test_options_that_are_refused_at_once(name, value):
    with pytest.raises(RecipeError, match=rf"options\.{name} is {value!r} - "):
        load_task(load_recipe("tag", {f"options.{name}": value}))


def test_text_to_predict_is_cut_into_words():
    assert reading({"text": "So, good!"}) == {
        "text": "So, good!",
        "tokens": ["So", ",", "good", "!"],
        "offsets": [(0, 2), (2, 3), (4, 8), (8, 9)],
    }
    assert reading({"tokens": ["So", "good!"]}) == {"tokens": ["So", "good!"]}


# --- features


def test_the_first_token_of_a_word_has_its_tag():
    row = {"tokens": ["film", "cab", "\u200b", "so", "ab"], "tags": ["O", "B-PER", "I-PER", "I-PER", None]}
    (feature,) = task.encode([row], setup_of())
    tokens = TOKENIZER.convert_ids_to_tokens(feature["input_ids"])
    assert tokens == ["[CLS]", "film", "c", "##a", "##b", "so", "a", "##b", "[SEP]"]
    assert feature["labels"] == [-100, 0, 1, -100, -100, 2, -100, -100, -100]
    assert feature["words"] == [0, 1, 3, 4]
    assert feature["positions"] == [1, 2, 5, 6]


def test_text_that_spells_a_special_token_stays_text():
    (feature,) = task.encode([{"tokens": ["[MASK]", "[SEP]", "film"]}], setup_of())
    assert TOKENIZER.mask_token_id not in feature["input_ids"]
    assert feature["input_ids"].count(TOKENIZER.sep_token_id) == 1
    assert "labels" not in feature


@pytest.mark.parametrize("max_length", [6, 16, 64, 128])
def test_in_a_long_row_every_word_is_labelled_once(max_length):
    rng = random.Random(0)
    words = rng.choices(["film", "book", "unheard", "cab", "\u200b"], k=300)
    tags = [NER[1] if word in ("cab", "unheard") else NER[0] for word in words]
    context = setup_of(**{"training.max_length": max_length})
    features = task.encode([{"tokens": ["so"], "tags": ["O"]}, {"tokens": words, "tags": tags}], context)
    assert [feature["row"] for feature in features] == [0, *[1] * (len(features) - 1)]
    assert len(features) > 2
    assert all(len(feature["input_ids"]) <= min(max_length, 64) for feature in features)
    pairs = [(each, zip(each["words"], each["positions"], strict=True)) for each in features[1:]]
    labelled = [(word, position, each) for each, found in pairs for word, position in found]
    assert sorted(word for word, _, _ in labelled) == [n for n, word in enumerate(words) if word != "\u200b"]
    assert all(each["labels"][position] == NER.index(tags[word]) for word, position, each in labelled)
    assert sum(label != -100 for each in features[1:] for label in each["labels"]) == len(labelled)


def test_a_window_that_leaves_hardly_any_room_is_refused():
    with pytest.raises(RecipeError) as caught:
        task.encode([{"tokens": ["film"]}], setup_of(**{"training.max_length": 5}))
    assert str(caught.value) == "training.max_length 5 leaves 3 tokens for text - give at least 6"


def test_batches_are_padded_with_labels_that_are_ignored():
    rows = [{"tokens": ["film"], "tags": ["O"]}, {"tokens": ["film", "book"], "tags": ["O", "B-PER"]}]
    context = setup_of()
    batch = task.collator(context)(task.encode(rows, context))
    assert batch["labels"].tolist() == [[-100, 0, -100, -100], [-100, 0, 1, -100]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]


# --- answers


def outputs_for(features, labels, seed=0):
    rng = np.random.default_rng(seed)
    return [{"logits": rng.normal(size=(len(each["input_ids"]), len(labels)), scale=3)} for each in features]


def decode(rows, context, seed=0):
    features = task.encode(rows, context)
    return task.decode(outputs_for(features, context.labels, seed), features, rows, context)


@given(st.lists(some_words, min_size=1, max_size=3), st.sampled_from(["greedy", "repair", "constrained"]))
@settings(deadline=None)
def test_every_word_has_a_tag_whatever_it_is(rows, decoding):
    context = setup_of(sorted(NER), decoding=decoding, **{"training.max_length": 16})
    rows = [{"tokens": words} for words in rows]
    read = {(each["row"], word) for each in task.encode(rows, context) for word in each["words"]}
    for number, (row, answer) in enumerate(zip(rows, decode(rows, context), strict=True)):
        assert len(answer["prediction"]) == len(answer["word_probabilities"]) == len(row["tokens"])
        for word, (tag, probability) in enumerate(zip(answer["prediction"], answer["word_probabilities"], strict=True)):
            assert (probability is not None) == ((number, word) in read)
            assert probability is not None or tag == "O"
        if decoding != "greedy":
            assert entities.find_invalid_tag(answer["prediction"]) is None


@given(some_words)
@settings(deadline=None)
def test_entities_of_words_lie_in_the_words_joined_by_spaces(words):
    (answer,) = decode([{"tokens": words}], setup_of(), seed=len(words))
    text, spans = " ".join(words), entities.find_spans(answer["prediction"])
    assert [each["type"] for each in answer["entities"]] == [kind for kind, _, _ in spans]
    for found, (_, first, last) in zip(answer["entities"], spans, strict=True):
        assert text[found["start"] : found["end"]] == found["text"] == " ".join(words[first:last])
    assert "words" not in answer


@given(some_words.map(" ".join))
@settings(deadline=None)
def test_entities_of_a_text_lie_in_the_text(text):
    row = reading({"text": text})
    (answer,) = decode([row], setup_of(), seed=len(text))
    offsets = split_text(text, at_punctuation=True)
    assert answer["words"] == [text[start:end] for start, end in offsets]
    for found, (_, first, last) in zip(answer["entities"], entities.find_spans(answer["prediction"]), strict=True):
        assert (found["start"], found["end"]) == (offsets[first][0], offsets[last - 1][1])
        assert text[found["start"] : found["end"]] == found["text"]


def decode_logits(logits, decoding):
    words = ["film"] * len(logits)
    context = setup_of(decoding=decoding)
    features = task.encode([{"tokens": words}], context)
    padded = np.pad(np.array(logits, dtype=np.float32), ((1, 1), (0, 0)))
    return task.decode([{"logits": padded}], features, [{"tokens": words}], context)[0]


def test_three_ways_to_decode():
    logits = [[2, 1, 0, 0, 0], [0, 0, 3, 0, 0], [0, 0, 0, 0, 1]]  # most probable: O, I-PER, I-LOC
    assert decode_logits(logits, "greedy")["prediction"] == ["O", "I-PER", "I-LOC"]
    assert decode_logits(logits, "repair")["prediction"] == ["O", "B-PER", "B-LOC"]
    assert decode_logits(logits, "constrained")["prediction"] == ["B-PER", "I-PER", "O"]


def test_an_entity_is_as_probable_as_its_words_on_average():
    answer = decode_logits([[0, 9, 0, 0, 0], [0, 0, 1, 0, 0], [9, 0, 0, 0, 0]], "repair")
    first, second, _ = answer["word_probabilities"]
    softmax = [np.exp(9) / (np.exp(9) + 4), np.exp(1) / (np.exp(1) + 4)]
    assert [first, second] == pytest.approx(softmax)
    assert answer["entities"] == [
        {"type": "PER", "text": "film film", "start": 0, "end": 9, "probability": pytest.approx(np.mean(softmax))}
    ]


def test_a_calibration_is_fitted_to_the_words_that_have_tokens_and_a_tag():
    rows = [{"tokens": ["film", "\u200b", "good"], "tags": ["O", "O", "B-PER"]}, {"tokens": ["film"], "tags": [None]}]
    predictions = decode(rows, setup_of())
    found = task.gold_probabilities(predictions, rows, setup_of())
    assert (found.gold.tolist(), found.rows.tolist(), found.unit) == ([0, 1], [0, 0], "word")
    sure = [predictions[0]["word_probabilities"][word] for word in (0, 2)]
    assert found.probabilities.max(axis=1).tolist() == sure


def test_plain_tags_have_no_entities_and_every_word_is_read():
    (answer,) = decode([{"tokens": ["film", "\u200b", ""]}], setup_of(POS, **PLAIN))
    assert set(drop_private_keys(answer)) == {"prediction", "word_probabilities"}
    assert None not in answer["word_probabilities"]


# --- scores


@st.composite
def tagged_rows(draw, labels, *, valid):
    """Return rows of gold tags and predicted ones."""
    sizes = draw(st.lists(st.integers(1, 8), min_size=1, max_size=5))
    tags = [st.lists(st.sampled_from(labels), min_size=size, max_size=size) for size in sizes]
    gold, predicted = [draw(each) for each in tags], [draw(each) for each in tags]
    return [entities.repair_tags(each) for each in gold] if valid else gold, predicted


def row_scores(gold, predicted, context):
    rows = [{"tokens": ["film"] * len(tags), "tags": tags} for tags in gold]
    return task.compare([{"prediction": tags} for tags in predicted], rows, context)


@given(tagged_rows(NER, valid=True))
@settings(deadline=None)
def test_entity_scores_are_those_of_seqeval(rows):
    gold, predicted = rows
    context = setup_of(metrics=ALL_METRICS.split())
    strict = {"mode": "strict", "scheme": IOB2, "zero_division": 0}
    assert task.score(row_scores(gold, predicted, context), context) == pytest.approx(
        {
            "f1": f1_score(gold, predicted, zero_division=0),
            "precision": precision_score(gold, predicted, zero_division=0),
            "recall": recall_score(gold, predicted, zero_division=0),
            "f1_strict": f1_score(gold, predicted, **strict) if has_entities(gold, predicted) else 0,
            "precision_strict": precision_score(gold, predicted, **strict) if has_entities(gold, predicted) else 0,
            "recall_strict": recall_score(gold, predicted, **strict) if has_entities(gold, predicted) else 0,
            "accuracy": accuracy_score(gold, predicted),
            "f1_macro": f1_score(gold, predicted, average="macro", zero_division=0)
            if any_spans(gold, predicted)
            else 0,
        }
    )


def has_entities(*sides):
    return any(entities.find_strict_spans(tags) for side in sides for tags in side)


def any_spans(*sides):
    return any(entities.find_spans(tags) for side in sides for tags in side)


def test_a_report_marks_entities_by_the_characters_of_the_text_or_of_its_words():
    text = "In  Paris,\tAda sang."
    spans = reading({"text": text, "spans": [{"start": 4, "end": 9, "label": "LOC"}]})
    words = {"tokens": ["Ada", "sang", "Bo"], "tags": ["B-PER", "O", None]}
    tags = [["O", "B-LOC", "O", "B-PER", "O", "O"], ["O", "B-PER", "B-PER"]]
    answers = task.details([{"prediction": side} for side in tags], [spans, words], setup_of()).answers
    assert [answer.highlighted for answer in answers] == [
        (text, [(4, 9, "LOC")], [(4, 9, "LOC"), (11, 14, "PER")]),
        ("Ada sang Bo", [(0, 3, "PER")], [(4, 8, "PER")]),
    ]


def test_a_wrong_entity_is_shown_with_the_probability_of_its_least_certain_word():
    row = {"tokens": ["Ada", "saw", "Rome"], "tags": ["B-PER", "O", None]}
    wrong = {"prediction": ["B-LOC", "B-PER", "B-LOC"], "word_probabilities": [0.9, 0.4, None]}
    right = {"prediction": ["B-PER", "O", "O"], "word_probabilities": [0.9, 0.4, None]}
    answers = task.details([wrong, right], [row, row], setup_of()).answers
    assert [(a.gold, a.predicted, a.correct, a.confidence) for a in answers] == [
        ("Ada (PER)", "Ada (LOC), saw (PER)", False, 0.9),
        ("Ada (PER)", "Ada (PER)", True, None),
    ]


def test_tags_of_all_words_are_not_marked():
    details = task.details(
        [{"prediction": ["N"]}], [{"tokens": ["a"], "tags": ["V"]}], setup_of(["N", "V"], scheme="none")
    )
    assert [answer.highlighted for answer in details.answers] == [None]


@given(tagged_rows(NER, valid=True).filter(lambda rows: any_spans(*rows)))
@settings(deadline=None)
def test_the_table_of_types_is_the_report_of_seqeval(rows):
    gold, predicted = rows
    answers = [{"prediction": tags, "word_probabilities": [0.5] * len(tags)} for tags in predicted]
    rows = [{"tokens": ["film"] * len(tags), "tags": tags} for tags in gold]
    table = task.details(answers, rows, setup_of()).tables["entity types"]
    report = classification_report(gold, predicted, output_dict=True, zero_division=0)
    expected = {name: row for name, row in report.items() if not name.endswith("avg")}
    assert {row["type"] for row in table} == set(expected)
    for row in table:
        ours = {"precision": row["precision"], "recall": row["recall"], "f1-score": row["f1"], "support": row["gold"]}
        assert ours == pytest.approx(expected[row["type"]])


@given(tagged_rows(POS, valid=False))
@settings(deadline=None)
def test_scores_of_plain_tags_are_those_of_scikit_learn(rows):
    gold, predicted = rows
    context = setup_of(POS, **PLAIN)
    one, other = ([tag for tags in side for tag in tags] for side in rows)
    assert task.score(row_scores(gold, predicted, context), context) == pytest.approx(
        {
            "accuracy": sklearn_metrics.accuracy_score(one, other),
            "f1_macro": sklearn_metrics.f1_score(one, other, average="macro", zero_division=0),
        }
    )


def test_words_without_a_tag_are_not_scored():
    context = setup_of(metrics=["accuracy", "f1"])
    gold, predicted = [["O", None, "B-PER", None]], [["O", "B-LOC", "B-PER", "I-PER"]]
    assert task.score(row_scores(gold, predicted, context), context) == {"accuracy": 1.0, "f1": 1.0}


def test_resampled_rows_are_scored_like_rows():
    gold, predicted = [["B-PER", "O"], ["B-LOC", "I-LOC"]], [["B-PER", "B-LOC"], ["B-LOC", "O"]]
    context = setup_of(metrics=ALL_METRICS.split())
    twice = {name: counts[[1, 1, 0]] for name, counts in row_scores(gold, predicted, context).items()}
    again = row_scores([gold[1], gold[1], gold[0]], [predicted[1], predicted[1], predicted[0]], context)
    assert task.score(twice, context) == task.score(again, context)


def test_entity_metrics_of_plain_tags_are_refused():
    plain = row_scores([["ADJ"]], [["NOUN"]], setup_of(POS, **PLAIN))
    with pytest.raises(RecipeError, match=r"only entity tags \(B-PER, I-PER, O\) have the metrics f1"):
        task.score(plain, setup_of(POS))


def test_the_most_frequent_tag_and_that_of_each_word_are_the_baselines():
    context = setup_of(("O", "B-PER"))
    training = [
        {"tokens": ["Ada", "ran", "Ada"], "tags": ["B-PER", "O", None]},
        {"tokens": ["a", "b"], "tags": ["O", "O"]},
    ]
    found = task.baselines(task.fit_baselines(training, context), [{"tokens": ["new", "Ada"]}], context)
    assert found == {
        "most frequent tag": [{"prediction": ["O", "O"]}],
        "most frequent tag of each word": [{"prediction": ["O", "B-PER"]}],
    }


# --- from file to prediction

LEARN = {
    "training.epochs": 4,
    "training.evaluate_every": 999,
    "training.batch_size": 16,
    "training.learning_rate": 8e-3,
    "training.precision": "fp32",
    "training.log_every": 8,
}


def toy_row(rng: random.Random, parts: int) -> dict[str, list[str]]:
    """Good words and what they praise are an entity, but only after `very`."""
    words: list[str] = []
    tags: list[str] = []
    for _ in range(parts):
        kind = rng.random()
        if kind < 0.4:
            words += ["very", rng.choice(WORDS["good"][:2]), rng.choice(["film", "book"])]
            tags += ["O", "B-X", "I-X"]
        else:
            words.append(rng.choice(["film", "book"] if kind < 0.6 else ["the", "a", ",", ".", *WORDS["bad"]]))
            tags.append("O")
    return {"tokens": words, "tags": tags}


def toy_rows(count: int, seed: int) -> list[dict[str, list[str]]]:
    rng = random.Random(seed)
    return [toy_row(rng, rng.randint(1, 4)) for _ in range(count)]


def write_conll(file: Path, rows, mark: str = "-DOCSTART- -X-\n\n") -> Path:
    file.parent.mkdir(exist_ok=True)
    sentences = ["\n".join(map(" ".join, zip(row["tokens"], row["tags"], strict=True))) for row in rows]
    file.write_text(mark + "\n\n".join(sentences), encoding="utf-8")
    return file


def write_conllu(file: Path, rows) -> Path:
    file.parent.mkdir(exist_ok=True)
    sentences = []
    for row in rows:
        words = enumerate(zip(row["tokens"], row["tags"], strict=True), 1)
        sentences.append("".join(f"{n}\t{word}\t_\t{tag}\t_\t_\t_\t_\t_\t_\n" for n, (word, tag) in words))
    file.write_text("# newdoc\n" + "\n".join(sentences) + "\n", encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("rows") / "data"
    write_jsonl(folder / "train.jsonl", toy_rows(160, seed=1))
    write_jsonl(folder / "validation.jsonl", toy_rows(40, seed=2))
    return folder


@pytest.fixture(scope="module")
def tagger(data, tiny_model) -> Path:
    """A run folder: the tiny model fine-tuned until it finds the toy entities."""
    changes = {"model": str(tiny_model), "data.source": str(data), **LEARN}
    finetune(load_recipe("tag", changes), output=data.parent / "run")
    return data.parent / "run"


def test_the_toy_entities_are_learned_and_the_loss_falls(tagger):
    result = json.loads((tagger / "run.json").read_text())["results"][0]
    assert result["scores"]["f1"] > 0.9 > 0.1 > result["baselines"]["most frequent tag"]["f1"]
    losses = [entry["loss"] for entry in read_lines(tagger / "metrics.jsonl") if "loss" in entry]
    assert losses[-1] < losses[0] / 4
    assert json.loads((tagger / "config.json").read_text())["id2label"] == {"0": "B-X", "1": "I-X", "2": "O"}


def test_predictions_of_a_run_have_as_many_tags_as_words(tagger, data):
    predictions, rows = read_lines(tagger / "predictions.jsonl"), read_lines(data / "validation.jsonl")
    assert [len(each["prediction"]) for each in predictions] == [len(row["tokens"]) for row in rows]
    result = json.loads((tagger / "run.json").read_text())["results"][0]
    gold, predicted = [row["tags"] for row in rows], [each["prediction"] for each in predictions]
    assert result["scores"]["f1"] == pytest.approx(f1_score(gold, predicted))


@pytest.mark.parametrize("write", ["jsonl", "conll", "txt"])
def test_eval_repeats_the_score_of_training_from_any_file(run, tagger, data, tmp_path, write):
    file = data / "validation.jsonl"
    if write != "jsonl":
        file = write_conll(tmp_path / f"validation.{write}", read_lines(file))
    ended = run("eval", "tag", "--model", tagger, "--data", file, "--json")
    assert ended.code == 0, ended.err
    trained = json.loads((tagger / "run.json").read_text())["results"][0]
    assert json.loads(ended.out)["results"][0]["scores"] == trained["scores"]


def test_column_files_give_the_same_rows_as_json(data, tiny_model, tmp_path):
    rows = {split: read_lines(data / f"{split}.jsonl") for split in ("train", "validation")}
    for split, each in rows.items():
        write_conll(tmp_path / "conll" / f"{split}.conll", each)
        write_conll(tmp_path / "txt" / f"{split}.txt", each, mark="")
    found = []
    for folder in (data, tmp_path / "conll", tmp_path / "txt"):
        recipe = load_recipe("tag", {"model": str(tiny_model), "data.source": str(folder)})
        found.append(read_finetune_data(recipe, None).plan.identity["data"])
    assert found[0] == found[1] == found[2]


def test_a_text_to_predict_prints_its_entities(run, tagger):
    ended = run("predict", "tag", "--model", tagger, "--text", "The  bad, very great film.")
    assert ended.code == 0, ended.err
    record = json.loads(ended.out)
    assert record["words"] == ["The", "bad", ",", "very", "great", "film", "."]
    assert record["prediction"] == ["O", "O", "O", "O", "B-X", "I-X", "O"]
    (entity,) = record["entities"]
    assert entity.pop("probability") == pytest.approx(np.mean(record["word_probabilities"][4:6]))
    assert entity == {"type": "X", "text": "great film", "start": 15, "end": 25}


def test_words_to_predict_need_no_tags(run, tagger):
    ended = run("predict", "tag", "--model", tagger, "--row", "tokens=very", "--row", "tokens=good")
    assert (ended.code, json.loads(ended.out)["prediction"]) == (0, ["O", "B-X"])
    write_jsonl(Path("new.jsonl"), [{"tokens": ["\u200b"]}, {"tokens": []}])
    ended = run("predict", "tag", "new.jsonl", "--model", tagger)
    assert [json.loads(line)["prediction"] for line in ended.out.splitlines()] == [["O"], []], ended.err


def test_a_document_longer_than_the_model_is_tagged_to_its_end(run, tagger):
    row = toy_row(random.Random(3), 400)
    words, gold = row["tokens"][:500], row["tags"][:500]
    write_jsonl(Path("long.jsonl"), [{"tokens": words}])
    ended = run("predict", "tag", "long.jsonl", "--model", tagger)
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)["prediction"]
    assert len(found) == 500
    assert "B-X" in found[440:]
    assert sum(one == other for one, other in zip(gold, found, strict=True)) > 375


def test_parts_of_speech_from_conllu(run, tiny_model, tmp_path):
    kinds = {"film": "NOUN", "book": "NOUN", "song": "NOUN", "is": "VERB", "was": "VERB", "good": "ADJ", "dull": "ADJ"}
    rng = random.Random(0)
    rows = [{"tokens": words, "tags": [kinds[word] for word in words]} for words in sample(rng, list(kinds), 120)]
    write_conllu(tmp_path / "ud" / "train.conllu", rows[:100])
    write_conllu(tmp_path / "ud" / "validation.conllu", rows[100:])
    settings = ["data.columns.tags=upos", "metrics=[accuracy, f1_macro]", "best_metric=accuracy"]
    settings += [f"{name}={value}" for name, value in {**LEARN, "training.epochs": 4}.items()]
    changes = [part for setting in settings for part in ("--set", setting)]
    ended = run("finetune", "tag", "--model", tiny_model, "--data", tmp_path / "ud", *changes, "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["results"][0]["scores"] == {"accuracy": 1.0, "f1_macro": 1.0}


def sample(rng, words, count):
    return [rng.choices(words, k=rng.randint(2, 9)) for _ in range(count)]


# --- mistakes

GIVE = "write one tag per word"
BIOES = "add --set options.scheme=bioes if they are BIOES"
IOB1 = "add --set options.scheme=iob1"


@pytest.mark.parametrize(
    ("name", "content", "what", "remedy"),
    [
        ("train.jsonl", '{"tokens": ["a", "b"], "tags": ["O"]}\n', "2 words but 1 tags (FILE:2, column 'tags')", GIVE),
        (
            "train.jsonl",
            '{"tokens": ["a", "b"], "tags": ["O", "I-X"]}\n',
            "word 2 'b': I-X after O is not IOB2 (FILE:2, column 'tags')",
            IOB1,
        ),
        (
            "train.jsonl",
            '{"tokens": ["a", "b"], "tags": ["B-", "O"]}\n',
            "word 1 'a': the tag 'B-' has no type (FILE:2, column 'tags')",
            "correct the row",
        ),
        (
            "train.conll",
            "\n\na B-X\nb E-X\n",
            "word 2 'b': the tag 'E-X' is not IOB2 (FILE:5, column 'tags')",
            BIOES,
        ),
        (
            "train.conll",
            "\n\na O\nb b-x\n",
            "word 2 'b': the tag 'b-x' is not an entity tag (FILE:5, column 'tags')",
            NONE,
        ),
        (
            "train.conll",
            "\n\na O\nb\n",
            "1 column, but 2 in line 3: 'b' (FILE:6)",
            "give every word the same columns",
        ),
    ],
)
def test_mistakes_in_rows_end_in_one_line(run, tiny_model, tmp_path, name, content, what, remedy):
    rows = [{"tokens": ["a"], "tags": ["B-X"]}]
    folder = tmp_path / "wrong"
    write_jsonl(folder / "validation.jsonl", rows)
    write = write_jsonl if name.endswith("jsonl") else write_conll
    file = write(folder / name, rows)
    file.write_text(file.read_text() + content)
    ended = run("finetune", "tag", "--model", tiny_model, "--data", folder)
    assert (ended.code, ended.last) == (3, f"error: {what.replace('FILE', str(file))} - {remedy}")
    assert len(ended.err.splitlines()) == 1
    assert not Path("runs").exists()


def test_an_unknown_tag_is_refused_where_the_recipe_names_the_labels(run, tiny_model, tmp_path):
    folder = tmp_path / "wrong"
    for split in ("train", "validation"):
        write_jsonl(folder / f"{split}.jsonl", [{"tokens": ["a", "b"], "tags": ["B-X", "O"]}])
    ended = run("finetune", "tag", "--model", tiny_model, "--data", folder, "--set", "labels=[O, B-Y, I-Y]")
    assert ended.code == 3
    assert ended.last.startswith("error: word 1 'a': label 'B-X' is not one of the 3 labels (0 O, 1 B-Y, 2 I-Y)")
    assert "train.jsonl:1, column 'tags')" in ended.last


def test_other_schemes_are_read_when_asked_for(run, tiny_model, tmp_path):
    folder = tmp_path / "bioes"
    for split in ("train", "validation"):
        write_conll(folder / f"{split}.conll", [{"tokens": ["a", "b", "c"], "tags": ["B-X", "E-X", "S-X"]}] * 4)
    options = ["--model", tiny_model, "--data", folder, "--set", "options.scheme=bioes", "--dry-run"]
    ended = run("finetune", "tag", *options)
    assert ended.code == 0, ended.err
    assert "labels   B-X, I-X" in ended.out


def test_a_row_without_any_tag_is_left_out_and_counted(run, tiny_model, tmp_path):
    folder = tmp_path / "some"
    rows = [{"tokens": ["a", "b"], "tags": ["B-X", "O"]}, {"tokens": ["a", "b"], "tags": [-100, None]}]
    for split in ("train", "validation"):
        write_jsonl(folder / f"{split}.jsonl", rows)
    ended = run("finetune", "tag", "--model", tiny_model, "--data", folder, "--dry-run")
    assert ended.code == 0, ended.err
    assert "rows     train 1, validation 1" in ended.out
    assert "train.jsonl without labels, left out: 1" in ended.err


def few_settings(**changes):
    settings = {"training.epochs": 1, "training.batch_size": 1, "training.precision": "fp32", **changes}
    return [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]


def test_windows_without_any_label_leave_the_loss_finite(run, tiny_model, tmp_path):  # some are a batch of their own
    folder = tmp_path / "sparse"
    sparse = {"tokens": ["film"] * 150, "tags": ["O", *[None] * 149]}
    write_jsonl(folder / "train.jsonl", [sparse, *toy_rows(4, seed=1)])
    write_jsonl(folder / "validation.jsonl", [sparse, *toy_rows(3, seed=2)])
    options = few_settings(**{"training.log_every": 1, "training.epochs": 4})
    ended = run("finetune", "tag", "--model", tiny_model, "--data", folder, *options, "--output", tmp_path / "run")
    assert ended.code == 0, ended.err
    entries = read_lines(tmp_path / "run" / "metrics.jsonl")
    losses = [value for entry in entries for name, value in entry.items() if name.endswith("loss")]
    assert len(losses) > 5
    assert np.isfinite(losses).all()
    weights = load_file(tmp_path / "run" / "model.safetensors")
    assert all(weight.isfinite().all() for weight in weights.values())


def test_the_mean_loss_leaves_out_windows_without_any_label(tiny_model):
    context = setup_of()
    model = task.load_model(tiny_model, context, new_head=True)
    rows = [{"tokens": ["film"] * 150, "tags": ["O", *[None] * 149]}, {"tokens": ["book"], "tags": ["O"]}]
    features = task.encode(rows, context)
    assert sum(not {*each["labels"]} - {-100} for each in features) >= 2
    collate = task.collator(context)
    _, loss = forward(model, features, collate, precision="fp32")
    labelled = [each for each in features if {*each["labels"]} - {-100}]
    alone = [model.eval()(**collate([each])).loss.item() for each in labelled]
    assert loss == pytest.approx(np.mean(alone), abs=1e-5)


def test_a_row_to_predict_whose_text_is_none_ends_in_one_line(run, tagger):
    write_jsonl(Path("none.jsonl"), [{"text": "a film"}, {"text": None}])
    ended = run("predict", "tag", "none.jsonl", "--model", tagger)
    assert (ended.code, ended.out) == (3, "")
    assert ended.err == "error: None is not text (none.jsonl:2, column 'text') - texts must be strings\n"


def test_an_endless_overlap_is_refused(run, tagger, data):
    ended = run("eval", "tag", "--model", tagger, "--data", data, "--set", "options.overlap=.inf")
    assert ended.code == 2
    assert ended.err == "error: options.overlap is inf - give an integer of at least 0\n"


# --- spans of characters

WHITESPACE = {"options.word_split": "whitespace"}
FAMILY = "👩\u200d👧\ufe0f"


def spans_row(text, *found):
    """A text with spans of the first place of each of some strings."""
    return {"text": text, "spans": [[text.index(part), text.index(part) + len(part), label] for part, label in found]}


def test_spans_become_tags_of_the_words_that_they_touch():
    row = reading(
        spans_row("Zoe\u0301 saw Oslo-based 😀.", ("Zoe\u0301", "PER"), ("Oslo", "LOC"), ("😀", "EMO")), **WHITESPACE
    )
    assert row["tokens"] == ["Zoe\u0301", "saw", "Oslo-based", "😀", "."]
    assert row["tags"] == ["B-PER", "O", "B-LOC", "B-EMO", "O"]
    assert row["spans"] == [[0, 4, "PER"], [9, 13, "LOC"], [20, 21, "EMO"]]
    assert reading({"text": "a", "spans": None}) is None
    with pytest.raises(DataError, match="the recipe `tag` takes the types of your rows"):
        reading(spans_row("Oslo", ("Oslo", "CITY")), "ner")


UNSPACED = "東京ロシアภาษาไทยน้ำမြန်မာខ្មែរລາວ"


@given(
    st.text(st.sampled_from("ab1-/. ,'é" + UNSPACED) | st.characters(exclude_categories=["Cs"]), min_size=1), st.data()
)
@settings(deadline=None)
@pytest.mark.parametrize("word_split", ["whitespace", "punctuation", "subwords"])
def test_words_never_depend_on_gold_spans(tiny_model, word_split, text, data):
    ends = data.draw(st.lists(st.integers(0, len(text)), max_size=6, unique=True).map(sorted))
    spans = [(start, end, "X") for start, end in zip(ends[::2], ends[1::2], strict=False) if text[start:end].strip()]
    changes = {"model": str(tiny_model), "options.word_split": word_split}
    with_spans = reading({"text": text, "spans": spans}, **changes)
    plain = reading({"text": text}, **changes)
    assert (with_spans["tokens"], with_spans["offsets"]) == (plain["tokens"], plain["offsets"])
    assert [text[start:end] for start, end in plain["offsets"]] == plain["tokens"]
    assert all(one[1] <= two[0] for one, two in itertools.pairwise(plain["offsets"]))
    task.encode([plain], setup_of(**changes))


@pytest.mark.parametrize(
    ("word_split", "words"),
    [
        ("whitespace", ["fever/chills", ",", "10mg", "U.N.", "東", "京"]),
        ("punctuation", ["fever", "/", "chills", ",", "10", "mg", "U.N.", "東", "京"]),
    ],
)
def test_texts_are_split_as_finely_as_a_recipe_says(word_split, words):
    assert reading({"text": "fever/chills, 10mg U.N. 東京"}, **{"options.word_split": word_split})["tokens"] == words


def test_subwords_are_the_tokens_of_the_text(tiny_model):
    changes = {"model": str(tiny_model), "options.word_split": "subwords"}
    row = reading(spans_row("a filmcab 👩‍🚀!", ("cab", "X")), **changes)
    (feature,) = task.encode([row], setup_of(["O", "B-X", "I-X"], **changes))
    tokens = TOKENIZER("a filmcab 👩‍🚀!", add_special_tokens=False).tokens()
    assert TOKENIZER.convert_ids_to_tokens(feature["input_ids"][1:-1]) == tokens
    labelled = [
        row["tokens"][word]
        for word, at in zip(feature["words"], feature["positions"], strict=True)
        if feature["labels"][at]
    ]
    assert "".join(labelled) == "cab"


def test_labels_of_spans_are_those_of_tags_in_both_forms_of_unicode():
    composed, decomposed = (reading({"text": "Oslo", "spans": [[0, 4, name]]}) for name in ("caf\u00e9", "cafe\u0301"))
    assert composed["spans"] == decomposed["spans"] and composed["tags"] == decomposed["tags"]
    context = setup_of(["O", "B-caf\u00e9"], metrics=["f1"])
    assert task.score(task.compare([{"prediction": ["B-caf\u00e9"]}], [decomposed], context), context) == {"f1": 1}


def test_gold_spans_that_no_words_match_are_counted():
    parts = ("red", "saw", "fever", "redcat")
    rows = [reading(spans_row("redcat saw fever/chills", (part, "X")), **WHITESPACE) for part in parts]
    (warning,) = task.find_row_warnings(rows, load_recipe("tag", WHITESPACE))
    assert warning.startswith("2 of 4 (50.0%) gold spans begin or end inside a word")
    finer = {"options.word_split": "punctuation"}
    rows = [reading(spans_row("redcat saw fever/chills", (part, "X")), **finer) for part in ("saw", "fever", "chills")]
    assert task.find_row_warnings([*rows, {"tokens": ["a"], "tags": ["O"]}], load_recipe("tag", finer)) == []


@pytest.mark.parametrize(
    ("recount", "named"),
    [
        (lambda text, start, end: (start, end - 1), "last character"),
        (lambda text, start, end: (start + 1, end + 1), "from 1"),
        (lambda text, start, end: (start + 1, end), "from 1"),
        (lambda text, *ends: [len(text[:end].encode()) for end in ends], "bytes"),
        (lambda text, *ends: [len(text[:end].encode("utf-16-le")) // 2 for end in ends], "options.offsets=utf16"),
    ],
)
def test_offsets_that_are_counted_in_another_way_are_refused(recount, named):
    rows = []
    for number in range(12):
        text = f"{'😀é' * (number % 3 + 1)} Anna lives in Oslo, where number {number} is."
        spans = [(*recount(text, text.index(name), text.index(name) + 4), "X") for name in ("Anna", "Oslo")]
        rows.append(reading({"text": text, "spans": spans}))
    with pytest.raises(DataError, match=named):
        task.find_row_warnings(rows, load_recipe("tag"))


SYLLABLES = ["red", "blue", "cat", "dog", "/", "-", " ", " "]


@given(st.lists(st.lists(st.sampled_from(SYLLABLES), min_size=1, max_size=8), min_size=1, max_size=4), st.data())
@settings(deadline=None)
def test_spans_are_scored_by_characters(texts, data):
    # The reference is a loop over the spans that a prediction of the same texts has.
    context = setup_of(["O", "B-X", "I-X"], metrics=["f1", "precision", "recall"])
    rows, right, gold, found = [], 0, 0, 0
    for parts in texts:
        places = zip(parts, itertools.accumulate(map(len, parts), initial=0), strict=False)
        spans = [(at, at + len(part), "X") for part, at in places if part.isalpha() and data.draw(st.booleans())]
        rows.append(reading({"text": "".join(parts), "spans": spans}))
    plain = [reading({"text": row["text"]}) for row in rows]
    answers = decode(plain, context, seed=data.draw(st.integers(0, 99)))
    for row, answer in zip(rows, answers, strict=True):
        expected = {tuple(span) for span in row["spans"]}
        predicted = {(span["start"], span["end"], span["label"]) for span in answer["spans"]}
        right, gold, found = right + len(expected & predicted), gold + len(expected), found + len(predicted)
    scores = task.score(task.compare(answers, rows, context), context)
    assert scores == pytest.approx(
        {"f1": 2 * right / max(1, gold + found), "precision": right / max(1, found), "recall": right / max(1, gold)}
    )
    shown = task.details(answers, rows, context).answers
    assert [answer.correct for answer in shown] == [
        {tuple(span) for span in row["spans"]}
        == {(span["start"], span["end"], span["label"]) for span in answer["spans"]}
        for row, answer in zip(rows, answers, strict=True)
    ]


@given(
    st.lists(st.tuples(st.sampled_from(["good film", FAMILY, "e\u0301", "😀"]), st.booleans()), max_size=40),
    st.booleans(),
)
def test_gold_spans_come_back_to_the_letter_from_windows(parts, has_spaces):
    text, spans = "", []
    for part, is_named in parts:
        spans += [(len(text), len(text) + len(part), "PER")] if is_named else []
        text += part + (" " if has_spaces else ",")
    text += "."
    context = setup_of(overlap=4, word_split="punctuation", **{"training.max_length": 12})
    row = task.read({"text": text, "spans": spans}, context.recipe)
    features = task.encode([row], context)
    outputs = []
    for feature in features:
        logits = np.zeros((len(feature["input_ids"]), len(NER)))
        for word, position in zip(feature["words"], feature["positions"], strict=True):
            logits[position, NER.index(row["tags"][word])] = 9
        outputs.append({"logits": logits})
    (answer,) = task.decode(outputs, features, [row], context)
    assert [(span["start"], span["end"], span["label"]) for span in answer["spans"]] == spans
    assert all(0.9 < span["score"] <= 1 for span in answer["spans"])


@pytest.mark.parametrize("word_split", ["whitespace", "punctuation", "subwords"])
def test_eval_scores_the_spans_that_predict_finds(run, tiny_model, word_split):
    rows = [
        spans_row(f"the {color}{noun}/dog {n}", (color, "X"), ("dog", "Y"))
        for n in range(3)
        for color in ("bad", "good")
        for noun in ("film", "cab")
    ]
    for split in ("train", "validation"):
        write_jsonl(Path("spans") / f"{split}.jsonl", rows)
    write_jsonl(Path("texts.jsonl"), [{"text": row["text"]} for row in rows])
    settings = few_settings(**{"training.epochs": 12, "training.learning_rate": 1e-2, "options.word_split": word_split})
    ended = run("finetune", "tag", "--model", tiny_model, "--data", "spans", *settings, "--output", "run")
    assert ended.code == 0, ended.err
    assert ("12 of 24 (50.0%) gold spans" in ended.err) == (word_split == "punctuation")
    assert ("24 of 24 (100.0%) gold spans" in ended.err) == (word_split == "whitespace")
    scores = json.loads(run("eval", "run", "--on-overlap", "mark", "--json").out)["results"][0]["scores"]
    predicted = map(json.loads, run("predict", "run", "texts.jsonl").out.splitlines())
    pairs = [
        ({tuple(span) for span in row["spans"]}, {(one["start"], one["end"], one["label"]) for one in record["spans"]})
        for row, record in zip(rows, predicted, strict=True)
    ]
    found = sum(len(spans) for _, spans in pairs)
    assert scores["f1"] == pytest.approx(2 * sum(len(gold & spans) for gold, spans in pairs) / (24 + found))
    assert (scores["f1"] > 0) == (word_split != "whitespace")


def test_rows_with_spans_are_trained_on_scored_and_predicted(run, tagger, tiny_model):
    def as_text(row):
        text, spans = "😀 " + " ".join(row["tokens"]), []
        offsets = [(start + 2, end + 2) for start, end in entities.find_word_offsets(row["tokens"])]
        for name, first, last in entities.find_spans(row["tags"]):
            spans.append({"start": offsets[first][0], "end": offsets[last - 1][1], "label": name})
        return {"text": text, "spans": spans, "_task_hash": 1, "answer": "accept"}

    rows = [as_text(toy_row(random.Random(seed), 40 if seed == 7 else 3)) for seed in range(30)]
    rows[3]["answer"] = "ignore"
    write_jsonl(Path("p.jsonl"), rows)
    ended = run("predict", tagger, "p.jsonl", "--output", "out.jsonl")
    assert ended.code == 0, ended.err
    records = read_lines(Path("out.jsonl"))
    assert [record["gold_spans"] for record in records] == [
        None if row["answer"] == "ignore" else row["spans"] for row in rows
    ]
    for record, row in zip(records, rows, strict=True):
        assert record["text"] == row["text"]
        texts = [record["text"][span["start"] : span["end"]] for span in record["spans"]]
        assert texts == [entity["text"] for entity in record["entities"]]
    write_jsonl(Path("words.jsonl"), [{"tokens": row["text"].split()} for row in rows])
    of_words = map(json.loads, run("predict", tagger, "words.jsonl").out.splitlines())
    for record, words in zip(records, of_words, strict=True):
        assert [(one["start"], one["end"], one["label"]) for one in record["spans"]] == [
            (one["start"], one["end"], one["type"]) for one in words["entities"]
        ]
    assert sum(len(record["spans"]) for record in records) > 20
    ended = run("eval", tagger, "--data", "p.jsonl", "--split", "all")
    assert ended.code == 0, ended.err
    assert "rows of p.jsonl without an accepted answer, left out: 1" in ended.err
    ended = run("finetune", "tag", "--data", "out.jsonl", "--model", tiny_model, "--dry-run")
    assert ended.code == 0, ended.err
    assert "labels   B-X, I-X, O" in ended.out


@pytest.fixture
def tag_script(tmp_path):
    script = tmp_path / "tags_right" / "tags_right.py"
    script.parent.mkdir()
    script.write_text(
        "import datasets\nimport evaluate\n\n\nclass TagsRight(evaluate.Metric):\n"
        "    def _info(self):\n"
        "        tags = datasets.Sequence(datasets.Value('string'))\n"
        "        features = datasets.Features({'predictions': tags, 'references': tags})\n"
        "        return evaluate.MetricInfo(description='', citation='', features=features)\n\n"
        "    def _compute(self, predictions, references):\n"
        "        pairs = [pair for row in zip(references, predictions) for pair in zip(*row)]\n"
        "        return {'right': sum(a == b for a, b in pairs) / len(pairs), 'words': {'all': len(pairs)}}\n"
    )
    return script


def count_words(gold, predicted):
    return sum(map(len, gold))


def test_metrics_of_libraries_get_lists_of_labeled_tags_and_have_no_interval(tag_script):
    metrics = ["f1", f"evaluate:{tag_script.parent}", f"{__name__}.count_words"]
    recipe = load_recipe("ner", {"metrics": metrics})
    family, context = load_task(recipe), TaskContext(recipe, None, tuple(recipe.labels))
    rows = [{"tokens": ["EU", "says", "no"], "tags": ["B-ORG", None, "O"]}, {"tokens": ["Rome"], "tags": ["B-LOC"]}]
    predictions = [{"prediction": ["B-ORG", "B-LOC", "O"]}, {"prediction": ["O"]}]
    row_scores = family.compare(predictions, rows, context)
    scores = family.score(row_scores, context)
    assert scores == {"f1": pytest.approx(2 / 3), "right": pytest.approx(2 / 3), f"{__name__}.count_words": 3}
    found = find_intervals(
        family.METRICS, scores, row_scores, lambda row_scores: family.score(row_scores, context), samples=20
    )
    assert found.bounds["right"] is None and found.reasons["right"] == "metrics of libraries are not resampled"
    with pytest.raises(RecipeError, match="best_metric 'right' is not among the metrics with an interval"):
        load_task(recipe.model_copy(update={"best_metric": "right"}))
    with pytest.raises(RecipeError, match="needs gold values, and contrastive has none"):
        load_task(load_recipe("similarity-pairs", {"metrics": ["mrr@10", f"evaluate:{tag_script.parent}"]}))
