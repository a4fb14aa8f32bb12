"""Recipes and their sections as frozen records with checked keys and values, and the checks of `options`."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationInfo, field_validator, model_validator

from bertkit.errors import RecipeError, did_you_mean
from bertkit.recipe.sections import ConfigSection, Finite, FolderName, Location, PretrainingConfig, Row, TrainingConfig


class DataConfig(ConfigSection):
    """Source of the rows, and how they are read, split and sampled."""

    source: Location = ""
    """Dataset on the Hub, directory, file, address of a file, or `demo`."""
    config: str | None = None
    """Configuration of the Hub dataset."""
    language: str | None = None
    """Value of `{language}` in `source`, `config`, `files` and `splits`."""
    revision: str | None = None
    """Revision of the Hub dataset."""
    files: dict[str, Location] = Field({})
    """Split -> file, instead of a file in `source`."""
    splits: dict[str, str] = Field({})
    """Split -> its name in the source, if different."""
    columns: dict[str, str | list[str]] = Field({})
    """Canonical column -> column in the source, a list of columns, or null to drop it."""
    ignore_columns: list[str] = Field([])
    """Canonical columns that are not read even if the source has them; `null` in `columns` adds one."""
    format: str = "auto"
    """File format; `auto` means the format of the file extension."""
    header: list[str] | None = None
    """Column names of a csv, tsv or conll file without a header line."""
    delimiter: str | None = None
    """CSV: `,` `;` tab or `|`; by default, the one in the header line."""
    quoting: Literal["double", "none"] = "double"
    """CSV, TSV: `none` reads quotes as text."""
    encoding: str = "utf-8"
    """Encoding of text files."""
    empty_text: Literal["error", "drop", "keep"] = "error"
    """Treatment of rows with a blank text."""
    empty_label: Literal["error", "drop"] = "error"
    """Treatment of rows without a label."""
    label_range: tuple[Finite, Finite] | None = None
    """Regression, reranking: lowest and highest valid label; any other label is an error."""
    split_column: str | None = None
    """Single file: column with the split of each row."""
    validation_fraction: Finite = Field(0.1, gt=0, lt=1)
    """Single file: fraction of the rows that is held out."""
    hold_out: Literal["by_hash", "by_label"] = "by_hash"
    """Single file: `by_hash` holds out approximately this fraction, and rows stay in their split when the file grows;
    `by_label` holds out exactly this fraction of each label's rows."""
    limit: int | None = Field(None, ge=1, le=2**63 - 1)
    """Use only this many rows of each split, the first ones."""
    train_rows_per_label: int | None = Field(None, ge=1)
    """Train on only this many rows of each label, drawn by `training.seed`."""
    train_limit: int | None = Field(None, ge=1)
    """Train on only this many rows, drawn by `training.seed`; validation rows stay."""
    oversample: str | None = None
    """Canonical column: repeat training rows until all of its values are as frequent as the most frequent one."""
    cache: bool = True
    """Keep the encoded rows of each split on disk for the next run."""
    _rows: dict[str, list[Row]] | None = PrivateAttr(None)
    """Rows in memory instead of a source: split -> rows; the split ``all`` means that they are not split yet."""
    _same_keys: bool = PrivateAttr(True)
    """Whether all rows of a jsonl file must have the same keys."""

    def with_rows(self, rows: dict[str, list[Row]]) -> DataConfig:
        """Return the same settings without a source, for rows in memory."""
        data = self.model_copy(update={"source": "", "files": {}})
        data._rows = rows
        return data

    @property
    def rows(self) -> dict[str, list[Row]] | None:
        """Rows in memory, or None if `source` or `files` name the rows."""
        return self._rows

    @property
    def sampling_keys(self) -> list[str]:
        """Keys that are set and sample or repeat training rows."""
        return [key for key in ("train_rows_per_label", "train_limit", "oversample") if getattr(self, key)]

    @field_validator("label_range")
    @classmethod
    def _range_is_ascending(cls, bounds: tuple[float, float] | None) -> tuple[float, float] | None:
        if bounds is not None and not bounds[0] < bounds[1]:
            raise ValueError("must be two numbers in ascending order, such as [0, 5]")
        return bounds

    @field_validator("train_limit")
    @classmethod
    def _rows_are_drawn_once(cls, limit: int | None, info: ValidationInfo) -> int | None:
        if limit is not None and info.data.get("train_rows_per_label") is not None:
            raise ValueError("does not go with data.train_rows_per_label: leave one of them out")
        return limit

    @field_validator("language")
    @classmethod
    def _language_is_a_plain_name(cls, language: str | None) -> str | None:
        # The language replaces a part of a path, so it must not contain a slash or lead out of the folder.
        if language is not None and not re.fullmatch(r"\w[\w.-]*", language):
            raise ValueError("must be a code such as en, made of letters, digits, `_`, `-` and `.`")
        return language

    @model_validator(mode="before")
    @classmethod
    def _null_drops_a_column(cls, values: Any) -> Any:
        columns = values.get("columns") if isinstance(values, dict) else None
        if not isinstance(columns, dict) or None not in columns.values():
            return values
        # `columns` holds only names, so that the other modules need not check for None.
        dropped_columns = [name for name, column in columns.items() if column is None]
        columns = {name: column for name, column in columns.items() if column is not None}
        return {**values, "columns": columns, "ignore_columns": [*values.get("ignore_columns", []), *dropped_columns]}


