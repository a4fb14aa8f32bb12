"""Export a fine-tuned model in int8 or bf16; what loses too much of the score is not written."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from bertkit.errors import DataError, ModelError, UsageError
from bertkit.evaluation.checkpoint import Checkpoint, SavedCheckpoint
from bertkit.evaluation.parity import Parity
from bertkit.evaluation.splits import read_task_splits
from bertkit.metrics.basic import is_lower_better
from bertkit.progress import stage
from bertkit.runtime.sessions import check_backend
from bertkit.workflows.export import (
    ExportResult,
    GraphFormat,
    Source,
    find_split,
    input_names,
    load_plain,
    open_source,
    texts_of,
    write_graph,
)

TARGETS = {"onnx-int8": ("onnx", "int8"), "openvino-int8": ("openvino", "int8"), "openvino-bf16": ("openvino", "bf16")}
"""What `--to` takes -> backend and precision."""
LEAST_COSINE = 0.98


class MarginError(ModelError):
    """A quantized model that loses too much; `parity` has how much."""

    def __init__(self, what: str, remedy: str, parity: Parity) -> None:
        super().__init__(what, remedy)
        self.parity = parity


def quantize(
    source: Source, output: str | Path, *, to: str = "openvino-int8", margin: float = 0.01, rows: int = 256
) -> ExportResult:
    """Export a model as `bertkit.workflows.export.export` does, in fewer bits.

    Args:
        source: the model, and the rows to calibrate and to score on.
        output: the folder to write, which must not exist.
        to: one of `TARGETS`.
        margin: how much the score may lose, as a share of its highest value; the 95% interval of the loss counts.
        rows: how many training rows tell the ranges of activations.

    Raises:
        MarginError: the score may lose more than the margin, or a vector has a cosine below `LEAST_COSINE`.
        BertkitError: any other of the kind that fits; see `bertkit.errors`.
    """
    if not 0 < margin < 1 or rows < 1:
        raise UsageError(f"--margin {margin:g}, --rows {rows}", "give a margin between 0 and 1, and at least one row")
    backend, precision = TARGETS[to]
    check_backend(backend, quantizes=precision == "int8")
    folder, saved = open_source(source, output)
    scored = find_split(saved, required=True)
    training = read_training_rows(saved, rows) if precision == "int8" else []
    with stage(f"loading {saved.recipe.model_name}"):
        before = load_plain(saved)
    # int8 needs the ranges of activations, which training rows tell. Rows to score must not: they judge the result.
    calibration = calibration_texts(before, training) if precision == "int8" else None
    judge = partial(refuse_loss, saved=saved, margin=margin)
    return write_graph(saved, before, folder, GraphFormat(backend, precision, calibration), scored, judge)


def read_training_rows(saved: SavedCheckpoint, count: int) -> list[Any]:
    """Read some training rows, evenly spread over all of them.

    Raises:
        DataError: there are none.
    """
    recipe, task = saved.recipe, saved.task
    splits = read_task_splits(recipe, task, lambda name: name == "train")
    if not splits:
        raise DataError("no training rows, which tell the ranges of activations", "name some with --data")
    rows = splits["train"].rows
    # Spread over the file, for rows may be sorted by label.
    return list(rows[:: max(1, len(rows) // count)][:count])


def calibration_texts(before: Checkpoint, rows: list[Any]) -> list[dict[str, Any]]:
    """Return the texts of rows as a graph reads them, to calibrate int8 on."""
    inputs = [{name: value for name, value in row.items() if name != before.task.COLUMNS.gold} for row in rows]
    return texts_of(before, inputs, input_names(before), reads_rows=getattr(before.model, "reads", "text") == "windows")


def refuse_loss(parity: Parity, *, saved: SavedCheckpoint, margin: float) -> None:
    """Check that a model in fewer bits says about the same; raises `MarginError`."""
    metric = saved.recipe.best_metric
    found, highest = parity.scores[metric], saved.task.HIGHEST
    # The end of the interval and not the score: a loss that the rows cannot exclude counts.
    ends = found["interval"] or [found["difference"], found["difference"]]
    loss = max(ends) if is_lower_better(metric) else -min(ends)
    remedy = "nothing was written; choose another --to, or a larger --margin"
    if not loss <= margin * highest:
        what = f"{metric} may lose {loss:.4f} (the end of its 95% interval), and the margin is {margin * highest:g}"
        raise MarginError(what, remedy, parity)
    # Where activations are scaled batch by batch, an answer depends on its neighbors.
    alone = parity.flips.get("alone", 0)
    if alone > margin * parity.rows:
        what = f"{alone} of {parity.rows:,} rows get another label alone than in a batch"
        raise MarginError(what, remedy, parity)
    if parity.least_cosine is not None and not parity.least_cosine >= LEAST_COSINE:
        what = f"the least cosine of vectors is {parity.least_cosine:.4f}, below {LEAST_COSINE}"
        raise MarginError(what, "nothing was written; choose another --to", parity)
