"""How other servers serve a run, and what of it they leave out."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any, NamedTuple

from bertkit.errors import UsageError
from bertkit.evaluation.calibration import read_calibration
from bertkit.evaluation.checkpoint import SavedCheckpoint
from bertkit.modeling.heads.relevance import LOGIT, find_activation
from bertkit.modeling.load import read_config
from bertkit.modeling.sentence.modules import SentenceModules, read_modules
from bertkit.recipe.options import read_option
from bertkit.server.runs import SavedModel, find_models
from bertkit.server.schemas import classifies_texts, pair_to_rank

VLLM, TEI = "vllm", "tei"
SERVERS = {VLLM: "vLLM", TEI: "text-embeddings-inference"}
_IMAGE = "ghcr.io/huggingface/text-embeddings-inference:cpu-1.9"
_VECTORS, _CLASSES, _RANKING, _TAGS = "vectors", "classes of texts", "scores of query and text", "tags of tokens"
_ADDRESSES = {
    VLLM: {
        _VECTORS: "POST /v1/embeddings",
        _CLASSES: "POST /classify",
        _RANKING: "POST /rerank and /score",
        _TAGS: 'POST /pooling with "task": "token_classify"',
    },
    TEI: {
        _VECTORS: "POST /embed and /v1/embeddings",
        _CLASSES: "POST /predict",
        _RANKING: "POST /rerank",
    },
}
_HEADS = {_CLASSES: "ForSequenceClassification", _RANKING: "ForSequenceClassification", _TAGS: "ForTokenClassification"}
"""What the server answers -> how the names of transformers' classes end that compute it."""
_POOLING = {VLLM: ("mean", "cls", "lasttoken"), TEI: ("mean", "cls")}
"""Server -> the pooling modes that it knows, of encoders."""
_DECISIONS = ("temperature", "thresholds", "abstain_below", "set_above", "decoding")


class HandOver(NamedTuple):
    """The command by which another server serves a run."""

    model: str
    head: str
    command: str
    addresses: str
    left_out: list[str]
    """What of the run that server does not do."""


def hand_over(runs: Sequence[str], server: str, recipe: str | None = None) -> list[HandOver]:
    """Return the commands by which another server, `VLLM` or `TEI`, serves runs, without loading them.

    Raises:
        UsageError: it does not serve the head of one.
        BertkitError: as `find_models`.
    """
    return [_hand_over(model, server) for model in find_models(runs, recipe)]


def _hand_over(model: SavedModel, server: str) -> HandOver:
    head = _find_head(model)
    folder, modules = model.folder.resolve(), read_modules(model.folder) if head == _VECTORS else SentenceModules()
    lacks = "" if head in _ADDRESSES[server] else f"serve {head or 'what this run answers'}"
    if not lacks and (len(modules.pooling) > 1 or modules.pooling[0] not in _POOLING[server]):
        lacks = f"pool by {', '.join(modules.pooling)}"
    if lacks:
        what = f"{SERVERS[server]} does not {lacks}"
        raise UsageError(what, f"use replicas of bertkit serve {model.folder}", file=model.folder)
    if server == VLLM:
        words = ["vllm", "serve", str(folder), "--runner", "pooling", "--served-model-name", model.name]
    else:
        words = ["docker", "run", "-p", "8080:80", "-v", f"{folder}:/{model.name}:ro", _IMAGE]
        words += ["--model-id", f"/{model.name}", "--auto-truncate"]
        # runs of earlier versions name their pooling in a way that TEI does not read
        if head == _VECTORS:
            words += ["--pooling", modules.pooling[0]]
            words += ["--default-prompt-name", modules.default_prompt] if modules.default_prompt else []
    return HandOver(model.name, head, shlex.join(words), _ADDRESSES[server][head], list(_left_out(model, head, server)))


def _find_head(model: SavedModel) -> str:
    """Return what of `_ADDRESSES` a run answers; nothing where only bertkit knows its head."""
    if model.has_vectors and not (model.saved and model.saved.task.NAMED):
        return _VECTORS
    if model.saved is None or model.saved.members:
        return ""
    task = model.saved.task
    # By what the task reads and answers, and then by the class in the config, which is what the other server loads.
    tags_words = task.COLUMNS.given == ("tokens",)
    head = _CLASSES if classifies_texts(task) else _RANKING if pair_to_rank(task) else _TAGS if tags_words else ""
    names = read_config(model.saved.folder).get("architectures") or [""]
    return head if head and names[0].endswith(_HEADS[head]) else ""


def _left_out(model: SavedModel, head: str, server: str) -> list[str]:
    """List what of a run another server does not do."""
    if model.saved is None or head == _VECTORS:
        modules = read_modules(model.folder)
        how = "ask for them by prompt_name" if server == TEI else "add them to the texts yourself"
        left = [f"prompts ({', '.join(modules.prompts)}): {how}"] if any(modules.prompts.values()) else []
        if modules.dimension is not None:
            left.append(f"truncate_dim {modules.dimension}: ask for it by dimensions")
        return left
    # What the other server leaves out is said now: its answers would differ without a word.
    left = [f"{name} {value}" for name, value in _decisions(model.saved).items()]
    if left:
        left = [f"decisions of this run: {', '.join(left)}; the scores come as the model computes them"]
    if server == TEI and model.saved.recipe.options.get("multi_label"):
        how = "send raw_scores: true, and take 1 / (1 + exp(-score)) of each"
        left.append(f"several labels of a text: it takes the softmax over all of them; {how}")
    if server == TEI and head == _RANKING and find_activation(model.folder) == LOGIT:
        left.append("scores that are no probabilities: it makes some of them; send raw_scores: true")
    way = model.saved.recipe.options.get("long_text", "head")
    if head == _TAGS:
        left.append("words and entities, and windows over long texts: tags come per token, of the first tokens")
    elif way != "head":
        left.append(f"long_text {way}: long texts are truncated or refused")
    length = model.saved.recipe.training.max_length
    longer = {VLLM: "send truncate_prompt_tokens with each request", TEI: "longer texts are read to the model's end"}
    left.append(f"max_length {length}: {longer[server]}")
    return left


def _decisions(saved: SavedCheckpoint) -> dict[str, Any]:
    """Return the options that turn scores into answers, where they are not the defaults."""
    calibration = read_calibration(saved.folder, saved.recipe.task)
    decided = {
        **(calibration.options() if calibration else {}),
        **saved.record.get("tuned", {}),
        **saved.recipe.options,
    }
    options = saved.task.OPTIONS
    default = saved.recipe.model_copy(update={"options": {}})
    names = [name for name in _DECISIONS if name in decided and name in options]
    return {name: decided[name] for name in names if decided[name] != read_option(options, default, name)}
