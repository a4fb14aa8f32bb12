"""Published encoders, and what each is for: the catalog of `bertkit encoders` and of the page about encoders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

FACTS = ("languages", "tokens", "license", "parameters")
"""Facts about an encoder that have a source."""

_FILE = Path(__file__).with_suffix(".yaml")


@dataclass(frozen=True)
class PublishedEncoder:
    """Published encoder on the Hub, as its authors describe it."""

    name: str
    """Name on the Hub, for ``--model``."""
    family: str
    use: str
    languages: tuple[str, ...] | int
    """ISO 639-1 codes, or the number of languages if there are too many to list."""
    tokens: int
    """Maximum length of the input."""
    license: str
    """Name of the license; ``unknown`` if no page confirms it."""
    parameters: int
    """Millions, with embeddings."""
    size: str | None = None
    """The named size of its shape, for pretraining."""
    vectors: bool = False
    """Whether it was trained for vectors of sentences."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Source of each of `FACTS`: a page, ``counted`` from the named size, ``memory``, or ``unknown`` for a license."""

    def reads(self, language: str) -> bool:
        """Return whether it was trained on a language; True if its languages are not listed."""
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
        language: ISO 639-1 code.
        license: Start of the license's name, in any case; ``open`` means any license that allows commercial use.
        min_tokens: Minimum value of the maximum length.
        max_parameters: Maximum number of parameters, in millions.
        vectors: Whether it was trained for vectors of sentences.
    """
    return [
        encoder
        for encoder in map(_as_encoder, yaml.safe_load(_FILE.read_text(encoding="utf-8")))
        if (language is None or encoder.reads(language.lower()))
        and (license is None or _is_licensed(encoder, license.lower()))
        and encoder.tokens >= min_tokens
        and (max_parameters is None or encoder.parameters <= max_parameters)
        and (vectors is None or encoder.vectors == vectors)
    ]


def _is_licensed(encoder: PublishedEncoder, license: str) -> bool:
    name = encoder.license.lower()
    return "-nc" not in name and name != "unknown" if license == "open" else name.startswith(license)


def as_table(encoders: list[PublishedEncoder]) -> list[dict[str, str]]:
    """Return the rows of a table, for the terminal and for the page."""
    return [
        {
            "encoder": encoder.name,
            "parameters": f"{encoder.parameters:,}M",
            "tokens": f"{encoder.tokens:,}",
            "languages": encoder.language_text,
            "license": encoder.license,
            "for": encoder.use,
        }
        for encoder in encoders
    ]


def _as_encoder(entry: Mapping[str, Any]) -> PublishedEncoder:
    languages, counted = entry["languages"], {"parameters": "counted"} if "size" in entry else {}
    languages = languages if isinstance(languages, int) else tuple(languages)
    sources = {**dict.fromkeys(FACTS, "memory"), **counted, **entry.get("sources", {})}
    return PublishedEncoder(**{**entry, "languages": languages, "sources": sources})
