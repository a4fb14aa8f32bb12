"""`bertkit prune`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from bertkit.cli.options import (
    ROW_OPTIONS,
    CheckpointRecipeOption,
    ScoringSetOption,
    argument,
    option,
    output_option,
    recipe_options,
)
from bertkit.cli.output import (
    format_difference,
    format_interval,
    format_rows,
    format_score,
    print_next,
    print_notes,
    print_table,
    print_text,
    print_with_gates,
    size_cells,
)
from bertkit.reports.text import p_text

if TYPE_CHECKING:
    from bertkit.workflows.prune import PruneResult

ORDER = 51
EXAMPLE = "bertkit prune runs/cola -o pruned --intermediate 64"


KeptLayersOption = Annotated[
    str | None,
    option("Layers to keep: their number (4, by measured importance) or their indices (0,1,2,5).", "LAYERS", "all"),
]
HeadsOption = Annotated[
    int | None, option("Attention heads to keep per layer, for model types whose config has the head size.", "N", "all")
]
IntermediateOption = Annotated[int | None, option("Feed-forward neurons to keep per layer.", "N", "all")]


@recipe_options(*ROW_OPTIONS, set_option=ScoringSetOption)
def command(
    model: Annotated[str, argument("Run folder, or any checkpoint: directory or Hub name.", "MODEL")],
    output: Annotated[Path, output_option("Folder to write the pruned model to.", "DIR")],
    changes: dict[str, Any],
    layers: KeptLayersOption = None,
    heads: HeadsOption = None,
    intermediate: IntermediateOption = None,
    vocabulary: Annotated[
        list[str] | None,
        option(
            "Texts whose tokens to keep: file, folder, or `train` or `rows` of the data; repeatable.", "FILE", "all"
        ),
    ] = None,
    recipe: CheckpointRecipeOption = None,
    sample: Annotated[int, option("Number of training rows to measure importance on.", "N", min=1)] = 512,
) -> None:
    """Prune a checkpoint to fewer layers, heads, feed-forward neurons or tokens.

    All layers keep the same shape, so transformers can load the result. Size, speed and scores are compared with the
    original model. Fine-tune or distill the result afterwards. For --vocabulary, `train` means the training rows, and
    `rows` the training and validation rows.
    """
    from bertkit.compression.target_shape import make_shape

    shape = make_shape(layers, heads, intermediate, vocabulary)
    from bertkit.workflows.prune import prune

    result = prune(model, output, shape, recipe=recipe, changes=changes, measured_rows=sample)
    print_with_gates(result, print_pruned, result.gates)


def print_pruned(result: PruneResult) -> None:
    """Print the new shape, the size, speed and scores of both models, and the next commands."""
    from bertkit.hardware.speed import describe_spreads

    print_text(f"{result.folder}: pruned from {result.model}")
    basis = f" (selected on {format_rows(result.measured_rows)})" if result.measured_rows else ""
    layers = None if result.layers is None else ", ".join(map(str, result.layers))
    shape = {"layers": layers, "heads per layer": result.heads, "feed-forward neurons per layer": result.intermediate}
    print_notes(f"{name}: {value}{basis}" for name, value in shape.items() if value is not None)
    if result.vocabulary is not None:
        print_text(f"  tokens: {result.vocabulary:,} ({result.texts:,} texts are split as before)")
    models = (("before", result.before), ("after", result.after))
    spreads = ["" if model.spread is None else f"{model.spread:.0%}" for _, model in models]
    sizes = [size_cells(*model) | {"spread": spread} for model, spread in zip(models, spreads, strict=True)]
    print_table("size and speed on this machine", sizes)
    print_notes(describe_spreads(model.spread for _, model in models))
    if result.best_metric is not None:
        title = f"{result.best_metric} on {format_rows(result.rows)} of {result.split} (95% CI)"
        metric = result.best_metric
        table = [
            {"model": name, "score": format_score(model.scores[metric], model.intervals.get(metric))}
            for name, model in models
        ]
        print_table(title, table)
        # The difference is paired by rows, so its interval is narrower than the two intervals above suggest.
        change = result.differences[result.best_metric]
        change_text = f"{format_difference(change.difference)} ({format_interval(change.interval)})"
        print_text(f"  after - before: {change_text}, {change.test} p {p_text(change.p)}")
    if result.changed_rows:
        print_text(f"  {format_rows(result.changed_rows)} of {result.split} are tokenized differently than before")
    print_next(*_next_steps(result))


def _next_steps(result: PruneResult) -> list[str]:
    """Return the commands that train a pruned model again."""
    if result.recipe is None:
        return [f"bertkit finetune RECIPE --model {result.folder}"]
    from bertkit.modeling.sentence.folder import is_sentence_folder

    # The folder has the recipe of the run, so no option has to be repeated.
    recipe = f"{result.folder}/recipe.yaml"
    distill = f"bertkit distill {recipe} --teacher {result.model} --model {result.folder}"
    return [
        f"bertkit finetune {recipe} --model {result.folder} --output {result.folder}-tuned",
        # A sentence model has no logits, so it cannot be the teacher.
        *([] if is_sentence_folder(Path(result.folder)) else [f"{distill} --output {result.folder}-distilled"]),
    ]
