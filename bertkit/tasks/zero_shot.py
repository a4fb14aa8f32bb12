"""Classify texts by labels that are described in words, with a model that was trained for another task.

A model for natural language inference predicts the label whose description the text entails most (Yin et al. 2019). A
sentence encoder predicts the label whose description has the nearest vector.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.labels import label_to_str
from bertkit.errors import ModelError, RecipeError, did_you_mean
from bertkit.modeling.checkpoint import get_label_names, read_config, read_json_object
from bertkit.modeling.heads.targets import Target, compute_log_odds
from bertkit.modeling.info import Model
from bertkit.modeling.load import load_pretrained
from bertkit.modeling.sentence import texts
from bertkit.modeling.sentence.folder import is_sentence_folder, read_modules, with_options
from bertkit.recipe.records import Option, Recipe, accept, read_option
from bertkit.recipe.sections import Row
from bertkit.storage.exports import is_exported
from bertkit.tasks import Outputs, Prediction, encode_texts, text_classification
from bertkit.tokens.features import Batch, Collator, Feature, Features, Rows, TaskContext, Tensor, padding_collator
from bertkit.tokens.multi_text import multi_text_collator


def _is_template(value: object) -> bool:
    return isinstance(value, str) and value.count("{}") == 1


def _are_descriptions(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) and text.strip() for text in value.values())


_TEMPLATE = "give text with {} as a placeholder for the label, such as 'This text is about {}.'"
_DESCRIPTIONS = "give a text for each label, such as {sports: 'This text is about a match.'}"
COLUMNS = replace(text_classification.COLUMNS, extra=())
HAS_LABEL_NAMES: bool = True
# Exported classifiers can run if they have a label for entailment.
EXPORTED_AS = "text_classification"
TYPES = text_classification.TYPES
METRICS = text_classification.METRICS
OPTIONS: Mapping[str, Any] = {
    "hypothesis_template": Option("This text is about {}.", read=accept(_is_template, _TEMPLATE)),
    "descriptions": Option({}, read=accept(_are_descriptions, _DESCRIPTIONS)),
}

# Factor on cosines before the softmax, as in the losses of sentence-transformers.
_SCALE = 20.0

read, compare, score = text_classification.read, text_classification.compare, text_classification.score
fit_baselines, baselines = text_classification.fit_baselines, text_classification.baselines


def find_labels(folder: Path, recipe: Recipe) -> tuple[str, ...]:
    """Return the labels of the recipe, which replace the labels that the model was trained for.

    Raises:
        RecipeError: If the recipe has no labels, or a description of another label.
        ModelError: If the model has neither a label for entailment nor sentence vectors.
    """
    if not recipe.labels:
        raise RecipeError("labels is missing: nothing else names them", "add --set 'labels=[politics, sports]'")
    for label in _custom_descriptions(recipe):
        if label not in recipe.labels:
            raise RecipeError(f"options.descriptions has no label {label!r}", did_you_mean(label, recipe.labels))
    if _find_entailment(folder) is None and not is_sentence_folder(folder):
        names = ", ".join(_get_label_names(folder)) or "none"
        message = f"zero-shot needs a model with a label 'entailment' (there are: {names}) or one for sentence vectors"
        raise ModelError(message, "train one: bertkit finetune mnli", file=folder)
    return tuple(recipe.labels)


def load_model(folder: Path, context: TaskContext, *, new_head: bool) -> Model:
    """Load a model for inference, or an encoder with a linear layer whose weights are the vectors of the descriptions.

    Raises:
        RecipeError: If `new_head` is set, because this family trains nothing.
    """
    if new_head:
        message = "the task family zero_shot trains nothing"
        raise RecipeError(message, "score a model without training: bertkit eval RECIPE --zero-shot --model MODEL")
    if _find_entailment(folder) is None:
        return _load_encoder(folder, context)
    head, problem = text_classification.AUTO_CLASS, "single_label_classification"
    return load_pretrained(head, folder, context, labels=_get_label_names(folder), new_head=False, problem_type=problem)


def encode(rows: Rows, context: TaskContext) -> list[Feature]:
    """Encode each text or, for a model for inference, each text with the description of each label."""
    inputs = [" ".join([row["text"], *([row["text_pair"]] if "text_pair" in row else [])]) for row in rows]
    if _find_entailment(_get_folder(context)) is None:
        return texts.encode_rows([[text] for text in inputs], context)
    # Each row has one feature per label, so division by the number of labels gives the row.
    descriptions = _describe_labels(context)
    features = encode_texts([{"text": text, "text_pair": pair} for text in inputs for pair in descriptions], context)
    return [{**feature, "row": index // len(descriptions)} for index, feature in enumerate(features)]


def collator(context: TaskContext) -> Collator:
    """Build the collator. Shape: (texts with descriptions, tokens) or, for sentence vectors, (rows, 1, tokens)."""
    return multi_text_collator(context) if _find_entailment(_get_folder(context)) is None else padding_collator(context)


def decode(outputs: Outputs, features: Features, rows: Rows, context: TaskContext) -> list[Prediction]:
    """Choose the label whose description is entailed most, or is nearest; the softmax is over the labels."""
    entailment = _find_entailment(_get_folder(context))
    if entailment is not None:
        # Shapes: (rows * labels, outputs of the model) -> (rows, labels).
        logits = np.array([output["logits"][entailment] for output in outputs]).reshape(len(rows), len(context.labels))
        outputs = [{"logits": row_logits} for row_logits in logits]
    return text_classification.decode(outputs, features, rows, context)


def targets(
    prediction: Prediction, outputs: Outputs, features: Features, row: Row, context: TaskContext
) -> list[Target]:
    """Return the explainable outputs: the log-odds of each label, or of the entailment of its description."""
    entailment = _find_entailment(_get_folder(context))
    if entailment is None:
        return text_classification.targets(prediction, outputs, features, row, context)

    def score(outputs: Batch) -> Tensor:
        return compute_log_odds(outputs["logits"], entailment)

    return [
        Target(name, score, is_predicted=name == prediction["prediction"], feature=index)
        for index, name in enumerate(context.labels)
    ]


def _load_encoder(folder: Path, context: TaskContext) -> Model:
    import torch

    from bertkit.modeling.sentence.head import load_sentence_classifier, set_head

    # The product of two vectors of length 1 is their cosine, so the vectors of the descriptions are the weights of a
    # linear layer, and the model is a classifier.
    modules = with_options(read_modules(folder), pooling=None, normalize=True, prompt=None)
    model = load_sentence_classifier(folder, modules, context, new_head=True).eval()
    batch = multi_text_collator(context)(texts.encode_rows([[text] for text in _describe_labels(context)], context))
    with torch.no_grad():
        vectors = model(**batch)["vectors"][:, 0].cpu().numpy()
    set_head(model, dict(enumerate(_SCALE * vectors)), np.zeros(len(vectors)))
    return model


def _describe_labels(context: TaskContext) -> list[str]:
    """Return a description of each label: from the recipe's ``descriptions``, or the label in the template."""
    custom = _custom_descriptions(context.recipe)
    template = read_option(OPTIONS, context.recipe, "hypothesis_template")
    return [custom.get(label, template.replace("{}", label)) for label in context.labels]


def _custom_descriptions(recipe: Recipe) -> dict[str, str]:
    """Return label -> description from the recipe."""
    # YAML reads some label names as numbers.
    return {label_to_str(label) or "": text for label, text in read_option(OPTIONS, recipe, "descriptions").items()}


def _get_folder(context: TaskContext) -> Path:
    return Path(context.tokenizer.name_or_path)


def _find_entailment(folder: Path) -> int | None:
    """Return the index of the output for entailment, found as in transformers' pipeline, or None if it is missing."""
    return next(
        (index for index, name in enumerate(_get_label_names(folder)) if name.lower().startswith("entail")), None
    )


def _get_label_names(folder: Path) -> list[str]:
    """Return the label names of a model's outputs."""
    config = read_json_object(folder / "config.json") if is_exported(folder) else read_config(folder)
    return get_label_names(config) or []
