"""Pretrain under several settings, fine-tune each encoder with several seeds, and compare the scores.

runs/mlm-ablation/
├── pretrained/mlm, pretrained/nsp ...   run folders, one per setting
├── sst2/mlm, sst2/nsp ...               folders of seeds, one per setting and task
├── sst2.html ...                        a page per task, as `bertkit compare` writes it
└── ablation.json                        the summary; written last
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from bertkit.errors import BertkitError, RecipeError, UsageError
from bertkit.evaluation.held_out import make_held_out_features
from bertkit.metrics.baselines import Baselines, find_baseline_warning
from bertkit.pretraining.objectives import load_objective
from bertkit.progress import log
from bertkit.recipe.load import load_pretrain_recipe, load_recipe
from bertkit.recipe.records import PretrainRecipe, Recipe
from bertkit.recipe.space import SweepPoint, SweepSpace, name_value
from bertkit.storage import runs
from bertkit.storage.files import disk_errors, write_json
from bertkit.storage.outputs import lock_output
from bertkit.storage.run_sets import read_seeds, seed_folder
from bertkit.workflows.compare import compare, write_page
from bertkit.workflows.finetune_data import read_rows
from bertkit.workflows.pretrain import pretrain_corpus
from bertkit.workflows.pretrain_data import read_pretrain_data
from bertkit.workflows.pretrain_plan import PretrainEstimate, estimate
from bertkit.workflows.runset import Failures, RunSet, continue_on_error, first_failure, train_all
from bertkit.workflows.seeds import finetune_seeds

SUMMARY = "ablation.json"
_SCHEMA = 1
_PRETRAINED = "pretrained"

TaskRecipe = tuple[str, Mapping[str, Any]]
"""Name or file of a recipe, and its changes: dotted key -> value."""


@dataclass
class Ablation(RunSet):
    """A checked ablation: its pretrainings are a set of runs, and each fine-tuning is a set of seeds.

    Args:
        folder: Folder of all runs.
        names: Run folders of the pretrainings.
        space: Grid over keys of the pretraining recipe.
        points: Variant -> its values of these keys.
        recipes: Variant -> its pretraining recipe.
        tasks: Name of a task -> its recipe and changes.
        failures: Variant -> the error that ended it.
    """

    space: SweepSpace
    points: dict[str, SweepPoint]
    recipes: dict[str, PretrainRecipe]
    tasks: dict[str, TaskRecipe]
    failures: Failures = field(default_factory=dict)
    folder_kind = "an ablation"
    keeps_going = True

    def is_begun(self) -> bool:
        """Return whether the folder holds an ablation."""
        return any((self.folder / name).exists() for name in (SUMMARY, _PRETRAINED))

    def title(self, name: str) -> str:
        """Return the variant of a pretraining."""
        return name.removeprefix(f"{_PRETRAINED}/")

    def train(self, name: str) -> None:
        """Pretrain a variant, or resume."""
        variant = self.title(name)
        log.info(f"{variant}: pretraining, {self.names.index(name) + 1} of {len(self.names)}")
        pretrain_corpus(read_pretrain_data(self.recipes[variant], self.folder / name), restart=False)

    def encoder_folder(self, variant: str) -> Path:
        """Return the run folder of a pretraining."""
        return self.folder / _PRETRAINED / variant

    def load_task_recipe(self, task: str, variant: str) -> Recipe:
        """Load the recipe of a fine-tuning of an encoder."""
        name, changes = self.tasks[task]
        return load_recipe(name, {**changes, "model": str(self.encoder_folder(variant))})


def ablate(job: Ablation, seeds: Sequence[int]) -> tuple[dict[str, Any], BertkitError | None]:
    """Pretrain at each point of a grid, fine-tune each encoder on each task with each seed, and compare the scores.

    Finished runs are kept, and interrupted runs are resumed. A variant that fails does not end the others.

    Returns:
        The content of ``ablation.json`` with the ``folder``, and the error of the first variant that failed.
    """
    with job.lock():
        # 1. Read all rows and texts: a wrong row of the last task must not end an ablation after days.
        _check_inputs(job)

        # 2. Pretrain the variants.
        job.failures |= train_all(job)

        # 3. Fine-tune task by task, so that the table of a task is complete early. Skip variants that have failed.
        for task, variant in product(job.tasks, job.recipes):
            if variant not in job.failures:
                log.info(f"{variant}: {task}")
                with continue_on_error(variant, job.failures, fatal=UsageError), _suggest_output(job):
                    folder = job.folder / task / variant
                    _, error = finetune_seeds(job.load_task_recipe(task, variant), seeds, output=folder)
                    if error is not None:
                        raise error

        # 4. Compare the variants, which also writes a page per task. The summary comes last.
        summary = {
            "space": {axis.key: axis.text for axis in job.space.axes},
            "seeds": list(seeds),
            "variants": [_describe_variant(job, variant) for variant in job.points],
            "tasks": list(filter(None, (_compare_variants(job, task, seeds) for task in job.tasks))),
        }
        recipe_name = next(iter(job.recipes.values())).name
        with disk_errors(job.folder):
            header = {"schema_version": _SCHEMA, "command": runs.command(), "recipe": recipe_name}
            write_json(job.folder / SUMMARY, {**header, **summary})
    return {"recipe": recipe_name, "folder": str(job.folder), **summary}, first_failure(job.failures)


def dry_run(job: Ablation, seeds: Sequence[int]) -> dict[str, Any]:
    """Check everything that can be checked without training, and time some steps of each pretraining.

    Returns:
        ``folder``; ``variants``: name -> `PretrainEstimate`; ``rows``: task -> split -> number of rows; and the number
        of ``finetunings``.
    """
    rows = _check_inputs(job)
    estimates = dict[str, PretrainEstimate]()
    for name, recipe in job.recipes.items():
        try:
            estimates[name] = estimate(recipe, output=job.encoder_folder(name))
        except BertkitError as error:
            raise error.with_prefix(name) from None
    finetunings = len(job.recipes) * len(rows) * len(seeds)
    return {"folder": str(job.folder), "variants": estimates, "rows": rows, "finetunings": finetunings}


def check_ablation(
    name: str, space: SweepSpace, tasks: Sequence[TaskRecipe], changes: Mapping[str, Any], output: str | Path | None
) -> Ablation:
    """Load all recipes, and check the folder, before anything is read.

    `space` is a grid over keys of the pretraining recipe. The other points are compared with its first point.
    """
    # 1. Check the options against each other.
    if not tasks:
        raise UsageError("--finetune is missing", "name a recipe to compare the encoders on: --finetune sst2")
    for axis in space.axes:
        if axis.key in changes:
            raise UsageError(f"{axis.key} is both set and varied", "leave one of them out")

    # 2. Load the recipes of all variants and tasks, so that a wrong value is an error before the training.
    points = name_variants(list(space.points(0)))
    recipes = {}
    for variant, point in points.items():
        try:
            recipes[variant] = load_pretrain_recipe(name, {**changes, **point})
            load_objective(recipes[variant])
        except RecipeError as error:
            raise error.with_prefix("--space") from None
    tasks_by_name: dict[str, TaskRecipe] = {}
    for task, settings in tasks:
        if "model" in settings:
            raise UsageError("--finetune sets `model`", "leave out model=...: the pretrained encoders are fine-tuned")
        task_name = load_recipe(task, settings).name
        # Each task has a folder of its name, next to the folder of the pretrainings.
        if task_name in tasks_by_name or task_name == _PRETRAINED:
            message = f"--finetune: two recipes are called {task_name}"
            raise UsageError(message, "rename one: --finetune 'RECIPE name=other'")
        tasks_by_name[task_name] = task, settings

    # 3. Check the folder.
    folder = runs.run_folder(output, f"{next(iter(recipes.values())).name}-ablation")
    job = Ablation(folder, [f"{_PRETRAINED}/{variant}" for variant in recipes], space, points, recipes, tasks_by_name)
    job.check()
    return job


def _check_inputs(job: Ablation) -> dict[str, dict[str, int]]:
    """Read the rows of all tasks, prepare all text and build the held-out examples before anything is trained.

    Returns:
        Name of a task -> split -> number of rows.

    Raises:
        BertkitError: If rows or texts are missing or wrong, or a run in the folder has other settings.
    """
    # The encoders are not pretrained yet. Rows do not depend on the encoder, so the recipe of any variant will do.
    rows = {task: read_rows(job.load_task_recipe(task, next(iter(job.recipes)))) for task in job.tasks}
    for variant, recipe in job.recipes.items():
        inputs = read_pretrain_data(recipe, job.encoder_folder(variant))
        with _suggest_output(job):
            runs.check_run_folder(inputs.plan.folder, inputs.plan.identity)
        make_held_out_features(inputs.corpus["validation"], inputs.objective, inputs.context)
    return rows


@contextmanager
def _suggest_output(job: Ablation) -> Iterator[None]:
    """Replace the remedy of an error about a folder with other runs: suggest a new --output of this command."""
    try:
        yield
    except UsageError as error:
        remedy = f"use --output {runs.free_name(job.folder)} for a new ablation"
        raise UsageError(error.message, remedy, file=error.file) from None


def name_variants(points: Sequence[SweepPoint]) -> dict[str, SweepPoint]:
    """Return folder name -> point of a grid. The name joins the values; a number follows its key.

    >>> list(name_variants([{"objective": "mlm", "options.mask_rate": 0.15}, {"size": "a/b"}]))
    ['mlm-mask_rate=0.15', 'b']
    """
    # Append the index of the point to names that occur twice, or that would be `.` or `..`.
    names = ["-".join(_name_setting(key, value) for key, value in point.items()) for point in points]
    counts = Counter(names)
    return {
        name if counts[name] == 1 and name.strip(".") else f"{name}-{index}": point
        for index, (name, point) in enumerate(zip(names, points, strict=True), start=1)
    }


def _name_setting(key: str, value: object) -> str:
    name = re.sub(r"[^\w.+-]+", "_", name_value(value).split("/")[-1])
    return name if isinstance(value, str) else f"{key.split('.')[-1]}={name}"


def _describe_variant(job: Ablation, name: str) -> dict[str, Any]:
    """Describe a variant by its settings and, if it is finished, by the result of its pretraining."""
    record, error = runs.read_record(job.encoder_folder(name)), job.failures.get(name)
    result: dict[str, Any] = {"scores": {}, "parameters": 0, "steps": 0, "tokens": 0, "seconds": 0.0}
    if record is not None and record["status"] == "finished":
        result = {key: record["result"][key] for key in result}
    return {"name": name, "settings": job.points[name], **result, "failure": "" if error is None else str(error)}


def _compare_variants(job: Ablation, task: str, seeds: Sequence[int]) -> dict[str, Any] | None:
    """Compare the variants on a task with the first variant, or return None if fewer than two have finished.

    In the result, ``failures`` has the failed seeds of a variant, and ``baseline`` the score of the null model.
    """
    # 1. Compare the variants whose run has finished or, with several seeds, at least two of their runs.
    paths, results = {}, []
    for variant in job.recipes:
        folder = job.folder / task / variant
        records = [runs.read_record(seed_folder(folder, seed)) or {} for seed in seeds]
        seed_results = [record["results"][0] for record in records if record.get("status") == "finished"]
        results += seed_results
        if len(seeds) == 1 and seed_results:
            paths[variant] = seed_folder(folder, seeds[0])
        elif len(seed_results) > 1:
            paths[variant] = folder
    if len(paths) < 2:
        log.warning(f"{task}: nothing to compare, because fewer than two encoders were fine-tuned")
        return None
    comparison = compare(list(paths.values()))
    metric, scores, notes = comparison.best_metric, list[dict[str, Any]](), list[str]()

    # 2. Add the failed seeds and the score of the null model, which the comparison lacks.
    for variant, system in zip(paths, comparison.systems, strict=True):
        # Failed seeds count in the mean: without them, unstable encoders would be favored.
        summary = read_seeds(job.folder / task / variant) or {}
        failures = {run["seed"]: run["failure"] for run in summary.get("runs", ()) if run["failure"]}
        difference = comparison.differences.get(system.name, {}).get(metric)
        notes += [f"failed: {variant}, seed {seed}. {reason}" for seed, reason in failures.items()]
        scores.append(
            {
                "variant": variant,
                "mean": system.scores[metric],
                "seed_scores": system.seed_scores.get(metric, [system.scores[metric]]),
                "difference": asdict(difference) if difference else None,
                "failures": failures,
            }
        )
    # The first baseline is the null model. It does not depend on the encoder, so any result has it.
    baselines: Baselines = dict(list(results[0]["baselines"].items())[:1])
    baseline = next((values.get(metric) for values in baselines.values()), None)
    notes += [*comparison.notes, *find_unlearned(task, [score["mean"] for score in scores], baselines, metric)]
    if baseline is not None:
        notes.append(f"The null model, which reads nothing, has {metric} {baseline:.4f}.")

    # 3. Write the page.
    page = job.folder / f"{task}.html"
    with disk_errors(job.folder), lock_output(page):
        failure_notes = [f"failed: {variant}. {error}" for variant, error in job.failures.items()]
        write_page(page, replace(comparison, notes=[*failure_notes, *notes]))
    header = {"recipe": task, "split": comparison.split, "rows": comparison.rows, "metric": metric}
    return {**header, "scores": scores, "notes": notes, "baseline": baseline}


def find_unlearned(task: str, means: Sequence[float], baselines: Baselines, metric: str) -> list[str]:
    """Return a note if no encoder has learned the task: no mean score beats the null baseline.

    >>> find_unlearned("cola", [0.0, 0.1], {"most frequent label": {"f1": 0.0}}, "f1")
    []
    """
    if not all(find_baseline_warning({metric: mean}, baselines, metric) for mean in means):
        return []
    message = f"No encoder has learned {task}: no mean score beats a baseline, so the differences mean nothing."
    return [f"{message} Pretrain for more --steps, or fine-tune longer: --finetune '{task} training.epochs=10'."]
