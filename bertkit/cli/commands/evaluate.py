"""`bertkit eval`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from bertkit.cli.options import (
    CheckpointOption,
    DataOption,
    JsonOption,
    LimitOption,
    MaxLengthOption,
    SetOption,
    ZeroShotOption,
    complete_recipe,
    find_trained,
    load,
    refuse_rows,
    zero_shot_task,
)
from bertkit.cli.output import (
    format_interval,
    format_number,
    format_rows,
    print_json,
    print_line,
    print_table,
    print_text,
)
from bertkit.cli.progress import TerminalProgress

if TYPE_CHECKING:
    from bertkit.evaluation.languages import LanguageScore, LanguageScores
    from bertkit.evaluation.scoring import Result
    from bertkit.recipe import Recipe
    from bertkit.vectors.benchmark import BenchmarkScores

NAME = "eval"
ORDER = 3
EXAMPLE = "bertkit eval runs/cola --split test"

OptionalRun = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN",
        help="Run folder; or with --model a recipe: a shipped one (see `bertkit recipes list`) or a YAML file. None "
        "with --benchmark.",
        autocompletion=complete_recipe,
        callback=refuse_rows,
        show_default=False,
    ),
]
BenchmarkOption = Annotated[
    str | None,
    typer.Option(
        help="Score the vectors of any encoder on a task of MTEB instead, e.g. mteb:STSBenchmark.",
        metavar="NAME",
        show_default=False,
    ),
]
SplitOption = Annotated[
    str | None,
    typer.Option(
        help="Split to score; `all` scores every row of a file.", metavar="SPLIT", show_default="validation splits"
    ),
]
PredictionsOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Folder to write the predictions to.", metavar="DIR", show_default=False),
]
TrainingRowsOption = Annotated[
    Literal["refuse", "drop", "keep"],
    typer.Option(
        help="If rows are training rows of the checkpoint: refuse, `drop` them, or `keep` and mark them.",
        metavar="CHOICE",
    ),
]
StrictLabelsOption = Annotated[
    bool, typer.Option("--strict-labels", help="Refuse rows with a label that the checkpoint lacks.")
]
LanguagesOption = Annotated[
    str | None,
    typer.Option(
        help="Score rows of each language, which the recipe or --data names as {language}; e.g. en,de,fr.",
        metavar="LIST",
        show_default=False,
    ),
]
OracleOption = Annotated[
    bool,
    typer.Option(
        "--oracle",
        help="With --languages: score every checkpoint of the run too, and show the best one of each language.",
    ),
]


def command(
    run: OptionalRun = None,
    model: CheckpointOption = None,
    data: DataOption = None,
    split: SplitOption = None,
    max_length: MaxLengthOption = None,
    limit: LimitOption = None,
    output: PredictionsOption = None,
    training_rows: TrainingRowsOption = "refuse",
    strict_labels: StrictLabelsOption = False,
    languages: LanguagesOption = None,
    oracle: OracleOption = False,
    benchmark: BenchmarkOption = None,
    zero_shot: ZeroShotOption = False,
    changes: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Score a run, or any fine-tuned checkpoint, on a recipe's data.

    A checkpoint may be any Hugging Face model that has a trained head for the task. Options override the recipe.
    """
    from bertkit.errors import UsageError

    if benchmark is not None:
        encoder = _check_benchmark(
            model,
            {"a RUN": run, "--data": data, "--split": split, "--limit": limit, "--output": output},
            {"--training-rows": None if training_rows == "refuse" else training_rows, "--set": changes or None},
            {"--strict-labels": strict_labels or None, "--zero-shot": zero_shot or None},
            {"--languages": languages, "--oracle": oracle or None},
        )
        from bertkit.workflows.evaluate import evaluate_benchmark

        scores = evaluate_benchmark(benchmark, encoder, max_length=max_length, progress=TerminalProgress())
        print_benchmark(scores, as_json=json)
        return
    if run is None:
        raise UsageError("no run", "name one, e.g. `bertkit eval runs/cola`")
    if oracle and languages is None:
        raise UsageError("--oracle without --languages", "name the languages with commas, e.g. --languages en,de,fr")
    recipe, checkpoint = find_trained(run, model)
    settings = {"model": checkpoint, "data.source": data, "data.limit": limit, "training.max_length": max_length}
    settings |= {"task": zero_shot_task(recipe) if zero_shot else None}
    rows: Any = {"split": split, "output": output, "training_rows": training_rows, "strict_labels": strict_labels}
    if languages is not None:
        recipes = _load_languages(recipe, settings, changes, languages)
        from bertkit.workflows.evaluate import evaluate_languages

        scored = evaluate_languages(recipes, **rows, oracle=oracle, progress=TerminalProgress())
        print_languages(scored, as_json=json)
        return
    loaded = load(recipe, settings, changes)
    from bertkit.workflows.evaluate import evaluate

    print_results(evaluate(loaded, **rows, progress=TerminalProgress()), as_json=json)


