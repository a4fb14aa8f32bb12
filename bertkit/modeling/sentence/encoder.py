"""Encoder that computes one vector per text: token states, pooled and transformed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoModel

from bertkit.errors import ModelError, UsageError
from bertkit.hardware.precision import ComputeConfig
from bertkit.modeling.checkpoint import load_config
from bertkit.modeling.inference.encoder import load_encoder
from bertkit.modeling.info import Model
from bertkit.modeling.layers import LayerChoice
from bertkit.modeling.load import load_pickle, load_weights
from bertkit.modeling.sentence.folder import Dense, SentenceModules

_ACTIVATIONS = {"Tanh": torch.tanh, "Identity": lambda values: values, "ReLU": torch.relu, "GELU": functional.gelu}


class SentenceEncoder(nn.Module):
    """Encoder with pooling and the modules after it, for inference; in float32 from the pooling on."""

    def __init__(self, encoder: Model, modules: SentenceModules) -> None:
        super().__init__()
        self.encoder, self.sentence_modules = encoder, modules
        self.dense = nn.ModuleList(_load_dense(module) for module in modules.transforms if isinstance(module, Dense))

    def forward(self, prompt_tokens: int = 0, **inputs: Tensor) -> dict[str, Tensor]:
        """Compute the vector of each text, ``embedding``. Shape: (texts, dimension).

        Args:
            prompt_tokens: Number of tokens at the start of each text that are a prompt.
            inputs: Inputs of the encoder, padded on the right. Shape: (texts, tokens).
        """
        states, mask = self.encoder(**inputs)["last_hidden_state"], inputs["attention_mask"]
        if prompt_tokens and not self.sentence_modules.include_prompt:
            mask = mask.clone()
            mask[:, :prompt_tokens] = 0
        with torch.autocast(states.device.type, enabled=False):
            return {"embedding": self.transform(pool(states.float(), mask, self.sentence_modules.pooling))}

    def transform(self, vectors: Tensor) -> Tensor:
        """Run the modules after the pooling on vectors (texts, width)."""
        dense = iter(self.dense)
        for module in self.sentence_modules.transforms:
            vectors = next(dense)(vectors) if isinstance(module, Dense) else functional.normalize(vectors, dim=-1)
        return vectors


def pool(states: Tensor, mask: Tensor, modes: tuple[str, ...]) -> Tensor:
    """Compute one vector per text from token states; the vectors of several modes are concatenated.

    In this example, the last of four tokens is padding:

    >>> states, mask = torch.tensor([[[1.0], [5.0], [9.0], [0.0]]]), torch.tensor([[1, 1, 1, 0]])
    >>> [pool(states, mask, (mode,)).item() for mode in ("cls", "mean", "max", "lasttoken")]
    [1.0, 5.0, 9.0, 9.0]

    Args:
        states: States of texts that are padded on the right. Shape: (texts, tokens, width).
        mask: 1 for the tokens to pool. Shape: (texts, tokens).
        modes: Names in `bertkit.modeling.sentence.folder.POOLING_MODES`.

    Returns:
        the vectors. Shape: (texts, width * number of modes).
    """
    return torch.cat([_pool_mode(states, mask, mode) for mode in modes], dim=-1)


def _pool_mode(states: Tensor, mask: Tensor, mode: str) -> Tensor:
    # Select the first or the last token with mask 1.
    if mode in ("cls", "lasttoken"):
        positions = torch.arange(mask.shape[1], device=mask.device)
        index = mask.argmax(dim=1) if mode == "cls" else (positions * mask).argmax(dim=1)
        return states[torch.arange(len(states), device=states.device), index]
    weights = mask.unsqueeze(-1).to(states.dtype)
    if mode == "max":
        return states.masked_fill(weights == 0, float("-inf")).amax(dim=1)
    # The weight of a token is its position, from 1.
    if mode == "weightedmean":
        weights = weights * torch.arange(1, mask.shape[1] + 1, device=mask.device, dtype=states.dtype)[:, None]
    total, divisor = (states * weights).sum(dim=1), weights.sum(dim=1).clamp(min=1e-9)
    return total / (divisor.sqrt() if mode == "mean_sqrt_len_tokens" else divisor)


class _DenseLayer(nn.Module):
    def __init__(self, module: Dense) -> None:
        super().__init__()
        self.linear = nn.Linear(module.inputs, module.outputs, bias=module.bias)
        self.residual: nn.Module | None = None
        if module.use_residual:
            is_square = module.inputs == module.outputs
            self.residual = nn.Identity() if is_square else nn.Linear(module.inputs, module.outputs, bias=False)
        self.activation: Any = _ACTIVATIONS[module.activation.rpartition(".")[2]]

    def forward(self, vectors: Tensor) -> Tensor:
        outputs: Tensor = self.activation(self.linear(vectors))
        return outputs if self.residual is None else outputs + self.residual(vectors)


def _load_dense(module: Dense) -> nn.Module:
    """Load a dense layer with its weights.

    Raises:
        ModelError: If the activation is not supported, or the weights are damaged or do not fit.
    """
    name = module.activation.rpartition(".")[2]
    if name not in _ACTIVATIONS:
        names = ", ".join(_ACTIVATIONS)
        raise ModelError(f"activation {name!r} is not supported", f"expected one of {names}", file=module.folder)
    layer = _DenseLayer(module)
    try:
        file = Path(module.folder, "model.safetensors")
        layer.load_state_dict(load_file(file) if file.exists() else load_pickle(file.with_name("pytorch_model.bin")))
    except (OSError, SafetensorError, RuntimeError):
        message = "the weights of the dense layer are damaged"
        raise ModelError(message, "fetch the model again", file=module.folder) from None
    return layer


def load_for_vectors(folder: Path, modules: SentenceModules, machine: ComputeConfig) -> tuple[SentenceEncoder, str]:
    """Load the encoder of a model folder for inference.

    The weights of linear layers are cast to bf16 once, instead of by autocast in each forward pass.

    Returns:
        the encoder, and the precision to run it with under autocast.

    Raises:
        ModelError: If weights are damaged, or do not fit the config.
    """
    dtype = torch.bfloat16 if machine.precision == "bf16" else torch.float32
    if machine.device == "cpu" and (encoder := load_encoder(folder, load_config(folder, decoders=True), dtype)):
        return SentenceEncoder(cast("Model", encoder), modules).eval(), "fp32"
    sentence_encoder = load_sentence_encoder(folder, modules)
    for module in sentence_encoder.encoder.modules():
        if type(module) is nn.Linear:
            module.to(dtype)
    return sentence_encoder.to(machine.device), machine.precision


def load_sentence_encoder(folder: Path, modules: SentenceModules) -> SentenceEncoder:
    """Load the encoder of a model folder in float32, with pooling and the modules after it.

    Raises:
        ModelError: If weights are damaged, or do not fit the config.
    """
    encoder, _ = load_weights(AutoModel, folder, load_config(folder, decoders=True), decoders=True)
    return SentenceEncoder(encoder, modules).eval()


class LayerCombination(nn.Module):
    """Encoder that returns the mean, the sum or the concatenation of the states of several layers.

    Raises:
        UsageError: If the encoder has fewer layers than the choice requires.
    """

    def __init__(self, encoder: Model, choice: LayerChoice) -> None:
        super().__init__()
        self.encoder, self.choice, self.config = encoder, choice, encoder.config
        first, layers = choice.states.start, encoder.config.num_hidden_layers
        if first < -layers:
            raise UsageError(f"the last {-first} layers: the model has {layers}", f"choose at most {layers}")

    def forward(self, **inputs: Tensor) -> dict[str, Tensor]:
        """Compute ``last_hidden_state``. Shape: (texts, tokens, width), or width * layers after a concatenation."""
        states = self.encoder(**inputs, output_hidden_states=True)["hidden_states"][self.choice.states]
        if self.choice.reduction == "concat":
            return {"last_hidden_state": torch.cat(states, dim=-1)}
        total = torch.stack(states).sum(dim=0)
        return {"last_hidden_state": total / len(states) if self.choice.reduction == "mean" else total}


class TokenStates(nn.Module):
    """Encoder that returns the hidden states of all tokens, for vectors of words and tokens."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, **inputs: Tensor) -> dict[str, Tensor]:
        """Compute ``states``. Shape: (texts, tokens, width)."""
        return {"states": self.encoder(**inputs)["last_hidden_state"]}
