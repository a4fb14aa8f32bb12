"""Choices: rows read, batches of unequal rows held against plain transformers, and toy tasks from file to answer."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import parquet
from sklearn.metrics import accuracy_score
from transformers import AutoModelForMultipleChoice, BertTokenizerFast

from bertkit.data.columns import ColumnSpec
from bertkit.data.rows import canonical_records
from bertkit.errors import DataError
from bertkit.evaluation.forward import forward
from bertkit.recipe import load_recipe
from bertkit.tasks import multiple_choice as task
from bertkit.tokens.features import TaskContext
from bertkit.workflows.finetune import finetune
from tests.conftest import WORDS, make_tokenizer, write_jsonl

TOKENIZER = make_tokenizer()
PADDING = TOKENIZER.pad_token_id


def setup_of(recipe: str = "choose", **changes) -> TaskContext:
    return TaskContext(load_recipe(recipe, changes), TOKENIZER, ())


def reading(choices, label=None, **more):
    row = {"context": "the film", "choices": choices, **more, **({} if label is None else {"label": label})}
    return task.read(row, load_recipe("choose"))


# --- rows


def test_choices_that_are_counted_from_1_are_shown():
    recipe = load_recipe("choose")
    rows = [{"context": f"film {n}", "choices": ["a", "b", "c", "d"], "label": 1 + n % 3} for n in range(60)]
    (warning,) = task.find_row_warnings(rows, recipe)
    assert warning.startswith("None of 60 rows has the label 0") and "from 1" in warning
    assert task.find_row_warnings(rows[:20], recipe) == []  # by chance in 1 of 300
    assert task.find_row_warnings([{"context": "a", "choices": ["a", "b"]}] * 60, recipe) == []
    rows[0]["label"] = 0
    assert task.find_row_warnings(rows, recipe) == []


@pytest.mark.parametrize(
    ("choices", "texts"),
    [
        (["good", "bad"], ["good", "bad"]),
        (("good", "bad", "so"), ["good", "bad", "so"]),
        (["a", "b", "", None, " \n"], ["a", "b"]),
        (["a", "b", "c", "d", "e"], ["a", "b", "c", "d", "e"]),
        (["\u200b", "b"], ["\u200b", "b"]),
        ('["a", "b"]', ["a", "b"]),
        ("['a', 'b']", ["a", "b"]),
    ],
)
def test_choices_are_texts_and_blank_ones_at_the_end_are_dropped(choices, texts):
    assert reading(choices)["choices"] == texts
    assert reading(choices, 1) == {"context": "the film", "choices": texts, "label": 1}


@pytest.mark.parametrize("label", [1, "1", 1.0, " 1 "])
def test_a_label_is_a_number_from_0(label):
    assert reading(["a", "b", "c"], label)["label"] == 1


NO_LIST = (
    "is neither a text nor a list of texts (column 'choices') - write a list, or map several columns: {choices: [a, b]}"
)


@pytest.mark.parametrize(
    ("choices", "label", "message"),
    [
        (["a", "b"], 2, "label '2' is not one of the 2 choices (column 'label') - count them from 0 to 1"),
        (["a", "b", "c"], -1, "label '-1' is not one of the 3 choices (column 'label') - count them from 0 to 2"),
        (["a", "b", "", None], 3, "label '3' is not one of the 2 choices (column 'label') - count them from 0 to 1"),
        (["a", "b"], "b", "label 'b' is not one of the 2 choices (column 'label') - count them from 0 to 1"),
        (["a", "b"], "²", "label '²' is not one of the 2 choices (column 'label') - count them from 0 to 1"),
        (["a", "b"], 0.5, "label '0.5' is not one of the 2 choices (column 'label') - count them from 0 to 1"),
        (["a", "b"], True, "label 'true' is not one of the 2 choices (column 'label') - count them from 0 to 1"),
        (["a", "b"], "", "no label (column 'label') - fill it in, or --set data.empty_label=drop"),
        (["a"], 0, "a row needs two or more choices, got 1 (column 'choices') - add choices, or leave the row out"),
        (
            ["a", "", None],
            0,
            "a row needs two or more choices, got 1 (column 'choices') - add choices, or leave the row out",
        ),
        ([], 0, "a row needs two or more choices, got 0 (column 'choices') - add choices, or leave the row out"),
        (["a", "", "c"], 0, "text 1 of 3 is empty (column 'choices') - fill it in"),
        ([None, "b"], 0, "text 0 of 2 is empty (column 'choices') - fill it in"),
        ("a b", 0, "a row needs two or more choices, got 1 (column 'choices') - add choices, or leave the row out"),
        (["a", 3], 0, f"\"['a', 3]\" {NO_LIST}"),
        (None, 0, f"'None' {NO_LIST}"),
    ],
)
def test_rows_that_are_refused(choices, label, message):
    with pytest.raises(DataError) as caught:
        reading(choices, label)
    assert str(caught.value) == message


@pytest.mark.parametrize(("column", "value"), [("context", None), ("context", 3), ("stem", None), ("stem", ["a"])])
def test_what_is_no_text_is_refused(column, value):
    with pytest.raises(DataError) as caught:
        reading(["a", "b"], **{column: value})
    assert str(caught.value) == f"{value!r} is not text (column {column!r}) - texts must be strings"


def test_choices_come_from_one_column_or_from_several():
    several = load_recipe("choose", {"data.columns": {"context": "q", "choices": ["a", "b", "c"], "label": "y"}})
    one = load_recipe("choose", {"data.columns": {"context": "q", "choices": "a", "label": "y"}})
    table = {"q": "the film", "a": "good", "b": "bad", "c": "", "y": "1"}
    listed = {"q": "the film", "a": ["good", "bad"], "y": 1}
    found = [read_record(recipe, record) for recipe, record in ((several, table), (one, listed))]
    assert found[0] == found[1] == {"context": "the film", "choices": ["good", "bad"], "label": 1}


def read_record(recipe, record):
    columns: ColumnSpec = task.COLUMNS
    ((_, _, row),) = canonical_records([(1, record)], recipe.data, columns, "rows")
    return task.read(row, recipe)


# --- batches

UNEQUAL = [
    {"context": "the film", "choices": ["is good", "was so very bad and dull"], "label": 1},
    {"context": "a", "choices": ["book", "song", "film", "unheard of"], "label": 3},
    {"context": "this film is very very good", "choices": ["so", "and so on", "a"], "label": 0},
]


def test_the_context_is_read_beside_each_choice():
    (feature,) = task.encode([UNEQUAL[0]], setup_of())
    texts = [" ".join(TOKENIZER.convert_ids_to_tokens(ids)) for ids in feature["input_ids"]]
    assert texts == ["[CLS] the film [SEP] is good [SEP]", "[CLS] the film [SEP] was so very bad and dull [SEP]"]
    assert (feature["row"], feature["labels"]) == (0, 1)
    assert "labels" not in task.encode([{"context": "a", "choices": ["b", "c"]}], setup_of())[0]


def test_a_stem_begins_each_choice():
    row = {"context": "the film", "stem": "this", "choices": ["is", "was"]}
    for stem, begins in (("this", "this "), ("", "")):
        (feature,) = task.encode([{**row, "stem": stem}], setup_of("swag"))
        texts = [" ".join(TOKENIZER.convert_ids_to_tokens(ids)) for ids in feature["input_ids"]]
        assert texts == [f"[CLS] the film [SEP] {begins}{choice} [SEP]" for choice in ("is", "was")]


def test_every_choice_is_cut_to_the_window():
    row = {"context": "film " * 300, "choices": ["so", "book " * 300]}
    (feature,) = task.encode([row], setup_of())
    assert [len(ids) for ids in feature["input_ids"]] == [64, 64]


def test_rows_are_padded_to_equally_many_choices():
    context = setup_of()
    features = task.encode(UNEQUAL, context)
    batch = task.collator(context)(features)
    longest = max(len(ids) for feature in features for ids in feature["input_ids"])
    assert {name: tuple(values.shape) for name, values in batch.items() if name != "labels"} == {
        name: (3, 4, longest) for name in batch if name != "labels"
    }
    assert batch["labels"].tolist() == [1, 3, 0]
    sizes = batch["attention_mask"].sum(dim=-1).tolist()
    assert sizes == [[*map(len, each["input_ids"]), *[1] * (4 - len(each["input_ids"]))] for each in features]
    assert batch["input_ids"][0, 2:].eq(PADDING).all()
    for row, feature in enumerate(features):
        for number, ids in enumerate(feature["input_ids"]):
            assert batch["input_ids"][row, number, : len(ids)].tolist() == ids
    unlabelled = task.encode([{"context": "a", "choices": ["b", "c"]}], context)
    assert "labels" not in task.collator(context)([*features, *unlabelled])


def row_alone(feature):
    """Make the batch of one row without any help of the family."""
    longest = max(map(len, feature["input_ids"]))
    parts = {name: feature[name] for name in ("input_ids", "token_type_ids") if name in feature}
    parts["attention_mask"] = [[1] * len(ids) for ids in feature["input_ids"]]
    tensors = {
        name: torch.tensor([[[*each, *[0] * (longest - len(each))] for each in values]])
        for name, values in parts.items()
    }
    return {**tensors, "labels": torch.tensor([feature["labels"]])}


@pytest.mark.parametrize("segments", [False, True])
def test_a_batch_of_unequal_rows_is_what_each_row_is_alone(tiny_model, tmp_path, segments):
    tokenizer = BertTokenizerFast(vocab=TOKENIZER.get_vocab(), model_max_length=64) if segments else TOKENIZER
    context = TaskContext(load_recipe("choose"), tokenizer, ())
    assert ("token_type_ids" in task.encode(UNEQUAL, context)[0]) == segments
    torch.manual_seed(1)
    model = task.load_model(tiny_model, context, new_head=True).eval()
    torch.nn.init.normal_(model.classifier.weight)
    model.save_pretrained(tmp_path)
    plain = AutoModelForMultipleChoice.from_pretrained(tmp_path).eval()
    features = task.encode(UNEQUAL, context)
    collate = task.collator(context)
    output = model(**collate(features))
    output.loss.backward()
    alone = [plain(**row_alone(feature)) for feature in features]
    mean = torch.stack([each.loss for each in alone]).mean()
    mean.backward()
    assert output.loss.item() == pytest.approx(mean.item(), abs=1e-5)
    for logits, each in zip(output.logits, alone, strict=True):
        count = each.logits.shape[1]
        torch.testing.assert_close(logits[:count], each.logits[0], atol=1e-5, rtol=1e-4)
        assert (logits.softmax(dim=0)[count:] == 0).all()
    gradients = dict(plain.named_parameters())
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all()
        torch.testing.assert_close(parameter.grad, gradients[name].grad, atol=1e-5, rtol=1e-3)
    outputs, loss = forward(model, features, collate, precision="fp32")
    assert loss == pytest.approx(mean.item(), abs=1e-5)
    answers = task.decode(outputs, features, UNEQUAL, context)
    for answer, each in zip(answers, alone, strict=True):
        assert answer["choice_probabilities"] == pytest.approx(each.logits[0].softmax(dim=0).tolist(), abs=1e-5)


# --- answers and scores


def test_answers_of_logits_by_hand():
    rows = [{"choices": ["a", "b"]}, {"choices": ["c", "d", "e"]}]
    outputs = [{"logits": np.array([0.0, np.log(3), 99.0])}, {"logits": np.array([2.0, 1.0, 1.0]) * np.log(2)}]
    answers = task.decode(outputs, [{}, {}], rows, setup_of())
    assert [(each["prediction"], each["choice"]) for each in answers] == [(1, "b"), (0, "c")]
    assert answers[0]["choice_probabilities"] == pytest.approx([0.25, 0.75])
    assert answers[1]["choice_probabilities"] == pytest.approx([0.5, 0.25, 0.25])


def test_accuracy_is_that_of_scikit_learn():
    gold, predicted = np.random.default_rng(0).integers(0, 4, (2, 50)).tolist()
    rows, records = [{"label": index} for index in gold], [{"prediction": index} for index in predicted]
    scores = task.score(task.compare(records, rows, setup_of()), setup_of())
    assert scores == pytest.approx({"accuracy": accuracy_score(gold, predicted)})


def test_scores_and_details_by_hand():
    context = setup_of()
    rows = [{"choices": ["a", "b", "c"][:n], "label": label} for n, label in ((2, 1), (2, 0), (3, 2), (3, 0))]
    answers = [
        {"prediction": n, "choice": row["choices"][n], "choice_probabilities": [0.2] * n + [0.8]}
        for n, row in zip((1, 1, 2, 0), rows, strict=True)
    ]
    row_scores = task.compare(answers, rows, context)
    assert (row_scores["gold"].tolist(), row_scores["predicted"].tolist()) == ([1, 0, 2, 0], [1, 1, 2, 0])
    assert task.score(row_scores, context) == {"accuracy": 0.75}
    details = task.details(answers, rows, context)
    assert details.tables["by number of choices"] == [
        {"choices": "2", "accuracy": 0.5, "by chance": 0.5, "rows": 2},
        {"choices": "3", "accuracy": 1.0, "by chance": pytest.approx(1 / 3), "rows": 2},
    ]
    assert [(each.gold, each.predicted, each.correct) for each in details.answers][1] == ("a", "b", False)


def test_the_baseline_is_the_most_frequent_place_that_a_row_has():
    training = [{"label": label, "choices": ["a"] * 4} for label in (3, 3, 3, 1, 1, 0)]
    rows = [{"choices": ["a"] * n} for n in (4, 3, 2)]
    assert predict(training, rows)["most frequent position"] == [3, 1, 1]
    assert predict(training[:1], rows[2:])["most frequent position"] == [0]


def test_choices_have_their_length_and_their_words_as_baselines():
    training = [{"choices": ["a good film", "it is bad"], "label": 0}, {"choices": ["bad", "good"], "label": 1}] * 30
    rows = [{"choices": ["quite a bad film", "good", "none"]}, {"choices": ["bad", "good film"]}]
    predicted = predict(training, rows)
    assert predicted["longest choice"] == [0, 1]
    assert predicted["choices alone"] == [1, 1]


def predict(training, rows):
    found = task.baselines(task.fit_baselines(training, setup_of()), rows, setup_of())
    return {name: [each["prediction"] for each in records] for name, records in found.items()}


# --- from file to answer

LEARN = {
    "training.epochs": 3,
    "training.evaluate_every": 999,
    "training.batch_size": 16,
    "training.learning_rate": 5e-3,
    "training.precision": "fp32",
}
MARKERS = ["good", "bad", "dull", "fine"]


def toy_row(rng: random.Random) -> dict:
    """The choice that has a good word is right."""
    choices = [rng.choice(WORDS["good"]), *rng.sample(WORDS["bad"], rng.randint(1, 3))]
    right = choices[0]
    rng.shuffle(choices)
    context = f"the {rng.choice(WORDS['filler'])}"
    texts = [f"{choice} {rng.choice(WORDS['filler'])}" for choice in choices]
    return {"context": context, "choices": texts, "label": choices.index(right)}


def matching_row(rng: random.Random) -> dict:
    """The choice that has the marker of the context is right."""
    markers = rng.sample(MARKERS, rng.randint(2, 4))
    label = rng.randrange(len(markers))
    context = f"{rng.choice(WORDS['filler'])} {markers[label]}"
    return {"context": context, "choices": [f"{m} {rng.choice(WORDS['filler'])}" for m in markers], "label": label}


def toy_rows(count: int, seed: int, draw=toy_row) -> list[dict]:
    rng = random.Random(seed)
    return [draw(rng) for _ in range(count)]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("rows") / "data"
    write_jsonl(folder / "train.jsonl", toy_rows(96, seed=1))
    write_jsonl(folder / "validation.jsonl", toy_rows(60, seed=2))
    return folder


@pytest.fixture(scope="module")
def chooser(data, tiny_model) -> Path:
    """A run folder: the tiny model fine-tuned until it finds the choice with a good word."""
    changes = {"model": str(tiny_model), "data.source": str(data), **LEARN}
    finetune(load_recipe("choose", changes), output=data.parent / "run")
    return data.parent / "run"


def scores_of(folder: Path) -> dict[str, float]:
    return json.loads((folder / "run.json").read_text())["results"][0]["scores"]


def test_the_toy_choices_are_learned(chooser):
    assert scores_of(chooser)["accuracy"] > 0.9
    lines = (chooser / "predictions.jsonl").read_text().splitlines()
    assert all(len(each["choices"]) == len(each["choice_probabilities"]) for each in map(json.loads, lines))


@pytest.mark.slow
def test_which_choice_is_right_is_learned_from_the_context(tiny_model, tmp_path):
    data = tmp_path / "data"
    write_jsonl(data / "train.jsonl", toy_rows(1600, seed=1, draw=matching_row))
    write_jsonl(data / "validation.jsonl", toy_rows(60, seed=2, draw=matching_row))
    changes = {"model": str(tiny_model), "data.source": str(data), **LEARN}
    changes |= {"training.epochs": 6, "training.learning_rate": 2e-3}
    finetune(load_recipe("choose", changes), output=tmp_path / "run")
    assert scores_of(tmp_path / "run")["accuracy"] > 0.9


def test_eval_repeats_the_score_of_training(run, chooser, data):
    ended = run("eval", "choose", "--model", chooser, "--data", data, "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["results"][0]["scores"] == scores_of(chooser)


def test_one_row_to_predict_repeats_its_choices(run, chooser):
    choices = [part for marker in ("dull", "good", "bad") for part in ("--row", f"choices={marker} film")]
    ended = run("predict", "choose", "--model", chooser, "--row", "context=the film", *choices)
    assert ended.code == 0, ended.err
    record = json.loads(ended.out)
    assert (record["prediction"], record["choice"]) == (1, "good film")
    assert sum(record["choice_probabilities"]) == pytest.approx(1)
    assert len(record["choice_probabilities"]) == 3


def test_one_choice_to_predict_ends_in_one_line(run, chooser):
    ended = run("predict", "choose", "--model", chooser, "--row", "context=a", "--row", "choices=b")
    assert ended.code == 3
    assert ended.err.startswith(
        "error: a row needs two or more choices, got 1 (--row:1, column 'choices') - add choices"
    )
    assert len(ended.err.splitlines()) == 1


def test_a_label_that_is_no_choice_ends_in_one_line(run, tiny_model, tmp_path):
    for split in ("train", "validation"):
        write_jsonl(tmp_path / "wrong" / f"{split}.jsonl", [UNEQUAL[0], {**UNEQUAL[0], "label": 2}])
    ended = run("finetune", "choose", "--model", tiny_model, "--data", tmp_path / "wrong")
    where = f"{tmp_path / 'wrong' / 'train.jsonl'}:2, column 'label'"
    what = f"label '2' is not one of the 2 choices ({where}) - count them from 0 to 1"
    assert (ended.code, ended.err) == (3, f"error: {what}\n")


def swag_row(rng: random.Random) -> dict:
    row = toy_row(rng)
    while len(row["choices"]) < 4:
        row = toy_row(rng)
    endings = {f"ending{number}": choice for number, choice in enumerate(row["choices"])}
    return {"sent1": row["context"], "sent2": rng.choice(["", "so"]), **endings, "label": row["label"]}


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_the_columns_of_swag(run, tiny_model, tmp_path, kind):
    rng = random.Random(3)
    folder = tmp_path / "swag"
    for split, count in (("train", 24), ("validation", 8)):
        file = write_jsonl(folder / f"{split}.jsonl", [swag_row(rng) for _ in range(count)])
        if kind == "parquet":
            rows = [json.loads(line) for line in file.read_text().splitlines()]
            parquet.write_table(pyarrow.Table.from_pylist(rows), file.with_suffix(".parquet"))
            file.unlink()
    changes = {**LEARN, "training.epochs": 1}
    settings = [part for name, value in changes.items() for part in ("--set", f"{name}={value}")]
    ended = run("finetune", "swag", "--model", tiny_model, "--data", folder, *settings, "--output", tmp_path / "run")
    assert ended.code == 0, ended.err
    lines = (tmp_path / "run" / "predictions.jsonl").read_text().splitlines()
    assert [len(json.loads(line)["choice_probabilities"]) for line in lines] == [4] * 8
