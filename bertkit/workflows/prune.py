"""Prune a checkpoint to fewer layers, heads, neurons or tokens, and compare it with what it was."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.compression.choose_units import Kept, choose, keep, load_to_measure
from bertkit.compression.compare_pruned import PrunedSide, compare
from bertkit.compression.pruned_folder import PrunedFacts, publish
from bertkit.compression.target_shape import ROWS, TRAINING, Shape, check_shape
from bertkit.compression.vocabulary import TokenCorpus, check_files, count_changed, trim_vocabulary
from bertkit.data.rows import Split
from bertkit.errors import ModelError, UsageError
from bertkit.evaluation.checkpoint import Checkpoint, SavedCheckpoint, open_checkpoint
from bertkit.evaluation.gates import judge_scores
from bertkit.evaluation.scoring import measure_ece
from bertkit.evaluation.splits import judge_training_rows
from bertkit.metrics.paired import Difference
from bertkit.modeling.info import Model
from bertkit.modeling.load import load_tokenizer, quiet_transformers, read_config, weight_bytes
from bertkit.modeling.sentence.folder import SPARSE, find_format
from bertkit.modeling.weights import load_config, load_weights, refuse_non_finite
from bertkit.progress import stage
from bertkit.recipe import Recipe, load_recipe, typed_path
from bertkit.recipe.load import recipe_command
from bertkit.reports.cases import Case
from bertkit.storage import hub
from bertkit.storage.files import check_space, disk_errors
from bertkit.storage.outputs import building, refuse_existing
from bertkit.tasks import load_task
from bertkit.tokens.feature_cache import encode_split
from bertkit.workflows.evaluate import splits_to_score

_RECIPE = "recipe.yaml"


@dataclass(frozen=True)
class Pruned:
    """What was left of a model, and what it costs."""

    model: str
    folder: str
    before: PrunedSide
    after: PrunedSide
    layers: list[int] | None
    """Numbers of the layers that are left; None for all. The same holds for the others."""
    heads: int | None
    intermediate: int | None
    vocabulary: int | None
    texts: int = 0
    """Texts of the corpus, all of which have the tokens that they had before."""
    measured_rows: int = 0
    recipe: str | None = None
    split: str | None = None
    rows: int = 0
    changed_rows: int = 0
    """Validation rows with other tokens than before."""
    best_metric: str | None = None
    differences: dict[str, Difference] = field(default_factory=dict)
    """Metric -> the score after, less the score before, on the same rows."""
    gates: list[Case] = field(default_factory=list)


@dataclass(frozen=True)
class _Inputs:
    """What is read and checked before anything heavy is imported."""

    model: str
    source: Path
    folder: Path
    shape: Shape
    saved: SavedCheckpoint | None
    """None for a checkpoint without a recipe."""
    train: Split | None
    validation: Split | None
    measured_rows: int


def prune(
    model: str,
    output: str | Path,
    shape: Shape,
    *,
    recipe: str | None = None,
    changes: Mapping[str, Any] | None = None,
    measured_rows: int = 512,
) -> Pruned:
    """Write a smaller model of uniform shape to a new folder, and compare it with the one that it was made of.

    Args:
        model: a run or any other checkpoint.
        output: the folder to be written.
        shape: what is left.
        recipe: name of one, for a model that is no run, or other rows than those of the run.
        changes: dotted keys of the recipe -> values.
        measured_rows: how many training rows importance is measured on.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    with stage("reading the data", total=1):
        inputs = _read_inputs(model, typed_path(output), shape, recipe, changes or {}, measured_rows)
    check_space(inputs.folder, weight_bytes(inputs.source))
    with disk_errors(inputs.folder.parent), building(inputs.folder) as staging:
        return _prune_model(inputs, staging)


def _read_inputs(
    model: str, folder: Path, shape: Shape, name: str | None, changes: Mapping[str, Any], measured_rows: int
) -> _Inputs:
    refuse_existing(folder)
    source = hub.find_model(model)
    shape = check_shape(shape, read_config(source))
    _check_vocabulary(shape, source)
    recipe = _find_recipe(source, name, changes)
    needs_rows = shape.is_measured or {ROWS, TRAINING} & set(shape.vocabulary)
    if recipe is None:
        if needs_rows:
            purpose = "measure importance on" if shape.is_measured else "trim the vocabulary to"
            what = f"{model} is no run, so there are no rows to {purpose}"
            instead = "name the layers: --layers 0,1" if shape.is_measured else "name a file: --vocabulary FILE"
            raise UsageError(what, f"--recipe RECIPE with --data DATA, or {instead}")
        return _Inputs(model, source, folder, shape, None, None, None, 0)
    saved = open_checkpoint(recipe, load_task(recipe), source)
    validation = judge_training_rows(saved, splits_to_score(saved, "validation"), "refuse")["validation"]
    train = splits_to_score(saved, "train")["train"] if needs_rows else None
    return _Inputs(model, source, folder, shape, saved, train, validation, measured_rows)


def _check_vocabulary(shape: Shape, source: Path) -> None:
    """Check that the vocabulary can be trimmed, and that its files are there."""
    if not shape.vocabulary:
        return
    if find_format(source) == SPARSE:
        what = "--vocabulary: the vectors of a sparse encoder have one number per token of the vocabulary"
        raise ModelError(what, "prune --layers or --intermediate", file=source)
    check_files(name for name in shape.vocabulary if name not in (ROWS, TRAINING))


