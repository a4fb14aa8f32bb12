"""Pretraining objectives, one per module, and the interface of such a module.

An objective is a file ``bertkit/pretraining/objectives/NAME.py``, or a custom module that can be imported. There is no
registry: a recipe with ``objective: NAME`` finds it by its name. Read `mlm` first; `sop` shows how short an objective
is if it reuses another one.

The data goes through the functions of the module in this order::

    tokenized corpus --examples--> examples of an epoch, as offsets
             example --feature---> token ids with masks, and labels: every random draw of the data happens here
            features --collator--> batch of tensors

    training:        batch --count, sum_losses--> items and summed loss per term; LOSS_TERMS weights the means
    held-out text:   batch --accumulate--> totals, summed over all batches --score--> scores --baselines--> more scores
    end of the run:  model --encoder, auxiliary_checkpoints--> plain checkpoints

Three rules keep runs reproducible and scores comparable:

* `feature` draws only from its generator, which is seeded per example. So the result does not depend on the process
  that makes the batch, and a resumed run sees the same batches as an unbroken run.
* `sum_losses` returns sums, and `count` the number of items in each sum. The mean is computed over the whole optimizer
  step, so micro-batches and several processes do not change it.
* `feature` gets ``progress=None`` on held-out text and then ignores the masking options of the recipe, so that all runs
  are scored on the same task.

torch and transformers are imported inside functions, so that a recipe can be checked quickly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from bertkit.modeling.info import Config, Model
from bertkit.pretraining.masking import MASK_RANDOM_KEEP, Random, ordinary_tokens
from bertkit.pretraining.tokenized import TokenizedCorpus
from bertkit.recipe.plugins import load_module
from bertkit.recipe.records import PretrainRecipe, check_options, read_option
from bertkit.tokens.features import (
    Batch,
    Collator,
    Feature,
    Features,
    SpecialTokenTemplate,
    Tensor,
    Tokenizer,
    find_template,
)

Sums = dict[str, Tensor]
"""Term -> loss, summed over the items of a batch."""

HELD_OUT_RATE = 0.15
"""Fraction of tokens that are masked in held-out text (Devlin et al. 2019, section 3.1)."""

Example = Any
"""Input of `feature`: a block of documents, or a pair of segments."""


class Examples(Protocol):
    """Examples of an epoch, as offsets in a corpus; tokens are read when an example is used."""

    lengths: np.ndarray
    """Number of tokens per example, special tokens included. Shape: (examples,)."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Example: ...


Totals = dict[str, float]
"""Sums over a held-out batch, such as the loss and the number of tokens; the totals of batches are added per key."""


@dataclass(frozen=True)
class PretrainContext:
    """Recipe, tokenizer and model config that an objective can use."""

    recipe: PretrainRecipe
    tokenizer: Tokenizer
    model_folder: Path | None
    """Checkpoint to continue from, or None for a new model."""
    config: Config
    """Config of the checkpoint, or of the recipe's size."""

    @cached_property
    def template(self) -> SpecialTokenTemplate:
        """Special tokens around a text."""
        return find_template(self.tokenizer, pair=False)

    @cached_property
    def pair_template(self) -> SpecialTokenTemplate:
        """Special tokens around two texts."""
        return find_template(self.tokenizer, pair=True)

    @cached_property
    def ordinary_tokens(self) -> np.ndarray:
        """Ids that can replace a masked token at random. Shape: (ids,)."""
        return ordinary_tokens(self.tokenizer)


