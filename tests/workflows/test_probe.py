"""Probing from the recipe to the page."""

from __future__ import annotations

import numpy as np
import pytest

from bertkit.errors import DataError, RecipeError
from bertkit.workflows.probe import load_probe_recipe, probe
from tests.conftest import write_jsonl
from tests.kills import HEAVY


def test_a_score_is_that_of_a_plain_loop(tiny_model, tmp_path):
    """Vectors of a plain forward pass per row, scikit-learn's probe, and right words counted one by one."""
    import torch
    from sklearn.linear_model import LogisticRegression
    from transformers import AutoModel, AutoTokenizer

    from bertkit.analysis.probe_tasks import read_recipe_task
    from bertkit.analysis.probes import draw_training_items

    draws = np.random.default_rng(0)
    words = ["good", "bad", "film", "the", "very", "dull"]
    rows = []
    for _ in range(60):
        tokens = draws.choice(words, size=draws.integers(2, 7)).tolist()
        rows.append({"tokens": tokens, "tags": ["A" if before == "the" else "B" for before in ["", *tokens[:-1]]]})
    source = write_jsonl(tmp_path / "rows.jsonl", rows)
    recipe = load_probe_recipe("tag", {"model": str(tiny_model), "data.source": str(source), "options.scheme": "none"})
    found = probe(recipe, limit=40, precision="fp32").probed.layers[2]

    tokenizer, model = AutoTokenizer.from_pretrained(tiny_model), AutoModel.from_pretrained(tiny_model).eval()

    def read(items):
        vectors = []
        for row in items.rows:
            encoding = tokenizer(row["tokens"], is_split_into_words=True, return_tensors="pt")
            with torch.no_grad():
                states = model(**encoding, output_hidden_states=True).hidden_states[2][0]
            for word in range(len(row["tokens"])):
                own = [place for place, owner in enumerate(encoding.word_ids()) if owner == word]
                vectors.append(sum(states[place] for place in own).numpy() / len(own))
        return np.array(vectors)

    task = read_recipe_task(recipe, 40)
    train, test = read(task.train), read(task.test)
    numbers, _ = draw_training_items(task.train, 20_000)
    mean, deviation = train[numbers].mean(axis=0), train[numbers].std(axis=0)
    learned, scored = ((some - mean) / deviation for some in (train[numbers], test))
    plain = LogisticRegression(C=1 / found.strength, tol=1e-6, max_iter=2000)
    plain.fit(learned, np.array(task.train.labels)[numbers])
    right = 0
    for label, gold in zip(plain.predict(scored), task.test.labels, strict=True):
        right += label == gold
    assert found.score == pytest.approx(right / len(test), abs=1.01 / len(test))


def test_names_are_recipes_or_built_in_tasks():
    assert load_probe_recipe("length", {"data.source": "demo"}).name == "length"
    with pytest.raises(RecipeError, match="neither a recipe nor a task of `bertkit probe`") as caught:
        load_probe_recipe("lenght", {})
    assert caught.value.remedy == "did you mean length?"
    with pytest.raises(RecipeError, match=r"--set training.seed: length has no recipe"):
        load_probe_recipe("length", {"model": "demo", "training.seed": 3})
    with pytest.raises(RecipeError, match="no such recipe file"):
        load_probe_recipe("a/b.yaml", {})


def test_rows_are_checked(tiny_model):
    recipe = load_probe_recipe("length", {"model": str(tiny_model), "data.source": "demo", "data.limit": 40})
    with pytest.raises(DataError, match=r"4 training rows with a label, of at least 10|have one label"):
        probe(recipe, limit=4)


def test_mistakes_are_found_before_torch_is_imported(tmp_path, light_zygote):
    (tmp_path / "a.html").write_text("mine")
    arguments = ["probe", "pos", "--model", "demo", "--output", "a.html"]
    assert HEAVY & light_zygote.imports(tmp_path, arguments) == set()
    arguments = ["probe", "length", "--model", "demo", "--data", "missing.csv"]
    assert "torch" not in light_zygote.imports(tmp_path, arguments)
