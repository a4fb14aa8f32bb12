"""The records a pretraining recipe is made of."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from bertkit.recipe.records import CommonTraining, Finite, Section

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Corpus(Section):
    """Where text comes from, and what is a document in it."""

    source: str = Field("", description="hub data set, directory, file, or `demo`")
    config: str | None = Field(None, description="configuration of the hub data set")
    revision: str | None = Field(None, description="revision of the hub data set")
    files: dict[str, str] = Field({}, description="split (`train`, `validation`) -> file, instead of `source`")
    splits: dict[str, str] = Field({}, description="split -> its name in the source, where that differs")
    column: str = Field("text", description="column of the text in jsonl, json, csv, parquet and hub data sets")
    documents: Literal["auto", "blank_lines", "lines", "rows"] = Field(
        "auto", description="what ends a document: a blank line (text files, BERT's way), every line, or every row"
    )
    encoding: str = Field("utf-8", description="encoding of text files")
    deduplicate: bool = Field(True, description="drop documents that occurred before, to the letter")
    validation_share: Finite = Field(
        0.01, gt=0, lt=1, description="share of documents held out where there is no validation split"
    )
    limit: int | None = Field(None, ge=2, description="use only the first documents of each split")
    streaming: bool = Field(
        False, description="read a hub data set as it comes, twice, in place of downloading it first"
    )


class Pretraining(CommonTraining):
    """How a model is pretrained; a row is one block of tokens (or one pair of segments)."""

    epochs: Finite = Field(1, gt=0, le=10_000)
    batch_size: int = Field(64, ge=1, le=1_000_000, description="blocks per optimizer step, over all processes")
    learning_rate: Finite = Field(5e-4, gt=0, lt=1)
    warmup_ratio: Finite = Field(0.06, ge=0, lt=1, description="share of all steps")
    budget: str | None = Field(
        None, description="train for so long (`90s`, `30m`, `2h`, `1d`) in place of steps; the rate follows the clock"
    )
    packing: Literal["documents", "joined", "none"] = Field(
        "documents",
        description="`documents`: several documents fill a block, and attention stays within each; `joined`: attention "
        "crosses them; `none`: one document per block",
    )
    short_length: int | None = Field(None, ge=4, description="block length of the first steps (BERT: 128 before 512)")
    short_share: Finite = Field(0.9, gt=0, lt=1, description="share of all steps, or of the budget, that is short")
    dupe_factor: int | None = Field(
        None,
        ge=1,
        description="number of differently masked copies of the text (BERT: 10); new masks in each epoch when absent",
    )
    evaluation_rows: int = Field(1000, ge=1, description="blocks of held-out text that are scored")
    workers: int = Field(0, ge=0, le=64, description="processes that make batches; the result is the same")

    @field_validator("budget")
    @classmethod
    def _budget_is_a_time(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"\d+(\.\d+)?[smhd]", value):
            raise ValueError("must be a time such as 90s, 30m, 2h or 1d")
        return value

    @property
    def budget_seconds(self) -> float | None:
        """The seconds to train for, None where steps are counted."""
        return None if self.budget is None else float(self.budget[:-1]) * _UNITS[self.budget[-1]]

    @field_validator("short_length")
    @classmethod
    def _short_is_shorter(cls, value: int | None, info: ValidationInfo) -> int | None:
        longest = info.data.get("max_length")
        if value is not None and longest is not None and value >= longest:
            raise ValueError(f"must be less than training.max_length ({longest}), or null for one length")
        return value


class PretrainRecipe(Section):
    """Everything a pretraining run is made of, as read from a YAML file and the command line."""

    name: str
    about: str = ""
    objective: str = Field(description="a module of bertkit.objectives, or an importable module")
    model: str | None = Field(None, description="checkpoint to go on from; a new model of `size` when absent")
    size: str = Field("base", description="shape of a new model: see `bertkit pretrain sizes`")
    model_options: dict[str, Any] = Field({}, description="any field of the model's config, for a new model")
    tokenizer: str | None = Field(None, description="folder or hub name; that of `model` when absent")
    data: Corpus = Corpus()
    training: Pretraining = Pretraining()
    options: dict[str, Any] = Field({}, description="what only this objective knows")
