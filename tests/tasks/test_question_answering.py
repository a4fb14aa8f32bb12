"""Spans that answer questions: rows read, windows encoded, answers decoded, and a toy task from file to prediction."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest

from bertkit.errors import DataError, RecipeError
from bertkit.recipe import load_recipe
from bertkit.tasks import drop_private_keys
from bertkit.tasks import question_answering as task
from bertkit.tokens.features import TaskContext
from bertkit.workflows.finetune import finetune
from tests.conftest import WORDS, make_tokenizer
from tests.kills import read_lines
from tests.metrics.test_squad import official_best, official_raw, official_scores

TOKENIZER = make_tokenizer()
TOKENIZER.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
CONTEXT = "the film was good and the book was bad"
PLACES = [(0, 3), (4, 8), (9, 12), (13, 17), (18, 21), (22, 25), (26, 30), (31, 34), (35, 38)]
WORDY = [(start, end) for start, end in PLACES if CONTEXT[start:end] != "the"]  # which is no answer once normalized


def setup_of(recipe: str = "qa", **changes) -> TaskContext:
    options = {f"options.{name}": value for name, value in changes.items() if name in task.OPTIONS}
    others = {f"training.{name}": value for name, value in changes.items() if name not in task.OPTIONS}
    return TaskContext(load_recipe(recipe, {**options, **others}), TOKENIZER, ())


def answer(text: str, start: int) -> dict:
    return {"text": [text], "answer_start": [start]}


def row_of(answers=None, question: str = "film?", context: str = CONTEXT, **more) -> dict:
    return {"question": question, "context": context, **({} if answers is None else {"answers": answers}), **more}


def spans_of(record: dict) -> list[dict]:
    return [span for span in task.list_n_best(record) if span["text"]]


# --- reading


def test_rows_to_predict_need_no_answers():
    assert task.read(row_of(), load_recipe("qa")) == row_of()


@pytest.mark.parametrize("column", ["question", "context"])
@pytest.mark.parametrize("value", ["", " \n", None, 3])
def test_a_row_without_text_is_refused(column, value):
    with pytest.raises(DataError) as raised:
        task.read({**row_of(id="x"), column: value}, load_recipe("qa"))
    assert str(raised.value) == f"question x: no {column} (column {column!r}) - fill it in, or leave the row out"


def test_no_answer_is_an_answer_only_where_the_recipe_says_so():
    nothing = {"text": [], "answer_start": []}
    assert task.read(row_of(nothing), load_recipe("squad2"))["answers"] == nothing
    assert task.read(row_of(nothing), load_recipe("qa", {"options.no_answer": True}))["answers"] == nothing
    with pytest.raises(DataError) as raised:
        task.read(row_of(nothing, id="x"), load_recipe("qa"))
    assert str(raised.value) == (
        "question x: no answer, but this recipe expects one for every question (column 'answers') - "
        "use the recipe squad2, or --set options.no_answer=true"
    )


@pytest.mark.parametrize(("text", "start"), [("good ", 13), (" good", 12), (" good ", 12)])
def test_spaces_around_an_answer_are_not_part_of_it(text, start):
    row = task.read(row_of(answer(text, start)), load_recipe("qa"))
    assert row["answers"] == answer("good", 13)


def test_plain_text_may_look_like_json():
    row = task.read(row_of("[x]", context="film [x] book"), load_recipe("qa"))
    assert row["answers"] == answer("[x]", 5)


@pytest.mark.parametrize("start", [0.9, float("inf"), float("nan"), "x", None])
def test_a_start_is_a_whole_number(start):
    with pytest.raises(DataError, match="the answers are not in the form of SQuAD"):
        task.read(row_of({"text": ["the"], "answer_start": [start]}), load_recipe("qa"))


def test_half_a_character_in_the_context_breaks_no_message():
    with pytest.raises(DataError, match="the answer 'film' is not at 3"):
        task.read(row_of({"text": ["film"], "answer_start": [3]}, context="film \ud800 book"), load_recipe("qa"))


# --- encoding


def test_hardly_any_room_is_refused():
    with pytest.raises(RecipeError, match=r"training.max_length 5 leaves 2 tokens for text - give at least 7"):
        task.encode([row_of()], setup_of(max_length=5))


def test_a_text_without_tokens_has_an_empty_answer_and_breaks_no_other():
    rows = [row_of(context="\u200b\u200b"), row_of()]
    features = task.encode(rows, setup_of())
    outputs = [
        {f"{side}_logits": np.arange(len(each["input_ids"]), dtype=np.float32) for side in ("start", "end")}
        for each in features
    ]
    empty, full = task.decode(outputs, features, rows, setup_of())
    assert (empty["prediction"], full["prediction"]) == ("", "bad")


def test_the_answer_is_where_its_tokens_are():
    (feature,) = task.encode([row_of(answer("good", 13))], setup_of())
    tokens = TOKENIZER.convert_ids_to_tokens(feature["input_ids"])
    assert tokens == ["[CLS]", "film", "?", "[SEP]", *CONTEXT.split(), "[SEP]"]
    assert feature["token_type_ids"] == [0] * 4 + [1] * 10
    assert (feature["context"], feature["start_positions"], feature["end_positions"]) == (4, 7, 7)
    assert [tuple(pair) for pair in feature["offsets"].tolist()] == PLACES


def test_rows_without_answers_have_no_positions():
    (feature,) = task.encode([row_of()], setup_of())
    assert "start_positions" not in feature
    batch = task.collator(setup_of())([feature])
    assert sorted(batch) == ["attention_mask", "input_ids", "token_type_ids"]


def test_a_window_without_the_answer_points_at_its_beginning():
    # 3 special tokens, 2 of the question: 5 of the text in a window of 10, 2 of them again in the next
    rows = [
        row_of(answer("bad", 35)),
        row_of({"text": [], "answer_start": []}),
        row_of(answer("good and the book", 13)),
    ]
    features = task.encode(rows, setup_of("squad2", max_length=10, overlap=2))
    assert [feature["row"] for feature in features] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    edges = [(feature["offsets"][0, 0], feature["offsets"][-1, 1]) for feature in features[:3]]
    assert edges == [(0, 21), (13, 34), (26, 38)]
    positions = [(feature["start_positions"], feature["end_positions"]) for feature in features]
    assert positions[:3] == [(0, 0), (0, 0), (6, 6)]
    assert positions[3:6] == [(0, 0)] * 3
    assert positions[6:] == [(0, 0), (4, 7), (0, 0)]
    batch = task.collator(setup_of())(features)
    assert batch["start_positions"].tolist() == [start for start, _ in positions]
    assert batch["end_positions"].tolist() == [end for _, end in positions]


@pytest.mark.parametrize(("max_length", "overlap"), [(16, 0), (16, 4), (24, 8), (40, 12), (64, 20)])
def test_windows_are_those_of_transformers(max_length, overlap):
    rng = random.Random(max_length)
    words = [word for each in WORDS.values() for word in each] + ["unheard", "of,", "[SEP]", "naïve", "東京"]
    rows = [
        row_of(
            question=" ".join(rng.choices(words[:10], k=rng.randint(1, 4))),
            context=" ".join(rng.choices(words, k=size)),
        )
        for size in [*range(1, 40), 90, 150]
    ]
    features = task.encode(rows, setup_of(max_length=max_length, overlap=overlap))
    theirs = TOKENIZER(
        [row["question"] for row in rows],
        [row["context"] for row in rows],
        truncation="only_second",
        max_length=max_length,
        stride=overlap,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
        split_special_tokens=True,
    )
    assert [feature["row"] for feature in features] == theirs["overflow_to_sample_mapping"]
    for number, feature in enumerate(features):
        assert feature["input_ids"] == theirs["input_ids"][number]
        assert feature["token_type_ids"] == theirs["token_type_ids"][number]
        sides = theirs.sequence_ids(number)
        assert feature["context"] == sides.index(1)
        expected = [pair for pair, side in zip(theirs["offset_mapping"][number], sides, strict=True) if side == 1]
        assert [tuple(pair) for pair in feature["offsets"].tolist()] == expected


# --- decoding

FIRST = 4  # tokens before the text


def output_of(starts: dict[int, float], ends: dict[int, float], null: tuple[float, float] = (0.0, 0.0), size: int = 14):
    """Logits of -9 but for the given tokens of the text, and those of no answer."""
    output = {}
    for name, logits, none in (("start_logits", starts, null[0]), ("end_logits", ends, null[1])):
        values = np.full(size, -9.0, dtype=np.float32)
        values[0] = none
        for token, logit in logits.items():
            values[FIRST + token] = logit
        output[name] = values
    return output


def decode(outputs, context, rows=None):
    rows = rows or [row_of()]
    return task.decode(outputs, task.encode(rows, context), rows, context)


def test_the_best_span_is_the_answer_whatever_the_beginning_says():
    (record,) = decode([output_of({3: 5, 6: 4}, {3: 2, 6: 4}, null=(99, 99))], setup_of())
    assert drop_private_keys(record) == {
        "prediction": "good and the book",
        "start": 13,
        "end": 30,
        "score": 9.0,
        "probability": spans_of(record)[0]["probability"],
    }
    texts = [span["text"] for span in spans_of(record)[:3]]
    assert texts == ["good and the book", "book", "good"]
    scores = [span["start_logit"] + span["end_logit"] for span in spans_of(record)]
    assert scores == sorted(scores, reverse=True)
    probabilities = [span["probability"] for span in spans_of(record)]
    assert sum(probabilities) == pytest.approx(1)
    assert probabilities[1] / probabilities[0] == pytest.approx(math.exp(8 - 9))
    assert len(probabilities) == 20


def test_an_answer_is_in_order_and_not_too_long():
    output = output_of({5: 9, 0: 8}, {2: 9, 8: 8})
    assert decode([output], setup_of())[0]["prediction"] == "the book was bad"
    assert decode([output], setup_of(max_answer_length=3))[0]["prediction"] == "the film was"
    assert spans_of(decode([output], setup_of(max_answer_length=2, n_best=2))[0]) == []


def test_nothing_valid_is_an_empty_answer():
    output = output_of({8: 9}, {0: 9})
    (record,) = decode([output], setup_of(n_best=1))
    assert drop_private_keys(record) == {
        "prediction": "",
        "start": None,
        "end": None,
        "score": None,
        "probability": None,
    }
    (record,) = decode([output], setup_of("squad2", n_best=1, null_score_diff_threshold=-1000))
    assert (record["prediction"], record["probability"]) == ("", 1.0)
    assert 9000 < record["null_odds"] < math.inf  # JSON has no infinity


def test_windows_compete_for_the_answer():
    context = setup_of(max_length=10, overlap=2)
    outputs = [
        output_of({1: 3}, {1: 3}, size=10),
        output_of({0: 4}, {0: 3}, size=10),
        output_of({2: 3}, {2: 3.5}, size=8),
    ]
    (record,) = decode(outputs, context)
    assert (record["prediction"], record["start"], record["end"], record["score"]) == ("good", 13, 17, 7.0)
    assert [span["text"] for span in spans_of(record)[:3]] == ["good", "bad", "film"]


def test_rows_keep_their_answers_apart():
    rows = [row_of(), row_of(context="so good"), row_of()]
    outputs = [output_of({8: 5}, {8: 5}), output_of({1: 1}, {1: 1}, size=7), output_of({1: 3}, {1: 3})]
    assert [record["prediction"] for record in decode(outputs, setup_of(), rows)] == ["bad", "good", "film"]


@pytest.mark.parametrize(("threshold", "prediction"), [(None, ""), (2.9, ""), (3.0, "good"), (5.0, "good")])
def test_the_threshold_decides_whether_there_is_an_answer(threshold, prediction):
    changes = {} if threshold is None else {"null_score_diff_threshold": threshold}
    (record,) = decode([output_of({3: 2}, {3: 2}, null=(4, 3))], setup_of("squad2", **changes))
    assert record["null_odds"] == 3.0
    assert record["prediction"] == prediction
    assert record["score"] == (4.0 if prediction else 7.0)
    assert (record["start"], record["end"]) == ((13, 17) if prediction else (None, None))
    assert record["probability"] + sum(span["probability"] for span in spans_of(record)) == pytest.approx(
        1 if not prediction else 1 - math.exp(7) / (math.exp(7) + math.exp(4)) + record["probability"], abs=1e-3
    )


def test_the_window_surest_of_an_answer_speaks_for_no_answer():
    context = setup_of("squad2", max_length=10, overlap=2)
    outputs = [
        output_of({1: 3}, {1: 3}, null=(5, 5), size=10),
        output_of({0: 1}, {0: 1}, null=(1, 2), size=10),
        output_of({2: 1}, {2: 1}, null=(4, 4), size=8),
    ]
    (record,) = decode(outputs, context)
    assert (record["prediction"], record["null_odds"]) == ("film", -3.0)


# --- scores, thresholds, files


def some_decoded(count: int, seed: int, lean: float = 0.0, **changes) -> tuple[list[dict], list[dict], TaskContext]:
    """Rows with random logits that lean towards the truth, and as asked towards no answer."""
    rng = np.random.default_rng(seed)
    context = setup_of("squad2", **changes)
    rows, outputs = [], []
    for number in range(count):
        start, end = WORDY[rng.integers(len(WORDY))]
        answers = answer(CONTEXT[start:end], start) if rng.random() < 0.6 else {"text": [], "answer_start": []}
        rows.append(row_of(answers, question="what film?"[int(rng.integers(2)) * 5 :], id=f"q{number}"))
    for feature in task.encode(rows, context):
        output = {}
        for name in ("start", "end"):
            logits = rng.normal(size=len(feature["input_ids"])) * 2
            logits[feature[f"{name}_positions"]] += 3
            logits[0] += lean
            output[f"{name}_logits"] = logits.astype(np.float32)
        outputs.append(output)
    return task.decode(outputs, task.encode(rows, context), rows, context), rows, context


def nested_of(rows: list[dict]) -> dict:
    paragraphs = []
    for row in rows:
        pairs = zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True)
        answers = [{"text": text, "answer_start": start} for text, start in pairs]
        qas = [{"id": str(row["id"]), "question": row["question"], "answers": answers}]
        paragraphs.append({"context": row["context"], "qas": qas})
    return {"version": "x", "data": [{"title": "t", "paragraphs": paragraphs}]}


def scores_of_files(nested: dict, files: dict, names) -> dict:
    """The official scores of the predictions, and the best ones of the surest spans, which no threshold has emptied."""
    surest = {
        name: next((span["text"] for span in listed if span["text"]), "")
        for name, listed in files["nbest_predictions.json"].items()
    }
    predicted = official_scores(nested, files["predictions.json"], files["null_odds.json"])
    best = official_scores(nested, surest, files["null_odds.json"])
    return {name: (best if name.startswith("best") else predicted)[name] for name in names}


@pytest.mark.parametrize("lean", [-2.0, 0.0, 4.0])
@pytest.mark.parametrize("seed", [1, 2])
def test_the_tuned_threshold_is_that_of_the_official_evaluation(seed, lean):
    predictions, rows, context = some_decoded(60, seed, lean)
    surest = {row["id"]: spans_of(each)[0]["text"] for row, each in zip(rows, predictions, strict=True)}
    odds = {row["id"]: each["null_odds"] for row, each in zip(rows, predictions, strict=True)}
    f1 = {name: pair[1] for name, pair in official_raw(nested_of(rows), surest, "2.0").items()}
    answerable = {row["id"]: bool(row["answers"]["text"]) for row in rows}
    best, threshold = official_best(f1, surest, odds, answerable)
    if best == 100 * sum(not has_answer for has_answer in answerable.values()) / len(rows):
        assert threshold == 0.0  # its search is of probabilities; odds may be negative, and then 0 answers questions
        threshold = min(odds.values()) - 1
    assert task.tune(predictions, rows, context) == {"null_score_diff_threshold": threshold}
    tuned, rows, context = some_decoded(60, seed, lean, null_score_diff_threshold=threshold)
    tuned_texts = {row["id"]: each["prediction"] for row, each in zip(rows, tuned, strict=True)}
    f1 = task.score(task.compare(tuned, rows, context), context)["f1"]
    assert f1 == pytest.approx(official_scores(nested_of(rows), tuned_texts, odds)["f1"])
    assert f1 >= best - 1e-9  # "the" for no answer is right, though the search for the threshold calls it wrong
    assert task.tune(tuned, rows, context) == {}


def test_a_threshold_that_answers_nothing_is_found_where_that_is_best():
    rows = [row_of({"text": [], "answer_start": []}, id=f"q{number}") for number in range(3)]
    rows.append(row_of(answer("good", 13), id="q3"))
    outputs = [output_of({8: 5}, {8: 5}, null=(1, 1))] * 4  # sure of a wrong answer: all odds are negative
    context = setup_of("squad2")
    tuned = task.tune(decode(outputs, context, rows), rows, context)
    assert tuned["null_score_diff_threshold"] < -8
    context = setup_of("squad2", **tuned)
    scores = task.score(task.compare(decode(outputs, context, rows), rows, context), context)
    assert (scores["f1"], scores["best_f1"], scores["best_f1_thresh"]) == (
        75.0,
        75.0,
        tuned["null_score_diff_threshold"],
    )


@pytest.mark.parametrize("threshold", [-1000.0, -2.0, 3.0, 1000.0])
def test_the_best_scores_do_not_depend_on_the_threshold_in_force(threshold):
    scores = []
    for changes in ({}, {"null_score_diff_threshold": threshold}):
        predictions, rows, context = some_decoded(60, 1, **changes)
        scored = task.score(task.compare(predictions, rows, context), context)
        scores.append({name: value for name, value in scored.items() if name.startswith("best")})
    assert scores[0] == scores[1]


def test_nothing_is_tuned_where_every_question_has_an_answer():
    predictions, rows, _ = some_decoded(10, 0)
    assert task.tune(predictions, rows, setup_of("squad")) == {}


@pytest.mark.parametrize("threshold", [None, 2.0])
def test_the_files_are_those_of_the_official_evaluation(threshold):
    predictions, rows, context = some_decoded(
        40, 3, **({} if threshold is None else {"null_score_diff_threshold": threshold})
    )
    rows = rows[::-1]
    predictions = predictions[::-1]
    files = json.loads(json.dumps(task.details(predictions, rows, context).files))
    assert sorted(files) == ["nbest_predictions.json", "null_odds.json", "predictions.json"]
    names = [row["id"] for row in rows]
    assert all(list(content) == names for content in files.values())
    for name, each in zip(names, predictions, strict=True):
        listed = files["nbest_predictions.json"][name]
        assert all(sorted(span) == ["end_logit", "probability", "start_logit", "text"] for span in listed)
        scores = [span["start_logit"] + span["end_logit"] for span in listed]
        assert scores == sorted(scores, reverse=True)
        assert sum(span["probability"] for span in listed) == pytest.approx(1)
        (silence,) = [span for span in listed if not span["text"]]
        surest = next(span for span in listed if span["text"])
        assert surest["text"] == spans_of(each)[0]["text"]
        odds = files["null_odds.json"][name]
        one, other = (span["start_logit"] + span["end_logit"] for span in (silence, surest))
        assert odds == pytest.approx(one - other)
        assert files["predictions.json"][name] == (surest["text"] if odds <= (threshold or 0) else "")
    scores = task.score(task.compare(predictions, rows, context), context)
    assert scores == pytest.approx(scores_of_files(nested_of(rows), files, scores))


def test_a_frequent_first_word_has_one_line():
    rows = [row_of(answer("good", 13), question=asked) for asked in ("other one?", "other two?", "film?")]
    predictions = decode([output_of({3: 5}, {3: 5})] * 3, setup_of(), rows)
    (table,) = task.details(predictions, rows, setup_of()).tables.values()
    assert [(line["question"], line["questions"]) for line in table] == [("other", 2), ("film", 1)]


def test_the_files_of_questions_that_all_have_answers():
    context = setup_of("squad")
    rows = [row_of(answer("good", 13)), row_of(answer("bad", 35))]
    predictions = decode([output_of({3: 5}, {3: 5}), output_of({1: 5}, {1: 5})], context, rows)
    details = task.details(predictions, rows, context)
    assert details.files["predictions.json"] == {"0": "good", "1": "film"}
    assert sorted(details.files) == ["nbest_predictions.json", "predictions.json"]
    assert all(span["text"] for span in details.files["nbest_predictions.json"]["0"])
    assert [(answer.gold, answer.predicted, answer.correct) for answer in details.answers] == [
        ("good", "good", True),
        ("bad", "film", False),
    ]
    (table,) = details.tables.values()
    assert table == [{"question": "film", "exact_match": 50.0, "f1": 50.0, "questions": 2}]


def test_saying_nothing_is_the_baseline():
    _, rows, context = some_decoded(30, 1)
    share = 100 * sum(not row["answers"]["text"] for row in rows) / 30
    scores = task.score(task.compare(task.baselines({}, rows, context)["no answer"], rows, context), context)
    assert (scores["exact_match"], scores["f1"]) == (pytest.approx(share), pytest.approx(share))


# --- from file to prediction

LEARN = {
    "training.epochs": 5,
    "training.evaluate_every": 999,
    "training.batch_size": 16,
    "training.learning_rate": 5e-3,
    "training.precision": "fp32",
    "training.log_every": 5,
    "training.max_length": 48,
    "options.overlap": 8,
}
MARK = "very"


def toy_article(count: int, seed: int, *, impossible: bool = False) -> dict:
    """The question names a kind of word, the answer is the one after the mark; the mark may be missing."""
    rng = random.Random(seed)
    fillers = ["the", "a", "film", "book", "song", "is", "was"]
    paragraphs = []
    for number in range(count):
        kind = rng.choice(["good", "bad"])
        missing = impossible and rng.random() < 0.4
        answer = rng.choice(WORDS[kind])
        words = rng.choices(fillers, k=rng.randint(3, 50 if number % 10 == 0 else 12))
        index = rng.randrange(len(words) + 1)
        words[index:index] = [answer] if missing else [MARK, answer]
        start = len(" ".join([*words[: words.index(answer)], ""]))
        answers = [] if missing else [{"text": answer, "answer_start": start}]
        qas = [{"id": f"{seed}-{number}", "question": f"{kind}?", "answers": answers}]
        if impossible:
            qas[0]["is_impossible"] = missing
        paragraphs.append({"context": " ".join(words), "qas": qas})
    return {"title": "toys", "paragraphs": paragraphs}


def write_squad(folder: Path, version: str, count: int) -> Path:
    folder.mkdir(parents=True)
    for name, rows, seed in (("train", count, 1), ("dev", 40, 2)):
        content = {"version": version, "data": [toy_article(rows, seed, impossible=version == "v2.0")]}
        (folder / f"{name}-{version}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def read_json(file: Path):
    return json.loads(file.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_squad(tmp_path_factory.mktemp("squad") / "data", "v1.1", 150)


@pytest.fixture(scope="module")
def answerer(data, tiny_model) -> Path:
    """A run folder: the tiny model fine-tuned until it answers the toy questions."""
    changes = {"model": str(tiny_model), "data.source": str(data), **LEARN}
    finetune(load_recipe("squad", changes), output=data.parent / "run")
    return data.parent / "run"


@pytest.fixture(scope="module")
def doubter(tmp_path_factory, tiny_model) -> Path:
    """A run folder: the tiny model fine-tuned a little on toy questions of which some have no answer."""
    data = write_squad(tmp_path_factory.mktemp("squad2") / "data", "v2.0", 100)
    changes = {"model": str(tiny_model), "data.source": str(data), **LEARN, "training.epochs": 3}
    finetune(load_recipe("squad2", changes), output=data.parent / "run")
    return data.parent / "run"


def test_the_toy_questions_are_learned_and_the_loss_falls(answerer):
    result = read_json(answerer / "run.json")["results"][0]
    assert result["scores"]["f1"] > 80 > 1 > result["baselines"]["no answer"]["f1"]
    losses = [entry["loss"] for entry in read_lines(answerer / "metrics.jsonl") if "loss" in entry]
    assert losses[-1] < losses[0] / 3


def test_the_files_of_a_run_give_its_scores(answerer, data):
    nested = read_json(data / "dev-v1.1.json")
    predictions = read_json(answerer / "predictions.json")
    assert read_json(answerer / "run.json")["results"][0]["scores"] == pytest.approx(
        official_scores(nested, predictions)
    )
    names = [f"2-{number}" for number in range(40)]
    assert list(predictions) == list(read_json(answerer / "nbest_predictions.json")) == names
    lines = read_lines(answerer / "predictions.jsonl")
    assert [line["id"] for line in lines] == names
    assert [line["prediction"] for line in lines] == list(predictions.values())
    assert all(line["context"][line["start"] : line["end"]] == line["prediction"] for line in lines)
    assert not (answerer / "null_odds.json").exists()


def evaluated(ended) -> dict:
    assert ended.code == 0, ended.err
    return json.loads(ended.out)["results"][0]


def test_eval_repeats_the_scores_and_writes_the_files(run, answerer, data):
    options = ["--model", answerer, "--data", data, "--json"]
    options += ["--max-length", 48, "--set", "options.overlap=8"]
    ours = evaluated(run("eval", "squad", *options, "--output", "out"))
    theirs = read_json(answerer / "run.json")["results"][0]
    assert (ours["scores"], ours["intervals"]) == (theirs["scores"], theirs["intervals"])
    for name in ("predictions.json", "nbest_predictions.json", "predictions.jsonl"):
        assert (Path("out") / name).read_text() == (answerer / name).read_text()


def test_one_question_to_predict(run, answerer):
    context = "the book is so  the film was very superb"
    row = ["--row", "question=good?", "--row", f"context={context}"]
    ended = run("predict", "squad", "--model", answerer, *row)
    assert ended.code == 0, ended.err
    record = json.loads(ended.out)
    assert record["prediction"] in context
    assert context[record["start"] : record["end"]] == record["prediction"]
    assert 0 < record["probability"] <= 1
    assert isinstance(record["score"], float)
    assert not [name for name in record if name.startswith("_")]


def test_a_file_to_predict_needs_neither_ids_nor_answers(run, answerer, data):
    rows = [
        {"question": paragraph["qas"][0]["question"], "context": paragraph["context"], "note": number}
        for number, paragraph in enumerate(read_json(data / "dev-v1.1.json")["data"][0]["paragraphs"])
    ]
    Path("new.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[::-1]))
    ended = run("predict", "squad", "new.jsonl", "--model", answerer, "--max-length", 48, "--set", "options.overlap=8")
    assert ended.code == 0, ended.err
    records = [json.loads(line) for line in ended.out.splitlines()]
    assert [record["id"] for record in records] == list(range(40))
    assert [record["note"] for record in records] == list(range(40))[::-1]
    known = list(read_json(answerer / "predictions.json").values())[::-1]
    assert [record["prediction"] for record in records] == known


def test_the_nested_file_itself_is_predicted_in_its_order(run, answerer, data):
    ended = run("predict", "squad", data / "dev-v1.1.json", "--model", answerer, "--output", "found.jsonl")
    assert ended.code == 0, ended.err
    assert [record["id"] for record in read_lines(Path("found.jsonl"))] == [f"2-{number}" for number in range(40)]


def test_a_run_keeps_the_threshold_it_found_and_eval_uses_it(run, doubter):
    record = read_json(doubter / "run.json")
    threshold = record["tuned"]["null_score_diff_threshold"]
    nested = read_json(doubter.parent / "data" / "dev-v2.0.json")
    predictions, odds = read_json(doubter / "predictions.json"), read_json(doubter / "null_odds.json")
    files = {name: read_json(doubter / name) for name in ("predictions.json", "nbest_predictions.json")}
    scores = record["results"][0]["scores"]
    assert scores == pytest.approx(scores_of_files(nested, {**files, "null_odds.json": odds}, scores), nan_ok=True)
    assert all((not predictions[name]) == (odds[name] > threshold) for name in predictions)
    chosen = "null_score_diff_threshold was chosen on these rows: their scores and intervals are a little too high."
    assert chosen in record["results"][0]["warnings"]
    options = ["--model", doubter, "--data", doubter.parent / "data", "--json", "--max-length", 48]
    options += ["--set", "options.overlap=8"]
    again = evaluated(run("eval", "squad2", *options, "--output", "out"))
    assert again["scores"] == scores and chosen in again["warnings"]
    assert read_json(Path("out/predictions.json")) == predictions
    assert read_json(Path("out/null_odds.json")) == odds
    result = evaluated(run("eval", "squad2", *options, "--set", "options.null_score_diff_threshold=-1000"))
    silent = result["scores"]
    assert chosen not in result["warnings"]
    assert (silent["NoAns_f1"], silent["HasAns_f1"]) == (100.0, 0.0)


# --- mistakes


def broken(folder: Path, **changes) -> Path:
    """The toy data, its second training question with these keys."""
    write_squad(folder, "v1.1", 4)
    file = folder / "train-v1.1.json"
    content = read_json(file)
    content["data"][0]["paragraphs"][1]["qas"][0].update(changes)
    file.write_text(json.dumps(content))
    return file


@pytest.mark.parametrize(
    ("changes", "what", "remedy"),
    [
        (
            {"answers": [{"text": "lovely pie", "answer_start": 0}]},
            "question 1-1: the answer 'lovely pie' is not at 0",
            "nor anywhere else in the context (FILE:2, column 'answers') - correct it",
        ),
        (
            {"answers": []},
            "question 1-1: no answer, but this recipe expects one for every question",
            "(FILE:2, column 'answers') - use the recipe squad2, or --set options.no_answer=true",
        ),
        ({"id": "1-0"}, "the id '1-0' is also the id of line 1", "(FILE:2) - give each row a different id"),
    ],
)
def test_mistakes_in_rows_end_in_one_line(run, tiny_model, tmp_path, changes, what, remedy):
    file = broken(tmp_path / "wrong", **changes)
    ended = run("finetune", "squad", "--model", tiny_model, "--data", file.parent)
    assert ended.code == 3
    assert ended.last.startswith(f"error: {what}")
    assert ended.last.endswith(remedy.replace("FILE", str(file)))
    assert ended.err.count("error: ") == 1
    assert not Path("runs").exists()


def test_a_checkpoint_of_another_task_answers_no_questions(run, tiny_model, tmp_path):
    rows = [{"tokens": ["very", "good"], "tags": ["O", "B-X"]}, {"tokens": ["a", "book"], "tags": ["O", "O"]}] * 4
    folder = tmp_path / "ner"
    folder.mkdir()
    for split in ("train", "validation"):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    changes = {"model": str(tiny_model), "data.source": str(folder), "training.precision": "fp32"}
    finetune(load_recipe("tag", {**changes, "training.epochs": 1}), output=tmp_path / "run")
    row = ["--row", "question=good?", "--row", "context=a film"]
    ended = run("predict", "squad", "--model", tmp_path / "run", *row)
    assert ended.code == 4
    assert ended.err.count("error: ") == 1
    data = write_squad(tmp_path / "squad", "v1.1", 2)
    assert run("eval", "squad", "--model", tmp_path / "run", "--data", data).code == 4


def test_a_plain_encoder_answers_no_questions(run, tiny_model):
    ended = run("predict", "squad", "--model", tiny_model, "--row", "question=good?", "--row", "context=a film")
    assert (ended.code, ended.out) == (4, "")
    assert ended.last.startswith("error: no trained head for this task")
