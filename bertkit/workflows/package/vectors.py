"""A packaged model whose texts have vectors. This module is copied into packages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertkit.data.json_objects import check_strings
from bertkit.errors import DataError, UsageError, closest, shorten
from bertkit.modeling.sentence.modules import read_modules
from bertkit.modeling.sentence.texts import encode_rows
from bertkit.runtime.packaged_model import CHUNK, ROWS, PackagedModel
from bertkit.vectors.vector_files import truncate


class PackagedVectors(PackagedModel):
    """A model that predicts and embeds, loaded once; the arguments are those of the one that predicts."""

    def embed(self, texts: str | Sequence[str], *, prompt: str | None = None) -> np.ndarray[Any, Any]:
        """Compute the vectors of texts, float32 of shape (texts, dimension).

        Args:
            texts: one or several.
            prompt: name of what is put before each, such as ``query``; None for the model's default.

        Raises:
            DataError: a text is not text.
            UsageError: the model has no such prompt.
        """
        several = [texts] if isinstance(texts, str) else list(texts)
        for number, text in enumerate(several, 1):
            if not isinstance(text, str):
                raise DataError(f"{shorten(repr(text))} is not text", "texts must be strings", file=ROWS, row=number)
            check_strings({"text": text}, ROWS, number)
        modules = read_modules(Path(self.setup.tokenizer.name_or_path))
        if prompt is not None and prompt not in modules.prompts:
            raise UsageError(f"the model has no prompt {prompt!r}", closest(prompt, modules.prompts))
        roles = None if prompt is None else (prompt, prompt)
        embedded: list[Any] = []
        # Some texts at a time: memory holds the states of these, and the vectors of all.
        for start in range(0, len(several), CHUNK):
            features = encode_rows([[text] for text in several[start : start + CHUNK]], self.setup, roles)
            embedded += [output["vectors"][0] for output in self.forward(features)]
        if not embedded:
            return np.zeros((0, 0), dtype=np.float32)
        return truncate(np.stack(embedded), modules.dimension, is_normal=modules.is_normal)