def _load_languages(
    name: str, settings: dict[str, Any], changes: list[str] | None, languages: str
) -> dict[str, Recipe]:
    """Load a recipe once for each language of a list with commas.

    Raises:
        UsageError: the list names none, or `--set` names one too.
    """
    from bertkit.errors import UsageError

    codes = [code.strip() for code in languages.split(",")]
    if not all(codes):
        raise UsageError(f"--languages {languages!r} has an empty name", "name them with commas, e.g. en,de,fr")
    recipes = {code: load(name, settings | {"data.language": code}, changes) for code in codes}
    for code, recipe in recipes.items():
        if recipe.data.language != code:
            raise UsageError("--set data.language with --languages", "leave one of them out")
    return recipes


def _check_benchmark(model: str | None, *given: Mapping[str, object]) -> str:
    """Return the encoder to score; no option may be about rows, which a benchmark has itself.

    Raises:
        UsageError: one is, or there is no encoder.
    """
    from bertkit.errors import UsageError

    if model is None:
        raise UsageError("--benchmark without --model", "name the encoder: --model MODEL")

    for name, value in (option for options in given for option in options.items()):
        if value is not None:
            raise UsageError(f"{name} with --benchmark", "leave it out: a benchmark has its own rows")
    return model


def print_benchmark(scores: Sequence[BenchmarkScores], *, as_json: bool) -> None:
    """Print the main score of each split and subset; as JSON, all scores."""
    if as_json:
        print_json({"results": [dataclasses.asdict(result) for result in scores]})
        return
    for result in scores:
        where = result.split if result.subset == "default" else f"{result.split} ({result.subset})"
        print_text(f"{result.benchmark}, {where}: {result.model}")
        print_text(f"  {result.metric}  {format_number(result.score)}")


def print_results(results: Sequence[Result], *, as_json: bool, next_steps: Callable[[], None] | None = None) -> None:
    """Print the scores of every split, the next steps, and last which split is not above its baselines."""
    if as_json:
        print_json({"results": [dataclasses.asdict(result) for result in results]})
        return
    _print_scores(results)
    if next_steps:
        next_steps()
    for result in results:
        if result.lead and not result.lead["is_clear"]:
            print_line()
            print_text(f"WARNING ({result.split}): {result.warnings[-1]}")


def _print_scores(results: Sequence[Result]) -> None:
    """Print the scores of every split, each with its confidence interval and its baseline."""
    from bertkit.data.checks import share_of
    from bertkit.metrics.baselines import tabulate
    from bertkit.metrics.intervals import describe_methods

    for result in results:
        rows = format_rows(result.rows)
        print_text(f"{result.recipe}, {result.split}: {rows} ({result.source}), {result.model}")
        if result.training_rows:
            share = share_of(result.training_rows, result.rows)
            print_text(f"  training rows: {share}. New rows may score lower.")
        width = max(map(len, result.scores), default=0)
        for name, score in result.scores.items():
            line = f"  {name:<{width}} {format_number(score)}"
            if name in result.intervals:
                line += f"  95% CI {format_interval(result.intervals[name]):<18}"
            if name in result.baseline:
                line += f"  baseline {format_number(result.baseline[name])}"
            print_text(line.rstrip())
        if result.lead:
            print_text(f"  {_describe_lead(result.lead)}")
        if result.interval_methods:
            print_text(f"  95% CI: {describe_methods(result.interval_methods)}")
        _print_undefined(result.undefined)
        print_table("baselines", _with_interval(tabulate(result.baselines), result.lead))
        for title, table in result.tables.items():
            print_table(title, table)
        for warning in result.warnings[: -1 if result.lead and not result.lead["is_clear"] else None]:
            print_text(f"  {warning}")


