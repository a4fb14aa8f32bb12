"""Callbacks that a recipe names: custom classes and transformers' experiment trackers, which a run opens once.

TensorBoard, W&B, MLflow and Trackio continue the curve of a resumed run, because its record stores their names and ids
of the run. Trackers get what the Trainer logs and, at the end, the final scores with their intervals.
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
"""The folder of a run with its curves, unless TENSORBOARD_LOGGING_DIR names a folder for several runs."""

_OPENING = ("on_init_end", "on_train_begin")  # events in which trackers connect
# Tracker -> (module, package on PyPI), if their names differ. Kubeflow only needs the variables of its platform.
_PACKAGES = {
    "azure_ml": ("azureml", "azureml-sdk"),
    "flyte": ("flytekit", "flytekit"),
    "kubeflow": ("transformers", "transformers"),
}


@dataclass
class Session:
    """An open run and the callbacks of its trackers, which is itself a callback of the Trainer."""

    folder: Path
    project: str
    name: str
    """Name of the run in its trackers. It has a random part, because runs of one name would share a curve."""
    ids: dict[str, str]
    """Tracker -> id of the run; the entry ``run`` is the random part. The record of the run stores them."""
    callbacks: dict[str, Any] = field(default_factory=dict)
    last_event: tuple[Any, Any, Any] | None = None
    """Arguments, state and control of the last event."""
    objects: dict[str, Any] = field(default_factory=dict)
    """Model and tokenizer of the last event."""
    failed: set[str] = field(default_factory=set)

    def __getattr__(self, event: str) -> Callable[..., None]:
        """Return the function that the Trainer calls at an event."""
        if not event.startswith("on_"):
            raise AttributeError(event)
        return partial(self._pass_on, event)

    def _pass_on(self, event: str, *states: Any, logs: Mapping[str, Any] | None = None, **objects: Any) -> None:
        self.last_event = states
        self.objects = {name: objects.get(name) for name in ("model", "processing_class")}
        # `end` reports the final scores before training ends for the trackers. The Trainer's summary is left out,
        # because it covers only what this process trained.
        if event == "on_train_end" or (logs is not None and "train_runtime" in logs):
            return
        if logs is not None:
            objects["logs"] = {name: value for name, value in logs.items() if value is not None}
        for name, callback in self.callbacks.items():
            with self.reporting(name, opens=event in _OPENING):
                getattr(callback, event)(*states, **objects)

    @contextmanager
    def reporting(self, name: str, *, opens: bool = False) -> Iterator[None]:
        """Log the first error of a tracker as a warning, or raise it if the block opens the tracker."""
        try:
            with redirect_stdout(sys.stderr):
                yield
        except Exception as error:  # A server that goes away must not end hours of training.
            if opens:
                message = f"{name} cannot be opened: {error_summary(error)}"
                raise UnavailableError(
                    message, f"see its settings, or leave {name} out of training.report_to"
                ) from None
            if name not in self.failed:
                log.warning(f"{name} failed, and the run continues: {error_summary(error)}")
            self.failed.add(name)

    def open(self, name: str) -> None:
        """Create the callback of a tracker."""
        from transformers.integrations import get_reporting_integration_callbacks

        (callback_class,) = get_reporting_integration_callbacks([name])
        callback = self.callbacks[name] = callback_class()
        if name == "tensorboard":
            several = os.environ.get("TENSORBOARD_LOGGING_DIR")
            place = Path(several).expanduser() / self.name if several else self.folder / FOLDER
            callback.logging_dir = str(place)
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
        finished = record.get("status") == "finished"
        for name, callback in self.callbacks.items():
            if self.last_event:
                arguments, state, control = self.last_event
                at_best = replace(state, global_step=record.get("best_step", state.global_step))
                with self.reporting(name):
                    if finished:
                        callback.on_log(arguments, at_best, control, logs=_final_scores(record), **self.objects)
                    callback.on_train_end(arguments, state, control, **self.objects)
            with self.reporting(name):
                if name == "wandb":
                    sys.modules[name].finish(exit_code=0 if finished else 1)
                elif name == "mlflow":
                    sys.modules[name].end_run("FINISHED" if finished else "FAILED")


_OPEN: dict[Path, Session] = {}


def check_callbacks(training: BaseTrainingConfig, *, trusted: bool) -> None:
    """Check the custom callbacks that a recipe names, and, without importing them, that its trackers are installed.

    Args:
        training: Settings of the recipe.
        trusted: Whether a module may be imported that is not imported yet.

    Raises:
        RecipeError: If a callback must not run, does not exist, is not a callback, or replaces a key of the recipe.
        UnavailableError: If the package of a tracker is missing.
    """
    for name in training.callbacks or ():
        callback = load_custom("callback", name, trusted)
        from transformers import EarlyStoppingCallback, TrainerCallback

        if callback is EarlyStoppingCallback:
            raise RecipeError(f"training.callbacks: {name} is decided by training.patience", "set that one")
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
        RecipeError: If it cannot be created without arguments.
    """
    try:
        return load_custom("callback", name)()
    except Exception as error:  # A custom callback can raise anything.
        raise custom_code_error(f"the callback {name}", error) from error


def session_of(folder: Path) -> Session | None:
    """Return the session of the run in a folder, or None if it has no trackers."""
    return _OPEN.get(folder)


@contextmanager
def tracked(folder: Path, recipe: Any, record: RunRecord) -> Iterator[None]:
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
    session = _OPEN[folder] = Session(folder, names["project"], names["run_name"], ids)
    last: RunRecord = {}
    try:
        for name in training.report_to:
            with session.reporting(name, opens=True):
                session.open(name)
        runs.write_record(folder, record)
        yield
        last = runs.read_record(folder) or {}
    finally:
        _OPEN.pop(folder).end(last)


def _final_scores(record: RunRecord) -> dict[str, float]:
    """Return the scores of a finished run with the ends of their intervals, its seconds and its steps."""
    scores: dict[str, Any] = {name: record.get(name) for name in ("seconds", "steps", "best_step")}
    pretrained = [{"split": "held_out", **record["result"]}] if "result" in record else []
    for result in [*record.get("results", []), *pretrained]:
        for metric, score in result["scores"].items():
            name, ends = f"{result['split']}/{metric}", result.get("intervals", {}).get(metric) or (None, None)
            scores |= {name: score, f"{name}/low": ends[0], f"{name}/high": ends[1]}
    # Most callbacks turn the prefix "eval_" into a group "eval/"; other names would become training curves.
    return {f"eval_final/{name}": float(value) for name, value in scores.items() if value is not None}
