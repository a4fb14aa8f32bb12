"""Targets of a regression that are far from the outputs of a new head, such as prices or years."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import nn

from bertkit.metrics.linear import find_scale
from bertkit.modeling.info import Model, get_loading_info
from bertkit.progress import log
from bertkit.tokens.features import Batch
from bertkit.training.losses import Terms

_SCALE = "target_scale"  # attribute of the output layer


def scale_targets(model: Model, terms: Terms, targets: Iterable[float]) -> Terms:
    """Standardize the targets inside a head with one output, and return the terms of its loss.

    Its outputs stay in the unit of the targets, so that every program reads its checkpoints: the weights of the last
    layer, their learning rate (`scale_learning_rate`) and the loss are scaled, not the targets.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear) and layer.weight.requires_grad]
    outputs = [layer for layer in layers if layer.out_features == 1 and layer.bias is not None]
    if model.config.problem_type != "regression" or not outputs:
        return terms
    mean, scale = find_scale(list(targets))
    if (mean, scale) == (0, 1):
        return terms
    log.info(
        f"the targets have mean {mean:,.6g} and standard deviation {scale:,.6g}: the head learns them standardized, "
        "and predicts in their unit"
    )
    with torch.no_grad():
        # A trained head is kept if it predicts such numbers.
        if get_loading_info(model).head == "new" or abs(float(outputs[-1].bias) - mean) > scale:
            outputs[-1].weight.mul_(scale)
            outputs[-1].bias.fill_(mean)
    setattr(outputs[-1], _SCALE, scale)

    def sums(model: Model, batch: Batch) -> Batch:
        summed = terms.sums(model, batch)
        return {name: total / scale**2 if name in ("gold", "soft") else total for name, total in summed.items()}

    return replace(terms, sums=sums)


def scale_learning_rate(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Multiply the learning rate of the layers of `scale_targets`, so that AdamW learns them as if unscaled."""
    for layer in model.modules():
        scale = getattr(layer, _SCALE, None)
        weights = set(layer.parameters()) if scale else set()
        for group in [group for group in optimizer.param_groups if weights.intersection(group["params"])]:
            params = [weight for weight in group["params"] if weight in weights]
            group["params"] = [weight for weight in group["params"] if weight not in weights]
            numbers = {name: group[name] for name in ("weight_decay", "eps") if isinstance(group.get(name), float)}
            divided = {name: number / scale for name, number in numbers.items()}
            optimizer.add_param_group({**group, **divided, "params": params, "lr": group["lr"] * scale})
