"""Train only the word embeddings that occur in the training rows.

A row of the embedding table that no training row reads has no gradient. AdamW leaves it as it is but for weight
decay, which multiplies it in every step. So the optimizer needs to see only the rows that occur, and the others are
multiplied once when somebody looks. On a multilingual vocabulary of 250,000 rows this is most of the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn import functional

_DECAY = "decay_of_other_rows"  # in the optimizer's state
_WORTHWHILE = 0.8  # share of the rows that occur, above which nothing is gained


class OccurringEmbeddings(nn.Module):
    """Stands in for an embedding while it is trained; checkpoints and evaluations see the whole table."""

    def __init__(self, embedding: nn.Embedding, rows: torch.Tensor) -> None:
        super().__init__()
        self.start = embedding.weight.detach()  # as before training: other rows are this, decayed
        self.rows = rows.to(self.start.device)
        self.weight = nn.Parameter(self.start[self.rows])
        self.places = torch.full((len(self.start),), -1, device=self.start.device)
        self.places[self.rows] = torch.arange(len(rows), device=self.start.device)
        self.padding_idx = None if embedding.padding_idx is None else int(self.places[embedding.padding_idx])
        self.optimizer: torch.optim.Optimizer | None = None
        self.register_state_dict_post_hook(self._write_whole)  # type: ignore[no-untyped-call]

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Look up embeddings: of rows that occur in training, of any row in evaluation."""
        places = self.places[input_ids]
        if self.training:
            return functional.embedding(places, self.weight, padding_idx=self.padding_idx)
        others = functional.embedding(input_ids, self.start) * self.decay
        return torch.where((places < 0)[..., None], others, functional.embedding(places.clamp(min=0), self.weight))

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Let the other rows decay as an AdamW optimizer decays these; how far is kept in the optimizer's state."""
        self.optimizer = optimizer

        def decay(*_: Any) -> None:
            group = self._group()
            group[_DECAY] = self.decay * (1 - float(group["lr"]) * group["weight_decay"])

        optimizer.register_step_post_hook(decay)

    @property
    def decay(self) -> float:
        """What weight decay has left of the other rows, as a factor."""
        return float(self._group().get(_DECAY, 1.0)) if self.optimizer else 1.0

    def whole(self) -> torch.Tensor:
        """Give the table as it is now, with all rows."""
        table = self.start * self.decay
        table[self.rows] = self.weight.detach()
        return table

    def _group(self) -> dict[str, Any]:
        groups = self.optimizer.param_groups if self.optimizer else []
        return next(group for group in groups if any(parameter is self.weight for parameter in group["params"]))

    @staticmethod
    def _write_whole(module: Any, state: dict[str, Any], prefix: str, _: Any) -> None:
        state[f"{prefix}weight"] = module.whole()

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *arguments: Any) -> None:
        with torch.no_grad():
            self.weight.copy_(state_dict[f"{prefix}weight"][self.rows])


@contextmanager
def occurring_embeddings(model: Any, ids: Iterable[int]) -> Iterator[OccurringEmbeddings | None]:
    """Train only the word embeddings of these ids; None where that is not possible or not worthwhile.

    It is not possible where the table serves as output layer too, and not worthwhile where nearly all rows occur.
    """
    embedding = model.get_input_embeddings()
    rows = torch.tensor(sorted(set(ids)), dtype=torch.long)
    uses = sum(parameter is embedding.weight for _, parameter in model.named_parameters(remove_duplicate=False))
    is_plain = type(embedding) is nn.Embedding and embedding.weight.requires_grad and embedding.max_norm is None
    if not is_plain or uses > 1 or len(rows) > _WORTHWHILE * len(embedding.weight):
        yield None
        return
    instead = OccurringEmbeddings(embedding, rows)
    model.set_input_embeddings(instead)
    try:
        yield instead
    finally:
        with torch.no_grad():
            embedding.weight.copy_(instead.whole())
        model.set_input_embeddings(embedding)