class Objective(Protocol):
    """Interface of an objective's module: three constants and twelve functions, most with a few lines."""

    OPTIONS: Mapping[str, Any]
    """Keys that a recipe can set under ``options`` -> an `Option`, or only the default."""
    LOSS_TERMS: Mapping[str, float]
    """Terms of the loss and their weights, such as ``{"mlm": 1.0, "nsp": 1.0}``."""
    BEST_METRIC: str
    """Score of held-out text that selects the best checkpoint; lower is better. Usually ``loss``."""

    def check(self, context: PretrainContext) -> None:
        """Check that this objective can pretrain the model with the recipe, before the text is read.

        Raises:
            RecipeError: If the recipe does not fit the objective.
            ModelError: If the checkpoint does not fit the objective.
        """

    def load_model(self, context: PretrainContext) -> Model:
        """Load the checkpoint, or build a new model of the recipe's size, with the heads of this objective.

        `load_for_pretraining` does both, and stores the names of missing weights. If the model has a
        `PretrainingTeacher` as ``teacher``, the report compares the finished model with it.
        """

    def examples(self, corpus: TokenizedCorpus, length: int, context: PretrainContext, epoch: int) -> Examples:
        """Split a corpus into examples of at most `length` tokens, special tokens included.

        It runs in every epoch and in every worker process, so it computes only offsets and reads no tokens.
        """

    def feature(self, example: Example, progress: float | None, random: Random, context: PretrainContext) -> Feature:
        """Build the ``input_ids`` of an example, with masks, and its labels.

        Args:
            example: Element of `examples`.
            progress: Completed fraction of training, in [0, 1), or None for held-out text.
            random: Only source of random numbers.
            context: Context of the run.
        """

    def collator(self, context: PretrainContext) -> Collator:
        """Build the function that makes a batch of tensors from features; the first axis is the rows."""

    def count(self, batch: Batch) -> dict[str, int]:
        """Count the items in the summed loss of each term."""

    def sum_losses(self, model: Model, batch: Batch) -> Sums:
        """Compute the summed loss of each term, with gradients; without items, the loss is 0."""

    def accumulate(self, model: Model, batch: Batch) -> Totals:
        """Compute the sums over a held-out batch that `score` needs; gradients are off."""

    def score(self, totals: Totals) -> dict[str, float]:
        """Compute the scores of held-out text from the totals of all its batches.

        The score ``loss`` is required: the weighted sum of the terms' means.
        """

    def baselines(self, held_out: Features, scores: Mapping[str, float]) -> dict[str, dict[str, float]]:
        """Compute baselines without a model on held-out features: name of a baseline -> its scores.

        `scores` are the model's scores. The baseline by token frequencies is computed for every objective anyway.
        """

    def encoder(self, model: Model, context: PretrainContext) -> Model:
        """Return the part of the finished model that is saved as a plain checkpoint."""

    def auxiliary_checkpoints(self, model: Model, context: PretrainContext) -> Mapping[str, Model]:
        """Return other parts to save as plain checkpoints: name of a folder next to the encoder -> model."""


def get_masking_rate(options: Mapping[str, Any], context: PretrainContext, progress: float | None) -> float:
    """Return the fraction of tokens to mask: from ``mask_rate`` at the start to ``last_mask_rate`` at the end.

    On held-out text, the fraction is always 15%.
    """
    if progress is None:
        return HELD_OUT_RATE
    first_rate: float = read_option(options, context.recipe, "mask_rate")
    last_rate: float | None = read_option(options, context.recipe, "last_mask_rate")
    return first_rate if last_rate is None else first_rate + (last_rate - first_rate) * progress


def read_fractions(value: object) -> tuple[float, float, float]:
    """Read ``mask_random_keep``: the fractions of the selected tokens that are masked, replaced at random, and kept.

    >>> read_fractions([1, 0, 0])
    (1.0, 0.0, 0.0)

    Raises:
        ValueError: If the value is not three fractions that sum to 1; the message is the remedy.
    """
    values = value if isinstance(value, (list, tuple)) else ()
    fractions = tuple(float(fraction) for fraction in values if isinstance(fraction, (int, float)) and fraction >= 0)
    if len(fractions) != 3 or len(values) != 3 or abs(sum(fractions) - 1) > 1e-6:
        raise ValueError("give three fractions that sum to 1, such as [0.8, 0.1, 0.1]")
    return fractions


def get_replacement_fractions(
    options: Mapping[str, Any], context: PretrainContext, progress: float | None
) -> tuple[float, float, float]:
    """Return the recipe's ``mask_random_keep``, or 80%, 10% and 10% on held-out text."""
    if progress is None:
        return MASK_RANDOM_KEEP
    return read_fractions(read_option(options, context.recipe, "mask_random_keep"))


_FUNCTIONS = tuple(name for name in vars(Objective) if not name.startswith("_"))
_CONSTANTS = ("OPTIONS", "LOSS_TERMS", "BEST_METRIC")


def objective_names() -> list[str]:
    """Return the names of bertkit's objectives."""
    return sorted(file.stem for file in Path(__file__).parent.glob("[a-z]*.py"))


def load_objective(recipe: PretrainRecipe) -> Objective:
    """Load the objective of a recipe and check the recipe's options.

    Raises:
        RecipeError: If the objective does not exist, its module lacks a function, or an option is unknown.
    """
    members = (*_FUNCTIONS, *_CONSTANTS)
    if recipe.objective in (built_in := objective_names()):
        module = import_module(f"{__name__}.{recipe.objective}")
    else:
        module = load_module("objective", recipe.objective, built_in, members, "docs/pretraining.md", recipe.trusted)
    objective = cast(Objective, module)
    check_options(recipe.options, objective.OPTIONS)
    return objective
