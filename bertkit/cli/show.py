"""What commands print: results for people, or one JSON object for programs."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.storage.runs import is_main_process

if TYPE_CHECKING:
    from bertkit.evaluation.scoring import Result
    from bertkit.recipe import PretrainRecipe, Recipe
    from bertkit.workflows.bench import Bench, Speed
    from bertkit.workflows.distill import ComparedModel, Distilled
    from bertkit.workflows.steps.finetune_inputs import DryRun
    from bertkit.workflows.tokenizer import TokenizerReport

_SCHEMA = 1


def show_json(values: Mapping[str, Any]) -> None:
    """Print one JSON object; what is not a number becomes null."""
    write(json.dumps(_without_nan({"schema_version": _SCHEMA, "status": "done", **values}), ensure_ascii=False))


def write(line: str = "") -> None:
    """Print a line on stdout; of several processes of a launch, only the first prints."""
    if is_main_process():
        sys.stdout.write(line + "\n")


def show_run(results: Sequence[Result], *, as_json: bool) -> None:
    """Show what a finished run scored, and what to do next."""
    show_results(results, as_json=as_json)
    if results and not as_json:
        _show_next(results)


def _show_next(results: Sequence[Result]) -> None:
    from bertkit.recipe import load_recipe
    from bertkit.tasks import example_row, load_task

    folder = results[0].folder
    recipe = f"{folder}/recipe.yaml"
    loaded = load_recipe(recipe)
    example = example_row(load_task(loaded), loaded)
    write("\nNext:")
    write(f"  open {folder}/report.html")
    write(f"  bertkit predict {recipe} --model {folder} {example}")
    write(f"  bertkit eval {recipe} --model {folder}")


def show_results(results: Sequence[Result], *, as_json: bool) -> None:
    """Show scores, each with its interval and the baseline."""
    if as_json:
        show_json({"results": [dataclasses.asdict(result) for result in results]})
        return
    for result in results:
        write(f"{result.recipe}, {result.split}: {result.rows:,} rows ({result.source}), {result.model}")
        for name, value in result.scores.items():
            low, high = result.intervals.get(name, (math.nan, math.nan))
            line = f"  {name:<22} {number(value)}  95 % interval {number(low)} to {number(high)}"
            baseline = f"  baseline {number(result.baseline[name])}" if name in result.baseline else ""
            write(line + baseline)
        for title, rows in result.tables.items():
            show_rows(title, rows)
        for warning in result.warnings:
            write(f"  {warning}")


def show_distilled(distilled: Distilled, *, as_json: bool) -> None:
    """Show what a student scored, and its teachers beside it."""
    if as_json:
        show_json(dataclasses.asdict(distilled))
        return
    show_results(distilled.results, as_json=False)
    lines = [_model_line(each, distilled.best_metric) for each in distilled.compared_models]
    show_rows("side by side, timed by turns on this machine", lines)
    if distilled.results:
        _show_next(distilled.results)


def show_plan(plan: DryRun, *, as_json: bool) -> None:
    """Show what a run would do."""
    if as_json:
        show_json(dataclasses.asdict(plan))
        return
    write(plan.resolved.rstrip())
    write()
    write(f"rows     {', '.join(f'{name} {_count(count)}' for name, count in plan.rows.items())}")
    if plan.labels:
        write(f"labels   {', '.join(plan.labels[:20])}")
    write(f"steps    {plan.steps:,}")
    write(f"disk     {plan.disk_bytes / 1e6:,.0f} MB in {plan.folder}")
    write("Nothing was trained or written.")


def show_bench(bench: Bench, *, as_json: bool) -> None:
    """Show one line for each precision and batch size that was measured."""
    if as_json:
        show_json(dataclasses.asdict(bench))
        return
    write(f"{bench.recipe}, {bench.model}: {bench.rows:,} rows of {bench.tokens:,} tokens, {bench.epochs:g} epochs")
    lines = [_bench_line(each) for each in bench.speeds]
    for each, line in zip(bench.speeds, lines, strict=True):
        line[""] = "fastest" if each is bench.fastest else ""
    steps = max(each.steps for each in bench.speeds)
    show_rows(f"measured over {steps} steps" if steps else "measured", lines)
    for note in dict.fromkeys(note for each in bench.speeds for note in each.notes):
        write(f"  {note}")
    write("  epoch and recipe: estimates, the recipe's with evaluation; without starting up, scoring and saving")


def show_predictions(records: Iterable[Mapping[str, Any]], *, as_json: bool) -> None:
    """Print predictions as JSON lines, or all in one JSON object."""
    if as_json:
        show_json({"predictions": list(records)})
        return
    for record in records:
        write(json.dumps(_without_nan(record), ensure_ascii=False))


def show_masks(records: Iterable[Mapping[str, Any]], *, as_json: bool) -> None:
    """Show what could stand at the masks of texts."""
    if as_json:
        show_json({"texts": list(records)})
        return
    for record in records:
        write(record["text"])
        for mask in record["masks"]:
            many = len(record["masks"]) > 1
            width = max(len(answer["word"]) for answer in mask["answers"])
            for answer in mask["answers"]:
                number = f"{mask['mask']}  " if many else ""
                write(f"  {number}{answer['probability']:7.2%}  {answer['word']:<{width}}  {answer['text']}")


def show_tokenizer(learned: TokenizerReport, *, as_json: bool) -> None:
    """Show what a new tokenizer does to held-out text."""
    if as_json:
        show_json(dataclasses.asdict(learned))
        return
    letters = "lowercase" if learned.lowercase else "cased"
    write(f"{learned.folder}: {learned.kind}, {letters}, {learned.vocabulary_size:,} tokens")
    write(f"  on {learned.held_out:,} held-out of {learned.documents:,} documents ({learned.words:,} words):")
    write(f"  tokens a word (fertility)   {learned.fertility:7.3f}")
    write(f"  words of one token          {learned.coverage:7.1%}")
    write(f"  unknown tokens              {learned.unknown_rate:7.3%}")
    write(f"  tokens a document           {learned.tokens_per_document:7.1f}")
    write(f"  vocabulary not seen there   {learned.unseen_share:7.1%}")
    for warning in learned.warnings:
        write(f"  warning: {warning}")


def show_sizes(rows: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """Show the named sizes of new models."""
    if as_json:
        show_json({"sizes": rows})
        return
    show_rows("an encoder with the published vocabulary", rows)


def show_written(file: Path, count: int, *, as_json: bool, hint: str = "") -> None:
    """Say what was written where."""
    if as_json:
        show_json({"file": str(file), "rows": count})
    else:
        write(f"{file}: {f'next: {hint}' if hint else f'{count:,} rows'}")


def show_recipe(recipe: Recipe | PretrainRecipe, *, as_json: bool) -> None:
    """Print a resolved recipe as YAML or JSON."""
    from bertkit.recipe import write_yaml

    values = recipe.model_dump(mode="json")
    if as_json:
        show_json({"recipe": values})
    else:
        write(write_yaml(values).rstrip())


def show_table(title: str, values: Mapping[str, Any], *, as_json: bool) -> None:
    """Print names and values in two columns, or as one JSON object under the title."""
    if as_json:
        show_json({title: values})
        return
    width = max(map(len, values), default=0)
    for name, value in values.items():
        write(f"{name:<{width}}  {value}".rstrip())


def show_rows(title: str, rows: Sequence[Mapping[str, Any]], most: int = 30) -> None:
    """Write a table, its first column to the left and the others to the right."""
    if not rows:
        return
    lines = [list(rows[0]), *([_cell(value) for value in row.values()] for row in rows[:most])]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    write(f"  {title}")
    for first, *others in lines:
        write("    " + "  ".join([first.ljust(widths[0]), *map(str.rjust, others, widths[1:])]).rstrip())
    if len(rows) > most:
        write(f"    ... {len(rows) - most:,} more with --json")


def _count(rows: int | None) -> str:
    return "streamed" if rows is None else f"{rows:,}"


def _model_line(each: ComparedModel, metric: str) -> dict[str, Any]:
    def ends(interval: Sequence[float]) -> str:
        return " to ".join(number(end).strip() for end in interval)

    line = {
        "model": f"{each.role} {each.model}",
        "parameters": each.parameters,
        "MB": f"{each.disk_bytes / 1e6:,.1f}",
        "ms a row": f"{1000 * each.row_seconds:,.2f}",
        "rows/s": f"{each.rows_per_second:,.0f}",
        metric: each.scores[metric],
        "95 % interval": ends(each.intervals[metric]),
    }
    if metric not in each.difference:
        return {**line, "student less teacher": "", "95 % interval of it": ""}
    apart = each.difference[metric], ends(each.difference_intervals[metric])
    return {**line, "student less teacher": apart[0], "95 % interval of it": apart[1]}


def _bench_line(speed: Speed) -> dict[str, Any]:
    def told(value: float | None, form: str, unit: float = 1) -> str:
        return "-" if value is None else form.format(value / unit)

    return {
        "precision": speed.precision,
        "batch": speed.batch_size,
        "tokens/s": told(speed.tokens_per_second, "{:,.0f}"),
        "rows/s": told(speed.rows_per_second, "{:,.1f}"),
        "padding": told(speed.padding_share, "{:.1f} %", 0.01),
        "of peak": told(speed.peak_share, "{:.1f} %", 0.01),
        "memory": told(speed.peak_memory_bytes, "{:,.0f} MB", 1e6),
        "evaluation rows/s": told(speed.evaluation_rows_per_second, "{:,.1f}"),
        "epoch": duration(speed.epoch_seconds),
        "recipe": duration(speed.recipe_seconds),
    }


def duration(seconds: float | None) -> str:
    """Write seconds as people say them.

    >>> duration(4.25), duration(200), duration(7500), duration(None)
    ('4.2 s', '3 min 20 s', '2 h 05 min', '-')
    """
    if seconds is None:
        return "-"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return number(value).strip()
    return f"{value:,}" if isinstance(value, int) else str(value)


def number(value: float) -> str:
    """Write a score in seven places."""
    if not math.isfinite(value):
        return "    n/a"
    return f"{value:7.4f}" if abs(value) < 100 else f"{value:7.3f}"


def _without_nan(values: Any) -> Any:
    if isinstance(values, Mapping):
        return {name: _without_nan(value) for name, value in values.items()}
    if isinstance(values, (list, tuple)):
        return [_without_nan(value) for value in values]
    return None if isinstance(values, float) and not math.isfinite(values) else values
