"""`bertkit distill`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from bertkit.cli.commands.evaluate import print_results
from bertkit.cli.commands.finetune import SmokeOption, check_smoke_options, print_dry_run, print_next_steps, print_smoke
from bertkit.cli.commands.pretrain import run_pretraining
from bertkit.cli.options import (
    FROM_RECIPE,
    TRAINING_OPTIONS,
    DryRunOption,
    RecipeArgument,
    RestartOption,
    merge_changes,
    option,
    output_option,
    recipe_options,
)
from bertkit.cli.output import (
    format_number,
    format_score,
    print_notes,
    print_result,
    print_table,
    print_with_gates,
    size_cells,
)
from bertkit.errors import UsageError

if TYPE_CHECKING:
    from bertkit.workflows.distill import ComparedModel, DistillResult

ORDER = 50
EXAMPLE = "bertkit distill cola --teacher runs/cola --model demo --data demo"

TeacherOption = Annotated[
    list[str] | None,
    option("Checkpoint fine-tuned for this task; repeat it to learn from the mean of several.", "CKPT", FROM_RECIPE),
]
SoftLabelsOption = Annotated[str | None, option("Column with a probability per label, instead of teachers.", "COLUMN")]
SoftWeightOption = Annotated[float | None, option("Weight of the soft targets in the loss, from 0 to 1.", "X", "0.5")]


@recipe_options(*TRAINING_OPTIONS, "report_to")
def command(
    recipe: RecipeArgument,
    changes: dict[str, Any],
    teacher: TeacherOption = None,
    soft_labels: SoftLabelsOption = None,
    model: Annotated[str | None, option("Student: Hub name, directory or `demo`.", "STUDENT")] = None,
    student_layers: Annotated[
        str | None,
        option("Layers of the first teacher that become the student: indices (0,2,4) or their number (3).", "LAYERS"),
    ] = None,
    temperature: Annotated[
        float | None, option("Temperature, which divides the logits; higher values give softer targets.", "X", "2")
    ] = None,
    soft_weight: SoftWeightOption = None,
    output: Annotated[Path | None, output_option("Run folder.", "DIR", "runs/RECIPE-distilled")] = None,
    dry_run: DryRunOption = False,
    smoke_test: SmokeOption = False,
    restart: RestartOption = False,
) -> None:
    """Distill fine-tuned teachers, or soft labels, into a smaller student encoder.

    The student learns from the gold labels and from the teachers' logits. At the end, teachers and student are
    compared by size, speed and scores. Options override the recipe.

    Soft labels are a column such as {"positive": 0.9, "negative": 0.1}, e.g. from an LLM or from several annotators.

    The recipes distilbert and tinybert pretrain a student on text, with a pretrained teacher.
    """
    # 1. A student is another model, or some layers of the teacher.
    if model is not None and student_layers is not None:
        raise UsageError("--model and --student-layers are both given", "leave one of them out: each defines a student")
    from bertkit.recipe.load import load_pretrain_recipe, load_recipe, recipe_command

    if smoke_test:
        check_smoke_options(output=output, dry_run=dry_run, restart=restart)
    # 2. A pretraining recipe distills a pretrained encoder on text; other recipes distill a fine-tuned model.
    if recipe_command(recipe) == "pretrain":
        if len(teacher or ()) > 1 or any(value is not None for value in (model, soft_labels, soft_weight)):
            message = f"{recipe} is a pretraining recipe, which takes only one --teacher and --student-layers"
            raise UsageError(message, "leave out --model, --soft-labels, --soft-weight and any second --teacher")
        # The `model` of such a recipe is the teacher, whose hidden states or predictions the student matches.
        options = {"options.student_layers": student_layers, "options.temperature": temperature}
        settings: dict[str, Any] = {**options, "model": teacher[0] if teacher else None}
        student = load_pretrain_recipe(recipe, merge_changes(settings, changes))
        run_pretraining(student, output, dry_run=dry_run, smoke_test=smoke_test, restart=restart)
        return
    settings = {
        "model": model,
        # An empty list means that the option was not given, so the recipe's teachers stay.
        "distillation.teachers": teacher or None,
        "distillation.soft_labels": soft_labels,
        "distillation.student_layers": student_layers,
        "distillation.temperature": temperature,
        "distillation.soft_weight": soft_weight,
    }
    # 3. Test, plan or train. The recipe is loaded before the modules that import torch.
    loaded_recipe = load_recipe(recipe, merge_changes(settings, changes))
    from bertkit.workflows import trial_run
    from bertkit.workflows.distill import distill, with_distillation

    if smoke_test:
        print_smoke(trial_run.smoke_finetune(with_distillation(loaded_recipe)))
    elif dry_run:
        plan = trial_run.dry_run(with_distillation(loaded_recipe), output=output, restart=restart)
        print_result(plan, print_dry_run)
    else:
        distillation = distill(loaded_recipe, output=output, restart=restart)

        def print_all(distillation: DistillResult) -> None:
            print_distilled(distillation)
            print_next_steps(loaded_recipe, distillation.results)

        print_with_gates(distillation, print_all, [case for result in distillation.results for case in result.gates])


def print_distilled(distillation: DistillResult) -> None:
    """Print the student's scores, and the comparison with its teachers if it has any."""
    print_results(distillation.results)
    from bertkit.hardware.speed import describe_spreads

    metric = distillation.best_metric
    models = distillation.compared_models
    print_table("size and speed on this machine", [size_cells(_name_model(model), model) for model in models])
    print_notes(describe_spreads(model.spread for model in models))
    # All models score the same rows, so the interval of a difference is narrower than their intervals suggest.
    scores = [_score_line(model, metric) for model in models]
    for result in distillation.results[:1]:
        if models and metric in result.baseline:
            scores.append({"model": "baseline", "score": format_number(result.baseline[metric])})
    print_table(f"{metric} with 95% CI (of differences: bootstrap)", scores)


def _name_model(model: ComparedModel) -> str:
    return f"{model.role} {model.model}"


def _score_line(model: ComparedModel, metric: str) -> dict[str, Any]:
    line = {"model": _name_model(model), "score": format_score(model.scores[metric], model.intervals[metric])}
    if metric in model.difference:
        interval = model.difference_intervals[metric]
        line["student - teacher"] = format_score(model.difference[metric], interval)
    return line
