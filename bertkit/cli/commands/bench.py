"""`bertkit bench`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from bertkit.cli.options import (
    FROM_RECIPE,
    RECIPE_NAME,
    DataOption,
    LimitOption,
    MaxLengthOption,
    ModelOption,
    SetOption,
    argument,
    load,
    option,
    output_option,
    refuse_options,
)
from bertkit.cli.output import format_rows, format_signed, print_notes, print_result, print_table, print_text
from bertkit.reports.text import duration_text

if TYPE_CHECKING:
    from bertkit.workflows.bench import Bench, Deployed, Deployment, Speed

ORDER = 55
EXAMPLE = "bertkit bench cola --model demo --data demo"


def command(
    recipe: Annotated[
        str | None,
        argument(
            "A shipped recipe (see `bertkit recipes list`) or a YAML file.",
            "RECIPE",
            show_default="cola",
            **RECIPE_NAME,
        ),
    ] = None,
    model: ModelOption = None,
    data: DataOption = None,
    precision: Annotated[
        list[str] | None,
        option("fp32, bf16 or auto; repeat it to compare.", "PRECISION", "fp32, and bf16 if it is fast here"),
    ] = None,
    batch_size: Annotated[
        list[int] | None, option("Rows per optimizer step; repeat it to compare.", "N", FROM_RECIPE)
    ] = None,
    steps: Annotated[int, option("Steps to time, after three warm-up steps.", "N")] = 20,
    max_length: MaxLengthOption = None,
    limit: LimitOption = None,
    changes: SetOption = None,
    deployed: Annotated[
        list[str] | None,
        option(
            "Measure the ways to deploy a run or an exported folder; repeat it to compare several.",
            "RUN",
            names=("--deploy",),
        ),
    ] = None,
    output: Annotated[Path | None, output_option("With --deploy: write a page to this .html file.", "FILE")] = None,
) -> None:
    """Measure a model's training speed and memory use, or with --deploy the ways to deploy a run.

    Times some real training steps on this machine for each precision and batch size, and estimates from them how
    long the whole training would take. Nothing is saved. Options override the recipe.

    With --deploy, a run is measured in torch and as the graphs that export and quantize make of it: size, time and
    score. RECIPE is then that of checkpoints that are not runs.
    """
    if deployed:
        others = {"--model": model, "--precision": precision, "--batch-size": batch_size, "--max-length": max_length}
        remedy = "a run is measured as it was trained; leave the option out"
        refuse_options({**others, "--set": changes}, "with --deploy", remedy)
        _bench_formats(deployed, recipe, data, limit, output)
        return
    refuse_options({"--output": output}, "without --deploy", "the page is that of --deploy RUN")
    recipe = recipe or "cola"
    settings = {"model": model, "data.source": data, "data.limit": limit, "training.max_length": max_length}
    # Every batch size with every precision; without options, what the recipe says.
    recipes = [
        load(recipe, {**settings, "training.precision": dtype, "training.batch_size": rows}, changes)
        for rows in dict.fromkeys(batch_size or ()) or (None,)
        for dtype in dict.fromkeys(precision or ()) or (None,)
    ]
    from bertkit.workflows.bench import bench

    print_result(bench(recipes, steps=steps), print_bench)


def _bench_formats(
    models: list[str], recipe: str | None, data: str | None, limit: int | None, output: Path | None
) -> None:
    from bertkit.recipe.sections import typed_path
    from bertkit.reports.deploy import write_deployment
    from bertkit.storage.outputs import check_page
    from bertkit.workflows.bench import deploy

    page = None if output is None else check_page(output, [("the model", typed_path(model)) for model in models])
    deployment = deploy(models, recipe=recipe, data=data, limit=limit)
    print_result(deployment, _print_deployment, page=page, write=write_deployment)


def _print_deployment(deployment: Deployment) -> None:
    from bertkit.hardware.speed import describe_spreads

    print_text(
        f"{deployment.recipe}, {deployment.split}: {format_rows(deployment.rows)}, threads: {deployment.threads}"
    )
    print_text(f"  score: {deployment.metric}; ms: one row; *: none is both faster and better")
    for name in dict.fromkeys(way.model for way in deployment.ways):
        print_table(name, [_way_line(way) for way in deployment.ways if way.model == name])
    print_notes(f"not measured: {note}" for note in deployment.notes)
    spreads = [way.spread for way in deployment.ways if way.spread is not None]
    print_notes(describe_spreads(spreads) or [f"rounds of timing differ by up to {max(spreads, default=0):.0%}"])


def _way_line(way: Deployed) -> dict[str, Any]:
    return {
        "way": way.way,
        "MB": f"{way.bytes / 1e6:,.1f}",
        "ms": f"{way.row_milliseconds:.2f}",
        "rows/s": f"{way.rows_per_second:,.0f}",
        "score": way.score,
        "change": format_signed(way.difference),
        "95% CI": way.interval,
        "": "*" if way.is_best else "",
    }


def print_bench(bench: Bench) -> None:
    """Print one line per precision and batch size: first the training speed, then the estimated times."""
    print_text(
        f"{bench.recipe}, {bench.model}: {bench.rows:,} rows of {bench.tokens:,} tokens, {bench.epochs:g} epochs"
    )
    steps = max(speed.steps for speed in bench.speeds)
    title = f"training speed, measured over {steps} steps" if steps else "training speed"
    print_table(title, [_speed_line(speed, is_fastest=speed is bench.fastest) for speed in bench.speeds])
    print_table("evaluation speed and estimated times", [_time_line(speed) for speed in bench.speeds])
    print_notes(dict.fromkeys(note for speed in bench.speeds for note in speed.notes))
    print_text("  The recipe's time includes evaluation, but not startup, scoring and saving.")


def _speed_line(speed: Speed, *, is_fastest: bool) -> dict[str, Any]:
    return {
        "precision": speed.precision,
        "batch": speed.batch_size,
        "tokens/s": _format_value(speed.tokens_per_second, "{:,.0f}"),
        "rows/s": _format_value(speed.rows_per_second, "{:,.1f}"),
        "padding": _format_value(speed.padding_share, "{:.1%}"),
        "of peak": _format_value(speed.peak_share, "{:.1%}"),
        "memory": "-" if speed.peak_memory_bytes is None else f"{speed.peak_memory_bytes / 1e6:,.0f} MB",
        "": "fastest" if is_fastest else "",
    }


def _time_line(speed: Speed) -> dict[str, Any]:
    return {
        "precision": speed.precision,
        "batch": speed.batch_size,
        "evaluation rows/s": _format_value(speed.evaluation_rows_per_second, "{:,.1f}"),
        "epoch": duration_text(speed.epoch_seconds),
        "recipe": duration_text(speed.recipe_seconds),
    }


def _format_value(value: float | None, template: str) -> str:
    return "-" if value is None else template.format(value)
