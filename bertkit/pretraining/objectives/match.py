"""Distill an encoder into a student that matches its inner states (general distillation of TinyBERT: Jiao et al. 2020).

The student learns the teacher's embedding outputs, hidden states and attention scores, each by mean squared error. It
can be narrower than its teacher: then projections are trained too, and dropped at the end. No token is predicted, so
neither model needs a head, and any encoder can be the teacher.
"""

from __future__ import annotations

from collections.abc import Mapping

from bertkit.errors import ModelError, RecipeError
from bertkit.modeling.architectures import first_position, get_architecture, shares_layers
from bertkit.modeling.info import Config, Model, unwrap
from bertkit.modeling.load import load_for_pretraining
from bertkit.modeling.masked_head import LABEL_POSITIONS, read_scalars
from bertkit.modeling.sizes import make_config
from bertkit.modeling.students.distilbert import PretrainingTeacher, choose_layers, make_student
from bertkit.pretraining.objectives import PretrainContext, Sums, Totals, distil, mlm
from bertkit.recipe import read_layers
from bertkit.recipe.records import DistillationConfig, Option, accept, read_option
from bertkit.tokens.features import Batch

_SIZES = "see `bertkit pretrain sizes`"
_FIELDS = "give fields of the student's config, such as {hidden_size: 128}"


def _read_layer_map(value: object) -> object:
    is_map = isinstance(value, dict) and value and all(type(layer) is int for pair in value.items() for layer in pair)
    if not is_map and value not in ("uniform", "last"):
        raise ValueError("give uniform, last, or {student layer: teacher layer}")
    return value


OPTIONS: Mapping[str, object] = {
    **mlm.OPTIONS,
    "student_size": Option(None, read=accept(lambda value: isinstance(value, str | None), _SIZES)),
    "student_options": Option({}, read=accept(lambda value: isinstance(value, dict), _FIELDS)),
    "student_layers": Option(None, read=read_layers),
    "layer_map": Option("uniform", read=_read_layer_map),
    "attention": True,
}
LOSS_TERMS: Mapping[str, float] = {"embeddings": 1.0, "hidden": 1.0, "attention_scores": 1.0}
"""All weights are 1 in the paper."""
BEST_METRIC = "loss"

examples = mlm.examples
feature = mlm.feature
collator = distil.collator
baselines, auxiliary_checkpoints = mlm.baselines, mlm.auxiliary_checkpoints
encoder = distil.encoder


def check(context: PretrainContext) -> None:
    """Check that the recipe names a teacher, and that the student reads the same texts and has matching layers."""
    mlm.check(context)
    if context.model_folder is None:
        raise RecipeError("a student needs a teacher", "name a pretrained encoder with --model")
    if context.recipe.training.gradient_checkpointing:
        raise RecipeError("layers that are computed twice cannot be matched", "leave gradient_checkpointing out")
    student = _student_config(context)
    for config in (context.config, student):
        if config is not None and shares_layers(config):
            message = f"the layers of a model of type {config.model_type!r} share their weights and cannot be matched"
            raise ModelError(message, "use another model, or another size")
    if student is not None:
        _check_student(student, context)


def _student_config(context: PretrainContext) -> Config | None:
    """Build the config of a new student, or return None if the student takes layers of its teacher.

    Raises:
        RecipeError: If the recipe does not name either a size or layers, or they do not exist.
        ModelError: If no student can be made from this teacher's layers.
    """
    size, layers = (read_option(OPTIONS, context.recipe, name) for name in ("student_size", "student_layers"))
    if (size is None) == (layers is None):
        message = "a student needs either a size or layers of its teacher"
        raise RecipeError(message, "give options.student_size or options.student_layers")
    if layers is not None:
        choose_layers(read_layers(layers), context.config)
        return None
    return make_config(size, context.tokenizer, read_option(OPTIONS, context.recipe, "student_options"))


