"""Teachers of a student: checks before torch is imported, and their logits for the training rows."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.rows import Split
from bertkit.errors import ModelError, RecipeError, UsageError
from bertkit.evaluation.checkpoint import Checkpoint, open_checkpoint
from bertkit.evaluation.scoring import run_model
from bertkit.modeling.checkpoint import fingerprint, read_config
from bertkit.modeling.info import get_tagger_head
from bertkit.modeling.layers import count_layers, layers_to_take
from bertkit.modeling.sentence.folder import is_sentence_folder
from bertkit.modeling.tokenizer import load_tokenizer
from bertkit.progress import log, stage
from bertkit.recipe.records import DistillationConfig, Recipe
from bertkit.storage import hub
from bertkit.storage.cache import cache_folder
from bertkit.storage.disk import cache_arrays, load_arrays
from bertkit.tasks import Task
from bertkit.tokens.feature_cache import content_key, encode_split, is_ours
from bertkit.tokens.features import Feature, Features, Tokenizer, are_several_texts, find_template, max_tokens
from bertkit.tokens.truncation import long_text, reads_windows

Logits = dict[str, Any]
"""Name of an output -> concatenated logits of all features; ``sizes`` -> number of logits per feature."""


@dataclass(frozen=True)
class Teacher:
    """Fine-tuned checkpoint that a student learns from, with its labels in the order of its outputs."""

    name: str
    folder: Path
    labels: tuple[str, ...]
    fingerprint: str

    def load(self, student: Checkpoint) -> Checkpoint:
        """Load the teacher for a student. Both must read the same tokens, but their token ids can differ.

        Raises:
            ModelError: If it has another vocabulary, a smaller maximum length, or no head for this task.
        """
        context = student.context
        tokenizer = load_tokenizer(self.folder)
        if not _is_trimmed(context.tokenizer, tokenizer) and _get_rules(tokenizer) != _get_rules(context.tokenizer):
            raise _vocabulary_error(self)
        if tokenizer.model_max_length < max_tokens(context):
            message = f"the teacher {self.name} reads at most {tokenizer.model_max_length} tokens, the student more"
            raise ModelError(message, f"--max-length {tokenizer.model_max_length}")
        tokenizer.model_max_length = max_tokens(context)
        context = replace(context, tokenizer=tokenizer, labels=self.labels)
        model = student.task.load_model(self.folder, context, new_head=False)
        return replace(student, model=model.to(student.machine.device).eval(), context=context)


def get_teacher_names(distillation: DistillationConfig) -> list[str]:
    """Return the teachers that a recipe names.

    Raises:
        UsageError: If the recipe names no teacher.
    """
    if not distillation.teachers:
        raise UsageError(
            "no teacher to learn from", "add --teacher DIR, fine-tuned for this task, or --soft-labels COLUMN"
        )
    return distillation.teachers


def find_teachers(
    recipe: Recipe, distillation: DistillationConfig, task: Task, labels: tuple[str, ...], student: Path
) -> tuple[Teacher, ...]:
    """Find the teachers of a recipe, and check them as far as possible without loading weights.

    Returns:
        The teachers; empty if the recipe has soft labels instead.

    Raises:
        UsageError: If there are neither teachers nor soft labels, or layers are to be matched with several teachers.
        RecipeError: If the first teacher does not have the layers.
        ModelError: If a teacher is not fine-tuned, or has other labels, another vocabulary or a frozen encoder.
    """
    # 1. Check the recipe.
    names = [] if distillation.soft_labels else get_teacher_names(distillation)
    if "long_text" in task.OPTIONS and reads_windows(recipe):
        message = f"options.long_text={long_text(recipe)}: a student learns from one input per row"
        raise RecipeError(message, "--set options.long_text=head_tail")
    if distillation.matches_layers and recipe.training.gradient_checkpointing:
        raise RecipeError("layers that are computed twice cannot be matched", "leave gradient_checkpointing out")
    if distillation.matches_layers and len(names) > 1:
        raise UsageError(
            "hidden states and attention can be matched with one teacher only", "name one, or match neither"
        )

    if not names:
        return ()

    # 2. Find the teachers, and check the vocabularies and layers in their files.
    teachers = tuple(_find_teacher(name, recipe, task, labels) for name in names)
    for teacher in teachers:
        if is_sentence_folder(teacher.folder):
            message = f"the teacher {teacher.name} makes vectors, not logits"
            raise ModelError(message, "learn from the margins of a reranker: --set options.loss=margin_mse")
        # With another vocabulary, a teacher splits a text into other tokens, so its logits are for other positions.
        _check_vocabulary(teacher, _read_vocabulary(student), matches_layers=distillation.matches_layers)
    count = count_layers(read_config(teachers[0].folder))
    if distillation.student_layers is not None and count is not None:
        layers_to_take(distillation.student_layers, count)
    return teachers


def compute_teacher_logits(
    teachers: Sequence[Teacher], student: Checkpoint, split: Split, features: Features
) -> dict[str, list[Any]]:
    """Compute the mean of the teachers' logits: name of an output -> one array per feature.

    The logits of each teacher are cached in a file whose name is a hash of everything that they depend on.
    """
    teacher_logits = [_load_logits(teacher, student, split, features) for teacher in teachers]
    offsets = np.cumsum(teacher_logits[0]["sizes"])
    names = [name for name in teacher_logits[0] if name != "sizes"]
    means = {name: sum(logits[name] for logits in teacher_logits) / len(teacher_logits) for name in names}
    return {name: np.split(logits, offsets[:-1]) for name, logits in means.items()}


def _load_logits(teacher: Teacher, student: Checkpoint, split: Split, features: Features) -> Logits:
    """Read the logits of a teacher from the cache, or compute and store them."""
    # 1. Try the cache. Custom code can change without a new name, so logits are not cached if it makes the features.
    task, context, machine = student.task, student.context, student.machine
    is_cached = context.recipe.data.cache and is_ours(task.encode)
    key = [content_key(split, context), teacher.fingerprint, teacher.labels, machine.precision, machine.device]
    file = cache_folder("teachers") / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]}.arrays"
    cached_logits = load_arrays(file) if is_cached else None
    if cached_logits is not None:
        log.info(f"logits of {teacher.name} for {len(features):,} texts: read from {file}")
        return cached_logits

    # 2. Load the teacher, and make features with its token ids.
    with stage(f"loading {teacher.name}"):
        loaded_teacher = teacher.load(student)
    # If only one of the models has token types, encode the texts again. Otherwise, translate the ids, which is faster.
    if loaded_teacher.context.tokenizer.model_input_names != context.tokenizer.model_input_names:
        features = encode_split(split, loaded_teacher.context, task.encode)
    elif (ids := context.tokenizer.get_vocab()) != (teacher_ids := loaded_teacher.context.tokenizer.get_vocab()):
        features = _translate_ids(features, {ids[token]: teacher_ids[token] for token in ids})

    # 3. Compute the logits.
    outputs, _ = run_model(loaded_teacher, features, f"running {teacher.name}")
    logits = _gather_logits(outputs, features, [teacher.labels.index(name) for name in context.labels])
    if is_cached:
        cache_arrays(file, logits)
    return logits


def _gather_logits(outputs: Sequence[Mapping[str, Any]], features: Features, order: Sequence[int]) -> Logits:
    """Join the logits of all features into one array per output, without padding, labels in the student's order.

    Features differ in length, so joined arrays with ``sizes`` need no disk space for padding. If the student has two
    labels in the other order, the logits [[1, 2], [3, 4]] and [[5, 6]] of two features become [[2, 1], [4, 3], [6, 5]],
    with the sizes [2, 1].
    """
    logits_by_name: dict[str, list[Any]] = {}
    for output, feature in zip(outputs, features, strict=True):
        for name in [name for name in output if name.endswith("logits")]:
            logits, ids = output[name], feature["input_ids"]
            # Logits of a text have the shape (labels,). Cut others to the number of the feature's tokens or choices.
            if name != "logits" or logits.ndim > 1 or are_several_texts(ids):
                logits = logits[: len(ids)]
            logits_by_name.setdefault(name, []).append(logits[..., order] if order else logits)
    sizes = np.array([len(logits) for logits in next(iter(logits_by_name.values()))], dtype=np.int64)
    return {"sizes": sizes, **{name: np.concatenate(arrays) for name, arrays in logits_by_name.items()}}


def _find_teacher(name: str, recipe: Recipe, task: Task, labels: tuple[str, ...]) -> Teacher:
    folder = hub.find_model(name)
    if get_tagger_head(read_config(folder)):
        message = f"the teacher {name} is a head over a frozen encoder"
        raise ModelError(message, "distillation is for models that are fine-tuned as a whole")
    try:
        info = open_checkpoint(recipe.model_copy(update={"labels": list(labels) or None}), task, folder)
    except ModelError as error:
        error.file = error.file or str(folder)  # The error must name the model that it is about.
        raise
    return Teacher(name, folder, info.labels, fingerprint(folder))


def _read_vocabulary(folder: Path) -> Any:
    """Return the vocabulary in a model's tokenizer.json, or None if it cannot be read."""
    try:
        return json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return None


