"""Leave out the rows of a file that repeat others: word for word, nearly so, or in meaning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.output import PLAIN, copy_parquet, follow_source, write_records, writer_for
from bertkit.errors import UsageError
from bertkit.storage.outputs import claimed, refuse_inputs
from bertkit.vectors.groups import duplicates as found_rows
from bertkit.vectors.groups.duplicates import Duplicate, ScannedRows, group_rows
from bertkit.vectors.groups.threshold import (
    LabeledPair,
    choose_threshold,
    draw_neighbors,
    draw_pairs,
    measure_steps,
    read_pairs,
    summarize,
)
from bertkit.vectors.text_files import Rows, TextFile, VectorSource
from bertkit.vectors.vector_files import Matrix, to_unit_length


@dataclass(frozen=True)
class DedupSettings:
    """What counts as a duplicate, and which of two rows is kept."""

    near: float | None = 0.9
    """The share of their runs of five characters that long texts have in common; None compares no wording."""
    threshold: float | None = None
    """The cosine of vectors; None takes it from the labeled pairs."""
    pairs: Path | None = None
    """A file of pairs that are labeled as duplicates or not."""
    precision: float = 0.95
    """The share of duplicates among pairs of the threshold that is taken from labeled ones."""
    keep: str = "first"


@dataclass(frozen=True)
class DedupInputs:
    """The rows to compare."""

    texts: TextFile
    """The file to clean."""
    against: Sequence[TextFile] = ()
    """Files whose rows are all kept; rows that repeat one of them go."""
    source: VectorSource | None = None
    """Where vectors come from; None compares the wording alone."""


@dataclass(frozen=True)
class DedupOutputs:
    """The files to write."""

    clean: Path | None = None
    report: Path | None = None
    """Every group of duplicates, a row of a file per line."""
    sample: Path | None = None
    """Pairs to label."""

    def named(self) -> list[Path]:
        """Return those that are to be written."""
        return [file for file in (self.clean, self.report, self.sample) if file is not None]


@dataclass(frozen=True)
class DedupResult:
    """How many rows repeat others."""

    rows: int
    """Rows of the file that is cleaned."""
    kept: int
    duplicates: dict[str, int]
    """``exact``, ``near`` and ``meaning`` -> rows that go."""
    of_files: dict[str, int]
    """File -> rows that go and repeat one of it."""
    threshold: float | None = None
    steps: list[dict[str, Any]] = field(default_factory=list)
    """Precision and recall at each threshold, of the labeled pairs."""
    curve: list[dict[str, Any]] = field(default_factory=list)
    """Without a threshold: the share of rows that have a neighbor as near, and the farthest such pair."""
    recall: float | None = None
    """The share of pairs that an approximate search finds; None of an exact one."""
    written: list[str] = field(default_factory=list)


def dedup(inputs: DedupInputs, settings: DedupSettings, outputs: DedupOutputs, *, dry_run: bool) -> DedupResult:
    """Find the rows of a file that repeat others, and write the file without them.

    Args:
        inputs: the file to clean, and what it is compared with.
        settings: what counts as a duplicate.
        outputs: the files to write.
        dry_run: whether the cleaned file is left out, once it is checked that it could be written.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    _check_settings(inputs, settings, outputs)
    source = inputs.source
    with ExitStack() as held:  # what cannot be written is refused before the work
        for file in outputs.named():
            held.enter_context(claimed(file))
        outputs = replace(outputs, clean=None) if dry_run else outputs
        pairs = read_pairs(settings.pairs) if settings.pairs is not None else []
        # From cheap to expensive: digests, then signatures of the wording, then vectors of the rows that are left.
        scanned = found_rows.scan([*inputs.against, inputs.texts], settings.keep, near=settings.near is not None)
        duplicates = found_rows.find_wording(scanned, settings.near)
        facts: dict[str, Any] = {}
        if source is not None:
            remaining = found_rows.remaining_rows(scanned, duplicates)
            vectors = _read_vectors(scanned, remaining, source)
            threshold = settings.threshold
            if pairs:
                threshold, facts["steps"] = _threshold_of_pairs(pairs, source, settings)
            # Without a threshold, nothing goes by meaning: the curve shows what each one would remove.
            if threshold is None:
                facts["curve"] = _draw_curve(scanned, remaining, vectors, outputs.sample)
            else:
                similar, recall = found_rows.find_meaning(remaining, vectors, threshold, scanned.fixed)
                facts |= {"recall": recall, "threshold": threshold}
                duplicates += similar
        gone = found_rows.resolve(duplicates, scanned.fixed)
        if outputs.report is not None:
            write_records(group_rows(scanned, gone), outputs.report)
        if outputs.clean is not None:
            _write_clean(scanned, gone, outputs.clean)
        reasons = Counter(duplicate.reason for duplicate in gone.values())
        return DedupResult(
            rows=scanned.totals[-1],
            kept=scanned.totals[-1] - len(gone),
            duplicates={reason: reasons[reason] for reason in ("exact", "near", "meaning")},
            of_files=_count_files(scanned, gone),
            written=[str(file) for file in outputs.named()],
            **facts,
        )


