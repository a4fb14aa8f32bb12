"""A head with one logit that tells how relevant a passage is to a query, of one passage or of a whole list."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from bertkit.errors import ModelError
from bertkit.modeling.checkpoint import read_json_object
from bertkit.modeling.info import Config, Model, info_of
from bertkit.tokens.features import Tensor, Tensors

# what the CrossEncoder of sentence-transformers makes of a logit, by the names that it writes
PROBABILITY, LOGIT = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"


def set_activation(config: Config, name: str) -> None:
    """Note in a config what makes a score of a logit, where sentence-transformers and vLLM look for it."""
    config.sentence_transformers = {"activation_fn": name}
    config.__dict__.pop("sbert_ce_default_activation_function", None)


def gives_probabilities(config: Config) -> bool:
    """Check whether a model's scores are probabilities by its config; otherwise they are its logits."""
    settings = getattr(config, "sentence_transformers", None) or {}
    return bool(settings.get("activation_fn") == PROBABILITY)


def find_activation(folder: Path) -> str:
    """Find what makes a score of a logit, as sentence-transformers 6 does: the sigmoid where a folder does not say.

    Raises:
        ModelError: it is neither the sigmoid nor the identity.
    """
    own, config = folder / "config_sentence_transformers.json", read_json_object(folder / "config.json")
    name = read_json_object(own).get("activation_fn") if own.is_file() else None
    name = name or (config.get("sentence_transformers") or {}).get("activation_fn")
    name = name or config.get("sbert_ce_default_activation_function") or PROBABILITY
    found = {"Sigmoid": PROBABILITY, "Identity": LOGIT}.get(str(name).rpartition(".")[2])
    if found is None:
        raise ModelError(f"its scores are made by {name}", "name a reranker with a sigmoid or none", file=folder)
    return found


def score_passages(model: Model, activation: str) -> None:
    """Let a model with one output read lists too, and return ``probabilities`` if its scores are such."""
    info_of(model).reads = "passages"
    model.forward = partial(_forward, model.forward, activation)


def _forward(
    forward: Callable[..., Tensors], activation: str, *, labels: Tensor | None = None, **inputs: Tensor
) -> Tensors:
    """Run a model on passages, (rows, tokens), or on lists of them, (queries, passages, tokens).

    A passage that a list lacks is a single token, as `padding_collator` makes it. Its logit is the least number.
    """
    import torch

    mask = inputs["attention_mask"]
    if mask.dim() == 2:
        output = forward(**inputs, labels=labels)
        logits = output["logits"] = output["logits"].float()
    else:
        output = forward(**{name: values.flatten(0, 1) for name, values in inputs.items()})
        missing = mask.sum(dim=-1) == 1
        logits = output["logits"].float().view(missing.shape).masked_fill(missing, torch.finfo(torch.float32).min)
        output["logits"] = logits
        if labels is not None:
            output["loss"] = list_loss(logits, labels).mean()
    if activation == PROBABILITY:
        output["probabilities"] = logits.sigmoid()
    return output


def list_loss(logits: Tensor, relevance: Tensor) -> Tensor:
    """Compute the cross entropy of a softmax over each list, shape (queries,); 0 where nothing is relevant.

    The target is each passage's share of the list's relevance. With one relevant passage, this is the localized
    contrastive loss (Gao et al. 2021), and otherwise that of ListNet (Cao et al. 2007) with shares for its softmax of
    gold values.

    Args:
        logits: of passages, shape (queries, passages); the least number where a list has none.
        relevance: at least 0, of the same shape; 0 where a list has none.
    """
    shares = relevance / relevance.sum(dim=-1, keepdim=True).clamp(min=1e-9)
    # the logarithm may be minus infinity, and 0 times that is not a number, so `where` drops what is not relevant
    return -(shares * logits.log_softmax(dim=-1).where(relevance > 0, 0.0)).sum(dim=-1)
