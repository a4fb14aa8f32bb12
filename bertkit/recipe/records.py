"""The sections of a recipe: frozen records whose values are checked and whose keys are fixed."""

from __future__ import annotations

import json
import math
import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationInfo, field_validator, model_validator

from bertkit.recipe.layer_training import LayerTraining
from bertkit.recipe.paths import Location
from bertkit.recipe.sections import Epochs, Finite, FolderName, Rate, Row, Section
from bertkit.recipe.student_layers import read_layers


class Data(Section):
    """Where rows come from, and which of their columns is which canonical column."""

    source: Location = ""
    """Hub data set, directory, file, or `demo`."""
    config: str | None = None
    """Configuration of the hub data set."""
    language: str | None = None
    """What `{language}` in the keys above and below stands for."""
    revision: str | None = None
    """Revision of the hub data set."""
    files: dict[str, Location] = Field({})
    """Split -> file, instead of one that is found in `source`."""
    splits: dict[str, str] = Field({})
    """Split -> its name in the source, if different."""
    columns: dict[str, str | list[str]] = Field({})
    """Canonical column -> column in the source, a list of columns, or null to drop it."""
    unread: list[str] = Field([])
    """Canonical columns that are not read where the source has them; `null` in `columns` adds one."""
    format: str = "auto"
    """File format; `auto` goes by the ending."""
    header: list[str] | None = None
    """Column names of a csv, tsv or conll file without a header line."""
    delimiter: str | None = None
    """CSV: `,` `;` tab or `|`; by default, the one in the header line."""
    quoting: Literal["double", "none"] = "double"
    """CSV, TSV: `none` reads quotes as text."""
    encoding: str = "utf-8"
    """Encoding of text files."""
    empty_text: Literal["refuse", "drop", "keep"] = "refuse"
    """What to do with rows that have a blank text."""
    empty_label: Literal["refuse", "drop"] = "refuse"
    """What to do with rows that have no label."""
    label_range: tuple[Finite, Finite] | None = None
    """Regression, reranking: the lowest and the highest number that a label may be; others are refused."""
    split_column: str | None = None
    """Single file: column with the split of each row."""
    validation_share: Finite = Field(0.1, gt=0, lt=1)
    """Single file: share of rows that are held out."""
    hold_out: Literal["by_hash", "by_label"] = "by_hash"
    """Single file: `by_hash` holds out about the share, and no row changes sides when the file grows; `by_label` holds
    out the share of each label to the row."""
    limit: int | None = Field(None, ge=1, le=2**63 - 1)
    """Use only this many rows of each split, the first ones."""
    per_class: int | None = Field(None, ge=1)
    """Train on only this many rows of each label, drawn by `training.seed`."""
    train_limit: int | None = Field(None, ge=1)
    """Train on only this many rows, drawn by `training.seed`; validation rows stay."""
    streaming: bool = False
    """Read training rows during training, for data that does not fit in memory."""
    cache: bool = True
    """Keep the encoded rows of each split on disk for the next run."""
    _rows: dict[str, list[Row]] | None = PrivateAttr(None)
    """Rows in memory, which a program gives in place of a source: split -> its rows; ``all`` are not split yet."""

    def with_rows(self, rows: dict[str, list[Row]]) -> Data:
        """Return the same settings for rows in memory, which no file of the run will name."""
        data = self.model_copy(update={"source": "", "files": {}})
        data._rows = rows
        return data

    @property
    def rows(self) -> dict[str, list[Row]] | None:
        """The rows in memory, if a program gives them."""
        return self._rows

    @field_validator("label_range")
    @classmethod
    def _range_is_ascending(cls, ends: tuple[float, float] | None) -> tuple[float, float] | None:
        if ends is not None and not ends[0] < ends[1]:
            raise ValueError("must be two numbers in ascending order, such as [0, 5]")
        return ends

    @field_validator("train_limit")
    @classmethod
    def _rows_are_drawn_once(cls, limit: int | None, info: ValidationInfo) -> int | None:
        if limit is not None and info.data.get("per_class") is not None:
            raise ValueError("does not go with data.per_class: leave one of them out")
        return limit

    @field_validator("language")
    @classmethod
    def _language_is_a_plain_name(cls, language: str | None) -> str | None:
        if language is not None and not re.fullmatch(r"\w[\w.-]*", language):  # folders are called so
            raise ValueError("must be a code such as en, made of letters, digits, `_`, `-` and `.`")
        return language

    @model_validator(mode="before")
    @classmethod
    def _null_takes_a_column_out(cls, values: Any) -> Any:
        columns = values.get("columns") if isinstance(values, dict) else None
        if not isinstance(columns, dict) or None not in columns.values():
            return values
        nulls = [name for name, column in columns.items() if column is None]
        rest = {name: column for name, column in columns.items() if name not in nulls}
        return {**values, "columns": rest, "unread": [*values.get("unread", []), *nulls]}


WHAT_IS_KEPT = {"keep_all_checkpoints", "keep_optimizer"}
"""Keys of `training` that change no result, only what of it stays on disk."""


