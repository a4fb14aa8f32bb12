"""Export a fine-tuned model to a folder that ONNX Runtime or OpenVINO runs, without torch."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.data.rows import Split
from bertkit.errors import BertkitError, DataError, ModelError, UnavailableError, UsageError
from bertkit.evaluation.calibration import CALIBRATION_FILE, read_calibration, write_calibration
from bertkit.evaluation.checkpoint import Checkpoint, SavedCheckpoint, open_checkpoint, open_trained
from bertkit.evaluation.gates import judge_scores
from bertkit.evaluation.parity import (
    SHAPES,
    TOLERANCE,
    Compute,
    Parity,
    compare_outputs,
    compare_scores,
    random_texts,
    tabulate_latency,
)
from bertkit.hardware.device import on_cpu
from bertkit.hardware.precision import Machine
from bertkit.modeling.load import fingerprint
from bertkit.modeling.sentence.modules import MODULES, SETTINGS, is_sentence_folder, read_entries
from bertkit.progress import Progress, stage, takes_progress
from bertkit.recipe import Row, read_yaml, typed_path, write_yaml
from bertkit.reports.cases import Case
from bertkit.runtime import ExportedModel, tokenizer_settings
from bertkit.runtime.sessions import check_backend, graph_file
from bertkit.storage import hub, runs
from bertkit.storage.exports import MANIFEST, Export, refuse_exported, write_export
from bertkit.storage.files import disk_errors, write_json
from bertkit.storage.fingerprints import list_files
from bertkit.storage.hub.encoders import list_encoders
from bertkit.storage.outputs import building, refuse_existing
from bertkit.storage.records import take
from bertkit.workflows.evaluate import splits_to_score

if TYPE_CHECKING:
    from bertkit.modeling.inference.graphs import Converted


_COMPARED = 64  # rows whose vectors are compared


@dataclass(frozen=True)
class ExportResult:
    """What was exported, and how it compares with the model that it was made from."""

    model: str
    folder: str
    recipe: str
    backend: str
    precision: str
    bytes: int
    parity: Parity
    gates: list[Case]


@takes_progress
def export(
    model: str | Path,
    output: str | Path,
    *,
    to: str = "onnx",
    recipe: str | None = None,
    data: str | None = None,
    limit: int | None = None,
    progress: Progress | None = None,
) -> ExportResult:
    """Export a run or a fine-tuned checkpoint, compare both, and return how they compare.

    The folder appears when it is whole. It has all that `eval` and `predict` need, and says the same.

    Args:
        model: run folder, a checkpoint of a run, or any fine-tuned checkpoint.
        output: the folder to write, which must not exist.
        to: ``onnx`` or ``openvino``.
        recipe: of a checkpoint that is not of a run.
        data: rows to score both on; those of the recipe by default.
        limit: score on the first rows only.
        progress: shows how far the work is; by default bars, in notebooks only.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    return export_source(Source(str(model), recipe, data, limit), output, GraphFormat(to))


def export_source(source: Source, output: str | Path, target: GraphFormat) -> ExportResult:
    """Do what `export` does, in float32."""
    check_backend(target.backend)
    folder, saved = open_source(source, output)
    scored = find_split(saved, required=source.data is not None)
    with stage(f"loading {saved.recipe.model_name}"):
        before = load_plain(saved)
    return write_graph(saved, before, folder, target, scored, refuse_different)


@dataclass(frozen=True)
class GraphFormat:
    """What a graph is made for."""

    backend: str
    precision: str = "fp32"
    calibration: Any = None
    """Texts, for int8."""
    timed: bool = True
    """Whether its speed is measured beside the model's."""
    copied: tuple[str, ...] = ()
    """Names of more files of the run that are copied."""


@dataclass(frozen=True)
class Source:
    """What a graph is made from, and the rows that it is scored on."""

    model: str
    """Run folder, a checkpoint of a run, or any fine-tuned checkpoint."""
    recipe: str | None = None
    """The recipe of a checkpoint that is not of a run."""
    data: str | None = None
    """Rows; None for those of the recipe."""
    limit: int | None = None
    """The first rows of each split; None for all."""


def open_source(source: Source, output: str | Path) -> tuple[Path, SavedCheckpoint]:
    """Return the folder to write, and the checkpoint to make it from, checked without its weights."""
    folder = typed_path(output)
    refuse_existing(folder)
    refuse_exported(hub.find_model(source.model))
    changes = {"data.source": source.data, "data.limit": source.limit}
    return folder, open_trained(source.model, source.recipe, changes)


