"""`bertkit ablate`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from bertkit.cli.commands.finetune import parse_seeds
from bertkit.cli.commands.pretrain import (
    CorpusOption,
    PretrainingRecipeArgument,
    SizeOption,
    StepsOption,
    TokenizerOption,
)
from bertkit.cli.options import DryRunOption, option, output_option, recipe_options
from bertkit.cli.output import (
    difference_cells,
    format_count,
    format_rows,
    format_splits,
    print_line,
    print_next,
    print_notes,
    print_plan,
    print_result,
    print_table,
    print_text,
)
from bertkit.errors import UsageError
from bertkit.reports.text import duration_text

ORDER = 16
EXAMPLE = "bertkit ablate mlm --data text.txt --tokenizer tok --space objective=nsp,mlm,clm --finetune sst2"


@recipe_options("seed", data=CorpusOption, size=SizeOption, tokenizer=TokenizerOption, steps=StepsOption)
def command(
    recipe: PretrainingRecipeArgument,
    space: Annotated[
        list[str],
        option("Recipe key and the values to compare, with the baseline first; repeatable.", "KEY=VALUE,VALUE"),
    ],
    finetune: Annotated[
        list[str],
        option("Recipe to fine-tune each encoder with: sst2, or 'sst2 data.limit=5000'; repeatable.", "RECIPE"),
    ],
    changes: dict[str, Any],
    seeds: Annotated[str, option("Seeds of each fine-tuning: their number (5) or a list (1,2,7).", "N|LIST")] = "5",
    output: Annotated[Path | None, output_option("Folder of all runs.", "DIR", "runs/RECIPE-ablation")] = None,
    dry_run: DryRunOption = False,
) -> None:
    """Pretrain several encoders, fine-tune each on the same tasks, and compare them.

    --space names the settings that differ, such as the objective, the masking rate or the size. All other options
    apply to all pretrainings. After an interruption, the same command resumes.
    """
    from bertkit.recipe.space import parse_sweep_space

    search = parse_sweep_space("grid", space, None)
    seed_list = parse_seeds(seeds)
    tasks = list(map(parse_finetuning, finetune))
    from bertkit.workflows.ablate import ablate, check_ablation
    from bertkit.workflows.ablate import dry_run as plan_ablation

    # All recipes are checked first, because a typo in the last --finetune would otherwise show after days.
    job = check_ablation(recipe, search, tasks, changes, output)
    if dry_run:
        print_result(plan_ablation(job, seed_list), print_ablation_plan)
        return
    summary, error = ablate(job, seed_list)
    print_result(summary, print_ablation, error=error)


def parse_finetuning(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name of a recipe and the settings that follow it.

    Raises:
        UsageError: If the text does not start with the name of a recipe.
        RecipeError: If a setting is not key=value.

    >>> parse_finetuning("sst2 data.limit=5000 training.epochs=2")
    ('sst2', {'data.limit': 5000, 'training.epochs': 2})
    """
    from bertkit.recipe.load import parse_changes

    try:
        # Split as a shell does, so that a value in quotes can contain spaces: 'my.yaml "labels=[a, b]"'.
        name, *settings = shlex.split(text)
    except ValueError:
        name, settings = "", []
    if not name or "=" in name:
        raise UsageError(f"--finetune {text!r} names no recipe", "write e.g. --finetune 'sst2 data.limit=5000'")
    return name, parse_changes(settings)


def print_ablation(summary: Mapping[str, Any]) -> None:
    """Print how each encoder was pretrained, and a table of scores for each task."""
    variants, folder = summary["variants"], summary["folder"]
    print_text(f"{summary['recipe']}: {len(variants)} encoders, by {', '.join(summary['space'])}")
    rows = [
        {
            "encoder": variant["name"],
            "parameters": variant["parameters"],
            "steps": variant["steps"],
            "tokens": variant["tokens"],
            "perplexity": variant["scores"].get("perplexity"),
            "time": duration_text(variant["seconds"]),
        }
        for variant in variants
        # An encoder that failed before its first step has no scores; a note below the table gives the reason.
        if variant["steps"]
    ]
    print_table("pretraining", rows)
    print_notes(f"failed: {variant['name']}. {variant['failure']}" for variant in variants if variant["failure"])
    for task in summary["tasks"]:
        seeds = format_count(len(summary["seeds"]), "seed")
        print_text(f"{task['recipe']}, {task['split']}: {format_rows(task['rows'])}, {seeds}")
        # Intervals of differences are over seeds and rows, because the seed of a fine-tuning changes scores by as much
        # as many ablations do (Dodge et al. 2020).
        baseline = task["scores"][0]["variant"]
        print_table(f"{task['metric']}, and its difference from {baseline}", list(map(_score_row, task["scores"])))
        print_notes(task["notes"])
    if pages := [shlex.quote(f"{folder}/{task['recipe']}.html") for task in summary["tasks"]]:
        print_next(*(f"open {page}" for page in pages))


def _score_row(score: Mapping[str, Any]) -> dict[str, Any]:
    from statistics import stdev

    seeds = score["seed_scores"]
    row = {"encoder": score["variant"], "mean": score["mean"], "sd": stdev(seeds) if len(seeds) > 1 else ""}
    return row | difference_cells(score["difference"])


def print_ablation_plan(plan: Mapping[str, Any]) -> None:
    """Print the pretrainings and fine-tunings of a planned ablation."""
    rows = [
        {
            "encoder": name,
            "parameters": estimate.parameters,
            "steps": "" if estimate.steps is None else estimate.steps,
            "tokens": estimate.tokens,
            "time": duration_text(estimate.seconds),
            "MB": f"{estimate.disk_bytes / 1e6:,.0f}",
        }
        for name, estimate in plan["variants"].items()
    ]
    print_table("pretraining", rows, max_rows=len(rows))
    for task, counts in plan["rows"].items():
        print_plan({"rows": f"{task}: {format_splits(counts)}"})
    print_plan({"runs": f"{len(rows)} pretrainings, {plan['finetunings']} fine-tunings in {plan['folder']}"})
    print_line("Only the prepared text was kept.")
