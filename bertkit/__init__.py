"""bertkit: pretrain, fine-tune, distill, evaluate and use BERT-family encoders.

>>> import bertkit
>>> bertkit.load_recipe("cola").best_metric
'matthews_correlation'
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # Importing typing takes a tenth of the start, in which Ctrl-C prints a traceback.
if TYPE_CHECKING:
    from typing import Any

__version__ = "0.1.0"

_MODULES = {
    "BertkitError": "errors",
    "Embedder": "vectors.embedder",
    "Finetuned": "workflows.api",
    "LoadedModel": "workflows.api",
    "Progress": "progress",
    "Reranker": "vectors.reranker",
    "SparseEmbedder": "vectors.sparse",
    "bench": "workflows.bench",
    "distill": "workflows.distill",
    "evaluate": "workflows.evaluate",
    "export": "workflows.export",
    "finetune": "workflows.api",
    "finetune_seeds": "workflows.seeds",
    "load": "workflows.api",
    "load_pretrain_recipe": "recipe.load",
    "load_recipe": "recipe.load",
    "parse_sweep_space": "recipe.space",
    "package": "workflows.package",
    "predict": "workflows.predict",
    "pretrain": "workflows.pretrain",
    "push": "workflows.push",
    "sweep": "workflows.sweep",
    "with_rows": "workflows.api",
}

__all__ = list(_MODULES)  # `__init__.pyi` has the same names with their types


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that importing bertkit costs nothing."""
    # PEP 562: Python calls this function for a name that the module lacks. The workflows import torch, which takes
    # seconds, so `bertkit.load_recipe` must not import them.
    if name in _MODULES:
        return getattr(importlib.import_module(f"bertkit.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'bertkit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
