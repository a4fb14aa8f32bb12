"""`bertkit glue`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from bertkit.cli.options import (
    TRAINING_OPTIONS,
    PretrainedOption,
    RestartOption,
    option,
    output_option,
    recipe_options,
)
from bertkit.cli.output import print_next, print_notes, print_result, print_table, print_text

ORDER = 13
EXAMPLE = "bertkit glue --model demo --data demo --tasks cola,rte --limit 80"


@recipe_options(
    *TRAINING_OPTIONS,
    data=Annotated[
        str | None, option("Directory with a folder for each task (cola, sst2, ...), or `demo`.", "DIR", "nyu-mll/glue")
    ],
)
def command(
    model: PretrainedOption,
    changes: dict[str, Any],
    tasks: Annotated[str | None, option("Tasks to train, such as cola,rte.", "LIST", "all nine")] = None,
    output: Annotated[Path | None, output_option("Folder of all runs.", "DIR", "runs/glue")] = None,
    restart: RestartOption = False,
) -> None:
    """Fine-tune a model on all tasks of GLUE, and write a submission to its leaderboard.

    Each task is an ordinary run in its own folder. After an interruption, the same command keeps the finished runs and
    resumes the others. If a task fails, the other tasks continue.
    """
    from bertkit.workflows.glue import glue

    names = [name.strip() for name in tasks.split(",")] if tasks is not None else []
    summary, error = glue(model, tasks=names, changes=changes, output=output, restart=restart)
    print_result(summary, print_glue, error=error)


def print_glue(summary: Mapping[str, Any]) -> None:
    """Print the scores next to the published ones, the averages, and the missing files of the submission."""
    unfinished_runs = [run for run in summary["runs"] if run["status"] != "finished"]
    num_tasks = len(summary["runs"])
    models = list(summary["published_averages"])
    print_text(f"GLUE: {num_tasks - len(unfinished_runs)} of {num_tasks} tasks, {summary['model']}")
    rows = [_score_row(score, models) for score in summary["scores"]]
    if rows:
        rows.append({"task": "average: leaderboard", "score": summary["leaderboard_average"]})
        published = _published_cells(models, summary["published_averages"])
        rows.append({"task": "average: BERT paper", "score": summary["paper_average"], **published})
    print_table("scores of validation rows", rows)
    if models:
        print_text(f"  {', '.join(models)}: scores on test rows (Devlin et al. 2019, table 1), not validation rows")
    print_text("  averages: over all nine tasks (leaderboard) or without WNLI (BERT paper)")
    if summary["missing_scores"]:
        print_text(f"  no average over all tasks, because of missing scores: {', '.join(summary['missing_scores'])}")
    print_notes(f"{run['status']}: {run['task']}, {run['reason']}" for run in unfinished_runs if run["reason"])
    if left_out := [run["task"] for run in unfinished_runs if not run["reason"]]:
        print_text(f"  left out: {', '.join(left_out)}")
    print_notes(summary["warnings"])
    if summary["submission"] is None:
        print_text("  no submission: only some rows of each task were used")
    else:
        _print_submission(summary["submission"], summary["folder"])
    print_next(f"open {shlex.quote(summary['folder'])}/report.html")


def _print_submission(submission: Mapping[str, Any], folder: str) -> None:
    files, archive = submission["files"], submission["archive"]
    missing_files = [file for file in files if file["missing"]]
    # The leaderboard takes a zip file with one .tsv file of predictions per task.
    archive_path = f"{folder}/{archive}" if archive else "no file is ready"
    print_text(f"  submission: {archive_path}, {len(files) - len(missing_files)} of {len(files)} files")
    for file in missing_files:
        print_text(f"    missing: {file['name']}: {file['missing']}")
    if missing_files and archive:
        print_text("    The leaderboard takes all files or none: add the missing files to the archive.")


def _score_row(score: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    split = "" if score["split"] == "validation" else f" {score['split'].removeprefix('validation_')}"
    return {
        "task": f"{score['task']}{split} {score['metric']}",
        "rows": score["rows"],
        "score": score["score"],
        "95% CI": score["interval"],
        **_published_cells(names, score["published"]),
    }


def _published_cells(names: list[str], scores: Mapping[str, float | None]) -> dict[str, str]:
    """Return the scores of published models with three decimals, or an empty cell for a missing score."""
    return {name: "" if (score := scores.get(name)) is None else f"{score:.3f}" for name in names}
