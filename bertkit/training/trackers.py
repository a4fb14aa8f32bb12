"""Experiment trackers: the callbacks of transformers, and what these lack.

A run that was killed goes on as one curve, since its record keeps what its trackers call it. Each of them gets the
resolved recipe at the start, and the scores with their intervals at the end. Settings are those of its environment.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from bertkit.errors import UnavailableError, message_of, pip_install
from bertkit.progress import log
from bertkit.recipe import CommonTraining, write_yaml
from bertkit.storage import runs
from bertkit.storage.records import RunRecord

FOLDER = "tensorboard"
"""The folder of a run with its curves, unless TENSORBOARD_LOGGING_DIR names one for several runs."""


class _Tracker(Protocol):
    callback: Any
    """The callback of transformers, which reports losses and scores during training."""

    def report(self, scores: Mapping[str, float], step: int) -> None: ...
    def end(self, *, finished: bool) -> None: ...


@dataclass(frozen=True)
class Session:
    """A run that is going on, and its trackers."""

    folder: Path
    recipe: dict[str, Any]
    project: str
    name: str
    """What the run is called there. Two runs of one name would be one curve, so it has a part of its own."""
    ids: dict[str, str]
    """Tracker -> what it calls the run; the entry ``run`` is that part. They are kept in the record of the run."""
    trackers: dict[str, _Tracker] = field(default_factory=dict)

    def __getattr__(self, event: str) -> Callable[..., None]:
        """Return what the Trainer calls at an event: it passes it on to the callback of each tracker."""
        if not event.startswith("on_"):
            raise AttributeError(event)

        def pass_on(*arguments: Any, logs: Mapping[str, Any] | None = None, **keywords: Any) -> None:
            # it covers only what this process trained
            if logs is not None and "train_runtime" in logs:
                return
            if logs is not None:
                keywords["logs"] = {name: value for name, value in logs.items() if value is not None}
            for name, tracker in self.trackers.items():
                with _surviving(name):
                    getattr(tracker.callback, event)(*arguments, **keywords)

        return pass_on


_OPEN: dict[Path, Session] = {}
_TOLD = set[str]()


def check_trackers(training: CommonTraining) -> None:
    """Check, without importing them, that the trackers that a recipe names are installed.

    Raises:
        UnavailableError: one is not.
    """
    for name in training.report_to:
        if find_spec(name) is None:
            raise UnavailableError(f"training.report_to names {name}, which is not installed", f"`{pip_install(name)}`")


def session_of(folder: Path) -> Session | None:
    """Return the session of the run in a folder, where it has trackers."""
    return _OPEN.get(folder)


def tracking_arguments(folder: Path) -> dict[str, str]:
    """Return the TrainingArguments that the callbacks of a run's trackers read."""
    session = session_of(folder)
    return {"project": session.project, "run_name": session.name} if session else {}


@contextmanager
def tracked(folder: Path, recipe: Any, record: RunRecord) -> Iterator[None]:
    """Open the trackers of a run, or go on with those of its record; report its scores if it finishes inside.

    Raises:
        UnavailableError: a tracker cannot be opened.
    """
    training = recipe.training
    if not training.report_to or record["status"] == "finished" or not runs.is_main_process():
        yield
        return
    ids = record.setdefault("trackers", {"run": uuid.uuid4().hex[:8]})
    names = {"project": "bertkit", "run_name": f"{folder.name}-{ids['run']}"} | training.extra
    settings = recipe.model_dump(mode="json", exclude_defaults=True)
    session = _OPEN[folder] = Session(folder, settings, names["project"], names["run_name"], ids)
    last: RunRecord = {}
    try:
        for name in training.report_to:
            session.trackers[name] = _open_tracker(name, session)
        runs.write_record(folder, record)
        yield
        last = runs.read_record(folder) or {}
    finally:
        finished = last.get("status") == "finished"
        for name, tracker in _OPEN.pop(folder).trackers.items():
            with _surviving(name):
                if finished:
                    tracker.report(_summarize(last), last.get("best_step", 0))
                tracker.end(finished=finished)


def _open_tracker(name: str, session: Session) -> _Tracker:
    try:
        with redirect_stdout(sys.stderr):
            return _TRACKERS[name](session)
    except Exception as error:  # of the tracker: of its server, its settings or its files
        what = f"{name} cannot be opened: {message_of(error)}"
        raise UnavailableError(what, f"see its settings, or leave {name} out of training.report_to") from None


