"""Progress: what its implementations share."""

from __future__ import annotations

import inspect

import pytest

from bertkit.cli.terminal import TerminalProgress
from bertkit.progress import (
    SILENT,
    MetricsListener,
    Progress,
    ProgressWrapper,
    Silent,
    get_progress,
    stage,
    use_progress,
    with_progress,
)


def test_silence_shows_nothing(capsys):
    SILENT.start("training", 3)
    SILENT.update(1, {"loss": 0.5})
    SILENT.finish()
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("name", [name for name in vars(Progress) if not name.startswith("_")])
@pytest.mark.parametrize("implementation", [Silent, ProgressWrapper, TerminalProgress])
def test_every_progress_takes_the_same_arguments(name, implementation):
    expected = inspect.signature(getattr(Progress, name))
    assert inspect.signature(getattr(implementation, name)) == expected


class PruningPlan(Silent):
    def __init__(self) -> None:
        self.stages: list[str] = []

    def start(self, name: str, total: int, done: int = 0) -> None:
        self.stages.append(name)


def test_stages_are_shown_by_the_progress_in_use_which_ends_with_its_block():
    outer, inner = PruningPlan(), PruningPlan()
    with use_progress(outer), stage("reading"):
        with pytest.raises(ValueError, match="row 3"), use_progress(inner), stage("tokenizing"):
            raise ValueError("row 3")
        with use_progress(None), stage("training"):
            assert get_progress() is outer
    assert (outer.stages, inner.stages, get_progress()) == (["reading", "training"], ["tokenizing"], SILENT)


@with_progress
def predict(texts: list[str], *, progress: Progress | None = None):
    with stage("loading"):
        pass
    for text in texts:
        with stage(text):
            yield text


def test_results_that_are_yielded_later_are_computed_with_the_progress_that_was_given():
    shown, others = PruningPlan(), PruningPlan()
    with use_progress(others):
        results = predict(["a", "b"], progress=shown)
        assert next(results) == "a"
        with stage("between"):
            assert list(results) == ["b"]
        assert list(predict(["c"])) == ["c"]
    assert (shown.stages, others.stages) == (["loading", "a", "b"], ["between", "loading", "c"])


def test_events_are_heard_beside_the_progress_in_use():
    class Lines(PruningPlan):
        def record(self, entry) -> None:
            self.stages.append(entry)

    lines, heard = Lines(), []
    with use_progress(lines), use_progress(MetricsListener(heard.append)), stage("training"):
        get_progress().record({"step": 1})
    assert (lines.stages, heard) == (["training", {"step": 1}], [{"step": 1}])
