"""Callbacks that a recipe names: custom classes, and transformers' experiment trackers, which a run opens once.

TensorBoard, W&B, MLflow and Trackio continue the curve of a resumed run, because its record stores the name and the ids
that the run has in each tracker. Trackers get the Trainer's logs and, at the end, the final scores with intervals.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bertkit.errors import RecipeError, UnavailableError, error_summary
from bertkit.progress import log
from bertkit.recipe.plugins import custom_code_error, load_custom
from bertkit.recipe.sections import BaseTrainingConfig
from bertkit.storage import runs
from bertkit.storage.runs import RunRecord

FOLDER = "tensorboard"
"""TensorBoard folder in a run folder, unless TENSORBOARD_LOGGING_DIR names a folder for several runs."""

_OPENING_EVENTS = ("on_init_end", "on_train_begin")  # events in which trackers connect
# Tracker -> (module, package on PyPI), unless both have the tracker's name. Kubeflow needs no package, only environment
# variables of its platform.
_PACKAGES = {
    "azure_ml": ("azureml", "azureml-sdk"),
    "flyte": ("flytekit", "flytekit"),
    "kubeflow": ("transformers", "transformers"),
}


@dataclass
class Session:
    """Callback of the Trainer that passes each event of a run to the callbacks of the run's trackers."""

    folder: Path
    project: str
    name: str
    """Name of the run in its trackers. It has a random part, because runs with the same name would share a curve."""
    ids: dict[str, str]
    """Tracker -> id of the run; the entry ``run`` is the random part of the name. The run's record stores the ids."""
    callbacks: dict[str, Any] = field(default_factory=dict)
    last_event: tuple[Any, Any, Any] | None = None
    """Arguments, state and control of the last event."""
    objects: dict[str, Any] = field(default_factory=dict)
    """Model and tokenizer of the last event."""
    failed_trackers: set[str] = field(default_factory=set)

    def __getattr__(self, event: str) -> Callable[..., None]:
        """Return the function that the Trainer calls at an event."""
        if not event.startswith("on_"):
            raise AttributeError(event)
        return partial(self._pass_on, event)

    def _pass_on(self, event: str, *states: Any, logs: Mapping[str, Any] | None = None, **objects: Any) -> None:
        self.last_event = states
        self.objects = {name: objects.get(name) for name in ("model", "processing_class")}
        # `end` forwards "on_train_end" later, after the final scores. The Trainer's summary covers only the steps since
        # a resume, so it is left out.
        if event == "on_train_end" or (logs is not None and "train_runtime" in logs):
            return
        if logs is not None:
            objects["logs"] = {name: value for name, value in logs.items() if value is not None}
        for name, callback in self.callbacks.items():
            with self.handle_errors(name, opens=event in _OPENING_EVENTS):
                getattr(callback, event)(*states, **objects)

    @contextmanager
    def handle_errors(self, name: str, *, opens: bool = False) -> Iterator[None]:
        """Log the first error of a tracker as a warning, or raise it if the block opens the tracker."""
        try:
            with redirect_stdout(sys.stderr):
                yield
        except Exception as error:  # A server that is down must not end hours of training.
            if opens:
                message = f"{name} cannot be opened: {error_summary(error)}"
                raise UnavailableError(
                    message, f"see its settings, or leave {name} out of training.report_to"
                ) from None
            if name not in self.failed_trackers:
                log.warning(f"{name} failed, and the run continues: {error_summary(error)}")
            self.failed_trackers.add(name)

    def open(self, name: str) -> None:
        """Create the callback of a tracker."""
        from transformers.integrations import get_reporting_integration_callbacks

        (callback_class,) = get_reporting_integration_callbacks([name])
        callback = self.callbacks[name] = callback_class()
        if name == "tensorboard":
            shared = os.environ.get("TENSORBOARD_LOGGING_DIR")
            callback.logging_dir = str(Path(shared).expanduser() / self.name if shared else self.folder / FOLDER)
        elif name == "wandb":
            import wandb

            project = os.environ.get("WANDB_PROJECT", self.project)
            run_id, run_name = os.environ.get("WANDB_RUN_ID"), os.environ.get("WANDB_NAME")
            wandb.init(project=project, id=run_id or self.ids["run"], name=run_name or self.name, resume="allow")
        elif name == "mlflow":
            import mlflow

            run_id = os.environ.get("MLFLOW_RUN_ID") or self.ids.get("mlflow")
            run = mlflow.start_run(run_id=run_id, run_name=self.name, nested=mlflow.active_run() is not None)
            self.ids["mlflow"] = run.info.run_id

    def end(self, record: RunRecord) -> None:
        """Report the scores of a finished run, and close the trackers of any run."""
        is_finished = record.get("status") == "finished"
        for name, callback in self.callbacks.items():
            if self.last_event:
                arguments, state, control = self.last_event
                best_state = replace(state, global_step=record.get("best_step", state.global_step))
                with self.handle_errors(name):
                    if is_finished:
                        callback.on_log(arguments, best_state, control, logs=_final_scores(record), **self.objects)
                    callback.on_train_end(arguments, state, control, **self.objects)
            with self.handle_errors(name):
                if name == "wandb":
                    sys.modules[name].finish(exit_code=0 if is_finished else 1)
                elif name == "mlflow":
                    sys.modules[name].end_run("FINISHED" if is_finished else "FAILED")


