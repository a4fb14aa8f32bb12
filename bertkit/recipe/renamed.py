"""Recipe keys and values that had another name before: each is read for one release, with one line of warning."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

log = logging.getLogger("bertkit")

KEYS = {
    "training.short_last_layer": "training.cls_only_last_layer",
    "training.trim_vocabulary": "training.occurring_embeddings",
    "training.dupe_factor": "training.dupe_factor",
}
"""Old dotted key -> new one; both lie in the same section."""
VALUES = {"training.packing": {"apart": "documents"}}
"""Dotted key -> old value -> new one."""


def rename_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return overrides (dotted key -> value) under the names of today, and warn of each old one."""
    renamed = {}
    for key, value in changes.items():
        new, meant = _rename(key, value)
        renamed[new] = meant
    return renamed


def rename_keys(values: Mapping[str, Any], *, warn: bool = True) -> dict[str, Any]:
    """Return a recipe's values under the names of today; with `warn`, say so of each old one."""
    renamed: dict[str, Any] = {}
    for section, content in values.items():
        if not isinstance(content, Mapping):
            renamed[section] = content
            continue
        renamed[section] = {}
        for key, value in content.items():
            new, meant = _rename(f"{section}.{key}", value, warn=warn)
            renamed[section][new.partition(".")[2]] = meant
    return renamed


def _rename(key: str, value: Any, *, warn: bool = True) -> tuple[str, Any]:
    new, meanings = KEYS.get(key, key), VALUES.get(key, {})
    meant = meanings.get(value, value) if isinstance(value, str) else value
    if warn and (new, meant) != (key, value):
        old, wanted = (key, new) if new != key else (f"{key}={value}", f"{key}={meant}")
        log.warning(f"{old} is now called {wanted}; the old name goes with the next release")
    return new, meant
