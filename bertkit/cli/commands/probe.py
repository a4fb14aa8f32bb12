"""`bertkit probe`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from bertkit.cli.options import (
    RECIPE_NAME,
    AnsweringSetOption,
    DataOption,
    EncoderOption,
    PageOption,
    PrecisionOption,
    TextLengthOption,
    argument,
    merge_changes,
    option,
)
from bertkit.cli.output import format_count, format_signed, print_notes, print_result, print_table, print_text

if TYPE_CHECKING:
    from bertkit.workflows.probe import ProbeResult

ORDER = 32
EXAMPLE = "bertkit probe pos --model demo --data demo --output probe.html"


def command(
    task: Annotated[
        str,
        argument(
            "A recipe whose labels are probed, or a task that is made from the rows: length, content, shift; with "
            "columns of Universal Dependencies also depth, arcs, relations, tense, number.",
            "RECIPE",
            **RECIPE_NAME,
        ),
    ],
    model: EncoderOption,
    data: DataOption = None,
    limit: Annotated[int, option("Learn from N rows, drawn by their content; score half as many.", "N")] = 2000,
    items: Annotated[int, option("At most so many words, or pairs of words, per probe.", "N")] = 20_000,
    seeds: Annotated[int, option("Train N probes per layer: each draws its rows and its control task.", "N")] = 3,
    metric: Annotated[
        str | None,
        option(
            "What probes are scored by: accuracy, f1_macro, ...; of numbers, spearmanr, pearsonr or r2.",
            "METRIC",
            "the first of the recipe's that fits",
        ),
    ] = None,
    max_length: TextLengthOption = None,
    precision: PrecisionOption = "auto",
    changes: AnsweringSetOption = None,
    output: PageOption = None,
) -> None:
    """Show what each layer of an encoder knows, by linear probes.

    Of each layer: the score with its interval, selectivity beside a control task, and how short a code of the labels
    becomes. Vectors of all layers are computed once and kept.
    """
    from bertkit.reports.insight.probe import write_probe
    from bertkit.workflows.probe import ProbeSettings, load_probe_recipe, probe

    recipe = load_probe_recipe(task, merge_changes({"model": model, "data.source": data}, changes))
    settings = ProbeSettings(metric, seeds, limit, items, max_length, precision)
    result = probe(recipe, settings)
    print_result(result, print_probe, page=output, write=write_probe)


def print_probe(result: ProbeResult) -> None:
    """Print what probes score at each layer, what stands beside that, and where in the layers it is."""
    from bertkit.reports.insight.probe import count_items, describe_control

    probed = result.probed
    seeds = format_count(result.seeds, "seed")
    print_text(f"{result.task} in {result.model}: {result.about}")
    print_text(
        f"  a probe learns from {count_items(probed.train_items, result.unit)} of {result.train_rows:,} rows; "
        f"{count_items(probed.test_items, result.unit)} of {result.test_rows:,} others are scored; {seeds}"
    )
    # Layer 0 is the word embeddings. The best layer has a star, and "in the mix" is its share of a mix of all layers.
    table = [
        {
            "layer": f"{'* ' if layer.layer == probed.best_layer else '  '}{layer.layer or '0 (embeddings)'}",
            result.metric: layer.score,
            "95% CI": layer.interval,
            "control": layer.control,
            "selectivity": format_signed(layer.selectivity),
            "code, kbit": None if layer.bits is None else f"{layer.bits / 1000:.2f}",
            "compression": None if layer.compression is None else f"{layer.compression:.2f}",
            "in the mix": f"{share:.0%}",
        }
        for layer, share in zip(probed.layers, probed.mixing, strict=True)
    ]
    print_table("what a linear probe scores at each layer", table, len(table))
    print_notes(f"{name}: {score:.4f}" for name, score in probed.baselines.items())
    print_text(f"  control task: {describe_control(result.control, result.group)}")
    deviation = "" if probed.center_deviation is None else f", standard deviation {probed.center_deviation:.2f}"
    print_text(
        f"  best layer: {probed.best_layer}; center of gravity of the mix: {probed.center_of_gravity:.2f}{deviation}"
    )
    print_notes(f"note: {note}" for note in probed.notes)
