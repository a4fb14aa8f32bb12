"""Texts without labels: halves that find each other, and a run from a text file to a folder."""

from __future__ import annotations

import numpy as np
import pytest

import bertkit
from bertkit.data.sources import read_splits
from bertkit.errors import DataError
from bertkit.recipe import load_recipe
from bertkit.tasks import load_task
from bertkit.tasks import unlabeled_texts as task
from bertkit.tokens.features import TaskContext
from bertkit.training.batching import plan_batches_without_duplicates
from bertkit.workflows.finetune import finetune
from tests.conftest import make_tokenizer, toy_rows


def setup_of(**changes) -> TaskContext:
    recipe = load_recipe("similarity-texts", changes)
    load_task(recipe)
    return TaskContext(recipe, make_tokenizer(), ())


@pytest.mark.parametrize(
    ("text", "halves"),
    [("a b  c", ["a", "b c"]), ("word", ["wo", "rd"]), ("x", ["x", "x"]), (" one two ", ["one", "two"])],
)
def test_a_text_and_its_halves_are_encoded(text, halves):
    (feature,) = task.encode([{"text": text}], setup_of())
    expected = make_tokenizer()([text, *halves])["input_ids"]
    assert feature["input_ids"] == expected


def test_a_text_that_comes_twice_is_never_in_a_batch_twice():
    rows = [{"text": f"film {number // 2}"} for number in range(24)]
    numbers = [feature["texts"] for feature in task.encode(rows, setup_of())]
    for batch in plan_batches_without_duplicates(numbers, 6, seed=0, epoch=0):
        assert len({rows[row]["text"] for row in batch}) == len(batch)


def test_scores_are_those_of_a_loop():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(40, 3, 8))
    vectors[:, 2] += 1.5 * vectors[:, 1]
    rows = [{"text": f"begin{number} end{number}"} for number in range(40)]
    predictions = task.decode([{"vectors": of_text} for of_text in vectors], [], rows, setup_of())
    unit = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    ranks = []
    for number in range(40):
        cosines = [float(unit[number, 1] @ unit[other, 2]) for other in range(40)]
        ranks.append(sorted(cosines, reverse=True).index(cosines[number]) + 1)
        assert predictions[number]["prediction"] == pytest.approx(cosines[number])
    expected = {"mrr@10": sum(1 / rank for rank in ranks if rank <= 10) / 40}
    expected |= {f"recall@{k}": sum(rank <= k for rank in ranks) / 40 for k in (1, 10)}
    context = setup_of()
    assert 0.1 < expected["recall@1"] < 0.95
    assert task.score(task.compare(predictions, rows, context), context) == pytest.approx(expected)


def test_baselines_rank_the_second_halves():
    rows = [{"text": f"film{number} was so film{number}"} for number in range(30)]
    context = setup_of()
    found = task.baselines({}, rows, context)
    chance, words = (
        task.score(task.compare(found[name], rows, context), context) for name in ("chance", "shared words")
    )
    assert chance["recall@1"] < 0.3 and words["recall@1"] == 1


def test_a_text_that_is_no_text_is_refused():
    with pytest.raises(DataError, match="3 is not text"):
        task.read({"text": 3}, load_recipe("similarity-texts"))


def test_lines_of_a_file_are_rows_and_equal_ones_are_held_out_together(tmp_path):
    file = tmp_path / "texts.txt"
    file.write_text("".join(f"line number {number % 30}\n" for number in range(60)))
    recipe = load_recipe("similarity-texts", {"data.source": str(file)})
    splits = read_splits(recipe, task.COLUMNS, lambda row: task.read(row, recipe), lambda name: name != "all")
    train, validation = ({row["text"] for row in splits[name].rows} for name in ("train", "validation"))
    assert validation and not train & validation


def test_a_run_from_a_text_file_to_a_folder_of_vectors(tiny_model, tmp_path):
    (tmp_path / "texts.txt").write_text("".join(f"{row['text']}\n" for row in toy_rows(60, seed=1)))
    changes = {"model": str(tiny_model), "data.source": str(tmp_path / "texts.txt"), "training.precision": "fp32"}
    recipe = load_recipe("similarity-texts", changes | {"training.batch_size": 16})
    (result,) = finetune(recipe, output=tmp_path / "run")
    assert set(result.scores) == set(task.METRICS)
    assert set(result.baselines) == {"chance", "shared words", "encoder before training"}
    before, after = (
        bertkit.Embedder(str(folder), precision="fp32").encode(["a good film"])
        for folder in (tiny_model, tmp_path / "run")
    )
    assert after.shape == (1, 32) and not np.allclose(before, after)
