"""Models: found by the names of their runs, loaded, where they answer, and the metrics."""

from __future__ import annotations

import shutil
import threading
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bertkit.errors import BertkitError, ModelError, UsageError
from bertkit.server import models as module
from bertkit.server.batching import Limits
from bertkit.server.models import find_models
from tests.runtime.hand_made import write_vectors


def test_a_run_has_the_name_of_its_folder_or_a_given_one(trained, sentence_folder):
    found = find_models([str(trained), f"other={trained}", str(sentence_folder)])
    assert [(model.name, model.checkpoint is None, model.can_embed) for model in found] == [
        ("run", False, False),
        ("other", False, False),
        ("vectors", True, True),
    ]


def test_a_folder_that_is_no_run_needs_a_recipe(tiny_model, trained, tmp_path):
    with pytest.raises(ModelError, match="nothing defines how it reads rows"):
        find_models([str(tiny_model)])
    foreign = shutil.copytree(trained, tmp_path / "foreign", ignore=shutil.ignore_patterns("recipe.yaml", "run.json"))
    (model,) = find_models([str(foreign)], "classify")
    assert model.checkpoint is not None
    assert set(model.checkpoint.labels) == {"good", "bad"}


def test_a_recipe_that_no_model_needs_is_refused(trained):
    with pytest.raises(UsageError, match="--recipe cola is not used, because each of these models has its own recipe"):
        find_models([str(trained)], "cola")


@pytest.mark.parametrize(
    "names, error, message",
    [
        (["runs/nix"], ModelError, "no such run: runs/nix"),
        (["{run}", "{run}"], UsageError, "two models are called 'run'"),
        (["a b={run}"], UsageError, "'a b' cannot be the name of a model"),
    ],
)
def test_names_that_cannot_be_served(names, error, message, trained, here):
    with pytest.raises(BertkitError, match=message) as raised:
        find_models([name.format(run=trained) for name in names])
    assert isinstance(raised.value, error)


def test_a_folder_of_runs_names_them(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "runs" / "one")
    shutil.copytree(trained, tmp_path / "runs" / "two")
    with pytest.raises(ModelError, match=r"a folder of runs and not a run itself \(one, two\).* e.g. .*runs/one"):
        find_models([str(tmp_path / "runs")])


def test_an_exported_model_of_vectors_predicts_and_embeds(tmp_path):
    write_vectors(tmp_path / "exported")
    (tmp_path / "exported" / "recipe.yaml").write_text("extends: similarity\n")
    (model,) = find_models([str(tmp_path / "exported")])
    assert model.checkpoint is not None and model.can_embed


def test_models_answer_where_their_answers_fit(service):
    assert service.models["run"].routes == [*("/v1/models/run:predict", "/predict", "/v1/decisions", "/v1/systemone")]
    assert service.models["vectors"].routes == ["/embed", "/v1/embeddings"]


def test_models_are_loaded_in_a_thread_that_ends_so_that_its_openmp_pool_does(monkeypatch):
    loaders = []

    def load(model, *_):
        loaders.append(threading.current_thread())
        return SimpleNamespace(name=model.name, row_queue=None, text_queue=None)

    monkeypatch.setattr(module, "_load_model", load)
    module.load_service([SimpleNamespace(name="a"), SimpleNamespace(name="b")], Limits())
    assert len(loaders) == 2
    assert not any(thread.is_alive() for thread in loaders)


def test_requests_batches_and_the_queue_are_counted(client):
    def read():
        families = text_string_to_metric_families(client.get("/metrics").body.decode())
        return {
            (sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples
        }

    key = ("bertkit_requests_total", "/predict", "200")
    before = read().get(key, 0)
    client.post("/predict", {"inputs": [["good"], ["bad film"]]})
    after = read()
    assert after[key] == before + 1
    assert after[("bertkit_queue_rows", "run")] == 0
    assert after[("bertkit_batch_rows_count", "run")] >= 1
