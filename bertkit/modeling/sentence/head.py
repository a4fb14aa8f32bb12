"""Encoders for training on text vectors, saved in the format of sentence-transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop
from transformers import MODEL_MAPPING, PreTrainedModel

from bertkit.errors import ModelError, RecipeError
from bertkit.hardware.tensors import derive, on_host
from bertkit.modeling.checkpoint import load_config
from bertkit.modeling.dropout import set_dropout
from bertkit.modeling.heads.base import INPUTS, EncoderHead, build_head_class
from bertkit.modeling.info import Config, LoadingInfo, Model, ModelAttributes, get_loading_info
from bertkit.modeling.load import load_pretrained, load_weights
from bertkit.modeling.sentence.encoder import pool
from bertkit.modeling.sentence.folder import Dense, SentenceModules, write_modules
from bertkit.modeling.sentence.losses import INDEPENDENT, VectorLoss
from bertkit.tokens.features import TaskContext, Tensors

# On a CPU, a batch with more tokens is read in chunks, twice each, to save memory.
_MAX_TOKENS = 2**14


class VectorHead(ModelAttributes):
    """Mixin that computes the vectors of a batch's texts and, in training, a loss over the vectors.

    A subclass defines ``_embed``, and precedes a class of transformers in the bases of a model.
    """

    reads = "texts"
    accepts_row_mask = True
    sentence = SentenceModules()
    loss: Any = None
    texts_at_once: int | None = None
    """Maximum number of texts per chunk, or None to derive it from the maximum number of tokens."""
    tokens_at_once: int | None = None
    """Number of tokens, with padding, that fit into the memory of a GPU; None if a batch fits."""
    dropout_stream: Any = None
    """`DropoutStream` that dropout draws from, or None for torch's generator."""

    @property
    def compares_rows(self) -> bool:
        """Whether the loss compares the rows of a batch with one another, so that a batch must not be split."""
        return self.loss is not None and self.loss.name not in INDEPENDENT

    def forward(self, labels: Tensor | None = None, row_mask: Tensor | None = None, **inputs: Tensor) -> Tensors:
        """Compute the ``vectors`` of texts and, in training, the ``loss``.

        A missing text is a single token; real texts also have special tokens. In filler rows, all texts are missing.

        Args:
            labels: Labels for the loss, or None if it takes none.
            row_mask: False for filler rows of a batch with static shapes, or None. Shape: (rows,).
            inputs: Tensors of the batch by name. Shape: (rows, texts, tokens).
        """
        batch = [inputs.get(name) for name in INPUTS]
        missing = derive(inputs["attention_mask"], lambda mask: mask.sum(dim=-1) == 1)
        if row_mask is not None:
            missing = missing | ~row_mask[:, None]
        loss = self._get_loss(inputs["attention_mask"]) if self.training else None
        # SimCSE reads each text twice, with different dropout masks.
        if loss is not None and loss.name == "simcse":
            batch = [None if values is None else derive(values, _repeat(loss.texts)) for values in batch]
            missing = derive(missing, _repeat(loss.texts))
        vectors = self._embed_rows(batch)
        outputs = self._output(vectors)
        return outputs if loss is None else {"loss": loss(vectors, labels, missing, row_mask is not None), **outputs}

    def _get_loss(self, mask: Tensor) -> Any:
        """Return the loss function for a batch with this mask (rows, texts, tokens), or None if the model has none."""
        return self.loss

    def _output(self, vectors: Tensor) -> Tensors:
        """Return the outputs for vectors (rows, texts, dimension)."""
        return {"vectors": vectors}

    def _embed_rows(self, batch: list[Any]) -> Tensor:
        """Compute vectors (rows, texts, ...) from tensors (rows, texts, tokens)."""
        vectors = self._embed_texts([None if values is None else values.flatten(0, 1) for values in batch])
        return vectors.view(*batch[0].shape[:2], *vectors.shape[1:])

    def _embed_texts(self, batch: list[Any]) -> Tensor:
        """Compute the vectors of texts (texts, tokens), all at once or in chunks.

        As in GradCache (Gao et al. 2021), each chunk is read again in the backward pass, and only its vectors are in
        memory between both passes. The loss is over the full batch, and gradients are the same.
        """
        count, width = batch[0].shape
        chunk_size = self._get_chunk_size(width, batch[0].device)
        if not torch.is_grad_enabled() or not self.training or chunk_size >= count:
            return self._embed(*batch)
        # Sort texts by length, and cut each chunk to the width of its longest text.
        lengths = on_host(batch[1]).sum(dim=-1)
        order = lengths.argsort(stable=True)
        vectors = []
        # Without an early stop, the hook of unpadding after the last layer runs in both passes.
        with set_checkpoint_early_stop(False):
            for indices in torch.split(order, chunk_size):
                pick = partial(_pick_texts, indices, int(lengths[indices[-1]]))
                chunk = [None if values is None else derive(values, pick) for values in batch]
                vectors.append(checkpoint(self._embed, *chunk, use_reentrant=False, context_fn=self._same_dropout()))
        return self._concatenate(vectors)[order.argsort().to(batch[0].device, non_blocking=True)]

    def _get_chunk_size(self, width: int, device: torch.device) -> int:
        """Return the maximum number of texts of a width per chunk."""
        if self.texts_at_once is not None:
            return self.texts_at_once
        tokens = self.tokens_at_once or (_MAX_TOKENS if device.type == "cpu" else None)
        return max(1, tokens // width) if tokens else 2**62

    def _same_dropout(self) -> Callable[[], tuple[AbstractContextManager[None], AbstractContextManager[None]]]:
        """Return a function for `checkpoint` whose contexts make both passes of a chunk draw the same dropout masks."""
        stream: Any = self.dropout_stream
        # `checkpoint` restores the state of torch's generator.
        if stream is None:
            return lambda: (nullcontext(), nullcontext())
        state = stream.state()

        @contextmanager
        def replay() -> Iterator[None]:
            current_state = stream.state()
            stream.load_state(state)
            try:
                yield
            finally:
                stream.load_state(current_state)

        return lambda: (nullcontext(), replay())

    def _concatenate(self, vectors: list[Tensor]) -> Tensor:
        return torch.cat(vectors)

    def _embed(self, ids: Tensor, mask: Tensor, segments: Tensor | None) -> Tensor:
        """Compute the vectors of texts (texts, tokens). Shape: (texts, ...)."""
        raise NotImplementedError


def _pick_texts(indices: Tensor, longest: int, values: Tensor) -> Tensor:
    return values[indices.to(values.device, non_blocking=True), :longest]


def _repeat(texts: int | None) -> Callable[[Tensor], Tensor]:
    return lambda values: torch.cat([values[:, :texts]] * 2)


class SentenceHead(VectorHead, EncoderHead):
    """Encoder with pooling and a loss over the vectors; the head has no weights."""

    is_saved_as_encoder = True
    """Whether checkpoints contain only the encoder's weights, under their names in the encoder."""

    def __init__(self, config: Config) -> None:
        super(EncoderHead, self).__init__(config)  # type: ignore[call-arg]
        # Keep the unused pooler, because programs that load the encoder expect its weights.
        setattr(self, self.base_model_prefix, MODEL_MAPPING[type(config)](config))
        self.post_init()

    def save_pretrained(self, folder: Path | str, state_dict: Tensors | None = None, **kwargs: object) -> None:
        """Write the encoder, and the files that sentence-transformers reads."""
        encoder: Model = self.base_model
        prefix = f"{self.base_model_prefix}."
        if state_dict is not None:
            names = [name for name in state_dict if name.startswith(prefix)]
            state_dict = {name.removeprefix(prefix): state_dict[name] for name in names}
        encoder.save_pretrained(folder, state_dict=state_dict, **kwargs)
        self._write_modules(Path(folder), encoder.config.hidden_size)

    def _write_modules(self, folder: Path, width: int) -> None:
        write_modules(folder, self.sentence, width)

    def _embed(self, ids: Tensor, mask: Tensor, segments: Tensor | None) -> Tensor:
        return self.pool_states(self.run_encoder(ids, mask, segments).last_hidden_state, mask)

    def pool_states(self, states: Tensor, mask: Tensor) -> Tensor:
        """Compute vectors (texts, dimension) from hidden states (texts, tokens, width)."""
        with torch.autocast(states.device.type, enabled=False):
            vectors = pool(states.float(), mask, self.sentence.pooling)[:, : self.sentence.dimension]
            return functional.normalize(vectors, dim=-1) if self.sentence.transforms else vectors


def load_sentence_head(
    folder: Path,
    modules: SentenceModules,
    loss: VectorLoss | None = None,
    *,
    texts_at_once: int | None = None,
    dropout: float | None = None,
) -> Model:
    """Load the encoder of a model folder in float32 with a `SentenceHead`.

    Args:
        folder: Model folder, with or without modules of sentence-transformers.
        modules: Pooling and the modules after it, which are saved with the model.
        loss: Loss of training, or None if the model is not trained.
        texts_at_once: Maximum number of texts to read at once; by default, as many as fit into memory.
        dropout: Dropout rate of the encoder; by default, the rates in the model's config.

    Raises:
        ModelError: If weights are damaged or do not fit the config, or dense layers follow the pooling.
        RecipeError: If a dimension of the loss is larger than the vectors.
    """
    config = load_config(folder)
    check_dense(modules, folder)
    width = min(config.hidden_size * len(modules.pooling), modules.dimension or 10**9)
    for dimension in loss.dimensions if loss else ():
        if dimension > width:
            problem = f"options.dimensions has {dimension}, but vectors have only {width} dimensions"
            raise RecipeError(problem, "leave it out")
    if dropout is not None:
        set_dropout(config, dropout)
    config_class: type = type(config)
    model, _ = load_weights(build_head_class(SentenceHead, config_class, "ForSentenceSimilarity"), folder, config)
    configure_head(model, modules, loss, texts_at_once)
    return model


def check_dense(modules: SentenceModules, folder: Path) -> None:
    """Raise ModelError if a dense layer follows the pooling."""
    if any(isinstance(module, Dense) for module in modules.transforms):
        message = "bertkit cannot train a model with a dense layer after the pooling"
        raise ModelError(message, "start from another model", file=folder)


def configure_head(model: Model, modules: SentenceModules, loss: Any, texts_at_once: int | None = None) -> None:
    """Set the modules, the loss and the chunk size of a model with a `VectorHead`, and freeze the pooler."""
    for name, module in model.base_model.named_children():
        if name == "pooler":
            module.requires_grad_(False)
    model.sentence, model.loss, model.texts_at_once = modules, loss, texts_at_once


# Logit of labels that no row has.
_MIN_LOGIT = -1e4


class SentenceClassifier(SentenceHead):
    """Pooling, a loss over the vectors, and a linear layer that no gradient reaches."""

    is_saved_as_encoder = False

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        # If it were called `classifier`, transformers would load it, and apply it to the first token.
        self.logistic = nn.Linear(config.hidden_size, config.num_labels).requires_grad_(False)
        self.post_init()

    def forward(self, labels: Tensor | None = None, row_mask: Tensor | None = None, **inputs: Tensor) -> Tensors:
        """Compute the vectors and logits of rows with one text (rows, 1, tokens) and, in training, the loss."""
        output = super().forward(labels, row_mask, **inputs)
        return {**output, "logits": self.logistic(output["vectors"][:, 0])}

    def save_pretrained(self, folder: Path | str, state_dict: Tensors | None = None, **kwargs: object) -> None:
        """Write all weights, including ``logistic``, and the files of sentence-transformers.

        AutoModel and SentenceTransformer load the encoder from this folder.
        """
        PreTrainedModel.save_pretrained(self, folder, state_dict=state_dict, **kwargs)
        write_modules(Path(folder), self.sentence, self.config.hidden_size)


def load_sentence_classifier(
    folder: Path, modules: SentenceModules, context: TaskContext, loss: VectorLoss | None = None, *, new_head: bool
) -> Model:
    """Load the encoder of a model folder in float32 with a linear layer over its vectors, one logit per label.

    Args:
        folder: Model folder, with or without modules of sentence-transformers.
        modules: Pooling and the modules after it, which are saved with the model.
        context: Task context, whose labels are in the order of the logits.
        loss: Loss of training, or None if the model is not trained.
        new_head: Whether the linear layer can be new; `fit_logistic` or `set_head` must then set its weights.

    Raises:
        ModelError: If `load_pretrained` raises it, several pooling modes are combined, or a dense layer follows.
    """
    check_dense(modules, folder)
    if len(modules.pooling) > 1:
        message = f"it combines several pooling modes: {', '.join(modules.pooling)}"
        raise ModelError(message, "choose one: --set options.pooling=mean", file=folder)
    find_class = partial(build_head_class, SentenceClassifier, ending="ForTextClassification")
    labels, problem = context.labels, "single_label_classification"
    model = load_pretrained(find_class, folder, context, labels=labels, new_head=new_head, problem_type=problem)
    # The linear layer reads all components.
    configure_head(model, replace(modules, dimension=None), loss)
    # The caller sets the weights of a new layer, so no warning about random weights is needed.
    if get_loading_info(model).head == "new":
        model.loading_info = LoadingInfo()
    return model


def fit_logistic(
    model: Model, vectors: np.ndarray, labels: Sequence[int], weights: Sequence[float] | None = None
) -> None:
    """Fit the linear layer of a `SentenceClassifier` by logistic regression.

    scikit-learn's default solver finds the only minimum without random numbers. Labels without rows get no prediction.

    Args:
        model: Model with a `SentenceClassifier` head.
        vectors: Shape: (rows, dimension).
        labels: Label id of each row.
        weights: Weight of each row; by default 1.
    """
    from sklearn.linear_model import LogisticRegression

    # The vectors of an encoder that was not trained for similarity are almost equal. Center them, and scale them to a
    # mean length of 1, so that the penalty on weights has the same effect for every encoder.
    vectors = vectors.astype(np.float64)
    center = vectors.mean(axis=0)
    length = max(float(np.sqrt(((vectors - center) ** 2).sum(axis=1).mean())), 1e-12)
    regression = LogisticRegression(max_iter=1000).fit((vectors - center) / length, labels, sample_weight=weights)
    coefficients = regression.coef_ / length
    biases = regression.intercept_ - coefficients @ center
    # For two labels, scikit-learn fits only the logit of the second label.
    if len(regression.classes_) == 2:
        coefficients, biases = (np.concatenate([-values, values]) / 2 for values in (coefficients, biases))
    set_head(model, {int(label): coefficients[row] for row, label in enumerate(regression.classes_)}, biases)


def set_head(model: Model, weights: dict[int, np.ndarray], biases: np.ndarray) -> None:
    """Set weights and biases of the linear layer by label id, in order; other labels get a very low logit."""
    layer = model.logistic
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.fill_(_MIN_LOGIT)
        for (label, label_weights), bias in zip(weights.items(), biases, strict=True):
            layer.weight[label] = torch.from_numpy(label_weights).to(layer.weight)
            layer.bias[label] = float(bias)
