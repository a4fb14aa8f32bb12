"""`bertkit ablate`."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertkit.cli.options import FROM_RECIPE, DryRunOption, JsonOption, SeedOption, SetOption, refuse_rows
from bertkit.cli.output import (
    end_with_error,
    format_duration,
    format_interval,
    format_number,
    format_rows,
    print_json,
    print_line,
    print_table,
    print_text,
)
from bertkit.cli.progress import TerminalProgress
from bertkit.cli.seeds import parse_seeds
from bertkit.errors import UsageError

if TYPE_CHECKING:
    from bertkit.evaluation.ablations import AblatedTask, AblationSummary, Variant
    from bertkit.workflows.ablate import AblationPlan

NAME = "ablate"
ORDER = 1
EXAMPLE = "bertkit ablate mlm --data text.txt --tokenizer tok --space objective=nsp,mlm,clm --then sst2"


SpaceOption = Annotated[
    list[str],
    typer.Option(
        "--space",
        help="Vary a key of the recipe: KEY=VALUE,VALUE; repeatable. The first value is what the others are compared "
        "with.",
        metavar="KEY=VALUES",
        show_default=False,
    ),
]
ThenOption = Annotated[
    list[str],
    typer.Option(
        "--then",
        help="Fine-tune each encoder with this recipe, with settings behind its name if need be: "
        "'sst2 data.limit=5000'; repeatable.",
        metavar="RECIPE",
        show_default=False,
    ),
]
SeedsOption = Annotated[
    str,
    typer.Option("--seeds", help="Seeds of each fine-tuning: a number, or a list such as 1,2,7.", metavar="N|LIST"),
]


def _option(help: str, metavar: str | None = None, default: str | bool = FROM_RECIPE) -> Any:
    return typer.Option(help=help, metavar=metavar, show_default=default)


def command(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A pretraining recipe or a YAML file.", callback=refuse_rows)
    ],
    space: SpaceOption,
    then: ThenOption,
    data: Annotated[str | None, _option("Text: hub data set, directory, file or `demo`.", "DATA")] = None,
    size: Annotated[str | None, _option("Size of the new models; see `bertkit pretrain sizes`.", "SIZE")] = None,
    tokenizer: Annotated[str | None, _option("Tokenizer of the new models: folder or hub name.", "DIR", False)] = None,
    steps: Annotated[int | None, _option("Optimizer steps of pretraining.")] = None,
    seeds: SeedsOption = "5",
    seed: SeedOption = None,
    changes: SetOption = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder of all runs.", metavar="DIR", show_default="runs/RECIPE-ablation"),
    ] = None,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Pretrain in several ways, fine-tune each encoder on the same tasks, and compare.

    What differs, such as the objective, the masking rate or the size, is named by --space. All else is equal. After an
    interruption, the same command goes on where it was. Other options and --set hold for all pretrainings.
    """
    from bertkit.recipe import parse_changes
    from bertkit.recipe.space import make_search

    given = {"data.source": data, "size": size, "tokenizer": tokenizer, "training.steps": steps, "training.seed": seed}
    settings = {key: value for key, value in given.items() if value is not None} | parse_changes(changes or [])
    search, tasks, numbers = make_search("grid", space, None), list(map(parse_then, then)), parse_seeds(seeds)
    from bertkit.workflows.ablate import ablate
    from bertkit.workflows.ablate import dry_run as check

    if dry_run:
        plan = check(recipe, search, tasks, numbers, settings, output=output, progress=TerminalProgress())
        print_plan(plan, as_json=json)
        return
    summary, error = ablate(recipe, search, tasks, numbers, settings, output=output, progress=TerminalProgress())
    if json:
        values = dataclasses.asdict(summary)
        print_json(values) if error is None else end_with_error(values, error)
        return
    print_ablation(summary)
    if error is not None:
        raise error


