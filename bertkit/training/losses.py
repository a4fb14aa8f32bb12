"""The terms of a loss, and losses that replace the loss of a model's head."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from bertkit.data.labels import compute_class_weights
from bertkit.errors import RecipeError
from bertkit.metrics.linear import find_scale
from bertkit.modeling.info import Model, get_loading_info
from bertkit.progress import log
from bertkit.recipe.plugins import load_custom
from bertkit.recipe.sections import Row, TrainingConfig
from bertkit.tasks import Task
from bertkit.tokens.features import IGNORE_INDEX, ROW_MASK, Batch, Tensor, count_items, count_on_device

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator


FOCAL = "focal"

Loss = Callable[[Tensor, Tensor], Tensor]
"""Function of logits ``(..., labels)`` and gold labels that sums the losses of all labels that are not ignored."""


def check_loss(training: TrainingConfig, task: Task, *, trusted: bool) -> None:
    """Check that a task family can be trained with the loss that a recipe names, and load a custom loss.

    Raises:
        RecipeError: If the loss does not fit the task, keys exclude each other, or a custom loss is missing or not
            trusted.
    """
    keys = [key for key in ("loss", "class_weights", "label_smoothing") if getattr(training, key)]
    if keys and not task.HAS_LABEL_NAMES:
        raise RecipeError(f"training.{keys[0]} needs labels", "leave it out for this task")
    if training.loss and task.fit_head:
        raise RecipeError("training.loss: this task family needs its built-in loss", "leave it out")
    if training.loss == FOCAL and training.label_smoothing:
        raise RecipeError("training.label_smoothing does not work with focal loss", "leave one of them out")
    if training.loss and training.loss != FOCAL:
        load_custom("loss", training.loss, trusted)
        if len(keys) > 1:
            raise RecipeError(f"training.{keys[1]} does not work with a custom loss", "leave one of them out")


@dataclass(frozen=True)
class LossTerms:
    """Terms of a loss, which is the weighted sum of the terms' means over all items of an optimizer step.

    For any split of a step into micro-batches and processes, sums and counts add up to the same values.

    If three labels have a loss of 1 and a fourth has a loss of 3, the loss of the step is 6 / 4. If the fourth label is
    in a separate micro-batch, the sums are 3 and 3, the counts 3 and 1, so the loss is still 6 / 4. The mean of the two
    means would be 2.
    """

    weights: Mapping[str, float]
    count: Callable[[Batch], Mapping[str, int]]
    """Function that counts the items of each term in a batch."""
    sums: Callable[[Model, Batch], Batch]
    """Function that computes the sum of each term over a batch; a sum over no items is 0 and has a gradient."""


class RunningLoss:
    """Running sums of the loss and of its terms since the last log line.

    The Trainer sums the loss as well, but its sum starts at zero in a resumed run. A checkpoint stores these sums, so a
    resumed run logs the same means as an unbroken run. A single term is the loss itself and is not logged again.

    Args:
        names: Names of the terms.
        accelerator: Accelerator with the device of the sums, and the processes to average over.
    """

    def __init__(self, names: Sequence[str], accelerator: Accelerator) -> None:
        self.names, self.accelerator = names if len(names) > 1 else (), accelerator
        self.load_state({"loss": 0.0, "terms": [0.0] * len(self.names), "step": 0})

    def add(self, loss: Tensor) -> None:
        """Add the loss of a batch; the sum stays on the device, so no step waits for a GPU."""
        self.loss += loss

    def add_terms(self, shares: Sequence[Tensor]) -> None:
        """Add the shares of a micro-batch, one per term."""
        for index, share in enumerate(shares if self.names else ()):
            self.terms[index] += share.detach()

    def take_means(self, step: int) -> dict[str, float]:
        """Return the means over the steps since the last call, and start again from zero."""
        steps = step - self.step
        means = {"loss": float(self._mean(self.loss)) / steps}
        if self.names:
            terms = (self._mean(self.terms).cpu() / steps).tolist()
            means |= {f"loss_{name}": mean for name, mean in zip(self.names, terms, strict=True)}
        self.load_state({"loss": 0.0, "terms": [0.0] * len(self.names), "step": step})
        return means

    def state(self) -> dict[str, Any]:
        """Return the sums for a checkpoint, as means over processes; all processes call this together."""
        loss, terms = float(self._mean(self.loss)), self._mean(self.terms).tolist()
        return {"loss": loss, "terms": terms, "step": self.step}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Continue from the result of `state`."""
        import torch

        # Tensors that are made on XLA instead of moved there would add a graph.
        self.loss, self.terms = (torch.tensor(state[key]).to(self.accelerator.device) for key in ("loss", "terms"))
        self.step = state["step"]

    def _mean(self, values: Tensor) -> Tensor:
        # Shares are already scaled by the number of processes, so their mean over processes is the mean over all items.
        has_one_process = self.accelerator.num_processes == 1
        mean: Tensor = values if has_one_process else self.accelerator.reduce(values, "mean")
        return mean


