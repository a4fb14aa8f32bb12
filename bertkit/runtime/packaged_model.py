"""A packaged model: what `predict` does with an exported folder, by the same functions, and nothing that it can spare.

This module is copied into packages, so it imports only what a package may have.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bertkit.data.columns import Columns
from bertkit.data.json_objects import check_strings
from bertkit.errors import DataError, UnavailableError, located, shorten
from bertkit.runtime.forward import forward_exported
from bertkit.runtime.model import open_exported
from bertkit.runtime.sessions import PACKAGES
from bertkit.runtime.tokenizer import open_tokenizer
from bertkit.storage.exports import check_export, read_export
from bertkit.tokens.features import Feature, Setup, count_tokens

SETTINGS = "settings.json"
CHUNK = 4096  # rows in memory at a time, as `predict` has

ROWS = "row"  # what stands before the number of a row in messages
MODEL = Path(__file__).parents[1] / "model"


class PackagedSettings(SimpleNamespace):
    """What predictions depend on of a recipe, or of one of its sections: it changes as `bertkit.recipe.Recipe` does."""

    def model_copy(self, *, update: Mapping[str, Any]) -> PackagedSettings:
        """Return these settings with others in place of some."""
        return type(self)(**{**vars(self), **update})

    def changed(self, section: str, **values: object) -> PackagedSettings:
        """Return these settings with other values in one of their sections."""
        return self.model_copy(update={section: getattr(self, section).model_copy(update=values)})


class PackagedModel:
    """A model that predicts, loaded once.

    Args:
        folder: of the graph, the tokenizer and the settings; that of the package by default.
        check: compare all files with their checksums; without it, of those above 4 MB only the sizes.

    Raises:
        ModelError: a file is missing, or not as it was written.
        UnavailableError: the package that runs the graph is not installed.
    """

    def __init__(self, folder: Path = MODEL, *, check: bool = False) -> None:
        export = read_export(folder)
        check_export(folder, contents=check)
        for package in (PACKAGES[export.backend], "tokenizers"):
            if find_spec(package) is None:
                raise UnavailableError(f"the package {package} is not installed", "pip install -r requirements.txt")
        self.settings: dict[str, Any] = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        recipe = self.settings["recipe"]
        sections = {name: PackagedSettings(**recipe[name]) for name in ("data", "training")}
        settings: Any = PackagedSettings(**{**recipe, **sections})
        tokenizer: Any = open_tokenizer(folder, export.tokenizer)
        self.setup = Setup(settings, tokenizer, tuple(self.settings["labels"]), inference=True, arrays=True)
        self.model = open_exported(folder)
        top = (__package__ or "").rpartition(".")[0]
        self.task = import_module(f"{top}.tasks.{export.task}")

    def predict(self, rows: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Predict rows, or texts where a row is a text, and return one record per row.

        Args:
            rows: dictionaries with the columns of the task or of the data that the model was trained on, or texts; one
                or several.

        Raises:
            DataError: a column is missing, or a value is of a wrong type; it says in which row.
        """
        several = [rows] if isinstance(rows, (str, Mapping)) else list(rows)
        records: list[dict[str, Any]] = []
        for start in range(0, len(several), CHUNK):
            records += self._predict(several[start : start + CHUNK], start)
        return records

    def _predict(self, rows: Sequence[Any], start: int) -> list[dict[str, Any]]:
        canonical, data = [], self.setup.recipe.data
        for number, row in enumerate(rows, start + 1):
            with located(file=ROWS, row=number):
                read = canonical_row(row, self.task.COLUMNS, data.columns, data.unread)
                check_strings(read, ROWS, number)
                canonical.append(self.task.read(read, self.setup.recipe) or read)
        features = self.task.encode(canonical, self.setup)
        found = self.task.decode(self.forward(features), features, canonical, self.setup)
        return [{name: value for name, value in one.items() if not name.startswith("_")} for one in found]

    def forward(self, features: Sequence[Feature]) -> list[dict[str, Any]]:
        """Compute the outputs of features."""
        lengths = [count_tokens(feature) for feature in features]
        return forward_exported(self.model, features, lengths, self.task.collator(self.setup))


def canonical_row(
    row: object, columns: Columns, mapped: Mapping[str, str | list[str]], unread: Sequence[str] = ()
) -> dict[str, Any]:
    """Return a row with the columns that a task family reads.

    Args:
        row: a text, where it is all that the family reads, or a dictionary. Its columns have the names of the data that
            the model was trained on, or else canonical ones.
        columns: of the task family.
        mapped: canonical column -> its name in that data, or the names of several.
        unread: columns that the model was trained without.

    Raises:
        DataError: a column is missing or was not there in training, or the row is neither.
    """
    needed = [*columns.given, *(name for name in columns.optional if name in mapped)]
    if isinstance(row, str):
        names = [columns.text_instead.get(name, name) for name in needed]
        if names != ["text"]:
            raise DataError("a text alone", f"give {' and '.join(names)}, in a dictionary or a line of JSON")
        return {"text": row}
    if not isinstance(row, Mapping):
        raise DataError(f"{shorten(repr(row))} is no row", "give a text, or a dictionary of columns")
    for name in columns.optional:
        if name in row and name in unread and name not in mapped:
            raise DataError(f"the model was trained without {name}", "leave it out", column=name)
    canonical = {name: row[name] for name in ("id",) if name in row}
    for name in needed:
        for candidate in filter(None, (name, columns.text_instead.get(name))):
            own = mapped.get(candidate, candidate)
            sources = next((names for names in (_as_list(own), [candidate]) if all(one in row for one in names)), None)
            if sources is not None:
                canonical[candidate] = row[sources[0]] if len(sources) == 1 else [row[source] for source in sources]
                break
        else:
            there = ", ".join(map(repr, row)) or "none"
            raise DataError(f"no column {name!r}; there are: {shorten(there, 200)}", "name it so, or add it")
    return canonical


def _as_list(names: str | list[str]) -> list[str]:
    return [names] if isinstance(names, str) else names
