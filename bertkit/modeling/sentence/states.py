"""Hidden states of chosen layers, as the last ones of an encoder, and one array of them per text."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn

from bertkit.errors import UsageError
from bertkit.modeling.info import Model
from bertkit.modeling.layers import LayerChoice


class ChosenLayers(nn.Module):
    """An encoder whose last hidden states are those of several layers: their mean, their sum, or side by side.

    Raises:
        UsageError: it has fewer layers.
    """

    def __init__(self, encoder: Model, choice: LayerChoice) -> None:
        super().__init__()
        self.encoder, self.choice, self.config = encoder, choice, encoder.config
        first, layers = choice.states.start, encoder.config.num_hidden_layers
        if first < -layers:
            raise UsageError(f"the last {-first} layers: the model has {layers}", f"choose at most {layers}")

    def forward(self, **inputs: torch.Tensor) -> SimpleNamespace:
        """Run the encoder; ``last_hidden_state`` is of shape (texts, tokens, width)."""
        states = self.encoder(**inputs, output_hidden_states=True).hidden_states[self.choice.states]
        if self.choice.merged == "concat":
            return SimpleNamespace(last_hidden_state=torch.cat(states, dim=-1))
        total = torch.stack(states).sum(dim=0)
        return SimpleNamespace(last_hidden_state=total / len(states) if self.choice.merged == "mean" else total)


class TokenStates(nn.Module):
    """An encoder whose output are the hidden states of all tokens, for vectors of words and tokens."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        """Compute ``states`` of shape (texts, tokens, width)."""
        return {"states": self.encoder(**inputs).last_hidden_state}