def task_terms(loss: Loss | None) -> LossTerms:
    """Build the single term of a task: the built-in loss of the model's head, or `loss` over its logits."""
    import torch

    from bertkit.modeling.heads.mixins import sum_over_rows, sum_over_windows
    from bertkit.modeling.static_shapes import drop_fillers, run_static_batch

    def sums(model: Model, batch: Batch) -> Batch:
        # The built-in loss is a mean over the labels of this micro-batch. Multiplied by their count, it is a sum, which
        # the trainer divides by the label count of the whole step. So all labels of a step have the same weight.
        batch = drop_fillers(model, batch)
        outputs = run_static_batch(model, batch)
        if loss:
            windows = outputs.get("windows")
            if windows is not None:
                return {"gold": sum_over_windows(loss, outputs["logits"], batch["labels"], windows)}
            if ROW_MASK in batch:
                return {"gold": sum_over_rows(loss, outputs["logits"], batch["labels"], batch[ROW_MASK])}
            return {"gold": loss(outputs["logits"], batch["labels"])}
        items = count_on_device(batch)
        if isinstance(items, int):
            items = torch.full((), items, device=outputs["loss"].device)
        # A mean over no labels is NaN. An `if` would wait for the GPU in every micro-batch.
        return {"gold": torch.where(items > 0, outputs["loss"], 0.0) * items}

    return LossTerms({"gold": 1.0}, lambda batch: {"gold": count_items(batch)}, sums)


def gold_terms(task: Task, training: TrainingConfig, labels: Sequence[str], rows: Sequence[Row]) -> LossTerms:
    """Build the term of a task: its built-in loss, or the loss of `make_loss`, which can raise a RecipeError."""
    if task.fit_head:
        return task_terms(None)
    return task_terms(make_loss(training, labels, [row.get(task.COLUMNS.gold) for row in rows]))


def make_loss(training: TrainingConfig, labels: Sequence[str], gold_labels: Sequence[Any]) -> Loss | None:
    """Build the loss of a recipe with `loss`, `class_weights` or `label_smoothing`, or return None without them.

    Args:
        training: Training section of the recipe.
        labels: Label names in the order of the model's outputs.
        gold_labels: Label names of the training rows, or lists of names if rows have several labels.

    Raises:
        RecipeError: If class weights name unknown labels.
    """
    if training.class_weights is None and not training.label_smoothing and not training.loss:
        return None
    if training.loss and training.loss != FOCAL:
        return _sum_custom_loss(training.loss, len(labels))
    import torch
    from torch.nn import functional

    weights = torch.tensor(compute_class_weights(training.class_weights, labels, gold_labels))
    smoothing = training.label_smoothing
    gamma = None if training.loss is None else 2.0 if training.focal_gamma is None else training.focal_gamma

    def loss(logits: Tensor, gold: Tensor) -> Tensor:
        nonlocal weights
        weights = weights.to(logits.device)  # stored, because each copy would wait for a GPU
        weight = weights.to(logits.dtype)
        if gold.is_floating_point():  # multi-label: a 0 or 1 per label
            # Losses of shape (rows, labels) are averaged over labels, as in the model's head, and summed over rows for
            # `LossTerms`. Smoothing moves 0 and 1 towards 1/2, as for two classes.
            target = gold * (1 - smoothing) + smoothing / 2
            losses = functional.binary_cross_entropy_with_logits(logits, target, reduction="none")
            factors = weight if gamma is None else weight * _missing_probability(losses) ** gamma
            return (losses * factors).mean(dim=-1).sum()
        # Logits are (rows, labels), or (rows * tokens, labels) if tokens have labels. A weighted mean would divide by
        # the label weights of this micro-batch, which differ between micro-batches, so the loss is a sum.
        logits, gold = logits.reshape(-1, len(labels)), gold.reshape(-1)
        if gamma is not None:
            # The loss of an ignored label is 0, so its factor has no effect.
            losses = functional.cross_entropy(logits, gold, reduction="none")
            return (losses * _missing_probability(losses) ** gamma * weight[gold.clamp(min=0)]).sum()
        return functional.cross_entropy(logits, gold, weight=weight, label_smoothing=smoothing, reduction="sum")

    return loss


