"""`bertkit rerun`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from bertkit.cli.options import RestartOption, argument, flag, option, output_option
from bertkit.cli.output import print_line, print_result, print_table, print_text
from bertkit.errors import BertkitError, UnavailableError, shorten

ORDER = 25
EXAMPLE = "bertkit rerun runs/cola"

_CHECKSUM_LENGTH = 12  # hex digits that are printed


def command(
    run: Annotated[Path, argument("Folder of a finished run.", "RUN")],
    output: Annotated[Path | None, output_option("New run folder.", "DIR", "RUN-rerun")] = None,
    data: Annotated[str | None, option("New location of the run's data.", "DATA", "as in the run")] = None,
    model: Annotated[str | None, option("New location of the run's model.", "MODEL", "as in the run")] = None,
    ignore_changes: Annotated[
        bool, flag("--ignore-changes", "Train even if the data or the model have changed since the run.")
    ] = False,
    restart: RestartOption = False,
) -> None:
    """Repeat a finished run, and compare the scores and weights of both runs.

    Settings, seed, precision and number of threads come from the run. Before training, the checksums of data and model
    are compared. The exit code is 0 if all scores agree to the last digit, and 5 if they do not.
    """
    from bertkit.workflows.rerun import rerun

    changes = {name: value for name, value in (("data", data), ("model", model)) if value is not None}
    result = rerun(run, output=output, changes=changes, ignore_changes=ignore_changes, restart=restart)
    error = None if result["scores_agree"] else _disagreement_error(result)
    print_result(result, print_rerun, error=error)


def print_rerun(result: Mapping[str, Any]) -> None:
    """Print the scores of both runs, the differences that can explain others, and whether the weights are equal."""
    print_text(f"{result['run']}, repeated in {result['folder']}")
    table = []
    for score in result["scores"]:
        old_score, new_score = score["before"], score["now"]
        # Scores are compared exactly, so a tiny difference needs scientific notation.
        difference = "n/a" if old_score is None or new_score is None else f"{new_score - old_score:+.2g}"
        row = {"metric": f"{score['split']} {score['metric']}", "before": old_score, "now": new_score}
        table.append({**row, "difference": "none" if old_score == new_score else difference})
    print_table("scores", table)
    differences = [
        {"": item["what"], "before": _shorten_value(item["before"]), "now": _shorten_value(item["now"])}
        for item in result["differences"]
    ]
    print_table("differences", differences)
    if not differences:
        print_text("  No difference in versions, machine, settings, data or model.")
    weights = {True: "the same to the last bit", False: "different", None: "unknown, because the run has no checksums"}
    print_text(f"  Weights: {weights[result['weights_agree']]}.")
    if result["first_difference"] is not None:
        print_text(f"  The logs differ from step {result['first_difference']} on.")
    if result["scores_agree"]:
        print_line("  Scores: the same to the last digit.")


def _shorten_value(value: object) -> str:
    text = "" if value is None else str(value)
    is_checksum = len(text) == 64 and set(text) <= set("0123456789abcdef")
    return text[:_CHECKSUM_LENGTH] if is_checksum else shorten(text, 60)


def _disagreement_error(result: Mapping[str, Any]) -> BertkitError:
    names = [item["what"] for item in result["differences"]]
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    remedy = f"restore these: {', '.join(names[:4])}{more}" if names else "no recorded version or setting differs"
    message = f"the scores differ from the scores of {shlex.quote(result['run'])}"
    return UnavailableError(message, remedy, file=result["folder"])
