"""Explanations of every task family: complete, about the words of the row, and about what was asked for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from bertkit.analysis.explanations import find_targets, find_words
from bertkit.data.sources import read_splits
from bertkit.errors import UsageError
from bertkit.recipe import load_recipe
from bertkit.tasks import load_task, task_names
from bertkit.tokens.features import special_ids
from bertkit.workflows.explain import explain
from bertkit.workflows.finetune import finetune
from tests.conftest import make_tokenizer

RECIPES = (
    *("similarity-pairs", "few-shot", "late-interaction", "swag", "decide", "squad2", "rerank", "similarity"),
    *("sparse", "mnli", "stsb", "ner", "ner-features", "similarity-texts", "wsd"),
)


def fine_tune(name, folder, **changes):
    few = {"training.epochs": 1, "training.batch_size": 8, "training.precision": "fp32"}
    recipe = load_recipe(name, {"model": "demo", "data.source": "demo", **few, **changes})
    finetune(recipe, output=folder / "run")
    return recipe


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_every_task_family_is_explained(name, tmp_path):
    recipe = fine_tune(name, tmp_path, **{"data.limit": 300 if name == "wsd" else 24})
    task = load_task(recipe)
    splits = read_splits(recipe, task.COLUMNS, lambda row: task.read(row, recipe), lambda name: name == "validation")
    columns = {*task.COLUMNS.names} - {task.COLUMNS.gold, "id"}
    loaded = load_recipe(str(tmp_path / "run" / "recipe.yaml"), {"model": str(tmp_path / "run")})
    for row in splits["validation"].rows[:2]:
        inputs = {name: value for name, value in row.items() if name in columns}
        (explained,) = explain(loaded, row=inputs)
        assert explained.explanations
        for one in explained.explanations:
            assert one.is_complete, (one.target, one.gap)
            total = sum(word.integrated_gradients for word in one.words)
            assert total == pytest.approx(one.score - one.baseline_score, rel=0.011)
            assert any(word.occlusion for word in one.words)


def test_the_recipes_are_of_every_family_but_the_one_that_trains_nothing():
    assert {load_recipe(name).task for name in RECIPES} == {*task_names()} - {"zero_shot"}


def test_targets_are_those_of_the_prediction_or_are_named():
    targets = [
        SimpleNamespace(name="dog: NOUN", is_predicted=False),
        SimpleNamespace(name="ran: VERB", is_predicted=True),
    ]
    task = SimpleNamespace(targets=lambda *_: targets)
    checkpoint = SimpleNamespace(task=task, context=None)
    answered = SimpleNamespace(prediction={}, outputs=[], features=[], row={})
    assert find_targets(checkpoint, answered, ()) == targets[1:]
    assert find_targets(checkpoint, answered, ("dog",)) == targets[:1]
    assert find_targets(checkpoint, answered, ("ran: VERB",)) == targets[1:]
    with pytest.raises(UsageError, match="no target is called 'dgo: NOUN' - did you mean dog: NOUN"):
        find_targets(checkpoint, answered, ("dgo: NOUN",))


# --- Words ---


def words_of(tokenizer, *texts):
    ids = tokenizer(*texts)["input_ids"]
    found = find_words([ids], tokenizer)
    positions = [position for word in found for _, position in word.positions]
    # each token that stands for text belongs to one word
    assert positions == [n for n, token in enumerate(ids) if token not in special_ids(tokenizer)]
    return [(word.text, word.segment, len(word.positions)) for word in found]


def test_word_pieces_are_joined_in_each_text():
    assert words_of(make_tokenizer(), "The song plays", "A film.") == [
        ("the", 0, 1),
        ("song", 0, 1),
        ("plays", 0, 5),
        ("a", 1, 1),
        ("film", 1, 1),
        (".", 1, 1),
    ]


def test_an_unknown_token_is_a_word():
    assert words_of(make_tokenizer(), "film 語") == [("film", 0, 1), ("[UNK]", 0, 1)]


def make_bytes_tokenizer():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(["film film"], trainers.BpeTrainer(vocab_size=262, initial_alphabet=alphabet))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_bytes_are_parts_of_words():
    found = words_of(make_bytes_tokenizer(), "A filmé 語 song")
    assert [word for word, _, _ in found] == ["A", "filmé", "語", "song"]
    assert [count for _, _, count in found][2:] == [4, 5]  # a space and three bytes; a space and four letters


def make_unigram_tokenizer():
    tokenizer = Tokenizer(models.Unigram([("<unk>", 0.0), ("▁", -2.0), ("▁fil", -3.0), ("m", -3.0), ("語", -3.0)], 0))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


def test_sentencepiece_marks_the_beginning_of_words():
    assert words_of(make_unigram_tokenizer(), "film 語") == [("film", 0, 2), ("語", 0, 2)]
