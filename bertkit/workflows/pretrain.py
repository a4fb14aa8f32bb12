"""Pretrain an encoder as a recipe says: text -> tokens -> examples -> fit -> scores of held-out text -> run folder."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertkit import hub
from bertkit.corpus.documents import corpus_files
from bertkit.errors import ModelError, RecipeError
from bertkit.modeling import load as models
from bertkit.modeling.info import info_of
from bertkit.modeling.weights import load_config
from bertkit.objectives import Objective, PretrainSetup, load_objective
from bertkit.progress import SILENT, Progress
from bertkit.recipe import PretrainRecipe
from bertkit.storage import runs
from bertkit.workflows.steps.opening import Run, opened

log = logging.getLogger("bertkit")

# The model, the tokenizer and the text count by content; the result is the same with any number of workers.
_NOT_IDENTITY: dict[str, Any] = {"about": True, "model": True, "tokenizer": True, "training": {"workers"}}
_FEW_TOKENS = 5000  # of which 750 are hidden


@dataclass(frozen=True)
class Pretrained:
    """What a pretraining run came to."""

    recipe: str
    model: str
    objective: str
    scores: dict[str, float]
    """Of held-out text: ``loss`` in nats, ``perplexity``, ``masked_accuracy``, and what the objective adds."""
    baseline: dict[str, float]
    """Of the same text, by the frequencies of the training tokens alone; of the scores that it has."""
    parameters: int
    steps: int
    tokens: int
    """Tokens seen in training, special ones included."""
    seconds: float
    corpus: dict[str, dict[str, Any]]
    """Split -> its documents, duplicates, sentences, tokens, unknown tokens and bytes."""
    folder: str
    compared_models: list[dict[str, Any]] = field(default_factory=list)
    """A teacher and its student side by side; see `put_side_by_side`."""
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Inputs:
    """All that is known of a run before its model is made."""

    recipe: PretrainRecipe
    objective: Objective
    setup: PretrainSetup
    corpus: Any
    folder: Path
    identity: dict[str, Any]


def pretrain(
    recipe: PretrainRecipe, *, output: str | Path | None = None, fresh: bool = False, progress: Progress = SILENT
) -> Pretrained:
    """Pretrain, or go on with the same run, or give what it came to already.

    Raises:
        BertkitError: of the kind that fits; see `bertkit.errors`.
    """
    inputs = read_inputs(recipe, output, progress)
    precision, kind = recipe.training.precision, inputs.setup.config.model_type
    facts = {"model": recipe.model or recipe.size}
    with opened(inputs.folder, inputs.identity, facts, precision=precision, kind=kind, fresh=fresh) as run:
        if run.is_finished:
            return Pretrained(**run.record["result"])
        return _train_and_publish(inputs, run, progress)


def read_inputs(recipe: PretrainRecipe, output: str | Path | None, progress: Progress) -> Inputs:
    """Check the recipe, find model and tokenizer, prepare the corpus, and say what makes this run the one it is."""
    objective = load_objective(recipe)
    _check_tokenizer_and_model(recipe)
    corpus_files(recipe.data)  # a file that is not there is answered before anything heavy is imported
    folder = Path(output) if output else runs.default_folder(recipe.name)
    model_folder = hub.find_model(recipe.model) if recipe.model else None
    tokenizer_folder = model_folder or _find_tokenizer(str(recipe.tokenizer))
    setup = _make_setup(recipe, model_folder, tokenizer_folder)
    objective.check(setup)
    from bertkit.corpus.tokenized import read_corpus

    corpus = read_corpus(recipe.data, setup.tokenizer, progress)
    identity = {
        "recipe": recipe.model_dump(mode="json", exclude=_NOT_IDENTITY | {"data": True}),
        "data": {name: split.fingerprint for name, split in corpus.items()},
        "model": models.fingerprint(model_folder) if model_folder else "new",
        "tokenizer": models.fingerprint(tokenizer_folder),
    }
    return Inputs(recipe, objective, setup, corpus, folder, identity)


def _check_tokenizer_and_model(recipe: PretrainRecipe) -> None:
    if recipe.model and recipe.tokenizer:
        raise RecipeError("a checkpoint brings its own tokenizer", "leave --tokenizer out")
    if recipe.model and recipe.model_options:
        raise RecipeError("model_options shape a new model, not a checkpoint", "leave them out, or leave --model out")
    if not recipe.model and not recipe.tokenizer:
        what = "a new model needs a tokenizer"
        raise RecipeError(what, "--tokenizer DIR (`bertkit pretrain tokenizer` makes one), or --model CKPT to go on")


def _find_tokenizer(name: str) -> Path:
    folder = Path(name).expanduser()
    return folder if folder.is_dir() else hub.find_model(name)


def _make_setup(recipe: PretrainRecipe, model_folder: Path | None, tokenizer_folder: Path) -> PretrainSetup:
    """Load the tokenizer, and the config of the checkpoint or of the recipe's size."""
    if model_folder is not None:
        models.read_config(model_folder)
        tokenizer = models.load_tokenizer(model_folder)
        config = load_config(model_folder)
    else:
        from bertkit.modeling.sizes import make_config

        tokenizer = models.read_tokenizer(tokenizer_folder)
        config = make_config(recipe.size, tokenizer, recipe.model_options)
        models.bound_length(tokenizer, config)
    if tokenizer.mask_token_id is None:
        what = "the tokenizer has no mask token"
        raise ModelError(what, "name one as mask_token in tokenizer_config.json", file=tokenizer_folder)
    training = recipe.training
    if training.max_length > tokenizer.model_max_length:
        what = f"training.max_length {training.max_length} is more than the {tokenizer.model_max_length} of the model"
        raise RecipeError(what, f"--max-length {tokenizer.model_max_length}")
    return PretrainSetup(recipe, tokenizer, model_folder, config)


