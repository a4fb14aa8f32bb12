"""`bertkit finetune`."""

from __future__ import annotations

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
    ModelOption,
    OutputOption,
    RecipeArgument,
    SeedOption,
    SetOption,
    common_settings,
    load,
)


def finetune(
    recipe: RecipeArgument,
    model: ModelOption = None,
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
    """Fine-tune an encoder as a recipe says, and score it.

    The same command goes on after any interruption. A finished run says so.
    """
    common = common_settings(data, limit, epochs, learning_rate, batch_size, max_length, seed)
    loaded = load(recipe, {**common, "model": model}, changes)
    from bertkit.cli import show
    from bertkit.cli.progress import TerminalProgress
    from bertkit.workflows.finetune import finetune as run

    if dry_run:
        from bertkit.workflows.steps.finetune_inputs import dry_run as plan

        show.show_plan(plan(loaded, output=output, fresh=fresh), as_json=json)
    else:
        results = run(loaded, output=output, fresh=fresh, progress=TerminalProgress())
        show.show_run(results, as_json=json)