def _check_vocabulary(teacher: Teacher, student_vocabulary: Any, *, matches_layers: bool) -> None:
    """Check that a teacher has all tokens of a student, and the same vocabulary if layers are matched."""
    vocabulary = _read_vocabulary(teacher.folder)
    if not student_vocabulary or not vocabulary or vocabulary == student_vocabulary:
        return
    if not _list_tokens(student_vocabulary) < _list_tokens(vocabulary):
        raise _vocabulary_error(teacher)
    if matches_layers:  # The teacher would get batches with the student's token ids.
        message = f"the student has only a part of the vocabulary of the teacher {teacher.name}"
        raise ModelError(message, "match no layers, or prune the vocabulary afterwards")


def _list_tokens(vocabulary: Any) -> set[str]:
    """Return the tokens of a vocabulary: a dictionary with ids, or a list of pairs with scores."""
    return set(vocabulary) if isinstance(vocabulary, dict) else {token for token, _ in vocabulary}


def _is_trimmed(tokenizer: Tokenizer, original: Tokenizer) -> bool:
    """Return whether a tokenizer has only a part of the original's tokens, and the same rules for splitting texts.

    `bertkit prune --vocabulary` makes such tokenizers; the texts that it was given keep their tokens, with new ids.
    """
    contents = [json.loads(compared.backend_tokenizer.to_str()) for compared in (tokenizer, original)]
    same_rules = all(contents[0][part] == contents[1][part] for part in ("normalizer", "pre_tokenizer"))
    types = [content["model"]["type"] for content in contents]
    return same_rules and types[0] == types[1] and tokenizer.get_vocab().keys() < original.get_vocab().keys()


def _translate_ids(features: Features, ids: Mapping[int, int]) -> list[Feature]:
    """Return features with the teacher's ids of the student's tokens."""

    # A feature has a list of ids, or a list per text, such as a choice.
    def translate(values: Any) -> Any:
        return [translate(value) if hasattr(value, "__len__") else ids[int(value)] for value in values]

    return [{**feature, "input_ids": translate(feature["input_ids"])} for feature in features]


def _vocabulary_error(teacher: Teacher) -> ModelError:
    message = f"the teacher {teacher.name} tokenizes texts differently from the student"
    return ModelError(message, "use two models with the same tokenizer, or --student-layers")


def _get_rules(tokenizer: Tokenizer) -> list[Any]:
    """Return the settings of a tokenizer that determine the tokens of a text."""
    tokenizer = copy.deepcopy(tokenizer)
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    templates = [find_template(tokenizer, pair=pair) for pair in (False, True)]
    special = [(template.before, template.between, template.after) for template in templates]
    return [tokenizer.get_vocab(), *(backend[part] for part in ("normalizer", "pre_tokenizer", "model")), special]
