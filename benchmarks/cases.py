"""What all engines of one comparison train: the same recipe, model, rows and settings."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FOLDERS = {"ner": "conll2003", "pos": "ud_en_ewt"}  # recipe -> folder of its data, where that has another name
DEFAULTS: dict[str, dict[str, int]] = {"squad": {"limit": 3000, "batch_size": 12}}  # 12 is what scripts for SQuAD take


@dataclass(frozen=True)
class Case:
    """One comparison; `limit` is rows of each split."""

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
        changes = {
            "model": self.model,
            "data.source": self.data,
            "data.files": {},
            "data.limit": self.limit,
            "training.batch_size": self.batch_size,
            "training.epochs": self.epochs,
            "training.seed": self.seed,
            "training.max_length": self.max_length,
        }
        return {key: value for key, value in changes.items() if value is not None}

    def load(self, more: dict[str, Any] | None = None) -> Any:
        """Load the recipe with the case's changes and `more`."""
        from bertkit.recipe import load_recipe

        return load_recipe(self.recipe, {**self.changes(), **(more or {})})

    def options(self) -> list[str]:
        """Return the case as options of `bertkit finetune`."""
        changes = {key: value for key, value in self.changes().items() if not isinstance(value, dict)}
        return [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]

    def has_equal_steps(self, engine: str) -> bool:
        """Return whether all steps of an engine cost the same, since every row is padded to the same length."""
        return engine == "hf-default" and self.recipe != "ner"

    def as_json(self) -> str:
        """Return the content of the file that an engine reads."""
        return json.dumps(asdict(self))


def make_case(recipe: str, model: str, data: Path, **options: Any) -> Case:
    """Find the rows of a recipe below `data`; options that are None are the defaults of this recipe."""
    name = FOLDERS.get(recipe, recipe)
    folders = [data / name, data / "glue" / name]
    folder = next((folder for folder in folders if folder.is_dir()), None)
    if folder is None:
        sys.exit(f"no rows for {recipe}: neither {folders[0]} nor {folders[1]} is a folder")
    chosen = {key: value for key, value in options.items() if value is not None}
    return Case(recipe, str(Path(model).resolve()), str(folder.resolve()), **{**DEFAULTS.get(recipe, {}), **chosen})


def write_sentences(texts: Sequence[str], folder: Path) -> None:
    """Write sentences, with alternating labels, as rows of CoLA: all as training rows, the first 64 for validation."""
    labels = [number % 2 for number in range(len(texts))]
    write_columns("train", {"sentence": texts, "label": labels}, folder)
    write_columns("validation", {"sentence": texts[:64], "label": labels[:64]}, folder)


def write_columns(split: str, columns: Mapping[str, Sequence[Any]], folder: Path) -> None:
    """Write the columns of a split."""
    import pyarrow
    import pyarrow.parquet

    folder.mkdir(parents=True, exist_ok=True)
    table = pyarrow.table({name: list(values) for name, values in columns.items()})
    pyarrow.parquet.write_table(table, folder / f"{split}.parquet")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that all comparisons share."""
    parser.add_argument("--model", required=True, help="folder of the encoder that all engines start from")
    parser.add_argument("--data", required=True, type=Path, help="folder with cola, stsb, ..., conll2003, squad")
    parser.add_argument("--limit", type=int, help="rows of each split")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of every engine; all cores by default")


def write_results(report: dict[str, Any], file: Path) -> None:
    """Write a report as JSON that people can read: the innermost records take one line each."""
    text = re.sub(r"[{\[][^{}\[\]]*[}\]]", lambda match: re.sub(r"\n *", " ", match[0]), json.dumps(report, indent=1))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n", encoding="utf-8")


def environment(threads: int, **more: str) -> dict[str, str]:
    """Return the environment of every measured program: the same threads, the same wait policy, no network.

    The wait policy is the library's own: threads of libgomp spin some milliseconds after their last work, then sleep,
    so that an engine that is not stepped takes nothing from the one that is.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "KMP_", "GOMP_", "MKL_"))}
    fixed = {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    return {**own, **fixed, "HF_DATASETS_DISABLE_PROGRESS_BARS": "1", "PYTHONUNBUFFERED": "1", **more}