def _missing_probability(losses: Tensor) -> Tensor:
    """Return 1 - p of each gold label, computed from its loss -log p (Lin et al. 2017, equation 4).

    The minimum is above 0, because a power below 1 has no gradient at 0.

    >>> import torch
    >>> losses = -torch.tensor([0.9, 0.5]).log()  # the gold labels have the probabilities 0.9 and 0.5
    >>> [round(missing, 4) for missing in _missing_probability(losses).tolist()]
    [0.1, 0.5]
    """
    return (-(-losses).expm1()).clamp(min=1e-8)


def _sum_custom_loss(name: str, labels: int) -> Loss:
    """Build a function that sums a custom loss over the labels that are not ignored. Shape of logits: (n, labels)."""
    function = load_custom("loss", name)

    def loss(logits: Tensor, gold: Tensor) -> Tensor:
        logits = logits.reshape(-1, labels)
        # Gold has one label per text or token, (n,), or a 0 or 1 per label, (n, labels).
        gold = gold if gold.is_floating_point() else gold.reshape(-1)
        losses = function(logits, gold if gold.is_floating_point() else gold.clamp(min=0))
        if losses.shape != logits.shape[:1]:
            shapes = f"shape {tuple(losses.shape)} for logits of shape {tuple(logits.shape)}"
            message = f"training.loss: {name} returned {shapes}"
            raise RecipeError(message, "return one loss per row of the logits, not their mean")
        label_losses: Tensor = losses if gold.is_floating_point() else losses.where(gold != IGNORE_INDEX, 0.0)
        return label_losses.sum()

    return loss


# --- Regression targets that are far from the outputs of a new head, such as prices or years ---

_SCALE = "target_scale"  # attribute of the output layer


def scale_targets(model: Model, terms: LossTerms, targets: Iterable[float]) -> LossTerms:
    """Make the head of a regression train as if the targets were standardized, and return the scaled loss terms.

    The head predicts in the unit of the targets, so that other programs can use its checkpoints. Therefore the weights
    of the last layer, their learning rate (`scale_learning_rate`) and the loss are scaled instead of the targets.
    """
    import torch

    layers = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear) and layer.weight.requires_grad]
    outputs = [layer for layer in layers if layer.out_features == 1 and layer.bias is not None]
    if model.config.problem_type != "regression" or not outputs:
        return terms
    mean, scale = find_scale(list(targets))
    if (mean, scale) == (0, 1):
        return terms
    log.info(
        f"the targets have mean {mean:,.6g} and standard deviation {scale:,.6g}: the head is trained as if they were "
        "standardized, and predicts in their unit"
    )
    with torch.no_grad():
        # A trained head stays unchanged if its bias is near the targets.
        if get_loading_info(model).head == "new" or abs(float(outputs[-1].bias) - mean) > scale:
            outputs[-1].weight.mul_(scale)
            outputs[-1].bias.fill_(mean)
    setattr(outputs[-1], _SCALE, scale)

    def sums(model: Model, batch: Batch) -> Batch:
        totals = terms.sums(model, batch)
        return {name: total / scale**2 if name in ("gold", "soft") else total for name, total in totals.items()}

    return replace(terms, sums=sums)


def scale_learning_rate(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> None:
    """Multiply the learning rate of layers that `scale_targets` has scaled, so that AdamW's steps scale with them."""
    for layer in model.modules():
        scale = getattr(layer, _SCALE, None)
        weights = set(layer.parameters()) if scale else set()
        for group in [group for group in optimizer.param_groups if weights.intersection(group["params"])]:
            params = [weight for weight in group["params"] if weight in weights]
            group["params"] = [weight for weight in group["params"] if weight not in weights]
            options = {name: group[name] for name in ("weight_decay", "eps") if isinstance(group.get(name), float)}
            divided = {name: value / scale for name, value in options.items()}
            optimizer.add_param_group({**group, **divided, "params": params, "lr": group["lr"] * scale})
