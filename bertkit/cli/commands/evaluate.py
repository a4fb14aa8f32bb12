"""`bertkit eval`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from bertkit.cli.options import (
    ROW_OPTIONS,
    CheckpointOption,
    OnOverlapOption,
    OptionalRunArgument,
    ReportOption,
    ScoringSetOption,
    ZeroShotOption,
    find_checkpoint,
    flag,
    get_zero_shot_task,
    merge_changes,
    option,
    output_option,
    recipe_options,
)
from bertkit.cli.output import (
    format_interval,
    format_number,
    format_rows,
    format_score,
    group_by_reason,
    print_line,
    print_notes,
    print_table,
    print_text,
    print_with_gates,
)
from bertkit.errors import UsageError
from bertkit.storage.runs import is_main_process

if TYPE_CHECKING:
    from bertkit.evaluation.scoring import EvalResult
    from bertkit.recipe.records import Recipe

NAME = "eval"
ORDER = 21
EXAMPLE = "bertkit eval runs/cola --split test"

UseIntervalOption = Annotated[
    bool, flag("--use-interval", "Compare gates with the worse end of the 95% interval instead of the score.")
]
SplitOption = Annotated[
    str | None, option("Split to score; `all` scores every row of a file.", "SPLIT", "validation splits")
]
StrictLabelsOption = Annotated[
    bool, flag("--strict-labels", "Reject labels that the checkpoint lacks, instead of counting them as wrong.")
]
LanguagesOption = Annotated[
    str | None,
    option("Languages to score, e.g. en,de,fr; each replaces {language} in the recipe or --data.", "LIST"),
]


@recipe_options(*ROW_OPTIONS, set_option=ScoringSetOption)
def command(
    changes: dict[str, Any],
    run: OptionalRunArgument = None,
    model: CheckpointOption = None,
    split: SplitOption = None,
    output: Annotated[Path | None, output_option("Folder to write the predictions to.", "DIR")] = None,
    require: Annotated[
        list[str] | None,
        option("Exit with code 8 if a metric, ece or size_mb misses this value; repeatable.", "METRIC=VALUE"),
    ] = None,
    use_interval: UseIntervalOption = False,
    report: ReportOption = None,
    on_overlap: OnOverlapOption = "error",
    strict_labels: StrictLabelsOption = False,
    languages: LanguagesOption = None,
    zero_shot: ZeroShotOption = False,
) -> None:
    """Score a run, or any fine-tuned checkpoint, on a recipe's data.

    A checkpoint can be any Hugging Face model with a trained head for the task. Options override the recipe.
    """
    # 1. Find the recipe and the checkpoint.
    run, model = _get_run(run, model)
    recipe, checkpoint = find_checkpoint(run, model)
    # 2. Turn options into keys of the recipe; --set wins.
    settings: dict[str, Any] = {"model": checkpoint, "task": get_zero_shot_task(recipe) if zero_shot else None}
    settings |= {**read_requirements(require or []), "gates.use_interval": use_interval or None}
    changes = merge_changes(settings, changes)
    scoring: dict[str, Any] = {"split": split, "output": output}
    scoring |= {"on_overlap": on_overlap, "strict_labels": strict_labels}
    # 3. Score with one recipe per language, or with a single recipe.
    if languages is not None:
        recipes = _load_languages(recipe, changes, languages)
        from bertkit.workflows.evaluate import evaluate_languages

        results_by_language, means = evaluate_languages(recipes, **scoring)
        record = {"results": results_by_language, "means": means}
        _print_and_exit(record, lambda _: print_languages(results_by_language, means), results_by_language, report)
        return
    from bertkit.recipe.load import load_recipe
    from bertkit.workflows.evaluate import evaluate

    loaded_recipe = load_recipe(recipe, changes)
    results = evaluate(loaded_recipe, **scoring)
    _print_and_exit(
        {"results": results}, lambda _: _print_written(results, output), {loaded_recipe.name: results}, report
    )


def read_requirements(assignments: Sequence[str]) -> dict[str, float]:
    """Return ``METRIC=VALUE`` assignments as keys of a recipe.

    >>> read_requirements(["f1_macro=.85"])
    {'gates.f1_macro': 0.85}

    Raises:
        UsageError: If an assignment is malformed.
    """
    gates = {}
    for text in assignments:
        name, _, value = text.partition("=")
        try:
            gates[f"gates.{name.strip()}"] = float(value)
        except ValueError:
            raise UsageError(f"--require {text} is not METRIC=VALUE", "write e.g. --require accuracy=0.9") from None
    return gates


def _print_written(results: Sequence[EvalResult], output: Path | None) -> None:
    print_results(results)
    if output is not None:
        print_line(f"{output}: written")


def _print_and_exit(
    record: object, show: Callable[[Any], object], results: Mapping[str, Any], report: Path | None
) -> None:
    """Write the report, print the results, and exit with code 8 if a gate fails."""
    from bertkit.reports.cases import Case, add_measurements, write_cases

    gates: list[Case] = []
    measurements: list[tuple[str, str, str]] = []
    for name, result in ((name, result) for name, named_results in results.items() for result in named_results):
        # Several languages have the same splits.
        group = f"{name}, {result.split}" if len(results) > 1 else result.split
        gates += [dataclasses.replace(case, group=group) for case in result.gates]
        for metric, score in result.scores.items():
            measurements.append((group, metric, format_score(score, result.intervals.get(metric))))
    if report is not None and is_main_process():
        write_cases(report, ", ".join(results), add_measurements(gates, measurements))
    print_with_gates(record, show, gates)


def _get_run(run: str | None, model: str | None) -> tuple[str, str | None]:
    """Return the run and the model to score; a --model whose folder has a recipe is a run."""
    from bertkit.storage.hub.models import has_recipe

    if run is None and model and has_recipe(model):
        return model, None
    if run is None:
        raise UsageError("no run is named", "write e.g. `bertkit eval runs/cola`")
    return run, model


def _load_languages(name: str, changes: dict[str, Any], languages: str) -> dict[str, Recipe]:
    """Load a recipe once for each language of a list with commas.

    Raises:
        UsageError: If the list has an empty name, or `--set` has a language too.
    """
    codes = [code.strip() for code in languages.split(",")]
    if not all(codes):
        raise UsageError(f"--languages {languages!r} has an empty name", "separate names with one comma, e.g. en,de,fr")
    if "data.language" in changes:
        raise UsageError("--languages and --set data.language are both given", "leave one of them out")
    from bertkit.recipe.load import load_recipe

    return {code: load_recipe(name, changes | {"data.language": code}) for code in codes}


def print_results(results: Sequence[EvalResult], next_steps: Callable[[], None] = lambda: None) -> None:
    """Print the scores of every split, the next steps, and a warning for each split that is not above its baselines."""
    _print_scores(results)
    next_steps()
    for result in results:
        # A model that does not beat its baselines learned nothing. The warning comes last, so users see it.
        if result.lead and not result.lead["is_clear"]:
            print_line()
            print_text(f"WARNING ({result.split}): {result.warnings[-1]}")


def _print_scores(results: Sequence[EvalResult]) -> None:
    """Print the scores of every split, each with its confidence interval and its baseline."""
    from bertkit.data.checks import format_fraction
    from bertkit.metrics.baselines import tabulate
    from bertkit.metrics.intervals import describe_methods
    from bertkit.metrics.registry import describe_positive_label

    for result in results:
        rows = format_rows(result.rows)
        print_text(f"{result.recipe}, {result.split}: {rows} ({result.source}), {result.model}")
        if result.training_rows:
            fraction = format_fraction(result.training_rows, result.rows)
            print_text(f"  training rows: {fraction}. New rows may score lower.")
        width = max(map(len, result.scores), default=0)
        for name, score in result.scores.items():
            line = f"  {name:<{width}} {format_number(score):>7}"
            if name in result.intervals:
                line += f"  95% CI {format_interval(result.intervals[name]):<18}"
            if name in result.baseline:
                line += f"  baseline {format_number(result.baseline[name]):>7}"
            print_text(line.rstrip())
        print_notes(describe_positive_label(result.scores, result.positive_label))
        if result.lead:
            print_text(f"  {_describe_lead(result.lead)}")
        if result.interval_methods:
            print_text(f"  95% CI: {describe_methods(result.interval_methods)}")
        print_notes(_explain_undefined(result.undefined))
        print_table("baselines", _with_interval(tabulate(result.baselines), result.lead))
        for title, table in result.tables.items():
            print_table(title, table)
        print_notes(result.warnings[: -1 if result.lead and not result.lead["is_clear"] else None])


def _with_interval(table: list[dict[str, Any]], lead: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return the table of baselines, with the interval of the strongest baseline."""
    if not lead or not lead["score_interval"]:
        return table
    interval = {f"95% CI ({lead['metric']})": lead["score_interval"]}
    return [row | interval if row["baseline"] == lead["baseline"] else row for row in table]


