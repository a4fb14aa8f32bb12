"""`--smoke`: what a run of two steps on a few rows prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from bertkit.cli.options import flag
from bertkit.cli.output import format_splits, print_notes, print_result, print_table, print_text
from bertkit.errors import BertkitError, UsageError

if TYPE_CHECKING:
    from bertkit.workflows.finetune.smoke import SmokeResult

SmokeOption = Annotated[
    bool,
    flag("--smoke", "Try every stage in a temporary folder: two steps on a few rows, a stop, a resume, and the rest."),
]


def refuse_with_smoke(**others: object) -> None:
    """Check that none of these options is given beside --smoke; `dry_run` is --dry-run.

    Raises:
        UsageError: one is.
    """
    given = [f"--{name.replace('_', '-')}" for name, value in others.items() if value]
    if given:
        raise UsageError(f"--smoke with {', '.join(given)}", "it keeps nothing: leave one of them out")


def print_smoke(tried: tuple[SmokeResult, BertkitError | None]) -> None:
    """Print how each stage went, and end with the error of the one that failed."""
    result, error = tried
    print_result(result, _print_stages, error=error)


def _print_stages(result: SmokeResult) -> None:
    print_text(f"{result.recipe}: {result.model}; {format_splits(result.rows) if result.rows else 'no rows'}")
    rows = [{"stage": stage.name, "": stage.outcome, "seconds": f"{stage.seconds:.1f}"} for stage in result.stages]
    print_table("stages", rows)
    print_notes(f"{stage.outcome}: {stage.name}. {stage.reason}" for stage in result.stages if stage.reason)
