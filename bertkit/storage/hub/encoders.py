"""Published encoders, and what each is for: the catalog of `bertkit encoders` and of the page about encoders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

FACTS = ("languages", "tokens", "license", "parameters")
"""What a source can be wrong about."""

_FILE = Path(__file__).with_suffix(".yaml")


@dataclass(frozen=True)
class PublishedEncoder:
    """An encoder on the hub, as its authors describe it."""

    name: str
    """On the hub, as ``--model`` takes it."""
    family: str
    use: str
    languages: tuple[str, ...] | int
    """Codes of ISO 639-1; or how many, where there are too many to list."""
    tokens: int
    """Its longest input."""
    license: str
    parameters: int
    """Millions, with embeddings."""
    size: str | None = None
    """The named size of its shape, for pretraining."""
    vectors: bool = False
    """Whether it was trained for vectors of sentences."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Where each of `FACTS` is from: a page, ``counted`` from the named size, or ``memory``."""

    def reads(self, language: str) -> bool:
        """Tell whether it was trained on a language; one for more languages than are listed may have been."""
        return isinstance(self.languages, int) or language in self.languages

    @property
    def language_text(self) -> str:
        """The languages in a few characters."""
        if isinstance(self.languages, int):
            return f"{self.languages:,}"
        return ", ".join(self.languages) if len(self.languages) <= _FEW else str(len(self.languages))


_FEW = 3  # languages that are listed by name


def list_encoders(
    *,
    language: str | None = None,
    license: str | None = None,
    min_tokens: int = 0,
    max_parameters: float | None = None,
    vectors: bool | None = None,
) -> list[PublishedEncoder]:
    """List the encoders that meet all conditions.

    Args:
        language: a code of ISO 639-1.
        license: the beginning of its name, in any case; ``open`` is all that allow commercial use.
        min_tokens: the least length of inputs.
        max_parameters: in millions.
        vectors: whether it was trained for vectors of sentences.
    """
    return [
        one
        for one in map(_as_encoder, yaml.safe_load(_FILE.read_text(encoding="utf-8")))
        if (language is None or one.reads(language.lower()))
        and (license is None or _is_licensed(one, license.lower()))
        and one.tokens >= min_tokens
        and (max_parameters is None or one.parameters <= max_parameters)
        and (vectors is None or one.vectors == vectors)
    ]


def _is_licensed(encoder: PublishedEncoder, license: str) -> bool:
    name = encoder.license.lower()
    return "-nc" not in name if license == "open" else name.startswith(license)


def as_table(encoders: list[PublishedEncoder]) -> list[dict[str, str]]:
    """Return the rows of a table, for the terminal and for the page."""
    return [
        {
            "encoder": one.name,
            "parameters": f"{one.parameters:,}M",
            "tokens": f"{one.tokens:,}",
            "languages": one.language_text,
            "license": one.license,
            "for": one.use,
        }
        for one in encoders
    ]


def _as_encoder(entry: Mapping[str, Any]) -> PublishedEncoder:
    languages, counted = entry["languages"], {"parameters": "counted"} if "size" in entry else {}
    languages = languages if isinstance(languages, int) else tuple(languages)
    sources = {**dict.fromkeys(FACTS, "memory"), **counted, **entry.get("sources", {})}
    return PublishedEncoder(**{**entry, "languages": languages, "sources": sources})