def parse_then(text: str) -> tuple[str, dict[str, Any]]:
    """Read a recipe and the settings behind it.

    Raises:
        UsageError: no recipe is named.
        RecipeError: a setting is not key=value.

    >>> parse_then("sst2 data.limit=5000 training.epochs=2")
    ('sst2', {'data.limit': 5000, 'training.epochs': 2})
    """
    from bertkit.recipe import parse_changes

    try:
        name, *settings = shlex.split(text)
    except ValueError:
        name, settings = "", []
    if not name or "=" in name:
        raise UsageError(f"--then {text!r} names no recipe", "write e.g. --then 'sst2 data.limit=5000'")
    return name, parse_changes(settings)


def print_ablation(summary: AblationSummary) -> None:
    """Print how each encoder was pretrained, and a table of scores for each task."""
    print_text(f"{summary.recipe}: {len(summary.variants)} encoders, by {', '.join(summary.space)}")
    print_table("pretraining", [_variant_row(variant) for variant in summary.variants if variant.steps])
    for variant in summary.variants:
        if variant.failure:
            print_text(f"  failed: {variant.name}. {variant.failure}")
    for task in summary.tasks:
        count = len(summary.seeds)
        print_text(f"{task.recipe}, {task.split}: {format_rows(task.rows)}, {count} seed{'s' if count > 1 else ''}")
        print_table(f"{task.metric}, and its difference from {task.scores[0].variant}", score_rows(task))
        for score in task.scores:
            for failure in dict.fromkeys(score.failures.values()):
                alike = [str(seed) for seed, why in score.failures.items() if why == failure]
                named = f"seed{'s' if len(alike) > 1 else ''} {', '.join(alike)}"
                print_text(f"  failed: {score.variant}, {named}. {failure}")
        for note in task.notes:
            print_text(f"  {note}")
    if summary.tasks:
        print_line("\nNext:")
        for task in summary.tasks:
            print_line(f"  open {shlex.quote(f'{summary.folder}/{task.recipe}.html')}")


def _variant_row(variant: Variant) -> dict[str, Any]:
    return {
        "encoder": variant.name,
        "parameters": f"{variant.parameters:,}",
        "steps": f"{variant.steps:,}",
        "tokens": f"{variant.tokens:,}",
        "perplexity": format_number(variant.scores.get("perplexity")).strip(),
        "time": format_duration(variant.seconds),
    }


def score_rows(task: AblatedTask) -> list[dict[str, Any]]:
    """Return the rows of a task's table."""
    from statistics import stdev

    from bertkit.reports.compare import p_text

    rows = []
    for score in task.scores:
        found, several = score.difference, len(score.seed_scores) > 1
        row = {"encoder": score.variant, "mean": format_number(score.mean).strip()}
        row["sd"] = format_number(stdev(score.seed_scores)).strip() if several else ""
        row["difference"] = "" if found is None else f"{found.difference:+.4f}"
        row["95% CI"] = "" if found is None else format_interval(found.interval)
        row["p"] = "" if found is None else p_text(found.p)
        row["p (Holm)"] = "" if found is None or found.p_holm is None else p_text(found.p_holm)
        rows.append(row)
    if task.baseline is not None:
        rows.append(
            {**dict.fromkeys(rows[0], ""), "encoder": "null model", "mean": format_number(task.baseline).strip()}
        )
    unused = {column for column in ("sd", "p (Holm)") if not any(row[column] for row in rows)}
    return [{column: value for column, value in row.items() if column not in unused} for row in rows]


def print_plan(plan: AblationPlan, *, as_json: bool) -> None:
    """Print what an ablation would do."""
    if as_json:
        print_json(dataclasses.asdict(plan))
        return
    rows = [
        {
            "encoder": name,
            "parameters": f"{own.parameters:,}",
            "steps": "" if own.steps is None else f"{own.steps:,}",
            "tokens": f"{own.tokens:,}",
            "time": format_duration(own.seconds),
            "MB": f"{own.disk_bytes / 1e6:,.0f}",
        }
        for name, own in plan.variants.items()
    ]
    print_table("pretraining", rows, max_rows=len(rows))
    for task, counts in plan.rows.items():
        listed = (f"{split} {'streamed' if count is None else f'{count:,}'}" for split, count in counts.items())
        print_text(f"rows     {task}: {', '.join(listed)}")
    print_line(f"runs     {len(rows)} pretrainings, {plan.finetunings} fine-tunings in {plan.folder}")
    print_line("Only the prepared text was kept.")
