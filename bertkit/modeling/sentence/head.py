"""Encoders that are trained on the vectors of texts, and saved in the format of sentence-transformers."""

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
from bertkit.modeling.heads.base import INPUTS, EncoderHead, with_head
from bertkit.modeling.info import Config, LoadingInfo, Model, get_loading_info
from bertkit.modeling.load import load_pretrained, load_weights
from bertkit.modeling.sentence.encoder import pool
from bertkit.modeling.sentence.folder import Dense, SentenceModules, write_modules
from bertkit.modeling.sentence.losses import INDEPENDENT, VectorLoss
from bertkit.tokens.features import TaskContext, Tensors

# If a batch on a CPU has more tokens, texts are read in chunks, twice each, to save memory.
_MAX_TOKENS = 2**14


class VectorHead:
    """Mixin that reads the texts of a batch, computes their vectors, and in training a loss over the vectors.

    A subclass comes before a class of transformers, and has the method ``_embed``.
    """

    reads = "texts"
    accepts_row_mask = True
    sentence = SentenceModules()
    loss: Any = None
    texts_at_once: int | None = None
    tokens_at_once: int | None = None
    """Tokens, padding included, that fit into the memory of a GPU at once; None if a whole batch does."""
    dropout_stream: Any = None
    """`DropoutStream` that dropout draws from, or None for torch's generator."""

    @property
    def compares_rows(self) -> bool:
        """Whether the loss compares the rows of a batch with one another, so that a batch must not be split."""
        return self.loss is not None and self.loss.name not in INDEPENDENT

    def forward(self, labels: Tensor | None = None, row_mask: Tensor | None = None, **inputs: Tensor) -> Tensors:
        """Compute the ``vectors`` of texts (rows, texts, tokens), and in training their ``loss``.

        A missing text is a single token. Real texts have more, because they have special tokens. In a row that only
        fills the batch, for which the `row_mask` (rows,) is 0, all texts are missing.
        """
        batch = [inputs.get(name) for name in INPUTS]
        missing = derive(inputs["attention_mask"], lambda mask: mask.sum(dim=-1) == 1)
        if row_mask is not None:
            missing = missing | ~row_mask[:, None]
        loss = self._get_loss(inputs["attention_mask"]) if self.training else None  # type: ignore[attr-defined]
        # Each text is read twice, with different dropout.
        if loss is not None and loss.name == "simcse":
            batch = [None if values is None else derive(values, _twice(loss.texts)) for values in batch]
            missing = derive(missing, _twice(loss.texts))
        vectors = self._embed_rows(batch)
        outputs = self._output(vectors)
        return outputs if loss is None else {"loss": loss(vectors, labels, missing, row_mask is not None), **outputs}

    def _get_loss(self, mask: Tensor) -> Any:
        """Return the loss of a batch with this mask, (rows, texts, tokens), or None if the model is not trained."""
        return self.loss

    def _output(self, vectors: Tensor) -> Tensors:
        """Return the outputs for vectors (rows, texts, dimension)."""
        return {"vectors": vectors}

    def _embed_rows(self, batch: list[Any]) -> Tensor:
        """Compute the vectors of all texts of rows, (rows, texts, ...), from tensors (rows, texts, tokens)."""
        vectors = self._embed_texts([None if values is None else values.flatten(0, 1) for values in batch])
        return vectors.view(*batch[0].shape[:2], *vectors.shape[1:])

    def _embed_texts(self, batch: list[Any]) -> Tensor:
        """Compute the vectors of texts (texts, tokens), at once or in chunks that are read again for gradients."""
        count, width = batch[0].shape
        at_once = self._texts_at_once(width, batch[0].device)
        if not torch.is_grad_enabled() or not self.training or at_once >= count:  # type: ignore[attr-defined]
            return self._embed(*batch)
        # Texts are sorted by length, and each chunk is as wide as its longest text. Between its two passes, only the
        # vectors of a chunk are in memory, as in GradCache (Gao et al. 2021): the loss is over the full batch, and
        # gradients are the same.
        lengths = on_host(batch[1]).sum(dim=-1)
        order = lengths.argsort(stable=True)
        vectors = []
        # Layers without padding have to run to their end.
        with set_checkpoint_early_stop(False):
            for indices in torch.split(order, at_once):
                pick = partial(_pick_texts, indices, int(lengths[indices[-1]]))
                chunk = [None if values is None else derive(values, pick) for values in batch]
                vectors.append(checkpoint(self._embed, *chunk, use_reentrant=False, context_fn=self._same_dropout()))
        return self._concatenate(vectors)[order.argsort().to(batch[0].device, non_blocking=True)]

    def _texts_at_once(self, width: int, device: torch.device) -> int:
        if self.texts_at_once is not None:
            return self.texts_at_once
        tokens = self.tokens_at_once or (_MAX_TOKENS if device.type == "cpu" else None)
        return max(1, tokens // width) if tokens else 2**62

    def _same_dropout(self) -> Callable[[], tuple[AbstractContextManager[None], AbstractContextManager[None]]]:
        """Return context managers with which both passes of a chunk draw the same dropout masks."""
        stream: Any = self.dropout_stream
        if stream is None:  # torch's own generator, whose state `checkpoint` restores
            return lambda: (nullcontext(), nullcontext())
        state = stream.state()

        @contextmanager
        def replay() -> Iterator[None]:
            now = stream.state()
            stream.load_state(state)
            try:
                yield
            finally:
                stream.load_state(now)

        return lambda: (nullcontext(), replay())

    def _concatenate(self, vectors: list[Tensor]) -> Tensor:
        return torch.cat(vectors)

    def _embed(self, ids: Tensor, mask: Tensor, segments: Tensor | None) -> Tensor:
        """Compute the representation of texts (texts, tokens), a tensor whose first axis is texts."""
        raise NotImplementedError


def _pick_texts(indices: Tensor, longest: int, values: Tensor) -> Tensor:
    return values[indices.to(values.device, non_blocking=True), :longest]


def _twice(texts: int | None) -> Callable[[Tensor], Tensor]:
    return lambda values: torch.cat([values[:, :texts]] * 2)


class SentenceHead(VectorHead, EncoderHead):
    """Encoder with pooling and a loss over the vectors; it adds no weights."""

    is_saved_as_encoder = True
    """Whether checkpoints contain only the weights of the encoder, with the names that they have there."""

    def __init__(self, config: Config) -> None:
        super(EncoderHead, self).__init__(config)  # type: ignore[call-arg]
        # A pooler is not used, but kept, because programs that load the encoder expect all of its weights.
        setattr(self, self.base_model_prefix, MODEL_MAPPING[type(config)](config))  # type: ignore[attr-defined]
        self.post_init()  # type: ignore[attr-defined]

    def save_pretrained(self, folder: Path | str, state_dict: Tensors | None = None, **named: object) -> None:
        """Write the encoder without this head, with the files that sentence-transformers reads."""
        encoder: Model = self.base_model  # type: ignore[attr-defined]
        prefix = f"{self.base_model_prefix}."  # type: ignore[attr-defined]
        if state_dict is not None:
            names = [name for name in state_dict if name.startswith(prefix)]
            state_dict = {name.removeprefix(prefix): state_dict[name] for name in names}
        encoder.save_pretrained(folder, state_dict=state_dict, **named)
        self._write_modules(Path(folder), encoder.config.hidden_size)

    def _write_modules(self, folder: Path, width: int) -> None:
        write_modules(folder, self.sentence, width)

    def _embed(self, ids: Tensor, mask: Tensor, segments: Tensor | None) -> Tensor:
        return self.pool_states(self.run_encoder(ids, mask, segments).last_hidden_state, mask)

    def pool_states(self, states: Tensor, mask: Tensor) -> Tensor:
        """Compute the vectors of texts, (texts, dimension), from hidden states (texts, tokens, width)."""
        with torch.autocast(states.device.type, enabled=False):
            vectors = pool(states.float(), mask, self.sentence.pooling)[:, : self.sentence.dimension]
            return functional.normalize(vectors, dim=-1) if self.sentence.after else vectors


def load_sentence_head(
    folder: Path,
    modules: SentenceModules,
    loss: VectorLoss | None = None,
    *,
    texts_at_once: int | None = None,
    dropout: float | None = None,
) -> Model:
    """Load the encoder of a model folder in float32, to be trained on the vectors of its texts.

    Args:
        folder: Folder of any encoder, or of sentence-transformers.
        modules: Pooling and what follows it; they are saved with the model.
        loss: Loss of training, or None if the model is not trained.
        texts_at_once: Maximum number of texts to read at once; by default, as many as fit into memory.
        dropout: Probability of dropout in the encoder; by default, the probabilities of the model.

    Raises:
        ModelError: If weights are damaged or do not fit the config, or dense layers follow the pooling.
        RecipeError: If a dimension of the loss is larger than the vectors.
    """
    config = load_config(folder)
    check_dense(modules, folder)
    width = min(config.hidden_size * len(modules.pooling), modules.dimension or 10**9)
    for dimension in loss.dimensions if loss else ():
        if dimension > width:
            raise RecipeError(f"options.dimensions has {dimension}, and the vectors have {width}", "leave it out")
    if dropout is not None:
        set_dropout(config, dropout)
    config_class: type = type(config)
    model, _ = load_weights(with_head(SentenceHead, config_class, "ForSentenceSimilarity"), folder, config)
    configure_head(model, modules, loss, texts_at_once)
    return model


def check_dense(modules: SentenceModules, folder: Path) -> None:
    """Raise ModelError if a dense layer follows the pooling."""
    if any(isinstance(module, Dense) for module in modules.after):
        message = "its vectors go through a dense layer after the pooling, which bertkit does not train"
        raise ModelError(message, "start from another model", file=folder)


def configure_head(model: Model, modules: SentenceModules, loss: Any, texts_at_once: int | None = None) -> None:
    """Set how a model with a `VectorHead` reads texts, and its loss; freeze the pooler."""
    for name, module in model.base_model.named_children():
        if name == "pooler":
            module.requires_grad_(False)
    model.sentence, model.loss, model.texts_at_once = modules, loss, texts_at_once


_NEVER = -1e4  # logit of a label that no row has


class SentenceClassifier(SentenceHead):
    """Pooling, a loss over the vectors, and a linear layer that no gradient reaches."""

    is_saved_as_encoder = False

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        # A layer called `classifier` would be loaded by classes of transformers, which give it the first token to read.
        self.logistic = nn.Linear(config.hidden_size, config.num_labels).requires_grad_(False)
        self.post_init()  # type: ignore[attr-defined]

    def forward(self, labels: Tensor | None = None, row_mask: Tensor | None = None, **inputs: Tensor) -> Tensors:
        """Compute the vectors and logits of rows with one text, (rows, 1, tokens), and in training the loss."""
        output = super().forward(labels, row_mask, **inputs)
        return {**output, "logits": self.logistic(output["vectors"][:, 0])}

    def save_pretrained(self, folder: Path | str, state_dict: Tensors | None = None, **named: object) -> None:
        """Write all weights into one file, including ``logistic``, and the files of sentence-transformers.

        AutoModel and SentenceTransformer load the encoder.
        """
        PreTrainedModel.save_pretrained(self, folder, state_dict=state_dict, **named)
        write_modules(Path(folder), self.sentence, self.config.hidden_size)  # type: ignore[attr-defined]


def load_sentence_classifier(
    folder: Path, modules: SentenceModules, context: TaskContext, loss: VectorLoss | None = None, *, new_head: bool
) -> Model:
    """Load the encoder of a model folder in float32 with a linear layer over its vectors, one logit per label.

    Args:
        folder: Folder of any encoder, or of sentence-transformers.
        modules: Pooling and what follows it; they are saved with the model.
        context: Task context, whose labels are in the order of the logits.
        loss: Loss of training, or None if the model is not trained.
        new_head: Whether the linear layer can be new; `fit_logistic` or `set_head` has to fill it.

    Raises:
        ModelError: If `load_pretrained` raises it, or anything but one pooling and a normalization follows the encoder.
    """
    check_dense(modules, folder)
    if len(modules.pooling) > 1:
        message = f"its vectors come from several poolings: {', '.join(modules.pooling)}"
        raise ModelError(message, "choose one: --set options.pooling=mean", file=folder)
    find_class = partial(with_head, SentenceClassifier, ending="ForTextClassification")
    labels, problem = context.labels, "single_label_classification"
    model = load_pretrained(find_class, folder, context, labels=labels, new_head=new_head, problem_type=problem)
    configure_head(model, replace(modules, dimension=None), loss)  # The layer reads all components.
    # A new layer is fitted, or set, before it computes anything, so nothing starts from random weights.
    if get_loading_info(model).head == "new":
        model.loading_info = LoadingInfo()
    return model


def fit_logistic(
    model: Model, vectors: np.ndarray, labels: Sequence[int], weights: Sequence[float] | None = None
) -> None:
    """Fit the linear layer of a `SentenceClassifier` to vectors (rows, dimension) by logistic regression.

    The regression is scikit-learn's with its defaults, which finds the only minimum without any random draw. A label
    that no row has is never chosen.
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
    # Two labels have one row, the logit of the second label.
    if len(regression.classes_) == 2:
        coefficients, biases = (np.concatenate([-values, values]) / 2 for values in (coefficients, biases))
    set_head(model, {int(label): coefficients[row] for row, label in enumerate(regression.classes_)}, biases)


def set_head(model: Model, weights: dict[int, np.ndarray], biases: np.ndarray) -> None:
    """Set the weights and the bias of each label's logit, and the logits of all others to never."""
    layer = model.logistic
    with torch.no_grad():
        layer.weight.zero_()
        layer.bias.fill_(_NEVER)
        for (label, label_weights), bias in zip(weights.items(), biases, strict=True):
            layer.weight[label] = torch.from_numpy(label_weights).to(layer.weight)
            layer.bias[label] = float(bias)
