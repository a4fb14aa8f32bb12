"""The models of a server, loaded, and what all requests share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial

from starlette.exceptions import HTTPException

from bertkit.evaluation.calibration import fingerprint_all
from bertkit.evaluation.checkpoint import Checkpoint
from bertkit.hardware.device import find_device
from bertkit.progress import stage
from bertkit.server.batching import SHARES, Computer, Lane, Limits
from bertkit.server.engines import Predictor, Vectorizer
from bertkit.server.runs import SavedModel
from bertkit.server.schemas import classifies_texts, pair_to_rank
from bertkit.storage.exports import is_exported
from bertkit.tasks import Task
from bertkit.vectors.embedder import Embedder

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class ServerMetrics:
    """Counters of one server, in a registry of its own, so that two servers in one process do not share them."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

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
        identity = ["model", "sha256", "finished", "version"]
        self.models = gauge("model_info", "The models, each 1.", identity)

    def observer(self, model: str) -> Callable[[int, int, float], None]:
        """Return what counts the batches of a model, each with its rows, its tokens and its seconds."""
        of_rows, of_seconds = self.batch_rows.labels(model), self.batch_seconds.labels(model)
        of_tokens = self.tokens.labels(model)

        def observe(rows: int, tokens: int, seconds: float) -> None:
            of_rows.observe(rows)
            of_tokens.inc(tokens)
            of_seconds.observe(seconds)

        return observe

    def identify(self, model: str, **identity: str) -> None:
        """Show which model has a name: its checksum, when its run ended, and with which bertkit."""
        self.models.labels(model=model, **identity).set(1)

    def watch(self, model: str, lanes: Sequence[Lane]) -> None:
        """Show how many rows of a model are waiting or computed."""
        self.queued.labels(model).set_function(lambda: sum(lane.rows for lane in lanes))

    def count(self, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self.requests.labels(route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry)


@dataclass(frozen=True)
class ModelIdentity:
    """Which model answers."""

    sha256: str
    """Checksum of its config, weights and vocabulary; for an ensemble, of those of all members."""
    finished: str
    """When its run ended, in ISO format; of an ensemble, the last one. Empty for a model that is no run."""
    version: str
    """Version of the bertkit that trained it; empty for a model that is no run."""


@dataclass(frozen=True)
class ServedModel:
    """A loaded model with the lanes of what it computes."""

    name: str
    identity: ModelIdentity
    checkpoint: Checkpoint | None
    """What predicts."""
    vectorizer: Vectorizer | None
    rows: Lane | None
    """Where rows wait to be predicted."""
    texts: Lane | None
    """Where texts wait to be embedded."""

    @property
    def task(self) -> Task | None:
        """The task family of what predicts."""
        return None if self.checkpoint is None else self.checkpoint.task

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of its labels, in the order of its outputs."""
        return () if self.checkpoint is None else self.checkpoint.setup.labels

    @property
    def answers_any(self) -> bool:
        """Whether it answers any typed question."""
        return self.task is not None and self.task.COLUMNS.given == ("state",)

    @property
    def classifies(self) -> bool:
        """Whether it reads a text and answers with the probabilities of its labels."""
        return self.task is not None and classifies_texts(self.task)

    @property
    def routes(self) -> list[str]:
        """The addresses that this model answers at."""
        routes = [f"/v1/models/{self.name}:predict"] if self.task else []
        routes += ["/predict"] if self.classifies else []
        routes += ["/v1/decisions", "/v1/systemone"] if self.classifies or self.answers_any else []
        routes += ["/rerank"] if self.task and pair_to_rank(self.task) else []
        return routes + (["/embed", "/v1/embeddings"] if self.texts else [])

    @property
    def main_route(self) -> str:
        """The address that it also answers at ``/`` as, as in text-embeddings-inference; empty if it has none there."""
        return next((route for route in ("/embed", "/predict", "/rerank") if route in self.routes), "")


def choose_model(models: Mapping[str, ServedModel], name: str | None) -> ServedModel:
    """Return the model that a request names, or the only one that answers at its address.

    Raises:
        HTTPException: If the name is unknown, or is missing although several models answer.
    """
    if name is None:
        if len(models) > 1:
            raise HTTPException(422, f"model: several answer here, name one of {', '.join(models)}")
        return next(iter(models.values()))
    if name not in models:
        raise HTTPException(404, f"model: none is called {name!r} here; there are {', '.join(models)}")
    return models[name]


@dataclass
class Service:
    """Everything that the requests of a server share."""

    models: dict[str, ServedModel]
    limits: Limits
    metrics: ServerMetrics
    computer: Computer
    api_key: str | None = None
    """What requests must carry as a bearer token, if anything."""
    is_draining: bool = field(default=False)
    """Whether the server is about to end: it still answers, but is not ready for more."""

    @property
    def is_ready(self) -> bool:
        """Whether it takes requests. It is alive, and not ready, while it stops: nothing should restart it then."""
        return self.computer.is_alive and not self.is_draining

    def get(self, name: str) -> ServedModel:
        """Return the model of a name.

        Raises:
            HTTPException: If the name is unknown.
        """
        if name not in self.models:
            raise HTTPException(404, f"no model is called {name!r}; there are {', '.join(self.models)}")
        return self.models[name]

    def find(self, route: str) -> list[ServedModel]:
        """List the models that answer at an address."""
        return [model for model in self.models.values() if route in model.routes]


def load_service(saved: Sequence[SavedModel], limits: Limits, *, api_key: str | None = None) -> Service:
    """Load models and prepare what computes their answers.

    Raises:
        BertkitError: one is damaged, or its head is not trained.
    """
    metrics = ServerMetrics()
    models = dict[str, ServedModel]()
    # OpenMP keeps helpers for each thread that has computed, until it ends. Those of a second thread are more than the
    # cores, and are then woken so slowly that small batches take twice as long: so this thread computes nothing.
    with ThreadPoolExecutor(1) as loader:
        for model in saved:
            with stage(f"loading {model.name}"):
                models[model.name] = loader.submit(_load_model, model, limits, metrics).result()
    lanes = [lane for model in models.values() for lane in (model.rows, model.texts) if lane]
    return Service(models, limits, metrics, Computer(lanes), api_key)


def _load_model(model: SavedModel, limits: Limits, metrics: ServerMetrics) -> ServedModel:
    # on an accelerator, a whole batch takes milliseconds, and smaller ones leave it idle
    shares = SHARES if is_exported(model.folder) or find_device().is_cpu else 1
    as_lane = partial(Lane, limits=limits, observe=metrics.observer(model.name), shares=shares)
    checkpoint = vectorizer = rows = texts = None
    if model.saved is not None:
        checkpoint = model.saved.load(inference=True)
        checkpoint.pack_texts()
        rows = as_lane(Predictor(checkpoint))
    if model.has_vectors:
        vectorizer = Vectorizer(Embedder(str(model.folder)))
        vectorizer.embedder.load()
        texts = as_lane(vectorizer)
    identity = _identify_model(model)
    metrics.identify(model.name, **asdict(identity))
    metrics.watch(model.name, [lane for lane in (rows, texts) if lane])
    return ServedModel(model.name, identity, checkpoint, vectorizer, rows, texts)


def _identify_model(model: SavedModel) -> ModelIdentity:
    if model.saved is None:
        return ModelIdentity(fingerprint_all(model.folder), "", "")
    records = [member.record for member in model.saved.members] or [model.saved.record]
    checksum = fingerprint_all(model.saved.folder, model.saved.member_folders)
    finished = max(record.get("finished", "") for record in records)
    return ModelIdentity(checksum, finished, records[0].get("versions", {}).get("bertkit", ""))
