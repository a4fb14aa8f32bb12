"""Base class of the heads that bertkit adds to any encoder of transformers.

They are saved like transformers' own heads: the encoder's weights keep their names, so AutoModel loads the encoder.
"""

from __future__ import annotations

import inspect
from functools import cache

from torch import Tensor, nn
from transformers import MODEL_MAPPING, PreTrainedModel
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.utils import ModelOutput

from bertkit.modeling.info import Config, ModelAttributes

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
"""Names of the inputs that encoders read from a batch."""


class EncoderHead(ModelAttributes):
    """Base class of heads: an encoder without a pooler.

    `build_head_class` derives a class from a head and from transformers' base class of the encoder, such as
    BertPreTrainedModel.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        encoder = MODEL_MAPPING[type(config)]
        options = {"add_pooling_layer": False} if "add_pooling_layer" in inspect.signature(encoder).parameters else {}
        setattr(self, self.base_model_prefix, encoder(config, **options))

    def run_encoder(self, *args: Tensor | None, **kwargs: object) -> ModelOutput:
        """Run the encoder on `INPUTS`, by position or by name; None is left out."""
        inputs = {**dict(zip(INPUTS, args, strict=False)), **kwargs}
        return self.base_model(**{name: values for name, values in inputs.items() if values is not None})


def make_head_dropout(config: Config) -> nn.Dropout:
    """Build the dropout before a classifier, with the config's rate for classifiers, or else for layers."""
    rates = (getattr(config, name, None) for name in ("classifier_dropout", "hidden_dropout_prob"))
    return nn.Dropout(next((rate for rate in rates if rate is not None), 0.0))


@cache
def build_head_class(head: type, config_class: type, ending: str) -> type:
    """Build the class of an encoder with a head, which loads from any checkpoint of that encoder.

    Args:
        head: Subclass of `EncoderHead`.
        config_class: Config class of the encoder.
        ending: End of the name, such as ``ForLayerTagging``.
    """
    encoder = MODEL_MAPPING[config_class]
    # The base of BertModel is BertPreTrainedModel, which defines config, loading and initialization.
    base = next(parent for parent in encoder.__mro__[1:] if issubclass(parent, PreTrainedModel))
    family = encoder.__name__.removesuffix("Model")
    # transformers looks up by class name how to rename old weights: the new class gets the rules of the class for tags.
    if mapping := get_checkpoint_conversion_mapping(f"{family}ForTokenClassification"):
        register_checkpoint_conversion_mapping(family + ending, mapping, overwrite=True)
    return type(family + ending, (head, base), {"__module__": head.__module__})
