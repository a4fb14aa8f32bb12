"""Texts to vectors, with a model that is loaded once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bertkit.errors import DataError, ModelError, UsageError
from bertkit.hardware.precision import ComputeConfig, product_widths, use_matmul_backend
from bertkit.modeling.architectures import detect_machine
from bertkit.modeling.checkpoint import fingerprint, read_config
from bertkit.modeling.layers import read_layer_choice
from bertkit.modeling.sentence.folder import (
    Dense,
    SentenceModules,
    find_unsupported_modules,
    is_sentence_folder,
    read_modules,
    read_settings,
    with_options,
)
from bertkit.modeling.tokenizer import load_sentence_tokenizer
from bertkit.progress import Progress, stage, with_progress
from bertkit.storage import hub
from bertkit.storage.exports import is_exported
from bertkit.storage.fingerprints import json_fingerprint
from bertkit.tokens.features import Tokenizer
from bertkit.vectors.batches import count_prompt_tokens, split_texts, text_collator, tokenize

if TYPE_CHECKING:
    import numpy as np

    from bertkit.modeling.sentence.encoder import SentenceEncoder
    from bertkit.vectors.backends import ExportedVectors, LibraryModel


class _Loaded(NamedTuple):
    encoder: SentenceEncoder
    tokenizer: Tokenizer
    machine: ComputeConfig
    autocast: str
    """Precision that the encoder leaves to autocast."""


@dataclass(frozen=True)
class Embedder:
    """A model that turns texts into vectors, loaded when the first text comes.

    Called with a batch of columns, it returns the batch with a column of vectors. So it is what ``datasets.map`` (with
    ``batched=True``), Ray Data and Spark take. A copy in another process loads the model there.

    Examples:
        >>> embedder = Embedder("demo")
        >>> embedder.encode(["The cat sleeps.", "A dog barks."]).shape
        (2, 128)
    """

    model: str
    """Model folder, run folder, exported folder, folder of sentence-transformers, Hub name, or ``demo``."""
    pooling: str | None = None
    """``mean``, ``cls``, ``max``, ...; by default, the pooling of the folder, or the mean."""
    normalize: bool | None = None
    """Whether vectors have length 1; by default, as in the folder."""
    dimension: int | None = None
    """Number of first components to keep (Matryoshka); by default, all."""
    max_length: int | None = None
    """Maximum tokens per text; by default, the folder's."""
    prompt: str | None = None
    """Name of one of the folder's prompts, such as ``query``; by default, the folder's default prompt, if any."""
    prefix: str | None = None
    """Text to put before every text, instead of a named prompt."""
    layers: str = "last"
    """Layers whose hidden states are pooled, such as ``mean_last_4``; see `read_layer_choice`."""
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
        """Modules of the folder, changed by the options.

        Raises:
            UsageError: If an option names a part that the model does not have.
        """
        # If modules are unknown, only the settings can be read: prompts, length and similarity.
        is_known = is_exported(self.folder) or not self.unknown
        modules = read_modules(self.folder) if is_known else read_settings(self.folder)
        options = (self.pooling, self.normalize, None if self.layers == "last" else self.layers)
        if self.unknown and any(value is not None for value in options):
            message = f"the model has custom modules: {', '.join(self.unknown)}"
            raise UsageError(message, "leave out the pooling, normalization and layers", file=self.folder)
        read_layer_choice(self.layers)
        if self.prompt is not None and self.prefix is not None:
            raise UsageError("the name of a prompt and its text", "give one of them")
        modules = with_options(modules, pooling=self.pooling, normalize=self.normalize, prompt=self.prompt)
        dimension, max_length = self.dimension or modules.dimension, self.max_length or modules.max_length
        return replace(modules, dimension=dimension, max_length=max_length)

    @cached_property
    def unknown(self) -> list[str]:
        """Parts of the model that only sentence-transformers or a graph computes; mostly none."""
        if is_exported(self.folder):
            return ["the graph of an exported model"]
        return find_unsupported_modules(self.folder) if is_sentence_folder(self.folder) else []

    @property
    def prompt_text(self) -> str:
        """Text that is put before every text."""
        if self.prefix is not None:
            return self.prefix
        return self.modules.prompts.get(self.modules.default_prompt or "", "")

    @cached_property
    def config(self) -> dict[str, Any]:
        """Content of the encoder's ``config.json``; in a folder of sentence-transformers, it can be a decoder's.

        Raises:
            ModelError: If the file is damaged, or weights or tokenizer are missing.
        """
        return read_config(self.folder / self.modules.subfolder, decoders=is_sentence_folder(self.folder))

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer; its ``model_max_length`` is the maximum number of tokens per text.

        Raises:
            UsageError: If the model cannot read as many tokens as `max_length`.
        """
        if self.unknown:
            return self.library.tokenizer

        folder, decoders = self.folder / self.modules.subfolder, is_sentence_folder(self.folder)
        tokenizer = load_sentence_tokenizer(folder, self.modules, decoders=decoders)
        if (self.max_length or 0) > tokenizer.model_max_length:
            limit = f"the model reads {tokenizer.model_max_length:,} tokens"
            raise UsageError(f"a length of {self.max_length:,} tokens", limit, file=self.folder)
        return tokenizer

    @cached_property
    def library(self) -> LibraryModel | ExportedVectors:
        """Backend of a model with `unknown` parts: sentence-transformers, or a graph."""
        from bertkit.vectors.backends import ExportedVectors, LibraryModel

        if is_exported(self.folder):
            return ExportedVectors(self.folder, self.modules)
        return LibraryModel(self.folder, self.modules.max_length)

    @cached_property
    def _loaded(self) -> _Loaded:
        from bertkit.modeling.sentence.encoder import LayerCombination, load_for_vectors

        machine = detect_machine(self.precision, self.config["model_type"], product_widths(self.config))
        machine.announce()
        encoder, autocast = load_for_vectors(self.folder / self.modules.subfolder, self.modules, machine)
        if self.layers != "last":
            encoder.encoder = LayerCombination(encoder.encoder, read_layer_choice(self.layers))
        return _Loaded(encoder, self.tokenizer, machine, autocast)

    def load(self) -> tuple[str, str]:
        """Load the model before the first text, and return the precision that it computes in, and the reason."""
        if self.unknown:
            precision, reason = self.library.precision
            return precision, f"{reason}, for {', '.join(self.unknown)}"
        return self._loaded.machine.precision, self._loaded.machine.reason

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of configs, weights and vocabulary, including dense layers after the pooling."""
        if self.unknown:
            return self.library.fingerprint
        # The weights of dense layers are in separate folders.
        folders = [self.folder / self.modules.subfolder]
        folders += [module.folder for module in self.modules.transforms if isinstance(module, Dense)]
        return fingerprint(folders[0]) if len(folders) == 1 else json_fingerprint(list(map(fingerprint, folders)))

    def describe(self) -> dict[str, Any]:
        """Return the properties that comparable vectors share.

        These are the model, the operations on its states, and its prompts. The prompt in use is left out, because
        queries and documents have different ones.
        """
        modules = self.modules
        return {
            "model": self.fingerprint,
            "pooling": list(modules.pooling),
            "layers": self.layers,
            "normalize": modules.is_normalized,
            "truncate_dim": modules.dimension,
            "max_length": int(self.tokenizer.model_max_length),
            "prompts": dict(modules.prompts),
            "include_prompt": modules.include_prompt,
        }

    def with_prompt(self, name: str) -> Embedder:
        """Return this embedder with another prompt of the model, such as ``query``; it shares what is loaded."""
        prompted = replace(self, prompt=name if name in self.modules.prompts else None, prefix=None)
        # Cached properties are stored in `__dict__`, so copying its entries shares the loaded objects.
        for shared in ("folder", "unknown", "library") if self.unknown else ("folder", "tokenizer", "_loaded"):
            prompted.__dict__[shared] = getattr(self, shared)
        return prompted

    @with_progress
    def encode(self, texts: Sequence[str], *, progress: Progress | None = None) -> np.ndarray:
        """Compute the vectors of texts, float32 of shape (texts, dimension), in the order of the texts.

        Raises:
            DataError: If a text is not a string.
            ModelError: If a vector is not finite.
            UsageError: If the prompt leaves no token for a text.
        """
        import numpy as np

        wrong_text = next((index for index, text in enumerate(texts) if not isinstance(text, str)), None)
        if wrong_text is not None:
            raise DataError(f"text {wrong_text + 1} is {texts[wrong_text]!r}, not text", "texts must be strings")
        vectors = np.zeros((len(texts), 0), dtype=np.float32)
        with stage("embedding", len(texts)) as advance:
            # Encode groups of texts, so that their tokens and hidden states need little memory next to the vectors.
            for start, end in split_texts(texts):
                group_vectors = self._encode_group(texts[start:end], advance)
                if not start:  # Only the first vectors show the dimension.
                    vectors = np.empty((len(texts), group_vectors.shape[1]), dtype=np.float32)
                vectors[start:end] = group_vectors
        wrong_rows = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
        if len(wrong_rows):
            raise _not_finite(f"the vector of text {wrong_rows[0] + 1}", self.folder)
        return vectors

    def _encode_group(self, texts: Sequence[str], advance: Callable[[int], None]) -> np.ndarray:
        """Compute the vectors of a group of texts; `advance` is called with the number of texts of each batch."""
        import numpy as np

        from bertkit.vectors.vector_files import truncate

        if self.unknown:
            vectors = self.library.encode(texts, self.prompt_text)
            advance(len(texts))
        else:
            from bertkit.evaluation.forward import forward

            encoder, tokenizer, machine, autocast = self._loaded
            use_matmul_backend(machine)
            # Some models leave the tokens of the prompt out of the mean.
            prompt_tokens = count_prompt_tokens(tokenizer, self.prompt_text)
            features = tokenize([f"{self.prompt_text}{text}" for text in texts], tokenizer)
            collate = text_collator(tokenizer, 0 if self.modules.include_prompt else prompt_tokens)
            outputs, _ = forward(encoder, features, collate, precision=autocast, advance=advance)
            vectors = np.stack([output["embedding"] for output in outputs])
        return truncate(vectors, self.modules.dimension, is_normalized=self.modules.is_normalized)

    def states(self, features: Sequence[Mapping[str, Any]]) -> list[np.ndarray]:
        """Compute the hidden states of the tokens of features, arrays (tokens, width), with no prompt and no pooling.

        Raises:
            ModelError: If a state is not finite.
        """
        import numpy as np

        from bertkit.evaluation.forward import forward
        from bertkit.modeling.sentence.encoder import TokenStates

        encoder, tokenizer, machine, autocast = self._loaded
        use_matmul_backend(machine)
        model, inputs = TokenStates(encoder.encoder), [dict(feature) for feature in features]
        outputs, _ = forward(model, inputs, text_collator(tokenizer), precision=autocast)
        pairs = zip(outputs, features, strict=True)
        # Remove the padding, which makes most texts as long as the longest one of their batch.
        states = [output["states"][: len(feature["input_ids"])] for output, feature in pairs]
        if not all(np.isfinite(feature_states).all() for feature_states in states):
            raise _not_finite("a hidden state", self.folder)
        return states

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return a batch of columns with the vectors of its texts."""
        return {**batch, self.output: self.encode(list(batch[self.column]))}

    def __getstate__(self) -> dict[str, Any]:
        """Return only the options, so that another process loads the model itself."""
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}


def _not_finite(subject: str, folder: Path) -> ModelError:
    return ModelError(
        f"{subject} is not finite (NaN or infinity)", "try --precision fp32, or another model", file=folder
    )