_SESSIONS: dict[Path, Session] = {}


def check_callbacks(training: BaseTrainingConfig, *, trusted: bool) -> None:
    """Check the custom callbacks of a recipe, and check, without importing them, that its trackers are installed.

    Args:
        training: Settings of the recipe.
        trusted: Whether custom modules may be imported.

    Raises:
        RecipeError: If a callback is not trusted, does not exist, is not a callback, or duplicates a recipe key.
        UnavailableError: If the package of a tracker is missing.
    """
    for name in training.callbacks or ():
        callback = load_custom("callback", name, trusted)
        from transformers import EarlyStoppingCallback, TrainerCallback

        if callback is EarlyStoppingCallback:
            raise RecipeError(f"training.callbacks: {name} duplicates training.patience", "set training.patience")
        if not (isinstance(callback, type) and issubclass(callback, TrainerCallback)):
            message = f"training.callbacks: {name} is not a class of callbacks"
            raise RecipeError(message, "derive it from transformers.TrainerCallback")
    for name in training.report_to:
        module, package = _PACKAGES.get(name, (name, name))
        if find_spec(module) is None:
            message = f"training.report_to names {name}, but its package is not installed"
            raise UnavailableError(message, f"`pip install {package}`")


def make_callback(name: str) -> Any:
    """Create a custom callback that a recipe names.

    Raises:
        RecipeError: If the callback cannot be created without arguments.
    """
    try:
        return load_custom("callback", name)()
    except Exception as error:  # A custom callback can raise anything.
        raise custom_code_error(f"the callback {name}", error) from error


def get_session(folder: Path) -> Session | None:
    """Return the session of the open run in a folder, or None if the run has no trackers."""
    return _SESSIONS.get(folder)


@contextmanager
def open_trackers(folder: Path, recipe: Any, record: RunRecord) -> Iterator[None]:
    """Open the trackers of a run inside the `with` block; a resumed run continues its curves.

    Raises:
        UnavailableError: If a tracker cannot be opened.
    """
    training = recipe.training
    if record["status"] == "finished" or not runs.is_main_process():
        yield
        return
    ids = record.setdefault("trackers", {"run": uuid.uuid4().hex[:8]})
    names = {"project": "bertkit", "run_name": f"{folder.name}-{ids['run']}"} | training.extra
    session = _SESSIONS[folder] = Session(folder, names["project"], names["run_name"], ids)
    final_record: RunRecord = {}
    try:
        for name in training.report_to:
            with session.handle_errors(name, opens=True):
                session.open(name)
        runs.write_record(folder, record)
        yield
        final_record = runs.read_record(folder) or {}
    finally:
        _SESSIONS.pop(folder).end(final_record)


def _final_scores(record: RunRecord) -> dict[str, float]:
    """Return the scores of a finished run with the bounds of their intervals, and its seconds and steps."""
    scores: dict[str, Any] = {name: record.get(name) for name in ("seconds", "steps", "best_step")}
    pretrained = [{"split": "held_out", **record["result"]}] if "result" in record else []
    for result in [*record.get("results", []), *pretrained]:
        for metric, score in result["scores"].items():
            low, high = result.get("intervals", {}).get(metric) or (None, None)
            name = f"{result['split']}/{metric}"
            scores |= {name: score, f"{name}/low": low, f"{name}/high": high}
    # Most callbacks replace the prefix "eval_" by a group "eval/"; other names would become training curves.
    return {f"eval_final/{name}": float(value) for name, value in scores.items() if value is not None}
