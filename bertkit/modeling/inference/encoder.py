"""An encoder of BERT's kin that only computes: weights are cast to bf16 once, and it may leave padding out.

With padding, its operations are those of transformers in the same order, so states are equal, in fp32 to the last bit.
Without, on a CPU, tokens of all texts lie one after another, and states are equal up to rounding. Accelerators run few
large operations faster than many small ones, so they always get the padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from bertkit.hardware.device import Device
from bertkit.modeling.architectures import LayerNames, architecture_of, first_position
from bertkit.modeling.inference.known import are_whole, encoder_shapes, has_known_encoder, layer_names, read_weights
from bertkit.modeling.info import Config
from bertkit.tokens.features import Batch

# tokens of a batch are rounded up to it: oneDNN compiles each product anew for every number of them
_STEP = 32
# at most tokens of a text whose attention is faster in plain products, and texts of each
_SHORT, _BLOCK = 48, 32
# torch's softmax is several times slower where the last axis is not a multiple of it
_LANES = 16

_USUAL_TOKENS = 1024  # of a batch
_PREPARING = Lock()
onednn = torch.ops.mkldnn

Weights = Batch


def load_encoder(folder: Path, config: Config, dtype: torch.dtype) -> InferenceEncoder | None:
    """Load an encoder whose products are computed in `dtype`; None where transformers is needed, or knows the error."""
    if not has_known_encoder(config):
        return None
    prefix, shapes = f"{architecture_of(config).prefix}.", encoder_shapes(config)
    parts = {name.split(".")[0] for name in shapes}
    weights = {name.removeprefix(prefix): weight for name, weight in read_weights(folder).items()}
    # a head, the pooler and the numbers of positions are not needed
    weights = {name: weight for name, weight in weights.items() if name.split(".")[0] in parts and "_ids" not in name}
    return InferenceEncoder(config, weights, dtype) if are_whole(weights, shapes) else None


class InferenceEncoder(nn.Module):
    """Computes the states of padded texts as an encoder of transformers does; it cannot be trained.

    Products and attention are computed in `dtype`, or in that of autocast; what is added up, and norms, in float32.
    Weights are copied from `weights`, a mapped file that may be overwritten later.
    """

    is_reentrant: bool = True
    """Whether several threads may run it at once."""
    packs: bool = True
    """Whether it leaves padding out on a CPU."""

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
        self.project = FusedLinear(weights, dtype, "embeddings_project") if has_project else None
        names = [layer_names(config, layer) for layer in range(config.num_hidden_layers)]
        heads = config.num_attention_heads
        self.layers = nn.ModuleList(_Layer(weights, dtype, of_layer, heads, epsilon) for of_layer in names)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
        output_hidden_states: bool = False,
        first_only: bool = False,
    ) -> dict[str, Any]:
        """Compute the states of texts that are padded on the right: (texts, tokens, width).

        With `first_only`, the last layer computes the first token of each text, and its states are (texts, 1, width).
        """
        packs = self.packs and Device(attention_mask.device.type).is_cpu
        layout = _pack(attention_mask) if packs else _keep_padding(attention_mask)
        positions = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids) + self.first_position
        states = functional.embedding(layout.take(input_ids), self.tables["word"])
        if "token_type" in self.tables:
            types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
            states += functional.embedding(layout.take(types), self.tables["token_type"])
        states += functional.embedding(layout.take(positions), self.tables["position"])
        states = self.norm(states)
        if self.project is not None:
            states = self.project(states)  # in bf16 transformers goes on with less exact sums
            states = states.float() if packs else states
        every = [layout.pad(states)] if output_hidden_states else []
        for number, layer in enumerate(self.layers, start=1):
            if first_only and number == len(self.layers):
                return {"last_hidden_state": layer(states, layout, first_only=True)[:, None]}
            states = layer(states, layout)
            every += [layout.pad(states)] if output_hidden_states else []
        if every:
            return {"last_hidden_state": every[-1], "hidden_states": tuple(every)}
        return {"last_hidden_state": layout.pad(states)}


class _Layer(nn.Module):
    """A layer over the tokens of a batch, (tokens, width)."""

    def __init__(self, weights: Weights, dtype: torch.dtype, names: LayerNames, heads: int, epsilon: float) -> None:
        super().__init__()
        self.heads = heads
        self.queries = FusedLinear(weights, dtype, names.query)
        self.keys_values = FusedLinear(weights, dtype, names.key, names.value)
        self.attended = FusedLinear(weights, dtype, names.attended)
        self.attended_norm = _norm(weights, names.attended_norm, epsilon)
        self.wide, self.narrow = FusedLinear(weights, dtype, names.wide), FusedLinear(weights, dtype, names.narrow)
        self.norm = _norm(weights, names.norm, epsilon)

    def forward(self, states: torch.Tensor, layout: _Layout, *, first_only: bool = False) -> torch.Tensor:
        """Compute the states that follow, or those of the first token of each text; those given are overwritten."""
        keys_values = self.keys_values(states).unflatten(1, (2, self.heads, -1))
        states = states[layout.firsts] if first_only else states
        queries = self.queries(states).unflatten(1, (self.heads, -1))
        attended = layout.attend(queries, keys_values, first_only=first_only)
        states = self.attended_norm(states.add_(self.attended(attended)))
        # with padding, the outputs are rounded before the GELU, as transformers does
        is_packed = layout.index is not None
        wide = self.wide(states, gelu=True) if is_packed else functional.gelu(self.wide(states))
        return self.norm(states.add_(self.narrow(wide)))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class _Layout:
    """Where the tokens of a batch lie while its layers are computed: one after another, (tokens, ...).

    Of the texts ``a b c`` and ``d``, these are ``a b c d`` and, to round their number, a text of tokens that nobody
    reads; or ``a b c d - -`` with their padding.
    """

    shape: torch.Size
    """(texts, tokens) of the padded batch."""
    runs: list[tuple[int, int]]
    """How many texts in a row have how many tokens each."""
    firsts: torch.Tensor
    """Where the first token of each text lies, (texts)."""
    index: torch.Tensor | None = None
    """Where tokens lie in the padded batch, (tokens) without those that round their number; None if padding stays."""
    rounding: int = 0
    allowed: torch.Tensor | None = None
    """Which tokens of padded texts are attended to, (texts, 1, tokens, tokens); None if nothing is padding."""

    def take(self, values: torch.Tensor) -> torch.Tensor:
        """Return what a padded batch has for each token, (tokens)."""
        if self.index is None:
            return values.flatten()
        return values.flatten().index_select(0, functional.pad(self.index, (0, self.rounding)))

    def pad(self, states: torch.Tensor) -> torch.Tensor:
        """Return a copy of states as a padded batch, (texts, tokens, width), zeros for what `take` leaves out."""
        if self.index is None:
            return states.clone().view(*self.shape, -1)
        padded = states.new_zeros(self.shape.numel(), states.shape[1])
        return padded.index_copy_(0, self.index, states[: len(self.index)]).view(*self.shape, -1)

    def attend(self, queries: torch.Tensor, keys_values: torch.Tensor, *, first_only: bool) -> torch.Tensor:
        """Attend within each text, from all its tokens or the first.

        Args:
            queries: (tokens or texts, heads, size).
            keys_values: (tokens, 2, heads, size).
            first_only: whether there is a query for each text.

        Returns:
            (tokens or texts, width).
        """
        asked = [texts * (1 if first_only else tokens) for texts, tokens in self.runs]
        keys = [texts * tokens for texts, tokens in self.runs]
        by_run = zip(
            torch.split(queries[: sum(asked)], asked),
            torch.split(keys_values[: sum(keys)], keys),
            self.runs,
            strict=True,
        )
        attend_run = partial(attend, allowed=self.allowed) if self.index is None else attend_in_blocks
        attended = [
            attend_run(of_run.unflatten(0, (texts, -1)), keys_of_run.unflatten(0, (texts, tokens)))  # type: ignore[no-untyped-call]
            if tokens
            else of_run.flatten(1)
            for of_run, keys_of_run, (texts, tokens) in by_run
        ]
        # of what rounds the number, anything will do
        return torch.cat([*attended, queries[sum(asked) :].flatten(1)])


def _pack(attention_mask: torch.Tensor) -> _Layout:
    texts, width = attention_mask.shape
    lengths = attention_mask.sum(dim=1)
    tokens, counts = torch.unique_consecutive(lengths, return_counts=True)
    index = attention_mask.flatten().nonzero()[:, 0]
    # The width of a text by itself is rounded already.
    rounding = -len(index) % _STEP if texts > 1 else width - len(index)
    runs = list(zip(counts.tolist(), tokens.tolist(), strict=True))
    return _Layout(attention_mask.shape, runs, lengths.cumsum(0) - lengths, index, rounding)


def _keep_padding(attention_mask: torch.Tensor) -> _Layout:
    texts, width = attention_mask.shape
    # of each text, (queries, keys), as transformers has it
    allowed = None if attention_mask.all() else attention_mask.bool()[:, None, None].expand(-1, 1, width, -1)
    firsts = torch.arange(0, texts * width, width, device=attention_mask.device)
    return _Layout(attention_mask.shape, [(texts, width)], firsts, allowed=allowed)


def attend(queries: torch.Tensor, keys_values: torch.Tensor, allowed: torch.Tensor | None = None) -> torch.Tensor:
    """Attend within texts of one length.

    Args:
        queries: (texts, queries, heads, size), of all tokens or the first.
        keys_values: (texts, tokens, 2, heads, size).
        allowed: what is attended to, (texts, 1, tokens, tokens); by default everything.

    Returns:
        (texts * queries, width).
    """
    # each of (texts, heads, tokens, size)
    keys, values = keys_values.permute(2, 0, 3, 1, 4)
    mask = None if allowed is None else allowed[:, :, : queries.shape[1]]
    attended = functional.scaled_dot_product_attention(queries.transpose(1, 2), keys, values, mask)
    return attended.transpose(1, 2).reshape(-1, queries.shape[2] * queries.shape[3])


def attend_in_blocks(queries: torch.Tensor, keys_values: torch.Tensor) -> torch.Tensor:
    """Do what `attend` does on a CPU where nothing is padding, up to rounding.

    For short texts in bf16, plain products take half the time of torch's function, once oneDNN has compiled them. It
    keeps what it compiles for each shape, so texts are taken in blocks of one size.
    """
    is_short = queries.dtype == torch.bfloat16 and 1 < queries.shape[1] <= _SHORT
    whole = len(queries) - len(queries) % _BLOCK if is_short else 0
    starts = range(0, whole, _BLOCK)
    blocks = [_attend_short(queries[start : start + _BLOCK], keys_values[start : start + _BLOCK]) for start in starts]
    if len(queries) > whole:
        blocks.append(attend(queries[whole:], keys_values[whole:]))
    return torch.cat(blocks) if len(blocks) > 1 else blocks[0]


def _attend_short(queries: torch.Tensor, keys_values: torch.Tensor) -> torch.Tensor:
    """Do what `attend` does by plain products; keys and values are padded to a length that suits the softmax."""
    texts, tokens, _, heads, size = keys_values.shape
    padding = -tokens % _LANES
    keys, values = (
        functional.pad(part, (0, 0, 0, padding)).flatten(0, 1) for part in keys_values.permute(2, 0, 3, 1, 4)
    )
    of_heads = queries.transpose(1, 2).reshape(-1, tokens, size)
    scores = torch.bmm(of_heads, keys.transpose(1, 2)).float().mul_(size**-0.5)
    scores[..., tokens:] = float("-inf")
    attended = torch.bmm(scores.softmax(dim=-1).to(values.dtype), values)
    return attended.view(texts, heads, tokens, size).transpose(1, 2).reshape(texts * tokens, heads * size)


def _fixed(weight: torch.Tensor, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(weight.to(dtype), requires_grad=False)


class FusedLinear(nn.Module):
    """A linear layer, or several that read the same states, whose outputs stand side by side.

    It computes in the dtype of its weights. Under autocast it casts them once, and keeps none in float32.
    """

    def __init__(self, weights: Weights, dtype: torch.dtype, *names: str) -> None:
        super().__init__()
        weight, bias = (torch.cat([weights[f"{name}.{part}"] for name in names]) for part in ("weight", "bias"))
        self.weight, self.bias = _fixed(weight, dtype), _fixed(bias, dtype)
        self.prepared: torch.dtype | None = None
        """What the weights were cast to, and laid out for."""

    def forward(self, values: torch.Tensor, *, gelu: bool = False) -> torch.Tensor:
        """Compute the outputs, (..., their number), or their GELU, before they are rounded where oneDNN multiplies."""
        device = values.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else self.bias.dtype
        if self.prepared != dtype:
            self._prepare(device, dtype)
        values = values.to(dtype)
        if self.weight.is_mkldnn:
            name, algorithm = ("gelu", "none") if gelu else ("none", "")
            return onednn._linear_pointwise(values, self.weight, self.bias, name, [], algorithm)  # type: ignore[no-any-return]
        outputs = functional.linear(values, self.weight, self.bias)
        return functional.gelu(outputs) if gelu else outputs

    def _prepare(self, device: str, dtype: torch.dtype) -> None:
        """Cast the weights, and lay those in bf16 out as a CPU multiplies them.

        Autocast would cast them, and oneDNN lay them out, in each forward pass.
        """
        with _PREPARING:  # of several threads that run the model, one does it
            if self.prepared == dtype:
                return
            weight = self.weight.to(dtype)
            by_onednn = device == "cpu" and dtype == torch.bfloat16 and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
            if by_onednn and onednn._is_mkldnn_bf16_supported():
                weight = onednn._reorder_linear_weight(weight, _USUAL_TOKENS)
            self.weight, self.bias = _fixed(weight, dtype), _fixed(self.bias, dtype)
            self.prepared = dtype


def _norm(weights: Weights, name: str, epsilon: float) -> nn.LayerNorm:
    weight, bias = (weights[f"{name}.{part}"].clone() for part in ("weight", "bias"))
    norm = nn.LayerNorm(len(weight), eps=epsilon, device="meta")
    norm.weight, norm.bias = _fixed(weight), _fixed(bias)
    return norm
