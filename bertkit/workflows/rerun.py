"""Repeat a finished run from its record, and compare both runs: scores, weights, versions and machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from bertkit.data.sources import use_recorded_data
from bertkit.errors import ModelError, RecipeError, ResourceError, UsageError
from bertkit.progress import log, stage
from bertkit.recipe.plugins import trusts_folders
from bertkit.recipe.records import PretrainRecipe, Recipe
from bertkit.recipe.sections import expand_path
from bertkit.recipe.yaml import read_yaml
from bertkit.storage import runs
from bertkit.storage.fingerprints import file_fingerprint
from bertkit.storage.run_list import flatten_keys, read_log
from bertkit.storage.run_sets import is_seeds_folder, seed_folders
from bertkit.storage.runs import RunRecord
from bertkit.training.run import changed_inputs_error, wait_for_all
from bertkit.workflows import distill, finetune, finetune_data, pretrain, pretrain_data

_RECIPE = "recipe.yaml"
# Keys of `data` that locate the rows.
_LOCATION = ("source", "config", "revision", "files")
_WEIGHTS = (".safetensors", ".bin")
_MACHINE = ("device", "precision", "threads", "matmul_backend")
# Keys of the identity with checksums.
_INPUTS = ("data", "model", "tokenizer", "teachers")


def rerun(
    run: str | Path,
    *,
    output: str | Path | None = None,
    changes: Mapping[str, str] | None = None,
    ignore_changes: bool = False,
    restart: bool = False,
) -> dict[str, Any]:
    """Repeat a finished run in a new folder from its record, with the same number of threads and the same precision.

    Args:
        run: Folder of the run.
        output: New folder; by default, the folder of the run with ``-rerun`` after its name.
        changes: New locations of data and model: ``data`` or ``model`` -> path or Hub name.
        ignore_changes: Whether to train even if data or model have changed; the comparison lists the changes.
        restart: Whether to move the contents of the new folder aside.

    Returns:
        The comparison of both runs; see `compare_runs`.

    Raises:
        UsageError: If the folder is not a run that can be repeated, such as a folder of seeds.
        DataError: If the rows have changed since the run.
        ModelError: If the run is not finished, or the model that it started from has changed.
        BertkitError: If anything else prevents the run; see `bertkit.errors`.
    """
    # 1. Read the record and the recipe of the run.
    folder = expand_path(run)
    record = _read_finished(folder)
    target = runs.run_folder(output or folder.with_name(f"{folder.resolve().name}-rerun"), "")
    if folder.resolve() in (target.resolve(), *target.resolve().parents):
        raise UsageError("the run folder cannot contain its repetition", "choose another --output", file=target)
    recipe = _recorded_recipe(folder, record, changes or {})

    # 2. Read the inputs, compare their checksums with the record, and train with the machine settings of the record, so
    #    that only the environment can differ.
    if isinstance(recipe, PretrainRecipe):
        # Compare the model first, because preparing a corpus can take hours.
        _check_inputs(record["identity"], pretrain_data.get_model_digests(recipe), ignore_changes)
        corpus_data = pretrain_data.read_pretrain_data(recipe, target)
        _check_inputs(record["identity"], corpus_data.plan.identity, ignore_changes)
        plan = replace(corpus_data.plan, machine=record["machine"])
        pretrain.pretrain_corpus(replace(corpus_data, plan=plan), restart=restart)
    else:
        with stage("reading the data", total=1):
            # `as_recorded` holds out the same rows of a file without splits.
            data = finetune_data.read_finetune_data(use_recorded_data(recipe, record["identity"]), target)
        _check_inputs(record["identity"], data.plan.identity, ignore_changes)
        train = distill.distill_rows if "compared_models" in record else finetune.finetune_rows
        train(data.with_machine(record["machine"]), restart=restart)
    wait_for_all()

    # 3. Compare both runs.
    return compare_runs(folder, target)


def compare_runs(before: Path, now: Path) -> dict[str, Any]:
    """Compare two finished runs by their records and logs.

    Returns:
        A dictionary with the folders ``run`` and ``folder`` (the repetition); ``scores``, a list of ``split``,
        ``metric``, ``before`` and ``now``; ``weights_agree``, or None without checksums; ``first_difference``, the
        first step whose logged losses or scores differ, or None; ``differences``, see `find_differences`; and
        ``scores_agree``, whether all digits of all scores are equal.
    """
    old, new = runs.read_record(before) or {}, runs.read_record(now) or {}
    old_scores, new_scores = _list_scores(old), _list_scores(new)
    scores = [
        {
            "split": split,
            "metric": metric,
            "before": old_scores.get((split, metric)),
            "now": new_scores.get((split, metric)),
        }
        for split, metric in dict.fromkeys([*old_scores, *new_scores])
    ]
    old_weights, new_weights = (
        {name: entry["sha256"] for name, entry in record.get("files", {}).items() if name.endswith(_WEIGHTS)}
        for record in (old, new)
    )
    # `zip_longest` extends the shorter log with empty entries, so a missing entry is a difference.
    log_entries = zip_longest(read_log(before), read_log(now), fillvalue=dict[str, Any]())
    differing_steps = (first.get("step", second.get("step")) for first, second in log_entries if first != second)
    return {
        "run": str(before),
        "folder": str(now),
        "scores": scores,
        "weights_agree": old_weights == new_weights if old_weights and new_weights else None,
        "first_difference": next(differing_steps, None),
        "differences": find_differences(old, new),
        "scores_agree": all(score["before"] == score["now"] for score in scores),
    }


def _list_scores(record: Mapping[str, Any]) -> dict[tuple[str, str], float | None]:
    """Return (split, metric) -> score; for a pretraining run, the split is "held-out text"."""
    results = record.get("results", [])
    if "result" in record:
        results = [{"split": "held-out text", "scores": record["result"]["scores"]}]
    return {(result["split"], metric): score for result in results for metric, score in result["scores"].items()}


def find_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[dict[str, Any]]:
    """List the differences between two records that can change results: versions, machine, settings, data and model.

    >>> find_differences({"machine": {"threads": 1}}, {"machine": {"threads": 2}})
    [{'what': 'machine.threads', 'before': 1, 'now': 2}]
    """
    before, now = (flatten_keys(_list_conditions(record)) for record in (old, new))
    return [
        {"what": name, "before": before.get(name), "now": now.get(name)}
        for name in dict.fromkeys([*before, *now])
        if before.get(name) != now.get(name)
    ]


def _list_conditions(record: Mapping[str, Any]) -> dict[str, Any]:
    # Other keys of `machine` describe how the machine was chosen, which does not change results. Only the name of the
    # accelerator can change them; `reason` starts with this name: "NVIDIA H100: bf16, ...".
    machine = record.get("machine", {})
    processor = machine.get("reason", "").partition(":")[0] if machine.get("device", "cpu") != "cpu" else None
    return {
        "versions": record.get("versions", {}),
        "machine": {name: machine.get(name) for name in _MACHINE} | {"processor": processor},
        "platform": record.get("platform"),
        **{"settings" if name == "recipe" else name: value for name, value in record.get("identity", {}).items()},
    }


def _read_finished(folder: Path) -> RunRecord:
    """Read the record of a run that can be repeated; see `rerun` for the errors."""
    if is_seeds_folder(folder):
        first_run = next(iter(seed_folders(folder)), None)
        remedy = "name one of its runs" if first_run is None else f"name one of its runs: {first_run}"
        raise UsageError("a folder of seeds, not one run", remedy, file=folder)
    try:
        record = runs.read_record(folder)
    except ResourceError as error:
        raise ModelError(error.message, "restore the file", file=error.file) from None
    if record is None:
        raise UsageError("not a run folder", "name a folder that finetune, distill or pretrain wrote", file=folder)
    if record["status"] != "finished":
        message = f"the run is not finished ({record['status']})"
        raise ModelError(message, "repeat the command that started it", file=folder)
    if "pruned" in record["identity"]:
        message = "a pruned model is made from a run without training"
        raise UsageError(message, f"repeat the run, then {record.get('command', 'bertkit prune')}", file=folder)
    return record


def _recorded_recipe(folder: Path, record: Mapping[str, Any], changes: Mapping[str, str]) -> Recipe | PretrainRecipe:
    """Return the recipe of a run: settings from its record, and the locations of data and models from recipe.yaml.

    The record includes the defaults of the release that trained the run, but no tuned options.

    Raises:
        ResourceError: If recipe.yaml is missing or has changed.
        RecipeError: If this release cannot read a setting.
        UsageError: If the run had a time budget.
    """
    from pydantic import ValidationError

    file, settings = folder / _RECIPE, record["identity"]["recipe"]
    checksum = record.get("files", {}).get(_RECIPE, {}).get("sha256")
    if not file.is_file() or checksum not in (None, file_fingerprint(file)):
        message = "the recipe of the run is missing" if not file.is_file() else "the recipe of the run has changed"
        raise ResourceError(message, "restore the file", file=file)
    # 1. Merge recipe.yaml, which has the locations, and the record, which has the defaults of that release. The record
    #    overrides recipe.yaml, section by section.
    values = read_yaml(file.read_text(encoding="utf-8"), file)[0]
    sections = {name: values.get(name) or {} for name in ("data", "training", "distillation")}
    for name, section in sections.items():
        if settings.get(name) is not None or name not in settings:
            sections[name] = {**section, **settings.get(name, {})}
    values = {**values, **settings, **{name: section for name, section in sections.items() if section}}

    # 2. Replace the locations that have changed.
    if changes.get("data"):
        # Keep the config of the demo data, because it selects their rows.
        is_demo = changes["data"] == values["data"].get("source") == "demo"
        data = {name: value for name, value in values["data"].items() if name not in _LOCATION or is_demo}
        values["data"] = {**data, "source": changes["data"]}
    if changes.get("model"):
        values["model"] = changes["model"]

    # 3. Validate. A run with a time budget cannot be repeated, because its steps depend on the load of the machine.
    if values.get("training", {}).get("budget"):
        message = "the run had a time budget (training.budget), so a repetition could have a different number of steps"
        raise UsageError(message, f"`bertkit pretrain {file} --steps {record['steps']}` trains as long", file=folder)
    try:
        record_type = PretrainRecipe if "objective" in values else Recipe
        recipe = record_type.model_validate(values, context={"trusted": trusts_folders()})
    except ValidationError as error:
        first = error.errors()[0]
        message = f"this release cannot read {'.'.join(map(str, first['loc']))} of the run's recipe: {first['msg']}"
        version = record.get("versions", {}).get("bertkit", "the release that trained it")
        raise RecipeError(message, f"repeat it with bertkit {version}", file=file) from None
    return recipe


def _check_inputs(recorded: Mapping[str, Any], current: Mapping[str, Any], ignore_changes: bool) -> None:
    """Check that the current inputs have the checksums of the record; with `ignore_changes`, only log differences.

    Raises:
        DataError: If only rows differ.
        ModelError: If the model, the tokenizer or the teachers differ.
    """
    names = [name for name in _INPUTS if name in recorded and name in current]
    before, now = ({name: identity[name] for name in names} for identity in (recorded, current))
    changes = runs.compare_identities(before, now)
    if not changes:
        return
    message = f"the inputs differ from the run's: {'; '.join(map(str, changes))}"
    if ignore_changes:
        log.warning(f"warning: {message}")
        return
    remedy = "restore them, name them with --data and --model, or --ignore-changes to repeat it anyway"
    raise changed_inputs_error(changes, message, remedy)
