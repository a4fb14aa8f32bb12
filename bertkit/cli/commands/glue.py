"""`bertkit glue`."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertkit.cli.options import (
    BatchSizeOption,
    EpochsOption,
    FreshOption,
    JsonOption,
    LearningRateOption,
    LimitOption,
    MaxLengthOption,
    SeedOption,
    SeedsOption,
    SetOption,
    common_settings,
)
from bertkit.cli.output import (
    end_with_error,
    format_interval,
    format_number,
    print_json,
    print_line,
    print_table,
    print_text,
)
from bertkit.cli.progress import TerminalProgress
from bertkit.cli.seeds import choose_seeds

if TYPE_CHECKING:
    from bertkit.evaluation.glue.summary import GlueScore, GlueSummary, Submission

NAME = "glue"
ORDER = 2
EXAMPLE = "bertkit glue --model demo --data demo --tasks cola,rte --limit 80"

TasksOption = Annotated[
    str | None,
    typer.Option("--tasks", help="Tasks to train, such as cola,rte.", metavar="LIST", show_default="all nine"),
]


def command(
    model: Annotated[
        str,
        typer.Option(
            "--model", help="Pretrained model: hub name, directory or `demo`.", metavar="MODEL", show_default=False
        ),
    ],
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            help="Directory with a folder for each task (cola, sst2, ...), or `demo`.",
            metavar="DIR",
            show_default="nyu-mll/glue",
        ),
    ] = None,
    tasks: TasksOption = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder of all runs.", metavar="DIR", show_default="runs/glue"),
    ] = None,
    epochs: EpochsOption = None,
    learning_rate: LearningRateOption = None,
    batch_size: BatchSizeOption = None,
    max_length: MaxLengthOption = None,
    seed: SeedOption = None,
    seeds: SeedsOption = None,
    limit: LimitOption = None,
    changes: SetOption = None,
    fresh: FreshOption = False,
    json: JsonOption = False,
) -> None:
    """Fine-tune a model on all tasks of GLUE, and write a submission to its leaderboard.

    Each task is an ordinary run in a folder of its own. After an interruption, the same command keeps the finished runs
    and resumes the others. A task that fails does not end the rest.
    """
    from bertkit.recipe import parse_changes
    from bertkit.workflows.glue import glue

    common = common_settings(data, limit, epochs, learning_rate, batch_size, max_length, seed)
    settings = {key: value for key, value in common.items() if value is not None}
    summary, error = glue(
        model,
        tasks=[name.strip() for name in tasks.split(",")] if tasks is not None else [],
        changes={**settings, **parse_changes(changes or [])},
        output=output,
        seeds=choose_seeds(seeds, seed, changes),
        fresh=fresh,
        progress=TerminalProgress(),
    )
    if json:
        values = dataclasses.asdict(summary)
        print_json(values) if error is None else end_with_error(values, error)
    else:
        print_glue(summary)
    if error is not None:
        raise error


def print_glue(summary: GlueSummary) -> None:
    """Print the scores beside those of the BERT paper, the averages, and what a submission has and lacks."""
    tasks = len(summary.runs) - len(summary.unfinished)
    seeds = f", means over {len(summary.seeds)} seeds" if len(summary.seeds) > 1 else ""
    print_text(f"GLUE: {tasks} of {len(summary.runs)} tasks, {summary.model}{seeds}")
    names = list(summary.published_averages)
    rows = [_score_line(score, names) for score in summary.scores]
    if rows:
        rows.append(_average_line("average: leaderboard", summary.leaderboard_average, names, {}))
        rows.append(_average_line("average: BERT paper", summary.paper_average, names, summary.published_averages))
    if not any(row["sd"] for row in rows):
        rows = [{name: cell for name, cell in row.items() if name != "sd"} for row in rows]
    print_table("scores of validation rows", rows)
    if names:
        print_text(f"  {', '.join(names)}: scores of the test server (Devlin et al. 2019, table 1), on other rows")
    print_text("  averages: the leaderboard's is over all nine tasks, the BERT paper's without WNLI")
    if summary.missing_scores:
        print_text(f"  no score, so no average over all: {', '.join(summary.missing_scores)}")
    for line in [*_gather_unfinished(summary), *summary.warnings]:
        print_text(f"  {line}")
    if summary.submission is None:
        why = "several seeds are several models" if summary.seeds else "only some rows of each task were used"
        print_text(f"  no submission: {why}")
    else:
        _print_submission(summary.submission, summary.folder)
    print_line(f"\nNext:\n  open {shlex.quote(summary.folder)}/report.html")


def _gather_unfinished(summary: GlueSummary) -> list[str]:
    """Return a line for each task that failed or has no data, and one for all that were left out."""
    left_out = [run.task for run in summary.unfinished if not run.reason]
    lines = [f"{run.status}: {run.task}, {run.reason}" for run in summary.unfinished if run.reason]
    return [*lines, f"left out: {', '.join(left_out)}"] if left_out else lines


def _print_submission(submission: Submission, folder: str) -> None:
    ready = len(submission.files) - len(submission.missing)
    where = f"{folder}/{submission.archive}" if submission.archive else "no file is ready"
    print_text(f"  submission: {where}, {ready} of {len(submission.files)} files")
    for file in submission.missing:
        print_text(f"    missing: {file.name}: {file.missing}")
    if submission.missing and submission.archive:
        print_text("    The leaderboard takes all files or none: add the missing ones to the archive.")


def _score_line(score: GlueScore, names: list[str]) -> dict[str, Any]:
    split = "" if score.split == "validation" else f" {score.split.removeprefix('validation_')}"
    return {
        "task": f"{score.task}{split} {score.metric}",
        "rows": f"{score.rows:,}",
        "score": format_number(score.score).strip(),
        "sd": "" if score.standard_deviation is None else format_number(score.standard_deviation).strip(),
        "95% CI": format_interval(score.interval),
        **{name: _cell(score.published.get(name)) for name in names},
    }


def _average_line(what: str, value: float | None, names: list[str], published: dict[str, float]) -> dict[str, Any]:
    cells = {name: _cell(published.get(name)) for name in names}
    return {"task": what, "rows": "", "score": format_number(value).strip(), "sd": "", "95% CI": "", **cells}


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