def _find_recipe(source: Path, name: str | None, changes: Mapping[str, Any]) -> Recipe | None:
    """Return the recipe that scores a checkpoint: the one that is named, or that of its run."""
    if name is None:
        file = source / _RECIPE
        if not file.is_file() or recipe_command(str(file)) == "pretrain":
            if changes:
                key = next(iter(changes))
                raise UsageError(f"{key} without a recipe", "name one: --recipe RECIPE")
            return None
        name = str(file)
    recipe = load_recipe(name, {**changes, "model": str(source)})
    return recipe.model_copy(update={"distillation": None})


def _prune_model(inputs: _Inputs, folder: Path) -> Pruned:
    """Write the pruned model into a folder, and compare it."""
    began, saved, before = time.perf_counter(), inputs.saved, None
    if saved is not None:
        with stage(f"loading {inputs.model}"):
            before = saved.load(inference=True, calibrated=False)
    pruned, facts = _write_pruned(inputs, before, folder, began)
    # A plain encoder has no rows to be scored on: its size is all that can be told.
    if saved is None or before is None or inputs.validation is None:
        publish(facts, folder, None)
        return pruned
    # What counts is the model as it will be loaded, so it is read again from the folder that was written.
    compared = compare(saved, before, folder, inputs.validation)
    publish(facts, folder, (saved, compared.after, compared.scored[1], inputs.validation))
    old, new = (scored.features for scored in compared.scored)
    after = compared.describe(1, pruned.after.parameters, folder)
    split, ece = inputs.validation, measure_ece(saved.task, compared.scored[1], inputs.validation.rows)
    return replace(
        pruned,
        before=compared.describe(0, pruned.before.parameters, inputs.source),
        after=after,
        gates=judge_scores(saved.recipe.gates, split.name, after.scores, after.intervals, ece, after.disk_bytes),
        measured_rows=min(inputs.measured_rows, len(inputs.train.rows))
        if inputs.train and inputs.shape.is_measured
        else 0,
        recipe=saved.recipe.name,
        split=split.name,
        rows=len(split.rows),
        changed_rows=0 if facts.tokens is None else count_changed(old, new, facts.tokens),
        best_metric=saved.recipe.best_metric,
        differences=compared.differences,
    )


def _write_pruned(inputs: _Inputs, before: Checkpoint | None, folder: Path, began: float) -> tuple[Pruned, PrunedFacts]:
    """Choose what is kept, take the rest away, and write model and tokenizer; nothing is compared yet."""
    shape = inputs.shape
    # Importance is measured on the model that predicts, `before`; what is written is loaded anew, as it was saved.
    units = _choose_kept(inputs, before)
    model, new_weights = _load_to_save(inputs, before)
    parameters = model.num_parameters()
    keep(model, units)
    # The tokenizer is written whole: trimming reads these files and writes them again.
    tokenizer = load_tokenizer(inputs.source)
    tokenizer.save_pretrained(folder)
    ids, texts = None, 0
    if shape.vocabulary:
        with stage("trimming the vocabulary"):
            # What the vocabulary is trimmed to: rows of the run, and files.
            names, train, validation = shape.vocabulary, inputs.train, inputs.validation
            splits = [train if {ROWS, TRAINING} & set(names) else None, validation if ROWS in names else None]
            files = tuple(name for name in names if name not in (ROWS, TRAINING))
            corpus = TokenCorpus(inputs.source, before, tuple(split for split in splits if split is not None), files)
            ids, texts = trim_vocabulary(model, tokenizer, corpus, folder)
    saved_in = read_config(inputs.source)
    if (dtype := saved_in.get("dtype") or saved_in.get("torch_dtype")) in ("float16", "bfloat16"):
        import torch

        model.to(getattr(torch, dtype))  # as it was on disk, which loses nothing
    # Weights that the checkpoint lacked are random, and a folder that had them would pass for a trained one.
    known = {name: value for name, value in model.state_dict().items() if name not in new_weights}
    model.save_pretrained(folder, save_original_format=False, **({"state_dict": known} if new_weights else {}))
    pruned = Pruned(
        model=inputs.model,
        folder=str(inputs.folder),
        before=PrunedSide(parameters, weight_bytes(inputs.source)),
        after=PrunedSide(model.num_parameters(), weight_bytes(folder)),
        layers=units.layers,
        heads=shape.heads,
        intermediate=shape.intermediate,
        vocabulary=None if ids is None else len(ids),
        texts=texts,
    )
    return pruned, PrunedFacts(inputs.model, inputs.source, inputs.folder, units, shape, ids, began)


def _choose_kept(inputs: _Inputs, before: Checkpoint | None) -> Kept:
    """Choose what is kept by training rows, or as it is named."""
    shape = inputs.shape
    if not shape.is_measured or before is None or inputs.saved is None or inputs.train is None:
        return Kept(list(shape.layers) if isinstance(shape.layers, tuple) else None)

    count, seed = len(inputs.train.rows), inputs.saved.recipe.training.seed
    drawn = np.random.default_rng(seed).permutation(count)[: inputs.measured_rows]
    measured = load_to_measure(inputs.saved, before)
    features = encode_split(inputs.train.select(np.sort(drawn).tolist()), measured.setup, inputs.saved.task.encode)
    return choose(measured, features, shape)


def _load_to_save(inputs: _Inputs, before: Checkpoint | None) -> tuple[Model, list[str]]:
    """Load the model as it was saved; return also the weights that its checkpoint lacks."""
    if inputs.saved is not None and before is not None:
        setup = replace(before.setup, inference=False)
        return inputs.saved.task.load_model(inputs.source, setup, new_head=False), []
    import transformers

    quiet_transformers()
    config = load_config(inputs.source)
    name = (config.architectures or ["AutoModel"])[0]
    model, report = load_weights(getattr(transformers, name, transformers.AutoModel), inputs.source, config)
    refuse_non_finite(model.named_parameters(), inputs.source)
    return model, sorted(report["missing_keys"])