def _check_settings(inputs: DedupInputs, settings: DedupSettings, outputs: DedupOutputs) -> None:
    """Check all that can be checked before a row is read."""
    source, count = inputs.source, len(inputs.against) + 1
    for name, value, lowest in (("threshold", settings.threshold, -1), ("near", settings.near, 0)):
        if value is not None and not lowest <= value <= 1:
            raise UsageError(f"--{name} {value:g}", f"give a number from {lowest} to 1")
    if not 0 < settings.precision <= 1:
        raise UsageError(f"--precision {settings.precision:g}", "give a number above 0, up to 1")
    if source is None:
        for option, given in (("threshold", settings.threshold), ("pairs", settings.pairs), ("sample", outputs.sample)):
            if given is not None:
                raise UsageError(f"--{option} without vectors", "name a --model, or a file with --vectors")
    else:
        _ = source.embedder
        _check_threshold(settings, source, outputs)
        if source.files and len(source.files) != count:
            what = f"{len(source.files)} files of vectors for {count} files of rows"
            raise UsageError(what, "give --vectors for FILE, then for each --against")
    reads = [("the file to clean", inputs.texts.path)]
    reads += [("a file of --against", file.path) for file in inputs.against]
    reads += [("a file with vectors", file) for file in (source.files if source else ())]
    reads += [("the file with pairs", settings.pairs)] if settings.pairs else []
    for file in outputs.named():
        writer_for(file)
        refuse_inputs(file, reads)
    # Links resolved: the second output would overwrite the first.
    if len({file.resolve() for file in outputs.named()}) < len(outputs.named()):
        raise UsageError("two outputs have the same name", "name different files")


def _check_threshold(settings: DedupSettings, source: VectorSource, outputs: DedupOutputs) -> None:
    if settings.threshold is not None and settings.pairs is not None:
        raise UsageError("--threshold and --pairs", "give one of the two")
    if settings.pairs is not None and source.model is None:
        raise UsageError("--pairs without --model", "vectors of the pairs are needed: name the model")
    has_threshold = settings.threshold is not None or settings.pairs is not None
    if outputs.clean is not None and not has_threshold:
        what = "no --threshold: from which cosine on are texts duplicates?"
        raise UsageError(what, "leave --output out to see how many rows each would remove, or give labeled --pairs")
    if outputs.sample is not None and has_threshold:
        raise UsageError("--sample with a threshold", "pairs to label are drawn where there is none yet")


def _read_vectors(scanned: ScannedRows, rows: Rows, source: VectorSource) -> Matrix:
    """Return the vectors of some rows, of length 1, in the order of these rows."""
    is_read = np.zeros(len(scanned.digests), dtype=bool)
    is_read[rows] = True
    ascending = np.flatnonzero(is_read)
    texts = (row.text for number, _, row in scanned.read() if is_read[number])
    # the files of vectors are named for the file to clean first, which is the last one of the rows
    ordered = replace(source, files=(*source.files[1:], *source.files[:1]))
    vectors = ordered.read(texts, ascending, scanned.totals)
    return to_unit_length(vectors[np.searchsorted(ascending, rows)])


def _threshold_of_pairs(
    pairs: Sequence[LabeledPair], source: VectorSource, settings: DedupSettings
) -> tuple[float, list[dict[str, Any]]]:
    """Choose the threshold by labeled pairs; return it with the precision and the recall of all that were tried."""
    texts = [text for pair in pairs for text in (pair.text, pair.text_pair)]
    vectors = to_unit_length(source.read(texts, np.arange(len(texts)), [len(texts)]))
    steps = measure_steps((vectors[::2] * vectors[1::2]).sum(axis=1), pairs)
    assert settings.pairs is not None
    return choose_threshold(steps, settings.precision, settings.pairs), [step._asdict() for step in steps]


def _draw_curve(scanned: ScannedRows, rows: Rows, vectors: Matrix, sample: Path | None) -> list[dict[str, Any]]:
    """Return how many rows have a neighbor at each threshold, with an example of it; write pairs to label."""
    if len(rows) < 2:
        return []
    neighbors = draw_neighbors(vectors)
    drawn = list(draw_pairs(neighbors))
    indices = {index for pair in drawn for index in (pair.row, pair.nearest)}
    numbers = {int(rows[index]): index for index in indices}
    texts = {numbers[number]: row.text for number, _, row in scanned.read() if number in numbers}
    if sample is not None:
        write_records((pair.as_record(texts) for pair in drawn), sample)
    return summarize(neighbors, drawn, texts)


def _write_clean(scanned: ScannedRows, gone: Mapping[int, Duplicate], output: Path) -> None:
    """Write the rows that stay; a Parquet file keeps its types, and a csv or tsv file is written as it was."""
    cleaned = scanned.files[-1]
    if cleaned.path.suffix == output.suffix == ".parquet":
        copy_parquet(cleaned.path, output, [row not in gone for row in range(scanned.fixed, len(scanned.digests))])
        return
    kept = (row.record for number, row in enumerate(cleaned, scanned.fixed) if number not in gone)
    write_records(kept, output, follow_source(PLAIN, output, cleaned.path, cleaned.data))


def _count_files(scanned: ScannedRows, gone: Mapping[int, Duplicate]) -> dict[str, int]:
    """Return file -> rows that go since they repeat one of it."""
    ends = np.cumsum(scanned.totals)
    kept_in = Counter(int(np.searchsorted(ends, duplicate.kept, side="right")) for duplicate in gone.values())
    return {str(file.path): kept_in[number] for number, file in enumerate(scanned.files)}