# More layers than any encoder has, and few enough to list.
_MAX_LAYERS = 1000


def read_layers(value: Any) -> int | list[int] | None:
    """Read the layers of a student from a recipe or a command: ascending indices from 0, or the number of layers.

    >>> read_layers("0, 2, 4"), read_layers([1, 5]), read_layers("3"), read_layers("0,"), read_layers(None)
    ([0, 2, 4], [1, 5], 3, [0], None)

    Raises:
        ValueError: If the value is neither.
    """
    if value is None:
        return None
    layers = value
    if isinstance(value, str):
        # A comma makes a list: "3" is a number of layers, and "3," is the layer with index 3.
        is_list, parts = "," in value, value.rstrip().removesuffix(",").split(",")
        layers = parts if is_list else int(value) if _is_layer(value) else value
    if isinstance(layers, int) and not isinstance(layers, bool) and 1 <= layers <= _MAX_LAYERS:
        return layers
    if isinstance(layers, list) and layers and all(map(_is_layer, layers)):
        indices = [int(layer) for layer in layers]
        if all(lower < higher for lower, higher in pairwise(indices)):
            return indices
    raise ValueError("must be layers in ascending order, from 0, such as [0, 2, 4], or a number of layers")


def _is_layer(value: Any) -> bool:
    text = str(value).strip()
    # Python does not convert more than 4,300 digits, so the length is checked before the value.
    return text.isdecimal() and len(text) <= len(str(_MAX_LAYERS))


LayerMap = Literal["uniform", "last"] | dict[int, int]
"""Student layer -> the teacher layer that it is trained to match, both counted from 0."""


class DistillationConfig(ConfigSection):
    """Settings of a student that is trained on teachers or soft labels, and on gold labels (Hinton et al. 2015)."""

    teachers: list[Location] = Field([])
    """Fine-tuned checkpoints for this task: folders or Hub names."""
    temperature: Finite = Field(2.0, gt=0, le=1000)
    """Divisor of the logits; above 1, less probable labels get more weight."""
    soft_weight: Finite = Field(0.5, ge=0, le=1)
    """Weight of the soft targets in the loss; gold labels have the rest. Without gold labels, the weight is 1."""
    student_layers: Annotated[int | list[int] | None, BeforeValidator(read_layers)] = None
    """Layers of the first teacher, or their number, from which the student is built, instead of from `model`."""
    hidden: LayerMap | None = None
    """Match hidden states: `uniform`, `last`, or student layer -> teacher layer."""
    hidden_weight: Finite = Field(1.0, ge=0, le=1e6)
    attention: LayerMap | None = None
    """Match attention maps by KL divergence; values as `hidden`."""
    attention_scores: LayerMap | None = None
    """Match attention scores before the softmax by mean squared error; values as `hidden`."""
    attention_weight: Finite = Field(1.0, ge=0, le=1e6)
    """Weight of `attention`, and of `attention_scores`."""
    embeddings_weight: Finite | None = Field(None, ge=0, le=1e6)
    """Match the output of the embeddings, with this weight."""
    soft_labels: str | None = None
    """Column of the training rows with a probability per label, instead of teachers."""
    # The default is null, because earlier run records lack the key. A default of false would count as a change.
    normalize: bool | None = None
    """Divide the numbers of that column by their sum, for counts such as votes."""

    @property
    def matches_layers(self) -> bool:
        """Whether training needs the embeddings, hidden states or attention of a teacher."""
        options = (self.hidden, self.attention, self.attention_scores, self.embeddings_weight)
        return any(option is not None for option in options)


