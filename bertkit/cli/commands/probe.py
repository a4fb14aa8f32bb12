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
            "Recipe whose labels to probe, or length, shift, depth, relations or tense.",
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
            "first suitable metric of the recipe",
        ),
    ] = None,
    max_length: TextLengthOption = None,
    precision: PrecisionOption = "auto",
    output: PageOption = None,
) -> None:
    """Measure what each layer of an encoder knows, with linear probes.

    Prints each layer's score with its interval, and its selectivity, the difference from the score of a control task.
    Vectors of all layers are computed once and cached. The tasks length and shift need only texts; depth, relations and
    tense need columns of Universal Dependencies.
    """
    from bertkit.reports.probe import write_probe
    from bertkit.workflows.probe import load_probe_recipe, probe

    recipe = load_probe_recipe(task, {"model": model, **changes})
    result = probe(recipe, metric=metric, limit=limit, items=items, max_length=max_length, precision=precision)
    print_result(result, print_probe, page=output, write=write_probe)


def print_probe(result: ProbeResult) -> None:
    """Print the score of each layer, the baselines, and the center of gravity."""
    from bertkit.reports.probe import describe_control, format_count

    # A probe is a linear classifier on the frozen vectors of one layer, so it finds what they encode in a simple form.
    probes = result.probed
    print_text(f"{result.task} in {result.model}: {result.about}")
    print_text(
        f"  each probe is trained on {format_count(probes.train_items, result.unit)} of {result.train_rows:,} rows, "
        f"and scored on {format_count(probes.test_items, result.unit)} of {result.test_rows:,} others"
    )
    # Layer 0 is the word embeddings. The best layer has a star.
    table = [
        {
            "layer": f"{'* ' if layer.layer == probes.best_layer else '  '}{layer.layer or '0 (embeddings)'}",
            result.metric: layer.score,
            "95% CI": layer.interval,
            "control": layer.control,
            # Score minus control: knowledge of the layer without what the probe memorizes (Hewitt and Liang 2019).
            "selectivity": format_difference(layer.selectivity),
        }
        for layer in probes.layers
    ]
    print_table("scores of a linear probe at each layer", table, len(table))
    print_notes(f"{name}: {score:.4f}" for name, score in probes.baselines.items())
    print_text(f"  control task: {describe_control(result.control, result.group)}")
    # The center of gravity is the mean layer, weighted as in a probe that mixes all layers (Tenney et al. 2019). It is
    # usually lower for syntax than for meaning.
    print_text(f"  best layer: {probes.best_layer}; center of gravity: {probes.center_of_gravity:.2f}")
    print_notes(f"note: {note}" for note in probes.notes)
