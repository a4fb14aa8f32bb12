"""A linear classifier over the vectors of texts, saved with its encoder as a folder of sentence-transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from bertkit.errors import ModelError
from bertkit.metrics import Numbers
from bertkit.modeling.heads.base import with_head
from bertkit.modeling.info import Config, LoadingInfo, Model, get_loading_info, set_loading_info
from bertkit.modeling.load import load_pretrained
from bertkit.modeling.sentence.head import SentenceHead, refuse_dense, set_up
from bertkit.modeling.sentence.losses import VectorLoss
from bertkit.modeling.sentence.modules import SentenceModules
from bertkit.modeling.sentence.writing import write_modules
from bertkit.tokens.features import Setup, Tensors

_NEVER = -1e4  # the logit of a label that no row has


class SentenceClassifier(SentenceHead):
    """What is added to an encoder: pooling, a loss over the vectors, and a linear layer that no gradient reaches."""

    is_saved_as_encoder = False

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        # not called `classifier`: transformers' own classes would load it, and give it the first token to read
        self.logistic = nn.Linear(config.hidden_size, config.num_labels).requires_grad_(False)
        self.post_init()  # type: ignore[attr-defined]

    def forward(
        self, labels: torch.Tensor | None = None, row_mask: torch.Tensor | None = None, **inputs: torch.Tensor
    ) -> Tensors:
        """Compute the vectors and logits of rows of one text each, (rows, 1, tokens), and in training the loss."""
        output = super().forward(labels, row_mask, **inputs)
        return {**output, "logits": self.logistic(output["vectors"][:, 0])}

    def save_pretrained(self, folder: Path | str, state_dict: Tensors | None = None, **named: object) -> None:
        """Write all weights into one file, those of ``logistic`` too, and the files of sentence-transformers.

        AutoModel and SentenceTransformer load the encoder of it.
        """
        PreTrainedModel.save_pretrained(self, folder, state_dict=state_dict, **named)
        write_modules(Path(folder), self.sentence, self.config.hidden_size)  # type: ignore[attr-defined]


def load_sentence_classifier(
    folder: Path, modules: SentenceModules, setup: Setup, loss: VectorLoss | None = None, *, new_head: bool
) -> Model:
    """Load the encoder of a model folder in float32 with a linear layer over its vectors, one logit per label.

    Args:
        folder: of any encoder, or of sentence-transformers.
        modules: how vectors are made of token states; they are saved with the model.
        setup: its labels are in the order of the logits.
        loss: None where the model is not trained.
        new_head: whether the linear layer may be new; it then has to be fitted by `fit_logistic` or set.

    Raises:
        ModelError: If `load_pretrained` raises it, or something other than one pooling and normalization follows the
            encoder.
    """
    refuse_dense(modules, folder)
    if len(modules.pooling) > 1:
        what = f"its vectors are of several poolings: {', '.join(modules.pooling)}"
        raise ModelError(what, "choose one: --set options.pooling=mean", file=folder)
    find_class = partial(with_head, SentenceClassifier, ending="ForTextClassification")
    labels, problem = setup.labels, "single_label_classification"
    model = load_pretrained(find_class, folder, setup, labels=labels, new_head=new_head, problem_type=problem)
    set_up(model, replace(modules, dimension=None), loss)  # the layer reads whole vectors
    # A new layer is fitted, or set, before anything is computed with it. So nothing starts from random weights.
    if get_loading_info(model).head == "new":
        set_loading_info(model, LoadingInfo())
    return model


def fit_logistic(model: Model, vectors: Numbers, labels: Sequence[int], weights: Sequence[float] | None = None) -> None:
    """Fit the linear layer of a `SentenceClassifier` to vectors (rows, dimension) by logistic regression.

    It is that of scikit-learn with its defaults, which finds the only minimum without any random draw. A label that no
    row has is never chosen.
    """
    from sklearn.linear_model import LogisticRegression

    # Vectors of a plain encoder are almost the same for all texts. With the center at 0 and a mean length of 1, the
    # penalty on weights means the same for every encoder.
    wide = vectors.astype(np.float64)
    center = wide.mean(axis=0)
    length = max(float(np.sqrt(((wide - center) ** 2).sum(axis=1).mean())), 1e-12)
    regression = LogisticRegression(max_iter=1000).fit((wide - center) / length, labels, sample_weight=weights)
    coefficients = regression.coef_ / length
    biases = regression.intercept_ - coefficients @ center
    # there is one row for both: the logit of the second label
    if len(regression.classes_) == 2:
        coefficients, biases = (np.concatenate([-values, values]) / 2 for values in (coefficients, biases))
    set_head(model, {int(label): coefficients[row] for row, label in enumerate(regression.classes_)}, biases)


def set_head(model: Model, weights: dict[int, Numbers], biases: Numbers) -> None:
    """Set the weights and the bias of each label's logit, and the logits of all others to never."""
    layer = model.logistic
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.fill_(_NEVER)
        for (label, of_label), bias in zip(weights.items(), biases, strict=True):
            layer.weight[label] = torch.from_numpy(of_label).to(layer.weight)
            layer.bias[label] = float(bias)
