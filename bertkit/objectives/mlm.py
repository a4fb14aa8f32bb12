"""Masked language modeling: guess the tokens that are hidden (Devlin et al. 2019, section 3.1; Liu et al. 2019)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bertkit.corpus.masking import choose_tokens, choose_words, corrupt
from bertkit.corpus.packing import Block, Blocks, Text, block_collator, join_block, pack_blocks
from bertkit.corpus.tokenized import Numbers, TokenizedCorpus
from bertkit.errors import RecipeError
from bertkit.modeling.architectures import architecture_of
from bertkit.modeling.load import first_position, load_to_pretrain
from bertkit.modeling.masked_head import masked_scores, masked_totals, run_at_masked, sum_of_losses
from bertkit.objectives import PretrainSetup, Totals, masking_rate
from bertkit.recipe.options import Option, read_option
from bertkit.tokens.features import IGNORED, Collator, Feature

if TYPE_CHECKING:
    import numpy as np
    import torch

OPTIONS: Mapping[str, Any] = {
    "mask_rate": Option(0.15, least=0.01, most=0.9),
    "last_mask_rate": Option(None, least=0.01, most=0.9),
    "whole_words": False,
}
TERMS: Mapping[str, float] = {"mlm": 1.0}
BEST_METRIC = "loss"


def check(setup: PretrainSetup) -> None:
    """Refuse a model that cannot keep the documents of a block apart, where the recipe wants that."""
    if setup.recipe.training.packing == "documents" and not architecture_of(setup.config).separates_documents:
        what = f"a model of type {setup.config.model_type} cannot keep documents of a block apart"
        raise RecipeError(what, "--set training.packing=joined, or none")


def load_model(setup: PretrainSetup) -> Any:
    """Load the checkpoint, or make a new model, with a head that answers with tokens."""
    from transformers import AutoModelForMaskedLM

    return load_to_pretrain(AutoModelForMaskedLM, setup.model_folder, setup.config)


def examples(corpus: TokenizedCorpus, length: int, setup: PretrainSetup, epoch: int) -> Blocks:
    """Split the corpus into blocks, the same in each epoch."""
    packing = setup.recipe.training.packing
    return pack_blocks(corpus, length, setup.frame.size, packing)


def feature(example: Block, progress: float | None, random: np.random.Generator, setup: PretrainSetup) -> Feature:
    """Hide tokens, or whole words, of a block."""
    text = join_block(example, setup.frame)
    return {**hide(text, progress, random, setup), "parts": text.parts}


def hide(text: Text, progress: float | None, random: np.random.Generator, setup: PretrainSetup) -> Feature:
    """Hide tokens, or whole words, of a text: ``input_ids``, and ``labels`` where they are hidden."""
    import numpy as np

    chosen = choose(text, progress, random, setup)
    return {
        "input_ids": corrupt(text.tokens, chosen, random, setup.tokenizer.mask_token_id, setup.ordinary),
        "labels": np.where(chosen, text.tokens, IGNORED),
    }


def choose(text: Text, progress: float | None, random: np.random.Generator, setup: PretrainSetup) -> Numbers:
    """Choose what to hide of a text: a flag for each token."""
    rate = masking_rate(OPTIONS, setup, progress)
    if read_option(OPTIONS, setup.recipe, "whole_words"):
        return choose_words(text.maskable, text.word_starts, rate, random)
    return choose_tokens(text.maskable, rate, random)


def collator(setup: PretrainSetup) -> Collator:
    """Make the collator of blocks."""
    apart = setup.recipe.training.packing == "documents"
    return block_collator(setup.tokenizer, apart=apart, first_position=first_position(setup.config))


def count(batch: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Count the hidden tokens."""
    return {"mlm": int((batch["labels"] != IGNORED).sum())}


def losses(model: Any, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Give the sum of the cross-entropies of the hidden tokens."""
    outputs, labels = run_at_masked(model, batch)
    return {"mlm": sum_of_losses(outputs.logits, labels)}


def accumulate(model: Any, batch: Mapping[str, torch.Tensor]) -> Totals:
    """Sum up losses and right answers."""
    outputs, labels = run_at_masked(model, batch)
    return masked_totals(outputs.logits, labels)


def score(totals: Totals) -> dict[str, float]:
    """Give loss, perplexity and the share of hidden tokens that are found."""
    return {"loss": totals["mlm"] / totals["masked"], **masked_scores(totals)}


def encoder(model: Any, setup: PretrainSetup) -> Any:
    """Give the model, head included: a plain checkpoint for masked language modeling."""
    return model


def auxiliary_checkpoints(model: Any, setup: PretrainSetup) -> dict[str, Any]:
    """Give nothing: the encoder is all there is."""
    return {}
