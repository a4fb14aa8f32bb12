"""One label or several: rows, features, probabilities, comparisons and baselines."""

from __future__ import annotations

import numpy as np
import pytest
import sklearn.metrics
from scipy.special import expit, softmax

from bertkit.errors import DataError, ModelError
from bertkit.metrics.linear import TFIDF
from bertkit.recipe import load_recipe
from bertkit.tasks import CLASSIFICATION_METRICS, TaskContext
from bertkit.tasks import text_classification as task
from tests.conftest import make_tokenizer

SEVERAL = {"options.multi_label": True, "metrics": ["f1_macro"], "best_metric": "f1_macro"}


COLUMNS = {**SEVERAL, "data.columns.label": ["joy", "fear"]}
ONE = {"options.multi_label": False, "metrics": ["accuracy"], "best_metric": "accuracy"}


def setup_of(model_labels=("bad", "good"), **changes) -> TaskContext:
    return TaskContext(load_recipe("classify", changes), make_tokenizer(), tuple(model_labels))


@pytest.mark.parametrize(
    ("label", "names"),
    [
        ("joy|fear", ["joy", "fear"]),
        (" joy ", ["joy"]),
        ("", []),
        (None, []),
        (["joy", 2], ["joy", "2"]),
        ('["joy", "fear|x"]', ["joy", "fear|x"]),
        ("['joy', \"it's\"]", ["joy", "it's"]),
        ("[]", []),
        ("[sic]", ["[sic]"]),
        ("(other)", ["(other)"]),
    ],
)
def test_several_labels_are_split(label, names):
    row = task.read({"text": "good", "label": label}, setup_of(**SEVERAL).recipe)
    assert row["label"] == names


@pytest.mark.parametrize("label", [["good"], '["good"]', "['good']", ("good",)])
def test_a_list_of_one_label_is_that_label(label):
    assert task.read({"text": "a", "label": label}, setup_of().recipe)["label"] == "good"


@pytest.mark.parametrize(
    ("marks", "names"), [([1, 0], ["joy"]), (["1.0", "TRUE"], ["joy", "fear"]), ([0.0, False], [])]
)
def test_a_column_of_0_and_1_per_label_is_read(marks, names):
    assert task.read({"text": "a", "label": marks}, setup_of(**COLUMNS).recipe)["label"] == names


def test_the_separator_is_an_option():
    recipe = setup_of(**SEVERAL, **{"options.separator": ","}).recipe
    assert task.read({"text": "a", "label": "joy,fear|x"}, recipe)["label"] == ["joy", "fear|x"]


@pytest.mark.parametrize(
    ("row", "changes", "message"),
    [
        ({"text": 3, "label": "good"}, {}, "3 is not text (column 'text')"),
        ({"text": "a", "text_pair": None}, {}, "None is not text (column 'text_pair')"),
        ({"text": "a", "label": ["good", "bad"]}, {}, "a list of labels (column 'label') - for several labels at once"),
        ({"text": "a", "label": " "}, {}, "no label (column 'label')"),
        ({"text": "a", "label": "joy|joy"}, SEVERAL, "a label is named twice in 'joy|joy' (column 'label')"),
        (
            {"text": "a", "label": '["good", "bad"]'},
            {},
            "a list of labels (column 'label') - for several labels at once",
        ),
        ({"text": "a", "label": []}, {}, "no label (column 'label')"),
        ({"text": "a", "label": {"good": 1}}, {}, "label {'good': 1} is not a name (column 'label')"),
        ({"text": "a", "label": [0, 1, 1]}, SEVERAL, "a 0/1 vector instead of labels (column 'label')"),
        ({"text": "a", "label": "[1.0, 0.0, 0.0]"}, {}, "a 0/1 vector instead of labels (column 'label')"),
        ({"text": "a", "label": "['joy' 'fear']"}, SEVERAL, "label \"['joy' 'fear']\" is a list that is not JSON"),
        ({"text": "a", "label": "[1 0]"}, {}, "label '[1 0]' is a list that is not JSON"),
        ({"text": "a", "label": "{'joy', 'fear'}"}, SEVERAL, "label \"{'joy', 'fear'}\" is a list that is not JSON"),
        ({"text": "a", "label": ["1", "2"]}, COLUMNS, "the label columns contain ['1', '2']"),
        ({"text": "a", "label": ["1", ""]}, COLUMNS, "the label columns contain ['1', '']"),
        ({"text": "a", "label": ["0", "0"]}, {**COLUMNS, **ONE}, "a list of labels (column 'label') - for several"),
    ],
)
def test_rows_that_are_refused(row, changes, message):
    with pytest.raises(DataError) as raised:
        task.read(row, setup_of(**changes).recipe)
    assert str(raised.value).startswith(message)


