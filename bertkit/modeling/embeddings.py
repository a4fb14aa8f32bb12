"""Word embeddings in training, restricted to used tokens, and for attributions, mixed with a baseline's embedding.

The embedding of a token that no training row contains has no gradient. AdamW changes it only by weight decay: in each
step, it multiplies all unused embeddings by the same factor. So the optimizer needs only the used embeddings, and the
unused ones are multiplied once, by the product of these factors, when the table is read. In a multilingual vocabulary
of 250,000 tokens, the unused embeddings are most of the model.

In this example, tokens 1 and 3 of four are used. The module trains two embeddings, and maps each id to its row:

>>> table = nn.Embedding(4, 1, _weight=torch.tensor([[10.0], [11.0], [12.0], [13.0]]))
>>> used = UsedEmbeddings(table, torch.tensor([1, 3]))
>>> used.weight.tolist(), used.row_by_id.tolist()
([[11.0], [13.0]], [-1, 0, -1, 1])
>>> used(torch.tensor([3, 1, 3]))[:, 0].tolist(), used.eval()(torch.tensor([0, 1, 2, 3]))[:, 0].tolist()
([13.0, 11.0, 13.0], [10.0, 11.0, 12.0, 13.0])
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bertkit.modeling.info import Model
from bertkit.tokens.features import Batch

# Key in the state of the optimizer.
_DECAY_KEY = "decay_of_other_rows"
# If batches use a larger fraction of the vocabulary, training all embeddings is as fast.
_MAX_USED_FRACTION = 0.8


class UsedEmbeddings(nn.Module):
    """Replacement of an embedding table during training; checkpoints and evaluations see the full table.

    The gradient and the moments of AdamW are as small as `weight`, at the cost of one more lookup per batch.

    Attributes:
        ids: Sorted ids of the used tokens. Shape: (used,).
        weight: Their embeddings. Shape: (used, width).
        row_by_id: Row of each id in `weight`, or -1 for unused ids. Shape: (vocabulary,).
        start_table: All embeddings before training. Shape: (vocabulary, width).
    """

    def __init__(self, embedding: nn.Embedding, ids: Tensor) -> None:
        super().__init__()
        self.start_table = embedding.weight.detach()
        self.ids = ids.to(self.start_table.device)
        self.weight = nn.Parameter(self.start_table[self.ids])
        self.row_by_id = torch.full((len(self.start_table),), -1, device=self.start_table.device)
        self.row_by_id[self.ids] = torch.arange(len(ids), device=self.start_table.device)
        # -1, the row of an unused padding token, would mean the last row.
        padding = -1 if embedding.padding_idx is None else int(self.row_by_id[embedding.padding_idx])
        self.padding_idx = padding if padding >= 0 else None
        self.optimizer: torch.optim.Optimizer | None = None
        self.register_state_dict_post_hook(self._write_table)  # type: ignore[no-untyped-call]

    def forward(self, input_ids: Tensor) -> Tensor:
        """Look up the embeddings of used ids or, in evaluation mode, of any ids. Shape: (..., width)."""
        rows = self.row_by_id[input_ids]
        if self.training:
            return functional.embedding(rows, self.weight, padding_idx=self.padding_idx)
        # Both lookups are (..., width), so the full table is never built. The clamp makes -1 a valid row; `where` then
        # replaces its embedding.
        decayed = functional.embedding(input_ids, self.start_table) * self.decay
        return torch.where((rows < 0)[..., None], decayed, functional.embedding(rows.clamp(min=0), self.weight))

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Apply the weight decay of an AdamW optimizer to the unused embeddings; its state stores their factor."""
        self.optimizer = optimizer

        def multiply_decay(*_: object) -> None:
            # AdamW skips weights without a gradient, which are frozen in this step.
            if self.weight.grad is None:
                return
            # AdamW multiplies each weight by 1 - lr * weight_decay before its update.
            group = self._find_group()
            group[_DECAY_KEY] = self.decay * (1 - float(group["lr"]) * group["weight_decay"])

        optimizer.register_step_post_hook(multiply_decay)

    @property
    def decay(self) -> float:
        """Product of the factors by which weight decay has scaled the unused embeddings, at most 1."""
        return float(self._find_group().get(_DECAY_KEY, 1.0)) if self.optimizer else 1.0

    def build_table(self) -> Tensor:
        """Return the current table. Shape: (vocabulary, width)."""
        table = self.start_table * self.decay
        table[self.ids] = self.weight.detach()
        return table

    def _find_group(self) -> dict[str, Any]:
        groups = self.optimizer.param_groups if self.optimizer else []
        return next(group for group in groups if any(parameter is self.weight for parameter in group["params"]))

    @staticmethod
    def _write_table(module: UsedEmbeddings, state: dict[str, Tensor], prefix: str, _: object) -> None:
        # Write the full table under the usual name, so any model of this architecture loads the checkpoint.
        state[f"{prefix}weight"] = module.build_table()

    def _load_from_state_dict(self, state_dict: Batch, prefix: str, *args: object) -> None:
        with torch.no_grad():
            self.weight.copy_(state_dict[f"{prefix}weight"][self.ids])


