"""What a run of several tasks refuses to predict; tests/workflows/finetune/test_several.py has what it predicts."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertkit.errors import ModelError, UsageError
from bertkit.recipe import load_several
from bertkit.storage import runs
from bertkit.workflows.predict import predict


@pytest.fixture
def several(here):
    (here / "both.yaml").write_text("tasks: {topic: classify, words: tag}\n")
    return lambda model: load_several("both.yaml", {"model": model})


def test_a_folder_that_is_no_such_run_is_refused(here, several):
    with pytest.raises(ModelError, match="no such folder"):
        predict(several("./runs/none"))
    (here / "run").mkdir()
    with pytest.raises(ModelError, match="not a run of several tasks"):
        predict(several("./run"))
    record = {"status": "stopped", "tasks": ["topic", "names"]}
    runs.write_record(here / "run", record)
    with pytest.raises(ModelError, match="not finished"):
        predict(several("./run"))
    runs.write_record(here / "run", {**record, "status": "finished"})
    with pytest.raises(ModelError, match="no task words"):
        predict(several("./run"))


@pytest.mark.parametrize("option", ["--zero-shot", "--coverage=0.9", "--precision=0.9"])
def test_options_of_one_task_are_refused(run, several, option):
    Path("both.yaml").write_text("tasks: {topic: classify, words: tag}\n")
    ended = run("predict", "both.yaml", "--model", "x", "--text", "a", option)
    assert (ended.code, "several tasks" in ended.last) == (UsageError.exit_code, True)
