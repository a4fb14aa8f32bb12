"""Find, check and load the models of a server, and collect its metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from starlette.exceptions import HTTPException

from bertkit.errors import ModelError, UsageError, shorten
from bertkit.evaluation.calibration import fingerprint_all
from bertkit.evaluation.checkpoint import Checkpoint, CheckpointInfo, find_members
from bertkit.hardware.device import find_device
from bertkit.modeling.sentence.folder import DENSE, find_format
from bertkit.progress import stage
from bertkit.recipe.load import load_recipe, recipe_command
from bertkit.server.batching import CPU_TOKENS, GPU_TOKENS, Limits, RequestQueue, WorkerThread
from bertkit.server.engines import EmbeddingEngine, PredictionEngine
from bertkit.server.schemas import classifies_texts, pair_to_rank
from bertkit.storage import hub, runs
from bertkit.storage.exports import is_exported
from bertkit.storage.hub.models import find_recipe, find_run
from bertkit.vectors.embedder import Embedder

# Upper bounds of the buckets of histograms.
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class SavedModel:
    """Model on disk that can be served under a name; it predicts rows, embeds texts, or does both."""

    name: str
    folder: Path
    checkpoint: CheckpointInfo | None
    """Checkpoint that predicts rows, or None for a folder of sentence-transformers that is not a run."""
    can_embed: bool
    """Whether the model embeds texts, with one vector per text."""


def find_models(names: Sequence[str], recipe: str | None = None) -> list[SavedModel]:
    """Find the models of runs, each given as ``RUN`` or ``NAME=RUN``.

    Args:
        names: Folders of runs or of seeds, and model folders of other programs.
        recipe: Recipe of model folders that are not runs, which defines how they read rows; without it, they only
            embed.

    Raises:
        UsageError: If a name is used twice or cannot be part of an address, or no model needs the recipe.
        ModelError: If a folder does not exist, or has no model that can be served.
    """
    models: list[SavedModel] = []
    for argument in names:
        name, equals, path = argument.partition("=")
        model = _find_model(path, name, recipe) if equals else _find_model(argument, "", recipe)
        if not model.name or not all(letter.isalnum() or letter in "-_." for letter in model.name):
            message = f"{model.name!r} cannot be the name of a model, because URLs contain the name"
            raise UsageError(message, f"use letters, digits, '-', '_' and '.': NAME={model.folder}")
        namesake = next((earlier for earlier in models if earlier.name == model.name), None)
        if namesake is not None:
            message = f"two models are called {model.name!r}: {namesake.folder} and {model.folder}"
            raise UsageError(message, f"name one of them: NAME={model.folder}")
        models.append(model)
    if recipe is not None and all(find_recipe(model.folder) for model in models):
        message = f"--recipe {recipe} is not used, because each of these models has its own recipe"
        raise UsageError(message, "leave --recipe out")
    return models


def _find_model(path: str, name: str, recipe: str | None) -> SavedModel:
    folder = find_run(path)
    name = name or folder.resolve().name
    if recipe_file := find_recipe(folder):
        if recipe_command(str(recipe_file)) == "pretrain":
            message = "a pretrained model has no answers to serve"
            raise ModelError(message, "fine-tune it first, or see `bertkit fill-mask`", file=folder)
        # Each member of an ensemble would compute different vectors, so an ensemble only predicts.
        checkpoint = find_members(load_recipe(str(recipe_file), {"model": str(folder)}))
        return SavedModel(name, folder, checkpoint, _can_embed(checkpoint.folder) and not checkpoint.members)
    can_embed = _can_embed(folder)
    if not can_embed and (names := runs.list_runs(folder)):
        message = f"a folder of runs and not a run itself ({shorten(', '.join(names), 200)})"
        raise ModelError(message, f"name the runs to serve, e.g. {folder / names[0]}", file=folder)
    if recipe is not None:
        checkpoint = find_members(load_recipe(recipe, {"model": path}))
        return SavedModel(name, checkpoint.folder, checkpoint, can_embed)
    if not can_embed:
        message = "neither a run nor a model of sentence-transformers, so nothing defines how it reads rows"
        raise ModelError(message, "add --recipe, such as cola or rerank", file=folder)
    return SavedModel(name, hub.find_model(path), None, True)


def _can_embed(folder: Path) -> bool:
    """Return whether a folder has an encoder with one vector per text, and its weights or its exported graph."""
    if find_format(folder) != DENSE:
        return False
    # A folder that only has a config and a tokenizer cannot compute anything.
    return is_exported(folder) or any(next(folder.rglob(name), None) for name in hub.WEIGHTS)


@dataclass(frozen=True)
class ServedModel:
    """Loaded model with the queues of its requests."""

    name: str
    identity: Mapping[str, str]
    """Checksum `sha256` of config, weights and vocabulary; time when training `finished` (ISO format); and `version`.

    The checksum of an ensemble covers all members. For a model that is not a run, `finished` and `version` are empty.
    """
    checkpoint: Checkpoint | None
    embedder: Embedder | None
    row_queue: RequestQueue | None
    """Queue of rows to predict with the checkpoint."""
    text_queue: RequestQueue | None
    """Queue of texts to embed."""

    @property
    def answers_any_question(self) -> bool:
        """Whether the model answers any typed question."""
        return self.checkpoint is not None and self.checkpoint.task.COLUMNS.inputs == ("state",)

    @property
    def routes(self) -> list[str]:
        """Paths at which this model answers."""
        routes = []
        if self.checkpoint is not None:
            routes.append(f"/v1/models/{self.name}:predict")
            if classifies := classifies_texts(self.checkpoint.task):
                routes.append("/predict")
            if classifies or self.answers_any_question:
                routes += ["/v1/decisions", "/v1/systemone"]
            if pair_to_rank(self.checkpoint.task):
                routes.append("/rerank")
        return routes + (["/embed", "/v1/embeddings"] if self.embedder else [])


def choose_model(models: Mapping[str, ServedModel], name: str | None) -> ServedModel:
    """Return the model that a request names, or the only model of its route.

    Raises:
        HTTPException: If the name is unknown, or is missing although several models answer.
    """
    names = ", ".join(models)
    if name is None and len(models) > 1:
        raise HTTPException(422, f"model: several models answer here, name one of {names}")
    if name is not None and name not in models:
        raise HTTPException(404, f"model: no model is called {name!r} here; there are {names}")
    return next(iter(models.values())) if name is None else models[name]


class ServerMetrics:
    """Metrics of one server, in a separate registry, so that two servers in one process do not share them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        counter = partial(Counter, namespace="bertkit", registry=self.registry)
        gauge = partial(Gauge, namespace="bertkit", registry=self.registry)
        histogram = partial(Histogram, namespace="bertkit", registry=self.registry)
        self.requests = counter("requests", "Requests by route and status.", ["route", "status"])
        self.seconds = histogram("request_seconds", "From a request to its answer.", ["route"], buckets=_SECONDS)
        self.batch_seconds = histogram("batch_seconds", "Time of a batch.", ["model"], buckets=_SECONDS)
        self.batch_rows = histogram("batch_rows", "Rows of a batch.", ["model"], buckets=_ROWS)
        self.queued = gauge("queue_rows", "Rows that are waiting or computed.", ["model"])
        self.tokens = counter("tokens", "Tokens that were computed.", ["model"])
        self.models = gauge("model_info", "The models, each 1.", ["model", "sha256", "finished", "version"])

    def add_model(self, name: str, identity: Mapping[str, str], count_rows: Callable[[], int]) -> None:
        """Add the identity of a model, and the number of its rows that are waiting or computed."""
        self.models.labels(model=name, **identity).set(1)
        # Prometheus calls the function when it reads the metrics, so the queue needs no updates.
        self.queued.labels(name).set_function(count_rows)

    def observe_batch(self, model: str, rows: int, tokens: int, seconds: float) -> None:
        """Count a batch."""
        self.batch_rows.labels(model).observe(rows)
        self.tokens.labels(model).inc(tokens)
        self.batch_seconds.labels(model).observe(seconds)

    def observe_request(self, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self.requests.labels(route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)


@dataclass
class Service:
    """Models and settings that all requests of a server share."""

    models: dict[str, ServedModel]
    limits: Limits
    metrics: ServerMetrics
    worker: WorkerThread
    api_key: str | None = None
    """Key that requests must carry as a bearer token, or None if they need no key."""
    is_draining: bool = False
    """Whether the server is about to stop: it still answers, but ``/ready`` reports that it is not ready."""


def load_service(saved_models: Sequence[SavedModel], limits: Limits, *, api_key: str | None = None) -> Service:
    """Load models, and prepare the thread that computes their answers.

    Raises:
        BertkitError: If a model is damaged, or its head is not trained.
    """
    metrics, models = ServerMetrics(), dict[str, ServedModel]()
    # OpenMP keeps helper threads for each thread that has computed, until that thread ends. With the helpers of two
    # threads, there are more threads than cores, which wake up so slowly that small batches take twice as long. So
    # models are loaded in a thread that ends, and only the worker thread computes afterwards.
    with ThreadPoolExecutor(1) as loader:
        for model in saved_models:
            with stage(f"loading {model.name}"):
                models[model.name] = loader.submit(_load_model, model, limits, metrics).result()
    queues = [queue for model in models.values() for queue in (model.row_queue, model.text_queue) if queue]
    return Service(models, limits, metrics, WorkerThread(queues), api_key)


def _load_model(model: SavedModel, limits: Limits, metrics: ServerMetrics) -> ServedModel:
    checkpoint = embedder = row_queue = text_queue = None
    is_on_cpu = is_exported(model.folder) or find_device().is_cpu
    max_tokens = limits.batch_tokens or (CPU_TOKENS if is_on_cpu else GPU_TOKENS)
    observe = partial(metrics.observe_batch, model.name)
    if model.checkpoint is not None:
        checkpoint = model.checkpoint.load(inference=True)
        checkpoint.pack_texts()
        row_queue = RequestQueue(PredictionEngine(checkpoint), limits.queue_rows, max_tokens, observe)
    if model.can_embed:
        embedder = Embedder(str(model.folder))
        embedder.load()
        text_queue = RequestQueue(EmbeddingEngine(embedder), limits.queue_rows, max_tokens, observe)
    identity = _identify_model(model)
    metrics.add_model(model.name, identity, lambda: sum(queue.num_rows for queue in (row_queue, text_queue) if queue))
    return ServedModel(model.name, identity, checkpoint, embedder, row_queue, text_queue)


def _identify_model(model: SavedModel) -> dict[str, str]:
    if model.checkpoint is None:
        return {"sha256": fingerprint_all(model.folder), "finished": "", "version": ""}
    records = [member.record for member in model.checkpoint.members] or [model.checkpoint.record]
    return {
        "sha256": fingerprint_all(model.checkpoint.folder, model.checkpoint.member_folders),
        "finished": max(record.get("finished", "") for record in records),
        "version": records[0].get("versions", {}).get("bertkit", ""),
    }
