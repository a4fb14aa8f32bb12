"""What Prometheus reads of a server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bertkit.server.batching import Lane

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
        self.models = gauge("model_info", "The models, each 1.", ["model", "sha256", "finished", "version"])

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
        """Show how many rows of a model are waiting or computed, whenever that is read."""
        self.queued.labels(model).set_function(lambda: sum(lane.rows for lane in lanes))

    def count(self, route: str, status: int, seconds: float) -> None:
        """Count a request."""
        self.requests.labels(route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        """Return all of it in the format that Prometheus reads."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry)
