"""bertkit: pretrain, fine-tune, distill, evaluate and use BERT-family encoders.

>>> import bertkit
>>> bertkit.load_recipe("cola").best_metric
'matthews_correlation'
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # typing takes a tenth of the start, during which Ctrl-C ends in a traceback
if TYPE_CHECKING:
    from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "load_recipe": "bertkit.recipe",
    "load_pretrain_recipe": "bertkit.recipe",
    "finetune": "bertkit.workflows.finetune",
    "finetune_seeds": "bertkit.workflows.finetune.seeds",
    "make_search": "bertkit.recipe.space",
    "sweep": "bertkit.workflows.sweep",
    "pretrain": "bertkit.workflows.pretrain",
    "distill": "bertkit.workflows.distill",
    "evaluate": "bertkit.workflows.evaluate",
    "predict": "bertkit.workflows.predict",
    "bench": "bertkit.workflows.bench",
    "export": "bertkit.workflows.export",
    "package": "bertkit.workflows.package",
    "Embedder": "bertkit.vectors.embedder",
    "Reranker": "bertkit.vectors.reranker",
    "SparseEmbedder": "bertkit.vectors.sparse",
}


def __getattr__(name: str) -> Any:
    """Import a public function on first use, so that importing bertkit costs nothing."""
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'bertkit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
