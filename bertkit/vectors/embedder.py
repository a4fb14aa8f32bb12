"""Texts to vectors, with a model that is loaded once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bertkit import hub
from bertkit.errors import UsageError, closest
from bertkit.modeling.sentence.modules import POOLING_MODES, Normalize, SentenceModules, read_modules
from bertkit.progress import SILENT, Progress, stage

if TYPE_CHECKING:
    import numpy as np
    from transformers import PreTrainedTokenizerFast

    from bertkit.hardware.precision import Machine
    from bertkit.modeling.sentence.encoder import SentenceEncoder

_CHARACTERS = 2**20  # of the texts that are tokenized and sorted together


class _Loaded(NamedTuple):
    encoder: SentenceEncoder
    tokenizer: PreTrainedTokenizerFast
    machine: Machine
    autocast: str
    """Precision that the encoder leaves to autocast."""


@dataclass(frozen=True)
class Embedder:
    """A model that turns texts into vectors, loaded when the first text comes.

    Called with a batch of columns, it returns the batch with a column of vectors. So it is what ``datasets.map`` (with
    ``batched=True``), Ray Data and Spark take. A copy in another process loads the model there.

    >>> embedder = Embedder("demo")
    >>> embedder.encode(["The cat sleeps.", "A dog barks."]).shape
    (2, 128)
    """

    model: str
    """Model folder, run folder, folder of sentence-transformers, hub name, or ``demo``."""
    pooling: str | None = None
    """mean, cls, max, ...; None for that of the folder, or the mean."""
    normalize: bool | None = None
    """Whether vectors have length 1; None for what the folder says."""
    dimension: int | None = None
    """The first components that are kept, of a model that was trained for it (Matryoshka); None for all."""
    max_length: int | None = None
    """Tokens that a text is truncated to; None for that of the folder."""
    prompt: str | None = None
    """Name of one of the folder's prompts, such as ``query``; None for its default, which mostly is none."""
    precision: str = "auto"
    column: str = "text"
    """Column of a batch with the texts."""
    output: str = "embedding"
    """Column of a batch that gets the vectors."""

    @cached_property
    def folder(self) -> Path:
        """The folder of the model."""
        return hub.find_model(self.model)

    @cached_property
    def modules(self) -> SentenceModules:
        """What the folder says, changed by the options.

        Raises:
            UsageError: an option names what the model does not have.
        """
        modules = read_modules(self.folder)
        if self.pooling is not None:
            if self.pooling not in POOLING_MODES:
                raise UsageError(f"pooling {self.pooling!r} is not known", closest(self.pooling, POOLING_MODES))
            modules = replace(modules, pooling=(self.pooling,))
        if self.normalize is not None:
            rest = tuple(module for module in modules.after if not isinstance(module, Normalize))
            modules = replace(modules, after=(*rest, Normalize()) if self.normalize else rest)
        if self.prompt is not None:
            if self.prompt not in modules.prompts:
                raise UsageError(f"the model has no prompt {self.prompt!r}", closest(self.prompt, modules.prompts))
            modules = replace(modules, default_prompt=self.prompt)
        return replace(
            modules, dimension=self.dimension or modules.dimension, max_length=self.max_length or modules.max_length
        )

    @property
    def prompt_text(self) -> str:
        """What is put before every text."""
        return self.modules.prompts.get(self.modules.default_prompt or "", "")

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The tokenizer, whose ``model_max_length`` is what texts are truncated to."""
        from bertkit.modeling.load import load_tokenizer

        tokenizer = load_tokenizer(self.folder)
        tokenizer.model_max_length = min(int(tokenizer.model_max_length), self.modules.max_length or 10**9)
        return tokenizer

    @cached_property
    def _loaded(self) -> _Loaded:
        from bertkit.hardware.precision import product_widths
        from bertkit.modeling.architectures import detect_machine
        from bertkit.modeling.load import read_config
        from bertkit.modeling.sentence.encoder import load_for_vectors

        config = read_config(self.folder)
        machine = detect_machine(self.precision, config["model_type"], product_widths(config))
        encoder, precision = load_for_vectors(self.folder, self.modules, machine)
        return _Loaded(encoder, self.tokenizer, machine, precision)

    def describe(self) -> dict[str, Any]:
        """Return what vectors must have in common to be compared: model, pooling, dimension, length, but no prompt."""
        from bertkit.modeling.load import fingerprint

        modules = self.modules
        return {
            "model": fingerprint(self.folder),
            "pooling": list(modules.pooling),
            "normalize": any(isinstance(module, Normalize) for module in modules.after),
            "dimension": modules.dimension,
            "max_length": int(self.tokenizer.model_max_length),
        }

    def with_prompt(self, name: str) -> Embedder:
        """Return this embedder with another prompt of the model, such as ``query``; it shares what is loaded."""
        other = replace(self, prompt=name if name in self.modules.prompts else None)
        for shared in ("folder", "tokenizer", "_loaded"):
            other.__dict__[shared] = getattr(self, shared)
        return other

    def encode(self, texts: Sequence[str], *, progress: Progress = SILENT) -> np.ndarray[Any, Any]:
        """Compute the vectors of texts, float32 of shape (texts, dimension), in the order of the texts.

        Texts are tokenized and sorted by length some at a time, so that many need no more memory than their vectors.
        """
        import numpy as np

        from bertkit.hardware.precision import use_matmul_backend

        use_matmul_backend(self._loaded.machine)
        vectors, done = np.zeros((len(texts), 0), dtype=np.float32), 0

        def tick(rows: int) -> None:
            nonlocal done
            done += rows
            progress.update(done, {})

        with stage(progress, "embedding", len(texts)):
            for start, end in split_texts(texts):
                some = self._encode(texts[start:end], tick)
                if not start:  # the first tell the dimension
                    vectors = np.empty((len(texts), some.shape[1]), dtype=np.float32)
                vectors[start:end] = some
        return vectors

    def _encode(self, texts: Sequence[str], tick: Callable[[int], None]) -> np.ndarray[Any, Any]:
        """Compute the vectors of some texts; `tick` is called with the number of each batch's."""
        import numpy as np

        from bertkit.evaluation.forward import forward
        from bertkit.tokens.features import find_template

        encoder, tokenizer, _, autocast = self._loaded
        begun = [f"{self.prompt_text}{text}" for text in texts]
        if self.modules.lowercase:
            begun = [text.lower() for text in begun]
        encoded = tokenizer(begun, truncation=True, return_attention_mask=False, split_special_tokens=True)
        features = [{name: values[number] for name, values in encoded.items()} for number in range(len(begun))]
        prompt_tokens = 0
        if self.prompt_text and not self.modules.include_prompt:
            template = find_template(tokenizer, pair=False)
            prompt_tokens = len(template.before) + len(
                tokenizer(self.prompt_text, add_special_tokens=False)["input_ids"]
            )
        outputs, _ = forward(encoder, features, _collator(tokenizer, prompt_tokens), precision=autocast, tick=tick)
        vectors = np.stack([output["embedding"] for output in outputs])
        return vectors if self.modules.dimension is None else self._truncate(vectors)

    def _truncate(self, vectors: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Keep the first components, and make vectors that had length 1 have it again."""
        import numpy as np

        if self.modules.dimension > vectors.shape[1]:
            raise UsageError(f"dimension {self.modules.dimension}", f"the model's vectors have {vectors.shape[1]}")
        vectors = vectors[:, : self.modules.dimension]
        if any(isinstance(module, Normalize) for module in self.modules.after):
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return a batch of columns with the vectors of its texts."""
        return {**batch, self.output: self.encode([str(text) for text in batch[self.column]])}

    def __getstate__(self) -> dict[str, Any]:
        """Return the options alone, so that another process loads the model itself."""
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}