@contextmanager
def train_used_embeddings(model: Model, ids: Iterable[int]) -> Iterator[UsedEmbeddings | None]:
    """Train only the word embeddings of these ids inside the `with` block.

    Yields:
        the replaced embeddings, or None if training all embeddings is required (the output layer shares them) or as
        fast (the batches use nearly all ids).
    """
    embedding = model.get_input_embeddings()
    used_ids = torch.tensor(sorted(set(ids)), dtype=torch.long)
    # A tied output layer has the same parameter under a second name, and its scores give all embeddings gradients.
    num_names = sum(parameter is embedding.weight for _, parameter in model.named_parameters(remove_duplicate=False))
    is_plain = type(embedding) is nn.Embedding and embedding.weight.requires_grad and embedding.max_norm is None
    if not is_plain or num_names > 1 or len(used_ids) > _MAX_USED_FRACTION * len(embedding.weight):
        yield None
        return
    used_embeddings = UsedEmbeddings(embedding, used_ids)
    model.set_input_embeddings(used_embeddings)
    try:
        yield used_embeddings
    finally:
        with torch.no_grad():
            embedding.weight.copy_(used_embeddings.build_table())
        model.set_input_embeddings(embedding)


@dataclass
class MixedEmbeddings:
    """Word embeddings of a forward pass, each between a token's embedding and the embedding of a baseline token."""

    points: list[Tensor] = field(default_factory=list)
    """Embeddings that the model has read, one tensor per lookup. Shape: (texts, tokens, width)."""
    differences: list[Tensor] = field(default_factory=list)
    """Embeddings of the tokens minus the embedding of the baseline. Shape: (texts, tokens, width)."""


@contextmanager
def mix_embeddings(model: Model, weights: Tensor, baseline: int) -> Iterator[MixedEmbeddings]:
    """Replace word embeddings by weighted means with the embedding of a baseline token, inside the `with` block.

    The model still gets the ids of the text, because some models compute positions from the ids.

    Args:
        model: Model of any architecture that looks up its input embeddings.
        weights: Weight of the token's embedding, from 0 (baseline) to 1 (token), for each text of the forward pass.
            Shape: (..., tokens).
        baseline: Id of the baseline token.
    """
    embedding, mixed, text_weights = model.get_input_embeddings(), MixedEmbeddings(), weights.flatten(0, -2)
    num_texts = 0

    def mix(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        nonlocal num_texts
        # A model can look up a batch in several chunks, but always in the order of its texts.
        weight = text_weights[num_texts : num_texts + len(output)].to(output).unsqueeze(-1)
        num_texts += len(output)
        # Call `forward`, because calling the module would run this hook again.
        start: Tensor = module.forward(torch.full_like(args[0], baseline)).detach()
        difference = output.detach() - start
        point = start + weight * difference
        if torch.is_grad_enabled():
            mixed.points.append(point.requires_grad_())
            mixed.differences.append(difference)
        return point

    with embedding.register_forward_hook(mix):
        yield mixed
