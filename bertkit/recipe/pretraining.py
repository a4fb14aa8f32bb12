"""The sections of a pretraining recipe."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from bertkit.recipe.paths import Location
from bertkit.recipe.records import CommonTraining
from bertkit.recipe.sections import Finite, FolderName, Section

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Corpus(Section):
    """Where text comes from, and how it is split into documents."""

    source: Location = ""
    """Hub data set, directory, file, or `demo`."""
    config: str | None = None
    """Configuration of the hub data set."""
    revision: str | None = None
    """Revision of the hub data set."""
    files: dict[str, Location] = Field({})
    """Split (`train`, `validation`) -> file, instead of `source`."""
    splits: dict[str, str] = Field({})
    """Split -> its name in the source, if different."""
    column: str = "text"
    """Column with the text, in jsonl, json, csv, parquet and hub data sets."""
    documents: Literal["auto", "articles", "blank_lines", "lines", "rows"] = "auto"
    """What a document is: an article under a title (as in wikitext), the text between blank lines (as BERT reads text
    files), a line, or a row."""
    encoding: str = "utf-8"
    """Encoding of text files."""
    deduplicate: bool = True
    """Drop exact copies of earlier documents."""
    validation_share: Finite = Field(0.01, gt=0, lt=1)
    """Share of documents held out if there is no validation split."""
    limit: int | None = Field(None, ge=2, le=2**63 - 1)
    """Use only this many documents of each split, the first ones."""
    streaming: bool = False
    """Stream a hub data set, twice, instead of downloading it first."""


class Pretraining(CommonTraining):
    """How a model is pretrained; a row is one block of tokens, or one pair of segments."""

    epochs: Finite = Field(1, gt=0, le=10_000)
    batch_size: int = Field(64, ge=1, le=1_000_000)
    """Blocks per optimizer step, over all processes."""
    learning_rate: Finite = Field(5e-4, gt=0, lt=1)
    warmup_ratio: Finite = Field(0.06, ge=0, lt=1)
    """Share of all steps in which the learning rate rises."""
    budget: str | None = None
    """Train for this long (`90s`, `30m`, `2h`, `1d`) instead of `steps`; the schedule follows the clock."""
    packing: Literal["documents", "joined", "none"] = "documents"
    """`documents`: several documents fill a block, and attention stays within each; `joined`: attention crosses them;
    `none`: one document per block."""
    short_length: int | None = Field(None, ge=4)
    """Block length in the first steps (BERT: 128, then 512)."""
    short_share: Finite = Field(0.9, gt=0, lt=1)
    """Share of all steps, or of the budget, with `short_length`."""
    dupe_factor: int | None = Field(None, ge=1)
    """Number of differently masked copies of the text (BERT: 10); by default, every epoch has new masks."""
    evaluation_rows: int = Field(1000, ge=1)
    """Number of held-out blocks that are scored."""
    workers: int = Field(0, ge=0, le=64)
    """Processes that build batches; the result is the same."""

    @field_validator("budget")
    @classmethod
    def _budget_is_a_time(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"\d+(\.\d+)?[smhd]", value):
            raise ValueError("must be a time such as 90s, 30m, 2h or 1d")
        return value

    def version_of(self, epoch: int) -> int:
        """Return which version of the examples an epoch sees: a new one each time, or one of `dupe_factor`."""
        return epoch % self.dupe_factor if self.dupe_factor else epoch

    @property
    def budget_seconds(self) -> float | None:
        """The seconds to train for; None where `steps` or `epochs` limit training."""
        return None if self.budget is None else float(self.budget[:-1]) * _UNITS[self.budget[-1]]

    @field_validator("short_length")
    @classmethod
    def _short_is_shorter(cls, value: int | None, info: ValidationInfo) -> int | None:
        max_length = info.data.get("max_length")
        if value is not None and max_length is not None and value >= max_length:
            raise ValueError(f"must be less than training.max_length ({max_length}), or null for a single length")
        return value


class PretrainRecipe(Section):
    """Everything that defines a pretraining run, as read from a YAML file and the command line."""

    name: FolderName
    about: str = ""
    objective: str
    """Objective: a module of bertkit.pretraining.objectives, or an importable module."""
    model: Location | None = None
    """Checkpoint to continue from; by default, a new model of `size`."""
    size: str = "base"
    """Size of a new model; see `bertkit pretrain sizes`."""
    model_options: dict[str, Any] = Field({})
    """Any fields of the config of a new model."""
    tokenizer: Location | None = None
    """Folder or hub name; by default, that of `model`."""
    data: Corpus = Corpus()
    training: Pretraining = Pretraining()
    options: dict[str, Any] = Field({})
    """Options of this objective."""
