"""Ensembles: all finished runs of a folder of seeds, whose outputs are combined as their task family says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bertkit.errors import ModelError
from bertkit.evaluation.checkpoint import Checkpoint, SavedCheckpoint, find_checkpoint, open_checkpoint
from bertkit.progress import log
from bertkit.recipe import Recipe, typed_path
from bertkit.storage import hub
from bertkit.storage.seeds import is_seeds_folder, members_of, read_seeds
from bertkit.storage.spool import spool
from bertkit.tasks import Output, Outputs, load_task
from bertkit.tokens.features import Features


def find_members(recipe: Recipe) -> SavedCheckpoint:
    """Find the checkpoint that a recipe names as its model, or the ensemble of all finished runs of a folder of seeds.

    Raises:
        ModelError: as `find_checkpoint`; or the seeds are not finished, or this task family has no ensembles.
    """
    folder = typed_path(recipe.model)
    if not is_seeds_folder(folder):
        return find_checkpoint(recipe)
    summary = read_seeds(folder)
    if summary is None:
        what = "the runs of these seeds are not finished"
        raise ModelError(what, "repeat the command that started them, or name one of the run folders", file=folder)
    task = load_task(recipe)
    names = members_of(summary)
    if len(names) < 2:
        what = f"an ensemble takes at least two finished runs, and there {'is' if names else 'are'} {len(names)}"
        raise ModelError(what, "train with more --seeds, or name a run folder", file=folder)
    if task.combine is None:
        what = f"the task family {recipe.task} has no ensembles: its outputs cannot be combined"
        raise ModelError(what, f"name one of the runs: {folder / names[0]}")
    members = tuple(open_checkpoint(recipe, task, hub.find_model(str(folder / name))) for name in names)
    log.info(f"ensemble of {len(names)} runs: {', '.join(names)}")
    for run in summary["runs"]:
        if run["failure"]:
            log.info(f"{run['folder']} failed{'' if run['folder'] in names else ' and is left out'}: {run['failure']}")
    return replace(members[0], members=members)


def combine_outputs(checkpoint: Checkpoint, by_member: Sequence[Outputs], features: Features) -> Sequence[Output]:
    """Combine the outputs of the members of an ensemble, one list per member, to those of one model."""
    combine = checkpoint.task.combine
    assert combine is not None  # `find_members` has looked
    return spool(
        combine([outputs[number] for outputs in by_member], feature, checkpoint.setup)
        for number, feature in enumerate(features)
    )
