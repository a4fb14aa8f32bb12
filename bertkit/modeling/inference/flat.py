"""An encoder of BERT's kin for vectors on a CPU: tokens of all texts lie one after another, without padding.

Nothing is computed for padding, queries, keys and values are one product, and weights are cast to bf16 once. Sums are
in another order than those of transformers, so states are equal up to rounding.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from transformers.modeling_outputs import BaseModelOutput

from bertkit.modeling.architectures import LayerNames, architecture_of, first_position
from bertkit.modeling.inference.known import are_whole, encoder_shapes, has_known_encoder, layer_names, read_weights
from bertkit.modeling.info import Config
from bertkit.tokens.features import Batch

# tokens of a batch are rounded up to it: oneDNN compiles each product anew for every number of them
_STEP = 32
# at most tokens of a text whose attention is faster in plain products, and texts of each
_SHORT, _BLOCK = 48, 32
_LANES = 16  # torch's softmax is several times slower where the last axis is not a multiple of it

Weights = Batch
Runs = list[tuple[int, int]]
"""How many texts in a row have how many tokens each."""


def load_flat_encoder(folder: Path, config: Config, dtype: torch.dtype) -> FlatEncoder | None:
    """Load an encoder whose products are computed in `dtype`; None where transformers is needed, or knows the error."""
    if not has_known_encoder(config):
        return None
    # tables and norms are copied below, as layers are: the file is mapped, and may be overwritten later
    prefix, shapes = f"{architecture_of(config).prefix}.", encoder_shapes(config)
    parts = {name.split(".")[0] for name in shapes}
    weights = {name.removeprefix(prefix): weight for name, weight in read_weights(folder).items()}
    # a head, the pooler and the numbers of positions are not needed
    weights = {name: weight for name, weight in weights.items() if name.split(".")[0] in parts and "_ids" not in name}
    return FlatEncoder(config, weights, dtype) if are_whole(weights, shapes) else None


class FlatEncoder(nn.Module):
    """Computes the states of padded texts as an encoder of transformers does; it cannot be trained.

    Products and attention are computed in `dtype`; what is added up, and norms, in float32.
    """

    def __init__(self, config: Config, weights: Weights, dtype: torch.dtype) -> None:
        super().__init__()
        architecture, epsilon = architecture_of(config), getattr(config, "layer_norm_eps", 1e-12)
        self.config, self.first_position = config, first_position(config)
        tables = ["word", "position", *(["token_type"] if architecture.reads_token_types else [])]
        self.tables = nn.ParameterDict(
            {name: _fixed(weights[f"embeddings.{name}_embeddings.weight"].clone()) for name in tables}
        )
        self.norm = _norm(weights, "embeddings.LayerNorm", epsilon)
        has_project = "embeddings_project.weight" in weights
        self.project = _linear(weights, dtype, "embeddings_project") if has_project else None
        names = [layer_names(config, layer) for layer in range(config.num_hidden_layers)]
        self.layers = nn.ModuleList(_Layer(weights, dtype, each, config.num_attention_heads, epsilon) for each in names)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
        output_hidden_states: bool = False,
    ) -> BaseModelOutput:
        """Compute the states of texts that are padded on the right: (texts, tokens, width), of padding zeros."""
        counts, lengths = torch.unique_consecutive(attention_mask.sum(dim=1), return_counts=True)[::-1]
        runs: Runs = list(zip(counts.tolist(), lengths.tolist(), strict=True))
        real = attention_mask.flatten().nonzero()[:, 0]
        rounding = -len(real) % _STEP  # the tokens of one more text, which nobody reads
        index = functional.pad(real, (0, rounding))

        def flatten(values: torch.Tensor) -> torch.Tensor:
            return values.flatten().index_select(0, index)

        def pad(states: torch.Tensor) -> torch.Tensor:
            padded = states.new_zeros(input_ids.numel(), states.shape[1])
            return padded.index_copy_(0, real, states[: len(real)]).view(*input_ids.shape, -1)

        positions = torch.arange(input_ids.shape[1], device=index.device).expand_as(input_ids) + self.first_position
        states = functional.embedding(flatten(input_ids), self.tables["word"])
        if "token_type" in self.tables:
            types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
            states += functional.embedding(flatten(types), self.tables["token_type"])
        states += functional.embedding(flatten(positions), self.tables["position"])
        states = self.norm(states)
        if self.project is not None:
            states = self.project(states.to(self.project.weight.dtype)).float()
        every = [pad(states)] if output_hidden_states else []
        for layer in self.layers:
            states = layer(states, [*runs, (1, rounding)])
            every += [pad(states)] if output_hidden_states else []
        return BaseModelOutput(
            last_hidden_state=every[-1] if every else pad(states), hidden_states=tuple(every) or None
        )


class _Layer(nn.Module):
    """A layer over tokens that lie one after another, (tokens, width)."""

    def __init__(self, weights: Weights, dtype: torch.dtype, names: LayerNames, heads: int, epsilon: float) -> None:
        super().__init__()
        self.heads, self.dtype = heads, dtype
        self.projections = _linear(weights, dtype, names.query, names.key, names.value)
        self.attended = _linear(weights, dtype, names.attended)
        self.attended_norm = _norm(weights, names.attended_norm, epsilon)
        self.wide, self.narrow = _linear(weights, dtype, names.wide), _linear(weights, dtype, names.narrow)
        self.norm = _norm(weights, names.norm, epsilon)

    def forward(self, states: torch.Tensor, runs: Runs) -> torch.Tensor:
        """Compute the states that follow; those given are overwritten."""
        projected = self.projections(states.to(self.dtype)).split([count * length for count, length in runs])
        pairs = zip(projected, runs, strict=True)
        attended = torch.cat([attend(values.view(*run, 3, self.heads, -1)) for values, run in pairs if run[1]])
        states = self.attended_norm(states.add_(self.attended(attended)))
        wide = functional.gelu(self.wide(states.to(self.dtype)))
        return self.norm(states.add_(self.narrow(wide)))  # type: ignore[no-any-return]


def attend(projected: torch.Tensor) -> torch.Tensor:
    """Attend within each text of a run: (texts, tokens, 3, heads, size) of queries, keys and values to (tokens, width).

    For short texts in bf16, plain products take half the time of torch's function, once oneDNN has compiled them. It
    keeps what it compiles for each shape, so texts are taken in blocks of one size.
    """
    texts, tokens, _, heads, size = projected.shape
    whole = texts - texts % _BLOCK if projected.dtype == torch.bfloat16 and tokens <= _SHORT else 0
    blocks = [_attend_short(projected[start : start + _BLOCK]) for start in range(0, whole, _BLOCK)]
    if texts > whole:
        # each of (texts, heads, tokens, size)
        queries, keys, values = projected[whole:].permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(queries, keys, values)
        blocks.append(attended.transpose(1, 2).reshape(-1, heads * size))
    return torch.cat(blocks) if len(blocks) > 1 else blocks[0]


def _attend_short(projected: torch.Tensor) -> torch.Tensor:
    """Do what `attend` does by plain products; keys and values are padded to a length that suits the softmax."""
    texts, tokens, _, heads, size = projected.shape
    queries, keys, values = projected.permute(2, 0, 3, 1, 4)
    padding = -tokens % _LANES
    keys, values = (functional.pad(each, (0, 0, 0, padding)).flatten(0, 1) for each in (keys, values))
    scores = torch.bmm(queries.reshape(-1, tokens, size), keys.transpose(1, 2)).float().mul_(size**-0.5)
    scores[..., tokens:] = float("-inf")
    attended = torch.bmm(scores.softmax(dim=-1).to(values.dtype), values)
    return attended.view(texts, heads, tokens, size).transpose(1, 2).reshape(texts * tokens, heads * size)


def _fixed(weight: torch.Tensor, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(weight.to(dtype), requires_grad=False)


def _linear(weights: Weights, dtype: torch.dtype, *names: str) -> nn.Linear:
    """Build one layer of several that read the same states; their outputs stand side by side."""
    weight, bias = (torch.cat([weights[f"{name}.{part}"] for name in names]) for part in ("weight", "bias"))
    layer = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    layer.weight, layer.bias = _fixed(weight, dtype), _fixed(bias, dtype)
    return layer


def _norm(weights: Weights, name: str, epsilon: float) -> nn.LayerNorm:
    weight, bias = (weights[f"{name}.{part}"].clone() for part in ("weight", "bias"))
    norm = nn.LayerNorm(len(weight), eps=epsilon, device="meta")
    norm.weight, norm.bias = _fixed(weight), _fixed(bias)
    return norm
