"""`bertkit eval`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from bertkit.cli.options import (
    ROWS,
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
    format_scored,
    group_by_reason,
    print_gated,
    print_line,
    print_notes,
    print_table,
    print_text,
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


@recipe_options(*ROWS, set_option=ScoringSetOption)
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
    # 2. Options become keys of the recipe, so `eval` and a recipe file accept the same settings; --set comes last
    # and wins.
    settings: dict[str, Any] = {"model": checkpoint, "task": get_zero_shot_task(recipe) if zero_shot else None}
    settings |= {**read_requirements(require or []), "gates.use_interval": use_interval or None}
    changes = merge_changes(settings, changes)
    scoring: dict[str, Any] = {"split": split, "output": output}
    scoring |= {"on_overlap": on_overlap, "strict_labels": strict_labels}
    # 3. Score: one recipe per language, or the one recipe.
    if languages is not None:
        recipes = _load_languages(recipe, changes, languages)
        from bertkit.workflows.evaluate import evaluate_languages

        by_language, means = evaluate_languages(recipes, **scoring)
        printed = {"results": by_language, "means": means}
        _print_and_exit(printed, lambda _: print_languages(by_language, means), by_language, report)
        return
    from bertkit.recipe.load import load_recipe
    from bertkit.workflows.evaluate import evaluate

    loaded = load_recipe(recipe, changes)
    results = evaluate(loaded, **scoring)
    _print_and_exit({"results": results}, lambda _: _print_written(results, output), {loaded.name: results}, report)


def read_requirements(assignments: Sequence[str]) -> dict[str, float]:
    """Read ``METRIC=VALUE`` assignments as keys of a recipe.

    >>> read_requirements(["f1_macro=.85"])
    {'gates.f1_macro': 0.85}

    Raises:
        UsageError: If a text is not an assignment of a number.
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
    printed: object, show: Callable[[Any], object], results: Mapping[str, Any], report: Path | None
) -> None:
    """Write the report, print the results, and exit with the code of the gates."""
    from bertkit.reports.cases import Case, add_measurements, write_cases

    gates, measured = list[Case](), list[tuple[str, str, str]]()
    for name, result in ((name, result) for name, named_results in results.items() for result in named_results):
        # Results of several languages differ in name and not in split.
        group = f"{name}, {result.split}" if len(results) > 1 else result.split
        gates += [dataclasses.replace(case, group=group) for case in result.gates]
        scored = result.scores.items()
        measured += [(group, metric, format_scored(score, result.intervals.get(metric))) for metric, score in scored]
    if report is not None and is_main_process():
        write_cases(report, ", ".join(results), add_measurements(gates, measured))
    print_gated(printed, show, gates)


def _get_run(run: str | None, model: str | None) -> tuple[str, str | None]:
    """Return the run and the model to score; a model that brings its recipe along is a run."""
    from bertkit.storage.hub.models import has_recipe

    if run is None and model and has_recipe(model):
        return model, None
    if run is None:
        raise UsageError("no run", "name one, e.g. `bertkit eval runs/cola`")
    return run, model


def _load_languages(name: str, changes: dict[str, Any], languages: str) -> dict[str, Recipe]:
    """Load a recipe once for each language of a list with commas.

    Raises:
        UsageError: If the list has an empty name, or `--set` names a language, too.
    """
    codes = [code.strip() for code in languages.split(",")]
    if not all(codes):
        raise UsageError(f"--languages {languages!r} has an empty name", "name them with commas, e.g. en,de,fr")
    if "data.language" in changes:
        raise UsageError("--set data.language with --languages", "leave one of them out")
    from bertkit.recipe.load import load_recipe

    return {code: load_recipe(name, changes | {"data.language": code}) for code in codes}


def print_results(results: Sequence[EvalResult], next_steps: Callable[[], None] = lambda: None) -> None:
    """Print the scores of every split, the next steps, and last which split is not above its baselines."""
    _print_scores(results)
    next_steps()
    for result in results:
        # A model that does not beat its baselines learned nothing. The warning is printed last, because a
        # terminal shows the end of the output.
        if result.lead and not result.lead["is_clear"]:
            print_line()
            print_text(f"WARNING ({result.split}): {result.warnings[-1]}")


def _print_scores(results: Sequence[EvalResult]) -> None:
    """Print the scores of every split, each with its confidence interval and its baseline."""
    from bertkit.data.checks import format_fraction
    from bertkit.metrics.baselines import tabulate
    from bertkit.metrics.intervals import describe_methods
    from bertkit.metrics.registry import describe_positive_label

    # Per split: the scores with interval and baseline, then what a reader must know before quoting them.
    for result in results:
        rows = format_rows(result.rows)
        print_text(f"{result.recipe}, {result.split}: {rows} ({result.source}), {result.model}")
        if result.training_rows:
            share = format_fraction(result.training_rows, result.rows)
            print_text(f"  training rows: {share}. New rows may score lower.")
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
    """Return the table of baselines with the interval of the strongest one."""
    if not lead or not lead["score_interval"]:
        return table
    interval = {f"95% CI ({lead['metric']})": lead["score_interval"]}
    return [row | interval if row["baseline"] == lead["baseline"] else row for row in table]


def _describe_lead(lead: Mapping[str, Any]) -> str:
    """Describe the difference between a model and the strongest baseline."""
    # A loss of 0.02 reads "worse by 0.02": the sign goes into the word, and the ends of the interval change sides.
    word, sign = ("better", 1) if lead["difference"] >= 0 else ("worse", -1)
    ends = sorted(sign * end for end in lead["interval"] or ())
    interval = f" (95% CI {format_interval((ends[0], ends[1]))})" if ends else ""
    baseline, difference = lead["baseline"], f"{abs(lead['difference']):.4f}"
    how = f"{word} than {baseline} by {difference}" if float(difference) else f"as good as {baseline}"
    unclear = ", not significant" if ends and float(difference) and ends[0] <= 0 <= ends[1] else ""
    return f"{lead['metric']}: {how}{interval}{unclear}"


def print_languages(results: Mapping[str, Sequence[EvalResult]], means: Sequence[Mapping[str, Any]]) -> None:
    """Print a table of the scores of each language with their mean, and the warnings of each language."""
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
    print_text("  The interval of the mean takes rows as independent; if they are translations, it is too wide.")
    for language, group in results.items():
        for result in group:
            if result.training_rows:
                print_text(f"  {language}: {result.training_rows:,} of {format_rows(result.rows)} are training rows")
            print_notes(f"{language}: {warning}" for warning in result.warnings)


def _explain_undefined(undefined: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Yield the reasons for missing numbers; an undefined metric has no interval and no baseline either."""
    scores = undefined.get("scores", {})
    for part, prefix in (("scores", ""), ("intervals", "interval of "), ("baselines", "baseline of ")):
        reasons = {
            name: reason for name, reason in undefined.get(part, {}).items() if part == "scores" or name not in scores
        }
        for reason, names in group_by_reason(reasons).items():
            yield f"n/a: {prefix}{', '.join(names)} ({reason})"
