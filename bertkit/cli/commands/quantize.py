"""`bertkit quantize`."""

from __future__ import annotations

from typing import Annotated, Literal

from bertkit.cli.commands.export import NewFolderOption, print_export, print_parity
from bertkit.cli.options import CheckpointRecipeOption, LimitOption, TrainedArgument, option
from bertkit.cli.output import print_gated, print_result

ORDER = 53
EXAMPLE = "bertkit quantize runs/cola --to openvino-int8 --output exported/cola-int8"


def command(
    run: TrainedArgument,
    output: NewFolderOption,
    to: Annotated[
        Literal["onnx-int8", "openvino-int8", "openvino-bf16"],
        option("What runs it, and in which precision.", "TARGET"),
    ] = "openvino-int8",
    margin: Annotated[float, option("The share of the score that may be lost, with 95% confidence.", "P")] = 0.01,
    rows: Annotated[int, option("Training rows that tell the ranges of activations.", "N")] = 256,
    recipe: CheckpointRecipeOption = None,
    data: Annotated[str | None, option("Rows to calibrate and score on.", "DATA", "those of the run")] = None,
    limit: LimitOption = None,
) -> None:
    """Export a fine-tuned model in int8 or bf16, unless it loses too much.

    Both models are scored on validation rows. Nothing is written unless the paired 95% interval of the loss is within
    the margin, and, of vectors, the least cosine is at least 0.98.
    """
    from bertkit.workflows.export import Source
    from bertkit.workflows.quantize import MarginError, quantize

    try:
        exported = quantize(Source(run, recipe, data, limit), output, to=to, margin=margin, rows=rows)
    except MarginError as error:
        parity = error.parity
        print_result({"parity": parity}, lambda _: print_parity(parity, to), error=error)
        return
    print_gated(exported, print_export, exported.gates)
