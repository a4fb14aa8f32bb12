"""`bertkit distill`."""

from __future__ import annotations

from typing import Annotated

import typer

from bertkit.cli.options import (
    BatchSizeOption,
    DataOption,
    DryRunOption,
    EpochsOption,
    FreshOption,
    JsonOption,
    LearningRateOption,
    LimitOption,
    MaxLengthOption,
    OutputOption,
    RecipeArgument,
    SeedOption,
    SetOption,
    common_settings,
    load,
)
from bertkit.cli.pretrain import run_pretraining
from bertkit.errors import UsageError

_FIXED = "fixed weights of the losses: no --model, no --soft-weight, no second --teacher"

TeacherOption = Annotated[
    list[str] | None,
    typer.Option(
        "--teacher",
        metavar="CKPT",
        help="A checkpoint fine-tuned for this task; repeat it, and the student learns from their mean.",
        show_default="the recipe's",
    ),
]
StudentOption = Annotated[
    str | None,
    typer.Option("--model", help="The student: hub name, directory, or `demo`.", metavar="STUDENT", show_default=False),
]
LayersOption = Annotated[
    str | None,
    typer.Option(
        "--student-layers",
        metavar="LAYERS",
        help="Make the student of these layers of the first teacher (0,2,4), or of so many (3).",
        show_default=False,
    ),
]
TemperatureOption = Annotated[float | None, typer.Option(help="Softens what the teachers say.", show_default="2")]
SoftWeightOption = Annotated[
    float | None, typer.Option(help="The teachers' share of the loss, from 0 to 1.", show_default="0.5")
]


def distill(
    recipe: RecipeArgument,
    teacher: TeacherOption = None,
    model: StudentOption = None,
    student_layers: LayersOption = None,
    temperature: TemperatureOption = None,
    soft_weight: SoftWeightOption = None,
    data: DataOption = None,
    output: OutputOption = None,
    epochs: EpochsOption = None,
    learning_rate: LearningRateOption = None,
    batch_size: BatchSizeOption = None,
    max_length: MaxLengthOption = None,
    seed: SeedOption = None,
    limit: LimitOption = None,
    changes: SetOption = None,
    dry_run: DryRunOption = False,
    fresh: FreshOption = False,
    json: JsonOption = False,
) -> None:
    """Fine-tune a small encoder on the gold labels and on what fine-tuned teachers say.

    With the recipe distilbert, pretrain one on text and on what a pretrained teacher says of it. At the end, teachers
    and student stand side by side: size, speed, scores, and how far the scores lie apart.
    """
    if model is not None and student_layers is not None:
        raise UsageError("--model and --student-layers", "layers are those of the first teacher: give one or the other")
    common = common_settings(data, limit, epochs, learning_rate, batch_size, max_length, seed)
    from bertkit.recipe import recipe_command

    if recipe_command(recipe) == "pretrain":
        if model is not None or soft_weight is not None or len(teacher or ()) > 1:
            raise UsageError(f"{recipe} takes one teacher's layers and {_FIXED}", "leave the other options out")
        options = {"options.student_layers": student_layers, "options.temperature": temperature}
        settings = {**common, **options, "model": teacher[0] if teacher else None}
        run_pretraining(recipe, settings, changes, output=output, dry_run=dry_run, fresh=fresh, json=json)
        return
    teacher_outputs = {
        "distillation.teachers": teacher or None,
        "distillation.student_layers": student_layers,
        "distillation.temperature": temperature,
        "distillation.soft_weight": soft_weight,
    }
    loaded = load(recipe, {**common, **teacher_outputs, "model": model}, changes)
    from bertkit.cli import show
    from bertkit.cli.progress import TerminalProgress
    from bertkit.workflows import distill as workflow

    if dry_run:
        show.show_plan(workflow.dry_run(loaded, output=output, fresh=fresh), as_json=json)
    else:
        distilled = workflow.distill(loaded, output=output, fresh=fresh, progress=TerminalProgress())
        show.show_distilled(distilled, as_json=json)
