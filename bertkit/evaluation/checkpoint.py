"""Trained checkpoints: found and checked without their weights, then loaded with the settings of their run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from bertkit.data.labels import make_placeholder_names, match_names
from bertkit.data.sources import use_recorded_data
from bertkit.errors import ModelError, UsageError
from bertkit.evaluation.calibration import SavedCalibration, read_calibration
from bertkit.hardware.device import requested_device
from bertkit.hardware.precision import ComputeConfig, product_widths, restore_hardware, use_matmul_backend
from bertkit.hardware.process import available_threads
from bertkit.modeling.architectures import detect_machine
from bertkit.modeling.checkpoint import check_head, get_label_names, read_config, read_json_object
from bertkit.modeling.tokenizer import load_tokenizer
from bertkit.progress import log
from bertkit.recipe.load import load_recipe
from bertkit.recipe.records import Recipe
from bertkit.recipe.sections import Row, expand_path
from bertkit.storage import hub, runs
from bertkit.storage.exports import is_exported, read_export
from bertkit.storage.hub.models import get_recipe_file
from bertkit.storage.run_sets import is_seeds_folder, list_members, read_seeds
from bertkit.storage.runs import RunRecord
from bertkit.tasks import Task, load_family, with_options
from bertkit.tokens import truncation
from bertkit.tokens.features import TaskContext


@dataclass(frozen=True)
class Checkpoint:
    """Loaded model, with its task, context, hardware and calibration."""

    model: Any
    """A torch module, or a `bertkit.runtime.ExportedModel`, which takes arrays."""
    task: Task
    context: TaskContext
    machine: ComputeConfig
    """Device and precision of the model."""
    members: tuple[Checkpoint, ...] = ()
    """Checkpoints of an ensemble, whose outputs are combined; `model` is the model of the first."""
    unknown_label_count: int = 0
    """Number of labels, at the end of the list, for which the model has no output."""
    calibration: SavedCalibration | None = None
    """Calibration that is applied to the model's probabilities."""

    def use_machine(self) -> None:
        """Set torch's precision to this model's; loading another model has changed it."""
        from bertkit.runtime.model import ExportedModel

        if not isinstance(self.model, ExportedModel):
            use_matmul_backend(self.machine)

    def pack_texts(self) -> None:
        """Enable unpadded batches, which are faster and change outputs by rounding, for models that support them."""
        for checkpoint in (self, *self.members):
            # Only models that were loaded for inference have this method.
            if pack := getattr(checkpoint.model, "pack_texts", None):
                pack()


