"""Answers of several tasks whose heads stand on one encoder: texts that tasks have in common are encoded once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bertkit.data.columns import describe_unread, source_columns
from bertkit.errors import ModelError
from bertkit.evaluation.checkpoint import Checkpoint, SavedCheckpoint, open_checkpoint
from bertkit.evaluation.scoring import answer_rows
from bertkit.progress import log, stage
from bertkit.recipe import Row, SeveralTasks, typed_path
from bertkit.storage import hub, runs
from bertkit.tasks import Prediction, drop_private_keys, load_family, row_columns
from bertkit.tokens.features import Feature, Features, Rows, max_tokens, padding_collator

if TYPE_CHECKING:
    from bertkit.modeling.heads.several import HeadsOnEncoder


_PLAIN = {"input_ids", "attention_mask", "token_type_ids"}


@dataclass(frozen=True)
class Together:
    """Checkpoints of several tasks, loaded with one encoder; or a single one, whose name is empty."""

    tasks: dict[str, Checkpoint]
    joined: HeadsOnEncoder | None
    """The encoder with all heads; None for a single task."""

    def predict(self, features: Mapping[str, Features], rows: Mapping[str, Rows]) -> dict[str, list[Prediction]]:
        """Return what each task predicts; equal inputs of several tasks go through the encoder once.

        A task whose inputs are more than the tokens of a text, or several texts, is run by itself.
        """
        # Tasks that read the plain tokens of one text can share a pass; for a single task there is nothing to share.
        alike = [name for name, of_task in features.items() if self.joined and self._is_plain(name, of_task)]
        if len(alike) < 2:
            alike = []
        predictions = {
            name: answer_rows(self.tasks[name], of_task, rows[name], f"predicting {name}".rstrip())
            for name, of_task in features.items()
            if name not in alike
        }
        # Equal inputs are computed once, with all heads, and dealt out to the rows that have them.
        different = dict[Any, Feature]()
        keys = {name: [_key(feature) for feature in features[name]] for name in alike}
        for name in alike:
            different |= dict(zip(keys[name], features[name], strict=True))
        if different and self.joined:
            self.joined.answering = alike
            merged = self._run_all(self.joined, list(different.values()))
            positions = {key: number for number, key in enumerate(different)}
            for name in alike:
                prefix = f"{name}."
                of_task = [
                    {field.removeprefix(prefix): value for field, value in output.items() if field.startswith(prefix)}
                    for output in merged
                ]
                task, outputs = self.tasks[name].task, [of_task[positions[key]] for key in keys[name]]
                decoded = task.decode(outputs, features[name], rows[name], self.tasks[name].setup)
                predictions[name] = list(map(drop_private_keys, decoded))
        return predictions

    def _run_all(self, joined: HeadsOnEncoder, features: Features) -> Sequence[Any]:
        from bertkit.evaluation.forward import forward

        checkpoint = max(self.tasks.values(), key=lambda checkpoint: max_tokens(checkpoint.setup))
        collate = padding_collator(checkpoint.setup)
        with stage("predicting", len(features)) as tick:
            return forward(joined, features, collate, precision=checkpoint.machine.precision, tick=tick)[0]

    def _is_plain(self, name: str, features: Features) -> bool:
        checkpoint = self.tasks[name]
        batch = checkpoint.task.collator(checkpoint.setup)(features[:1])
        return batch.keys() <= _PLAIN and batch["input_ids"].dim() == 2


def find_tasks(several: SeveralTasks) -> dict[str, SavedCheckpoint]:
    """Find the checkpoint of each task in the folder of their run.

    Raises:
        ModelError: the folder holds no finished run of these tasks.
    """
    folder = typed_path(several.recipe.model)
    if not folder.is_dir():
        raise ModelError(f"no such folder: {folder}", "--model names the folder of a run of several tasks")
    record = runs.read_record(folder) or {}
    if "tasks" not in record:
        raise ModelError("not a run of several tasks", "name the folder of one with --model", file=folder)
    # Weights of an unfinished run are not in place yet: each task's folder is written at the end.
    if record["status"] != "finished":
        what = f"the run is not finished ({record['status']})"
        raise ModelError(what, "repeat the command that started it", file=folder)
    for name in several.recipes:
        if name not in record["tasks"]:
            raise ModelError(f"the run has no task {name}", f"its tasks: {', '.join(record['tasks'])}", file=folder)
    return {
        name: open_checkpoint(recipe, load_family(recipe), hub.find_model(str(folder / name)))
        for name, recipe in several.recipes.items()
    }


def load_together(saved: Mapping[str, SavedCheckpoint]) -> Together:
    """Load a checkpoint, or several that were trained together, with one encoder for all.

    Raises:
        ModelError: one is damaged, or their encoders differ.
    """
    first, *others = saved
    tasks = {first: saved[first].load(inference=not others)}
    if not others:
        tasks[first].pack_texts()
        return Together(tasks, None)
    from bertkit.modeling.heads.several import check_encoders, join_heads

    tasks |= {name: saved[name].load(tasks[first].machine) for name in others}
    models = {name: checkpoint.model for name, checkpoint in tasks.items()}
    check_encoders(models)
    return Together(tasks, join_heads(models).to(tasks[first].machine.device))


def load_models(saved: Mapping[str, SavedCheckpoint]) -> Together:
    """Load a checkpoint, or those of several tasks; raises as `load_together` does."""
    with stage(f"loading {', '.join(saved) or next(iter(saved.values())).recipe.model_name}"):
        return load_together(saved)


def say_unread(original: Row, saved: Sequence[SavedCheckpoint]) -> None:
    """Say which columns of a row look like input and are read by none of the models."""
    columns = [(name, one.recipe.data) for one in saved for name in row_columns(one.task, one.recipe)]
    used = {column for name, data in columns for column in source_columns(name, data)}
    unread = [name for name in original if name not in used]
    for line in describe_unread(unread, saved[0].recipe.data.model_copy(update={"unread": []}), ()):
        log.warning(f"warning: {line}")


def _key(feature: Feature) -> tuple[Any, ...]:
    """Return what tells the input of a feature from others: its tokens and their types."""
    return tuple(feature["input_ids"]), tuple(feature.get("token_type_ids", ()))
