"""`bertkit runs show`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from bertkit.cli.options import argument
from bertkit.cli.output import format_number, print_pairs, print_result, print_table
from bertkit.errors import UsageError
from bertkit.reports.text import duration_text
from bertkit.storage.runs import read_record

if TYPE_CHECKING:
    from bertkit.storage.summaries import RunSummary

ORDER = 2
EXAMPLE = "bertkit runs show runs/cola"


def command(folder: Annotated[Path, argument("Run folder.", "RUN")]) -> None:
    """Show what a run was, how it ended and what it scored.

    Settings are shown where they differ from the shipped recipe of that name.
    """
    from bertkit.storage.summaries import list_changes, summarize

    run = summarize(folder)
    if run is None:
        raise UsageError("not a run folder", "`bertkit runs list` shows the runs", file=folder)
    # A damaged run is shown as such, with what its files still tell.
    record = (read_record(folder) if run.seeds is None and run.state != "damaged" else None) or {}
    changes, scores = list_changes(record), _scores(record)
    settings = [{"setting": row["setting"], "recipe": row["recipe"], "run": row["run"]} for row in changes]
    values = {**vars(run), "scores": scores, "settings": settings, "versions": record.get("versions", {})}

    def show(_: object) -> None:
        print_pairs(_facts(run, record))
        print_table("scores", scores)
        print_table("settings that differ from the recipe", changes, max_rows=len(changes))

    print_result(values, show)


def _facts(run: RunSummary, record: Mapping[str, Any]) -> dict[str, str]:
    machine, memory = record.get("machine", {}), record.get("peak_memory_bytes")
    facts = {
        "run": run.folder,
        "state": run.state,
        "reason": run.reason,
        "recipe": run.recipe,
        "model": run.model,
        "mean score" if run.seeds else "score": "" if run.score is None else f"{run.metric} {format_number(run.score)}",
        "seeds": str(run.seeds or ""),
        "steps": str(run.steps or ""),
        "time": "" if run.seconds is None else duration_text(run.seconds),
        "memory": "" if memory is None else f"{memory / 1e6:,.0f} MB at peak",
        "size": f"{run.bytes / 1e6:,.1f} MB",
        "date": run.date,
        "machine": ", ".join(f"{key} {value}" for key, value in machine.items() if key != "reason"),
        "versions": ", ".join(f"{name} {version}" for name, version in record.get("versions", {}).items()),
    }
    return {name: value for name, value in facts.items() if value}


def _scores(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row per split and metric of a run's results."""
    results = record.get("results") or ([record["result"]] if "result" in record else [])
    return [
        {
            "split": result.get("split", ""),
            "metric": metric,
            "score": score,
            "95% CI": (result.get("intervals") or {}).get(metric),
        }
        for result in results
        for metric, score in result.get("scores", {}).items()
    ]
