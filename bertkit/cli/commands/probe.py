"""`bertkit probe`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from bertkit.cli.options import (
    RECIPE_NAME,
    EncoderOption,
    PageOption,
    PrecisionOption,
    ScoringSetOption,
    TextLengthOption,
    argument,
    option,
    recipe_options,
)
from bertkit.cli.output import format_difference, print_notes, print_result, print_table, print_text

if TYPE_CHECKING:
    from bertkit.workflows.probe import ProbeResult

ORDER = 32
EXAMPLE = "bertkit probe pos --model demo --data demo --output probe.html"


@recipe_options("data", set_option=ScoringSetOption)
def command(
    task: Annotated[
        str,
        argument(
            "Recipe whose labels are probed, or a task made from the rows: length or shift; with columns of Universal "
            "Dependencies also depth, relations or tense.",
            "RECIPE",
            **RECIPE_NAME,
        ),
    ],
    model: EncoderOption,
    changes: dict[str, Any],
    limit: Annotated[int, option("Maximum training rows; half as many others are scored.", "N", min=1)] = 2000,
    items: Annotated[int, option("Maximum number of words, or pairs of words, per probe.", "N", min=1)] = 20_000,
    metric: Annotated[
        str | None,
        option(
            "Metric of the probes: accuracy, f1_macro, ...; for numbers, spearmanr, pearsonr or r2.",
            "METRIC",
            "the first of the recipe's that fits",
        ),
    ] = None,
    max_length: TextLengthOption = None,
    precision: PrecisionOption = "auto",
    output: PageOption = None,
) -> None:
    """Show what each layer of an encoder knows, by linear probes.

    Prints each layer's score with its interval, and its selectivity: the lead over a control task. Vectors of all
    layers are computed once and cached.
    """
    from bertkit.reports.probe import write_probe
    from bertkit.workflows.probe import load_probe_recipe, probe

    recipe = load_probe_recipe(task, {"model": model, **changes})
    result = probe(recipe, metric=metric, limit=limit, items=items, max_length=max_length, precision=precision)
    print_result(result, print_probe, page=output, write=write_probe)


def print_probe(result: ProbeResult) -> None:
    """Print the score of each layer with its baselines, and the center of gravity."""
    from bertkit.reports.probe import describe_control, format_count

    # A probe is a linear classifier on the frozen vectors of one layer: what it can read is there in a simple form.
    probed = result.probed
    print_text(f"{result.task} in {result.model}: {result.about}")
    print_text(
        f"  a probe learns from {format_count(probed.train_items, result.unit)} of {result.train_rows:,} rows; "
        f"{format_count(probed.test_items, result.unit)} of {result.test_rows:,} others are scored"
    )
    # Layer 0 is the word embeddings. The best layer has a star.
    table = [
        {
            "layer": f"{'* ' if layer.layer == probed.best_layer else '  '}{layer.layer or '0 (embeddings)'}",
            result.metric: layer.score,
            "95% CI": layer.interval,
            "control": layer.control,
            # Score minus control: what the layer knows, and not what the probe can memorize (Hewitt and
            # Liang 2019).
            "selectivity": format_difference(layer.selectivity),
        }
        for layer in probed.layers
    ]
    print_table("scores of a linear probe at each layer", table, len(table))
    print_notes(f"{name}: {score:.4f}" for name, score in probed.baselines.items())
    print_text(f"  control task: {describe_control(result.control, result.group)}")
    # The center of gravity is the mean layer, weighted by how much each one contributes (Tenney et al. 2019).
    # Syntax is usually lower than meaning.
    print_text(f"  best layer: {probed.best_layer}; center of gravity: {probed.center_of_gravity:.2f}")
    print_notes(f"note: {note}" for note in probed.notes)
