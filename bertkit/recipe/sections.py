"""Base class and value types of the sections of a recipe, and the section `training`."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from annotated_types import Gt, Le, Lt
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PrivateAttr,
    ValidationInfo,
    WrapValidator,
    field_validator,
)
from pydantic_core.core_schema import ValidatorFunctionWrapHandler

from bertkit.errors import UsageError


def expand_path(location: str | Path) -> Path:
    """Expand ``~`` and ``~name`` in a path, even if the shell does not (as in ``--output=~/runs``).

    Every path from the command line or a recipe is expanded by this function exactly once, so that no library expands
    a path that bertkit has read literally.

    Raises:
        UsageError: If there is no such user.
    """
    path = Path(location)
    # pathlib drops the `./` that distinguishes a folder called `~` from a home directory.
    if not str(location).startswith("~"):
        return path
    try:
        return path.expanduser()
    except RuntimeError:
        message = f"{location}: {path.parts[0]} is not the home directory of a user"
        raise UsageError(message, f"write {Path.cwd() / path} for a folder of this name") from None


def _expand_home(location: str) -> str:
    return str(expand_path(location)) if location.startswith("~") else location


Location = Annotated[str, AfterValidator(_expand_home)]
"""Path, Hub name or address; a home directory is expanded."""


Row = dict[str, Any]
"""One row of data, keyed by canonical column (``text``, ``text_pair``, ``label``, ...)."""


def _check_finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError("must be a finite number")
    return value


Finite = Annotated[float, AfterValidator(_check_finite)]


class Auto(float):
    """Number that is not chosen yet: it is NaN until the rows and the encoder are known."""

    def __str__(self) -> str:
        """Return ``auto``, as in a recipe."""
        return "auto"


AUTO = Auto("nan")


def _keep_auto(value: object, check_number: ValidatorFunctionWrapHandler) -> object:
    return AUTO if value == "auto" or isinstance(value, Auto) else check_number(value)


_OR_AUTO = (WrapValidator(_keep_auto), PlainSerializer(lambda value: "auto" if isinstance(value, Auto) else value))
Epochs = Annotated[float, Gt(0), Le(10_000), *_OR_AUTO]
"""Number of epochs, or `auto`."""
Rate = Annotated[float, Gt(0), Lt(1), *_OR_AUTO]
"""Learning rate, or `auto`."""


def _check_folder_name(name: str) -> str:
    # File systems allow 255 bytes. bertkit appends endings such as `.before-2`.
    if not name.strip(". ") or Path(name).name != name or not name.isprintable() or len(name.encode()) > 200:
        raise ValueError("must be a plain name of at most 200 bytes, without a slash: the run folder gets this name")
    return name


FolderName = Annotated[str, AfterValidator(_check_folder_name)]
"""Name of a folder in `runs/`, never a path that leads out of it."""


class ConfigSection(BaseModel):
    """Section of a recipe: immutable, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())
    EXAMPLE: ClassVar[str] = "see `bertkit recipes show cola`"
    """Remedy in error messages: where to see an example of such a file."""
    _trusted: bool = PrivateAttr(default=True)

    def model_post_init(self, context: Any) -> None:
        """Copy `trusted` from the validation context."""
        if context is not None:
            self._trusted = context["trusted"]

    @property
    def trusted(self) -> bool:
        """Whether code that the recipe names may run: not if the recipe came with a model that is not trusted."""
        return self._trusted

    def replace(self, section: str, **values: object) -> Self:
        """Return a copy with other values in one section; the values are not checked."""
        return self.model_copy(update={section: getattr(self, section).model_copy(update=values)})


# --- Training ---


class LoraConfig(ConfigSection):
    """Low-rank adapters, trained instead of the encoder's weights (Hu et al. 2022)."""

    rank: int = Field(8, ge=1, le=4096)
    alpha: Finite = Field(16, gt=0)
    """An adapter's output is multiplied by alpha / rank."""
    dropout: Finite = Field(0.1, ge=0, lt=1)
    targets: Literal["attention", "all-linear"] | list[str] = "attention"
    """Linear layers that get an adapter: `attention`, `all-linear`, or a list of names."""

    @field_validator("targets")
    @classmethod
    def _targets_are_not_empty(cls, targets: str | list[str]) -> str | list[str]:
        if not targets:
            raise ValueError("must name at least one")
        return targets


_VALUES = {"freeze": "`embeddings`, `encoder`, or a number of layers", "log_every": "`auto` or a number of steps"}
"""Key that takes a word or a number -> description of its values, if other than `epoch` or a number of steps."""


