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
from bertkit.recipe import Recipe, Row, typed_path
from bertkit.storage.cache import spool_sorted
from bertkit.storage.outputs import claimed, refuse_inputs
from bertkit.tasks import drop_private_keys
from bertkit.workflows.errors import read_predictions

if TYPE_CHECKING:
    from bertkit.insight.explanations import Answered, Explanation


@dataclass(frozen=True)
class AskedRows:
    """What is to be explained: the rows of a file (``-`` for standard input), one row, or mistakes of a run."""

    source: str | Path | None = None
    row: Row | None = None
    mistakes: int | None = None
    """So many of the rows that the run, the recipe's model, is most confidently wrong about."""
    limit: int | None = None
    """The first rows of the file."""


@dataclass(frozen=True)
class ExplainedRow:
    """A row, what the model predicts for it, and why."""

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


def explain(recipe: Recipe, asked: AskedRows, **settings: Any) -> Iterator[ExplainedRow]:
    """Explain the predictions for rows.

    Args:
        recipe: Recipe of the checkpoint.
        asked: Rows to explain.
        settings: Keyword arguments of `bertkit.insight.explanations.explain`.

    Raises:
        BertkitError: If the model or a row cannot be read; see `bertkit.errors`.
    """
    checkpoint, answered = _answer_rows(recipe, asked)
    return _explain_answers(checkpoint, answered, checkpoint.task.COLUMNS.gold if asked.mistakes else "", **settings)


def explain_records(
    checkpoint: Checkpoint, saved: SavedCheckpoint, records: Iterable[Record], **settings: Any
) -> Iterator[ExplainedRow]:
    """Do what `explain` does with rows in memory and a checkpoint that is loaded already, to be trained."""
    chunks = read_chunks(saved, records, ROWS)
    return _explain_answers(checkpoint, _run_chunks(checkpoint, chunks), "", **settings)


def _explain_answers(
    checkpoint: Checkpoint, answered: Iterable[tuple[Any, dict[str, Any], Answered]], gold: str, **settings: Any
) -> Iterator[ExplainedRow]:
    from bertkit.insight import explanations

    return (
        ExplainedRow(
            name,
            original,
            drop_private_keys(answer.prediction),
            explanations.explain(checkpoint, answer, **settings),
            original.get(gold),
        )
        for name, original, answer in answered
    )


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


def _answer_rows(recipe: Recipe, asked: AskedRows) -> tuple[Checkpoint, Iterator[tuple[Any, dict[str, Any], Answered]]]:
    """Load the checkpoint, and return with it the rows as they are given, each with what the model answers."""
    saved = find_checkpoint(recipe)
    if asked.mistakes is not None:
        rows = _find_mistaken_rows(recipe.model, asked.mistakes)
        chunks = iter([Chunk(str(recipe.model), 0, list(map(dict, rows)), rows)])
    else:
        saved, records = open_rows(saved, asked.source, asked.row)
        chunks = read_chunks(saved, first_of(records, asked.limit), str(asked.source or "--row"))
    first = next(chunks)  # A wrong row is reported before the model is loaded.
    with stage(f"loading {saved.recipe.model_name}"):
        checkpoint = saved.load()
    return checkpoint, _run_chunks(checkpoint, itertools.chain([first], chunks))


def _run_chunks(checkpoint: Checkpoint, chunks: Iterable[Chunk]) -> Iterator[tuple[Any, dict[str, Any], Answered]]:
    from bertkit.insight.explanations import Answered

    task = checkpoint.task
    for chunk in chunks:
        rows = chunk.rows
        features = task.encode(rows, checkpoint.setup)
        with use_progress(SILENT):
            outputs, _ = run_model(checkpoint, features, "")
        predictions = task.decode(outputs, features, rows, checkpoint.setup)
        # A row can have several features (windows or choices), one of which is explained.
        positions: list[list[int]] = [[] for _ in rows]
        for position, feature in enumerate(features):
            positions[feature["row"]].append(position)
        with stage("explaining", len(rows)) as tick:
            for index, original in enumerate(chunk.originals):
                row, used = rows[index], positions[index]
                row_id = row.get("id", original.get("id", chunk.start + index))
                row_features, row_outputs = [features[one] for one in used], [outputs[one] for one in used]
                yield row_id, original, Answered(row, predictions[index], row_features, row_outputs)
                tick(1)


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