@on_cpu()
def write_graph(
    saved: SavedCheckpoint,
    before: Checkpoint,
    folder: Path,
    target: GraphFormat,
    scored: tuple[Split | None, list[str]],
    judge: Callable[[Parity], None],
) -> ExportResult:
    """Write the graph of a model with what it needs, unless `judge` raises at how it compares with the model."""
    with disk_errors(folder.parent), building(folder) as staging:
        with stage(f"exporting to {target.backend}, {target.precision}"):
            described, graph = convert_checkpoint(saved, before, target, staging)
        after = open_checkpoint(saved.recipe, saved.task, staging).load()
        parity = measure(before, after, graph.on_arrays, scored, timed=target.timed)
        judge(parity)
        write_json(staging / "parity.json", asdict(parity))
        write_manifest(staging, described)
        size = sum(file.stat().st_size for file in staging.rglob("*") if file.is_file())
    model, recipe = saved.recipe.model, saved.recipe.name
    after_scores = {name: found["after"] for name, found in parity.scores.items()}
    split = parity.split or "exported"
    gates = judge_scores(saved.recipe.gates, split, after_scores, parity.intervals, parity.ece, size)
    return ExportResult(model, str(folder), recipe, target.backend, target.precision, size, parity, gates)


def refuse_different(parity: Parity) -> None:
    """Raise ModelError where a graph in float32 computes something else than the model."""
    if not parity.largest <= TOLERANCE:
        what = f"the exported graph differs from the model by {parity.largest:.2g} of its largest output"
        raise ModelError(what, "nothing was written; try the other --to")


def find_split(saved: SavedCheckpoint, *, required: bool) -> tuple[Split | None, list[str]]:
    """Read the first validation split of a recipe; where it is not at hand, return None and a note that says why."""
    try:
        return next(iter(splits_to_score(saved, None).values())), []
    except (DataError, UnavailableError, UsageError) as error:
        if required:
            raise
        return None, [f"No scores: {error.what} - {error.remedy}; --data names other rows."]


def load_plain(saved: SavedCheckpoint) -> Checkpoint:
    """Load a model as it is traced: in float32 on the CPU, by the classes of transformers, and no layer cut short."""
    import torch

    plain = replace(saved, recipe=saved.recipe.changed("training", cls_only_last_layer=False))
    machine = Machine("cpu", "fp32", torch.get_num_threads(), "CPU: fp32 (as models are traced)")
    machine.announce()
    return plain.load(machine)


def convert_checkpoint(
    saved: SavedCheckpoint, before: Checkpoint, target: GraphFormat, staging: Path
) -> tuple[Export, Any]:
    """Write a graph and what it takes to open it; return its manifest, and the model as a graph reads it."""
    from bertkit.modeling.inference.graphs import TextGraph, convert

    names, model, file = input_names(before), before.model, graph_file(target.backend, target.precision)
    facts = {"recipe": saved.recipe.name, "task": saved.recipe.task, "labels": json.dumps(before.setup.labels)}
    facts["license"] = find_license(saved.folder) or "unknown"
    converted = convert(model, names, target.backend, staging / file, calibration=target.calibration, metadata=facts)
    described = describe_export(saved, before, converted, target, file)
    write_supporting_files(staging, saved, before, *target.copied)
    write_manifest(staging, described)  # so that it can be opened
    return described, TextGraph(model)


def input_names(checkpoint: Checkpoint) -> list[str]:
    """Return the names of the arrays that a graph of a model reads."""
    known = checkpoint.setup.tokenizer.model_input_names
    return [name for name in ("input_ids", "attention_mask", "token_type_ids") if name in known]


def texts_of(
    checkpoint: Checkpoint, rows: Sequence[Row], inputs: Sequence[str], *, reads_rows: bool = False
) -> list[dict[str, Any]]:
    """Return the texts of rows as a graph reads them, a batch (texts, tokens) per row; with `reads_rows`, the rows."""
    collate = checkpoint.task.collator(checkpoint.setup)
    batches = []
    for feature in checkpoint.task.encode(rows, checkpoint.setup):
        batch = collate([{name: value for name, value in feature.items() if name != "labels"}])
        if reads_rows:
            batches.append({name: batch[name] for name in inputs})
            continue
        flat = {name: batch[name].reshape(-1, batch[name].shape[-1]) for name in inputs}
        batches.append({name: values[flat["attention_mask"].sum(1) > 1] for name, values in flat.items()})
    return batches


