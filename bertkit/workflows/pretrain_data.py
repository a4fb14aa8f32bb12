"""Read the data of a pretraining run before its model is built: tokenizer, config, corpus and identity of the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertkit.errors import ModelError, RecipeError
from bertkit.hardware.device import check_launch, check_requested_device
from bertkit.hardware.precision import product_widths
from bertkit.modeling.checkpoint import fingerprint, load_config, read_config
from bertkit.modeling.info import Model
from bertkit.modeling.sizes import make_config
from bertkit.modeling.tokenizer import fit_tokenizer, load_tokenizer, read_tokenizer, warn_about_tokens
from bertkit.pretraining.documents import find_corpus
from bertkit.pretraining.objectives import Objective, PretrainContext, load_objective
from bertkit.pretraining.tokenized import TokenizedCorpus, read_corpus
from bertkit.progress import log, stage
from bertkit.recipe.records import PretrainRecipe
from bertkit.recipe.sections import OUTPUT_ONLY_KEYS
from bertkit.storage import hub, runs
from bertkit.tokens.features import Feature
from bertkit.training.run import RunPlan
from bertkit.training.trackers import check_callbacks

# Keys that are left out of the identity of a run. The identity has checksums of model, tokenizer and text instead of
# their locations. The other keys do not change the result.
_NOT_IDENTITY: dict[str, Any] = {
    **dict.fromkeys(("about", "model", "tokenizer", "data"), True),
    "training": {"workers", *OUTPUT_ONLY_KEYS},
}

# Number of documents, and of tokens per document, to search for unknown tokens.
_SAMPLE_DOCUMENTS, _SAMPLE_TOKENS = 100, 2000


@dataclass(frozen=True)
class PretrainData:
    """Plan, objective and corpus of a pretraining run, which are known before its model is built."""

    plan: RunPlan
    objective: Objective
    context: PretrainContext
    corpus: Mapping[str, TokenizedCorpus]
    """Splits ``train`` and ``validation``."""

    def with_training(self, changes: Mapping[str, Any]) -> PretrainData:
        """Return the same data with other training settings; the identity of the run does not change."""
        return replace(self, context=replace(self.context, recipe=self.context.recipe.replace("training", **changes)))

    def load_model(self) -> Model:
        """Build or load the model of the run; its new weights are drawn from the seed."""
        from transformers import set_seed

        set_seed(self.context.recipe.training.seed)
        model = self.objective.load_model(self.context)
        if self.context.model_folder is not None:
            warn_about_tokens(self.context.tokenizer, _first_documents(self.corpus["train"]), "documents")
        return model


def _first_documents(corpus: TokenizedCorpus) -> list[Feature]:
    """Return the tokens of the first documents, at most `_SAMPLE_TOKENS` per document."""
    edges = corpus.document_edges()[: _SAMPLE_DOCUMENTS + 1]
    bounds = zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    return [{"input_ids": corpus.tokens[start : min(end, start + _SAMPLE_TOKENS)]} for start, end in bounds]


def read_pretrain_data(recipe: PretrainRecipe, output: str | Path | None) -> PretrainData:
    """Check the recipe, find model and tokenizer, prepare the corpus, and determine the identity of the run.

    Raises:
        BertkitError: If the recipe, the model, the tokenizer or the text is wrong; see `bertkit.errors`.
    """
    # 1. Check the recipe.
    objective = load_objective(recipe)
    if recipe.model and recipe.tokenizer:
        raise RecipeError("a checkpoint brings its own tokenizer", "leave --tokenizer out")
    if recipe.model and recipe.model_options:
        raise RecipeError("model_options shape a new model, not a checkpoint", "leave them out, or leave --model out")
    if not recipe.model and not recipe.tokenizer:
        remedy = "add --tokenizer DIR (`bertkit pretrain tokenizer` trains one), or --model CKPT to start from"
        raise RecipeError("a new model needs a tokenizer", remedy)
    if recipe.training.callbacks or recipe.training.report_to:
        check_callbacks(recipe.training, trusted=recipe.trusted)
    check_requested_device(training__gradient_checkpointing=recipe.training.gradient_checkpointing)
    check_launch(fsdp=recipe.training.fsdp)

    # 2. Find text, model and tokenizer: a missing file is reported before anything heavy is imported.
    source = find_corpus(recipe.data)
    model_folder, tokenizer_folder = _find_folders(recipe)

    # 3. Load the tokenizer and the config, and check that they fit the objective.
    with stage("loading torch and transformers"):
        context = _make_context(recipe, model_folder, tokenizer_folder)
    recipe = context.recipe
    objective.check(context)
    from bertkit.training.arguments import check_extra

    check_extra(recipe.training)

    # 4. Prepare the corpus. This can take hours, so errors of the recipe and the model are reported before.
    corpus = read_corpus(source, context.tokenizer)

    # 5. Compute the identity of the run, by which a resumed command recognizes the run.
    plan = RunPlan(
        recipe=recipe,
        folder=runs.run_folder(output, recipe.name),
        identity={
            "recipe": recipe.model_dump(mode="json", exclude=_NOT_IDENTITY),
            "data": {name: split.fingerprint for name, split in corpus.items()},
            **_get_digests(model_folder, tokenizer_folder),
        },
        record_entries={"model": recipe.model or recipe.size, "commit": model_folder and hub.get_commit(model_folder)},
        model_type=context.config.model_type,
        widths=product_widths(context.config.to_dict()),
    )
    return PretrainData(plan, objective, context, corpus)


def get_model_digests(recipe: PretrainRecipe) -> dict[str, str]:
    """Return the digests of model and tokenizer in the identity of a run, without importing torch or transformers."""
    return _get_digests(*_find_folders(recipe))


def _find_folders(recipe: PretrainRecipe) -> tuple[Path | None, Path]:
    """Return the folder of the model, or None for a new model, and the folder of the tokenizer."""
    if recipe.model:
        return (folder := hub.find_model(recipe.model)), folder
    with hub.without_weights():
        return None, hub.find_model(str(recipe.tokenizer))


def _get_digests(model_folder: Path | None, tokenizer_folder: Path) -> dict[str, str]:
    with_weights = bool(model_folder) or not hub.is_cached(tokenizer_folder)
    return {
        "model": fingerprint(model_folder) if model_folder else "new",
        "tokenizer": fingerprint(tokenizer_folder, weights=with_weights),
    }


def _make_context(recipe: PretrainRecipe, model_folder: Path | None, tokenizer_folder: Path) -> PretrainContext:
    """Load the tokenizer, and the config of the checkpoint or of the recipe's size."""
    if model_folder is not None:
        read_config(model_folder)
        tokenizer = load_tokenizer(model_folder)
        config = load_config(model_folder)
    else:
        tokenizer = read_tokenizer(tokenizer_folder)
        config = make_config(recipe.size, tokenizer, recipe.model_options)
        fit_tokenizer(tokenizer, config)
    if tokenizer.mask_token_id is None:
        message = "the tokenizer has no mask token"
        raise ModelError(message, "name one as mask_token in tokenizer_config.json", file=tokenizer_folder)
    return PretrainContext(_fit_length(recipe, tokenizer.model_max_length), tokenizer, model_folder, config)


def _fit_length(recipe: PretrainRecipe, limit: int) -> PretrainRecipe:
    """Return the recipe with blocks that the model can read; defaults that are too long are shortened.

    Raises:
        RecipeError: If a length that the user gave is too long.
    """
    training = recipe.training
    if training.max_length <= limit:
        return recipe
    lengths = {"max_length": training.max_length, "short_length": training.short_length}
    for name, length in lengths.items():
        if (length or 0) > limit and name in training.model_fields_set:
            raise RecipeError(f"training.{name} {length} exceeds the model's {limit}", f"use --max-length {limit}")
    log.warning(f"the model reads {limit} tokens, so training.max_length is {limit}, not {training.max_length}")
    short = training.short_length if (training.short_length or limit) < limit else None
    return recipe.replace("training", max_length=limit, short_length=short)
