"""Explain what a checkpoint predicts: for each row, what every word adds."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.data.files import first_of
from bertkit.data.sources import ROWS
from bertkit.data.text import Record
from bertkit.errors import UsageError
from bertkit.evaluation.checkpoint import Checkpoint, SavedCheckpoint, find_checkpoint
from bertkit.evaluation.rows_to_predict import Chunk, find_input_files, open_rows, read_chunks
from bertkit.evaluation.scoring import run_model
from bertkit.insight.outcomes import SORTS, find_outcomes
from bertkit.progress import SILENT, stage, use_progress
from bertkit.recipe.records import Recipe
from bertkit.recipe.sections import Row, typed_path
from bertkit.storage.cache import spool_sorted
from bertkit.storage.outputs import claimed, refuse_inputs
from bertkit.tasks import drop_private_keys
from bertkit.workflows.errors import read_predictions

if TYPE_CHECKING:
    from bertkit.insight.explanations import Explanation


@dataclass(frozen=True)
class ExplainedRow:
    """A row, its prediction, and the explanations of it."""

    id: Any
    row: Row
    prediction: dict[str, Any]
    explanations: list[Explanation]
    gold: Any = None

    def as_record(self) -> dict[str, Any]:
        """Return everything as one record that can be written as JSON."""
        gold = {} if self.gold is None else {"gold": self.gold}
        explanations = list(map(asdict, self.explanations))
        return {"id": self.id, **self.row, **gold, **self.prediction, "explanations": explanations}


def explain(
    recipe: Recipe,
    source: str | Path | None = None,
    *,
    row: Row | None = None,
    mistakes: int | None = None,
    limit: int | None = None,
    **settings: Any,
) -> Iterator[ExplainedRow]:
    """Explain the predictions for rows.

    Args:
        recipe: Recipe of the checkpoint.
        source: File of rows to explain (``-`` for standard input).
        row: Row to explain, if there is no file.
        mistakes: Number of rows to explain that the run, the recipe's model, is most confidently wrong about.
        limit: Maximum number of rows of the file.
        settings: Keyword arguments of `bertkit.insight.explanations.explain`.

    Raises:
        BertkitError: If the model or a row cannot be read; see `bertkit.errors`.
    """
    saved = find_checkpoint(recipe)
    if mistakes is not None:
        wrong = _find_mistaken_rows(recipe.model, mistakes)
        chunks = iter([Chunk(str(recipe.model), 0, [dict(row) for row in wrong], wrong)])
    else:
        saved, records = open_rows(saved, source, row)
        chunks = read_chunks(saved, first_of(records, limit), str(source or "--row"))
    first = next(chunks)  # A wrong row is an error before the model is loaded.
    with stage(f"loading {saved.recipe.model_name}"):
        checkpoint = saved.load()
    gold = checkpoint.task.COLUMNS.gold if mistakes else ""
    return _explain_chunks(checkpoint, itertools.chain([first], chunks), gold, **settings)


def explain_records(
    checkpoint: Checkpoint, saved: SavedCheckpoint, records: Iterable[Record], **settings: Any
) -> Iterator[ExplainedRow]:
    """Do what `explain` does with rows in memory and a checkpoint that is loaded already, to be trained."""
    return _explain_chunks(checkpoint, read_chunks(saved, records, ROWS), **settings)


def _explain_chunks(
    checkpoint: Checkpoint, chunks: Iterable[Chunk], gold: str = "", **settings: Any
) -> Iterator[ExplainedRow]:
    """Predict and explain chunks of rows; `gold` is a column to show."""
    from bertkit.insight import explanations

    task = checkpoint.task
    for chunk in chunks:
        rows = chunk.rows
        features = task.encode(rows, checkpoint.setup)
        with use_progress(SILENT):
            outputs, _ = run_model(checkpoint, features, "")
        predictions = task.decode(outputs, features, rows, checkpoint.setup)
        # A row may have several features, such as windows or choices: an explanation is about one of them.
        features_by_row: list[list[int]] = [[] for _ in rows]
        for index, feature in enumerate(features):
            features_by_row[feature["row"]].append(index)
        with stage("explaining", len(rows)) as tick:
            answers = zip(chunk.originals, rows, predictions, features_by_row, strict=True)
            for index, (original, row, prediction, indices) in enumerate(answers, chunk.start):
                name = row.get("id", original.get("id", index))
                answered = explanations.Answered(
                    row, prediction, [features[i] for i in indices], [outputs[i] for i in indices]
                )
                explained = explanations.explain(checkpoint, answered, **settings)
                yield ExplainedRow(name, original, drop_private_keys(prediction), explained, original.get(gold))
                tick(1)


def write_page(rows: Iterable[ExplainedRow], output: str | Path, recipe: Recipe, source: str | Path | None) -> int:
    """Write a page with explained rows that opens from disk, and return how many there are.

    Raises:
        UsageError: the output is not an ``.html`` file, or is a file that is read.
    """
    from bertkit.reports.explain import write_explanations

    output = typed_path(output)
    refuse_inputs(output, find_input_files(source, find_checkpoint(recipe)))
    with claimed(output):
        found = [row.as_record() for row in rows]
        write_explanations(output, found, model=recipe.model_name)
    return len(found)


def _find_mistaken_rows(path: str | Path, count: int) -> list[Row]:
    """Return the rows that a run is most confidently wrong about, from the predictions that it has stored.

    Where the rows of a query are judged together, all of them are returned.

    Raises:
        UsageError: it has got nothing wrong, or has stored no predictions.
    """
    scorer, run, rows = read_predictions(path)
    outcomes = find_outcomes(scorer, run, rows)
    answered = zip(outcomes.answers, outcomes.units, strict=True)
    wrong = spool_sorted((pair for pair in answered if pair[0].error > 0), lambda pair: SORTS["confidence"](pair[0]))
    if not wrong:
        raise UsageError("no row is wrong", "explain others with --text or --data", file=path)
    return [rows[number] for _, numbers in wrong[:count] for number in numbers]
