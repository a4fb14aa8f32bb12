"""Recipe keys under other names: those of the last release, which are read with a warning, and those of other tools."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from bertkit.progress import log

KEYS = {
    "training.short_last_layer": "training.cls_only_last_layer",
    "training.trim_vocabulary": "training.occurring_embeddings",
    "training.copies": "training.dupe_factor",
}
"""Old dotted key -> new one, in the same section."""
VALUES = {"training.packing": {"apart": "documents"}}
"""Dotted key -> old value -> new one."""


@cache
def decided_arguments() -> dict[str, str]:
    """Read which fields of transformers' TrainingArguments bertkit decides: name -> what decides it."""
    return _read_names("training_arguments")


@cache
def other_names() -> dict[str, str]:
    """Read what other tools call a key of a recipe, whatever section they have it in: name -> bertkit's key."""
    decided = {name: key for name, key in decided_arguments().items() if key != "bertkit itself"}
    return decided | _read_names("other_tools")


@cache
def other_options() -> dict[str, str]:
    """Read what other programs call an option: its name, with underscores -> bertkit's option, or its recipe key."""
    return other_names() | _read_names("options")


def _read_names(table: str) -> dict[str, str]:
    tables = yaml.safe_load(Path(__file__).with_name("other_names.yaml").read_text(encoding="utf-8"))
    return {name: key for key, names in tables[table].items() for name in names}


def rename_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return overrides (dotted key -> value) under the new names, with a warning for each old one."""
    return dict(_rename_key(key, value) for key, value in changes.items())


def rename_keys(values: Mapping[str, Any], *, warn: bool = True) -> dict[str, Any]:
    """Return a recipe's values under the new names; with `warn`, log a warning for each old one."""
    renamed: dict[str, Any] = {}
    for section, content in values.items():
        if not isinstance(content, Mapping):
            renamed[section] = content
            continue
        renamed[section] = {}
        for key, value in content.items():
            new_key, new_value = _rename_key(f"{section}.{key}", value, warn=warn)
            renamed[section][new_key.removeprefix(f"{section}.")] = new_value
    return renamed


def _rename_key(key: str, value: object, *, warn: bool = True) -> tuple[str, object]:
    """Return a dotted key and its value under their new names."""
    new_key = KEYS.get(key, key)
    new_value = VALUES.get(key, {}).get(value, value) if isinstance(value, str) else value
    if warn and (new_key, new_value) != (key, value):
        old, new = (key, new_key) if new_key != key else (f"{key}={value}", f"{key}={new_value}")
        log.warning(f"{old} is now called {new}; the next release will not read the old name")
    return new_key, new_value
