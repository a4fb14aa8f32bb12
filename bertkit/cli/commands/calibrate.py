"""`bertkit calibrate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from bertkit.cli.options import (
    ROW_OPTIONS,
    CheckpointOption,
    OnOverlapOption,
    RunArgument,
    ScoringSetOption,
    find_checkpoint,
    option,
    recipe_options,
)
from bertkit.cli.output import format_rows, format_score, print_result, print_table, print_text

if TYPE_CHECKING:
    from bertkit.workflows.calibrate import CalibrationResult

ORDER = 24
EXAMPLE = "bertkit calibrate runs/cola"


@recipe_options(*ROW_OPTIONS, set_option=ScoringSetOption)
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
        option("Coverage of prediction sets to measure: probability of the right label; repeatable.", "P"),
    ] = None,
    min_precision: Annotated[
        float | None, option("Minimum precision of `predict`, which abstains from less certain rows.", "P")
    ] = None,
    on_overlap: OnOverlapOption = "error",
) -> None:
    """Calibrate the probabilities of a fine-tuned checkpoint.

    Fits a temperature to rows that the checkpoint was not trained on, and thresholds if rows have several labels. Both
    are stored in calibration.json next to the weights, and `eval` and `predict` use them from then on. A folder of
    seeds is calibrated as an ensemble.
    """
    recipe, checkpoint = find_checkpoint(run, model)
    from bertkit.recipe.load import load_recipe

    loaded_recipe = load_recipe(recipe, {"model": checkpoint, **changes})
    from bertkit.workflows.calibrate import calibrate

    calibration = calibrate(
        loaded_recipe, split=split, coverages=coverage or (), precision=min_precision, on_overlap=on_overlap
    )
    print_result(calibration, print_calibration)


def print_calibration(result: CalibrationResult) -> None:
    """Print the temperature, its effect, the thresholds that have a precision, and the prediction sets."""
    from bertkit.metrics.calibration import describe_temperature

    # 1. The model and the rows.
    unit = f", {result.decisions:,} {result.per.replace('label', 'decisions on label')}s" if result.per != "row" else ""
    print_text(f"{result.model}, {result.split}: {format_rows(result.rows)}{unit} ({result.source})")
    if result.training_rows:
        print_text(f"  training rows: {result.training_rows:,}. The model is more confident on them than on new rows.")
    # 2. The temperature. It divides the logits (Guo et al. 2017), so it does not change the predicted labels. A value
    # above 1 means that the model was too confident.
    print_text(f"  temperature {describe_temperature(result.temperature)}")
    table = []
    for name in result.before:
        scores = {"before": result.before[name], "after": result.after[name]}
        cells = {state: format_score(score["value"], score["interval"]) for state, score in scores.items()}
        table.append({"measure": name, **cells})
    scope = "" if result.per == "row" else f"of each {result.per}, "
    print_table(f"{scope}on rows that the temperature was not fitted to (95% CI over rows)", table)
    # 3. Thresholds, if the task decides label by label; other tasks predict the most probable label.
    if result.f1_macro is not None:
        thresholds = [{"label": name, "threshold": value} for name, value in (result.thresholds or {}).items()]
        f1_before, f1_after = result.f1_macro["before"], result.f1_macro["after"]
        print_text(f"  f1_macro {f1_before:.4f} at 0.5, {f1_after:.4f} at thresholds tuned on other rows")
        print_table("thresholds", thresholds)
        if not thresholds:
            print_text("  thresholds stay at 0.5, because no others are better")
    # 4. Abstention. "not reached": no threshold reaches the precision with 95% confidence on these rows.
    abstention_rows = [
        {
            "type": entry.get("type", ""),
            "precision": entry["asked"],
            "abstain below": entry.get("threshold", "not reached"),
            "answered": entry.get("coverage", ""),
            "correct": entry.get("precision", ""),
        }
        for entry in result.abstention
    ]
    if abstention_rows:
        print_table("thresholds for a required precision, with 95% confidence", abstention_rows)
        # Coverage is the fraction of rows that are answered, risk the fraction of wrong answers among them.
        print_table("risk and coverage", result.risk_coverage)
    # 5. Prediction sets. All have about the requested coverage, because they grow with the uncertainty of the model. So
    # a better model has smaller sets.
    set_rows = [
        {
            "type": prediction_set.get("type", ""),
            "coverage": prediction_set["asked"],
            "reached": format_score(prediction_set["held"], prediction_set["interval"]),
            "mean size": prediction_set["mean_size"],
            "one label": prediction_set["single"],
        }
        for prediction_set in result.prediction_sets
    ]
    print_table("prediction sets, on rows that they were not fitted to (95% CI)", set_rows)
    print_text(f"  written: {result.file}, and calibration.html next to it")
