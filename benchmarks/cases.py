"""Cases: the recipe, model, rows and settings that all engines of a comparison train."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

FOLDERS = {"ner": "conll2003", "pos": "ud_en_ewt", "mlm": "mlm_text"}
"""Folders of the rows of recipes, if the names differ."""
DEFAULTS: dict[str, dict[str, int]] = {
    "squad": {"limit": 3000, "batch_size": 12},  # the batch size of scripts for SQuAD
    "mlm": {"batch_size": 16, "max_length": 128},
}
MAX_STEPS = 100_000  # more than any measurement of pretraining runs


@dataclass(frozen=True)
class JsonFile:
    """Settings that one program writes to a file and another reads."""

    def write(self, folder: Path) -> Path:
        """Write the file into a folder, and return its path."""
        file = folder / "case.json"
        file.write_text(json.dumps(asdict(self)), encoding="utf-8")
        return file

    @classmethod
    def read(cls, file: str) -> Self:
        """Read the file."""
        return cls(**json.loads(Path(file).read_text(encoding="utf-8")))


@dataclass(frozen=True)
class Case(JsonFile):
    """A comparison of a recipe or of pretraining (`mlm`); `limit` is the maximum rows per split."""

    recipe: str
    model: str
    data: str
    limit: int | None = None
    batch_size: int | None = None
    epochs: float | None = None
    seed: int = 42
    max_length: int | None = None

    def changes(self) -> dict[str, Any]:
        """Return the case as changes of its recipe."""
        changes: dict[str, Any] = {
            "model": self.model,
            "data.source": self.data,
            "data.files": {},
            "data.limit": self.limit,
            "training.batch_size": self.batch_size,
            "training.epochs": self.epochs,
            "training.seed": self.seed,
            "training.max_length": self.max_length,
        }
        if self.recipe == "mlm":
            changes |= {"data.files": None, "training.epochs": None, "training.steps": MAX_STEPS}
        return {key: value for key, value in changes.items() if value is not None}

    def load(self, more: dict[str, Any] | None = None) -> Any:
        """Load the recipe with the changes of the case and `more`."""
        from bertkit.recipe import load_pretrain_recipe, load_recipe

        load = load_pretrain_recipe if self.recipe == "mlm" else load_recipe
        return load(self.recipe, {**self.changes(), **(more or {})})

    def options(self) -> list[str]:
        """Return the case as options of `bertkit finetune`."""
        changes = {key: value for key, value in self.changes().items() if not isinstance(value, dict)}
        return [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]


def find_folder(data: Path, name: str) -> Path:
    """Find the folder of a dataset in `data` or in its folder `glue`."""
    folders = [data / name, data / "glue" / name]
    folder = next((folder for folder in folders if folder.is_dir()), None)
    if folder is None:
        sys.exit(f"no rows for {name}: neither {folders[0]} nor {folders[1]} is a folder")
    return folder.resolve()


def make_case(recipe: str, model: Path | str, data: Path, **options: Any) -> Case:
    """Find the rows of a recipe in `data`; an option that is None has its default for the recipe."""
    folder = find_folder(data, FOLDERS.get(recipe, recipe))
    settings = {key: value for key, value in options.items() if value is not None}
    return Case(recipe, str(Path(model).resolve()), str(folder), **{**DEFAULTS.get(recipe, {}), **settings})