def _check_student(student: Config, context: PretrainContext) -> None:
    training, first_id = context.recipe.training, first_position(student)
    # RoBERTa counts positions from its padding id + 1, so it has fewer positions for tokens than embeddings.
    positions = getattr(student, "max_position_embeddings", training.max_length + first_id) - first_id
    if positions < training.max_length:
        message = f"the student reads {positions} tokens, not {training.max_length}"
        raise RecipeError(message, f"--max-length {positions}")
    can_separate = get_architecture(student).separates_documents and first_id == first_position(context.config)
    if training.packing == "documents" and not can_separate:
        message = f"a student of type {student.model_type} cannot keep documents of a block apart as its teacher does"
        raise RecipeError(message, "add --set training.packing=joined, or none")
    heads, teacher_heads = student.num_attention_heads, context.config.num_attention_heads
    if read_option(OPTIONS, context.recipe, "attention") and heads != teacher_heads:
        message = f"attention cannot be matched: the student has {heads} heads, the teacher {teacher_heads}"
        remedy = f"add --set options.student_options.num_attention_heads={teacher_heads}, or options.attention=false"
        raise ModelError(message, remedy)


def load_model(context: PretrainContext) -> Model:
    """Build the student, and attach its teacher, the checkpoint, and the comparison of both.

    Raises:
        RecipeError: If a layer of the map does not exist.
        ModelError: If the teacher does not load, or its layers or attention cannot be read.
    """
    from transformers import AutoModelForMaskedLM

    from bertkit.modeling.students.matching import match_models

    config = _student_config(context)
    teacher = load_for_pretraining(AutoModelForMaskedLM, context.model_folder, context.config)
    teacher.requires_grad_(False).eval()
    if config is not None:
        student = load_for_pretraining(AutoModelForMaskedLM, None, config)
    else:
        layers = read_layers(read_option(OPTIONS, context.recipe, "student_layers"))
        student = make_student(teacher, choose_layers(layers, context.config))
    # The base of a masked language model has no pooler; a pooler would not be trained.
    encoder: Model = student.base_model
    layer_map, attention = (read_option(OPTIONS, context.recipe, name) for name in ("layer_map", "attention"))
    terms = DistillationConfig(
        embeddings_weight=1.0, hidden=layer_map, **({"attention_scores": layer_map} if attention else {})
    )
    encoder.teacher = PretrainingTeacher(teacher.base_model)
    matching = match_models(encoder, teacher.base_model, terms, "fp32", in_training_only=False)
    encoder.teacher.compare = encoder.teacher.hooks.enter_context(matching).compare
    return encoder


def count(batch: Batch) -> dict[str, int]:
    """Count the tokens; all terms are sums over them."""
    return dict.fromkeys(LOSS_TERMS, int(batch[distil.IS_TEXT].sum()))


def sum_losses(model: Model, batch: Batch) -> Sums:
    """Run student and teacher on a batch, the teacher without gradients, and sum each term over the tokens."""
    import torch

    # The outputs of both models are not used: hooks on their layers store the states that `compare` reads.
    teacher, is_text = unwrap(model).teacher, batch[distil.IS_TEXT]
    inputs = {name: values for name, values in batch.items() if name not in ("labels", LABEL_POSITIONS, distil.IS_TEXT)}
    with torch.no_grad():
        teacher.model.to(is_text.device)(**inputs)
    model(**inputs)
    return dict(teacher.compare(is_text))


def accumulate(model: Model, batch: Batch) -> Totals:
    """Sum the terms, and count the tokens."""
    return read_scalars({**sum_losses(model, batch), "tokens": batch[distil.IS_TEXT].sum()})


def score(totals: Totals) -> dict[str, float]:
    """Compute the loss and its terms, as means over tokens."""
    means = {name: totals[name] / totals["tokens"] for name in LOSS_TERMS if name in totals}
    return {"loss": sum(means.values()), **{f"{name}_loss": mean for name, mean in means.items()}}
