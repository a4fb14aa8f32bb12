"""Teachers: found and checked before anything heavy is imported, and asked once what they say of the training rows."""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertkit import hub
from bertkit.data.rows import Split
from bertkit.errors import ModelError, RecipeError, UsageError
from bertkit.evaluation.checkpoint import checkpoint_labels
from bertkit.evaluation.scoring import run_model
from bertkit.hardware.precision import Machine
from bertkit.modeling import load as models
from bertkit.modeling.info import tagger_head
from bertkit.modeling.layers import layers_to_take
from bertkit.progress import Progress
from bertkit.recipe import Distillation, Recipe
from bertkit.storage.cache import cache_folder, keeping, say_once, touch
from bertkit.tasks import Task
from bertkit.tokens.features import Feature, Setup, find_template, window

log = logging.getLogger("bertkit")

Answers = dict[str, Any]
"""Name of an output -> an array of its numbers for all features, one after the other; ``sizes`` tells how many each."""


@dataclass(frozen=True)
class Teacher:
    """A fine-tuned checkpoint that a student learns from; `labels` is in the order of its own outputs."""

    name: str
    folder: Path
    labels: tuple[str, ...]
    fingerprint: str


def with_student(recipe: Recipe) -> Recipe:
    """Give the recipe with the first teacher as its model where the student is made of that one's layers."""
    wanted = recipe.distillation
    if wanted is None or wanted.student_layers is None:
        return recipe
    return recipe.model_copy(update={"model": _names(wanted)[0]})


def find_teachers(recipe: Recipe, task: Task, labels: tuple[str, ...], student: Path) -> tuple[Teacher, ...]:
    """Find the teachers of a recipe, and check what can be checked of them without loading weights.

    Raises:
        UsageError: there is none, or too many for what is to be matched.
        RecipeError: training rows that are streamed, or layers that the first one does not have.
        ModelError: not fine-tuned, for other labels or tokens, or of a kind that a student cannot learn from.
    """
    wanted = recipe.distillation
    if wanted is None:
        return ()
    names = _names(wanted)
    if recipe.data.streaming:
        raise RecipeError("teachers want all training rows before they are learned from", "leave data.streaming out")
    if wanted.matches_layers and recipe.training.gradient_checkpointing:
        raise RecipeError("layers that are computed twice cannot be matched", "leave gradient_checkpointing out")
    if wanted.matches_layers and len(names) > 1:
        raise UsageError("hidden states and attention are those of one teacher", "name one, or match neither")
    teachers = tuple(_find(name, recipe, task, labels) for name in names)
    for teacher in teachers:
        if (own := _vocabulary(teacher.folder)) and (other := _vocabulary(student)) and own != other:
            raise _other_vocabulary(teacher)
    count = _count_layers(teachers[0].folder)
    if wanted.student_layers is not None and count is not None:
        layers_to_take(wanted.student_layers, count)
    return teachers


def load_teacher(teacher: Teacher, task: Task, setup: Setup, device: str) -> tuple[Any, Setup]:
    """Load a teacher, and what it needs to read the very tokens that the student reads.

    Raises:
        ModelError: it has another vocabulary, reads less at once, or has no head for this task.
    """
    tokenizer = models.load_tokenizer(teacher.folder)
    if _content(tokenizer) != _content(setup.tokenizer):
        raise _other_vocabulary(teacher)
    if tokenizer.model_max_length < window(setup):
        what = f"the teacher {teacher.name} reads {tokenizer.model_max_length} tokens at once, the student more"
        raise ModelError(what, f"--max-length {tokenizer.model_max_length}")
    tokenizer.model_max_length = window(setup)
    own = replace(setup, tokenizer=tokenizer, labels=teacher.labels)
    return task.load_model(teacher.folder, own, new_head=False).to(device).eval(), own


def compute_teacher_logits(
    teachers: Sequence[Teacher],
    task: Task,
    setup: Setup,
    split: Split,
    features: Sequence[Feature],
    machine: Machine,
    progress: Progress,
) -> dict[str, list[Any]]:
    """Give the mean of what the teachers say of each feature, name of an output -> one array a feature.

    Each teacher's answers are kept on disk, under a name made of all that they depend on.
    """
    import numpy as np

    every = [_ask(teacher, task, setup, split, features, machine, progress) for teacher in teachers]
    ends = np.cumsum(every[0]["sizes"])
    means = {name: sum(each[name] for each in every) / len(every) for name in every[0] if name != "sizes"}
    return {name: np.split(values, ends[:-1]) for name, values in means.items()}


