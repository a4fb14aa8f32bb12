"""The public names of bertkit for type checkers and editors; `__init__.py` imports each when it is used."""

from bertkit.errors import BertkitError as BertkitError
from bertkit.progress import Progress as Progress
from bertkit.recipe.load import load_pretrain_recipe as load_pretrain_recipe
from bertkit.recipe.load import load_recipe as load_recipe
from bertkit.recipe.space import parse_sweep_space as parse_sweep_space
from bertkit.vectors.embedder import Embedder as Embedder
from bertkit.vectors.reranker import Reranker as Reranker
from bertkit.vectors.sparse import SparseEmbedder as SparseEmbedder
from bertkit.workflows.api import FinetuneResults as FinetuneResults
from bertkit.workflows.api import LoadedModel as LoadedModel
from bertkit.workflows.api import finetune as finetune
from bertkit.workflows.api import load as load
from bertkit.workflows.api import with_rows as with_rows
from bertkit.workflows.bench import bench as bench
from bertkit.workflows.distill import distill as distill
from bertkit.workflows.evaluate import evaluate as evaluate
from bertkit.workflows.export import export as export
from bertkit.workflows.package import package as package
from bertkit.workflows.predict import predict as predict
from bertkit.workflows.pretrain import pretrain as pretrain
from bertkit.workflows.push import push as push
from bertkit.workflows.seeds import finetune_seeds as finetune_seeds
from bertkit.workflows.sweep import sweep as sweep

__version__: str
__all__ = [
    "BertkitError",
    "Embedder",
    "FinetuneResults",
    "LoadedModel",
    "Progress",
    "Reranker",
    "SparseEmbedder",
    "bench",
    "distill",
    "evaluate",
    "export",
    "finetune",
    "finetune_seeds",
    "load",
    "load_pretrain_recipe",
    "load_recipe",
    "package",
    "parse_sweep_space",
    "predict",
    "pretrain",
    "push",
    "sweep",
    "with_rows",
]
