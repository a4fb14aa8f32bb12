"""Tasks of MTEB (Muennighoff et al. 2023), which its own package runs on the vectors of an Embedder."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bertkit.errors import UnavailableError, UsageError, message_of
from bertkit.metrics import Numbers
from bertkit.progress import stage
from bertkit.recipe.plugins import import_extra
from bertkit.storage import hub
from bertkit.tokens.features import Tensor
from bertkit.vectors.embedder import Embedder
from bertkit.vectors.search.models import PROMPTS

if TYPE_CHECKING:
    from mteb.abstasks import AbsTask
    from mteb.abstasks.task_metadata import TaskMetadata
    from mteb.models.model_meta import ModelMeta


@dataclass(frozen=True)
class BenchmarkScores:
    """What a model scored on one split and one subset, mostly a language, of a task."""

    benchmark: str
    model: str
    split: str
    subset: str
    metric: str
    """The main one of the task."""
    score: float
    scores: dict[str, float] = field(default_factory=dict)


class BenchmarkModel:
    """An Embedder as the package mteb calls a model: batches of texts to vectors, and vectors to similarities."""

    def __init__(self, embedder: Embedder) -> None:
        self.embedder = embedder

    @property
    def mteb_model_meta(self) -> ModelMeta:
        """What mteb notes of a model: its name and a revision, by which nothing is looked up."""
        from mteb.models.model_meta import ModelMeta

        named = {"name": f"bertkit/{self.embedder.folder.name}", "revision": self.embedder.fingerprint}
        return ModelMeta.create_empty(named)

    def encode(
        self, inputs: Iterable[Mapping[str, Any]], *, task_metadata: TaskMetadata, prompt_type: Any = None, **_: object
    ) -> Numbers:
        """Compute the vectors of the texts of all batches, (texts, dimension), begun with the prompt for the task."""
        texts = [text for batch in inputs for text in batch["text"]]
        task, kind, side = task_metadata.name, task_metadata.type, prompt_type and prompt_type.value
        # the names of the model's prompts that say most about a task, in the order that mteb has
        names = [f"{task}-{side}", task, f"{kind}-{side}", kind, *PROMPTS.get(side or "", ())]
        name = next((name for name in names if name in self.embedder.modules.prompts), None)
        embedder = self.embedder if name is None else self.embedder.with_prompt(name)
        return embedder.encode(texts)

    def similarity(self, embeddings1: Numbers, embeddings2: Numbers) -> Tensor:
        """Compare all vectors with all: (first, second)."""
        first, second = map(self._to_compare, (embeddings1, embeddings2))
        return first @ second.T

    def similarity_pairwise(self, embeddings1: Numbers, embeddings2: Numbers) -> Tensor:
        """Compare the vectors of each pair: (pairs,)."""
        first, second = map(self._to_compare, (embeddings1, embeddings2))
        return (first * second).sum(dim=-1)

    def _to_compare(self, vectors: Numbers) -> Tensor:
        import torch
        from torch.nn import functional

        wide = torch.as_tensor(vectors, dtype=torch.float32)
        return wide if self.embedder.modules.similarity == "dot" else functional.normalize(wide, dim=-1)


def run_benchmark(name: str, embedder: Embedder) -> list[BenchmarkScores]:
    """Score a model on a task of MTEB, whose rows the `datasets` library fetches or has in its cache.

    Raises:
        UnavailableError: mteb is not installed, or the rows are neither here nor on the hub.
        UsageError: there is no such task, or it is not one of texts.
    """
    mteb = import_extra("mteb", "tasks of MTEB need the package mteb", "mteb")
    try:
        task = mteb.get_task(name)
    except KeyError as error:
        near = str(error).partition("Did you mean: ")[2].strip("'?\" ")
        remedy = f"did you mean {near}?" if near else "its tasks are listed at https://embeddings-benchmark.github.io"
        raise UsageError(f"MTEB has no task {name!r}", remedy) from None
    if task.is_aggregate or list(task.metadata.modalities) != ["text"]:
        what = "a collection of tasks" if task.is_aggregate else f"a task of {', '.join(task.metadata.modalities)}"
        raise UsageError(f"{name} of MTEB is {what}", "name a single task of texts")
    with stage(f"reading {name}"):
        _load_data(task)
    with stage(f"loading {embedder.model}"):
        embedder.load()
    with warnings.catch_warnings(action="ignore"):
        options = {"cache": None, "co2_tracker": False, "show_progress_bar": False}
        (of_task,) = mteb.evaluate(BenchmarkModel(embedder), task, **options).task_results
    return [
        BenchmarkScores(
            benchmark=f"mteb:{name}",
            model=embedder.model,
            split=split,
            subset=scores["hf_subset"],
            metric=task.metadata.main_score,
            score=float(scores["main_score"]),
            scores={key: float(value) for key, value in scores.items() if isinstance(value, float)},
        )
        for split, of_split in of_task.scores.items()
        for scores in of_split
    ]


def _load_data(task: AbsTask) -> None:
    """Let a task read its rows.

    Raises:
        UnavailableError: they are neither here nor on the hub.
    """
    import datasets
    from huggingface_hub.utils import httpx

    datasets.disable_progress_bars()
    name, source = task.metadata.name, task.metadata.dataset["path"]
    try:
        task.load_data()
    except (OSError, ValueError, RuntimeError, httpx.HTTPError, datasets.exceptions.DatasetsError) as error:
        if isinstance(error, OSError) and error.errno and not isinstance(error, (ConnectionError, FileNotFoundError)):
            raise  # of the disk
        what = f"the rows of {name} ({source}) are neither in the cache nor to be had: "
        refused = hub.explain(error, what)
        raise refused or UnavailableError(what + message_of(error), "fetch them where there is a network") from None
