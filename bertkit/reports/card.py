"""The model card: README.md of a run folder, with front matter for the Hub."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertkit.errors import ModelError
from bertkit.metrics.registry import runs_code
from bertkit.metrics.tags import is_entity_tag
from bertkit.recipe.records import PretrainRecipe, Recipe
from bertkit.reports.html import ReportData, metric_names
from bertkit.reports.templates import load_template, name_model
from bertkit.reports.text import is_finite
from bertkit.storage import hub

if TYPE_CHECKING:
    from huggingface_hub import ModelCard, ModelCardData


@dataclass(frozen=True)
class CardData:
    """Content of a card in addition to the report. The card leaves out fields that are empty or None."""

    pipeline_tag: str
    """The Hub's name of the task, such as `text-classification`."""
    auto_class: str
    """Class of transformers that loads the checkpoint, such as `AutoModelForTokenClassification`, or empty."""
    dataset: str
    rows: Mapping[str, int]
    """Split -> number of rows."""
    predict_command: str
    columns: list[str] = field(default_factory=list)
    """Canonical columns that the model reads."""
    checkpoint: str = "."
    """Path of the weights from the card's folder, or their Hub id."""
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    base_model: str | None = None
    """Hub id of the checkpoint that training started from, or None if it is unknown."""
    dataset_id: str | None = None
    """Hub id of the data, or None for files."""
    dataset_config: str | None = None
    fingerprint: str = ""
    language: str | None = None
    license: str | None = None


_AUTHOR_FIELDS = """\
# Before you publish, fill in these fields, and remove the number signs. License: a license that the base model and the
# data allow, as in https://hf.co/docs/hub/repositories-licenses. Language: the ISO 639-1 code of the texts.
# license: apache-2.0
# language: en
"""
"""End of the front matter: fields whose values only the author knows."""

_VECTOR_CLASSES = {
    "sentence-similarity": ("SentenceTransformer", "sentence-similarity"),
    "masked-l-m": ("SparseEncoder", "feature-extraction"),
    "late-interaction": ("MultiVectorEncoder", "feature-extraction"),
}
"""Task -> class of sentence-transformers that loads its models, and the Hub's name of the task."""


_WIDGETS: Mapping[str, tuple[list[str], dict[str, Any]]] = {
    "text-classification": (["text"], {"text": "The cat sat on the mat."}),
    "token-classification": (["tokens"], {"text": "Ada Lovelace lived in London."}),
    "question-answering": (["question", "context"], {"text": "Who lived there?", "context": "Ada lived in London."}),
    "sentence-similarity": ([], {"source_sentence": "The cat sat.", "sentences": ["A cat sits.", "It rained."]}),
}
"""Task -> columns that a model must have for the Hub's widget (empty: any), and an example input.

The example is not a row of the data, because the data can be private.
"""


def model_card(report: ReportData, card: CardData) -> str:
    """Return the text of README.md: front matter for the Hub, then a description for readers."""
    from huggingface_hub import ModelCardData

    # The Hub shows how to load the model with this library, and models of vectors need sentence-transformers.
    vectors_class, pipeline_tag = _VECTOR_CLASSES.get(card.pipeline_tag, ("", card.pipeline_tag))
    card = replace(card, pipeline_tag=pipeline_tag)
    columns, example = _WIDGETS.get(pipeline_tag, ([], {}))
    data = ModelCardData(
        model_name=report.name,
        library_name="sentence-transformers" if vectors_class or pipeline_tag == "text-ranking" else "transformers",
        pipeline_tag=card.pipeline_tag,
        tags=["bertkit", "generated_from_trainer"],
        base_model=card.base_model,
        datasets=card.dataset_id,
        language=card.language,
        license=card.license,
        metrics=list(report.scores),
        eval_results=_list_results(report, card) or None,
        widget=[example] if example and columns in ([], card.columns) else None,
    )
    body = load_template("card.md.j2").render(
        report=report,
        card=card,
        vectors_class=vectors_class,
        metrics=metric_names(report),
        custom_metrics=list(filter(runs_code, report.scores)),
        has_entities=all(map(is_entity_tag, report.labels)),
    )
    return _with_front_matter(data, body)


def hub_card(file: Path, name: str) -> ModelCard:
    """Return the card of a run for a repository on the Hub, with examples that load the model from there.

    Raises:
        ModelError: If there is no card, or `huggingface_hub` cannot read its metadata.
    """
    import yaml
    from huggingface_hub import ModelCard

    if not file.is_file():
        raise ModelError("the card of the run is missing", "restore it, or train again", file=file)
    # The card in a run folder names the model as `.`. For the Hub, replace it by the model's id in commands and Python.
    text = re.sub(r"\n<!-- To publish .*? -->\n", "", file.read_text(encoding="utf-8").replace(_AUTHOR_FIELDS, ""))
    text = re.sub(r'(\(|model=)"\."\)', rf'\1"{name}")', text)
    text = re.sub(r"^(bertkit .*?) \.(?=\s)", rf"\1 {name}", text, flags=re.MULTILINE)
    try:
        return ModelCard(text)
    except (ValueError, TypeError, yaml.YAMLError) as error:
        message = f"the metadata at the top of the card is invalid: {' '.join(str(error).split())}"
        raise ModelError(message, "correct them", file=file) from None


def name_models(report: ReportData, recipe: Recipe) -> ReportData:
    """Return a report with names of models instead of their local paths."""
    named_recipe = recipe.model_copy(update={"model": name_model(recipe.model)})
    return replace(report, model=named_recipe.model_name, teachers=list(map(name_model, report.teachers)))


def pretrained_card(recipe: PretrainRecipe, result: Any, command: str, mask: str | None, dataset_id: str | None) -> str:
    """Return the text of README.md of a pretrained model; `mask` is its mask token if it can fill masks."""
    from huggingface_hub import ModelCardData

    data = ModelCardData(
        model_name=recipe.name,
        library_name="transformers",
        pipeline_tag="fill-mask" if mask else "feature-extraction",
        tags=["bertkit", "pretrained"],
        base_model=hub.find_base_model(recipe.model) if recipe.model else None,
        datasets=dataset_id,
        widget=[{"text": f"The cat sat on the {mask}."}] if mask else None,
    )
    settings = recipe.training.model_dump(exclude_defaults=True) | recipe.options
    body = load_template("pretrained.md.j2").render(
        result=result,
        model=name_model(result.model),
        about=recipe.about,
        is_from_scratch=recipe.model is None,
        example=f'"The cat sat on the {mask}."',
        fills_masks=mask is not None,
        settings=settings,
        seed=recipe.training.seed,
        command=command,
    )
    return _with_front_matter(data, body)


def _with_front_matter(data: ModelCardData, body: str) -> str:
    """Return the card; comments in its front matter ask for the fields that only the author knows."""
    return f"---\n{data.to_yaml()}\n{'' if data.license and data.language else _AUTHOR_FIELDS}---\n\n{body}"


def _list_results(report: ReportData, card: CardData) -> list[Any]:
    """Return the Hub's record of each finite score on the evaluated split."""
    from huggingface_hub import EvalResult

    return [
        EvalResult(
            task_type=card.pipeline_tag,
            dataset_type=card.dataset_id or card.dataset,
            dataset_name=card.dataset,
            dataset_config=card.dataset_config,
            dataset_split=report.split,
            metric_type=metric,
            metric_name=metric,
            metric_value=round(float(value), 6),
        )
        for metric, value in report.scores.items()
        if value is not None and is_finite(value)
    ]
