"""Senses of words: rows read, targets found in long texts, and both ways to tell senses, from file to answer."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from sklearn.metrics import accuracy_score, f1_score
from transformers import AutoModel, BertConfig, BertModel

from bertkit.errors import DataError
from bertkit.evaluation.forward import forward
from bertkit.recipe import load_recipe
from bertkit.tasks import word_sense as task
from bertkit.tokens.features import TaskContext
from bertkit.workflows.finetune import finetune
from tests.conftest import WORDS, make_tokenizer, write_jsonl
from tests.kills import read_lines

TOKENIZER = make_tokenizer()
LABELS = ("book/bad", "book/good", "film/bad", "film/fine", "film/good", "song/only")

NO_LABEL = "no label (column 'sense') - fill it in, or --set data.empty_label=drop"


def setup_of(labels=LABELS, **changes) -> TaskContext:
    return TaskContext(load_recipe("wsd", changes), TOKENIZER, tuple(labels))


def reading(**row):
    return task.read(row, load_recipe("wsd"))


# --- rows

WORDS_OF_ROW = ["The", "Film", "is", "good"]


@pytest.mark.parametrize("tokens", [WORDS_OF_ROW, " ".join(WORDS_OF_ROW), json.dumps(WORDS_OF_ROW)])
@pytest.mark.parametrize("target", [1, "1", 1.0, [1], " 1 "])
def test_a_target_is_the_index_of_a_word(tokens, target):
    row = reading(tokens=tokens, target=target, sense="movie")
    assert row == {"tokens": WORDS_OF_ROW, "target": 1, "word": "film", "sense": "film/movie"}


@pytest.mark.parametrize("target", [[4, 8], "4:8", (4, 8), ["4", "8"], "4: 8"])
def test_a_target_is_where_characters_are(target):
    row = reading(text="The Film, is  good", target=target, sense=0)
    assert row["tokens"] == ["The", "Film", ",", "is", "good"]
    assert (row["target"], row["word"], row["sense"]) == (1, "film", "film/0")


@pytest.mark.parametrize(
    ("text", "span", "words", "position"),
    [
        ("film", [0, 4], ["film"], 0),
        ("pre-film!", [4, 8], ["pre-", "film", "!"], 1),
        ("in New York now", [3, 11], ["in", "New York", "now"], 1),
        ("a film ", [1, 7], ["a", "film"], 1),
        ("東京は", [0, 2], ["東京", "は"], 0),
    ],
)
def test_a_text_is_split_around_its_target(text, span, words, position):
    row = reading(text=text, target=span)
    assert (row["tokens"], row["target"]) == (words, position)
    assert "sense" not in row


def test_the_word_may_have_a_column():
    row = reading(tokens=["Films"], target=0, word="film", sense="a")
    assert (row["word"], row["sense"]) == ("film", "film/a")
    assert reading(tokens=["Films"], target=0, word="and/or", sense="a/b")["sense"] == "and_or/a/b"


INDEX = "the index of a word"
PLACE = "two character offsets, such as 4:9"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"tokens": ["a", "b"], "target": 2},
            "the target 2 is beyond the 2 words (column 'target') - count words from 0",
        ),
        (
            {"tokens": ["a", "b"], "target": -1},
            "the target -1 is beyond the 2 words (column 'target') - count words from 0",
        ),
        ({"tokens": [], "target": 0}, "the target 0 is beyond the 0 words (column 'target') - count words from 0"),
        (
            {"tokens": ["a"], "target": [0, 1]},
            f"the target [0, 1] is not {INDEX} (column 'target') - give {INDEX}",
        ),
        ({"tokens": ["a"], "target": "x"}, f"the target 'x' is not {INDEX} (column 'target') - give {INDEX}"),
        ({"tokens": ["a"], "target": None}, f"the target None is not {INDEX} (column 'target') - give {INDEX}"),
        ({"tokens": [1], "target": 0}, "[1] is not a list of words (column 'tokens') - give a list of strings"),
        ({"text": "a film", "target": 1}, f"the target 1 is not {PLACE} (column 'target') - give {PLACE}"),
        *(
            (
                {"text": "a film", "target": [start, end]},
                f"the target {start}:{end} is not a word of the text, which has 6 characters (column 'target')"
                " - write its first and last + 1 character",
            )
            for start, end in ((2, 7), (-1, 1), (3, 3), (4, 2), (1, 2))
        ),
        (
            {"text": None, "target": "0:1"},
            "the target 0:1 is not a word of the text, which has 0 characters (column 'target')"
            " - write its first and last + 1 character",
        ),
        (
            {"tokens": ["a"], "target": 0, "sense": " "},
            NO_LABEL,
        ),
        (
            {"tokens": ["a"], "target": 0, "sense": None},
            NO_LABEL,
        ),
        ({"tokens": ["a"], "target": 0, "word": ""}, "no word (column 'word') - fill it in"),
        ({"tokens": [" "], "target": 0}, "no word (column 'word') - fill it in"),
    ],
)
def test_rows_that_are_refused(row, message):
    with pytest.raises(DataError) as caught:
        reading(**row)
    assert str(caught.value) == message


# --- features


def test_the_tokens_of_the_target_have_its_sense():
    row = reading(tokens=["the", "cab", "is", "good"], target=1, word="film", sense="good")
    (feature,) = task.encode([row], setup_of())
    tokens = TOKENIZER.convert_ids_to_tokens(feature["input_ids"])
    assert tokens == ["[CLS]", "the", "c", "##a", "##b", "is", "good", "[SEP]"]
    assert feature["positions"] == [2, 3, 4]
    assert feature["labels"] == [-100, -100, 4, 4, 4, -100, -100, -100]
    row.pop("sense")
    assert "labels" not in task.encode([row], setup_of())[0]


@pytest.mark.parametrize("target", [0, 20, 61, 62, 150, 250, 298, 299])
def test_a_far_target_is_read_in_its_own_window(target):
    words = ["so"] * 300
    words[target] = "cab"
    (feature,) = task.encode([reading(tokens=words, target=target, word="film")], setup_of())
    assert len(feature["input_ids"]) <= 64
    tokens = [TOKENIZER.convert_ids_to_tokens(feature["input_ids"][position]) for position in feature["positions"]]
    assert tokens == ["c", "##a", "##b"]
    context = min(feature["positions"][0] - 1, len(feature["input_ids"]) - 2 - feature["positions"][-1])
    assert context >= min(target, 299 - target, 14)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"tokens": ["a", "show"], "target": 1},
            "row 2: the model has no senses of 'show' (column 'word') - it has senses of book, film, song",
        ),
        (
            {"tokens": ["a", "\u200b"], "target": 1, "word": "film"},
            "row 2: the target word '\\u200b' has no visible character (column 'target') - correct the row",
        ),
    ],
)
def test_targets_that_are_refused(row, message):
    with pytest.raises(DataError) as caught:
        task.encode([reading(tokens=["film"], target=0), reading(**row)], setup_of())
    assert str(caught.value) == message


# --- scores


def test_only_senses_of_the_word_compete():
    row = reading(tokens=["film", "book"], target=0)
    context = setup_of()
    features = task.encode([row], context)
    logits = np.zeros((4, 6), dtype=np.float32)
    logits[1] = [9, 9, 0, np.log(2), 0, 9]
    (answer,) = task.decode([{"logits": logits}], features, [row], context)
    assert answer["prediction"] == "film/fine"
    scores = {"film/bad": 0.25, "film/fine": 0.5, "film/good": 0.25}
    assert answer["sense_scores"] == pytest.approx(scores)


senses = st.sampled_from(LABELS)


@given(
    st.lists(senses, min_size=1, max_size=30).flatmap(
        lambda gold: st.tuples(
            st.just(gold),
            st.tuples(*(st.sampled_from([s for s in LABELS if s.split("/")[0] == g.split("/")[0]]) for g in gold)),
        )
    )
)
@settings(deadline=None)
def test_scores_are_those_of_scikit_learn_word_by_word(pair):
    gold, predicted = pair
    context = setup_of(metrics=["accuracy", "f1_macro", "accuracy_by_word"], best_metric="accuracy")
    rows = [{"sense": sense} for sense in gold]
    row_scores = task.compare([{"prediction": sense} for sense in predicted], rows, context)
    words = sorted({sense.split("/")[0] for sense in gold})
    groups = [[(g, f) for g, f in zip(gold, predicted, strict=True) if g.split("/")[0] == word] for word in words]
    by_word = [list(zip(*part, strict=True)) for part in groups]
    assert task.score(row_scores, context) == pytest.approx(
        {
            "accuracy": accuracy_score(gold, predicted),
            "accuracy_by_word": np.mean([accuracy_score(*pair) for pair in by_word]),
            "f1_macro": np.mean([f1_score(*pair, average="macro", zero_division=0) for pair in by_word]),
        }
    )
    records = [{"prediction": sense, "sense_scores": {sense: 1.0}} for sense in predicted]
    table = task.details(records, rows, context).tables["words"]
    assert [each["word"] for each in table] == words
    assert [each["accuracy"] for each in table] == pytest.approx([accuracy_score(*pair) for pair in by_word])
    assert [each["rows"] for each in table] == [len(group) for group in groups]


def test_the_baseline_is_the_most_frequent_sense_of_the_word():
    training = [{"sense": sense} for sense in ("film/good", "film/good", "film/bad", "book/bad")]
    rows = [{"sense": "film/bad"}, {"sense": "book/good"}]
    context = setup_of()
    (predicted,) = task.baselines(task.fit_baselines(training, context), rows, context).values()
    assert predicted == [{"prediction": "film/good"}, {"prediction": "book/bad"}]


# --- from file to answer

LEARN = {
    "training.epochs": 4,
    "training.evaluate_every": 999,
    "training.batch_size": 16,
    "training.learning_rate": 8e-3,
    "training.precision": "fp32",
}


def toy_row(rng: random.Random) -> dict:
    """A film is made or seen, a book read or kept, as a good or bad word beside it says."""
    word = rng.choice(["film", "book"])
    kind = rng.choice(["good", "bad"])
    tokens = rng.choices(["the", "a", "is", "was", "song", "very"], k=rng.randint(1, 6))
    tokens[:0] = [rng.choice(WORDS[kind][:3]), word]
    label = {"film": {"good": "made", "bad": "seen"}, "book": {"good": "read", "bad": "kept"}}[word][kind]
    return {"tokens": tokens, "word_pos": 1, "word": word, "label_name": label}


def toy_rows(count: int, seed: int) -> list[dict]:
    rng = random.Random(seed)
    return [toy_row(rng) for _ in range(count)]


def read_result(folder: Path) -> dict:
    return json.loads((folder / "run.json").read_text())["results"][0]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("rows") / "data"
    write_jsonl(folder / "train.jsonl", toy_rows(160, seed=1))
    write_jsonl(folder / "validation.jsonl", toy_rows(40, seed=2))
    return folder


@pytest.fixture(scope="module")
def tuned(data, tiny_model) -> Path:
    """A run folder: the tiny model fine-tuned until it tells the toy senses."""
    changes = {"model": str(tiny_model), "data.source": str(data), **LEARN}
    finetune(load_recipe("wsd", changes), output=data.parent / "tuned")
    return data.parent / "tuned"


def test_the_toy_senses_are_learned(tuned):
    result = read_result(tuned)
    assert result["scores"]["accuracy"] > 0.9
    assert result["scores"]["f1_macro"] > 0.9
    assert result["baselines"]["most frequent sense"]["accuracy"] < 0.75
    names = json.loads((tuned / "config.json").read_text())["id2label"]
    assert [*names.values()] == ["book/kept", "book/read", "film/made", "film/seen"]


def test_eval_repeats_the_scores_of_fine_tuning(run, tuned, data):
    ended = run("eval", "wsd", "--model", tuned, "--data", data, "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["results"][0]["scores"] == read_result(tuned)["scores"]


def test_a_word_of_a_text_to_predict(run, tuned):
    row = ["--row", "text=good film, very very", "--row", "target=5:9", "--row", "word=film"]
    ended = run("predict", "wsd", "--model", tuned, *row)
    assert ended.code == 0, ended.err
    record = json.loads(ended.out)
    assert record["prediction"] == "film/made"
    assert set(record["sense_scores"]) == {"film/made", "film/seen"}


def test_an_unknown_word_to_predict_ends_in_one_line(run, tuned):
    write_jsonl(Path("new.jsonl"), [{"tokens": ["a", "song"], "word_pos": 1, "word": "song"}])
    ended = run("predict", "wsd", "new.jsonl", "--model", tuned)
    assert (ended.code, ended.out) == (3, "")
    assert ended.last == "error: row 1: the model has no senses of 'song' (column 'word') - it has senses of book, film"


@pytest.fixture(scope="module")
def deep_model(tiny_model, tmp_path_factory) -> Path:
    """A random BERT of five layers, so that the last four are not all."""
    folder = tmp_path_factory.mktemp("models") / "deep"
    torch.manual_seed(3)
    config = BertConfig.from_pretrained(tiny_model, num_hidden_layers=5, initializer_range=0.3)
    BertModel(config).save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def nearest(data, deep_model) -> Path:
    """A run folder of `wsd-nearest`."""
    changes = {"model": str(deep_model), "data.source": str(data), "training.precision": "fp32"}
    finetune(load_recipe("wsd-nearest", changes), output=data.parent / "nearest")
    return data.parent / "nearest"


def word_vectors(rows, folder):
    """Compute the mean over the target's tokens of the sum of the last four layers, by plain transformers."""
    model = AutoModel.from_pretrained(folder).eval()
    vectors = []
    for row in rows:
        encoded = TOKENIZER(row["tokens"], is_split_into_words=True, return_tensors="pt")
        with torch.no_grad():
            states = model(**encoded, output_hidden_states=True).hidden_states
        summed = torch.stack(states[-4:]).sum(dim=0)[0].numpy().astype(np.float64)
        positions = [position for position, word in enumerate(encoded.word_ids()) if word == row["word_pos"]]
        vector = summed[positions].mean(axis=0)
        vectors.append(vector / np.linalg.norm(vector))
    return np.array(vectors)


