"""How much a probe takes of each layer when it may mix all of them: the scalar mix of Tenney et al. 2019."""

from __future__ import annotations

import numpy as np

from bertkit.insight.probing.items import ItemVectors
from bertkit.insight.probing.linear import Scaling
from bertkit.metrics import Numbers
from bertkit.metrics.decisions import softmax

_MOST_ITEMS = 2500
_MOST_NUMBERS = 60_000_000  # of all layers together, in memory at the same time
_STEPS = 80


def read_all_layers(vectors: ItemVectors, chosen: Numbers) -> Numbers:
    """Return the standardized features of some items at all layers, (layers + 1, items, features), with a last 1."""
    width = vectors.features(0, chosen[:1]).shape[1] + 1
    some = chosen[: min(_MOST_ITEMS, max(1, _MOST_NUMBERS // (width * (vectors.layers + 1))))]
    layers = np.empty((vectors.layers + 1, len(some), width), dtype=np.float32)
    for layer in range(vectors.layers + 1):
        features = vectors.features(layer, some)
        layers[layer] = Scaling.of(features).apply(features)
    return layers


def mix_layers(layers: Numbers, targets: Numbers, strength: float, classes: int | None = None) -> Numbers:
    """Learn a softmax weight per layer together with the probe over the weighted sum, by L-BFGS from equal weights.

    Args:
        layers: as `read_all_layers` returns them; each is standardized, so that no layer weighs more for its scale.
        targets: numbers of classes, or values of mean 0 for regression, (items,).
        strength: how much the weights of the probe are held back.
        classes: how many there are; None for regression.

    Returns:
        the weights of layers, (layers + 1,), which sum to 1.
    """
    from scipy.optimize import minimize
    from scipy.special import log_softmax

    count, items, width = layers.shape
    outputs = classes or 1
    flat_layers = layers.reshape(count, -1)
    rows = np.arange(items)

    def loss(flat: Numbers) -> tuple[float, Numbers]:
        shares = softmax(flat[:count])
        weights = flat[count:].reshape(width, outputs).astype(np.float32)
        mixed = (shares.astype(np.float32) @ flat_layers).reshape(items, width)
        predicted = mixed @ weights
        if classes is None:
            residuals = predicted - targets[:, None]
            total = float((residuals**2).sum(dtype=np.float64)) / 2
        else:
            log_probabilities = log_softmax(predicted, axis=1)
            total = -float(log_probabilities[rows, targets].sum(dtype=np.float64))
            residuals = np.exp(log_probabilities)
            residuals[rows, targets] -= 1
        total += strength / 2 * float((weights**2).sum())
        slope = mixed.T @ residuals + strength * weights
        # of each share: its layer times what the loss wants of the mixed features, (layers + 1,)
        of_shares = (flat_layers @ (residuals @ weights.T).reshape(-1)).astype(np.float64)
        of_logits = shares * (of_shares - shares @ of_shares)
        return total, np.concatenate([of_logits, slope.reshape(-1).astype(np.float64)])

    begin = np.zeros(count + width * outputs)
    options = {"maxiter": _STEPS, "ftol": 1e-6, "gtol": 0.0, "maxcor": 10}
    found = minimize(loss, begin, jac=True, method="L-BFGS-B", options=options)
    return softmax(found.x[:count])


def center_of_gravity(shares: Numbers) -> float:
    """Return the mean layer, weighted by the layers' shares; 0 is the embeddings.

    >>> center_of_gravity(np.array([0.5, 0.0, 0.5]))
    1.0
    """
    return float(np.arange(len(shares)) @ shares)
