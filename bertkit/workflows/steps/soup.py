"""A model soup: the mean of the weights of several runs, as a run that trains nothing (Wortsman et al. 2022)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.evaluation.checkpoint import Checkpoint
from bertkit.modeling.load import fingerprint
from bertkit.progress import Progress
from bertkit.recipe import Recipe
from bertkit.tasks import Task
from bertkit.tokens.features import Collator, Feature, Setup
from bertkit.workflows.steps.finetune_inputs import FinetuneInputs

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from bertkit.data.rows import Split
    from bertkit.distillation.teachers import Teacher
    from bertkit.training.losses import Terms


@dataclass(frozen=True)
class SoupSupervision:
    """Nothing to learn from: the model is the mean of others."""

    recipe: Recipe
    sources: tuple[Path, ...]
    """Folders of the runs."""
    identity: Mapping[str, Any]
    teachers: tuple[Teacher, ...] = ()
    trains: bool = False

    def checked(self, task: Task, labels: tuple[str, ...], model_folder: Path) -> SoupSupervision:
        """Return it as it is: its runs are finished."""
        return self

    def load_model(self, task: Task, folder: Path, setup: Setup) -> PreTrainedModel:
        """Load the models of the runs, one after the other, and return one with the mean of their weights."""
        return average(self.sources, task, setup)

    @contextmanager
    def learning(
        self, checkpoint: Checkpoint, split: Split, features: Sequence[Feature], gold: Terms, progress: Progress
    ) -> Iterator[tuple[Terms, Collator]]:
        """Yield what a task learns from, though nothing is trained."""
        yield gold, checkpoint.task.collator(checkpoint.setup)


def average(folders: Sequence[Path], task: Task, setup: Setup) -> PreTrainedModel:
    """Load the models of some folders, and return the first with the mean of the weights of all.

    The sums are in float64, so the mean does not depend on the order of the folders.
    """
    import torch

    model = task.load_model(folders[0], setup, new_head=False)
    with torch.no_grad():
        sums = {name: parameter.double() for name, parameter in model.named_parameters()}
        for folder in folders[1:]:
            for name, parameter in task.load_model(folder, setup, new_head=False).named_parameters():
                sums[name] += parameter
        for name, parameter in model.named_parameters():
            parameter.copy_(sums[name] / len(folders))
    return model


def soup_inputs(inputs: FinetuneInputs, folder: Path, sources: Sequence[Path]) -> FinetuneInputs:
    """Return the inputs of the run, in a folder, whose model is the mean of those of other runs of the same inputs."""
    identity = {**inputs.plan.identity, "soup": [fingerprint(source) for source in sources]}
    names = ", ".join(source.name for source in sources)
    note = f"The weights are the mean of those of {len(sources)} runs that differ in their seed ({names})."
    return replace(
        inputs,
        plan=replace(inputs.plan, folder=folder, identity=identity),
        supervision=SoupSupervision(inputs.recipe, tuple(sources), {}),
        warnings=(*inputs.warnings, note),
    )
