"""Answers of several tasks whose heads stand on one encoder: texts that tasks have in common are encoded once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bertkit.evaluation.checkpoint import Checkpoint, SavedCheckpoint
from bertkit.evaluation.scoring import run_model
from bertkit.progress import Progress
from bertkit.tokens.features import Feature, max_tokens, padding_collator

if TYPE_CHECKING:
    from bertkit.modeling.heads.several import HeadsOnEncoder


_PLAIN = {"input_ids", "attention_mask", "token_type_ids"}


@dataclass(frozen=True)
class Together:
    """Checkpoints of several tasks, loaded with one encoder."""

    tasks: dict[str, Checkpoint]
    joined: HeadsOnEncoder

    def run(self, features: Mapping[str, Sequence[Feature]], progress: Progress) -> dict[str, list[Any]]:
        """Return the outputs of each task for its features; equal inputs of several tasks go through the encoder once.

        A task whose inputs are more than the tokens of a text, or several texts, is run by itself.
        """
        alike = [name for name, of_task in features.items() if self._is_plain(name, of_task)]
        if len(alike) < 2:
            alike = []
        outputs = {
            name: run_model(self.tasks[name], of_task, progress, f"predicting {name}")[0]
            for name, of_task in features.items()
            if name not in alike
        }
        different = dict[Any, Feature]()
        keys = {name: [_key(feature) for feature in features[name]] for name in alike}
        for name in alike:
            different |= dict(zip(keys[name], features[name], strict=True))
        if different:
            self.joined.answering = alike
            merged = self._run_all(list(different.values()), progress)
            positions = {key: number for number, key in enumerate(different)}
            for name in alike:
                prefix = f"{name}."
                own = [
                    {field.removeprefix(prefix): value for field, value in output.items() if field.startswith(prefix)}
                    for output in merged
                ]
                outputs[name] = [own[positions[key]] for key in keys[name]]
        return outputs

    def _run_all(self, features: Sequence[Feature], progress: Progress) -> list[Any]:
        from bertkit.evaluation.forward import forward

        checkpoint = max(self.tasks.values(), key=lambda checkpoint: max_tokens(checkpoint.setup))
        collate = padding_collator(checkpoint.setup)
        done = 0

        def tick(rows: int) -> None:
            nonlocal done
            done += rows
            progress.update(done, {})

        progress.start("predicting", len(features))
        try:
            return forward(self.joined, features, collate, precision=checkpoint.machine.precision, tick=tick)[0]
        finally:
            progress.finish()

    def _is_plain(self, name: str, features: Sequence[Feature]) -> bool:
        checkpoint = self.tasks[name]
        batch = checkpoint.task.collator(checkpoint.setup)(features[:1])
        return batch.keys() <= _PLAIN and batch["input_ids"].dim() == 2


def load_together(saved: Mapping[str, SavedCheckpoint]) -> Together:
    """Load checkpoints that were trained together, with one encoder for all.

    Raises:
        ModelError: one is damaged, or their encoders differ.
    """
    from bertkit.modeling.heads.several import check_encoders, join_heads

    first, *others = saved
    tasks = {first: saved[first].load()}
    tasks |= {name: saved[name].load(tasks[first].machine) for name in others}
    models = {name: checkpoint.model for name, checkpoint in tasks.items()}
    check_encoders(models)
    joined = join_heads(models).to(tasks[first].machine.device)
    return Together(tasks, joined)


def _key(feature: Feature) -> tuple[Any, ...]:
    """Return what tells the input of a feature from others: its tokens and their types."""
    return tuple(feature["input_ids"]), tuple(feature.get("token_type_ids", ()))