def _check_positive(value: str | int | None, info: ValidationInfo) -> str | int | None:
    """Return a word unchanged, and a number only if it is positive."""
    if isinstance(value, int) and value < 1:
        raise ValueError(f"must be {_VALUES.get(str(info.field_name), '`epoch` or a number of steps')} of at least 1")
    return value


_LAYER_KEYS = ("freeze", "head_only_epochs", "gradual_unfreezing", "layerwise_lr_decay", "reinit_layers", "lora")


class LayerTraining(ConfigSection):
    """Settings that treat the embeddings, the layers and the head of a model differently."""

    freeze: Literal["embeddings", "encoder"] | int | None = None
    """Weights that are never trained: `embeddings`; a number: the embeddings and this many of the lowest layers;
    `encoder`: all except the head."""
    head_only_epochs: Finite | None = Field(None, gt=0, le=10_000)
    """Epochs in which only the head is trained, before the other weights are unfrozen."""
    gradual_unfreezing: Literal["epoch"] | int | None = None
    """Unfreeze one layer per `epoch` or every N steps, from the top (ULMFiT)."""
    layerwise_lr_decay: Finite | None = Field(None, gt=0, le=1)
    """A layer's learning rate as a fraction of the learning rate of the layer above it."""
    head_learning_rate: Finite | None = Field(None, gt=0, lt=1)
    """Learning rate of the head; by default, `learning_rate`."""
    reinit_layers: int | None = Field(None, ge=0, le=1000)
    """Number of top layers to initialize again, together with the pooler."""
    lora: LoraConfig | None = None
    """Train low-rank adapters instead of the encoder's weights."""

    @property
    def layer_keys(self) -> list[str]:
        """Keys that are set and only apply to an encoder whose layers are trained."""
        return [key for key in _LAYER_KEYS if getattr(self, key) is not None]

    @property
    def sets_layers(self) -> bool:
        """Whether some weights have a different learning rate, or are frozen at the start."""
        return bool(self.layer_keys or self.head_learning_rate)

    _frozen_layers_are_positive = field_validator("freeze")(_check_positive)

    @field_validator("head_only_epochs", "gradual_unfreezing", "layerwise_lr_decay", "reinit_layers", "lora")
    @classmethod
    def _encoder_is_trained(cls, value: Any, info: ValidationInfo) -> Any:
        # `reinit_layers: 0` initializes only the pooler, which is trained with the head.
        if value and info.data.get("freeze") == "encoder":
            raise ValueError("does not go with training.freeze = encoder: leave one of them out")
        return value

    @field_validator("head_only_epochs")
    @classmethod
    def _the_rest_is_trained_too(cls, value: float | None, info: ValidationInfo) -> float | None:
        epochs = info.data.get("epochs", 0)
        # `epochs: auto` is NaN. No comparison with NaN is true, so `auto` is an error too.
        if value is not None and info.data.get("steps") is None and not value < epochs:
            limit = "given as a number" if math.isnan(epochs) else f"{epochs:g}"
            raise ValueError(f"must be less than training.epochs ({limit}); `freeze: encoder` trains only the head")
        return value

    _steps_are_positive = field_validator("gradual_unfreezing")(_check_positive)

    @field_validator("lora")
    @classmethod
    def _adapters_are_trained(cls, value: LoraConfig | None, info: ValidationInfo) -> LoraConfig | None:
        if value is not None and info.data.get("reinit_layers"):
            raise ValueError("does not go with training.reinit_layers: new layers would not be trained")
        return value


MIN_LOGS = 30  # unless a run has fewer steps
# Settings that exclude CUDA graphs if they are true.
NOT_CAPTURED = ("unpad", "gradient_checkpointing")
OUTPUT_ONLY_KEYS = {"keep_all_checkpoints", "keep_optimizer", "report_to"}
"""Keys of `training` that only change which files are kept and where losses are reported, but not the result."""


CustomName = Annotated[str, Field(pattern=r"\.")]
"""Name of a user's function, ``package.module.name``."""


def _as_list(value: object) -> object:
    # TrainingArguments take `none` for no tracker.
    return [] if value in ("none", ["none"]) else [value] if isinstance(value, str) else value


# The names that `transformers.integrations.get_reporting_integration_callbacks` knows.
_Tracker = Literal[
    "tensorboard", "wandb", "mlflow", "trackio", "azure_ml", "clearml", "codecarbon", "comet_ml", "dagshub", "dvclive",
    "flyte", "kubeflow", "neptune", "swanlab",
]  # fmt: skip
Trackers = Annotated[list[_Tracker], BeforeValidator(_as_list)]


