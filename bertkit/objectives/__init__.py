"""Pretraining objectives: one module each, and what such a module must offer.

An objective turns a corpus into examples, hides something in them, and says what the model must answer. All its
random choices come from the generator it is given, which is keyed by seed, epoch and example. Its module imports
torch and transformers inside its functions only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from bertkit.corpus.masking import ordinary_tokens
from bertkit.corpus.tokenized import Numbers, TokenizedCorpus
from bertkit.recipe import PretrainRecipe
from bertkit.recipe.options import check_options, read_option
from bertkit.recipe.plugins import load_module, module_names
from bertkit.tokens.features import Collator, Feature, SpecialTokenTemplate, find_template

if TYPE_CHECKING:
    import numpy as np
    import torch

HELD_OUT_RATE = 0.15
"""The share of tokens that is hidden in held-out text (Devlin et al. 2019, section 3.1)."""

Example = Any
"""What an objective makes its features from: a block of documents, or a pair of segments."""


class Examples(Protocol):
    """The examples of an epoch: places in a corpus, from which an example is read when it is asked for."""

    lengths: Any
    """(examples,) tokens of each, special ones included; a numpy array."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int, /) -> Example: ...


Totals = dict[str, float]
"""Sums over held-out batches, such as of a loss and of its items; added up key by key."""


@dataclass(frozen=True)
class PretrainSetup:
    """What an objective knows beside its examples."""

    recipe: PretrainRecipe
    tokenizer: Any
    model_folder: Path | None
    """The checkpoint to go on from; None for a new model."""
    config: Any
    """Config of the model: the checkpoint's, or that of the recipe's size."""

    @cached_property
    def frame(self) -> SpecialTokenTemplate:
        """The special tokens around a text."""
        return find_template(self.tokenizer, pair=False)

    @cached_property
    def pair_template(self) -> SpecialTokenTemplate:
        """The special tokens around two texts."""
        return find_template(self.tokenizer, pair=True)

    @cached_property
    def ordinary(self) -> Numbers:
        """Ids of the tokens that may stand in the place of a hidden one."""
        return ordinary_tokens(self.tokenizer)


class Objective(Protocol):
    """A pretraining objective: three constants and eleven functions.

    A model whose `info_of` names a teacher is compared with it in the end.
    """

    OPTIONS: Mapping[str, Any]
    """Keys a recipe may set under ``options``: an Option each, or just its default."""
    TERMS: Mapping[str, float]
    """Parts of the loss -> their weights in it, such as ``{"mlm": 1.0, "nsp": 1.0}``."""
    BEST_METRIC: str
    """The score of held-out text by which the best checkpoint is chosen, the smallest; mostly ``loss``."""

    def check(self, setup: PretrainSetup) -> None:
        """Refuse what this objective cannot pretrain, before the text is read; raises RecipeError or ModelError."""

    def load_model(self, setup: PretrainSetup) -> Any:
        """Load the checkpoint, or make a new model of the recipe's size, with this objective's heads."""

    def examples(self, corpus: TokenizedCorpus, length: int, setup: PretrainSetup, epoch: int) -> Examples:
        """Split a corpus into examples of at most `length` tokens; made anew each epoch, so quick and lazy."""

    def feature(
        self, example: Example, progress: float | None, random: np.random.Generator, setup: PretrainSetup
    ) -> Feature:
        """Hide something in an example.

        `progress` is the share of training that is done; None on held-out text, where 15 % is hidden whatever the
        recipe says, so that scores compare.
        """

    def collator(self, setup: PretrainSetup) -> Collator:
        """Make the function that turns a list of features into a batch of tensors, the first axis rows."""

    def count(self, batch: Mapping[str, torch.Tensor]) -> dict[str, int]:
        """Count for each term what its loss is a mean over."""

    def losses(self, model: Any, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Give for each term the sum of its loss over the batch."""

    def accumulate(self, model: Any, batch: Mapping[str, torch.Tensor]) -> Totals:
        """Sum up what `score` needs from a held-out batch."""

    def score(self, totals: Totals) -> dict[str, float]:
        """Give the scores of held-out text; ``loss``, the weighted sum of the terms' means, among them."""

    def encoder(self, model: Any, setup: PretrainSetup) -> Any:
        """Give the part of a pretrained model that is saved as a plain checkpoint."""

    def auxiliary_checkpoints(self, model: Any, setup: PretrainSetup) -> Mapping[str, Any]:
        """Give the other parts that are saved as plain checkpoints, by the names of their folders beside the first."""


def masking_rate(options: Mapping[str, Any], setup: PretrainSetup, progress: float | None) -> float:
    """Give the share of tokens to hide: from ``mask_rate`` to ``last_mask_rate`` in the course of training.

    On held-out text it is 15 %, whatever the recipe says.
    """
    if progress is None:
        return HELD_OUT_RATE
    first: float = read_option(options, setup.recipe, "mask_rate")
    last: float | None = read_option(options, setup.recipe, "last_mask_rate")
    return first if last is None else first + (last - first) * progress


_FUNCTIONS = tuple(name for name in vars(Objective) if not name.startswith("_"))
_CONSTANTS = ("OPTIONS", "TERMS", "BEST_METRIC")


def objective_names() -> list[str]:
    """List the objectives that come with bertkit."""
    return module_names(__name__)


def load_objective(recipe: PretrainRecipe) -> Objective:
    """Load the objective of a recipe and check the recipe's options.

    Raises:
        RecipeError: no such objective, a module that lacks a function, or options it does not know.
    """
    parts = (*_FUNCTIONS, *_CONSTANTS)
    objective = cast(Objective, load_module("objective", recipe.objective, __name__, parts, "docs/pretraining.md"))
    check_options(recipe.options, objective.OPTIONS)
    return objective
