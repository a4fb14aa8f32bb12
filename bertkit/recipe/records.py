"""The records a recipe is made of: frozen, checked, and closed to unknown keys."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

Row = dict[str, Any]
"""One row of data, keyed by canonical column (``text``, ``text_pair``, ``label``, ...)."""


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError("must be a finite number")
    return value


Finite = Annotated[float, AfterValidator(_finite)]


class Section(BaseModel):
    """A part of a recipe: immutable, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class Data(Section):
    """Where rows come from and which of their columns mean what."""

    source: str = Field("", description="hub data set, directory, file, or `demo`")
    config: str | None = Field(None, description="configuration of the hub data set")
    revision: str | None = Field(None, description="revision of the hub data set")
    files: dict[str, str] = Field({}, description="split -> file, instead of `source`")
    splits: dict[str, str] = Field({}, description="split -> its name in the source, where that differs")
    columns: dict[str, str | list[str]] = Field(
        {}, description="canonical column -> column in the source; several make one list, null none"
    )
    format: str = Field("auto", description="how files are read; by their endings when `auto`")
    header: list[str] | None = Field(None, description="column names of a csv, tsv or conll file without a header line")
    delimiter: str | None = Field(None, description="csv: `,` `;` tab or `|`; read off the header line when absent")
    quoting: Literal["double", "none"] = Field("double", description="csv, tsv: `none` reads quotes as text")
    encoding: str = Field("utf-8", description="encoding of text files")
    empty_text: Literal["refuse", "drop", "keep"] = Field("refuse", description="rows whose text is blank")
    split_column: str | None = Field(None, description="single file: the column that names each row's split")
    validation_share: Finite = Field(0.1, gt=0, lt=1, description="single file: share of rows held out")
    limit: int | None = Field(None, ge=1, description="use only the first rows of each split")
    streaming: bool = Field(False, description="read training rows while training, for data that does not fit memory")
    cache: bool = Field(True, description="keep the features of a split on disk for the next run")

    @field_validator("columns", mode="before")
    @classmethod
    def _null_takes_a_column_out(cls, columns: Any) -> Any:
        return {k: v for k, v in columns.items() if v is not None} if isinstance(columns, dict) else columns


