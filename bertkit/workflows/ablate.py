"""Pretrain under several settings, fine-tune each encoder with several seeds, and compare what came of it.

runs/mlm-ablation/
├── pretrained/mlm, pretrained/nsp ...   run folders, one per setting
├── sst2/mlm, sst2/nsp ...               folders of seeds, one per setting and task
├── sst2.html ...                        a page per task, as `bertkit compare` writes it
└── ablation.json                        the summary; written last
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from bertkit.errors import BertkitError, RecipeError, UsageError
from bertkit.evaluation.ablations import (
    AblatedScore,
    AblatedTask,
    AblationSummary,
    describe_failures,
    describe_variant,
    find_unlearned,
    name_variants,
)
from bertkit.evaluation.held_out import held_out_features
from bertkit.pretraining.objectives import load_objective
from bertkit.progress import log
from bertkit.recipe.load import load_pretrain_recipe, load_recipe
from bertkit.recipe.records import PretrainRecipe, Recipe
from bertkit.recipe.space import Point, Search
from bertkit.storage import runs
from bertkit.storage import seeds as seeds_storage
from bertkit.storage.files import disk_errors, write_json
from bertkit.storage.outputs import claimed
from bertkit.storage.runs import without_folder
from bertkit.workflows.compare import compare, write_page
from bertkit.workflows.finetune_data import read_rows
from bertkit.workflows.pretrain import pretrain_corpus
from bertkit.workflows.pretrain_data import read_pretrain_data
from bertkit.workflows.pretrain_plan import Estimate, estimate
from bertkit.workflows.runset import Failures, RunSet, first_failure, keep_going, train_all
from bertkit.workflows.seeds import finetune_seeds

SUMMARY = "ablation.json"
_SCHEMA = 1
_PRETRAINED = "pretrained"

ThenTask = tuple[str, Mapping[str, Any]]
"""A recipe, and the changes of it."""


@dataclass(frozen=True)
class AblationPlan:
    """What an ablation would do."""

    folder: str
    variants: dict[str, Estimate]
    """Name of a variant -> what its pretraining would take."""
    rows: dict[str, dict[str, int]]
    """Recipe of a task -> split -> rows."""
    finetunings: int


@dataclass
class Ablation(RunSet):
    """A checked ablation: its pretrainings are a set of runs, and each fine-tuning is a set of seeds.

    Args:
        folder: Folder of all runs.
        names: Run folders of the pretrainings.
        search: Grid over keys of the pretraining recipe.
        points: Variant -> its values of these keys.
        recipes: Variant -> its pretraining recipe.
        tasks: Name of a task -> its recipe and the changes of it.
        failures: Variant -> the error that ended it.
    """

    search: Search
    points: dict[str, Point]
    recipes: dict[str, PretrainRecipe]
    tasks: dict[str, ThenTask]
    failures: Failures = field(default_factory=dict)
    contents = "an ablation"
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
        pretrain_corpus(read_pretrain_data(self.recipes[variant], self.folder / name), fresh=False)

    def pretrained(self, variant: str) -> Path:
        """Return the run folder of a pretraining."""
        return self.folder / _PRETRAINED / variant

    def task_recipe(self, task: str, variant: str) -> Recipe:
        """Load the recipe of a fine-tuning of an encoder."""
        name, changes = self.tasks[task]
        return load_recipe(name, {**changes, "model": str(self.pretrained(variant))})


def ablate(job: Ablation, seeds: Sequence[int]) -> tuple[AblationSummary, BertkitError | None]:
    """Pretrain at each point of a grid, fine-tune each encoder on each task with each seed, and compare the scores.

    What is finished is kept, and what was broken off is resumed. A variant that fails does not end the others.

    Returns:
        the summary, which is in ``ablation.json`` too, and the error of the first variant that failed.
    """
    with job.claimed():
        _check_inputs(job)
        job.failures |= train_all(job)
        # Task by task: a table is whole as soon as its task is done. An encoder that failed is left out everywhere.
        for task, variant in product(job.tasks, job.recipes):
            if variant not in job.failures:
                log.info(f"{variant}: {task}")
                with keep_going(variant, job.failures, refused=UsageError), _for_another(job):
                    folder = job.folder / task / variant
                    _, diverged = finetune_seeds(job.task_recipe(task, variant), seeds, output=folder)
                    if diverged is not None:
                        raise diverged
        # Each page is written where its task is compared, and the summary of what the folder holds last.
        variants = [
            describe_variant(name, point, runs.read_record(job.pretrained(name)), job.failures.get(name))
            for name, point in job.points.items()
        ]
        tasks = [compared for task in job.tasks if (compared := _compare_variants(job, task, seeds)) is not None]
        space, recipe = {axis.key: axis.text for axis in job.search.axes}, next(iter(job.recipes.values())).name
        summary = AblationSummary(recipe, str(job.folder), space, list(seeds), variants, tasks)
        with disk_errors(job.folder):
            content = {"schema_version": _SCHEMA, "command": runs.command(), **without_folder(summary)}
            write_json(job.folder / SUMMARY, content)
    return summary, first_failure(job.failures)


def dry_run(job: Ablation, seeds: Sequence[int]) -> AblationPlan:
    """Check everything that can be checked without training, and time some steps of each pretraining."""
    rows = _check_inputs(job)
    estimates = dict[str, Estimate]()
    for name, own in job.recipes.items():
        try:
            estimates[name] = estimate(own, output=job.pretrained(name))
        except BertkitError as error:
            raise error.named(name) from None
    return AblationPlan(str(job.folder), estimates, rows, len(job.recipes) * len(rows) * len(seeds))


def check_ablation(
    name: str, search: Search, tasks: Sequence[ThenTask], changes: Mapping[str, Any], output: str | Path | None
) -> Ablation:
    """Load all recipes, and check the folder, before anything is read.

    `search` is a grid over keys of the pretraining recipe; its first point is what the others are compared with.
    """
    if not tasks:
        raise UsageError("no task to compare the encoders by", "name a recipe: --then sst2")
    for axis in search.axes:
        if axis.key in changes:
            raise UsageError(f"{axis.key} is both set and varied", "leave one of them out")
    # All recipes are loaded before any is trained: a wrong value is an error now, and not after hours.
    points = name_variants(list(search.points(0)))
    recipes = {}
    for variant, point in points.items():
        try:
            recipes[variant] = load_pretrain_recipe(name, {**changes, **point})
            load_objective(recipes[variant])
        except RecipeError as error:
            raise error.named("--space") from None
    of_tasks: dict[str, ThenTask] = {}
    for task, settings in tasks:
        if "model" in settings:
            raise UsageError("--then names a model", "leave it out: each encoder that is pretrained is fine-tuned")
        task_name = load_recipe(task, settings).name
        if task_name in of_tasks or task_name == _PRETRAINED:
            what = f"--then: two recipes are called {task_name}"
            raise UsageError(what, "give one another name: --then 'RECIPE name=other'")
        of_tasks[task_name] = task, settings
    folder = runs.run_folder(output, f"{next(iter(recipes.values())).name}-ablation")
    job = Ablation(folder, [f"{_PRETRAINED}/{variant}" for variant in recipes], search, points, recipes, of_tasks)
    job.check()
    return job


def _check_inputs(job: Ablation) -> dict[str, dict[str, int]]:
    """Read the rows of all tasks, prepare all text and build the held-out examples before anything is trained.

    Returns:
        Recipe of a task -> split -> rows.

    Raises:
        BertkitError: some are missing or wrong, or a run in the folder has other settings.
    """
    rows = {task: read_rows(job.task_recipe(task, next(iter(job.recipes)))) for task in job.tasks}
    for variant, recipe in job.recipes.items():
        inputs = read_pretrain_data(recipe, job.pretrained(variant))
        with _for_another(job):
            runs.check_claim(inputs.plan.folder, inputs.plan.identity)
        held_out_features(inputs.corpus["validation"], inputs.objective, inputs.setup)
    return rows


@contextmanager
def _for_another(job: Ablation) -> Iterator[None]:
    """Let what refuses a folder that holds other runs name the option of this command that helps."""
    try:
        yield
    except UsageError as error:
        remedy = f"--output {runs.free_name(job.folder)} for a new ablation"
        raise UsageError(error.what, remedy, file=error.file) from None


def _compare_variants(job: Ablation, task: str, seeds: Sequence[int]) -> AblatedTask | None:
    """Compare the variants on a task with the first of them; None where fewer than two have enough finished runs."""
    # What is compared is what has finished: a single run, or, with several seeds, a folder with at least two of them.
    paths, results = {}, []
    for variant in job.recipes:
        folder = job.folder / task / variant
        records = {seed: runs.read_record(seeds_storage.seed_folder(folder, seed)) or {} for seed in seeds}
        finished = [seed for seed, record in records.items() if record.get("status") == "finished"]
        results += [records[seed]["results"][0] for seed in finished]
        if len(seeds) == 1 and finished:
            paths[variant] = seeds_storage.seed_folder(folder, seeds[0])
        elif len(finished) > 1:
            paths[variant] = folder
    if len(paths) < 2:
        log.warning(f"{task}: nothing to compare, for fewer than two encoders were fine-tuned")
        return None
    # From here on it is `bertkit compare`, with the first variant as the baseline.
    compared = compare(list(paths.values()))
    metric = compared.best_metric
    # What the comparison does not know: failed seeds, and what a model that knows nothing scores.
    of_seeds = {variant: seeds_storage.read_seeds(job.folder / task / variant) or {} for variant in paths}
    scores = [
        AblatedScore(
            name,
            system.scores[metric],
            system.seed_scores.get(metric, [system.scores[metric]]),
            compared.differences[system.name][metric] if system.name in compared.differences else None,
            {run["seed"]: run["failure"] for run in of_seeds[name].get("runs", ()) if run["failure"]},
        )
        for name, system in zip(paths, compared.systems, strict=True)
    ]
    knows_nothing = dict(list(results[0]["baselines"].items())[:1])
    notes = [*compared.notes, *find_unlearned(task, [score.mean for score in scores], knows_nothing, metric)]
    baseline = next((scores.get(metric) for scores in knows_nothing.values()), None)
    notes += [] if baseline is None else [f"The null model, which reads nothing, has {metric} {baseline:.4f}."]
    notes = [*describe_failures(scores), *notes]
    page = job.folder / f"{task}.html"
    with disk_errors(job.folder), claimed(page):
        failures = [f"failed: {variant}. {error}" for variant, error in job.failures.items()]
        write_page(page, replace(compared, notes=[*failures, *notes]))
    return AblatedTask(task, compared.split, compared.rows, metric, scores, notes, baseline)