def _ask(
    teacher: Teacher,
    task: Task,
    setup: Setup,
    split: Split,
    features: Sequence[Feature],
    machine: Machine,
    progress: Progress,
) -> Answers:
    from bertkit.tokens.feature_cache import content_key, encode_split, is_ours

    keeps = setup.recipe.data.cache and is_ours(task.encode)
    key = [content_key(split, setup), teacher.fingerprint, teacher.labels, machine.precision, machine.device]
    file = cache_folder("teachers") / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]}.npz"
    found = _read(file) if keeps else None
    if found is not None:
        log.info(f"what {teacher.name} says of {len(features):,} texts: read from {file}")
        return found
    model, own = load_teacher(teacher, task, setup, machine.device)
    if own.tokenizer.model_input_names != setup.tokenizer.model_input_names:  # one of them reads segments
        features = encode_split(split, own, task.encode)
    outputs, _ = run_model(model, task, own, features, machine.precision, progress, f"asking {teacher.name}")
    order = [teacher.labels.index(name) for name in setup.labels]
    answers = _gather(outputs, features, order)
    if keeps:
        _write(answers, file)
    return answers


def _gather(outputs: Sequence[Mapping[str, Any]], features: Sequence[Feature], order: Sequence[int]) -> Answers:
    """Give the logits of features one after the other, labels in the student's order, without what is padding."""
    import numpy as np

    gathered: dict[str, list[Any]] = {}
    for output, feature in zip(outputs, features, strict=True):
        for name in [name for name in output if name.endswith("logits")]:
            logits = _without_padding(name, output[name], feature)
            gathered.setdefault(name, []).append(logits[..., order] if order else logits)
    sizes = np.array([len(each) for each in next(iter(gathered.values()))], dtype=np.int64)
    return {"sizes": sizes, **{name: np.concatenate(values) for name, values in gathered.items()}}


def _without_padding(name: str, logits: Any, feature: Feature) -> Any:
    """Split logits to the feature's own tokens or choices; those of a whole text, one a label, are as they are."""
    ids = feature["input_ids"]
    is_of_text = name == "logits" and logits.ndim == 1 and not hasattr(ids[0], "__len__")
    return logits if is_of_text else logits[: len(ids)]


def _find(name: str, recipe: Recipe, task: Task, labels: tuple[str, ...]) -> Teacher:
    folder = hub.find_model(name)
    if tagger_head(models.read_config(folder)):
        what = f"the teacher {name} is a head over a frozen encoder"
        raise ModelError(what, "distillation is for models that are fine-tuned as a whole")
    try:
        own = checkpoint_labels(recipe.model_copy(update={"labels": list(labels) or None}), task, folder)
    except ModelError as error:
        error.file = error.file or str(folder)  # which of the models is meant
        raise
    return Teacher(name, folder, own, models.fingerprint(folder))


def _names(wanted: Distillation) -> list[str]:
    if not wanted.teachers:
        raise UsageError("no teacher to learn from", "--teacher DIR, a checkpoint fine-tuned for this task")
    return wanted.teachers


def _count_layers(folder: Path) -> int | None:
    config = models.read_config(folder)
    return next((config[name] for name in ("num_hidden_layers", "n_layers") if name in config), None)


def _vocabulary(folder: Path) -> Any:
    """Give the vocabulary of a model where that can be read without its library; None elsewhere."""
    try:
        return json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _other_vocabulary(teacher: Teacher) -> ModelError:
    what = f"the teacher {teacher.name} cuts texts into other tokens than the student"
    return ModelError(what, "take two models with the same tokenizer, or --student-layers")


def _content(tokenizer: Any) -> list[Any]:
    """Give what decides which tokens a tokenizer makes of a text, and leave it in the state that it has."""
    tokenizer = copy.deepcopy(tokenizer)
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    frames = [find_template(tokenizer, pair=pair) for pair in (False, True)]
    special = [(frame.before, frame.between, frame.after) for frame in frames]
    return [tokenizer.get_vocab(), *(backend[part] for part in ("normalizer", "pre_tokenizer", "model")), special]


def _read(file: Path) -> Answers | None:
    """Read kept answers; None where there are none, or damaged ones: the file has a checksum of each part."""
    import numpy as np

    try:
        with np.load(file) as kept:
            answers = {name: kept[name] for name in kept.files}
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile) as error:
        log.info(f"the teacher's answers in {file} cannot be read ({error}): it is asked again")
        return None
    touch(file)
    return answers


def _write(answers: Answers, file: Path) -> None:
    import numpy as np

    try:
        with keeping(file) as beside, beside.open("wb") as stream:
            np.savez(stream, **answers)
    except OSError as error:
        say_once(f"the teachers' answers are not kept: {error}; BERTKIT_CACHE names another folder")