def _train_and_publish(inputs: Inputs, run: Run, progress: Progress) -> Pretrained:
    from bertkit.distillation.side_by_side import beside_teacher
    from bertkit.evaluation.held_out import held_out_features, measure
    from bertkit.hardware.precision import Machine, use_matmul_backend
    from bertkit.training.budget import make_budget
    from bertkit.training.fit import fit
    from bertkit.training.losses import Terms
    from bertkit.training.pretrain_batches import PretrainBatches
    from bertkit.training.signals import caught_signals
    from bertkit.workflows.steps.publish_pretrained import publish

    objective, setup, recipe = inputs.objective, inputs.setup, inputs.recipe
    machine = Machine(**run.record["machine"])
    use_matmul_backend(machine)
    model = new_model(inputs)
    if "resumed" not in run.record and (new := info_of(model).new_weights):
        log.info(f"the checkpoint lacks {len(new)} weights of the heads: these start at random")
    budget = make_budget(recipe.training)
    batches = PretrainBatches(inputs.corpus["train"], objective, setup, budget)
    held_out = held_out_features(inputs.corpus["validation"], objective, setup)
    collate = objective.collator(setup)

    def evaluate(model: Any, step: int) -> dict[str, float]:
        return measure(model, held_out, collate, objective, machine.precision, progress)

    with caught_signals() as stop:
        fitted = fit(
            model,
            setup.tokenizer,
            batches,
            collate,
            recipe.training.model_copy(update={"steps": batches.steps}),
            machine,
            inputs.folder,
            best_metric=objective.BEST_METRIC,
            greater_is_better=False,
            evaluate=evaluate,
            terms=Terms(objective.TERMS, objective.count, objective.losses),
            stop=stop,
            progress=progress,
            budget=budget,
        )
    result = Pretrained(
        recipe=recipe.name,
        model=recipe.model or recipe.size,
        objective=recipe.objective,
        scores=evaluate(model, fitted.best_step),
        baseline=_baseline(inputs),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        steps=fitted.steps,
        tokens=round(batches.tokens(fitted.steps)),
        seconds=round(time.perf_counter() - run.start, 3),
        corpus={name: dict(split.facts) for name, split in inputs.corpus.items()},
        folder=str(inputs.folder),
        warnings=_find_warnings(recipe, inputs.corpus["validation"].facts["tokens"]),
        compared_models=beside_teacher(model, str(recipe.model), str(inputs.folder), held_out, collate, machine),
    )
    encoder, auxiliary_checkpoints = objective.encoder(model, setup), objective.auxiliary_checkpoints(model, setup)
    publish(recipe, result, fitted, encoder, auxiliary_checkpoints, setup.tokenizer, run.record)
    return result


def _find_warnings(recipe: PretrainRecipe, tokens: int) -> list[str]:
    """Say what a reader of the scores must know."""
    warnings = []
    if "demo" in (recipe.data.source, recipe.model):
        warnings.append("Demo text or model: an artificial grammar. These scores compare with nothing.")
    if tokens < _FEW_TOKENS:
        warnings.append(
            f"Only {tokens:,} tokens are held out, so scores are rough: --set data.validation_share=0.1 holds out more."
        )
    return warnings


def _baseline(inputs: Inputs) -> dict[str, float]:
    """Give what frequencies alone reach; a loss of more than the hidden tokens has nothing to be compared with."""
    from bertkit.corpus.tokenized import unigram_loss

    loss = unigram_loss(inputs.corpus["train"], inputs.corpus["validation"], inputs.setup.config.vocab_size)
    baseline = {"perplexity": math.exp(loss)}
    return {"loss": loss, **baseline} if set(inputs.objective.TERMS) == {"mlm"} else baseline


def new_model(inputs: Inputs) -> Any:
    """Make or load the model of a run; what is new in it follows from the seed."""
    from transformers import set_seed

    set_seed(inputs.recipe.training.seed)
    return inputs.objective.load_model(inputs.setup)