def _describe_lead(lead: Mapping[str, Any]) -> str:
    """Return the difference between a model and the strongest baseline as text."""
    # -0.02 (-0.05 to -0.01) becomes "worse by 0.02 (0.01 to 0.05)".
    word, sign = ("better", 1) if lead["difference"] >= 0 else ("worse", -1)
    bounds = sorted(sign * bound for bound in lead["interval"] or ())
    interval = f" (95% CI {format_interval(bounds)})" if bounds else ""
    baseline = lead["baseline"]
    difference = f"{abs(lead['difference']):.4f}"
    comparison = f"{word} than {baseline} by {difference}" if float(difference) else f"as good as {baseline}"
    doubt = ", not significant" if bounds and float(difference) and bounds[0] <= 0 <= bounds[1] else ""
    return f"{lead['metric']}: {comparison}{interval}{doubt}"


def print_languages(results: Mapping[str, Sequence[EvalResult]], means: Sequence[Mapping[str, Any]]) -> None:
    """Print a table of scores per metric with a row per language and the mean, and the warnings of each language."""
    first = next(iter(results.values()))[0]
    print_text(f"{first.recipe}: {len(results)} languages, {first.model}")
    for mean in means:
        metric = mean["metric"]
        rows: list[dict[str, Any]] = [
            {"language": language, "split": result.split, "rows": result.rows, "score": result.scores[metric]}
            | {"95% CI": result.intervals.get(metric), "baseline": result.baseline.get(metric)}
            for language, group in results.items()
            for result in group
            if result.split in mean["splits"]
        ]
        if mean["score"] is not None:
            # Each language has the same weight, as in XNLI and XTREME, even if it has fewer rows.
            rows.append({"language": "mean", "score": mean["score"], "95% CI": mean["interval"]})
        print_table(metric, rows)
    print_text("  The interval of the mean assumes independent rows; for translations, it is too narrow.")
    for language, group in results.items():
        for result in group:
            if result.training_rows:
                print_text(f"  {language}: {result.training_rows:,} of {format_rows(result.rows)} are training rows")
            print_notes(f"{language}: {warning}" for warning in result.warnings)


def _explain_undefined(reasons_by_part: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Yield the reasons for missing scores, intervals and baselines; a missing score hides the other two."""
    scores = reasons_by_part.get("scores", {})
    for part, prefix in (("scores", ""), ("intervals", "interval of "), ("baselines", "baseline of ")):
        reasons = {
            name: reason
            for name, reason in reasons_by_part.get(part, {}).items()
            if part == "scores" or name not in scores
        }
        for reason, names in group_by_reason(reasons).items():
            yield f"n/a: {prefix}{', '.join(names)} ({reason})"