class CommonTraining(Section):
    """What all training has; `batch_size` is rows per optimizer step on all processes together."""

    epochs: Finite = Field(3, gt=0, le=10_000)
    steps: int | None = Field(None, ge=1, le=10**9, description="optimizer steps in all, in place of `epochs`")
    batch_size: int = Field(32, ge=1, le=1_000_000, description="rows per optimizer step, over all processes")
    learning_rate: Finite = Field(2e-5, gt=0, lt=1)
    schedule: Literal["linear", "cosine", "constant", "constant_with_warmup"] = "linear"
    warmup_ratio: Finite = Field(0.1, ge=0, lt=1, description="share of all steps")
    weight_decay: Finite = Field(0.01, ge=0, le=1)
    max_grad_norm: Finite = Field(1.0, gt=0)
    max_length: int = Field(128, ge=4, le=100_000, description="tokens per text (pair), special ones included")
    seed: int = Field(42, ge=0, lt=2**32)
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    gradient_accumulation: int = Field(1, ge=1, description="parts a batch is computed in; the result is the same")
    gradient_checkpointing: bool = Field(False, description="trade time for memory")
    fast_dropout: bool = Field(True, description="on a CPU: draw dropout from a fast generator instead of torch's")
    unpad: bool = Field(True, description="on a CPU: compute nothing on the padding of batches")
    evaluate_every: Literal["epoch"] | int = Field("epoch", description="`epoch` or a number of steps")
    patience: int | None = Field(None, ge=1, description="stop after so many evaluations without improvement")
    log_every: int = Field(50, ge=1, description="steps between logged losses")
    extra: dict[str, Any] = Field({}, description="any other field of transformers' TrainingArguments")

    def steps_per_epoch(self, rows: int) -> int:
        """Give the optimizer steps of one pass over so many rows."""
        return -(-rows // self.batch_size)

    def total_steps(self, rows: int | None) -> int:
        """Give the optimizer steps of a run over so many rows; None is a stream, which needs `steps`."""
        if self.steps is not None or rows is None:
            return self.steps or 0
        return math.ceil(self.steps_per_epoch(rows) * self.epochs)

    def steps_per_evaluation(self, rows: int | None) -> int:
        """Give the steps from one evaluation to the next; a stream has no epochs, so it takes a tenth of its steps."""
        if self.evaluate_every != "epoch":
            return int(self.evaluate_every)
        return -(-self.total_steps(None) // 10) if rows is None else self.steps_per_epoch(rows)

    @field_validator("evaluate_every")
    @classmethod
    def _steps_are_positive(cls, value: int | str) -> int | str:
        if isinstance(value, int) and value < 1:
            raise ValueError("must be `epoch` or a number of steps of at least 1")
        return value


class Training(CommonTraining):
    """How a model is fine-tuned."""

    batching: Literal["sorted", "random"] = Field(
        "sorted", description="rows of a batch: of similar length, so that hardly anything is padding, or any"
    )
    cls_only_last_layer: bool = Field(
        True, description="compute of the last layer only what a classifier reads; the result is the same"
    )
    occurring_embeddings: bool = Field(
        True, description="train only the word embeddings that occur; the result is the same"
    )
    class_weights: Literal["balanced"] | dict[str, Finite] | None = Field(
        None, description="`balanced`, or label name -> weight in the loss"
    )
    label_smoothing: Finite = Field(0.0, ge=0, lt=1)


def read_layers(value: Any) -> int | list[int] | None:
    """Read the layers of a student as a recipe or a command gives them: rising numbers from 0, or how many.

    >>> read_layers("0, 2, 4"), read_layers([1, 5]), read_layers("3"), read_layers(None)
    ([0, 2, 4], [1, 5], 3, None)

    Raises:
        ValueError: it is neither.
    """
    if value is None:
        return None
    parts = value.split(",") if isinstance(value, str) else value
    if isinstance(value, str) and len(parts) == 1:
        parts = int(value) if value.strip().isdecimal() else value
    if isinstance(parts, int) and not isinstance(parts, bool) and parts >= 1:
        return parts
    if isinstance(parts, list) and parts and all(str(part).strip().isdecimal() for part in parts):
        layers = [int(part) for part in parts]
        if all(one < other for one, other in pairwise(layers)):
            return layers
    raise ValueError("must be layers that rise, from 0, such as [0, 2, 4], or how many")


LayerMap = Literal["uniform", "last"] | dict[int, int]
"""Which layer of the student follows which of the teacher, both counted from 0."""


class Distillation(Section):
    """What a student learns from fine-tuned teachers beside the gold labels (Hinton et al. 2015)."""

    teachers: list[str] = Field([], description="fine-tuned checkpoints of this task: folders or hub names")
    temperature: Finite = Field(2.0, gt=0, le=1000, description="above 1 it shows more of the less probable answers")
    soft_weight: Finite = Field(0.5, ge=0, le=1, description="the teachers' share of the loss; the rest is gold")
    student_layers: Annotated[int | list[int] | None, BeforeValidator(read_layers)] = Field(
        None, description="make the student of these layers of the first teacher (or of so many), in place of `model`"
    )
    hidden: LayerMap | None = Field(
        None, description="match hidden states: `uniform`, `last`, or student layer -> teacher layer"
    )
    hidden_weight: Finite = Field(1.0, ge=0, le=1e6)
    attention: LayerMap | None = Field(None, description="match attention, as `hidden`")
    attention_weight: Finite = Field(1.0, ge=0, le=1e6)

    @property
    def matches_layers(self) -> bool:
        """Whether a teacher is looked into while the student is trained."""
        return self.hidden is not None or self.attention is not None


class Published(Section):
    """A score of the literature, as a number or a range, with its source."""

    model_config = ConfigDict(extra="allow", frozen=True)

    model: str
    split: str = "validation"
    source: str = ""

    def scores(self) -> dict[str, Any]:
        """Give metric name -> number or [low, high]."""
        return dict(self.model_extra or {})


class Recipe(Section):
    """Everything a run is made of, as read from a YAML file and the command line."""

    name: str
    about: str = ""
    task: str = Field("", description="task family: a module of bertkit.tasks, or an importable module")
    model: str = "google-bert/bert-base-uncased"
    model_labels: list[str] | None = Field(
        None, description="what the checkpoint's outputs mean, in its order, when its own names say nothing"
    )
    data: Data = Data()
    labels: list[str] | None = Field(None, description="label names; read off the training rows when absent")
    metrics: list[str] = Field([], min_length=1)
    best_metric: str = Field("", description="chooses the best checkpoint; the first of `metrics` when absent")
    training: Training = Training()
    distillation: Distillation | None = Field(None, description="teachers to learn from: see `bertkit distill`")
    options: dict[str, Any] = Field({}, description="what only this task family knows")
    published: list[Published] = []

    @property
    def model_name(self) -> str:
        """What a run begins from, in words."""
        layers = self.distillation.student_layers if self.distillation else None
        if layers is None:
            return self.model
        which = f"{layers} layers" if isinstance(layers, int) else f"layers {', '.join(map(str, layers))}"
        return f"{which} of {self.model}"

    @field_validator("labels", "model_labels")
    @classmethod
    def _names_are_distinct(cls, names: list[str] | None) -> list[str] | None:
        if names is not None and len(set(names)) != len(names):
            raise ValueError("label names must differ from each other")
        return names

    @model_validator(mode="before")
    @classmethod
    def _best_metric_is_the_first(cls, values: Any) -> Any:
        metrics = values.get("metrics") if isinstance(values, dict) else None
        if metrics and isinstance(metrics, list) and not values.get("best_metric"):
            return {**values, "best_metric": metrics[0]}
        return values
