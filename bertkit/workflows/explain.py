"""Explain the predictions of a checkpoint: the contribution of each word of a row."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.analysis.outcomes import SORTS, find_outcomes
from bertkit.data.files import take_first
from bertkit.errors import UsageError
from bertkit.evaluation.checkpoint import Checkpoint, find_checkpoint
from bertkit.evaluation.rows_to_predict import Chunk, open_rows, read_chunks
from bertkit.evaluation.scoring import run_model
from bertkit.progress import SILENT, stage, use_progress
from bertkit.recipe.records import Recipe
from bertkit.recipe.sections import Row
from bertkit.storage.disk import sort_on_disk
from bertkit.storage.outputs import lock_output
from bertkit.tasks import drop_private_keys
from bertkit.workflows.errors import read_predictions

if TYPE_CHECKING:
    from bertkit.analysis.explanations import Explanation


@dataclass(frozen=True)
class ExplainedRow:
    """A row with its prediction and the explanations of the prediction."""

    id: Any
    row: Row
    prediction: dict[str, Any]
    explanations: list[Explanation]
    gold: Any = None

    def as_record(self) -> dict[str, Any]:
        """Return the row, the prediction and the explanations as one JSON record."""
        gold = {} if self.gold is None else {"gold": self.gold}
        explanations = list(map(asdict, self.explanations))
        return {"id": self.id, **self.row, **gold, **self.prediction, "explanations": explanations}


def explain(
    recipe: Recipe,
    *,
    source: str | Path | None = None,
    row: Row | None = None,
    errors: int | None = None,
    limit: int | None = None,
    **settings: Any,
) -> Iterator[ExplainedRow]:
    """Explain the predictions for the rows of a file, for a single row, or for mistakes of a run.

    Args:
        recipe: Recipe of the checkpoint.
        source: File with rows, or ``-`` for standard input.
        row: A row by its canonical columns.
        errors: Number of wrong rows of the run to explain, the most confident predictions first.
        limit: Maximum number of rows of the file, from its start.
        settings: Keyword arguments of `bertkit.analysis.explanations.explain`.

    Raises:
        BertkitError: If the model or a row cannot be read; see `bertkit.errors`.
    """
    # 1. Read the first rows. A wrong row is an error before the model is loaded.
    info = find_checkpoint(recipe)
    gold = ""
    if errors is not None:
        gold = info.task.COLUMNS.gold
        rows = _find_mistaken_rows(recipe.model, errors)
        chunks = iter([Chunk(str(recipe.model), 0, list(map(dict, rows)), rows)])
    else:
        info, records = open_rows(info, source, row)
        chunks = read_chunks(info, take_first(records, limit), str(source or "--row"))
    first_chunk = next(chunks)

    # 2. Load the model as for training, because explanations need gradients, and explain chunk by chunk.
    with stage(f"loading {info.recipe.model_name}"):
        checkpoint = info.load()
    return explain_chunks(checkpoint, itertools.chain([first_chunk], chunks), gold, **settings)


def explain_chunks(
    checkpoint: Checkpoint, chunks: Iterable[Chunk], gold: str = "", **settings: Any
) -> Iterator[ExplainedRow]:
    """Explain the predictions for rows. The checkpoint must not be loaded with ``inference=True``.

    Args:
        checkpoint: Model.
        chunks: Rows.
        gold: Column with gold answers, or "" if the rows have none.
        settings: Keyword arguments of `bertkit.analysis.explanations.explain`.
    """
    from bertkit.analysis import explanations

    for chunk in chunks:
        features = checkpoint.task.encode(chunk.rows, checkpoint.context)
        with use_progress(SILENT):
            outputs, _ = run_model(checkpoint, features, "")
        predictions = checkpoint.task.decode(outputs, features, chunk.rows, checkpoint.context)
        # A row can have several features, such as windows or choices; `explanations.explain` selects among them.
        row_positions: list[list[int]] = [[] for _ in chunk.rows]
        for position, feature in enumerate(features):
            row_positions[feature["row"]].append(position)
        with stage("explaining", len(chunk.rows)) as advance:
            for index, (original, row) in enumerate(zip(chunk.originals, chunk.rows, strict=True)):
                row_features = [features[position] for position in row_positions[index]]
                row_outputs = [outputs[position] for position in row_positions[index]]
                predicted_row = explanations.PredictedRow(row, predictions[index], row_features, row_outputs)
                yield ExplainedRow(
                    row.get("id", original.get("id", chunk.start + index)),
                    original,
                    drop_private_keys(predicted_row.prediction),
                    explanations.explain(checkpoint, predicted_row, **settings),
                    original.get(gold),
                )
                advance(1)


def write_page(rows: Iterable[ExplainedRow], output: Path, model: str) -> int:
    """Write a page with explained rows that opens from disk, and return the number of rows."""
    from bertkit.reports.explain import write_explanations

    with lock_output(output):
        records = [row.as_record() for row in rows]
        write_explanations(output, records, model=model)
    return len(records)


def _find_mistaken_rows(path: str | Path, count: int) -> list[Row]:
    """Return the rows with the most confident wrong predictions of a run, from its stored predictions.

    If an error concerns several rows, such as the passages of a query, all of them are returned.

    Raises:
        UsageError: If no row is wrong.
        BertkitError: If the run has no predictions; see `read_predictions`.
    """
    scorer, run, rows = read_predictions(path)
    outcomes = find_outcomes(scorer, run, rows)
    pairs = zip(outcomes.answers, outcomes.units, strict=True)
    mistakes = sort_on_disk((pair for pair in pairs if pair[0].error > 0), lambda pair: SORTS["confidence"](pair[0]))
    if not mistakes:
        raise UsageError("no row is wrong", "explain others with --text or --data", file=path)
    return [rows[index] for _, indices in mistakes[:count] for index in indices]