def test_the_nearest_sense_is_that_of_the_highest_cosine(nearest, data, deep_model):
    training, rows = (read_lines(data / f"{split}.jsonl") for split in ("train", "validation"))
    names = [f"{row['word']}/{row['label_name']}" for row in training]
    vectors = word_vectors(training, deep_model)
    centroids = {name: vectors[np.array(names) == name].mean(axis=0) for name in sorted(set(names))}
    cosines = [
        {
            name: float(vector @ centroid / np.linalg.norm(centroid))
            for name, centroid in centroids.items()
            if name.startswith(row["word"])
        }
        for row, vector in zip(rows, word_vectors(rows, deep_model), strict=True)
    ]
    found = [each["prediction"] for each in read_lines(nearest / "predictions.jsonl")]
    clear = [each for each in cosines if abs(np.subtract(*each.values())) > 1e-4]  # more than rounding makes of it
    assert len(clear) > len(rows) / 2
    expected = [max(each, key=each.get) if each in clear else name for each, name in zip(cosines, found, strict=True)]
    assert found == expected
    assert len(set(expected)) == 4


def test_the_nearest_sense_needs_no_training(run, nearest, data, deep_model):
    record = json.loads((nearest / "run.json").read_text())
    assert (record["status"], record["steps"], record["best_checkpoint"]) == ("finished", 0, None)
    assert not [file for file in nearest.rglob("*") if file.is_dir() and "checkpoint" in file.name]
    before, after = load_file(deep_model / "model.safetensors"), load_file(nearest / "model.safetensors")
    kept = {name.removeprefix("bert."): weight for name, weight in after.items() if name.startswith("bert.")}
    assert set(kept) == {name for name in before if not name.startswith("pooler")}
    assert all(torch.equal(weight, before[name]) for name, weight in kept.items())


