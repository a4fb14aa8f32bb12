"""Export a fine-tuned model to a graph that ONNX Runtime or OpenVINO runs without torch: in fp32, int8 or bf16."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.data.rows import Split
from bertkit.errors import BertkitError, DataError, ModelError, UnavailableError, UsageError
from bertkit.evaluation.calibration import CALIBRATION_FILE, read_calibration, write_calibration
from bertkit.evaluation.checkpoint import Checkpoint, CheckpointInfo, open_checkpoint, open_trained
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
from bertkit.evaluation.splits import read_task_splits, splits_to_score
from bertkit.hardware.device import on_cpu
from bertkit.hardware.precision import ComputeConfig
from bertkit.metrics.intervals import find_metric
from bertkit.metrics.registry import is_lower_better
from bertkit.modeling.checkpoint import fingerprint
from bertkit.modeling.sentence.folder import MODULES, SETTINGS, is_sentence_folder, read_entries
from bertkit.progress import Progress, stage, with_progress
from bertkit.recipe.sections import Row, expand_path
from bertkit.recipe.yaml import read_yaml, write_yaml
from bertkit.reports.cases import Case
from bertkit.runtime.model import ExportedModel
from bertkit.runtime.sessions import check_backend, graph_file
from bertkit.runtime.tokenizer import tokenizer_settings
from bertkit.storage import hub, runs
from bertkit.storage.exports import MANIFEST, Export, check_not_exported, write_export
from bertkit.storage.files import disk_errors, write_json
from bertkit.storage.fingerprints import list_files
from bertkit.storage.hub.encoders import list_encoders
from bertkit.storage.outputs import check_empty, create_folder_atomically
from bertkit.storage.run_list import count_bytes
from bertkit.storage.runs import select_entries

if TYPE_CHECKING:
    from bertkit.modeling.inference.graphs import ExportedGraph


MIN_COSINE = 0.98
_MAX_COMPARED = 64  # rows whose vectors are compared


@dataclass(frozen=True)
class ExportResult:
    """An exported model, and its comparison with the original model."""

    model: str
    folder: str
    recipe: str
    backend: str
    precision: str
    bytes: int
    parity: Parity
    gates: list[Case]


class MarginError(ModelError):
    """Error for a quantized model that loses too much; `parity` has the measured loss."""

    def __init__(self, message: str, remedy: str, parity: Parity) -> None:
        super().__init__(message, remedy)
        self.parity = parity


@on_cpu()
@with_progress
def export(
    model: str | Path,
    output: str | Path,
    *,
    to: str = "onnx",
    precision: str = "fp32",
    recipe: str | None = None,
    data: str | None = None,
    limit: int | None = None,
    margin: float = 0.01,
    rows: int = 256,
    copied: Sequence[str] = (),
    timed: bool = True,
    progress: Progress | None = None,
) -> ExportResult:
    """Export a run or a fine-tuned checkpoint, and compare both.

    The folder appears when it is complete. It has all that `eval` and `predict` need, and gives the same answers. If
    the graph differs too much from the model, nothing is written.

    Args:
        model: Run folder, a checkpoint of a run, or any fine-tuned checkpoint.
        output: Folder to write, which must not exist.
        to: ``onnx`` or ``openvino``.
        precision: ``fp32``, ``int8``, or for OpenVINO ``bf16``.
        recipe: Recipe of a checkpoint that bertkit did not train.
        data: Source of rows to score both models on; by default the recipe's.
        limit: Maximum number of rows of each split.
        margin: Largest acceptable loss of int8 and bf16, as a fraction of the highest score.
        rows: Number of training rows that determine the ranges of activations (int8).
        copied: Names of additional files of the run to copy.
        timed: Whether to compare the speed of both.
        progress: Shows the progress; by default bars, in notebooks only.

    Raises:
        MarginError: If a model in int8 or bf16 loses too much; see `check_loss`.
        ModelError: If the outputs of a graph in float32 differ from the model's.
        BertkitError: Any other error; see `bertkit.errors`.
    """
    # 1. Check what can be checked before torch is imported.
    if not 0 < margin < 1 or rows < 1:
        message = f"--margin {margin:g}, --sample {rows}"
        raise UsageError(message, "give a margin between 0 and 1, and at least one row")
    is_exact, is_int8 = precision == "fp32", precision == "int8"
    check_backend(to, quantizes=is_int8)
    folder = expand_path(output)
    check_empty(folder)
    check_not_exported(hub.find_model(str(model)))
    saved = open_trained(str(model), recipe, {"data.source": data, "data.limit": limit})
    split, notes = find_split(saved, required=data is not None or not is_exact)
    training_rows = _read_training_rows(saved, rows) if is_int8 else []

    # 2. Load the model as it is traced: in float32 on the CPU, by the classes of transformers, with complete layers.
    with stage(f"loading {saved.recipe.model_name}"):
        import torch

        traced = replace(saved, recipe=saved.recipe.changed("training", cls_only_last_layer=False))
        machine = ComputeConfig("cpu", "fp32", torch.get_num_threads(), "CPU: fp32 (as models are traced)")
        machine.announce()
        before = traced.load(machine)
    if getattr(before.model, "query_table", None) is not None:
        raise ModelError("queries have weights from a table, which a graph lacks", "use the folder", file=saved.folder)
    names = [
        name
        for name in ("input_ids", "attention_mask", "token_type_ids")
        if name in before.context.tokenizer.model_input_names
    ]
    # Rows to score must not determine the ranges of activations: they judge the result.
    reads_rows = getattr(before.model, "reads", "text") == "windows"
    calibration = encode_texts(before, training_rows, names, reads_rows=reads_rows) if is_int8 else None

    with disk_errors(folder.parent), create_folder_atomically(folder) as staging:
        # 3. Write the graph and everything that is needed to open it.
        with stage(f"exporting to {to}, {precision}"):
            from bertkit.modeling.inference.graphs import TextGraph, export_graph

            file = graph_file(to, precision)
            metadata = {
                "recipe": saved.recipe.name,
                "task": saved.recipe.task,
                "labels": json.dumps(before.context.labels),
            }
            metadata["license"] = find_license(saved.folder) or "unknown"
            path = staging / file
            converted = export_graph(before.model, names, to, path, calibration=calibration, metadata=metadata)
            described = describe_export(saved, before, converted, file, backend=to, precision=precision)
            write_supporting_files(staging, saved, before, *copied)
            write_manifest(staging, described)  # The graph is opened in stage 4, which requires a manifest.

        # 4. Compare the graph, as `predict` opens it, with the model.
        after = open_checkpoint(saved.recipe, saved.task, staging).load()
        parity = measure(before, after, TextGraph(before.model).on_arrays, split, notes, is_timed=timed)
        if not is_exact:
            check_loss(parity, saved=saved, margin=margin)
        elif not parity.largest <= TOLERANCE:
            message = f"the exported graph differs from the model by {parity.largest:.2g} of its largest output"
            raise ModelError(message, "nothing was written; try the other --to")
        # The manifest lists all files with checksums, so it is written again after the last file.
        write_json(staging / "parity.json", asdict(parity))
        write_manifest(staging, described)
        size = count_bytes(staging)

    # 5. Judge the graph by the gates of the recipe.
    scores = {name: score["after"] for name, score in parity.scores.items()}
    group = parity.split or "exported"
    gates = judge_scores(saved.recipe.gates, group, scores, parity.intervals, parity.ece, size)
    return ExportResult(saved.recipe.model, str(folder), saved.recipe.name, to, precision, size, parity, gates)


def find_split(saved: CheckpointInfo, *, required: bool) -> tuple[Split | None, list[str]]:
    """Read the first validation split of a recipe; if it is missing and not required, return None and a note."""
    try:
        return next(iter(splits_to_score(saved, None).values())), []
    except (DataError, UnavailableError, UsageError) as error:
        if required:
            raise
        return None, [f"No scores: {error.message} - {error.remedy}; --data names other rows."]


def _read_training_rows(saved: CheckpointInfo, count: int) -> list[Row]:
    """Read some training rows without their gold values, evenly spread because rows may be sorted by label.

    Raises:
        DataError: If there is no training row.
    """
    splits = read_task_splits(saved.recipe, saved.task, lambda name: name == "train")
    if not splits:
        raise DataError("no training rows, which determine the ranges of activations", "name some with --data")
    rows = splits["train"].rows
    spread = rows[:: max(1, len(rows) // count)][:count]
    return [{name: value for name, value in row.items() if name != saved.task.COLUMNS.gold} for row in spread]


def encode_texts(
    checkpoint: Checkpoint, rows: Sequence[Row], inputs: Sequence[str], *, reads_rows: bool = False
) -> list[dict[str, Any]]:
    """Return the texts of rows as a graph reads them, a batch (texts, tokens) per row; with `reads_rows`, the rows."""
    collate = checkpoint.task.collator(checkpoint.context)
    batches = []
    for feature in checkpoint.task.encode(rows, checkpoint.context):
        batch = collate([{name: value for name, value in feature.items() if name != "labels"}])
        if reads_rows:
            batches.append({name: batch[name] for name in inputs})
            continue
        # A row with several texts, such as choices, has inputs of the shape (1, texts, tokens). Texts that only pad the
        # row attend to at most one token, and are left out.
        flat = {name: batch[name].reshape(-1, batch[name].shape[-1]) for name in inputs}
        batches.append({name: values[flat["attention_mask"].sum(1) > 1] for name, values in flat.items()})
    return batches


def measure(
    before: Checkpoint, after: Checkpoint, compute: Compute, split: Split | None, notes: list[str], *, is_timed: bool
) -> Parity:
    """Compare outputs, speed and scores of a model and of the graph that was made from it.

    Args:
        before: Model.
        after: Graph.
        compute: Computes the outputs of the model.
        split: Rows to score, or None.
        notes: Reason why there are no rows.
        is_timed: Whether to compare the speed.
    """
    assert isinstance(after.model, ExportedModel)
    graph, limit = after.model.export, int(after.context.tokenizer.model_max_length)
    vocabulary = len(after.context.tokenizer.get_vocab())
    reads_rows = graph.reads == "windows"
    # Random ids of several shapes: a graph that was traced with one shape may be correct for that shape only.
    shapes = [(texts, min(tokens, limit)) for texts, tokens in SHAPES]
    batches = [
        random_texts((2, *shape) if reads_rows else shape, graph.inputs, vocabulary) for shape in dict.fromkeys(shapes)
    ]
    with stage("comparing outputs"):
        largest, cosine = compare_outputs(compute, after.model.run, batches)
        # The cosine of real texts counts, if there are any, because random texts resemble nothing.
        if split is not None and cosine is not None:
            texts = encode_texts(after, split.rows[:_MAX_COMPARED], graph.inputs)
            _, cosine = compare_outputs(compute, after.model.run, texts)
    times = []
    if is_timed and not reads_rows:
        with stage("timing"):
            times = tabulate_latency(compute, after.model.run, graph.inputs, vocabulary, limit)
    if split is None:
        return Parity(largest, cosine, times, notes=notes)
    # Close outputs can still decide otherwise, so scores on the same rows are compared too.
    comparison = compare_scores(before, after, split)
    return Parity(largest, cosine, times, split.name, len(split.rows), notes=notes, **comparison)


def check_loss(parity: Parity, *, saved: CheckpointInfo, margin: float) -> None:
    """Check that a model in fewer bits gives about the same answers.

    Raises:
        MarginError: If the score may lose more than the margin, a label depends on the neighbors in the batch, or a
            vector has a cosine below `MIN_COSINE`.
    """
    metric = saved.recipe.best_metric
    score, highest = parity.scores[metric], find_metric(saved.task.METRICS, metric).to_score(1.0)
    # A loss that the rows cannot rule out counts, so the end of the interval decides and not the score.
    ends = score["interval"] or [score["difference"], score["difference"]]
    loss = max(ends) if is_lower_better(metric) else -min(ends)
    remedy = "nothing was written; choose another --to, or a larger --margin"
    if not loss <= margin * highest:
        message = f"{metric} may lose {loss:.4f} (the end of its 95% interval), and the margin is {margin * highest:g}"
        raise MarginError(message, remedy, parity)
    # If activations are scaled batch by batch, an answer depends on its neighbors.
    alone = parity.flips.get("alone", 0)
    if alone > margin * parity.rows:
        message = f"{alone} of {parity.rows:,} rows get a different label alone than in a batch"
        raise MarginError(message, remedy, parity)
    if parity.least_cosine is not None and not parity.least_cosine >= MIN_COSINE:
        message = f"the lowest cosine of vectors is {parity.least_cosine:.4f}, below {MIN_COSINE}"
        raise MarginError(message, "nothing was written; choose another --to", parity)


# Files of a run folder that an exported folder has too.
_COPIED = (runs.TRAINING_ROWS, "modules.json", SETTINGS)
# A calibration can be written later, and it has its own checksums.
_UNLISTED = (MANIFEST, CALIBRATION_FILE)
# Keys of the run's record that `eval` and `predict` read.
_IN_RECORD = ("status", "identity", "machine", "tuned", "split_file", "baselines", "best_step")


def describe_export(
    saved: CheckpointInfo, before: Checkpoint, converted: ExportedGraph, file: str, *, backend: str, precision: str
) -> Export:
    """Return the description of a graph for the manifest."""
    return Export(
        **vars(converted),
        backend=backend,
        file=file,
        precision=precision,
        task=saved.recipe.task,
        tokenizer=tokenizer_settings(before.context.tokenizer),
        options=dict(before.context.recipe.options),
        record=select_entries(saved.record, *_IN_RECORD),
        versions=runs.versions(),
    )


def write_supporting_files(folder: Path, saved: CheckpointInfo, before: Checkpoint, *more: str) -> None:
    """Write the tokenizer, the config, the recipe, and the files of the run that scoring needs."""
    # The folder must serve `eval` and `predict` without the run, so all that they read of a run is copied.
    before.context.tokenizer.save_pretrained(folder)
    shutil.copyfile(saved.folder / "config.json", folder / "config.json")
    copied = [saved.folder / name for name in (*_COPIED, *more)]
    if is_sentence_folder(saved.folder):
        copied += [saved.folder / path / "config.json" for _, _, path in read_entries(saved.folder / MODULES)]
        copied += list(saved.folder.glob("sentence_*_config.json"))
    for file in filter(Path.is_file, copied):
        target = folder / file.relative_to(saved.folder)
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(file, target)
    write_yaml(saved.restore_limit(saved.recipe).model_dump(mode="json", exclude_defaults=True), folder / "recipe.yaml")
    # A calibration has the fingerprint of its weights, which differs for an exported model.
    calibration = read_calibration(saved.folder, saved.recipe.task)
    if calibration is not None:
        write_calibration(folder, replace(calibration, model=fingerprint(folder)))


def write_manifest(folder: Path, export: Export) -> None:
    """Write the manifest of a folder over all files that are in it."""
    files = [file for file in folder.rglob("*") if file.is_file() and file.name not in _UNLISTED]
    write_export(folder, export, list_files(folder, [file.relative_to(folder).as_posix() for file in files]))


def find_license(folder: Path) -> str | None:
    """Return the license in the card of a model folder, or the license of the encoder that it was trained from."""
    if (license := _read_license(folder / "README.md")) is not None:
        return license
    try:
        file = folder / "recipe.yaml"
        values, _ = read_yaml(file.read_text(encoding="utf-8"), file)
    except (BertkitError, OSError):
        return None
    started = values.get("model")
    license = next((encoder.license for encoder in list_encoders() if encoder.name == started), None)
    return None if license is None else f"the license of {started}, from which it was trained: {license}"


def _read_license(file: Path) -> str | None:
    if not file.is_file():
        return None
    text = file.read_text(encoding="utf-8", errors="replace")
    head = text.split("---\n")[1] if text.startswith("---\n") and text.count("---\n") > 1 else ""
    # The card starts with YAML between two lines of dashes. It is read line by line, because a damaged card must not
    # stop the export.
    lines = [line.partition(":") for line in head.splitlines()]
    return next((value.strip().strip("'\"") for key, _, value in lines if key == "license" and value.strip()), None)
