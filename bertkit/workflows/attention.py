"""Show what the heads of an encoder attend to in a text, measure them over a file, and score a run without each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit import hub
from bertkit.data.files import read_records
from bertkit.data.sources import files_by_split
from bertkit.data.text import Record
from bertkit.errors import DataError, UsageError, closest
from bertkit.progress import SILENT, Progress, stage
from bertkit.recipe import Data, Recipe, typed_path
from bertkit.storage.outputs import claimed, refuse_inputs
from bertkit.workflows.explain import check_page

if TYPE_CHECKING:
    import numpy as np

    from bertkit.insight.attention.heads import MeasuredHeads
    from bertkit.insight.attention.weights import AttendedText
    from bertkit.metrics.intervals import Interval
    from bertkit.pruning.importance import HeadImportance

MAX_TOKENS = 128
"""Of a text that is shown."""
MAX_ROWS = 1000
"""Of a file that is measured."""
MAX_ROW_TOKENS = 512
IMPORTANCE_ROWS = 256
_VALIDATION = "validation"


@dataclass(frozen=True)
class ShownAttention:
    """What is shown of a text."""

    text: AttendedText
    rollout: np.ndarray
    """(layers, tokens, tokens): of each position, the shares of the input tokens up to each layer."""
    entropy: np.ndarray
    """(layers, heads), in nats."""


@dataclass(frozen=True)
class ImportantHeads:
    """The score of a run without each of its heads."""

    run: str
    recipe: str
    split: str
    rows: int
    metric: str
    score: float
    """With all heads."""
    interval: Interval
    heads: list[HeadImportance]


def show(
    text: str,
    model: str,
    *,
    pair: str | None = None,
    max_tokens: int = MAX_TOKENS,
    at: tuple[int, int] = (0, 0),
    output: Path | None = None,
    progress: Progress = SILENT,
) -> ShownAttention:
    """Compute what the heads of an encoder attend to in a text, or in a pair of texts.

    Args:
        text: what is read.
        model: a run or any other checkpoint.
        pair: a second text.
        max_tokens: a longer input is refused.
        at: layer and head that the page begins with.
        output: a page to write, which opens from disk.
        progress: says that the model is being loaded.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    _check_output(output, model, {})
    with stage(progress, f"loading {model}"):
        from bertkit.insight.attention.rollout import entropies, roll_out
        from bertkit.insight.attention.weights import attend, load_attention_model

        loaded = load_attention_model(model)
    attended = attend(loaded, text, pair, max_tokens=max_tokens)
    layers, heads = attended.weights.shape[:2]
    if at[0] >= layers or at[1] >= heads:
        raise UsageError(f"the model has {layers} layers of {heads} heads", "count them from 0")
    shown = ShownAttention(attended, roll_out(attended.weights), entropies(attended.weights))
    if output is not None:
        from bertkit.reports.attention import write_attention

        with claimed(output):
            write_attention(output, attended, shown.rollout, at)
    return shown


