"""Experiment trackers: their own readers find losses and scores with intervals, on one curve."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from bertkit.errors import UnavailableError
from bertkit.recipe import TrainingConfig
from bertkit.recipe.sections import _Tracker
from bertkit.training import trackers
from tests.conftest import finetune
from tests.kills import COMMIT, TRAINING_STEP, read_lines

SHORT = ("--batch-size", 16, "--epochs", 2, "--learning-rate", "1e-3")
OFTEN = ("--set", "training.log_every=1", "--set", "training.evaluate_every=4", "--set", "training.precision=fp32")
KILLED = [{"function": TRAINING_STEP, "call": 7, "when": "before"}, {"function": COMMIT, "call": 2, "when": "before"}]


def read_board(folder: Path) -> EventAccumulator:
    """Read a folder as TensorBoard does, with all of its points."""
    board = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    return board.Reload()


def points(board: EventAccumulator, name: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in board.Scalars(name)]


def check_curves(folder: Path, board: EventAccumulator) -> None:
    """Compare the curves with the log of the run, and the final scores with its record."""
    log, record = read_lines(folder / "metrics.jsonl"), json.loads((folder / "run.json").read_text())
    for key, name in (("loss", "train/loss"), ("eval_accuracy", "eval/accuracy"), ("eval_loss", "eval/loss")):
        logged = [(entry["step"], pytest.approx(entry[key])) for entry in log if key in entry]
        # The steps that a resumed run repeats are reported twice, with the same values.
        assert len(logged) > 1 and sorted(set(points(board, name))) == logged, name
    result = record["results"][0]
    low, high = result["intervals"]["accuracy"]
    final = {"accuracy": result["scores"]["accuracy"], "accuracy/low": low, "accuracy/high": high}
    for name, value in final.items():
        assert points(board, f"eval/final/validation/{name}") == [(record["best_step"], pytest.approx(value))]


def test_tensorboard_reads_losses_and_scores(run, tiny_model, toy_data):
    ended = finetune(run, tiny_model, toy_data, *SHORT, *OFTEN, "--report-to", "tensorboard")
    assert ended.code == 0, ended.err
    folder = Path("runs/classify")
    check_curves(folder, read_board(folder / "tensorboard"))
    assert "tensorboard/" in (folder / ".gitignore").read_text()
    identity = json.loads((folder / "run.json").read_text())["identity"]
    assert "report_to" not in identity["recipe"]["training"]
    again = finetune(run, tiny_model, toy_data, *SHORT, *OFTEN)  # no part of what makes the run the run it is
    assert "already finished" in again.err


def test_several_runs_have_folders_of_their_own_in_one_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "all"))
    for number in range(2):
        session = trackers.Session(tmp_path, "p", f"cola-{number}", {})
        session.open("tensorboard")
        session.on_log(
            TrainingArguments(str(tmp_path)), TrainerState(global_step=3), TrainerControl(), logs={"a": number}
        )
        session.end({})
    for number in range(2):
        assert points(read_board(tmp_path / "all" / f"cola-{number}"), "train/a") == [(3, number)]


def test_the_recipe_knows_the_trackers_of_transformers():
    assert set(get_args(_Tracker)) == set(INTEGRATION_TO_CALLBACK)


def test_a_missing_tracker_is_told_before_rows_are_read(run, tiny_model, monkeypatch):
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    for command in (("finetune", "classify", "--data", "nowhere.csv"), ("pretrain", "mlm", "--data", "nowhere.txt")):
        ended = run(*command, "--model", tiny_model, "--report-to", "wandb", "--output", "run")
        assert ended.code == 5
        assert "training.report_to names wandb, but its package is not installed - `pip install wandb`" in ended.last
        assert not Path("run").exists()
    with pytest.raises(UnavailableError, match="pip install azureml-sdk"):
        trackers.check_callbacks(TrainingConfig(report_to="azure_ml"), trusted=True)


def test_an_unknown_tracker_is_told(run, tiny_model, toy_data):
    ended = finetune(run, tiny_model, toy_data, "--report-to", "tensorbord")
    assert ended.code == 2
    assert "training.report_to" in ended.last and "tensorboard" in ended.last


class Failing(TrainerCallback):
    """A tracker whose server goes away."""

    def on_log(self, *_, **__):
        raise ConnectionError("no server\nany more")

    def on_train_end(self, *_, **__):
        raise ConnectionError("no server")


class Unopened(TrainerCallback):
    """A tracker that nobody has logged in to."""

    def on_train_begin(self, *_, **__):
        raise ValueError("no API key configured\nlog in")


def test_a_tracker_that_fails_costs_a_line_and_not_the_run(run, tiny_model, toy_data, monkeypatch):
    monkeypatch.setitem(INTEGRATION_TO_CALLBACK, "swanlab", Failing)
    monkeypatch.setattr(trackers, "find_spec", lambda name: True)
    ended = finetune(run, tiny_model, toy_data, *SHORT, *OFTEN, "--report-to", "swanlab")
    assert ended.code == 0, ended.err
    assert ended.err.count("swanlab failed, and the run continues: no server\n") == 1


def test_a_tracker_that_cannot_be_opened_ends_the_run_at_once(run, tiny_model, toy_data, monkeypatch):
    monkeypatch.setitem(INTEGRATION_TO_CALLBACK, "swanlab", Unopened)
    monkeypatch.setattr(trackers, "find_spec", lambda name: True)
    ended = finetune(run, tiny_model, toy_data, "--report-to", "swanlab")
    assert ended.code == 5
    assert ended.last.startswith("error: swanlab cannot be opened: no API key configured - see its settings, or leave")
    ended = finetune(run, tiny_model, toy_data, "--report-to", "kubeflow")
    assert ended.code == 5
    assert "kubeflow cannot be opened: KubeflowCallback requires KUBEFLOW_TRAINER_SERVER_URL" in ended.last


@pytest.mark.slow
@pytest.mark.parametrize("fault", KILLED, ids=["step", "commit"])
def test_a_killed_and_resumed_run_is_one_curve(zygote, tiny_model, toy_data, tmp_path, fault):
    command = ["finetune", "classify", "--model", tiny_model, "--data", toy_data, *SHORT, *OFTEN]
    command = [*map(str, command), "--report-to", "tensorboard", "--output", "run"]
    code, _ = zygote.run(tmp_path, command, fault)
    assert code == -9
    before = json.loads((tmp_path / "run" / "run.json").read_text())["trackers"]
    code, text = zygote.run(tmp_path, command)
    assert code == 0, text
    assert json.loads((tmp_path / "run" / "run.json").read_text())["trackers"] == before
    check_curves(tmp_path / "run", read_board(tmp_path / "run" / "tensorboard"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of mlflow and of its data base
def test_mlflow_reads_one_run_of_a_killed_and_resumed_one(zygote, tiny_model, toy_data, tmp_path):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed: it is too large for the development tools")
    store = f"sqlite:///{tmp_path}/mlflow.db"
    command = ["finetune", "classify", "--model", tiny_model, "--data", toy_data, *SHORT, *OFTEN]
    command = [*map(str, command), "--report-to", "mlflow", "--output", "run"]
    environment = {"MLFLOW_TRACKING_URI": store, "MLFLOW_EXPERIMENT_NAME": "reviews"}
    code, text = zygote.run(tmp_path, command, KILLED[0], **environment)
    assert code == -9, text
    code, text = zygote.run(tmp_path, command, **environment)
    assert code == 0, text
    client = mlflow.MlflowClient(store)
    experiment = client.get_experiment_by_name("reviews")
    (open_trackers,) = client.search_runs([experiment.experiment_id])
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (open_trackers.info.run_id, open_trackers.info.status) == (record["trackers"]["mlflow"], "FINISHED")
    history = client.get_metric_history(open_trackers.info.run_id, "loss")
    log = read_lines(tmp_path / "run" / "metrics.jsonl")
    # steps that were reported twice have the same value twice, since a resumed run computes the same
    curve = sorted({(point.step, round(point.value, 5)) for point in history})
    assert curve == [(entry["step"], round(entry["loss"], 5)) for entry in log if "loss" in entry]
    accuracy = record["results"][0]["scores"]["accuracy"]
    assert open_trackers.data.metrics["eval_final/validation/accuracy"] == pytest.approx(accuracy)