@dataclass(frozen=True)
class CheckpointInfo:
    """Checkpoint on disk, checked without reading its weights."""

    recipe: Recipe
    task: Task
    folder: Path
    labels: tuple[str, ...]
    """Label names in the order of the model's outputs, spelled as in the recipe if it names them."""
    record: RunRecord
    """Record of its run; empty for a plain Hugging Face folder."""
    members: tuple[CheckpointInfo, ...] = ()
    """Checkpoints of an ensemble, including this first one; empty for a single model."""

    @property
    def member_folders(self) -> tuple[Path, ...]:
        """The folders of the checkpoints of an ensemble; empty for a single model."""
        return tuple(member.folder for member in self.members)

    def in_precision(self, precision: str | None) -> CheckpointInfo:
        """Return this checkpoint with a precision in its recipe; None keeps the recipe's."""
        if precision is None:
            return self
        members = tuple(member.in_precision(precision) for member in self.members)
        return replace(self, recipe=self.recipe.replace("training", precision=precision), members=members)

    def example_row(self) -> Row:
        """Return a demo row with the inputs of its recipe.

        Raises:
            DataError: If its task family has no demo rows.
        """
        from bertkit.data.demo import read_demo_rows

        columns = self.task.COLUMNS
        names = [*columns.inputs, *(name for name in columns.optional if name in self.recipe.data.columns)]
        row = read_demo_rows(self.recipe, "test", 1)[0]
        return {name: row[name] for name in names if name in row}

    @property
    def calibration_folder(self) -> Path:
        """The folder with the calibration: the folder of the model, or of the seeds for an ensemble."""
        return expand_path(self.recipe.model) if self.members else self.folder

    def read_calibration(self) -> SavedCalibration | None:
        """Read its calibration; see `bertkit.evaluation.calibration.read_calibration`."""
        return read_calibration(self.calibration_folder, self.recipe.task, self.member_folders)

    def load(
        self, machine: ComputeConfig | None = None, *, inference: bool = False, calibrated: bool = True
    ) -> Checkpoint:
        """Load the model and its tokenizer.

        Args:
            machine: Device and precision; by default, the precision of its run or else of its weights.
            inference: Whether only outputs are computed and no loss, so that faster modules can replace transformers'.
            calibrated: Whether to apply the temperature and the thresholds in the model folder.

        Raises:
            ModelError: If the weights are damaged or do not fit, or the head is not trained for this task.
        """
        from bertkit.runtime.tokenizer import open_tokenizer

        # 1. Load the model: an ensemble, an exported graph, or weights for torch.
        calibration = self.read_calibration() if calibrated else None
        if self.members:
            loaded = self._load_members(machine, inference=inference)
        elif is_exported(self.folder):
            loaded = self._load_exported()
        else:
            if machine is None:
                machine = self._detect_hardware()
                machine.announce()
            use_matmul_backend(machine)
            # Tokenizer settings in the record make it possible to tokenize without importing transformers.
            settings = self.record.get("tokenizer") if inference else None
            tokenizer: Any = open_tokenizer(self.folder, settings) if settings else load_tokenizer(self.folder)
            context = self._set_up(TaskContext(self.recipe, tokenizer, self.labels, inference))
            model = self.task.load_model(self.folder, context, new_head=False)
            loaded = Checkpoint(model.to(machine.device), self.task, context, machine)
        # 2. Apply the calibration. Options that the recipe sets take precedence.
        options = self._keep_unset({} if calibration is None else calibration.options() | calibration.promised)
        if calibration is None or not options:
            return loaded
        log.info(calibration.describe())
        return replace(loaded, context=with_options(loaded.context, options), calibration=calibration)

    def _set_up(self, context: TaskContext) -> TaskContext:
        """Add the options that its run has tuned and log them; warn if the maximum length differs from training."""
        limit = int(context.tokenizer.model_max_length)
        max_length = min(self.recipe.training.max_length, limit)
        run_length = min(self.run_recipe.get("training", {}).get("max_length", max_length), limit)
        if run_length != max_length:
            log.info(f"trained with max_length {run_length}, used with {max_length}")
        tuned_options = self._keep_unset(self.record.get("tuned", {}))
        if tuned_options:
            log.info("as tuned in its run: " + ", ".join(f"{name} {tuned_options[name]:.4g}" for name in tuned_options))
        return with_options(context, self._find_long_text() | tuned_options)

    def _keep_unset(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return options without those that the recipe sets itself."""
        return {name: value for name, value in options.items() if name not in self.recipe.options}

    def _load_exported(self) -> Checkpoint:
        """Load an exported graph, which runs without torch, in the precision that it was exported in.

        Raises:
            ModelError: If the graph computes something other than the recipe requires.
            UnavailableError: If the library is not installed.
            UsageError: If a device other than the CPU is requested.
        """
        from bertkit.runtime.model import open_exported
        from bertkit.runtime.tokenizer import open_tokenizer

        export = read_export(self.folder)
        tokenizer: Any = open_tokenizer(self.folder, export.tokenizer)
        context = self._set_up(TaskContext(self.recipe, tokenizer, self.labels, True, True))
        # The graph contains the head, so options of the head cannot change after the export.
        for name, exported, requested in _changed_head_options(export.options, context.recipe.options):
            message = f"the model was exported with options.{name} {exported}, but the recipe has {requested}"
            raise ModelError(message, "use the recipe.yaml of its folder, or export it again", file=self.folder)
        if (device := requested_device()) not in ("auto", "cpu"):
            message = f"--device {device}: exported models are computed on the CPU"
            raise UsageError(message, "leave out --device", file=self.folder)
        description = f"CPU, {export.backend}: {export.precision} (as exported)"
        log.info(description)
        machine = ComputeConfig("cpu", export.precision, available_threads().number, description)
        return Checkpoint(open_exported(self.folder), self.task, context, machine)

    def _load_members(self, machine: ComputeConfig | None, *, inference: bool) -> Checkpoint:
        """Load the checkpoints of an ensemble, with the means of the options that their runs tuned.

        Calibrations of members are not applied, because the ensemble has its own.
        """
        # All members use the hardware settings of the first, so that they differ only in their weights.
        settings = {"inference": inference, "calibrated": False}
        first = self.members[0].load(machine, **settings)
        other_members = [member.load(first.machine, **settings) for member in self.members[1:]]
        tuned_options = [member.record.get("tuned", {}) for member in self.members]
        means = {name: fmean(options[name] for options in tuned_options) for name in tuned_options[0]}
        context = with_options(first.context, self._keep_unset(means))
        return replace(first, context=context, members=(first, *other_members))

    def _detect_hardware(self) -> ComputeConfig:
        # With a faster precision than its run's, scores would differ in the last digits.
        if self.recipe.training.precision == "auto" and "machine" in self.record:
            return restore_hardware(self.record["machine"], "as in its run")
        config, precision = read_config(self.folder), self.recipe.training.precision
        dtype = config.get("dtype") or config.get("torch_dtype") or "float32"
        if precision == "auto" and not self.record and dtype == "float32":
            precision = "fp32"  # as the model's authors scored it
        return detect_machine(precision, config["model_type"], product_widths(config))

    def _find_long_text(self) -> dict[str, Any]:
        """Return the long-text options of its run, unless the recipe sets them; log the value in effect."""
        if "long_text" not in self.task.OPTIONS or not self.record:
            return {}
        run_options = self.run_recipe.get("options", {})
        run_value, requested = run_options.get("long_text", "head"), self.recipe.options.get("long_text")
        if requested not in (None, run_value):
            log.info(f"trained with long_text {run_value}, used with {requested}")
        if requested is not None or run_value == "head":
            return {}
        log.info(f"as in its run: long_text {run_value}")
        return self._keep_unset({name: run_options[name] for name in truncation.OPTIONS if name in run_options})

    def restore_limit(self, recipe: Recipe) -> Recipe:
        """Return a recipe for a model made from this one, with ``data.limit`` as in training, not as in scoring."""
        return recipe.replace("data", limit=self.run_recipe.get("data", {}).get("limit"))

    @property
    def run_recipe(self) -> dict[str, Any]:
        """Recipe of its run; empty for a plain Hugging Face folder."""
        recipe: dict[str, Any] = self.record.get("identity", {}).get("recipe", {})
        return recipe


def find_checkpoint(recipe: Recipe) -> CheckpointInfo:
    """Find the trained checkpoint that a recipe names as its model.

    Raises:
        ModelError: If the model does not exist, its run is unfinished, its head is untrained, or its labels do not
            match the recipe's.
        UnavailableError: If a name on the Hub is neither cached nor reachable.
    """
    return open_checkpoint(recipe, load_family(recipe), hub.find_model(recipe.model))


def open_trained(model: str, recipe: str | None = None, changes: Mapping[str, Any] | None = None) -> CheckpointInfo:
    """Find a trained checkpoint by its name, with the recipe in its folder, or a recipe that is given.

    Args:
        model: Run folder, checkpoint of a run, exported folder, or any fine-tuned checkpoint.
        recipe: Recipe of a checkpoint that bertkit did not train.
        changes: Dotted keys of the recipe -> values, or None for a value that does not change.

    Raises:
        UsageError: If the model's task is unknown.
        BertkitError: Any other error that `find_checkpoint` raises.
    """
    # Commands pass None for options that were not given, but in a recipe, None can be a value.
    settings = {name: value for name, value in (changes or {}).items() if value is not None}
    folder = hub.find_model(model)
    loaded = load_recipe(recipe or get_recipe_file(model), {**settings, "model": model})
    return open_checkpoint(loaded, load_family(loaded), folder)


def find_members(recipe: Recipe) -> CheckpointInfo:
    """Find the checkpoint that a recipe names as its model, or the ensemble of all finished runs in a folder of seeds.

    Raises:
        ModelError: If `find_checkpoint` raises it, the seeds are unfinished, or the task family has no ensembles.
    """
    folder = expand_path(recipe.model)
    if not is_seeds_folder(folder):
        return find_checkpoint(recipe)
    summary = read_seeds(folder)
    if summary is None:
        message = "the runs of these seeds are not finished"
        raise ModelError(message, "repeat the command that started them, or name one of the run folders", file=folder)
    task = load_family(recipe)
    names = list_members(summary)
    if len(names) < 2:
        message = f"an ensemble needs at least two finished runs, got {len(names)}"
        raise ModelError(message, "train with more --seeds, or name a run folder", file=folder)
    if task.combine is None:
        message = f"the task family {recipe.task} has no ensembles: its outputs cannot be combined"
        raise ModelError(message, f"name one of the runs: {folder / names[0]}")
    members = tuple(open_checkpoint(recipe, task, hub.find_model(str(folder / name))) for name in names)
    log.info(f"ensemble of {len(names)} runs: {', '.join(names)}")
    for run in summary["runs"]:
        if run["failure"]:
            log.info(f"{run['folder']} failed{'' if run['folder'] in names else ' and is left out'}: {run['failure']}")
    return replace(members[0], members=members)


def open_checkpoint(recipe: Recipe, task: Task, folder: Path) -> CheckpointInfo:
    """Check the trained checkpoint in a folder; see `find_checkpoint` for the errors."""
    if is_exported(folder):
        export = read_export(folder)
        # A graph has no class name that would show its head, so the manifest states the task family.
        if export.task not in (recipe.task, task.EXPORTED_AS):
            message = f"the model was exported for {export.task}, but the recipe {recipe.name} is for {recipe.task}"
            raise ModelError(message, "use the recipe.yaml of its folder", file=folder)
        config, record = read_json_object(folder / "config.json") if task.HAS_LABEL_NAMES else {}, export.record
    else:
        from bertkit.modeling.sentence.folder import is_sentence_folder

        config = read_config(folder)
        # An encoder for sentence vectors has no head, and only tasks with labels need one.
        if task.find_labels is None and (task.HAS_LABEL_NAMES or not is_sentence_folder(folder)):
            check_head(config, folder)
        record = runs.read_record(folder) or {}
    labels: Sequence[str] = ()
    if task.find_labels is not None:
        labels = task.find_labels(folder, recipe)
    elif task.HAS_LABEL_NAMES:
        outputs = len(config.get("id2label") or "ab")  # transformers' default is two
        # The user's label names take precedence over the config's, and those over numbers.
        labels = recipe.model_labels or get_label_names(config) or make_placeholder_names(outputs)
        labels = match_names(labels, recipe.labels) if recipe.labels else labels
    return CheckpointInfo(use_recorded_data(recipe, record.get("identity", {})), task, folder, tuple(labels), record)


def _changed_head_options(exported: Mapping[str, Any], requested: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield name, exported value and requested value of each option that changes the outputs of a head."""
    for name in ("multi_label", "method", "layers"):
        if exported.get(name) != requested.get(name):
            yield name, exported.get(name), requested.get(name)
    # Other strategies for long texts change only the inputs of a graph, so they can be chosen after the export.
    strategies = [options.get("long_text", "head") for options in (exported, requested)]
    if strategies[0] != strategies[1] and truncation.HIERARCHICAL in strategies:
        yield "long_text", *strategies
