"""Prune a checkpoint to fewer layers, heads, neurons or tokens, and compare it with the original model."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.compression.choose_units import PruningPlan, apply_plan, load_to_measure, plan_pruning
from bertkit.compression.pruned_folder import (
    ModelFigures,
    PruningMetadata,
    compare,
    write_pruned_files,
    write_pruned_run,
)
from bertkit.compression.target_shape import ROWS, TRAINING, PruningTarget, check_shape
from bertkit.compression.vocabulary import TokenCorpus, check_files, count_changed_rows, trim_vocabulary
from bertkit.errors import ModelError, UsageError
from bertkit.evaluation.checkpoint import Checkpoint, CheckpointInfo, open_checkpoint
from bertkit.evaluation.gates import judge_scores
from bertkit.evaluation.scoring import measure_ece
from bertkit.evaluation.splits import resolve_overlap, splits_to_score
from bertkit.metrics.paired import Difference
from bertkit.modeling.checkpoint import get_weight_bytes, load_config, read_config
from bertkit.modeling.info import Model
from bertkit.modeling.load import load_weights
from bertkit.modeling.sentence.folder import SPARSE, find_format
from bertkit.modeling.tokenizer import load_tokenizer
from bertkit.progress import stage
from bertkit.recipe.load import load_recipe, recipe_command
from bertkit.recipe.records import Recipe
from bertkit.recipe.sections import expand_path
from bertkit.reports.cases import Case
from bertkit.storage import hub
from bertkit.storage.files import check_space, disk_errors
from bertkit.storage.outputs import check_empty, create_folder_atomically
from bertkit.tasks import load_task
from bertkit.tokens.feature_cache import encode_split

_RECIPE = "recipe.yaml"


@dataclass(frozen=True)
class PruneResult:
    """Shape, size and scores of a pruned model, and its comparison with the original model."""

    model: str
    folder: str
    before: ModelFigures
    after: ModelFigures
    layers: list[int] | None
    """Indices of the remaining layers. Here and in the next three attributes, None means that nothing was removed."""
    heads: int | None
    intermediate: int | None
    vocabulary: int | None
    texts: int = 0
    """Number of texts in the corpus; the smaller vocabulary splits all of them as before."""
    measured_rows: int = 0
    recipe: str | None = None
    split: str | None = None
    rows: int = 0
    changed_rows: int = 0
    """Number of validation rows whose tokens differ from before."""
    best_metric: str | None = None
    differences: dict[str, Difference] = field(default_factory=dict)
    """Metric -> score after minus score before, on the same rows."""
    gates: list[Case] = field(default_factory=list)


def prune(
    model: str,
    output: str | Path,
    shape: PruningTarget,
    *,
    recipe: str | None = None,
    changes: Mapping[str, Any] | None = None,
    measured_rows: int = 512,
) -> PruneResult:
    """Write a smaller model of uniform shape to a new folder, and compare it with the original model.

    Args:
        model: Run or any other checkpoint.
        output: Folder to write.
        shape: Layers, heads, neurons and tokens to keep.
        recipe: Recipe of a model that is not a run, or one with other rows than the run's.
        changes: Dotted keys of the recipe -> values.
        measured_rows: Number of training rows that importance is measured on.

    Raises:
        BertkitError: If model, rows or folders are wrong; see `bertkit.errors`.
    """
    # 1. Read and check everything before anything heavy is imported. Rows are needed to measure importance, to trim the
    #    vocabulary to them, and to compare the scores.
    with stage("reading the data", total=1):
        folder = expand_path(output)
        check_empty(folder)
        source = hub.find_model(model)
        shape = check_shape(shape, read_config(source))
        if shape.vocabulary:
            if find_format(source) == SPARSE:
                message = "--vocabulary: the vectors of a sparse encoder have one number per token of the vocabulary"
                raise ModelError(message, "prune --layers or --intermediate", file=source)
            check_files(name for name in shape.vocabulary if name not in (ROWS, TRAINING))
        loaded_recipe = _find_recipe(source, recipe, changes or {})
        needs_rows = shape.is_measured or {ROWS, TRAINING} & set(shape.vocabulary)
        info, train, validation = None, None, None
        if loaded_recipe is not None:
            info = open_checkpoint(loaded_recipe, load_task(loaded_recipe), source)
            validation = resolve_overlap(info, splits_to_score(info, "validation"), "error")["validation"]
            train = splits_to_score(info, "train")["train"] if needs_rows else None
        elif needs_rows:
            purpose = "measure importance on" if shape.is_measured else "trim the vocabulary to"
            message = f"{model} is not a run, so there are no rows to {purpose}"
            instead = "name the layers: --layers 0,1" if shape.is_measured else "name a file: --vocabulary FILE"
            raise UsageError(message, f"add --recipe RECIPE with --data DATA, or {instead}")
    check_space(folder, get_weight_bytes(source))

    with disk_errors(folder.parent), create_folder_atomically(folder) as target:
        start = time.perf_counter()
        original = None
        if info is not None:
            with stage(f"loading {model}"):
                original = info.load(inference=True, calibrated=False)

        # 2. Choose the units to keep: by their importance on training rows, unless layers are named. Importance is
        #    measured with the training loss, so the model is loaded as for training. The measurement changes this
        #    model, so the model to write is loaded again.
        units = PruningPlan(list(shape.layers) if isinstance(shape.layers, tuple) else None)
        if shape.is_measured and info is not None and original is not None and train is not None:
            generator = np.random.default_rng(info.recipe.training.seed)
            sample = np.sort(generator.permutation(len(train.rows))[:measured_rows])
            measured = load_to_measure(info, original)
            features = encode_split(train.select(sample.tolist()), measured.context, info.task.encode)
            units = plan_pruning(measured, features, shape)
        pruned_model, new_weights = _load_model(source, info, original)
        parameters = pruned_model.num_parameters()
        apply_plan(pruned_model, units)

        # 3. Write tokenizer and weights. Trimming reads the tokenizer files and rewrites them.
        tokenizer = load_tokenizer(source)
        tokenizer.save_pretrained(target)
        ids, texts = None, 0
        if shape.vocabulary:
            with stage("trimming the vocabulary"):
                splits = [train] if {ROWS, TRAINING} & set(shape.vocabulary) else []
                splits += [validation] if ROWS in shape.vocabulary else []
                files = tuple(name for name in shape.vocabulary if name not in (ROWS, TRAINING))
                corpus = TokenCorpus(source, original, tuple(split for split in splits if split is not None), files)
                ids, texts = trim_vocabulary(pruned_model, tokenizer, corpus, target)
        config = read_config(source)
        if (dtype := config.get("dtype") or config.get("torch_dtype")) in ("float16", "bfloat16"):
            import torch

            # The checkpoint has this type, so no precision is lost.
            pruned_model.to(getattr(torch, dtype))
        # Weights that the checkpoint lacked are random. A folder with random weights would look like a trained model.
        trained_weights = {name: value for name, value in pruned_model.state_dict().items() if name not in new_weights}
        options = {"state_dict": trained_weights} if new_weights else {}
        pruned_model.save_pretrained(target, save_original_format=False, **options)
        pruned = PruneResult(
            model=model,
            folder=str(folder),
            before=ModelFigures(parameters, get_weight_bytes(source)),
            after=ModelFigures(pruned_model.num_parameters(), get_weight_bytes(target)),
            layers=units.layers,
            heads=shape.heads,
            intermediate=shape.intermediate,
            vocabulary=None if ids is None else len(ids),
            texts=texts,
        )
        metadata = PruningMetadata(model, source, units, shape, ids, start)

        # 4. Load the model from the folder, and compare it with the original. Without rows, only sizes are known.
        if info is None or original is None or validation is None:
            write_pruned_files(metadata, target)
            return pruned
        comparison = compare(info, original, target, validation)
        write_pruned_files(metadata, target)
        write_pruned_run(metadata, target, info, comparison, validation)
        old_features, new_features = (output.features for output in comparison.eval_outputs)
        after = comparison.describe(1, pruned.after.parameters, target)
        ece = measure_ece(info.task, comparison.eval_outputs[1], validation.rows)
        figures = after.scores, after.intervals, ece, after.disk_bytes
        return replace(
            pruned,
            before=comparison.describe(0, parameters, source),
            after=after,
            gates=judge_scores(info.recipe.gates, validation.name, *figures),
            measured_rows=min(measured_rows, len(train.rows)) if train and shape.is_measured else 0,
            recipe=info.recipe.name,
            split=validation.name,
            rows=len(validation.rows),
            changed_rows=0 if ids is None else count_changed_rows(old_features, new_features, ids),
            best_metric=info.recipe.best_metric,
            differences=comparison.differences,
        )


def _find_recipe(source: Path, name: str | None, changes: Mapping[str, Any]) -> Recipe | None:
    """Return the named recipe, the recipe of the run, or None if the checkpoint has no recipe."""
    if name is None:
        file = source / _RECIPE
        if not file.is_file() or recipe_command(str(file)) == "pretrain":
            if changes:
                key = next(iter(changes))
                raise UsageError(f"{key} without a recipe", "name one: --recipe RECIPE")
            return None
        name = str(file)
    recipe = load_recipe(name, {**changes, "model": str(source)})
    # A run can be a student whose teachers no longer exist. Pruning does not train, so it needs no teachers.
    return recipe.model_copy(update={"distillation": None})


def _load_model(source: Path, info: CheckpointInfo | None, original: Checkpoint | None) -> tuple[Model, list[str]]:
    """Return the model with all weights of its checkpoint, and the names of weights that the checkpoint lacks."""
    if info is not None and original is not None:
        return info.task.load_model(source, replace(original.context, inference=False), new_head=False), []
    # Without a recipe, the model keeps the head of its checkpoint, such as the head of pretraining.
    import transformers

    config = load_config(source)
    name = (config.architectures or ["AutoModel"])[0]
    model, report = load_weights(getattr(transformers, name, transformers.AutoModel), source, config)
    return model, sorted(report["missing_keys"])
