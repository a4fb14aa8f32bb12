"""`bertkit calibrate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from bertkit.cli.options import (
    ROWS,
    CheckpointOption,
    OnOverlapOption,
    RunArgument,
    ScoringSetOption,
    find_checkpoint,
    option,
    recipe_options,
)
from bertkit.cli.output import format_rows, format_scored, print_result, print_table, print_text

if TYPE_CHECKING:
    from bertkit.workflows.calibrate import CalibrationResult

ORDER = 24
EXAMPLE = "bertkit calibrate runs/cola"


@recipe_options(*ROWS, set_option=ScoringSetOption)
def command(
    run: RunArgument,
    changes: dict[str, Any],
    model: CheckpointOption = None,
    split: Annotated[
        str | None,
        option("Split to calibrate on; `all` takes every row of a file.", "SPLIT", "the first validation split"),
    ] = None,
    coverage: Annotated[
        list[float] | None,
        option("Measure prediction sets that contain the right label with this probability; repeatable.", "P"),
    ] = None,
    min_precision: Annotated[
        float | None, option("Make `predict` abstain so that this fraction of its other predictions is correct.", "P")
    ] = None,
    on_overlap: OnOverlapOption = "error",
) -> None:
    """Calibrate the probabilities of a fine-tuned checkpoint.

    Fits a temperature to rows that the checkpoint was not trained on, and thresholds if rows have several labels. It
    stores both in calibration.json next to the weights, and `eval` and `predict` apply them from then on. A folder of
    seeds is calibrated as an ensemble.
    """
    recipe, checkpoint = find_checkpoint(run, model)
    from bertkit.recipe.load import load_recipe

    loaded = load_recipe(recipe, {"model": checkpoint, **changes})
    from bertkit.workflows.calibrate import calibrate

    calibration = calibrate(
        loaded, split=split, coverages=coverage or (), precision=min_precision, on_overlap=on_overlap
    )
    print_result(calibration, print_calibration)


def print_calibration(result: CalibrationResult) -> None:
    """Print the temperature, its effect, and the probability from which a model has the requested precision."""
    from bertkit.metrics.calibration import describe_temperature

    unit = f", {result.decisions:,} {result.per.replace('label', 'decisions on label')}s" if result.per != "row" else ""
    print_text(f"{result.model}, {result.split}: {format_rows(result.rows)}{unit} ({result.source})")
    if result.training_rows:
        print_text(f"  training rows: {result.training_rows:,}. The model is more confident on them than on new rows.")
    # Logits are divided by this number (Guo et al. 2017). Above 1, the model was too confident; the labels stay the
    # same.
    print_text(f"  temperature {describe_temperature(result.temperature)}")
    # Both sides are measured on rows that the temperature was not fitted to. Fitted rows always look better.
    table = []
    for name in result.before:
        states = ((state, getattr(result, state)[name]) for state in ("before", "after"))
        table.append(
            {"measure": name, **{state: format_scored(value["value"], value["interval"]) for state, value in states}}
        )
    scope = "" if result.per == "row" else f"of each {result.per}, "
    print_table(f"{scope}on rows that the temperature was not fitted to (95% CI over rows)", table)
    if result.f1_macro is not None:
        # Only families that decide label by label have thresholds; the others predict the most likely label.
        thresholds = [{"label": name, "threshold": value} for name, value in (result.thresholds or {}).items()]
        before, after = (result.f1_macro[name] for name in ("before", "after"))
        print_text(f"  f1_macro {before:.4f} at 0.5, {after:.4f} at thresholds that were tuned to other rows")
        print_table("thresholds", thresholds)
        if not thresholds:
            print_text("  thresholds stay at 0.5, because others are not better")
    # "not shown": no threshold reaches that precision with 95% confidence, which does not mean that none would.
    table_rows = [
        {
            "type": entry.get("type", ""),
            "precision": entry["asked"],
            "abstain below": entry.get("threshold", "not shown"),
            "answered": entry.get("coverage", ""),
            "right": entry.get("precision", ""),
        }
        for entry in result.abstention
    ]
    if table_rows:
        print_table("thresholds that have a precision, with 95% confidence", table_rows)
        # Risk is the fraction of wrong answers among those that are given, coverage the fraction that is given.
        print_table("risk and coverage", result.risk_coverage)
    sets = [
        {
            "type": measured.get("type", ""),
            "coverage": measured["asked"],
            "held": format_scored(measured["held"], measured["interval"]),
            # Sets reach about their coverage by being larger if the model is unsure, so a small mean size
            # is what counts.
            "mean size": measured["mean_size"],
            "one label": measured["single"],
        }
        for measured in result.prediction_sets
    ]
    print_table("prediction sets, on rows that they were not fitted to (95% CI)", sets)
    print_text(f"  written: {result.file}, and calibration.html next to it")
