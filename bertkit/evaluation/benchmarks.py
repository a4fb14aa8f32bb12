"""Scores on benchmarks of the Hub, as files that the page of a model and the leaderboard of a dataset show."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from bertkit import __version__
from bertkit.data.remote import find_hub_dataset, is_remote
from bertkit.evaluation.scoring import EvalResult
from bertkit.recipe.records import Recipe
from bertkit.storage import hub
from bertkit.storage.files import null_for_nan, write_text


def write_eval_results(folder: Path, recipe: Recipe, results: Sequence[EvalResult]) -> None:
    """Write ``.eval_results/*.yaml`` into a folder: one file per result that is a task of a benchmark on the Hub.

    A dataset is a benchmark if it has an ``eval.yaml``. The ids of its tasks are read from there and never guessed, so
    there is no file for any other dataset, or for a part of the rows.
    """
    from huggingface_hub import EvalResultEntry, eval_result_entries_to_yaml
    from huggingface_hub.utils import yaml_dump

    data, metric = recipe.data, recipe.best_metric
    dataset_id = find_hub_dataset(data)
    if dataset_id is None or is_remote(data.source) or data.limit is not None:
        return
    commit, tasks = hub.read_benchmark(dataset_id, hub.split_revision(data.source)[1] or data.revision)
    date = f"{datetime.now(UTC):%Y-%m-%d}"
    for result in results:
        # A task without a config or a split means the default configuration and the test split.
        config_and_split = data.config or "default", data.splits.get(result.split, result.split)
        score = null_for_nan(result.scores)[metric]
        for task in tasks:
            if score is None or (task.get("config", "default"), task.get("split", "test")) != config_and_split:
                continue
            # The format has one value, without the name of its metric.
            notes = f"{metric} of {result.rows:,} rows, by bertkit {__version__}"
            entry = EvalResultEntry(dataset_id, task["id"], round(float(score), 6), commit, date=date, notes=notes)
            name = re.sub(r"[^\w.-]+", "_", f"{dataset_id.rpartition('/')[2]}-{task['id']}")
            file = folder / ".eval_results" / f"{name}.yaml"
            file.parent.mkdir(exist_ok=True)
            write_text(file, yaml_dump(eval_result_entries_to_yaml([entry]), sort_keys=False))
