"""bertkit: pretrain, fine-tune, distill, evaluate and use BERT-family encoders.

>>> import bertkit
>>> bertkit.load_recipe("cola").best_metric
'matthews_correlation'
"""

from __future__ import annotations

import importlib
import sys

TYPE_CHECKING = False  # Importing typing takes a tenth of the startup, during which Ctrl-C prints a traceback.
if TYPE_CHECKING:
    from typing import Any

__version__ = "0.1.0"

_MODULES = {
    "BertkitError": "errors",
    "Embedder": "vectors.embedder",
    "FinetuneResults": "workflows.api",
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


# --- Decision models of transformers ---
#
# `pipeline("decision", model=RUN)` and AutoModelForDecision find the class of a model by its type in a table of
# transformers, which has no entry points for other packages. The table must not be imported here, because importing
# transformers takes seconds. So an import hook adds the entries when transformers loads the table. The entries are
# names, because `AutoModelForDecision.register` would import the config class of each type, which takes seconds too.

_TABLES = "transformers.models.auto.modeling_auto"


class EncoderForDecision:
    """Entry in transformers' table of decision models, for encoders that bertkit trained."""

    @classmethod
    def from_pretrained(cls, *arguments: Any, **options: Any) -> Any:
        """Load a model; see `bertkit.evaluation.decisions.load_decision_model`."""
        return importlib.import_module("bertkit.evaluation.decisions").load_decision_model(*arguments, **options)


class _TableHook:
    """Finder of modules that adds entries to the table as soon as transformers has loaded it."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> Any:
        if name != _TABLES:
            return None
        from importlib.util import find_spec

        sys.meta_path.remove(cls)
        spec: Any = find_spec(name)
        load = spec.loader.exec_module

        def load_and_register(module: Any) -> None:
            load(module)
            _register_decisions(module)

        spec.loader.exec_module = load_and_register
        return spec


def _register_decisions(tables: Any) -> None:
    """Add the model types of encoders that transformers has no decision model for."""
    # The table is experimental. Another version of transformers without it must still be importable.
    modules = getattr(getattr(tables, "MODEL_FOR_DECISION_MAPPING", None), "_modules", None)
    if modules is None:
        return
    decision_models = tables.MODEL_FOR_DECISION_MAPPING_NAMES
    configs = sys.modules["transformers.models.auto.configuration_auto"]
    tagger_types = tables.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES.keys() - tables.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    for model_type in (tagger_types | tables.MODEL_FOR_MASKED_LM_MAPPING_NAMES.keys()) - decision_models.keys():
        # transformers looks a class up in the module of its model type; for these types, that is this module.
        decision_models[model_type] = EncoderForDecision.__name__
        modules[configs.model_type_to_module_name(model_type)] = sys.modules[__name__]


if _TABLES in sys.modules:
    _register_decisions(sys.modules[_TABLES])
else:
    sys.meta_path.insert(0, _TableHook)