def split_texts(texts: Sequence[str], characters: int = _CHARACTERS) -> Iterator[tuple[int, int]]:
    """Split texts into stretches of at most so many characters, or one text: where each begins, and where it ends.

    >>> list(split_texts(["abcd", "ef", "g", "hi"], characters=3))
    [(0, 1), (1, 3), (3, 4)]
    """
    start, total = 0, 0
    for number, text in enumerate(texts):
        total += len(text)
        if total > characters and number > start:
            yield start, number
            start, total = number, len(text)
    if texts:
        yield start, len(texts)


def _collator(tokenizer: PreTrainedTokenizerFast, prompt_tokens: int) -> Any:
    """Build the collator that pads texts on the right to the longest of a batch."""
    import numpy as np
    import torch

    padding = {"input_ids": tokenizer.pad_token_id, "token_type_ids": tokenizer.pad_token_type_id}

    def collate(features: Sequence[dict[str, Any]]) -> dict[str, Any]:
        lengths = np.array([len(feature["input_ids"]) for feature in features])
        batch = {}
        for name in [name for name in padding if name in features[0]]:
            values = np.full((len(features), lengths.max()), padding[name], dtype=np.int64)
            for line, feature, length in zip(values, features, lengths, strict=True):
                line[:length] = feature[name]
            batch[name] = torch.from_numpy(values)
        batch["attention_mask"] = torch.from_numpy((np.arange(lengths.max()) < lengths[:, None]).astype(np.int64))
        if prompt_tokens:
            batch["prompt_tokens"] = torch.tensor(prompt_tokens)
        return batch

    return collate
