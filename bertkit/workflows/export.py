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
_MAX_COSINE_ROWS = 64


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
    extra_files: Sequence[str] = (),
    measure_speed: bool = True,
    progress: Progress | None = None,
) -> ExportResult:
    """Export a run or a fine-tuned checkpoint, and compare both.

    The folder appears when it is complete. `eval` and `predict` need nothing else, and give the same answers. If the
    graph differs too much from the model, nothing is written.

    Args:
        model: Run folder, a checkpoint of a run, or any fine-tuned checkpoint.
        output: Folder to write, which must not exist.
        to: ``onnx`` or ``openvino``.
        precision: ``fp32``, ``int8``, or for OpenVINO ``bf16``.
        recipe: Recipe of a checkpoint that bertkit did not train.
        data: Source of rows to score both models on; by default the source of the recipe.
        limit: Maximum number of rows of each split.
        margin: Largest acceptable loss of int8 and bf16, as a fraction of the highest score.
        rows: Number of training rows that determine the ranges of activations (int8).
        extra_files: Names of additional files of the run to copy.
        measure_speed: Whether to compare the speed of both.
        progress: Shows the progress; by default bars, in notebooks only.

    Raises:
        MarginError: If a model in int8 or bf16 loses too much; see `check_loss`.
        ModelError: If the outputs of a graph in float32 differ from the model's.
        BertkitError: Any other error; see `bertkit.errors`.
    """
    # 1. Check what can be checked before torch is imported.
    if not 0 < margin < 1 or rows < 1:
        raise UsageError(f"--margin {margin:g}, --sample {rows}", "give a margin between 0 and 1, and at least one row")
    is_exact, is_int8 = precision == "fp32", precision == "int8"
    check_backend(to, quantizes=is_int8)
    folder = expand_path(output)
    check_empty(folder)
    check_not_exported(hub.find_model(str(model)))
    info = open_trained(str(model), recipe, {"data.source": data, "data.limit": limit})
    split, notes = find_split(info, required=data is not None or not is_exact)
    training_rows = _read_training_rows(info, rows) if is_int8 else []

    # 2. Load the model as it is traced: in float32 on the CPU, by the classes of transformers, with complete layers.
    with stage(f"loading {info.recipe.model_name}"):
        import torch

        info_to_trace = replace(info, recipe=info.recipe.replace("training", cls_only_last_layer=False))
        machine = ComputeConfig("cpu", "fp32", torch.get_num_threads(), "CPU: fp32 (as models are traced)")
        machine.announce()
        original = info_to_trace.load(machine)
    if getattr(original.model, "query_table", None) is not None:
        raise ModelError("the table of query weights cannot be exported", "use the model folder", file=info.folder)
    model_inputs = original.context.tokenizer.model_input_names
    input_names = [name for name in ("input_ids", "attention_mask", "token_type_ids") if name in model_inputs]
    # Determine the ranges of activations with training rows, because the scored rows judge the result.
    reads_rows = getattr(original.model, "reads", "text") == "windows"
    calibration = encode_texts(original, training_rows, input_names, reads_rows=reads_rows) if is_int8 else None

    with disk_errors(folder.parent), create_folder_atomically(folder) as staging_folder:
        # 3. Write the graph and everything that is needed to open it.
        with stage(f"exporting to {to}, {precision}"):
            from bertkit.modeling.inference.graphs import export_graph

            file = graph_file(to, precision)
            labels, license = json.dumps(original.context.labels), find_license(info.folder) or "unknown"
            metadata = {"recipe": info.recipe.name, "task": info.recipe.task, "labels": labels, "license": license}
            path = staging_folder / file
            converted = export_graph(original.model, input_names, to, path, calibration=calibration, metadata=metadata)
            description = describe_export(info, original, converted, file, backend=to, precision=precision)
            write_supporting_files(staging_folder, info, original, *extra_files)
            write_manifest(staging_folder, description)  # Stage 4 opens the graph, which requires a manifest.

        # 4. Compare the graph, as `predict` opens it, with the model.
        exported = open_checkpoint(info.recipe, info.task, staging_folder).load()
        parity = measure_parity(original, exported, split, notes, is_timed=measure_speed)
        if not is_exact:
            check_loss(parity, info=info, margin=margin)
        elif not parity.largest <= TOLERANCE:
            message = f"the exported graph differs from the model by {parity.largest:.2g} of its largest output"
            raise ModelError(message, "nothing was written; try the other --to")
        # The manifest lists all files with checksums, so write it again after the last file.
        write_json(staging_folder / "parity.json", asdict(parity))
        write_manifest(staging_folder, description)
        size = count_bytes(staging_folder)

    # 5. Judge the graph by the gates of the recipe.
    scores = {name: score["after"] for name, score in parity.scores.items()}
    group = parity.split or "exported"
    gates = judge_scores(info.recipe.gates, group, scores, parity.intervals, parity.ece, size)
    return ExportResult(info.recipe.model, str(folder), info.recipe.name, to, precision, size, parity, gates)


