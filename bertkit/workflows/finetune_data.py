"""Data of a fine-tuning run: rows, labels and identity, which are read and checked before torch is imported."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.data.checks import (
    check_swapped,
    describe_skew,
    describe_unseen,
    find_odd_rows,
    find_suspicious_columns,
    find_unseen_names,
)
from bertkit.data.columns import PAIR, SOFT_LABELS, describe_unread
from bertkit.data.labels import add_unseen_names, find_names, replace_raw_labels
from bertkit.data.rows import Digests, Split, get_unread_columns
from bertkit.data.sampling import check_draw, draw_training_rows, oversample
from bertkit.data.soft_labels import fill_gold, get_probabilities, measure_agreement
from bertkit.data.sources import find_unsplit_file, is_validation, missing_split_error, use_recorded_data
from bertkit.errors import DataError, RecipeError, UnavailableError, install_command
from bertkit.evaluation.splits import find_training_rows, read_task_splits
from bertkit.hardware.device import check_launch, check_requested_device
from bertkit.hardware.precision import product_widths
from bertkit.modeling.checkpoint import fingerprint, read_config
from bertkit.modeling.layers import check_layers, count_layers
from bertkit.recipe.plugins import load_custom
from bertkit.recipe.records import Recipe
from bertkit.recipe.sections import OUTPUT_ONLY_KEYS, expand_path
from bertkit.storage import hub, runs
from bertkit.storage.cache import log_once
from bertkit.storage.fingerprints import file_fingerprint
from bertkit.tasks import Task, load_task
from bertkit.training.auto_settings import choose_training
from bertkit.training.losses import check_loss
from bertkit.training.run import RunPlan, check_expected_run
from bertkit.training.trackers import check_callbacks

if TYPE_CHECKING:
    from bertkit.compression.teachers import Teacher

# The run's identity covers the content of the model and the rows, but not their location, not how they are checked, and
# not whether features are kept.
_NOT_IDENTITY: dict[str, Any] = {**dict.fromkeys(("about", "published", "gates", "model"), True)}
_NOT_IDENTITY["training"] = OUTPUT_ONLY_KEYS
_EXCLUDED_DATA_KEYS = {"source", "files", "config", "revision", "cache", "hold_out"}
_EXCLUDED_DATA_KEYS |= {"label_range", "ignore_columns", "empty_label"}


@dataclass(frozen=True)
class FinetuneData:
    """Everything about a fine-tuning run that is known before its model is loaded."""

    plan: RunPlan
    recipe: Recipe
    task: Task
    splits: dict[str, Split]
    labels: tuple[str, ...]
    model_folder: Path
    training_digests: Digests
    """Digests of the training rows of this run, and of the runs that trained its model or its teachers."""
    teachers: tuple[Teacher, ...] = ()
    warnings: tuple[str, ...] = ()
    """Unusual properties of the rows."""

    @property
    def rows(self) -> dict[str, int]:
        """Number of rows by split."""
        return _count_rows(self.splits)

    def with_machine(self, machine: Mapping[str, Any] | None) -> FinetuneData:
        """Return the data for a run on the recorded machine (device, precision, threads) of another run."""
        return replace(self, plan=replace(self.plan, machine=machine))

    @property
    def validation(self) -> Split:
        """The split that determines the best checkpoint."""
        return self.splits["validation"]


def read_finetune_data(
    recipe: Recipe, output: str | Path | None, *, restart: bool = False, expect_run: str | Path | None = None
) -> FinetuneData:
    """Find the model, read and check the rows, and determine the identity of the run. Cheap checks come first.

    Args:
        recipe: Recipe to train with.
        output: Run folder; by default ``runs/`` and the name of the recipe.
        restart: Ignore a run in the folder. By default, that run continues with the rows that it held out.
        expect_run: Folder of another run, which must have the same model, tokenizer, rows and package versions.

    Raises:
        BertkitError: If the recipe, the model or a row is wrong; see `bertkit.errors`.
    """
    # 1. Check the recipe. A student gets a separate folder, because its teacher can have the same recipe.
    folder = runs.run_folder(output, f"{recipe.name}-distilled" if recipe.distillation else recipe.name)
    recipe = recipe if restart else with_recorded_hold_out(recipe, [folder])
    task = load_task(recipe)
    _check_recipe(recipe, task)
    if recipe.distillation:
        from bertkit.compression.students import make_student_recipe

        recipe = make_student_recipe(recipe, recipe.distillation)

    # 2. Check the config of the model. The layers of a student are checked later, with its teacher.
    model_folder = hub.find_model(recipe.model)
    config = read_config(model_folder)
    if recipe.training.layer_keys and not recipe.distillation and (count := count_layers(config)) is not None:
        check_layers(recipe.training, count)

    # 3. Read the rows and their labels.
    splits = _read_splits(recipe, task)
    has_gold = task.COLUMNS.gold in splits["train"].rows[0]
    recipe = _with_pair(recipe, splits)
    labels, splits, warnings = _find_checked_labels(recipe, task, splits)
    recipe, agreement = _use_soft_labels(recipe, splits["train"], labels, task.COLUMNS.gold if has_gold else "")
    if recipe.data.oversample:
        splits["train"] = oversample(splits["train"], recipe.data.oversample, recipe.training.seed)
    rows = _count_rows(splits)

    # 4. Resolve settings that depend on the rows: `auto` becomes numbers.
    recipe, auto_settings = choose_training(recipe, rows, len(labels), config)
    if auto_settings:
        log_once(auto_settings)
    if recipe.training.extra:
        from bertkit.training.arguments import check_extra

        check_extra(recipe.training)
    teachers: tuple[Teacher, ...] = ()
    if recipe.distillation:
        from bertkit.compression.teachers import find_teachers

        teachers = find_teachers(recipe, recipe.distillation, task, labels, model_folder)

    # 5. Find the training rows of the model and its teachers, which the validation splits must not contain.
    models = {model_folder: recipe.model_name, **{teacher.folder: teacher.name for teacher in teachers}}
    splits, training_digests, overlap_warnings = find_training_rows(splits, task.COLUMNS.gold, models)
    _log_warnings(overlap_warnings)

    # 6. Compute the identity, by which a resume recognizes the run.
    identity = _find_identity(recipe, splits, labels, model_folder)
    if teachers:
        identity["teachers"] = [teacher.fingerprint for teacher in teachers]
    if expect_run is not None:
        check_expected_run(identity, expand_path(expect_run))
    file = find_unsplit_file(recipe.data)
    plan = RunPlan(
        recipe=recipe,
        folder=folder,
        identity=identity,
        record_entries={
            "model": recipe.model,
            "commit": hub.get_commit(model_folder),
            "rows": rows,
            "split_file": file_fingerprint(file) if file else None,
            "automatic": auto_settings,
            **({"soft_labels": agreement} if agreement else {}),
        },
        model_type=config["model_type"],
        widths=product_widths(config),
    )
    warnings = (*warnings, *overlap_warnings)
    return FinetuneData(plan, recipe, task, splits, labels, model_folder, training_digests, teachers, warnings)


def _check_recipe(recipe: Recipe, task: Task) -> None:
    """Check the settings of a recipe that need neither its model nor its rows."""
    if (distillation := recipe.distillation) and distillation.soft_labels:
        if SOFT_LABELS not in task.COLUMNS.extra or recipe.options.get("multi_label"):
            raise RecipeError("distillation.soft_labels is for one label per text", "use the recipe classify")
        if distillation.teachers or distillation.student_layers is not None or distillation.matches_layers:
            raise RecipeError("distillation.soft_labels replaces teachers", "leave out teachers and their layers")
    if recipe.data.sampling_keys:
        check_draw(recipe, task.COLUMNS, has_label_names=task.HAS_LABEL_NAMES)
    if recipe.training.callbacks or recipe.training.report_to:
        check_callbacks(recipe.training, trusted=recipe.trusted)
    if recipe.training.collator:
        load_custom("collator", recipe.training.collator, recipe.trusted)
    check_loss(recipe.training, task, trusted=recipe.trusted)
    if recipe.training.lora and not find_spec("peft"):
        raise UnavailableError("training.lora needs the package peft", f"`{install_command('lora')}`")
    checkpointing, mini_batch = recipe.training.gradient_checkpointing, recipe.options.get("mini_batch")
    check_requested_device(training__gradient_checkpointing=checkpointing, options__mini_batch=mini_batch)
    check_launch(fsdp=recipe.training.fsdp)


def with_recorded_hold_out(recipe: Recipe, folders: Iterable[Path]) -> Recipe:
    """Return a recipe that holds out the same rows as the first run in the folders."""
    record = next(filter(None, map(runs.read_record, folders)), None)
    return use_recorded_data(recipe, record["identity"]) if record else recipe


def _with_pair(recipe: Recipe, splits: dict[str, Split]) -> Recipe:
    """Return a recipe that maps the second text of a pair if the rows have one, and ignores only unread columns."""
    data = recipe.data
    columns = {**data.columns, **({PAIR: PAIR} if PAIR in splits["train"].rows[0] and PAIR not in data.columns else {})}
    unread = [name for name in data.ignore_columns if name in get_unread_columns(splits)]
    return recipe.replace("data", columns=columns, ignore_columns=unread)


def read_rows(recipe: Recipe) -> dict[str, int]:
    """Read and check the rows of a recipe, and count them by split; its model need not exist yet."""
    return _count_rows(read_labeled(recipe)[1])


def read_labeled(recipe: Recipe) -> tuple[tuple[str, ...], dict[str, Split]]:
    """Return the label names and the checked splits of a recipe. In the splits, gold labels are names.

    The model of the recipe need not exist yet.
    """
    task = load_task(recipe)
    labels, splits, _ = _find_checked_labels(recipe, task, _read_splits(recipe, task))
    return labels, splits


def find_labels(recipe: Recipe, task: Task, splits: dict[str, Split]) -> tuple[tuple[str, ...], dict[str, Split]]:
    """Find the label names, and draw the training rows that the recipe requests.

    Returns:
        Label names of all rows, and splits with label names as gold values.

    Raises:
        DataError: If a value is not a label, or the training rows have a single label.
    """
    if not task.HAS_LABEL_NAMES:
        return (), {**splits, "train": draw_training_rows(splits["train"], recipe)}
    gold = task.COLUMNS.gold
    # Labels that only other splits have come after the labels of the training rows.
    columns = (split.column(gold) for name, split in splits.items() if name != "train")
    names = recipe.labels or reduce(add_unseen_names, columns, find_names(splits["train"].column(gold)))
    labeled_splits = {name: replace_raw_labels(split, gold, names, recipe.data) for name, split in splits.items()}
    # `train_rows_per_label` draws the same number of rows per label, so leave out labels without training rows.
    if recipe.data.sampling_keys:
        unseen_names = find_unseen_names(labeled_splits, gold)
        drawn_names = [name for name in names if name not in unseen_names]
        labeled_splits["train"] = draw_training_rows(labeled_splits["train"], recipe, gold, drawn_names)
    if len(set(map(str, labeled_splits["train"].column(gold)))) < 2:
        find_names(labeled_splits["train"].column(gold))  # called for its check: a single label is an error
    return tuple(names), labeled_splits


def _read_splits(recipe: Recipe, task: Task) -> dict[str, Split]:
    """Read the training and validation rows. Only the training rows need soft labels, which can replace gold labels."""
    if (distillation := recipe.distillation) and distillation.soft_labels:
        columns = {**recipe.data.columns, SOFT_LABELS: distillation.soft_labels}
        splits = read_task_splits(recipe.replace("data", columns=columns), task, lambda name: name == "train")
        if any(split.is_held_out and task.COLUMNS.gold not in split.rows[0] for split in splits.values()):
            remedy = "name a file that has them: --set data.files.validation=FILE"
            raise DataError("no gold labels, which validation rows need", remedy, file=recipe.data.source)
        # Report unread columns only for the train split, where the column of soft labels is read.
        validation = read_task_splits(recipe, task, is_validation, check_rest=True)
        splits |= {name: replace(split, unread_columns=()) for name, split in validation.items()}
    else:
        splits = read_task_splits(recipe, task, lambda name: name == "train" or is_validation(name), check_rest=True)
    for required in ("train", "validation"):
        if required not in splits:
            raise missing_split_error(required, recipe.data, splits)
    return splits


def _find_checked_labels(
    recipe: Recipe, task: Task, splits: dict[str, Split]
) -> tuple[tuple[str, ...], dict[str, Split], tuple[str, ...]]:
    """Find the labels, and log warnings about the rows once, except for demo rows.

    Returns:
        Label names, splits with label names as gold values, and warnings.
    """
    data, columns = recipe.data, task.COLUMNS
    splits = {**splits, "train": fill_gold(splits["train"], columns.gold)}
    finds_names = task.HAS_LABEL_NAMES and not recipe.labels
    is_checked = data.source != "demo"
    if finds_names:
        check_swapped(splits["train"], columns, data)
    if unread_columns := get_unread_columns(splits):
        log_once(f"columns not used: {', '.join(name or repr(name) for name in unread_columns)}")
    warnings = describe_unread(unread_columns, data, columns.optional)
    train = splits["train"]  # Warnings about other splits go with their scores.
    warnings += [f"{train.source}: {warning}" for warning in train.warnings]
    if is_checked:
        warnings += find_suspicious_columns(splits["train"], columns, data, finds_names=finds_names)
    # Warn about columns first: they can be the cause of an error about labels.
    _log_warnings(warnings)
    labels, splits = find_labels(recipe, task, splits)
    if is_checked:
        row_warnings = describe_unseen(splits, columns.gold) if task.HAS_LABEL_NAMES else []
        row_warnings += describe_skew(splits["train"], columns.gold, labels, recipe) if task.HAS_LABEL_NAMES else []
        row_warnings += find_odd_rows(splits, columns, found_names=labels if finds_names else ())
        _log_warnings(row_warnings)
        warnings += row_warnings
    return labels, splits, tuple(warnings)


def _use_soft_labels(recipe: Recipe, train: Split, labels: tuple[str, ...], gold: str) -> tuple[Recipe, Any]:
    """Compare the soft labels of the training rows, if they have any, with the gold column.

    Returns:
        The recipe, whose loss has only the soft term if there are no gold labels; and the results of
        `measure_agreement` for the record of the run, or an empty dictionary if there is nothing to compare.
    """
    if recipe.distillation is None or not recipe.distillation.soft_labels:
        return recipe, {}
    probabilities = get_probabilities(train, labels, recipe.distillation.soft_labels)
    if not gold:
        log_once(f"{train.source} has no gold labels, so the loss has only the soft term (soft_weight 1)")
        return recipe.replace("distillation", soft_weight=1.0), {}
    agreement, kappa = measure_agreement(probabilities, list(map(labels.index, train.column(gold))))
    warning = "" if kappa > 0 else "warning: soft labels seem to be in the wrong order: "
    log_once(
        f"{warning}the most probable soft label is gold in {agreement:.1%} of training rows (Cohen's kappa {kappa:.3f})"
    )
    return recipe, {"agreement": agreement, "kappa": kappa}


def _log_warnings(warnings: list[str]) -> None:
    for warning in warnings:
        log_once(f"warning: {warning}")


def _find_identity(
    recipe: Recipe, splits: dict[str, Split], labels: tuple[str, ...], model_folder: Path
) -> dict[str, Any]:
    settings = recipe.model_dump(mode="json", exclude=_NOT_IDENTITY)
    if recipe.distillation:
        settings["distillation"].pop("teachers")  # the identity has the fingerprints of teachers, not their names
    settings["data"] = {key: value for key, value in settings["data"].items() if key not in _EXCLUDED_DATA_KEYS}
    return {
        "recipe": settings,
        "data": {name: split.fingerprint() for name, split in splits.items()},
        "model": fingerprint(model_folder),
        "labels": list(labels),
        **({"hold_out": recipe.data.hold_out} if splits["validation"].is_held_out else {}),
    }


def _count_rows(splits: dict[str, Split]) -> dict[str, int]:
    return {name: len(split.rows) for name, split in splits.items()}
