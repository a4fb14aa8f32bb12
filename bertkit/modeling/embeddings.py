"""Word embeddings that are trained only for tokens that occur, or mixed with the embedding of a baseline token.

The embedding of a token that no training row contains has no gradient. AdamW changes it only by weight decay, which
multiplies it by the same factor as all others in every step. So the optimizer needs only the embeddings that occur, and
the others are multiplied once, when the table is read. In a multilingual vocabulary of 250,000 tokens, these others
are most of the model.

Here, tokens 1 and 3 of four occur. Their two embeddings are trained, and each id is mapped to its row among them:

>>> table = nn.Embedding(4, 1, _weight=torch.tensor([[10.0], [11.0], [12.0], [13.0]]))
>>> occurring = UsedEmbeddings(table, torch.tensor([1, 3]))
>>> occurring.weight.tolist(), occurring.row_of_id.tolist()
([[11.0], [13.0]], [-1, 0, -1, 1])
>>> occurring(torch.tensor([3, 1, 3]))[:, 0].tolist(), occurring.eval()(torch.tensor([0, 1, 2, 3]))[:, 0].tolist()
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

_DECAY = "decay_of_other_rows"  # key in the optimizer's state
_MAX_OCCURRING = 0.8  # fraction of the vocabulary; above it, training all embeddings is as fast


class UsedEmbeddings(nn.Module):
    """Replacement of an embedding during training; checkpoints and evaluations see the full table.

    `weight` (occurring, width) holds the embeddings of the ids in `rows` (occurring,), sorted. `row_of_id`
    (vocabulary,) maps an id to its row there, or to -1 if it does not occur. This costs one more lookup per batch, and
    gradient and moments are as small as `weight`.
    """

    def __init__(self, embedding: nn.Embedding, rows: Tensor) -> None:
        super().__init__()
        # The table before training. An embedding that does not occur is this one times the decay.
        self.start = embedding.weight.detach()
        self.rows = rows.to(self.start.device)
        self.weight = nn.Parameter(self.start[self.rows])
        # The inverse of `rows`: an array turns a batch of ids into rows in one lookup. The padding embedding, which
        # gets no gradient, is named by its row too, unless it does not occur: -1 would name the last row.
        self.row_of_id = torch.full((len(self.start),), -1, device=self.start.device)
        self.row_of_id[self.rows] = torch.arange(len(rows), device=self.start.device)
        padding = -1 if embedding.padding_idx is None else int(self.row_of_id[embedding.padding_idx])
        self.padding_idx = padding if padding >= 0 else None
        self.optimizer: torch.optim.Optimizer | None = None
        self.register_state_dict_post_hook(self._write_table)  # type: ignore[no-untyped-call]

    def forward(self, input_ids: Tensor) -> Tensor:
        """Look up embeddings (..., width) of ids that occur, or in evaluation of any ids."""
        rows = self.row_of_id[input_ids]
        if self.training:
            return functional.embedding(rows, self.weight, padding_idx=self.padding_idx)
        # Both lookups are (..., width), so the full table is never built. The clamp turns -1 into a valid row, whose
        # embedding `where` then replaces by the decayed start.
        decayed = functional.embedding(input_ids, self.start) * self.decay
        return torch.where((rows < 0)[..., None], decayed, functional.embedding(rows.clamp(min=0), self.weight))

    def follow(self, optimizer: torch.optim.Optimizer) -> None:
        """Apply the weight decay of an AdamW optimizer to the other embeddings; its state keeps their factor."""
        self.optimizer = optimizer

        def decay(*_: object) -> None:
            # Without a gradient, the weight is frozen in this step, and AdamW skips it.
            if self.weight.grad is None:
                return
            # AdamW multiplies every weight by this factor before its update. The product over all steps is what the
            # other embeddings have left, so one number stands for all of them.
            group = self._find_group()
            group[_DECAY] = self.decay * (1 - float(group["lr"]) * group["weight_decay"])

        optimizer.register_step_post_hook(decay)

    @property
    def decay(self) -> float:
        """Factor, at most 1, by which weight decay has scaled the embeddings of tokens that do not occur."""
        return float(self._find_group().get(_DECAY, 1.0)) if self.optimizer else 1.0

    def build_table(self) -> Tensor:
        """Return the current table, (vocabulary, width)."""
        table = self.start * self.decay
        table[self.rows] = self.weight.detach()
        return table

    def _find_group(self) -> dict[str, Any]:
        groups = self.optimizer.param_groups if self.optimizer else []
        return next(group for group in groups if any(parameter is self.weight for parameter in group["params"]))

    @staticmethod
    def _write_table(module: UsedEmbeddings, state: dict[str, Tensor], prefix: str, _: object) -> None:
        # A checkpoint has the full table under the usual name, so any model of this architecture loads it.
        state[f"{prefix}weight"] = module.build_table()

    def _load_from_state_dict(self, state_dict: Batch, prefix: str, *arguments: object) -> None:
        with torch.no_grad():
            self.weight.copy_(state_dict[f"{prefix}weight"][self.rows])


@contextmanager
def train_used_embeddings(model: Model, ids: Iterable[int]) -> Iterator[UsedEmbeddings | None]:
    """Train only the word embeddings of these ids, or yield None if that is not possible or not faster.

    It is not possible if the table is the output layer, too, and not faster if nearly all ids occur.
    """
    embedding = model.get_input_embeddings()
    rows = torch.tensor(sorted(set(ids)), dtype=torch.long)
    # A tied output layer has the same parameter under a second name. It scores every token of the vocabulary, so all
    # embeddings have gradients.
    uses = sum(parameter is embedding.weight for _, parameter in model.named_parameters(remove_duplicate=False))
    is_plain = type(embedding) is nn.Embedding and embedding.weight.requires_grad and embedding.max_norm is None
    if not is_plain or uses > 1 or len(rows) > _MAX_OCCURRING * len(embedding.weight):
        yield None
        return
    occurring = UsedEmbeddings(embedding, rows)
    model.set_input_embeddings(occurring)
    try:
        yield occurring
    finally:
        with torch.no_grad():
            embedding.weight.copy_(occurring.build_table())
        model.set_input_embeddings(embedding)


@dataclass
class MixedEmbeddings:
    """Word embeddings of a forward pass, each between a token's embedding and the embedding of a baseline token."""

    points: list[Tensor] = field(default_factory=list)
    """Embeddings that the model has read, one tensor (texts, tokens, width) per lookup."""
    differences: list[Tensor] = field(default_factory=list)
    """Embeddings of the tokens minus the embedding of the baseline, of the same shape."""


