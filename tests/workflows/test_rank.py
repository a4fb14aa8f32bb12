"""Encoders are ranked on a recipe's training rows, and what is wrong is found before any vector is read."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from bertkit.data.row_digests import digest_trained, write_digests
from bertkit.errors import DataError, ModelError, UsageError
from bertkit.insight.layer_vectors import LayerReader
from bertkit.insight.ranking.cost import EncoderCost
from bertkit.insight.ranking.examples import LayerFeatures, RankedExamples
from bertkit.insight.ranking.measure import h_score, score_encoder
from bertkit.recipe import load_recipe
from bertkit.reports.insight.rank import write_ranking
from bertkit.workflows import rank as ranking
from bertkit.workflows.finetune.inputs import read_labeled
from bertkit.workflows.rank import RankSettings, check_models, rank
from tests.conftest import toy_rows, write_csv

FEW = RankSettings(examples=60)


@pytest.fixture
def recipe(tmp_path):
    data = write_csv(tmp_path / "rows.csv", toy_rows(90, seed=3))
    return load_recipe("classify", {"data.source": str(data), "training.precision": "fp32", "training.max_length": 500})


def test_encoders_are_ordered_by_their_score_and_costed(recipe, tiny_model, tmp_path, timed_once):
    rows = read_labeled(recipe)[1]["train"].rows
    trained = tmp_path / "trained"  # on some of the rows, as a run is
    shutil.copytree(tiny_model, trained)
    write_digests(trained, digest_trained(rows[:9], "label"))
    found = rank(recipe, [str(trained), "demo"], FEW)
    assert (found.unit, found.classes, found.by, found.precision) == ("text", 2, "logme", "fp32")
    first, second = found.encoders
    assert first.scores["logme"] - first.shuffled >= second.scores["logme"] - second.shuffled
    assert first.is_like_first and not second.is_like_next and first.is_like_next == second.is_like_first
    assert any(one.is_efficient for one in found.encoders)
    (note,) = found.notes
    assert note.startswith(f"{trained} was trained on ") and note.endswith("of these rows: its scores are too high.")
    # one score again, from vectors that are read by hand
    assert found.examples == min(60, len(rows))
    chosen = [rows[number * len(rows) // found.examples] for number in range(found.examples)]
    vectors = LayerReader(str(tiny_model), 64, "fp32").read(chosen, "text").vectors[:, 1:].mean(axis=1)
    own = next(one for one in found.encoders if one.model == str(trained))
    gold = np.array([int(row["label"] == "good") for row in chosen])
    assert own.scores["h_score"] == pytest.approx(h_score(vectors.astype(np.float64), gold))
    write_ranking(tmp_path / "page.html", found)
    assert "which encoder to fine-tune" in (tmp_path / "page.html").read_text()


def test_what_is_wrong_is_found_before_any_work(recipe, tiny_model, tmp_path, monkeypatch):
    def read(*_):
        raise AssertionError("a row was read")

    damaged = tmp_path / "damaged"
    shutil.copytree(tiny_model, damaged)
    (damaged / "config.json").write_text("{}")
    copy = tmp_path / "copy"
    copy.symlink_to(tiny_model)
    monkeypatch.setattr(ranking, "read_labeled", read)
    tiny = str(tiny_model)
    for models, settings, error, message in (
        ([], FEW, UsageError, "no encoders"),
        ([tiny], FEW, UsageError, "alone cannot be ranked"),
        ([tiny, "demo", tiny], FEW, UsageError, "twice"),
        ([tiny, str(copy)], FEW, UsageError, "are one model"),
        (["demo", str(tmp_path / "none")], FEW, ModelError, "no such directory"),
        (["demo", str(damaged)], FEW, ModelError, "damaged"),
        (["demo", tiny], RankSettings(layers="3"), UsageError, "has 2 layers"),
        (["demo", tiny], RankSettings(layers="middle"), UsageError, "--layers middle"),
    ):
        with pytest.raises(error) as raised:
            rank(recipe, models, settings)
        assert message in str(raised.value)
    check_models(["demo", tiny], "2")


def test_rows_that_do_not_fit_are_refused_before_models_are_loaded(tiny_model, tmp_path, monkeypatch):
    monkeypatch.setattr(ranking, "open_reader", lambda *_: pytest.fail("a model was loaded"))
    models = ["demo", str(tiny_model)]
    few = write_csv(tmp_path / "few.csv", toy_rows(20, seed=1))
    with pytest.raises(DataError, match="too few"):
        rank(load_recipe("classify", {"data.source": str(few)}), models)
    one = write_csv(tmp_path / "one.csv", [{"text": f"a {number}", "label": "x"} for number in range(60)])
    with pytest.raises(DataError, match="label"):
        rank(load_recipe("classify", {"data.source": str(one)}), models)
    numbers = write_csv(tmp_path / "numbers.csv", [{"text": f"a {number}", "label": number} for number in range(60)])
    with pytest.raises(UsageError, match="--by logme"):
        rank(load_recipe("regress", {"data.source": str(numbers)}), models, RankSettings("h_score"))


def test_zero_shot_recipes_are_refused(recipe, tiny_model):
    with pytest.raises(UsageError, match="eval --zero-shot"):
        rank(recipe.model_copy(update={"task": "zero_shot", "options": {}}), ["demo", str(tiny_model)], FEW)


def test_wide_vectors_do_not_come_first_by_what_they_score_with_shuffled_labels():
    """Which the H-score does: it goes by how many dimensions there are beside examples."""
    draw = np.random.default_rng(0)
    gold = draw.integers(0, 2, 200)
    examples = RankedExamples("text", [{}] * 200, gold, np.arange(200), [np.arange(200)], 2)
    narrow, wide = (draw.normal(size=(200, 1, width)) * np.arange(1, width + 1) ** -0.5 for width in (8, 256))
    narrow += 0.4 * gold[:, None, None] * np.arange(1, 9) ** -0.5
    for by in ("h_score", "logme"):
        sides = [np.repeat(side, 2, axis=1) for side in (narrow, wide)]
        scored = [score_encoder(LayerFeatures([side]), examples, "last", by) for side in sides]
        if by == "h_score":
            assert scored[0].scores[by] < scored[1].scores[by]
        cost = EncoderCost(1, 1.0, 1.0, 1, 1, "unknown", "unknown")
        ordered = ranking._order_encoders(["narrow", "wide"], by, scored, [cost, cost], [0.0, 0.0])
        assert [one.model for one in ordered] == ["narrow", "wide"]
        assert ordered[1].is_chance


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "unit", "by"),
    [
        ("mrpc", "pair", "logme"),
        ("stsb", "pair", "logme"),
        ("similarity", "two texts", "logme"),
        ("ner", "word", "logme"),
        ("wsd", "target", "logme"),
        ("few-shot", "text", "logme"),
    ],
)
def test_each_task_family_with_labels_is_ranked(name, unit, by, tiny_model):
    recipe = load_recipe(name, {"data.source": "demo", "training.precision": "fp32"})
    found = rank(recipe, ["demo", str(tiny_model)], RankSettings(examples=1000))
    assert (found.unit, found.by) == (unit, by)
    assert found.encoders[0].model == "demo"  # which is trained; the other one is random


@pytest.mark.slow
def test_the_best_layer_is_told_apart_from_the_mean(tiny_model):
    recipe = load_recipe("cola", {"data.source": "demo", "training.precision": "fp32"})
    found = rank(recipe, ["demo", str(tiny_model)], RankSettings(layers="best", examples=100))
    assert all(isinstance(one.layer, int) for one in found.encoders) and "favors" in found.notes[0]