@contextmanager
def _surviving(name: str) -> Iterator[None]:
    """Let a run go on where a tracker fails, and say so once; what trackers print is talk, and no result."""
    try:
        with redirect_stdout(sys.stderr):
            yield
    except Exception as error:  # of the tracker: a server that goes away must not end hours of training
        if name not in _TOLD:
            log.warning(f"{name} fails, and the run goes on: {message_of(error)}")
        _TOLD.add(name)


def _summarize(record: RunRecord) -> dict[str, float]:
    """Return the scores of a finished run and the ends of their intervals, and what it took."""
    scores: dict[str, Any] = {name: record.get(name) for name in ("seconds", "steps", "best_step")}
    pretrained = {"split": "held_out", **record["result"]} if "result" in record else {}
    for result in [*record.get("results", []), *([pretrained] if pretrained else [])]:
        for metric, score in result["scores"].items():
            name, ends = f"{result['split']}/{metric}", result.get("intervals", {}).get(metric) or (None, None)
            scores |= {name: score, f"{name}/low": ends[0], f"{name}/high": ends[1]}
    return {f"final/{name}": float(value) for name, value in scores.items() if value is not None}


class _TensorBoard:
    def __init__(self, session: Session) -> None:
        from torch.utils import tensorboard
        from transformers.integrations import TensorBoardCallback

        several = os.environ.get("TENSORBOARD_LOGGING_DIR")
        place = Path(several).expanduser() / session.name if several else session.folder / FOLDER
        write: Any = partial(tensorboard.SummaryWriter, str(place))

        class Callback(TensorBoardCallback):  # type: ignore[misc]
            def on_train_begin(self, args: Any, state: Any, control: Any, **keywords: Any) -> None:
                # What a killed process has reported beyond its checkpoint is taken back: it is reported again.
                self.tb_writer = write(purge_step=state.global_step + 1 if state.global_step else 0)
                super().on_train_begin(args, state, control, **keywords)
                self.tb_writer.add_text("recipe", f"```yaml\n{write_yaml(session.recipe)}```")

        self.callback, self._write = Callback(), write

    def report(self, scores: Mapping[str, float], step: int) -> None:
        with self._write() as writer:
            for name, value in scores.items():
                writer.add_scalar(name, value, step)

    def end(self, *, finished: bool) -> None:
        if (writer := self.callback.tb_writer) is not None:  # training was interrupted
            writer.close()


class _Mlflow:
    def __init__(self, session: Session) -> None:
        import mlflow
        from transformers.integrations import MLflowCallback

        self.callback, self._mlflow = MLflowCallback(), mlflow
        run_id = os.environ.get("MLFLOW_RUN_ID") or session.ids.get("mlflow")
        run = mlflow.start_run(run_id=run_id, run_name=session.name, nested=mlflow.active_run() is not None)
        session.ids["mlflow"] = run.info.run_id
        mlflow.log_text(write_yaml(session.recipe), "recipe.yaml")

    def report(self, scores: Mapping[str, float], step: int) -> None:
        self._mlflow.log_metrics(dict(scores), step=step)

    def end(self, *, finished: bool) -> None:
        self._mlflow.end_run("FINISHED" if finished else "FAILED")


class _Wandb:
    def __init__(self, session: Session) -> None:
        import wandb
        from transformers.integrations import WandbCallback

        self.callback, project = WandbCallback(), os.environ.get("WANDB_PROJECT", session.project)
        run_id, name = (os.environ.get(f"WANDB_{key}") for key in ("RUN_ID", "NAME"))
        ids = {"id": run_id or session.ids["run"], "name": name or session.name, "resume": "allow"}
        self._run = wandb.init(project=project, config={"recipe": session.recipe}, **ids)

    def report(self, scores: Mapping[str, float], step: int) -> None:
        self._run.summary.update(dict(scores))

    def end(self, *, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)


class _Trackio:
    def __init__(self, session: Session) -> None:
        from transformers.integrations import TrackioCallback

        self.callback, self._session = TrackioCallback(), session

    def report(self, scores: Mapping[str, float], step: int) -> None:
        import trackio

        session = self._session  # the callback has ended it
        trackio.init(session.project, session.name, config={"recipe": session.recipe}, resume="allow", embed=False)
        trackio.log(dict(scores))
        trackio.finish()

    def end(self, *, finished: bool) -> None:
        import trackio

        if not finished and self.callback._initialized:
            trackio.finish()


_TRACKERS: dict[str, Callable[[Session], _Tracker]] = {
    "tensorboard": _TensorBoard,
    "mlflow": _Mlflow,
    "wandb": _Wandb,
    "trackio": _Trackio,
}
