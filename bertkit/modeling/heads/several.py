"""One encoder with the heads of several models, each of which stays a model of its own class."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn
from transformers.utils import ModelOutput

from bertkit.errors import ModelError
from bertkit.modeling.info import Model, patched_forward
from bertkit.tokens.features import Tensors


class HeadsOnEncoder(nn.Module):
    """The encoder under its usual name, and the heads of several models, which use it in place of their own.

    The models themselves are no submodules, so a checkpoint holds the encoder once. Made by `join_heads`.
    """

    def __init__(self, models: Mapping[str, Model]) -> None:
        # of encoders of one checkpoint, that with a pooler has all that the others have
        encoder = max((model.base_model for model in models.values()), key=lambda base: len(list(base.children())))
        super().__init__(encoder.config)  # that of transformers' class; see `join_heads`
        self.models = dict(models)
        self.answering = list(models)
        self.own_encoders = {name: model.base_model for name, model in models.items()}
        self.heads = nn.Module()
        for name, model in models.items():
            head, base = nn.Module(), model.base_model
            for child_name, child in model.named_children():
                if child is not base:
                    head.add_module(child_name, child)
            placed = {*base.parameters(), *head.parameters()}
            if any(weights not in placed for weights in model.parameters()):
                raise ModelError(f"the head of {name} cannot share an encoder", "train this task by itself")
            self.heads.add_module(f"{name}_head", head)
            for child_name, _ in base.named_children():
                setattr(base, child_name, getattr(encoder, child_name))
            setattr(model, model.base_model_prefix, encoder)
        setattr(self, next(iter(models.values())).base_model_prefix, encoder)

    def train(self, mode: bool = True) -> HeadsOnEncoder:
        """Set the mode of all models, too."""
        super().train(mode)
        for model in self.models.values():
            model.train(mode)
        return self

    def forward(self, task: str | None = None, **batch: torch.Tensor) -> ModelOutput | Tensors:
        """Run the model of a task; without a task run all that are `answering`, and the encoder once.

        Returns:
            what the task's model returns; of several models, ``task.output`` -> tensor.
        """
        if task is not None:
            return self.models[task](**batch)
        encoder: Model = self.base_model
        encode, states = encoder.forward, dict[str, ModelOutput]()

        def encode_once(*arguments: torch.Tensor, **named: object) -> ModelOutput:
            # heads read one batch, but may ask for other outputs of the encoder
            key = str({name: value for name, value in named.items() if not isinstance(value, torch.Tensor)})
            if key not in states:
                states[key] = encode(*arguments, **named)
            return states[key]

        with patched_forward(encoder, encode_once):
            return {
                f"{name}.{field}": value
                for name in self.answering
                for field, value in self.models[name](**batch).items()
                if isinstance(value, torch.Tensor)
            }

    def separate(self) -> None:
        """Let each model use its own encoder again, whose weights are the shared ones."""
        for name, model in self.models.items():
            setattr(model, model.base_model_prefix, self.own_encoders[name])


def join_heads(models: Mapping[str, Model]) -> Model:
    """Build one model of the heads of several, all on the encoder of one; `HeadsOnEncoder` tells what it can do.

    It is a model of transformers of the encoder's architecture.

    Raises:
        ModelError: a head has weights that belong to no module.
    """
    encoder = type(next(iter(models.values())).base_model)
    architecture = next(cls for cls in encoder.__mro__ if "base_model_prefix" in vars(cls))
    return type("HeadsOnEncoderModel", (HeadsOnEncoder, architecture), {})(models)


def check_encoders(models: Mapping[str, Model]) -> None:
    """Check that models which were trained together have the same encoder still.

    Raises:
        ModelError: a weight differs.
    """
    first, *others = models
    weights = dict(models[first].base_model.named_parameters())
    for name in others:
        for key, value in models[name].base_model.named_parameters():
            if not torch.equal(weights.setdefault(key, value), value):
                raise ModelError(f"the encoders of {first} and {name} differ in {key}", "use the tasks of one run")