def measure(
    before: Checkpoint,
    after: Checkpoint,
    compute: Compute,
    scored: tuple[Split | None, list[str]],
    *,
    timed: bool = True,
) -> Parity:
    """Compare outputs, speed if it is `timed`, and scores of a model and of the graph that was made from it."""
    split, notes = scored
    assert isinstance(after.model, ExportedModel)
    made, limit = after.model.export, int(after.setup.tokenizer.model_max_length)
    vocabulary = len(after.setup.tokenizer.get_vocab())
    reads_rows = made.reads == "windows"
    # Random ids of several shapes: a graph that was traced with one shape may be right for that shape alone.
    shapes = [(texts, min(tokens, limit)) for texts, tokens in SHAPES]
    batches = [
        random_texts((2, *shape) if reads_rows else shape, made.inputs, vocabulary) for shape in dict.fromkeys(shapes)
    ]
    with stage("comparing outputs"):
        largest, cosine = compare_outputs(compute, after.model.run, batches)
        # of texts as they come, not of random ones
        if split is not None and cosine is not None:
            _, cosine = compare_outputs(compute, after.model.run, texts_of(after, split.rows[:_COMPARED], made.inputs))
    times = []
    if timed and not reads_rows:
        with stage("timing"):
            times = tabulate_latency(compute, after.model.run, made.inputs, vocabulary, limit)
    if split is None:
        return Parity(largest, cosine, times, notes=notes)
    # Close outputs can still decide otherwise, so what counts in the end are scores on the same rows.
    compared = compare_scores(before, after, split)
    return Parity(largest, cosine, times, split.name, len(split.rows), notes=notes, **compared)


_COPIED = (runs.TRAINING_ROWS, "modules.json", SETTINGS)
# a calibration may come later, and names the files that it is of
_UNLISTED = (MANIFEST, CALIBRATION_FILE)
_IN_RECORD = ("status", "identity", "machine", "tuned", "split_file", "baselines", "best_step")


def describe_export(
    saved: SavedCheckpoint, before: Checkpoint, converted: Converted, target: GraphFormat, file: str
) -> Export:
    """Return what the manifest says of a graph."""
    return Export(
        **vars(converted),
        backend=target.backend,
        file=file,
        precision=target.precision,
        task=saved.recipe.task,
        tokenizer=tokenizer_settings(before.setup.tokenizer),
        options=dict(before.setup.recipe.options),
        record=take(saved.record, *_IN_RECORD),
        versions=runs.versions(),
    )


def write_supporting_files(folder: Path, saved: SavedCheckpoint, before: Checkpoint, *more: str) -> None:
    """Write the tokenizer, the config, the recipe, and of the run what scoring needs."""
    # The folder must serve `eval` and `predict` without the run, so all that they read of a run is copied.
    before.setup.tokenizer.save_pretrained(folder)
    shutil.copyfile(saved.folder / "config.json", folder / "config.json")
    copied = [saved.folder / name for name in (*_COPIED, *more)]
    if is_sentence_folder(saved.folder):
        copied += [saved.folder / path / "config.json" for _, _, path in read_entries(saved.folder / MODULES)]
        copied += list(saved.folder.glob("sentence_*_config.json"))
    for file in filter(Path.is_file, copied):
        target = folder / file.relative_to(saved.folder)
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(file, target)
    write_yaml(saved.kept(saved.recipe).model_dump(mode="json", exclude_defaults=True), folder / "recipe.yaml")
    # A calibration names the weights it is of by their fingerprint, which is another here.
    calibration = read_calibration(saved.folder, saved.recipe.task)
    if calibration is not None:
        write_calibration(folder, replace(calibration, model=fingerprint(folder)))


def write_manifest(folder: Path, export: Export) -> None:
    """Write the manifest of a folder over all files that are in it."""
    files = [file for file in folder.rglob("*") if file.is_file() and file.name not in _UNLISTED]
    write_export(folder, export, list_files(folder, [str(file.relative_to(folder)) for file in files]))


def find_license(folder: Path) -> str | None:
    """Return the license that the card of a model folder names, or that of the encoder that it was trained from."""
    named = _license_of_card(folder / "README.md")
    if named is not None:
        return named
    try:
        file = folder / "recipe.yaml"
        values, _ = read_yaml(file.read_text(encoding="utf-8"), file)
    except (BertkitError, OSError):
        return None
    started = values.get("model")
    license = next((encoder.license for encoder in list_encoders() if encoder.name == started), None)
    return None if license is None else f"that of {started}, which it was trained from: {license}"


def _license_of_card(file: Path) -> str | None:
    if not file.is_file():
        return None
    text = file.read_text(encoding="utf-8", errors="replace")
    head = text.split("---\n")[1] if text.startswith("---\n") and text.count("---\n") > 1 else ""
    lines = [line.partition(":") for line in head.splitlines()]
    return next((value.strip().strip("'\"") for key, _, value in lines if key == "license" and value.strip()), None)