def find_split(info: CheckpointInfo, *, required: bool) -> tuple[Split | None, list[str]]:
    """Read the first validation split of a recipe; if it is missing and not required, return None and a note."""
    try:
        return next(iter(splits_to_score(info, None).values())), []
    except (DataError, UnavailableError, UsageError) as error:
        if required:
            raise
        return None, [f"No scores: {error.message} - {error.remedy}; --data names other rows."]


def _read_training_rows(info: CheckpointInfo, count: int) -> list[Row]:
    """Read training rows without their gold values, evenly spread because rows can be sorted by label.

    Raises:
        DataError: If there is no training row.
    """
    splits = read_task_splits(info.recipe, info.task, lambda name: name == "train")
    if not splits:
        message = "no training rows, which determine the ranges of activations"
        raise DataError(message, "name a source with a train split: --data SOURCE")
    rows, gold = splits["train"].rows, info.task.COLUMNS.gold
    sample = rows[:: max(1, len(rows) // count)][:count]
    return [{name: value for name, value in row.items() if name != gold} for row in sample]


def encode_texts(
    checkpoint: Checkpoint, rows: Sequence[Row], inputs: Sequence[str], *, reads_rows: bool = False
) -> list[dict[str, Any]]:
    """Return a batch per row as a graph reads it: with `reads_rows` the row, else its texts. Shape: (texts, tokens)."""
    collate = checkpoint.task.collator(checkpoint.context)
    batches = []
    for feature in checkpoint.task.encode(rows, checkpoint.context):
        batch = collate([{name: value for name, value in feature.items() if name != "labels"}])
        if reads_rows:
            batches.append({name: batch[name] for name in inputs})
            continue
        # The inputs of a row with several texts, such as choices, have the shape (1, texts, tokens). Drop texts that
        # only pad the row: their attention mask has at most one token.
        flat = {name: batch[name].reshape(-1, batch[name].shape[-1]) for name in inputs}
        batches.append({name: values[flat["attention_mask"].sum(1) > 1] for name, values in flat.items()})
    return batches


def measure_parity(
    original: Checkpoint, exported: Checkpoint, split: Split | None, notes: list[str], *, is_timed: bool
) -> Parity:
    """Compare outputs, speed and scores of a model and of its exported graph.

    Args:
        original: Model.
        exported: Graph.
        split: Rows to score, or None.
        notes: Reason why there are no rows.
        is_timed: Whether to compare the speed.
    """
    from bertkit.modeling.inference.graphs import TextGraph

    assert isinstance(exported.model, ExportedModel)
    compute = TextGraph(original.model).on_arrays
    graph, tokenizer = exported.model.export, exported.context.tokenizer
    limit, vocabulary = int(tokenizer.model_max_length), len(tokenizer.get_vocab())
    reads_rows = graph.reads == "windows"
    # Use several shapes, because a traced graph can be correct only for the shape that it was traced with.
    shapes = [(texts, min(tokens, limit)) for texts, tokens in SHAPES]
    batches = [
        random_texts((2, *shape) if reads_rows else shape, graph.inputs, vocabulary) for shape in dict.fromkeys(shapes)
    ]
    with stage("comparing outputs"):
        largest, cosine = compare_outputs(compute, exported.model.run_graph, batches)
        if split is not None and cosine is not None:
            texts = encode_texts(exported, split.rows[:_MAX_COSINE_ROWS], graph.inputs)
            _, cosine = compare_outputs(compute, exported.model.run_graph, texts)
    times = []
    if is_timed and not reads_rows:
        with stage("timing"):
            times = tabulate_latency(compute, exported.model.run_graph, graph.inputs, vocabulary, limit)
    if split is None:
        return Parity(largest, cosine, times, notes=notes)
    # Nearly equal outputs can still give different labels, so compare scores too.
    comparison = compare_scores(original, exported, split)
    return Parity(largest, cosine, times, split.name, len(split.rows), notes=notes, **comparison)


def check_loss(parity: Parity, *, info: CheckpointInfo, margin: float) -> None:
    """Check that a model in int8 or bf16 gives nearly the same answers.

    Raises:
        MarginError: If the score may lose more than the margin, too many labels depend on other texts in the batch, or
            a vector has a cosine below `MIN_COSINE`.
    """
    metric = info.recipe.best_metric
    score = parity.scores[metric]
    highest = find_metric(info.task.METRICS, metric).to_score(1.0)
    # The end of the interval decides, not the score: the rows must rule out a larger loss.
    bounds = score["interval"] or [score["difference"], score["difference"]]
    loss = max(bounds) if is_lower_better(metric) else -min(bounds)
    remedy = "nothing was written; choose another --to, or a larger --margin"
    if not loss <= margin * highest:
        message = f"{metric} may lose {loss:.4f} (the end of its 95% interval), and the margin is {margin * highest:g}"
        raise MarginError(message, remedy, parity)
    # If activations are scaled per batch, the label of a row depends on the other rows of its batch.
    flips = parity.flips.get("alone", 0)
    if flips > margin * parity.rows:
        message = f"{flips} of {parity.rows:,} rows get a different label alone than in a batch"
        raise MarginError(message, remedy, parity)
    if parity.least_cosine is not None and not parity.least_cosine >= MIN_COSINE:
        message = f"the lowest cosine of vectors is {parity.least_cosine:.4f}, below {MIN_COSINE}"
        raise MarginError(message, "nothing was written; choose another --to", parity)


_COPIED_FILES = (runs.TRAINING_ROWS, "modules.json", SETTINGS)
# A calibration can be written later, and has separate checksums.
_UNLISTED_FILES = (MANIFEST, CALIBRATION_FILE)
# Keys of the run's record that `eval` and `predict` read.
_RECORD_KEYS = ("status", "identity", "machine", "tuned", "split_file", "baselines", "best_step")


def describe_export(
    info: CheckpointInfo, checkpoint: Checkpoint, converted: ExportedGraph, file: str, *, backend: str, precision: str
) -> Export:
    """Return the description of a graph for the manifest."""
    return Export(
        **vars(converted),
        backend=backend,
        file=file,
        precision=precision,
        task=info.recipe.task,
        tokenizer=tokenizer_settings(checkpoint.context.tokenizer),
        options=dict(checkpoint.context.recipe.options),
        record=select_entries(info.record, *_RECORD_KEYS),
        versions=runs.versions(),
    )


def write_supporting_files(folder: Path, info: CheckpointInfo, checkpoint: Checkpoint, *extra_files: str) -> None:
    """Write the tokenizer, the config, the recipe, and the files of the run that scoring needs."""
    # Copy all files that `eval` and `predict` read, because the folder must work without the run.
    checkpoint.context.tokenizer.save_pretrained(folder)
    shutil.copyfile(info.folder / "config.json", folder / "config.json")
    files = [info.folder / name for name in (*_COPIED_FILES, *extra_files)]
    if is_sentence_folder(info.folder):
        files += [info.folder / path / "config.json" for _, _, path in read_entries(info.folder / MODULES)]
        files += list(info.folder.glob("sentence_*_config.json"))
    for file in filter(Path.is_file, files):
        target = folder / file.relative_to(info.folder)
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(file, target)
    write_yaml(info.restore_limit(info.recipe).model_dump(mode="json", exclude_defaults=True), folder / "recipe.yaml")
    calibration = read_calibration(info.folder, info.recipe.task)
    if calibration is not None:
        write_calibration(folder, replace(calibration, model=fingerprint(folder)))


def write_manifest(folder: Path, export: Export) -> None:
    """Write the manifest of an exported folder, which lists its files with checksums."""
    files = [file for file in folder.rglob("*") if file.is_file() and file.name not in _UNLISTED_FILES]
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
    base_model = values.get("model")
    license = next((encoder.license for encoder in list_encoders() if encoder.name == base_model), None)
    return None if license is None else f"the license of {base_model}, from which it was trained: {license}"


def _read_license(file: Path) -> str | None:
    if not file.is_file():
        return None
    text = file.read_text(encoding="utf-8", errors="replace")
    head = text.split("---\n")[1] if text.startswith("---\n") and text.count("---\n") > 1 else ""
    # The card starts with YAML between two lines of dashes. Read it line by line, because a damaged card must not stop
    # the export.
    lines = [line.partition(":") for line in head.splitlines()]
    return next((value.strip().strip("'\"") for key, _, value in lines if key == "license" and value.strip()), None)