@contextmanager
def mix_embeddings(model: Model, shares: Tensor, baseline: int) -> Iterator[MixedEmbeddings]:
    """Move the word embeddings that a model reads towards the embedding of a baseline token.

    Ids do not change, so positions do not change either if the model counts them from the ids.

    Args:
        model: Model of any architecture that looks up its input embeddings.
        shares: 1 for the embedding of the token, 0 for the baseline, shape (..., tokens); its rows are the texts of the
            forward pass, in order.
        baseline: Id of the baseline token.
    """
    embedding, mixed, rows = model.get_input_embeddings(), MixedEmbeddings(), shares.flatten(0, -2)
    done = 0

    def mix(module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> Tensor:
        nonlocal done
        # A model can look up a batch in several chunks, but always its rows in order.
        share = rows[done : done + len(output)].to(output).unsqueeze(-1)
        done += len(output)
        # A call of the module would run this hook again. `forward` also does what the embedding adds to the lookup.
        start: Tensor = module.forward(torch.full_like(arguments[0], baseline)).detach()
        difference = output.detach() - start
        point = start + share * difference
        if torch.is_grad_enabled():
            mixed.points.append(point.requires_grad_())
            mixed.differences.append(difference)
        return point

    with embedding.register_forward_hook(mix):
        yield mixed