class BaseTrainingConfig(ConfigSection):
    """Settings that fine-tuning and pretraining share."""

    epochs: Finite = Field(3, gt=0, le=10_000)
    steps: int | None = Field(None, ge=1, le=10**9)
    """Total number of optimizer steps, instead of `epochs`."""
    batch_size: int = Field(32, ge=1, le=1_000_000)
    """Rows per optimizer step, over all processes."""
    learning_rate: Finite = Field(2e-5, gt=0, lt=1)
    schedule: Literal["linear", "cosine", "constant", "constant_with_warmup", "warmup_stable_decay"] = "linear"
    warmup_ratio: Finite = Field(0.1, ge=0, lt=1)
    """Fraction of the steps in which the learning rate rises."""
    decay_ratio: Finite | None = Field(None, gt=0, lt=1)
    """`warmup_stable_decay`: fraction of the steps in which the learning rate falls; by default, 0.1."""
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
    """Faster random generator for the dropout masks on a CPU."""
    unpad: bool | Literal["auto"] = "auto"
    """Skip the padding of batches; the result is the same. `auto` does so on a CPU only."""
    torch_compile: bool = False
    """Compile the layers with torch.compile, which takes a minute and makes training on a GPU faster."""
    cuda_graphs: bool = False
    """Capture each step as a CUDA graph, for small models and batches on a CUDA GPU."""
    fsdp: bool = False
    """Split weights, gradients and optimizer states among the processes of a launch (FSDP2), for a large encoder."""
    evaluate_every: Literal["epoch"] | int = "epoch"
    """`epoch`, or a number of steps."""
    keep_all_checkpoints: bool = False
    """Keep every checkpoint, not only the best and the last."""
    keep_optimizer: bool = False
    """Keep the optimizer states in the checkpoints of a finished run."""
    patience: int | None = Field(None, ge=1)
    """Stop after this many evaluations without improvement."""
    log_every: Literal["auto"] | int = "auto"
    """Steps between logged losses; `auto` logs at least 30 times, and at least every 50 steps."""
    callbacks: list[str] | None = None
    """Classes of callbacks for transformers' Trainer, `package.module.Class`."""
    report_to: Trackers = Field([])
    """Experiment trackers that get losses and scores."""
    extra: dict[str, Any] = Field({})
    """Any other fields of transformers' TrainingArguments."""

    def steps_per_epoch(self, rows: int) -> int:
        """Return the number of optimizer steps in one epoch."""
        return -(-rows // self.batch_size)  # rounded up: the last batch may be smaller

    def total_steps(self, rows: int | None) -> int:
        """Return the number of optimizer steps of a run; without `rows`, as in pretraining, this is `steps`."""
        if self.steps is not None or rows is None:
            return self.steps or 0
        return math.ceil(self.steps_per_epoch(rows) * self.epochs)

    def steps_per_evaluation(self, rows: int | None) -> int:
        """Return the steps between evaluations: by default an epoch, or a tenth of all steps in pretraining."""
        if self.evaluate_every != "epoch":
            return int(self.evaluate_every)
        return -(-self.total_steps(None) // 10) if rows is None else self.steps_per_epoch(rows)

    def steps_per_log(self, steps: int) -> int:
        """Return the number of steps between logged losses of a run of `steps` steps.

        >>> [BaseTrainingConfig().steps_per_log(steps) for steps in (20, 600, 100_000)]
        [1, 20, 50]
        """
        return max(1, min(50, steps // MIN_LOGS)) if self.log_every == "auto" else self.log_every

    def count_evaluations(self, steps: int, rows: int | None) -> int:
        """Return how often a run of `steps` steps is evaluated and saved, including after its last step."""
        return -(-steps // max(1, self.steps_per_evaluation(rows)))

    def count_kept_checkpoints(self, num_saves: int) -> int:
        """Return how many of the saved checkpoints of a run are kept."""
        return num_saves if self.keep_all_checkpoints else min(num_saves, 2)  # the best and the last

    @property
    def decay_fraction(self) -> float:
        """Fraction of the steps in which the rate of `warmup_stable_decay` falls (Hu et al. 2024, section 4)."""
        return self.decay_ratio or min(0.1, 1 - self.warmup_ratio)

    @field_validator("decay_ratio")
    @classmethod
    def _decay_follows_the_warmup(cls, value: float | None, info: ValidationInfo) -> float | None:
        schedule, warmup = info.data.get("schedule", "warmup_stable_decay"), info.data.get("warmup_ratio", 0)
        if value is not None and schedule != "warmup_stable_decay":
            raise ValueError(f"needs training.schedule = warmup_stable_decay, not {schedule}")
        if value is not None and value + warmup > 1:
            raise ValueError(f"must be at most {1 - warmup:g}, because training.warmup_ratio is {warmup:g}")
        return value

    @field_validator("torch_compile", "cuda_graphs")
    @classmethod
    def _no_excluded_setting_is_true(cls, value: bool, info: ValidationInfo) -> bool:
        excluded = NOT_CAPTURED if info.field_name == "cuda_graphs" else ("unpad",)
        for name in excluded:
            if value and info.data.get(name) is True:
                raise ValueError(f"does not go with training.{name} = true: leave one of them out")
        return value

    _intervals_are_positive = field_validator("evaluate_every", "log_every")(_check_positive)


class TrainingConfig(LayerTraining, BaseTrainingConfig):
    """Settings of fine-tuning."""

    epochs: Epochs = 3
    """Number, or `auto`, which depends on the number of training rows."""
    learning_rate: Rate = 2e-5
    """Number, or `auto`, which depends on the size of the encoder."""
    batching: Literal["auto", "sorted", "random"] = "auto"
    """`sorted` batches rows of similar length, which need little padding; `auto` is `sorted`, except for taggers whose
    batches are not padded: `random`."""
    cls_only_last_layer: bool = True
    """Compute only the first token in the last layer, for classifiers; the result is the same."""
    train_used_embeddings_only: bool = True
    """Train only the word embeddings that occur in the rows; the result is the same."""
    class_weights: Literal["balanced"] | dict[str, Finite] | None = None
    """`balanced`, or label name -> weight in the loss."""
    label_smoothing: Finite = Field(0.0, ge=0, lt=1)
    loss: Literal["focal"] | CustomName | None = None
    """`focal`, or a custom function, `package.module.name`; by default, the loss of the model's head."""
    focal_gamma: Finite | None = Field(None, ge=0, le=10)
    """`focal`: a higher value gives well predicted labels less weight in the loss; by default, 2."""
    collator: CustomName | None = None
    """Custom function that makes training batches, `package.module.name`."""

    @field_validator("focal_gamma")
    @classmethod
    def _gamma_needs_focal_loss(cls, gamma: float | None, info: ValidationInfo) -> float | None:
        if gamma is not None and info.data.get("loss") != "focal":
            raise ValueError("needs training.loss = focal")
        return gamma


_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class PretrainingConfig(BaseTrainingConfig):
    """Settings of pretraining; a row is one block of tokens, or one pair of segments."""

    epochs: Finite = Field(1, gt=0, le=10_000)
    batch_size: int = Field(64, ge=1, le=1_000_000)
    """Blocks per optimizer step, over all processes."""
    learning_rate: Finite = Field(5e-4, gt=0, lt=1)
    warmup_ratio: Finite = Field(0.06, ge=0, lt=1)
    """Fraction of the steps in which the learning rate rises."""
    budget: str | None = None
    """Train for this long (`90s`, `30m`, `2h`, `1d`) instead of `steps`; the schedule follows the clock."""
    packing: Literal["documents", "joined", "none"] = "documents"
    """`documents`: several documents fill a block, and attention stays within each; `joined`: attention crosses them;
    `none`: one document per block."""
    short_length: int | None = Field(None, ge=4)
    """Block length in the first steps (BERT: 128, then 512)."""
    short_fraction: Finite = Field(0.9, gt=0, lt=1)
    """Fraction of the steps, or of the budget, with `short_length`."""
    dupe_factor: int | None = Field(None, ge=1)
    """Number of differently masked copies of the text (BERT: 10); by default, every epoch has new masks."""
    eval_blocks: int = Field(1000, ge=1)
    """Number of held-out blocks that are scored."""
    workers: int | None = Field(None, ge=0, le=64)
    """Processes that build batches; the result is the same. By default none on a CPU, and up to four on a GPU."""

    @field_validator("budget")
    @classmethod
    def _budget_is_a_time(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"\d+(\.\d+)?[smhd]", value):
            raise ValueError("must be a time such as 90s, 30m, 2h or 1d")
        return value

    def get_example_version(self, epoch: int) -> int:
        """Return the version of the examples in an epoch: a new one for each epoch, or one of `dupe_factor`."""
        return epoch % self.dupe_factor if self.dupe_factor else epoch

    @property
    def budget_seconds(self) -> float | None:
        """Seconds to train for, or None if `steps` or `epochs` limit training."""
        return None if self.budget is None else float(self.budget[:-1]) * _SECONDS[self.budget[-1]]

    @field_validator("short_length")
    @classmethod
    def _short_is_shorter(cls, value: int | None, info: ValidationInfo) -> int | None:
        max_length = info.data.get("max_length")
        if value is not None and max_length is not None and value >= max_length:
            raise ValueError(f"must be less than training.max_length ({max_length}), or null for a single length")
        return value