def measure(
    source: str,
    model: str,
    *,
    data: Data | None = None,
    split: str | None = None,
    max_tokens: int = MAX_ROW_TOKENS,
    output: Path | None = None,
    progress: Progress = SILENT,
) -> MeasuredHeads:
    """Measure what each head of an encoder attends to over the rows of a file, or of one split of a data set.

    Args:
        source: a file, ``-`` for standard input, a folder, or the hub name of a data set.
        model: a run or any other checkpoint.
        data: how rows are read, and how many.
        split: of a folder or a data set; ``validation`` by default.
        max_tokens: longer rows are left out.
        output: a page to write, which opens from disk.
        progress: shows how far the work is.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    path = typed_path(source)
    _check_output(output, model, {"the file that is measured": path} if path.is_file() else {})
    from bertkit.insight.attention.rows import parse_row

    settings = data or Data()
    column = settings.columns.get("text", "text")
    if not isinstance(column, str):
        raise UsageError("a text has one column", "name it with --column")
    with stage(progress, f"reading {source}", total=1):
        records = islice(_read(source, settings, split), settings.limit)
        rows = [parse_row(record, column, source) for record in records]
    if not rows:
        raise DataError("no rows", "name a file that has some", file=source)
    with stage(progress, f"loading {model}"):
        from bertkit.insight.attention.heads import measure_heads
        from bertkit.insight.attention.weights import load_attention_model

        loaded = load_attention_model(model)
    found = measure_heads(loaded, rows, source, max_tokens=max_tokens, progress=progress)
    if output is not None:
        from bertkit.insight.attention.patterns import PATTERNS
        from bertkit.reports.attention_heads import write_heads

        with claimed(output):
            write_heads(output, found, PATTERNS)
    return found


def rank_by_importance(
    recipe: Recipe, *, split: str | None = None, rows: int = IMPORTANCE_ROWS, progress: Progress = SILENT
) -> ImportantHeads:
    """Score a run without each of its heads in turn.

    Args:
        recipe: that of the run, with the run as its model.
        split: ``validation`` by default.
        rows: how many of the first rows are scored, once for each head.
        progress: shows how many heads are done.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    from bertkit.evaluation.checkpoint import find_checkpoint
    from bertkit.modeling.load import read_config
    from bertkit.workflows.evaluate import splits_to_score
    from bertkit.workflows.steps.training_rows import judge_training_rows

    read_config(hub.find_model(recipe.model))  # of an exported run no head can be left out
    saved = find_checkpoint(recipe)
    with stage(progress, "reading the data", total=1):
        name, chosen = next(iter(judge_training_rows(saved, splits_to_score(saved, split), "refuse").items()))
    chosen = chosen.first(rows)
    from bertkit.evaluation.scoring import score_split
    from bertkit.metrics.intervals import find_intervals
    from bertkit.metrics.paired import count_units, take
    from bertkit.pruning.choose import load_to_measure
    from bertkit.pruning.importance import score_heads

    with stage(progress, f"loading {recipe.model_name}"):
        checkpoint = load_to_measure(saved, saved.load(inference=True, calibrated=False))
    features = saved.task.encode(chosen.rows, checkpoint.setup)
    heads = score_heads(checkpoint, chosen, features, progress)
    whole, metric = score_split(checkpoint, chosen, SILENT, features=features), recipe.best_metric

    def score(drawn: np.ndarray) -> dict[str, Any]:
        return {metric: saved.task.score(take(whole.compared, drawn), whole.setup)[metric]}

    interval = find_intervals({metric: whole.scores[metric]}, score, count_units(whole.compared)).ends[metric]
    return ImportantHeads(
        run=str(recipe.model),
        recipe=recipe.name,
        split=name,
        rows=len(chosen.rows),
        metric=metric,
        score=float(whole.scores[metric]),
        interval=interval,
        heads=heads,
    )


def _check_output(output: Path | None, model: str, inputs: dict[str, Path]) -> None:
    """Check a page's name, and that nothing that is read would be overwritten."""
    if output is None:
        return
    check_page(output)
    folder = typed_path(model)
    beside = folder.rglob("*") if folder.is_dir() else ()
    refuse_inputs(output, chain(inputs.items(), (("a file of the model folder", file) for file in beside)))


def _read(source: str, data: Data, split: str | None) -> Iterator[Record]:
    """Yield the rows of a file, or of one split of a folder or of a data set of the hub."""
    path = typed_path(source)
    if source == "-" or path.is_file():
        if split is not None:
            raise UsageError(f"--split {split} of a single file", "leave it out", file=source)
        return read_records(source if source == "-" else path, data)
    name = split or _VALIDATION
    settings = data.model_copy(update={"source": str(path) if path.exists() else source})
    files = files_by_split(settings)
    if files is None:
        from bertkit.data.hub_sets import read_hub_split

        return read_hub_split(settings, name)
    if name not in files:
        raise DataError(f"no split {name!r}", f"{closest(name, files)}; name one with --split", file=source)
    return chain.from_iterable(read_records(file, settings) for file in files[name])