class CommonTraining(Section):
    """Settings that fine-tuning and pretraining share."""

    epochs: Finite = Field(3, gt=0, le=10_000)
    steps: int | None = Field(None, ge=1, le=10**9)
    """Total number of optimizer steps, instead of `epochs`."""
    batch_size: int = Field(32, ge=1, le=1_000_000)
    """Rows per optimizer step, over all processes."""
    learning_rate: Finite = Field(2e-5, gt=0, lt=1)
    schedule: Literal["linear", "cosine", "constant", "constant_with_warmup", "warmup_stable_decay"] = "linear"
    warmup_ratio: Finite = Field(0.1, ge=0, lt=1)
    """Share of all steps in which the learning rate rises."""
    decay_ratio: Finite | None = Field(None, gt=0, lt=1)
    """`warmup_stable_decay`: share of all steps in which it falls; by default, 0.1."""
    weight_decay: Finite = Field(0.01, ge=0, le=1)
    max_grad_norm: Finite = Field(1.0, gt=0)
    max_length: int = Field(128, ge=4, le=100_000)
    """Tokens per text (or pair), special tokens included."""
    seed: int = Field(42, ge=0, lt=2**32)
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    gradient_accumulation: int = Field(1, ge=1)
    """Micro-batches that a batch is split into, to save memory; the result is the same."""
    gradient_checkpointing: bool = False
    """Recompute activations to save memory; slower."""
    fast_dropout: bool = True
    """On a CPU: draw dropout masks from a faster generator than torch's."""
    unpad: bool | Literal["auto"] = "auto"
    """Skip the padding of batches; the result is the same. `auto` does so on a CPU only."""
    torch_compile: bool = False
    """Compile the layers by torch.compile, which takes a minute and pays on a GPU."""
    evaluate_every: Literal["epoch"] | int = "epoch"
    """`epoch`, or a number of steps."""
    keep_all_checkpoints: bool = False
    """Keep every checkpoint, not the best and the last alone."""
    keep_optimizer: bool = False
    """Keep the optimizer states in the checkpoints of a finished run."""
    patience: int | None = Field(None, ge=1)
    """Stop after this many evaluations without improvement."""
    log_every: int = Field(50, ge=1)
    """Steps between logged losses."""
    extra: dict[str, Any] = Field({})
    """Any other fields of transformers' TrainingArguments."""

    def steps_per_epoch(self, rows: int) -> int:
        """Return the number of optimizer steps in one epoch."""
        return -(-rows // self.batch_size)

    def total_steps(self, rows: int | None) -> int:
        """Return the number of optimizer steps of a run; `rows` is None for a stream, which needs `steps`."""
        if self.steps is not None or rows is None:
            return self.steps or 0
        return math.ceil(self.steps_per_epoch(rows) * self.epochs)

    def steps_per_evaluation(self, rows: int | None) -> int:
        """Return the steps from one evaluation to the next: an epoch by default, a tenth of all steps for a stream."""
        if self.evaluate_every != "epoch":
            return int(self.evaluate_every)
        return -(-self.total_steps(None) // 10) if rows is None else self.steps_per_epoch(rows)

    def evaluations(self, steps: int, rows: int | None) -> int:
        """Return how often a run of so many steps is evaluated, and so saved; its last step is, too."""
        return -(-steps // max(1, self.steps_per_evaluation(rows)))

    def kept_checkpoints(self, saves: int) -> int:
        """Return how many of the checkpoints that a run saves it keeps."""
        return saves if self.keep_all_checkpoints else min(saves, 2)

    @property
    def decay_share(self) -> float:
        """The share of all steps in which the rate of `warmup_stable_decay` falls (Hu et al. 2024, section 4)."""
        return self.decay_ratio or min(0.1, 1 - self.warmup_ratio)

    @field_validator("decay_ratio")
    @classmethod
    def _decay_follows_the_warmup(cls, value: float | None, info: ValidationInfo) -> float | None:
        schedule, warmup = info.data.get("schedule", "warmup_stable_decay"), info.data.get("warmup_ratio", 0)
        if value is not None and schedule != "warmup_stable_decay":
            raise ValueError(f"needs training.schedule = warmup_stable_decay, not {schedule}")
        if value is not None and value + warmup > 1:
            raise ValueError(f"leaves nothing between it and training.warmup_ratio ({warmup:g}): together at most 1")
        return value

    @field_validator("torch_compile")
    @classmethod
    def _compiled_layers_compute_padding(cls, value: bool, info: ValidationInfo) -> bool:
        if value and info.data.get("unpad") is True:
            raise ValueError("does not go with training.unpad = true: leave one of them out")
        return value

    @field_validator("evaluate_every")
    @classmethod
    def _steps_are_positive(cls, value: int | str) -> int | str:
        if isinstance(value, int) and value < 1:
            raise ValueError("must be `epoch` or a number of steps of at least 1")
        return value


class Training(LayerTraining, CommonTraining):
    """How a model is fine-tuned."""

    epochs: Epochs = 3
    """A number, or `auto`: by the number of training rows."""
    learning_rate: Rate = 2e-5
    """A number, or `auto`: by the size of the encoder."""
    batching: Literal["auto", "sorted", "random"] = "auto"
    """`sorted` batches rows of similar length, which leaves little padding; `auto` is that, or `random` for tags where
    padding is not computed."""
    cls_only_last_layer: bool = True
    """In the last layer, compute only the first token that a classifier reads; the result is the same."""
    occurring_embeddings: bool = True
    """Train only the word embeddings that occur in the rows; the result is the same."""
    class_weights: Literal["balanced"] | dict[str, Finite] | None = None
    """`balanced`, or label name -> weight in the loss."""
    label_smoothing: Finite = Field(0.0, ge=0, lt=1)


LayerMap = Literal["uniform", "last"] | dict[int, int]
"""Student layer -> the teacher layer that it is trained to match, both counted from 0."""


class Distillation(Section):
    """How a student learns from fine-tuned teachers as well as from the gold labels (Hinton et al. 2015)."""

    teachers: list[Location] = Field([])
    """Fine-tuned checkpoints for this task: folders or hub names."""
    temperature: Finite = Field(2.0, gt=0, le=1000)
    """Divides the logits; above 1, less probable labels weigh more."""
    soft_weight: Finite = Field(0.5, ge=0, le=1)
    """Weight of the teachers' soft targets in the loss; the rest is the gold labels'."""
    student_layers: Annotated[int | list[int] | None, BeforeValidator(read_layers)] = None
    """Build the student from these layers of the first teacher, or from this many, instead of `model`."""
    hidden: LayerMap | None = None
    """Match hidden states: `uniform`, `last`, or student layer -> teacher layer."""
    hidden_weight: Finite = Field(1.0, ge=0, le=1e6)
    attention: LayerMap | None = None
    """Match attention maps by KL divergence; values as `hidden`."""
    attention_scores: LayerMap | None = None
    """Match attention scores before the softmax by mean squared error; values as `hidden`."""
    attention_weight: Finite = Field(1.0, ge=0, le=1e6)
    """Weight of either kind of attention."""
    embeddings_weight: Finite | None = Field(None, ge=0, le=1e6)
    """Match the output of the embeddings, with this weight."""

    @property
    def matches_layers(self) -> bool:
        """Whether training needs the embeddings, hidden states or attention of a teacher."""
        given = (self.hidden, self.attention, self.attention_scores, self.embeddings_weight)
        return any(value is not None for value in given)


class Published(Section):
    """Published scores, each a number or a range, with their source."""

    model_config = ConfigDict(extra="allow", frozen=True)

    model: str
    split: str = "validation"
    source: str = ""

    def scores(self) -> dict[str, Any]:
        """Return metric name -> number or [low, high]."""
        return dict(self.model_extra or {})


class Gates(Section):
    """What a model must reach: a metric, ``ece`` or ``size_mb`` -> the least value; the most where lower is better."""

    model_config = ConfigDict(extra="allow", frozen=True)
    __pydantic_extra__: dict[str, Finite] = Field(init=False)

    confident: bool = False  # by the end of the 95% interval, not by the score itself

    @property
    def asked(self) -> dict[str, float]:
        """Name of what is measured -> its least or its highest value."""
        return dict(self.model_extra or {})


class Recipe(Section):
    """Everything that defines a fine-tuning run, as read from a YAML file and the command line."""

    name: FolderName
    about: str = ""
    task: str = ""
    """Task family: a module of bertkit.tasks, or an importable module."""
    model: Location = "google-bert/bert-base-uncased"
    model_labels: list[str] | None = None
    """Label names in the order of the checkpoint's outputs, if its config has none."""
    data: Data = Data()
    labels: list[str] | None = None
    """Label names; by default, those of the training rows."""
    metrics: list[str] = Field([], min_length=1)
    best_metric: str = ""
    """Chooses the best checkpoint; by default, the first of `metrics`."""
    training: Training = Training()
    distillation: Distillation | None = None
    """Teachers to learn from; see `bertkit distill`."""
    options: dict[str, Any] = Field({})
    """Options of this task family."""
    published: list[Published] = Field([])
    gates: Gates = Gates()
    """What the model must reach for exit code 0."""

    @property
    def model_name(self) -> str:
        """The model that a run starts from, for people."""
        layers = self.distillation.student_layers if self.distillation else None
        if layers is None:
            return self.model
        if isinstance(layers, int):
            return f"{layers} layer{'' if layers == 1 else 's'} of {self.model}"
        return f"layers {', '.join(map(str, layers))} of {self.model}"

    @field_validator("labels", "model_labels", mode="before")
    @classmethod
    def _numbers_and_truth_values_are_names(cls, names: Any) -> Any:
        if not isinstance(names, list):
            return names
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
        if metrics and isinstance(metrics, list) and not values.get("best_metric"):
            return {**values, "best_metric": metrics[0]}
        return values