def test_eval_repeats_the_scores_of_the_nearest_sense(run, nearest, data):
    ended = run("eval", "wsd-nearest", "--model", nearest, "--data", data, "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["results"][0]["scores"] == read_result(nearest)["scores"]


def test_a_finished_run_without_training_is_not_begun_again(run, nearest, data, deep_model):
    options = ["--model", deep_model, "--data", data, "--output", nearest, "--set", "training.precision=fp32"]
    ended = run("finetune", "wsd-nearest", *options)
    assert ended.code == 0, ended.err
    assert "already finished" in ended.err


@pytest.mark.parametrize("layers", ["embeddings", "last", "concat_last_four"])
def test_other_layers_to_compare(tiny_model, layers):
    context = setup_of(**{"options.method": "nearest", "options.layers": layers})
    model = task.load_model(tiny_model, context, new_head=True)
    rows = [reading(tokens=["film", kind], target=0, sense=kind) for kind in ("good", "bad", "fine")]
    features = task.encode(rows, context)

    def run_part(module, expected):
        return forward(module, expected, task.collator(context), precision="fp32")[0]

    assert task.precompute(model, {"train": features}, context, run_part) is True
    answers = task.decode(run_part(model, features), features, rows, context)
    if layers != "embeddings":  # which know no context
        assert [each["prediction"] for each in answers] == ["film/good", "film/bad", "film/fine"]