class PublishedScore(ConfigSection):
    """Published scores, each a number or a range, with their source."""

    model_config = ConfigDict(extra="allow", frozen=True)

    model: str
    split: str = "validation"
    source: str = ""

    def scores(self) -> dict[str, Any]:
        """Return metric name -> number or [low, high]."""
        return dict(self.model_extra or {})


class GateConfig(ConfigSection):
    """Limits for a model: a metric, ``ece`` or ``size_mb`` -> minimum value, or maximum value if lower is better."""

    model_config = ConfigDict(extra="allow", frozen=True)
    __pydantic_extra__: dict[str, Finite] = Field(init=False)

    use_interval: bool = False
    """Compare the worse end of the 95% interval with the limit, not the score itself."""

    @property
    def limits(self) -> dict[str, float]:
        """Name of a measured value -> its minimum or maximum."""
        return dict(self.model_extra or {})


class Recipe(ConfigSection):
    """Definition of a fine-tuning run, as read from a YAML file and the command line."""

    name: FolderName
    about: str = ""
    task: str = ""
    """Task family: a module of bertkit.tasks, or an importable module."""
    model: Location = "google-bert/bert-base-uncased"
    model_labels: list[str] | None = None
    """Label names in the order of the checkpoint's outputs, if its config has none."""
    data: DataConfig = DataConfig()
    labels: list[str] | None = None
    """Label names; by default, the labels of the training rows."""
    metrics: list[str] = Field([], min_length=1)
    best_metric: str = ""
    """Metric that selects the best checkpoint; by default, the first of `metrics`."""
    training: TrainingConfig = TrainingConfig()
    distillation: DistillationConfig | None = None
    """Teachers to learn from; see `bertkit distill`."""
    options: dict[str, Any] = Field({})
    """Options of this task family."""
    published: list[PublishedScore] = Field([])
    gates: GateConfig = GateConfig()
    """Limits that scores must meet; otherwise, commands exit with code 8."""

    @property
    def model_name(self) -> str:
        """Name, for messages, of the model that a run starts from."""
        layers = self.distillation.student_layers if self.distillation else None
        if layers is None:
            return self.model
        if isinstance(layers, int):
            return f"{layers} layer{'' if layers == 1 else 's'} of {self.model}"
        return f"layers {', '.join(map(str, layers))} of {self.model}"

    @field_validator("labels", "model_labels", mode="before")
    @classmethod
    def _label_names_become_text(cls, names: Any) -> Any:
        if not isinstance(names, list):
            return names
        # YAML reads the labels 0 and true as a number and a boolean. They become text as in `label_to_str`.
        return [json.dumps(name) if isinstance(name, (bool, int, float)) else name for name in names]

    @field_validator("labels", "model_labels")
    @classmethod
    def _names_are_distinct(cls, names: list[str] | None) -> list[str] | None:
        if names is not None and len(set(names)) != len(names):
            raise ValueError("label names must be distinct")
        return names

    @model_validator(mode="before")
    @classmethod
    def _best_metric_is_the_first(cls, values: Any) -> Any:
        metrics = values.get("metrics") if isinstance(values, dict) else None
        # Set before the check, so that the stored recipe of a run names the metric.
        if metrics and isinstance(metrics, list) and not values.get("best_metric"):
            return {**values, "best_metric": metrics[0]}
        return values


class CorpusConfig(ConfigSection):
    """Source of the text, and how it is split into documents."""

    source: Location = ""
    """Dataset on the Hub, directory, file, address of a file, or `demo`."""
    config: str | None = None
    """Configuration of the Hub dataset."""
    revision: str | None = None
    """Revision of the Hub dataset."""
    files: dict[str, Location] = Field({})
    """Split (`train`, `validation`) -> file, instead of `source`."""
    splits: dict[str, str] = Field({})
    """Split -> its name in the source, if different."""
    column: str = "text"
    """Column with the text, in jsonl, json, csv, parquet and Hub datasets."""
    documents: Literal["auto", "articles", "blank_lines", "lines", "rows"] = "auto"
    """Unit of a document: an article under a title (as in wikitext), the text between blank lines (as BERT reads text
    files), a line, or a row."""
    encoding: str = "utf-8"
    """Encoding of text files."""
    deduplicate: bool = True
    """Drop exact copies of earlier documents."""
    validation_fraction: Finite = Field(0.01, gt=0, lt=1)
    """Fraction of the documents that is held out if there is no validation split."""
    limit: int | None = Field(None, ge=2, le=2**63 - 1)
    """Use only this many documents of each split, the first ones."""
    weights: dict[str, Annotated[Finite, Field(gt=0, le=100)]] = Field({})
    """Pattern of training files -> how often each of their documents occurs per epoch, such as `"wiki/*": 2.5`;
    documents of other files occur once."""
    streaming: bool = False
    """Stream a Hub dataset instead of downloading it first."""