def _with_interval(table: list[dict[str, Any]], lead: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return the table of baselines with the interval of the strongest one."""
    if not lead or not lead["score_interval"]:
        return table
    interval = format_interval(lead["score_interval"])
    return [
        {**row, f"95% CI ({lead['metric']})": interval if row["baseline"] == lead["baseline"] else ""} for row in table
    ]


def _describe_lead(lead: Mapping[str, Any]) -> str:
    """Say by how much a model is better or worse than the strongest baseline."""
    word, sign = ("better", 1) if lead["difference"] >= 0 else ("worse", -1)
    ends = sorted(sign * end for end in lead["interval"] or ())
    interval = f" (95% CI {format_interval((ends[0], ends[1]))})" if ends else ""
    return f"{lead['metric']}: {word} than {lead['baseline']} by {abs(lead['difference']):.4f}{interval}"


def print_languages(scored: LanguageScores, *, as_json: bool) -> None:
    """Print a table of languages, with the gap of each to the language of training, and what the table cannot show."""
    if as_json:
        print_json(dataclasses.asdict(scored))
        return
    reference = scored.reference
    for table in scored.tables:
        splits = ", ".join(dict.fromkeys(score.split for score in table.scores))
        print_text(f"{scored.recipe}, {splits}: {len(table.scores)} languages, {scored.model}")
        lines = [_language_line(score, reference, scored.results) for score in table.scores]
        for mean in table.means:
            what = "mean" if len(mean.languages) == len(table.scores) else f"mean without {reference}"
            cells = {"language": what, "rows": "", "score": format_number(mean.score).strip()}
            lines.append({**dict.fromkeys(lines[0], ""), **cells, "95% CI": format_interval(mean.interval)})
        print_table(table.metric, lines)
    print_text(f"  {_describe_gap(scored)}")
    if scored.checkpoints:
        count = len(scored.checkpoints)
        print_text(f"  best checkpoint: of {count}, chosen on the rows of its own score, so an upper bound")
    for language, results in scored.results.items():
        for result in results:
            if result.training_rows:
                print_text(f"  {language}: {result.training_rows:,} of {format_rows(result.rows)} are training rows")
            for warning in result.warnings:
                print_text(f"  {language}: {warning}")


def _language_line(score: LanguageScore, reference: str, scored: Mapping[str, object]) -> dict[str, str]:
    line = {
        "language": score.language,
        "rows": f"{score.rows:,}",
        "score": format_number(score.score).strip(),
        "95% CI": format_interval(score.interval),
    }
    if reference in scored:
        has_gap = score.gap is not None
        line[f"gap to {reference}"] = f"{score.gap:+.4f}" if has_gap else ""
        line["95% CI of gap"] = format_interval(score.gap_interval) if has_gap else ""
    if score.oracle is not None:
        line |= {"best checkpoint": format_number(score.oracle).strip(), "its step": f"{score.oracle_step:,}"}
    return line | ({} if score.baseline is None else {"baseline": format_number(score.baseline).strip()})


def _describe_gap(scored: LanguageScores) -> str:
    reference = scored.reference
    if reference not in scored.results:
        return f"no gaps: {reference}, the language of training, is not among --languages"
    independent = "Intervals take the rows of two languages as independent; of translated rows they are too wide."
    if scored.is_recorded:
        return f"{independent} Settings and checkpoint were chosen on {reference}."
    return f"The run does not say its language, so gaps are to the first one, {reference}. {independent}"


def _print_undefined(undefined: Mapping[str, Mapping[str, str]]) -> None:
    """Print why there is no number; where a metric is undefined, so are its interval and its baseline."""
    shown: set[str] = set()
    for part, of in (("scores", ""), ("intervals", "interval of "), ("baselines", "baseline of ")):
        reasons = {name: reason for name, reason in undefined.get(part, {}).items() if name not in shown}
        for reason in dict.fromkeys(reasons.values()):
            print_text(f"  n/a: {of}{', '.join(name for name in reasons if reasons[name] == reason)} ({reason})")
        shown |= reasons.keys() if part == "scores" else set()