def test_labels_become_ids_or_indicators():
    rows = [{"text": "good film", "label": "good"}, {"text": "bad"}]
    features = task.encode(rows, setup_of())
    assert features[0]["labels"] == 1 and "labels" not in features[1]
    context = setup_of(("joy", "fear", "anger"), **SEVERAL)
    features = task.encode([{"text": "a", "label": ["anger", "joy"]}, {"text": "a", "label": []}], context)
    assert [feature["labels"] for feature in features] == [[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
    assert task.collator(context)(features)["labels"].dtype.is_floating_point


def test_the_most_probable_label_is_chosen():
    logits = np.random.default_rng(0).normal(size=(5, 3))
    records = task.decode([{"logits": row} for row in logits], [], [], setup_of("abc"))
    for record, row in zip(records, logits, strict=True):
        assert list(record["probabilities"].values()) == pytest.approx(softmax(row).tolist())
        assert record["prediction"] == "abc"[row.argmax()]


def test_all_labels_of_at_least_one_half_are_chosen():
    records = task.decode([{"logits": np.array([0.0, -0.1, 3.0])}], [], [], setup_of("abc", **SEVERAL))
    assert records[0]["prediction"] == ["a", "c"]
    assert list(records[0]["probabilities"].values()) == pytest.approx(expit([0.0, -0.1, 3.0]).tolist())


def decide(logits, way, **changes):
    """The prediction and the probabilities of a row with these logits, (windows, labels), in a wider batch."""
    padded = np.concatenate([logits, np.full((2, len(logits[0])), np.nan)])
    context = setup_of("abc", **{"options.long_text": way, **changes})
    [record] = task.decode([{"logits": padded, "windows": np.float32(len(logits))}], [], [], context)
    return record["prediction"], list(record["probabilities"].values())


def test_windows_of_a_row_are_combined_to_one_label():
    logits = np.log([[0.5, 0.4, 0.1], [0.5, 0.4, 0.1], [0.05, 0.9, 0.05]])
    assert decide(logits, "windows_mean") == ("b", pytest.approx([0.35, 1.7 / 3, 0.25 / 3]))
    assert decide(logits, "windows_max") == ("b", pytest.approx([0.5 / 1.5, 0.9 / 1.5, 0.1 / 1.5]))
    assert decide(logits, "windows_vote") == ("a", pytest.approx([0.35, 1.7 / 3, 0.25 / 3]))
    assert decide(logits[1:], "windows_vote")[0] == "b"  # one each: the mean decides


def test_windows_of_a_row_with_several_labels_are_combined_label_by_label():
    logits = np.log(np.array([[0.9, 0.4, 0.6], [0.2, 0.4, 0.6]]) / (1 - np.array([[0.9, 0.4, 0.6], [0.2, 0.4, 0.6]])))
    assert decide(logits, "windows_mean", **SEVERAL) == (["a", "c"], pytest.approx([0.55, 0.4, 0.6]))
    assert decide(logits, "windows_max", **SEVERAL) == (["a", "c"], pytest.approx([0.9, 0.4, 0.6]))
    assert decide(logits[1:], "windows_vote", **SEVERAL)[0] == ["c"]
    assert decide(logits, "windows_vote", **SEVERAL)[0] == ["a", "c"]  # at least half of the windows


@pytest.mark.parametrize(("way", "axes"), [("windows_mean", 3), ("hierarchical", 3), ("tail", 2)])
def test_a_batch_of_windows_has_an_axis_for_them(way, axes):
    context = setup_of(**{"options.long_text": way, "training.max_length": 8})
    features = task.encode([{"text": "good film " * 9, "label": "good"}, {"text": "bad", "label": "bad"}], context)
    batch = task.collator(context)(features)
    assert batch["input_ids"].dim() == axes and batch["labels"].tolist() == [1, 0]


def test_ids_are_compared_in_the_order_of_the_recipe():
    context = setup_of(("good", "bad"), labels=["bad", "good"], metrics=["f1"], best_metric="f1")
    rows = [{"label": "good"}, {"label": "bad"}, {"label": "good"}]
    predictions = [{"prediction": "good"}, {"prediction": "good"}, {"prediction": "good"}]
    row_scores = task.compare(predictions, rows, context)
    assert (row_scores["gold"].tolist(), row_scores["predicted"].tolist()) == ([1, 0, 1], [1, 1, 1])
    assert task.score(row_scores, context) == {"f1": pytest.approx(0.8)}


def test_scores_of_names_are_those_of_scikit_learn():
    names = ("bad", "good")
    draw = np.random.default_rng(0)
    gold, predicted = (draw.choice(names, 40).tolist() for _ in range(2))
    context = setup_of(("good", "bad"), labels=list(names), metrics=list(CLASSIFICATION_METRICS), best_metric="f1")
    rows, records = [{"label": name} for name in gold], [{"prediction": name} for name in predicted]
    scores = task.score(task.compare(records, rows, context), context)
    of_second = {"pos_label": "good", "average": "binary"}
    assert scores == pytest.approx(
        {
            "accuracy": sklearn.metrics.accuracy_score(gold, predicted),
            "f1": sklearn.metrics.f1_score(gold, predicted, **of_second),
            "precision": sklearn.metrics.precision_score(gold, predicted, **of_second),
            "recall": sklearn.metrics.recall_score(gold, predicted, **of_second),
            **{
                f"f1_{average}": sklearn.metrics.f1_score(gold, predicted, average=average)
                for average in ("macro", "micro", "weighted")
            },
            "balanced_accuracy": sklearn.metrics.balanced_accuracy_score(gold, predicted),
            "matthews_correlation": sklearn.metrics.matthews_corrcoef(gold, predicted),
        }
    )


def test_several_labels_are_compared_as_indicators():
    context = setup_of(("joy", "fear"), **SEVERAL)
    row_scores = task.compare([{"prediction": ["fear"]}], [{"label": ["joy", "fear"]}], context)
    assert (row_scores["gold"].tolist(), row_scores["predicted"].tolist()) == ([[1, 1]], [[0, 1]])


def predict(training, rows, context):
    found = task.baselines(task.fit_baselines(training, context), rows, context)
    return {name: [record["prediction"] for record in records] for name, records in found.items()}


@pytest.mark.parametrize(
    ("tells", "told"),
    [
        (("text_pair alone",), lambda first, second: "not" in second),
        (("text alone",), lambda first, second: "not" in first),
        (("shared words",), lambda first, second: bool({*first.split()} & {*second.split()})),
    ],
)
def test_pairs_have_their_parts_as_baselines(tells, told):
    texts = [f"{word} {verb}" for word in ("ada", "kim", "lee", "max") for verb in ("runs", "did not run")]
    rows = [
        {"text": first, "text_pair": second, "label": "good" if told(first, second) else "bad"}
        for first in texts
        for second in texts
    ]
    predicted = predict(rows * 5, rows, setup_of())
    assert predicted.pop(TFIDF)  # it reads both texts
    assert list(predicted) == ["most frequent label", "text alone", "text_pair alone", "shared words"]
    solved = tuple(name for name, found in predicted.items() if found == [row["label"] for row in rows])
    assert solved == tells


def test_baselines_know_the_labels_only_or_the_words_too():
    rows = [{"text": text, "label": label} for text, label in (("well done", "good"), ("badly done", "bad")) * 2]
    rows.append({"text": "well made", "label": "good"})
    new = [{"text": "made badly"}, {"text": "very well"}]
    assert predict(rows, new, setup_of()) == {"most frequent label": ["good", "good"], TFIDF: ["bad", "good"]}
    rows = [
        {"text": text, "label": label}
        for text, label in (("a party", ["joy"]), ("a wild party", ["joy", "fear"]), ("a wild beast", ["fear"])) * 2
    ]
    rows.append({"text": "my party", "label": ["joy"]})
    new = [{"text": "the party"}, {"text": "the beast"}]
    assert predict(rows, new, setup_of(("joy", "fear"), **SEVERAL)) == {
        "most frequent label": [["joy", "fear"]] * 2,
        TFIDF: [["joy"], ["fear"]],
    }


def test_models_of_an_ensemble_are_combined_window_by_window():
    one, other = (np.log([[0.9, 0.05, 0.05], [0.2, 0.6, 0.2], [np.nan] * 3]), np.log([[0.5, 0.25, 0.25]] * 3))
    outputs = [{"logits": logits, "windows": np.float32(2)} for logits in (one, other)]
    context = setup_of("abc", **{"options.long_text": "windows_mean"})
    combined = task.combine(outputs, {}, context)
    [record] = task.decode([combined], [], [], context)
    assert list(record["probabilities"].values()) == pytest.approx([0.525, 0.2875, 0.1875])


def test_a_head_over_windows_is_refused_for_single_texts(tiny_model, tmp_path):
    hierarchical = setup_of(**{"options.long_text": "hierarchical"})
    task.load_model(tiny_model, hierarchical, new_head=True).save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    task.load_model(tmp_path, hierarchical, new_head=False)
    remedy = "add --set options.long_text=hierarchical"
    with pytest.raises(ModelError, match=f"its head reads windows of a text .* - {remedy}"):
        task.load_model(tmp_path, setup_of(), new_head=False)