class PretrainRecipe(ConfigSection):
    """Definition of a pretraining run, as read from a YAML file and the command line."""

    name: FolderName
    about: str = ""
    objective: str
    """Objective: a module of bertkit.pretraining.objectives, or an importable module."""
    model: Location | None = None
    """Checkpoint to continue from; by default, a new model of `size`."""
    size: str = "base"
    """Size of a new model; see `bertkit pretrain sizes`."""
    model_options: dict[str, Any] = Field({})
    """Config fields of a new model."""
    tokenizer: Location | None = None
    """Folder or Hub name; by default, the tokenizer of `model`."""
    data: CorpusConfig = CorpusConfig()
    training: PretrainingConfig = PretrainingConfig()
    options: dict[str, Any] = Field({})
    """Options of this objective."""


# --- Options: keys that only a task family or an objective defines ---


@dataclass(frozen=True)
class Option:
    """Default and allowed values of a key of a recipe's ``options``."""

    default: Any
    choices: tuple[Any, ...] = ()
    minimum: float | None = None
    """Smallest number; by default 0, or no limit if the option has no default."""
    maximum: float = math.inf
    """Largest number."""
    read: Callable[[Any], Any] | None = None
    """Function that reads a value other than a number, word or boolean; it raises ValueError with the remedy."""


def read_option(options: Mapping[str, Any], recipe: Recipe | PretrainRecipe, name: str) -> Any:
    """Return a recipe's option, or the default in OPTIONS of its family or objective."""
    return recipe.options.get(name, _as_option(options[name]).default)


def check_options(values: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Check a recipe's options: their names, and that values have the type of their defaults and are in range.

    Raises:
        RecipeError: If a name or a value is wrong; the remedy has the closest name, or the allowed values.
    """
    check_names("options", values, options)
    for name, value in values.items():
        option = _as_option(options[name])
        if option.read is None:
            _check_option(name, value, option)
            continue
        try:
            option.read(value)
        except ValueError as error:
            raise RecipeError(f"options.{name} is {value!r}", str(error)) from None


def check_names(section: str, values: Mapping[str, Any], names: Sequence[str] | Mapping[str, Any]) -> None:
    """Check that the keys of a section are among its names.

    Raises:
        RecipeError: If a key is unknown; the remedy suggests the closest name.
    """
    for name, value in values.items():
        if name not in names:
            # In `columns`, the canonical name comes first, which is easily swapped.
            is_swapped = isinstance(value, str) and value in names
            remedy = f"write {{{value}: {name}}}" if is_swapped else did_you_mean(name, names)
            raise RecipeError(f"unknown key '{section}.{name}'", remedy)


def accept(is_valid: Callable[[Any], bool], remedy: str) -> Callable[[Any], Any]:
    """Return a function that returns a valid value unchanged, and raises ValueError with the remedy otherwise."""

    def read(value: Any) -> Any:
        if not is_valid(value):
            raise ValueError(remedy)
        return value

    return read


def _as_option(value: object) -> Option:
    return value if isinstance(value, Option) else Option(value)


def _check_option(name: str, value: Any, option: Option) -> None:
    """Check that a value is among the choices, or has the type of the default and is in range.

    Raises:
        RecipeError: If the value is wrong.
    """
    if option.choices:
        if value not in option.choices:
            raise RecipeError(f"options.{name} is {value!r}", did_you_mean(str(value), map(str, option.choices)))
        return
    # A bool is an int in Python, so `true` would count as 1.
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    minimum = option.minimum if option.minimum is not None else -math.inf if option.default is None else 0
    if isinstance(option.default, bool):
        if not isinstance(value, bool):
            raise RecipeError(f"options.{name} is {value!r}", "give true or false")
    elif isinstance(option.default, int) and (not is_number or value != int(value) or value < minimum):
        raise RecipeError(f"options.{name} is {value!r}", f"give an integer of at least {minimum:g}")
    elif isinstance(option.default, str) and not isinstance(value, str):
        raise RecipeError(f"options.{name} is {value!r}", "give text")
    elif isinstance(option.default, float) and not (is_number and minimum <= value <= option.maximum):
        raise RecipeError(f"options.{name} is {value!r}", f"give a number from {minimum:g} to {option.maximum:g}")
    elif option.default is None and value is not None and not (is_number and minimum <= value <= option.maximum):
        raise RecipeError(f"options.{name} is {value!r}", "give a number")
