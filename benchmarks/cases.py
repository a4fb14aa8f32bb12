"""What all engines of one comparison train: the same recipe, model, rows and settings."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

FOLDERS = {
    "ner": "conll2003",
    "pos": "ud_en_ewt",
    "mlm": "mlm_text",
}  # recipe -> folder of its data, if named otherwise
DEFAULTS: dict[str, dict[str, int]] = {
    "squad": {"limit": 3000, "batch_size": 12},  # 12 is what scripts for SQuAD take
    "mlm": {"batch_size": 16, "max_length": 128},
}
MANY = 100_000  # steps: no engine comes to the end of a pretraining


@dataclass(frozen=True)
class Written:
    """Settings that one program writes to a file, and another reads."""

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
class Case(Written):
    """One comparison, of a recipe or of pretraining (`mlm`); `limit` is rows of each split."""

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
            changes |= {"data.files": None, "training.epochs": None, "training.steps": MANY}
        return {key: value for key, value in changes.items() if value is not None}

    def load(self, more: dict[str, Any] | None = None) -> Any:
        """Load the recipe with the case's changes and `more`."""
        from bertkit.recipe import load_pretrain_recipe, load_recipe

        load = load_pretrain_recipe if self.recipe == "mlm" else load_recipe
        return load(self.recipe, {**self.changes(), **(more or {})})

    def options(self) -> list[str]:
        """Return the case as options of `bertkit finetune`."""
        changes = {key: value for key, value in self.changes().items() if not isinstance(value, dict)}
        return [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]

    def has_equal_steps(self, engine: str) -> bool:
        """Return whether all steps of an engine cost the same, since every row has, or is padded to, one length."""
        return self.recipe == "mlm" or (engine == "hf-default" and self.recipe != "ner")


def find_folder(data: Path, name: str) -> Path:
    """Find the folder of a data set below `data`, which may have those of GLUE in a folder of their own."""
    folders = [data / name, data / "glue" / name]
    folder = next((folder for folder in folders if folder.is_dir()), None)
    if folder is None:
        sys.exit(f"no rows for {name}: neither {folders[0]} nor {folders[1]} is a folder")
    return folder.resolve()


def make_case(recipe: str, model: Path | str, data: Path, **options: Any) -> Case:
    """Find the rows of a recipe below `data`; options that are None are the defaults of this recipe."""
    folder = find_folder(data, FOLDERS.get(recipe, recipe))
    chosen = {key: value for key, value in options.items() if value is not None}
    return Case(recipe, str(Path(model).resolve()), str(folder), **{**DEFAULTS.get(recipe, {}), **chosen})
